"""Depthwise convolutions of bytes whose channels come last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.operators.convolution import depthwise
from test_convolution import EveryWork
from test_packed_filters import _convolved

VARIANTS = {f"{depthwise.BYTES}.{to}.{k.name}" for to in ("sums", "floats", "bytes")
            for k in depthwise.OF_BYTES}
"""Variants that these tests and test_dequantize_convolution.py run on every device."""
BLOCKS = [k.name for k in depthwise.OF_BYTES]

WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 40, 9, 11), (3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    ((1, 260, 7, 9), (5, 3), {"start_padding": (2, 1), "end_padding": (0, 1), "strides": (2, 1)}),
    ((3, 4, 8, 10), (2, 7), {"dilations": (3, 1), "strides": (1, 2), "end_padding": (1, 4)}),
    ((2, 24, 1, 13), (1, 7), {"start_padding": (0, 3), "end_padding": (0, 3)}),
    ((5, 12, 1, 1), (1, 1), {}),
]


def _last(own: dml.Device, x: np.ndarray) -> dml.Tensor:
    return own.tensor(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


def _made(own: dml.Device, block: str) -> None:
    (compiled,) = own.compiled.values()
    (dispatch,) = compiled.plan.execute
    assert dispatch.variant.name.startswith(f"{depthwise.BYTES}.")
    assert dispatch.variant.name.endswith(block)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("x", "taps", "window"), WINDOWS)
@pytest.mark.parametrize(("types", "zeros"), [
    (("uint8", "int8"), True), (("int8", "uint8"), True), (("int8", "int8"), False)])
def test_sums(
    block: str, x: tuple[int, ...], taps: tuple[int, int], window: dict[str, Any],
    types: tuple[str, str], zeros: bool, own: dml.Device, rng: np.random.Generator,
) -> None:
    """CONVOLUTION_INTEGER. Outside of the image lies the zero point."""
    channels = x[1]
    image, filter_ = (rng.integers(i.min, i.max + 1, sizes).astype(i.dtype) for i, sizes in zip(
        map(np.iinfo, types), (x, (channels, 1, *taps))))
    x_zero = np.array(np.iinfo(types[0]).min + 200, types[0])
    w_zero = rng.integers(np.iinfo(types[1]).min, np.iinfo(types[1]).max + 1, channels).astype(
        types[1])
    of_x, of_w = (x_zero, w_zero) if zeros else (0, np.zeros(1))
    factors = image - np.float64(of_x), filter_ - of_w.astype(float).reshape(-1, 1, 1, 1)
    expected = _convolved(*factors, group_count=channels, **window).astype(np.int32)
    out = _last(own, np.full_like(expected, 85))
    with tuning.trial(EveryWork(block)):
        dml.convolution_integer(
            _last(own, image), own.tensor(filter_), x_zero_point=x_zero if zeros else None,
            filter_zero_point=w_zero if zeros else None, group_count=channels, out=out, **window)
    _made(own, block)
    assert np.array_equal(out.numpy(), expected)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("x", "taps", "window"), WINDOWS)
@pytest.mark.parametrize(("types", "full"), [
    (("uint8", "int8", "uint8"), True), (("int8", "int8", "int8"), False)])
def test_quantized(
    block: str, x: tuple[int, ...], taps: tuple[int, int], window: dict[str, Any],
    types: tuple[str, str, str], full: bool, own: dml.Device, rng: np.random.Generator,
) -> None:
    """QUANTIZED_LINEAR_CONVOLUTION. Results lie halfway between numbers, and beyond the range."""
    channels = x[1]
    image, filter_ = (rng.integers(i.min, i.max + 1, sizes).astype(i.dtype) for i, sizes in zip(
        map(np.iinfo, types), (x, (channels, 1, *taps))))
    limit = np.iinfo(types[2])
    x_zero, y_zero = (np.array(np.iinfo(t).min + 77, t) if full else None for t in types[::2])
    bias = rng.integers(-9999, 9999, channels).astype(np.int32) if full else None
    scales = (2.0 ** rng.integers(-3, 1, channels if full else 1)).astype(np.float32)
    sums = _convolved(image - np.float64(0 if x_zero is None else x_zero), filter_,
                      group_count=channels, **window)
    sums += 0 if bias is None else bias[:, None, None]
    whole = np.rint(sums.astype(np.float32) * (scales / 128).reshape(-1, 1, 1))
    expected = np.clip(whole + (0 if y_zero is None else float(y_zero)), limit.min, limit.max)
    out = _last(own, np.full(expected.shape, 85, types[2]))
    with tuning.trial(EveryWork(block)):
        dml.quantized_linear_convolution(
            _last(own, image), np.float32(1), x_zero, own.tensor(filter_), scales, None,
            np.float32(128), y_zero, bias, group_count=channels, out=out, **window)
    _made(own, block)
    assert np.array_equal(out.numpy(), expected)


def test_other_layouts_take_other_kernels(own: dml.Device, rng: np.random.Generator) -> None:
    """Channels that come first, or are not whole words."""
    x, w = (rng.integers(-9, 9, s).astype(np.int8) for s in ((1, 12, 5, 6), (12, 1, 3, 3)))
    expected = _convolved(x, w, group_count=12)
    assert np.array_equal(dml.convolution_integer(
        own.tensor(x), own.tensor(w), group_count=12).numpy(), expected)
    assert np.array_equal(dml.convolution_integer(
        _last(own, x[:, :6]), own.tensor(w[:6]), group_count=6).numpy(), expected[:, :6])
    names = [d.variant.name for c in own.compiled.values() for d in c.plan.execute]
    assert not any(name.startswith(depthwise.BYTES) for name in names)
