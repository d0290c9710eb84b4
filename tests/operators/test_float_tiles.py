"""Convolutions of FLOAT32 in tiles that fill a core: plans for an H200, and values where workgroups
may be large enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.operators.convolution import tiles
from test_convolution import EveryWork, _matrix_units
from test_packed_filters import _convolved

SHADER = tiles.FLOATS
VARIANTS = {f"{SHADER}.{name}{end}" for name in ("t192x128",) for end in ("", ".tail")}
"""Variants that these tests run where workgroups are large enough."""
_NAME = "t192x128"
_SHARED = 41984
"""Bytes of shared memory that the kernel takes."""


def _layer(n: int, channels: int, side: int, filters: int, taps: int) -> Any:
    def image(c: int) -> dml.TensorDesc:
        return dml.TensorDesc("float32", (n, c, side, side), (side * side * c, 1, side * c, c))

    return dml.ConvolutionOperatorDesc(
        input_tensor=image(channels), output_tensor=image(filters), bias_tensor=None,
        filter_tensor=dml.TensorDesc("float32", (filters, channels, taps, taps),
                                     flags=dml.TensorFlags.OWNED_BY_DML),
        mode=1, direction=0, strides=(1, 1), dilations=(1, 1), start_padding=(taps // 2,) * 2,
        end_padding=(taps // 2,) * 2, output_padding=(0, 0), group_count=1)


def _kernel(desc: Any, **traits: Any) -> str:
    """What the convolution runs on an H200, with other traits."""
    target = _matrix_units()
    target = replace(target, traits=replace(target.traits, **traits))
    plan = desc.operator.lower(desc, target)
    for d in plan.execute:
        d.variant.pack_spec(d.spec)
        d.variant.pack_push(d.push)
    return next(d.variant.name for d in plan.execute if d.variant.name.startswith("convolution_")
                and "pack" not in d.variant.name)


@pytest.mark.parametrize(("layer", "kernel"), [
    ((32, 128, 28, 128, 3), f"{SHADER}.{_NAME}"),
    ((16, 256, 28, 256, 3), f"{SHADER}.{_NAME}"),
    ((32, 256, 28, 256, 3), "convolution_lines.t128"),  # two rounds of tiles
    ((32, 64, 56, 64, 3), "convolution_lines.t128x64"),  # half of the columns
    ((32, 256, 14, 256, 3), "convolution_lines.t128x64"),  # a tile for each second core
    ((36, 128, 28, 128, 3), "convolution_lines.t128"),  # a second tile for few cores
    ((32, 120, 28, 128, 3), "convolution_lines.t128x64"),  # 7.5 steps
    ((32, 128, 28, 128, 1), "convolution_lines.t128x64"),
    ((32, 128, 28, 128, 7), "convolution_lines.t128"),  # too many taps for bits
])
def test_which_convolutions_fill_cores(
    layer: tuple[int, int, int, int, int], kernel: str
) -> None:
    assert _kernel(_layer(*layer)) == kernel


def test_which_convolutions_do_not() -> None:
    layer = _layer(32, 128, 28, 128, 3)
    last, first = layer.output_tensor, dml.TensorDesc("float32", layer.output_tensor.sizes)
    others = [
        replace(layer, output_tensor=first), replace(layer, mode=0),
        replace(layer, direction=1),
        replace(layer, output_tensor=last.replace(strides=(28 * 28 * 130, 1, 28 * 130, 130))),
        replace(layer, filter_tensor=dml.TensorDesc(
            "float32", (128, 128, 3, 3), (9 * 256, 1, 3 * 256, 128)))]
    assert not any(_kernel(desc).startswith(SHADER) for desc in others)
    assert not _kernel(layer, max_shared_memory=_SHARED - 1).startswith(SHADER)
    assert not _kernel(layer, max_invocations=256).startswith(SHADER)
    assert _kernel(layer, max_shared_memory=_SHARED, max_invocations=384).startswith(SHADER)


VALUES = [
    ((2, 32, 12, 16), (128, 32, 3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    ((3, 16, 9, 11), (132, 16, 3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    ((2, 92, 13, 11), (72, 46, 3, 2),  # vectors that are made first
     {"strides": (2, 1), "dilations": (1, 3), "start_padding": (2, 1), "end_padding": (1, 2),
      "group_count": 2}),
    ((1, 96, 7, 9), (264, 32, 2, 3), {"group_count": 3, "end_padding": (0, 4)}),
    ((4, 16, 19, 17), (36, 16, 1, 5), {"strides": (3, 2), "dilations": (2, 1)}),
    ((2, 16, 21, 17), (20, 16, 4, 8), {"start_padding": (3, 9)}),  # the most taps
]


def _fitting(own: dml.Device) -> None:
    if own.adapter.max_shared_memory < _SHARED or own.adapter.max_workgroup_invocations < 384:
        pytest.skip("workgroups of the device are too small")


@pytest.mark.parametrize(("x", "w", "window"), VALUES)
@pytest.mark.parametrize("apart", [False, True])
def test_float_tiles_compute_what_numpy_does(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any], apart: bool,
    own: dml.Device, rng: np.random.Generator,
) -> None:
    """``apart``: something lies between the output's pixels, and there is neither bias nor
    activation."""
    _fitting(own)
    image, filter_ = (rng.integers(-4, 5, s).astype("float32") for s in (x, w))
    expected = _convolved(image, filter_, **window)
    given: list[Any] = [own.tensor(filter_)]
    n, channels, height, width = expected.shape
    if not apart:
        bias = rng.integers(-9, 10, channels).astype("float32")
        expected = np.maximum(expected + bias[:, None, None], 0)
        window = {**window, "fused_activation": dml.ActivationReluOperatorDesc()}
        given.append(own.tensor(bias))
    whole = own.tensor(np.full((n, height, width, channels + 4 * apart), 7, np.float32))
    last = own.tensor(np.ascontiguousarray(image.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    with tuning.trial(EveryWork(f"{_NAME}-1")):
        y = dml.convolution(last, *given, **window,
                            out=whole[..., :channels].transpose(0, 3, 1, 2)).numpy()
    (compiled,) = own.compiled.values()
    assert compiled.plan.execute[-1].variant.name == f"{SHADER}.{_NAME}"
    assert np.array_equal(y, expected)
    assert (whole.numpy()[..., channels:] == 7).all()


@pytest.mark.parametrize(("x", "w", "window"), VALUES)
def test_float_tiles_finish_with_a_tail(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any], own: dml.Device,
    rng: np.random.Generator,
) -> None:
    _fitting(own)
    image, filter_ = (rng.integers(-4, 5, s).astype("float32") for s in (x, w))
    bias = rng.integers(-9, 10, w[0]).astype("float32")
    sums = _convolved(image, filter_, **window) + bias[:, None, None]
    other = rng.integers(-99, 100, sums.shape).astype("float32")

    def last(v: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(v.transpose(0, 2, 3, 1))

    with tuning.trial(EveryWork(f"{_NAME}-1")), dml.Graph(own) as g:
        a, b = (g.input(last(v).shape, "float32") for v in (image, other))
        made, out = (g.empty(last(other).shape, "float32") for _ in range(2))
        y = dml.convolution(a.transpose(0, 3, 1, 2), g.constant(filter_), g.constant(bias),
                            **window, out=made.transpose(0, 3, 1, 2))
        dml.add(y, b.transpose(0, 3, 1, 2), out=out.transpose(0, 3, 1, 2))
        run = g.compile(out)
        result = run(last(image), last(other))
    assert f"{SHADER}.{_NAME}.tail" in run.variants
    assert np.array_equal(result, last((sums + other).astype("float32")))
