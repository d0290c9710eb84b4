"""Quantized rows are written as far apart as matrix units read them, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from test_convolution import H200_MATRICES, _matrix_units, set_traits
from test_matrix_multiply_kernels import _with_matrix_units

SWITCH = "KOMPUTE_DML_DISABLE_PASSES"


@pytest.fixture
def units(own: dml.Device) -> dml.Device:
    """A device of which graphs believe that it has matrix units. Other kernels compute there."""
    if not own.target.traits.multiplies(16, 16, 32, "i8", "i32"):
        set_traits(own, cooperative_matrices=H200_MATRICES, subgroup_size=32)
    return own


def _product(x: Any, b: np.ndarray, b_zero: Any = None) -> Any:
    q, scale, zero = dml.dynamic_quantize_linear(x)
    return dml.matrix_multiply_integer_to_float(
        q, scale, b, np.full((1, b.shape[1]), 0.25, np.float32), a_zero_point=zero,
        b_zero_point=b_zero)


def _convolution(x: Any, w: np.ndarray) -> Any:
    """Channels-last."""
    n, h, width, _ = x.sizes
    packed = x.device.empty(x.sizes, "uint8")
    q, scale, zero = dml.dynamic_quantize_linear(x, out=(
        packed, x.device.empty((1, 1, 1, 1)), x.device.empty((1, 1, 1, 1), "uint8")))
    last = (0, 3, 1, 2)
    sums, y, scaled = (x.device.empty((n, h - 1, width - 1, len(w)), t)
                       for t in ("int32", "float32", "float32"))
    dml.convolution_integer(q.transpose(last), w, x_zero_point=zero, out=sums.transpose(last))
    dml.cast(sums.transpose(last), data_type="float32", out=y.transpose(last))
    dml.multiply(y, scale.broadcast_to(y.sizes), out=scaled)
    return scaled


def _run(device: dml.Device, build: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
    with dml.Graph(device) as g:
        run = g.compile(build(g.input(x.shape)))
    return run, run(x)


def _pitches(run: Any) -> list[int]:
    """The distances between rows of bytes that products and convolutions read."""
    found = []
    for compiled, _ in run._plan._steps:
        d = compiled.operator.desc
        if "MATRIX" in compiled.definition.short_name:
            found.append(d.a_tensor.strides[-2])
        elif "CONVOLUTION" in compiled.definition.short_name:
            found.append(d.input_tensor.strides[-1])
    return found


@pytest.mark.parametrize(("rows", "k", "pitch"), [
    (17, 120, 128), (40, 240, 256), (33, 1100, 1280), (8, 120, 120), (40, 256, 256)])
def test_rows_of_a_product(
    rows: int, k: int, pitch: int, units: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = rng.normal(0, 1, (rows, k)).astype(np.float32)
    b = rng.integers(-128, 128, (k, 24)).astype(np.int8)
    padded, got = _run(units, lambda x: _product(x, b), x)
    monkeypatch.setenv(SWITCH, "row_pitch")
    plain, expected = _run(units, lambda x: _product(x, b), x)
    assert _pitches(padded) == [pitch] and _pitches(plain) == [k]
    np.testing.assert_array_equal(got, expected)


def test_channels_of_an_image(
    units: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.normal(0, 1, (2, 6, 7, 24)).astype(np.float32)
    w = rng.integers(-128, 128, (40, 24, 2, 2)).astype(np.int8)
    padded, got = _run(units, lambda x: _convolution(x, w), x)
    monkeypatch.setenv(SWITCH, "row_pitch")
    plain, expected = _run(units, lambda x: _convolution(x, w), x)
    assert _pitches(padded) == [32] and _pitches(plain) == [24]
    np.testing.assert_array_equal(got, expected)


def test_rows_whose_padding_would_count_stay(units: dml.Device, rng: np.random.Generator) -> None:
    """B with a zero point, and rows that something else reads, too."""
    x = rng.normal(0, 1, (40, 120)).astype(np.float32)
    b = rng.integers(-128, 128, (120, 24)).astype(np.int8)
    zero = np.full((1, 24), 3, np.int8)
    assert _pitches(_run(units, lambda x: _product(x, b, zero), x)[0]) == [120]

    with dml.Graph(units) as g:
        q, scale, zero_point = dml.dynamic_quantize_linear(g.input(x.shape))
        run = g.compile([q, dml.matrix_multiply_integer_to_float(
            q, scale, b, np.full((1, 24), 0.25, np.float32), a_zero_point=zero_point)])
    assert _pitches(run) == [120]


@pytest.mark.parametrize(("pitch", "room", "b_type", "reads"), [
    (128, 128 * 40, "int8", True), (120, 120 * 40, "int8", False),
    (128, None, "int8", False), (128, 128 * 40, "uint8", False)])
def test_matrix_units_read_padded_rows(
    pitch: int, room: int | None, b_type: str, reads: bool
) -> None:
    """``room``: the bytes of A's tensor, None for no more than its elements reach."""
    a = dml.TensorDesc("uint8", (40, 120), (pitch, 1),
                       total_tensor_size_in_bytes=room)
    one = dml.TensorDesc("float32", (1, 1))
    desc = dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        a_tensor=a, a_scale_tensor=one, a_zero_point_tensor=dml.TensorDesc("uint8", (1, 1)),
        b_tensor=dml.TensorDesc(b_type, (120, 256), flags=dml.TensorFlags.OWNED_BY_DML),
        b_scale_tensor=one, b_zero_point_tensor=None, bias_tensor=None,
        output_tensor=dml.TensorDesc("float32", (40, 256)))
    plan = desc.operator.lower(desc, _with_matrix_units())
    names = [d.variant.shader.rpartition("_")[2] for d in plan.execute]
    assert (names == ["coopmat"]) == reads


@pytest.mark.parametrize(("pitch", "room", "reads"), [
    (32, 2 * 6 * 7 * 32, True), (24, 2 * 6 * 7 * 24, False), (32, None, False)])
def test_matrix_units_read_padded_channels(pitch: int, room: int | None, reads: bool) -> None:
    x = dml.TensorDesc("uint8", (2, 24, 6, 7), (42 * pitch, 1, 7 * pitch, pitch),
                       total_tensor_size_in_bytes=room)
    desc = dml.ConvolutionIntegerOperatorDesc(
        input_tensor=x, input_zero_point_tensor=dml.TensorDesc("uint8", (1, 1, 1, 1)),
        filter_tensor=dml.TensorDesc("int8", (40, 24, 2, 2), flags=dml.TensorFlags.OWNED_BY_DML),
        filter_zero_point_tensor=None,
        output_tensor=dml.TensorDesc("int32", (2, 40, 5, 6), (1200, 1, 240, 40)), strides=(1, 1),
        dilations=(1, 1), start_padding=(0, 0), end_padding=(0, 0), group_count=1)
    names = [d.variant.shader for d in desc.operator.lower(desc, _matrix_units()).execute]
    assert names == ["convolution_pack"] * (not reads) + ["convolution_coopmat"]
