"""Random ranks, sizes, strides, offsets, types and attributes, against NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kompute_dml as dml
from cases import activation, convolution, elementwise, fill, matrix_multiply, pooling, quantize
from harness import Case, Run, check
from kompute_dml.runtime.traits import DeviceClass
from layouts import Layout, Sizes
from test_convolution import set_traits

pytestmark = pytest.mark.values

_MAX_ELEMENTS = 700


@st.composite
def sizes(draw: Any, low: int, high: int) -> Sizes:
    rank = draw(st.integers(low, high))
    result: list[int] = []
    room = _MAX_ELEMENTS
    for _ in range(rank):
        result.append(draw(st.integers(1, min(room, 40))))
        room //= result[-1]
    return tuple(draw(st.permutations(result)))


@st.composite
def layouts(draw: Any, of: Sizes, is_input: bool) -> Layout:
    """Dimensions in any order in memory, each with a start, a step and space after it, or
    repeated."""
    order = draw(st.permutations(range(len(of))))
    starts, steps, rests, repeated = [], [], [], []
    room = 40.0  # the most times that memory is larger than the tensor
    for n in of:
        start, step, rest = (draw(st.integers(low, 3)) for low in (0, 1, 0))
        again = is_input and draw(st.integers(0, 4)) == 0
        growth = (start + (n - 1) * step + 1 + rest) / n
        if growth > room:
            start, step, rest, growth = 0, 1, 0, 1
        room /= growth
        starts.append(start)
        steps.append(step)
        rests.append(rest)
        repeated.append(again)

    def base_sizes(sizes: Sizes) -> Sizes:
        lengths = [
            start + (1 if again else (n - 1) * step + 1) + rest
            for n, start, step, rest, again in zip(sizes, starts, steps, rests, repeated)
        ]
        return tuple(lengths[d] for d in order)

    def view(base: Any, sizes: Sizes) -> Any:
        back = [order.index(d) for d in range(len(sizes))]
        picked = base.transpose(back)[tuple(
            slice(start, start + (1 if again else (n - 1) * step + 1), step)
            for n, start, step, again in zip(sizes, starts, steps, repeated)
        )]
        if isinstance(base, np.ndarray):
            return np.broadcast_to(picked, sizes) if any(repeated) else picked
        return picked.broadcast_to(sizes)

    return Layout(f"order={order} starts={starts} steps={steps} rests={rests} "
                  f"repeated={repeated}", base_sizes, view)


def _run(draw: Any, case: Case, types: Any, device: dml.Device) -> None:
    placed = {
        name: draw.draw(layouts(tuple(n), name not in case.outputs), label=name)
        for name, n in case.sizes.items()
    }
    level = draw.draw(st.sampled_from(["descriptor", "function"]))
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32), label="contents"))
    check(Run(case, types, placed, level), device, rng)


_int32 = st.one_of(st.integers(-50, 50), st.sampled_from([-(2**31), 2**31 - 1]))


@settings(max_examples=60)
@given(data=st.data())
def test_activation_identity(data: Any, device: dml.Device) -> None:
    case = activation.identity("random", data.draw(sizes(1, 8)))
    _run(data, case, data.draw(st.sampled_from(case.all_types())), device)


# One, two and three inputs, each shader, and types that differ from the output's.
_ELEMENTWISE = [
    c for c in elementwise.CASES if c.name == "line" and c.operator in (
        "CAST", "ELEMENT_WISE_BIT_COUNT", "ELEMENT_WISE_BIT_NOT", "ELEMENT_WISE_IF",
        "ELEMENT_WISE_LOGICAL_LESS_THAN", "ELEMENT_WISE_SUBTRACT")
]


@settings(max_examples=200)
@given(data=st.data())
def test_elementwise(data: Any, device: dml.Device) -> None:
    plain = data.draw(st.sampled_from(_ELEMENTWISE))
    shape = data.draw(sizes(1, 8))
    case = dataclasses.replace(plain, name="random", sizes=dict.fromkeys(plain.sizes, shape))
    _run(data, case, data.draw(st.sampled_from(case.all_types())), device)


@settings(max_examples=60)
@given(data=st.data())
def test_quantization(data: Any, device: dml.Device) -> None:
    shape, name = data.draw(sizes(1, 8)), data.draw(st.sampled_from(["quantize", "dequantize", ""]))
    types = {"quantize": quantize.QUANTIZE, "dequantize": quantize.DEQUANTIZE}.get(name)
    case = quantize.linear(name, "random", shape, True, types, ()) if types \
        else quantize.dynamic("random", shape, None, ())
    _run(data, case, data.draw(st.sampled_from(case.all_types())), device)


@settings(max_examples=60)
@given(data=st.data())
def test_diagonal_matrix(data: Any, device: dml.Device) -> None:
    value = data.draw(st.floats(width=32))
    case = fill.fill("random", data.draw(sizes(2, 4)), data.draw(_int32), value)
    _run(data, case, data.draw(st.sampled_from(case.all_types())), device)


@settings(max_examples=100)
@given(data=st.data())
def test_diagonal_matrix1(data: Any, device: dml.Device) -> None:
    shape = data.draw(sizes(2, 4))
    with_input = data.draw(st.booleans())
    types = data.draw(st.sampled_from(fill.fill1("", shape, 0, 0, 0, with_input).all_types()))
    width = types["output_tensor"].itemsize
    value = data.draw(st.binary(min_size=width, max_size=width))
    case = fill.fill1("random", shape, data.draw(_int32), data.draw(_int32), value, with_input)
    _run(data, case, types, device)


# Combinations that share a few pipelines (each takes a CPU driver a second to compile).
_MATRIX_TYPES = [
    (dml.DataType.UINT8, dml.DataType.INT8, dml.DataType.FLOAT32),
    (dml.DataType.INT16, dml.DataType.INT16, dml.DataType.FLOAT16),
    (dml.DataType.INT32, dml.DataType.INT32, dml.DataType.FLOAT32),
]


@settings(max_examples=60)
@given(data=st.data())
def test_matrix_multiply_integer_to_float(data: Any, device: dml.Device) -> None:
    batches = data.draw(sizes(0, 2)) if data.draw(st.booleans()) else ()
    batches = tuple(min(n, 3) for n in batches)
    m, k, n = (data.draw(st.integers(1, 20)) for _ in range(3))
    case = matrix_multiply.multiply(
        "random", (*batches, m, k), (*batches, k, n),
        scales=data.draw(st.sampled_from(["one", "each"])),
        zeros=data.draw(st.sampled_from(["one", "each"])),
        bias=True, rank=data.draw(st.integers(1, 4)),
        of_types=[data.draw(st.sampled_from(_MATRIX_TYPES))],
    )
    _run(data, case, case.all_types()[0], device)


@st.composite
def _windows(draw: Any, axes: int) -> tuple[Sizes, Sizes, Sizes, dict[str, Sizes]]:
    """Sizes of an image, of a window and of what it makes of it, and the other attributes."""
    def wholes(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(axes)]

    image, window, strides = wholes(1, 9), wholes(1, 4), wholes(1, 4)
    if draw(st.integers(0, 3)) == 0:
        window = list(image)
    dilations = wholes(1, 3) if draw(st.booleans()) else [1] * axes
    start, end = wholes(0, 5), wholes(0, 5)
    made = []
    for i, (n, k, s, d) in enumerate(zip(image, window, strides, dilations)):
        reach = (k - 1) * d + 1
        start[i] = max(start[i], reach - n - end[i])
        made.append((n + start[i] + end[i] - reach) // s + 1)
    return tuple(image), tuple(window), tuple(made), {
        "strides": tuple(strides), "dilations": tuple(dilations), "start_padding": tuple(start),
        "end_padding": tuple(end)}


def _named(cases: list[Case], operator: str, name: str) -> Case:
    return next(c for c in cases if c.operator == operator and c.name == name)


@settings(max_examples=80)
@given(data=st.data())
def test_convolution(data: Any, device: dml.Device) -> None:
    image, window, made, attributes = data.draw(_windows(data.draw(st.integers(1, 3))))
    groups, inner, outer, batches = (data.draw(st.integers(1, n)) for n in (3, 5, 5, 3))
    plain = _named(convolution.CASES, "CONVOLUTION", "plane")
    case = dataclasses.replace(plain, name="random", sizes={
        "input_tensor": (batches, groups * inner, *image),
        "filter_tensor": (groups * outer, inner, *window),
        "bias_tensor": (1, groups * outer, *[1] * len(image)),
        "output_tensor": (batches, groups * outer, *made),
    }, attributes={**plain.attributes, **attributes, "group_count": groups,
                   "output_padding": (0,) * len(image)})
    _run(data, case, data.draw(st.sampled_from(case.all_types())), device)


@pytest.mark.parametrize("as_gpu", [False, True], ids=["as-it-is", "as-a-gpu"])
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pooling(data: Any, as_gpu: bool, own: dml.Device) -> None:
    if as_gpu:
        set_traits(own, device_class=DeviceClass.UNKNOWN)
    image, window, made, attributes = data.draw(_windows(data.draw(st.integers(2, 3))))
    plain = data.draw(st.sampled_from([
        _named(pooling.CASES, "AVERAGE_POOLING1", "dilated-with-padding"),
        _named(pooling.CASES, "AVERAGE_POOLING1", "dilated-without-padding"),
        _named(pooling.CASES, "LP_POOLING1", "dilated-2"),
        _named(pooling.CASES, "MAX_POOLING2", "dilated-indices")]))
    outer = tuple(data.draw(st.integers(1, n)) for n in (2, 8))
    case = dataclasses.replace(
        plain, name="random", attributes={**plain.attributes, **attributes, "window_size": window},
        sizes={n: outer + (image if n == "input_tensor" else made) for n in plain.sizes})
    _run(data, case, data.draw(st.sampled_from(case.all_types())), own)
