"""Elementwise operators beyond the cases: every conversion, both integer widths, function level."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import kompute_dml as dml
from cases.elementwise import _cast
from kompute_dml.operators.base import definitions

_FLOATS = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 127.9, -128.9, 255.5, 65504, 65520, 2.0**31,
           -(2.0**63), 2.0**64, 1e-45, 6e-8, 2.98e-8, 1.0 + 2.0**-11, 1.0 + 2.0**-24]


@pytest.mark.parametrize("source", dml.DataType, ids=str)
def test_cast_to_every_type(source: dml.DataType, rng: np.random.Generator) -> None:
    x = np.frombuffer(rng.bytes(1024 * source.itemsize), source.dtype).copy()
    if source.is_float:
        with np.errstate(over="ignore"):
            x[:512] = (rng.normal(size=512) * 10.0 ** rng.uniform(-8, 20, 512)).astype(x.dtype)
            x[: len(_FLOATS)] = np.array(_FLOATS).astype(x.dtype)
    for to in dml.DataType:
        got = dml.cast(x, data_type=to).numpy()
        with np.errstate(all="ignore"):
            expected = _cast(x, to.dtype)
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


def test_scale_bias_comes_first() -> None:
    x = np.array([-3, 0, 5], np.float32)
    assert dml.abs(x, scale_bias=dml.ScaleBias(2, 1)).numpy().tolist() == [5, 1, 11]
    whole = dml.identity(x.astype(np.int8), scale_bias=dml.ScaleBias(50, 0.9)).numpy()
    assert whole.tolist() == [-128, 0, 127]
    wide = dml.identity(np.array([2**40], np.int64), scale_bias=dml.ScaleBias(-2.0, 0)).numpy()
    assert wide.tolist() == [-(2**41)]


def test_broadcasting_and_python_numbers() -> None:
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    np.testing.assert_array_equal(dml.add(x, 5).numpy(), x + 5)
    np.testing.assert_array_equal(dml.multiply(x, x[:, :1]).numpy(), x * x[:, :1])
    with pytest.raises(dml.ValidationError, match="broadcast"):
        dml.add(x, x[:, :3])


def test_fused_activations() -> None:
    a, b = np.linspace(-4, 4, 9, dtype=np.float32), np.float32([0.25])
    sigmoid = dml.add(a, b, fused_activation=dml.ActivationSigmoidOperatorDesc()).numpy()
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-(a + b))), rtol=1e-6)
    with pytest.raises(dml.ValidationError, match="can be fused"):
        dml.add(a, b, fused_activation=dml.ActivationSwishOperatorDesc(
            input_tensor=None, output_tensor=None, sigmoid_input_scale=1.0))


def test_float64_arithmetic_needs_the_feature(device: dml.Device) -> None:
    x = device.tensor(np.array([1.5, -2.0]))
    call = dml.identity(x).numpy
    assert call().tolist() == [1.5, -2.0]
    if "shaderFloat64" in device.features:
        assert dml.identity(x, scale_bias=dml.ScaleBias(2, 1)).numpy().tolist() == [4.0, -3.0]
    else:
        with pytest.raises(dml.UnsupportedError, match="shaderFloat64"):
            dml.identity(x, scale_bias=dml.ScaleBias(2, 1))


def test_more_dimensions_than_a_dispatch_walks(device: dml.Device) -> None:
    x = np.arange(2 * 3 * 4 * 5 * 2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 4, 5, 2, 3, 2, 2)
    axes = (7, 1, 3, 0, 5, 2, 6, 4)
    got = dml.negate(device.tensor(x).transpose(axes)).numpy()
    np.testing.assert_array_equal(got, -x.transpose(axes))


@pytest.mark.parametrize("data_type", ["uint8", "int8"])
@pytest.mark.parametrize("low, high", [(-3, 5), (1, 2), (-2, -1), (0, 0)])
def test_dynamic_quantization(low: float, high: float, data_type: str, device: dml.Device,
                              rng: np.random.Generator) -> None:
    x = rng.uniform(low, high, (31, 37)).astype(np.float32).T
    y, scale, zero = dml.dynamic_quantize_linear(device.tensor(x.T).T, data_type=data_type)
    info = np.iinfo(data_type)
    least, most = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    exact = (most - least) / np.float32(255) if most > least else np.float32(1)
    from_zero = int(np.clip(np.rint(info.min - least / exact), info.min, info.max))
    assert (scale.item(), zero.item()) == (exact, from_zero)
    expected = np.clip(np.rint(x / exact) + from_zero, info.min, info.max)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_functions_say_what_they_take() -> None:
    for definition in definitions().values():
        function = getattr(dml, definition.function_name, None)
        if function is not None:
            assert function.__doc__
            assert "out" in inspect.signature(function).parameters
