"""Elementwise operators beyond the cases: all conversions, both integer widths, function level."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pytest

import kompute_dml as dml
from cases.elementwise import converted, power
from kompute_dml.lowering import elementwise as elementwise_lowering
from kompute_dml.operators.base import definitions
from kompute_dml.runtime.adapters import Adapter
from kompute_dml.runtime.shader_library import shaders

pytestmark = pytest.mark.values

_NUMPY_TYPES = [t for t in dml.DataType if t.bits >= 8]

_FLOATS = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 127.9, -128.9, 255.5, 65504, 65520, 2.0**31,
           -(2.0**63), 2.0**64, 1e-45, 6e-8, 2.98e-8, 1.0 + 2.0**-11, 1.0 + 2.0**-24]


@pytest.mark.parametrize("source", _NUMPY_TYPES, ids=str)
def test_cast_to_every_type(source: dml.DataType, rng: np.random.Generator) -> None:
    x = np.frombuffer(rng.bytes(1024 * source.itemsize), source.dtype).copy()
    if source.is_float:
        with np.errstate(over="ignore"):
            x[:512] = (rng.normal(size=512) * 10.0 ** rng.uniform(-8, 20, 512)).astype(x.dtype)
            x[: len(_FLOATS)] = np.array(_FLOATS).astype(x.dtype)
    for to in _NUMPY_TYPES:
        got = dml.cast(x, data_type=to).numpy()
        with np.errstate(all="ignore"):
            expected = converted(x, to.dtype)
        np.testing.assert_array_equal(got, expected)
        if to.is_float:
            number = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("infinity_mode", dml.IsInfinityMode)
def test_infinity_modes(infinity_mode: dml.IsInfinityMode) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0, 65504], np.float16)
    expected = {"EITHER": [1, 1], "POSITIVE": [1, 0], "NEGATIVE": [0, 1]}[infinity_mode.name]
    got = dml.is_infinity(x, infinity_mode=infinity_mode).numpy()
    assert got.tolist() == [*expected, 0, 0, 0]


def test_rounding_modes() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609.0, -2.7, np.inf], np.float32)
    mode = dml.RoundingMode
    for rounding_mode, expected in (
        (mode.HALVES_TO_NEAREST_EVEN, np.rint(x)),
        (mode.TOWARD_ZERO, np.trunc(x)),
        (mode.TOWARD_INFINITY, np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x)),
    ):
        got = dml.round(x, rounding_mode=rounding_mode).numpy()
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


def test_clip_differs_where_the_bounds_cross() -> None:
    x = np.array([-9.0, 0.0, 9.0], np.float32)
    assert dml.clip(x, min=3.0, max=1.0).numpy().tolist() == [1, 1, 1]
    assert dml.clip1(x, min=3.0, max=1.0).numpy().tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "data_type", [t for t in dml.DataType if not t.is_float and t.bits >= 8], ids=str)
def test_scalar_unions_hold_every_integer(data_type: dml.DataType) -> None:
    info = np.iinfo(data_type.dtype)
    least, most = int(info.min), int(info.max)
    x = np.array([least, least + 1, 0, 1, most - 1, most], data_type.dtype)
    for low, high in ((least + 1, most - 1), (most - 1, most), (least, least), (most, least)):
        expected = np.maximum(np.minimum(x, data_type.dtype.type(high)),
                              data_type.dtype.type(low))
        np.testing.assert_array_equal(dml.clip1(x, min=low, max=high).numpy(), expected)
    for value in (least, most - 1):
        filled = dml.fill_value_constant((3,), value=value, data_type=data_type)
        assert filled.numpy().tolist() == [value] * 3
    steps = dml.fill_value_sequence((4,), value_start=most - 1, value_delta=1, data_type=data_type)
    assert steps.numpy().tolist() == [most - 1, most, least, least + 1], "it wraps"
    with pytest.raises(dml.ValidationError, match=rf"CLIP1: expected Min .*{data_type}"):
        dml.clip1(x, min=least - 1, max=most)
    with pytest.raises(dml.ValidationError, match=rf"^fill_value_constant: .*{data_type} can hold"):
        dml.fill_value_constant((3,), value=most + 1, data_type=data_type)


@pytest.mark.parametrize("bounds", [(np.nan, 1), (0, np.nan), (np.nan, np.nan)], ids=str)
def test_clip_by_a_bound_that_is_no_number(bounds: tuple[float, float]) -> None:
    for dtype in (np.float32, np.float16):
        x = np.array([-1, 0, 2, np.inf], dtype)
        for clip in (dml.clip, dml.clip1):
            np.testing.assert_array_equal(clip(x, *bounds).numpy(), np.clip(x, *bounds))


def test_scalar_unions_hold_every_float() -> None:
    nan = np.uint32(0x7FC12345).view(np.float32)
    filled = dml.fill_value_constant((1,), value=nan, data_type="float32").numpy()
    assert filled.view(np.uint32) == 0x7FC12345
    wide = dml.fill_value_constant((2,), value=np.pi, data_type="float64").numpy()
    assert wide.tolist() == [np.pi] * 2
    x = np.float16([-9, 0, 9, np.nan])
    got = dml.clip1(x, min=np.float16(-np.inf), max=np.float16(1.0009765625)).numpy()
    np.testing.assert_array_equal(got, np.float16([-9, 0, 1.0009765625, np.nan]))


def _whole(value: float, dtype: str) -> int:
    info = np.iinfo(dtype)
    if np.isnan(value):
        return 0
    if np.isinf(value):
        return int(info.max if value > 0 else info.min)
    return min(max(int(value), int(info.min)), int(info.max))


def _wrapped(values: list[int], dtype: str) -> np.ndarray:
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([v % 2**bits for v in values], f"u{bits // 8}").view(dtype)


_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", _INTEGERS)
@pytest.mark.parametrize("value", [2.9, -2.9, 1e10, -1e10, np.inf, -np.inf, np.nan, 0.0])
def test_floats_for_integers_truncate_and_saturate(dtype: str, value: float) -> None:
    info, bound = np.iinfo(dtype), _whole(value, dtype)
    integers = [int(info.min), 0, 1, 2, 3, 4, int(info.max)]
    x = np.array(integers, dtype)
    clipped = dml.clip(x, min=-np.inf, max=value).numpy()
    np.testing.assert_array_equal(clipped, _wrapped([min(v, bound) for v in integers], dtype))
    crossed = dml.clip(x, min=np.inf, max=value).numpy()
    np.testing.assert_array_equal(crossed, _wrapped([bound] * len(integers), dtype))
    if x.itemsize == 8:
        return  # the others take no 64-bit integers
    raised = dml.threshold(x, min=value).numpy()
    np.testing.assert_array_equal(raised, _wrapped([max(v, bound) for v in integers], dtype))
    low = _whole(-value, dtype)
    shrunk = dml.activation_shrink(x, bias=1.5, threshold=value).numpy()
    np.testing.assert_array_equal(shrunk, _wrapped(
        [v - 1 if v > bound else v + 1 if v < low else 0 for v in integers], dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_division_of_narrow_integers(dtype: str, rng: np.random.Generator) -> None:
    """All pairs of bytes, and neighbours of multiples of 16-bit divisors."""
    info = np.iinfo(dtype)
    if info.bits == 8:
        every = np.arange(info.min, info.max + 1)
        x, y = np.repeat(every, every.size), np.tile(every, every.size)
    else:
        y = np.repeat([*range(-9, 300), *rng.integers(info.min, info.max, 700)], 64)
        y = np.where((info.min <= y) & (y <= info.max), y, info.max)
        most = 65535 // np.maximum(abs(y), 1)
        x = y * rng.integers(-most, most + 1) + rng.integers(-1, 2, y.size)
        x = np.clip(x, info.min, info.max)
    divisor = np.where(y == 0, 1, y)
    quotient = np.trunc(x / divisor).astype(int)
    for compute, expected in (
        (lambda a, b: dml.divide(a=a, b=b), np.where(y == 0, -1, quotient)),  # not NumPy's
        (dml.modulus_truncate, np.where(y == 0, x, x - quotient * divisor)),
        (dml.modulus_floor, np.where(y == 0, x, x % divisor)),
    ):
        got = compute(x.astype(dtype), y.astype(dtype)).numpy()
        np.testing.assert_array_equal(got, expected.astype(dtype))


def test_attributes_are_told_apart_by_their_bits() -> None:
    """Compiled operators are cached by attributes, but 0.0 equals -0.0 in Python."""
    for value in (0.0, -0.0, 0.0):
        got = dml.diagonal_matrix([1, 1], value=value).numpy()
        assert np.signbit(got) == np.signbit(value)


def test_scale_bias_comes_first() -> None:
    x = np.array([-3, 0, 5], np.float32)
    assert dml.abs(x, scale_bias=dml.ScaleBias(2, 1)).numpy().tolist() == [5, 1, 11]
    whole = dml.identity(x.astype(np.int8), scale_bias=dml.ScaleBias(50, 0.9)).numpy()
    assert whole.tolist() == [-128, 0, 127]
    power = dml.constant_pow(np.int32([3]), exponent=2.0, scale_bias=dml.ScaleBias(0.5, 0))
    assert power.numpy().tolist() == [2], "1.5 squared, truncated at the end alone"
    wide = dml.identity(np.array([2**40], np.int64), scale_bias=dml.ScaleBias(-2.0, 0)).numpy()
    assert wide.tolist() == [-(2**41)]


def test_broadcasting_and_python_numbers() -> None:
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    np.testing.assert_array_equal(dml.add(x, 5).numpy(), x + 5)
    np.testing.assert_array_equal(dml.multiply(x, x[:, :1]).numpy(), x * x[:, :1])
    with pytest.raises(dml.ValidationError, match="broadcast"):
        dml.add(x, x[:, :3])


def test_numbers_to_choose_between_take_no_type_of_the_condition() -> None:
    condition, x = np.uint8([[1, 0]]), np.float32([[1.5], [-2.0]])
    for result, expected in ((dml.if_(condition, x, 0.5), np.where(condition, x, 0.5)),
                             (dml.if_(condition, 0.5, x), np.where(condition, 0.5, x)),
                             (dml.if_(condition, 0.5, 2.0), np.where(condition, 0.5, 2.0))):
        np.testing.assert_array_equal(result.numpy(), expected)
    assert dml.if_(condition, x, 0.5).dtype == np.float32


def test_fused_activations() -> None:
    a, b = np.linspace(-4, 4, 9, dtype=np.float32), np.float32([0.25])
    sigmoid = dml.add(a, b, fused_activation=dml.ActivationSigmoidOperatorDesc()).numpy()
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-(a + b))), rtol=1e-6)
    with pytest.raises(dml.ValidationError, match="can be fused"):
        dml.add(a, b, fused_activation=dml.ActivationSwishOperatorDesc(
            input_tensor=None, output_tensor=None, sigmoid_input_scale=1.0))


def test_float64_arithmetic_needs_the_feature(device: dml.Device) -> None:
    x = device.tensor(np.array([1.5, -2.0]))
    assert dml.identity(x).numpy().tolist() == [1.5, -2.0]
    columns = device.tensor(np.array([[[1.0, 2.0**-50]]]))
    one = dict(window_sizes=(1,), strides=(1,), dilations=(1,), start_padding=(0,),
               end_padding=(0,))
    pair = one | dict(window_sizes=(2,), end_padding=(1,))
    assert dml.unfold(columns, **pair).numpy().tolist() == [[[1, 2**-50], [2**-50, 0]]]
    if "shaderFloat64" in device.features:
        assert dml.identity(x, scale_bias=dml.ScaleBias(2, 1)).numpy().tolist() == [4.0, -3.0]
        both = device.tensor(np.array([[[3.0, 1.0], [2.0**-50, 5.0]]]))
        assert dml.fold(both, (2,), **pair).numpy().tolist() == [[[3, 1 + 2**-50]]]
    else:
        for call in (lambda: dml.identity(x, scale_bias=dml.ScaleBias(2, 1)),
                     lambda: dml.fold(columns, (2,), **one)):
            with pytest.raises(dml.UnsupportedError, match="shaderFloat64"):
                call()


def test_more_dimensions_than_a_dispatch_walks(device: dml.Device) -> None:
    x = np.arange(2 * 3 * 4 * 5 * 2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 4, 5, 2, 3, 2, 2)
    axes = (7, 1, 3, 0, 5, 2, 6, 4)
    got = dml.negate(device.tensor(x).transpose(axes)).numpy()
    np.testing.assert_array_equal(got, -x.transpose(axes))


def test_functions_say_what_they_take() -> None:
    for definition in definitions().values():
        function = getattr(dml, definition.function_name, None)
        if function is not None:
            assert function.__doc__
            assert "out" in inspect.signature(function).parameters


@pytest.fixture
def gpu_like(monkeypatch: pytest.MonkeyPatch) -> Iterator[dml.Device]:
    """A device with elementwise shaders as for a GPU, with two parts for each invocation."""
    monkeypatch.setattr(Adapter, "is_cpu", False)
    monkeypatch.setattr(elementwise_lowering, "_in_pairs", lambda *args: True)
    device = dml.Device()
    yield device
    device.close()


# One workgroup and more; whole and partial vectors, aligned and not, in each operand.
@pytest.mark.parametrize("first, count", [(0, 8192), (0, 8191), (1, 8200), (3, 5000), (16, 1)])
@pytest.mark.parametrize("x_type, y_type", [
    ("float32", "uint8"), ("uint8", "float32"), ("float32", "float16"), ("float16", "int8"),
    ("int64", "int32"), ("int8", "int64"), ("uint8", "int8"),
])
def test_parts_as_gpus_make_them(
    gpu_like: dml.Device, rng: np.random.Generator, x_type: str, y_type: str, first: int, count: int
) -> None:
    x = rng.integers(0, 100, first + count).astype(x_type)
    for to in (0, first):
        y = gpu_like.tensor(np.full(to + count + 5, 77, y_type))
        dml.cast(gpu_like.tensor(x)[first:], data_type=y_type, out=y[to : to + count])
        expected = np.full(to + count + 5, 77, y_type)
        expected[to : to + count] = x[first:].astype(y_type)
        np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int8", "int16", "float16", "float32", "int64"])
def test_pairs_of_operands_as_gpus_make_them(
    gpu_like: dml.Device, rng: np.random.Generator, dtype: str
) -> None:
    a, b = (rng.integers(0, 50, 9000).astype(dtype) for _ in range(2))
    x, y = gpu_like.tensor(a), gpu_like.tensor(b)
    for i, j, n in ((0, 0, 9000), (4, 4, 8192), (1, 2, 8500), (0, 3, 8997)):
        got = dml.add(x[i : i + n], y[j : j + n]).numpy()
        np.testing.assert_array_equal(got, a[i : i + n] + b[j : j + n])
        got = dml.logical_less_than(x[i : i + n], y[j : j + 1]).numpy()
        np.testing.assert_array_equal(got, a[i : i + n] < b[j])
    got = dml.max(x[::2], y[1::2]).numpy()
    np.testing.assert_array_equal(got, np.maximum(a[::2], b[1::2]))
    grid = a.reshape(90, 100)
    got = dml.add(x.reshape(90, 100), y[:100]).numpy()
    np.testing.assert_array_equal(got, grid + b[:100])


@pytest.mark.parametrize("width", [3001, 3004, 4096, 64])
def test_lines_of_their_own_scale_as_gpus_make_them(
    gpu_like: dml.Device, rng: np.random.Generator, width: int
) -> None:
    x = rng.normal(size=(7, width)).astype(np.float32)
    scale, zero = rng.uniform(0.01, 0.1, 7).astype(np.float32), np.arange(100, 107, dtype=np.uint8)
    got = dml.quantize_linear(gpu_like.tensor(x), scale, zero, axis=0).numpy()
    whole = np.rint(x / scale[:, None]) + zero[:, None]
    np.testing.assert_array_equal(got, np.clip(whole, 0, 255))
    back = dml.dequantize_linear(gpu_like.tensor(got), scale, zero, axis=0).numpy()
    difference = got.astype(np.float32) - zero[:, None]
    np.testing.assert_array_equal(back, difference * scale[:, None])


@pytest.mark.parametrize("side", [6, 512])
def test_diagonals_begin_where_numpys_integers_say(side: int) -> None:
    """NumPy's integers wrap."""
    array = np.eye(side, k=2, dtype=np.float32)
    for number in (np.uint8(2), np.int8(2), np.int64(2)):
        made = dml.diagonal_matrix([side, side], offset=number)
        np.testing.assert_array_equal(made.numpy(), array)
        made = dml.diagonal_matrix1(sizes=[side, side], value=1.0, diagonal_fill_begin=number,
                                    diagonal_fill_end=number + number.dtype.type(1))
        np.testing.assert_array_equal(made.numpy(), array)


@pytest.mark.parametrize("start, delta", [
    (3e38, 1e38), (np.inf, 1.0), (-np.inf, 1.0), (0.0, np.inf), (np.inf, -np.inf), (1.0, np.nan)])
def test_sequences_beyond_what_is_finite(start: float, delta: float) -> None:
    got = dml.fill_value_sequence((7,), value_start=start, value_delta=delta).numpy()
    with np.errstate(all="ignore"):
        expected = np.float32(start) + np.arange(7, dtype=np.float32) * np.float32(delta)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype, count", [("float32", (1 << 24) + 99), ("float16", 3001)])
@pytest.mark.parametrize("start, delta", [(0.1, 0.3), (-5000.0, 0.3), (2.0**-24, 1.0)])
def test_sequences_are_rounded_step_by_step(
    dtype: str, count: int, start: float, delta: float
) -> None:
    """The number of an element is rounded, too, beyond 2^24."""
    first, step = np.array([start, delta], dtype)
    got = dml.fill_value_sequence((count,), value_start=first, value_delta=step, data_type=dtype)
    number = np.arange(count).astype(np.float32)
    expected = np.float32(first) + number * np.float32(step)
    np.testing.assert_array_equal(got.numpy(), expected.astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("skip", [0, 1])
def test_inputs_transposed_as_for_gpus(
    gpu_like: dml.Device, rng: np.random.Generator, dtype: str, skip: int
) -> None:
    a, b = (rng.integers(0, 50, (skip + 256, 330)).astype(dtype) for _ in range(2))
    x, y = (gpu_like.tensor(v)[skip:, skip : skip + 320] for v in (a, b))
    a, b = (v[skip:, skip : skip + 320] for v in (a, b))
    straight = rng.integers(0, 50, (320, 256)).astype(dtype)
    np.testing.assert_array_equal(dml.add(gpu_like.tensor(straight), x.T).numpy(), straight + a.T)
    np.testing.assert_array_equal(dml.add(x.T, y.T).numpy(), (a + b).T)
    np.testing.assert_array_equal(dml.add(x, y.T.transpose((1, 0))).numpy(), a + b)
    out = gpu_like.tensor(np.zeros((256, 320), dtype))
    dml.add(x.T, y.T, out=out.T)
    np.testing.assert_array_equal(out.numpy(), a + b)
    many = np.stack([straight, straight + a.T])
    got = dml.max(gpu_like.tensor(many), x.T).numpy()
    np.testing.assert_array_equal(got, np.maximum(many, a.T))


@pytest.fixture
def tabulating(gpu_like: dml.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[dml.Device]:
    """The same device with tables for few bytes, and several parts for each invocation."""
    monkeypatch.setattr(elementwise_lowering, "_WORTH_TABLES", 0)
    monkeypatch.setattr(elementwise_lowering, "_LOOKING_UP", 1)
    yield gpu_like
    ran = {name for compiled in gpu_like.compiled.values() for name in compiled.variants}
    assert ran <= {*shaders()["elementwise_table"]}, "nothing was computed by element"


_PAIRS = np.divmod(np.arange(2**16), 256)
_BYTES = ["int8", "uint8"]
_EXPONENTS = {"constant_pow": [1.0, 0.5, -1.5, 0.0, np.inf, np.nan], "square": [2.0], "cube": [3.0]}


def test_every_table_is_tested() -> None:
    assert {f"elementwise_table.{name}" for name in ("pow", *_EXPONENTS)} == {
        *shaders()["elementwise_table"]}


@pytest.mark.parametrize("x_type", _BYTES)
@pytest.mark.parametrize("y_type", _BYTES)
def test_powers_of_bytes_by_a_table(tabulating: dml.Device, x_type: str, y_type: str) -> None:
    a, b = (v.astype(t) for v, t in zip(_PAIRS, (x_type, y_type)))
    expected = power(a, b)
    x, y = tabulating.tensor(a), tabulating.tensor(b)
    np.testing.assert_array_equal(dml.pow(x, y).numpy(), expected)
    np.testing.assert_array_equal(dml.pow(x[16:65000], y[:64984]).numpy(),
                                  power(a[16:65000], b[:64984]))
    scaled = dml.pow(x, y, scale_bias=dml.ScaleBias(-1.75, 20)).numpy()
    base = converted(a.astype(np.float32) * np.float32(-1.75) + np.float32(20), a.dtype)
    np.testing.assert_array_equal(scaled, power(base, b))
    if x_type == y_type:
        dml.pow(x, y, out=y)
        np.testing.assert_array_equal(y.numpy(), expected)
    dml.pow(x, tabulating.tensor(b), out=x)
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("dtype", _BYTES)
@pytest.mark.parametrize("name", _EXPONENTS)
@np.errstate(all="ignore")
def test_a_power_of_bytes_by_a_table(tabulating: dml.Device, dtype: str, name: str) -> None:
    a = _PAIRS[1].astype(dtype)
    x = tabulating.tensor(a)
    for exponent in map(np.float64, _EXPONENTS[name]):
        expected = power(a, exponent)
        np.testing.assert_array_equal(dml.constant_pow(x, exponent=exponent).numpy(), expected)
        part = dml.constant_pow(x[32:50001], exponent=exponent).numpy()
        np.testing.assert_array_equal(part, expected[32:50001])
        scaled = dml.constant_pow(x, exponent=exponent, scale_bias=dml.ScaleBias(0.25, -3))
        wide = power(a * 0.25 - 3, exponent).astype(np.float32)
        np.testing.assert_array_equal(scaled.numpy(), converted(wide, a.dtype))
    dml.constant_pow(x, exponent=exponent, out=x)
    np.testing.assert_array_equal(x.numpy(), expected)


def test_inputs_are_transposed_by_copies_on_gpus(gpu_like: dml.Device) -> None:
    def variants(width: int, *strides: tuple[int, int]) -> tuple[str, ...]:
        a, b, y = (dml.TensorDesc("float32", (width, width), s) for s in strides)
        desc = dml.ElementWiseAddOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y)
        operator = gpu_like.create_operator(desc)
        return gpu_like.compile_operator(operator).variants

    add, transpose = "elementwise_float.add", "activation_identity_tiles.b32"
    rows, columns = (256, 1), (1, 256)
    assert variants(256, rows, columns, rows) == (transpose, add)
    assert variants(256, columns, columns, rows) == (transpose, transpose, add)
    assert variants(256, columns, columns, columns) == (add,)
    assert variants(8, (8, 1), (1, 8), (8, 1)) == (add,)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_a_transposing_copy_is_one_dispatch_on_gpus(
    gpu_like: dml.Device, dtype: str, order: tuple[int, int, int], rng: np.random.Generator
) -> None:
    """Also where the output is a part of a larger tensor, which the identity writes by rows."""
    x = rng.integers(-99, 99, (40, 48, 56)).astype(dtype)
    tensor, expected = gpu_like.tensor(x).transpose(*order), x.transpose(order)
    whole = gpu_like.empty(expected.shape, dtype)
    part = gpu_like.tensor(np.zeros((*expected.shape[:2], 64), dtype))
    for y, most in ((whole, 1), (part[..., : expected.shape[2]], 2)):
        operator = gpu_like.create_operator(dml.ElementWiseIdentityOperatorDesc(
            input_tensor=tensor.desc, output_tensor=y.desc))
        assert len(gpu_like.compile_operator(operator).variants) <= most
        dml.identity(tensor, out=y)
        np.testing.assert_array_equal(y.numpy(), expected)
    assert (part.numpy()[..., expected.shape[2]:] == 0).all()


@pytest.mark.parametrize("zero_point", [np.int8([3]), np.uint8([131])])
def test_quantization_rounds_quotients_as_float32_does(
    device: dml.Device, rng: np.random.Generator, zero_point: np.ndarray
) -> None:
    halves = np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)
    low, high = np.iinfo(zero_point.dtype).min, np.iinfo(zero_point.dtype).max
    for scale in rng.uniform(0.001, 2, 24).astype(np.float32):
        bits = (halves * scale).view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)
        x = np.r_[bits.ravel().view(np.float32), np.float32([np.nan, np.inf, -np.inf, 1e38, -0.0])]
        got = dml.quantize_linear(device.tensor(x), scale, zero_point).numpy()
        with np.errstate(all="ignore"):
            whole = np.where(np.isnan(x), -1024, np.clip(np.rint(x / scale), -1024, 1024))
        np.testing.assert_array_equal(got, np.clip(whole + zero_point, low, high))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("first, count", [(0, 100003), (3, 100003), (1, 5)])
def test_ranges_leave_nan_out(
    device: dml.Device, rng: np.random.Generator, dtype: type, first: int, count: int
) -> None:
    x = (rng.normal(size=count) * 5).astype(dtype)
    for value in (0.0, np.nan, -np.nan):
        x[count // 2] = value
        # Elements around the view are larger than those in it.
        around = np.r_[np.full(first, 9999), x, np.full(9, -9999)].astype(dtype)
        view = device.tensor(around)[first : first + count]
        _, scale, _ = dml.dynamic_quantize_linear(view)
        numbers = np.r_[np.float32(0), x[~np.isnan(x)].astype(np.float32)]
        assert scale.item() == np.ptp(numbers) / np.float32(255)
