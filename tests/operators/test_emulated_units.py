"""Convolutions of bytes and products of BFLOAT16 on matrix units that no device here has: their
shaders, with matrices in shared memory instead. Only where an element of a matrix lies is not
tested in this way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml
from emulated_units import BFLOAT16_SHAPES, SHAPES, multiply_bfloat16, multiply_bytes
from kompute_dml.functions.matrix_multiply import gemm_of_bfloat16


def _image(own: dml.Device, values: np.ndarray, last: bool) -> dml.Tensor:
    if last:
        return own.tensor(values).transpose(0, 3, 1, 2)
    return own.tensor(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def _sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of windows of 3 x 3, with channels last."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,oijc->nohw", windows, w.astype(np.int64))


def _bytes(rng: np.random.Generator, kind: str, *sizes: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max + 1, sizes).astype(kind)


def _runs(own: dml.Device, tile: str) -> bool:
    return any(f"{tile}.emulated" in name for compiled in own.compiled.values()
               for name in compiled.variants)


@pytest.mark.parametrize("tile", SHAPES)
@pytest.mark.parametrize(("kinds", "zeros", "last"), [
    (("int8", "int8"), False, True), (("uint8", "int8"), True, True),
    (("uint8", "uint8"), True, False)])
def test_sums_of_bytes(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    tile: str, kinds: tuple[str, str], zeros: bool, last: bool,
) -> None:
    multiply_bytes(own, tile, tmp_path, monkeypatch)
    x, w = _bytes(rng, kinds[0], 2, 7, 9, 48), _bytes(rng, kinds[1], 72, 3, 3, 48)
    x_zero, w_zero = (_bytes(rng, kind, 1, 1, 1, 1) for kind in kinds)
    points = {"x_zero_point": own.tensor(x_zero), "filter_zero_point": own.tensor(w_zero)}
    y = dml.convolution_integer(
        _image(own, x, last), _image(own, w, last), start_padding=(1, 1), end_padding=(1, 1),
        **(points if zeros else {})).numpy()
    assert _runs(own, tile)
    wide = [t.astype(np.int64) - zeros * zero for t, zero in ((x, x_zero), (w, w_zero))]
    assert (y == _sums(*wide)).all()


@pytest.mark.parametrize("tile", SHAPES)
def test_quantized_bytes(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    tile: str,
) -> None:
    multiply_bytes(own, tile, tmp_path, monkeypatch)
    x, w = _bytes(rng, "uint8", 2, 7, 9, 48), _bytes(rng, "int8", 72, 3, 3, 48)
    x_zero, w_zero = _bytes(rng, "uint8", 1, 1, 1, 1), np.zeros((1, 1, 1, 1), np.int8)
    y_zero = np.array([[[[117]]]], np.uint8)
    one, scale = np.ones((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 1), 1024, np.float32)
    bias = rng.integers(-9999, 9999, (1, 72, 1, 1)).astype(np.int32)
    y = dml.quantized_linear_convolution(
        _image(own, x, True), *map(own.tensor, (one, x_zero)), _image(own, w, True),
        *map(own.tensor, (one, w_zero, scale, y_zero, bias)), start_padding=(1, 1),
        end_padding=(1, 1), data_type=dml.DataType.UINT8).numpy()
    assert _runs(own, tile)
    sums = _sums(x.astype(np.int64) - x_zero, w) + bias
    assert (y == np.clip(np.rint(sums / 1024) + 117, 0, 255)).all()


# Products of BFLOAT16


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """The nearest numbers of BFLOAT16, ties to even, as bits. No NaN."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _numbers(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("tile", BFLOAT16_SHAPES)
@pytest.mark.parametrize(("sizes", "turned", "with_c"), [
    ((70, 136, 48), "", True), ((13, 40, 33), "b", False), ((64, 25, 72), "a", True),
    ((9, 7, 5), "ab", True)])
def test_products_of_bfloat16(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    tile: str, sizes: tuple[int, int, int], turned: str, with_c: bool,
) -> None:
    multiply_bfloat16(own, tile, tmp_path, monkeypatch)
    m, k, n = sizes
    a, b, c = (_bfloat16(rng.standard_normal(s)) for s in ((m, k), (k, n), (1, n)))

    def tensor(x: np.ndarray, side: str) -> dml.Tensor:
        if side in turned:
            return own.tensor(np.ascontiguousarray(x.T)).transpose(1, 0)
        return own.tensor(x)

    y = gemm_of_bfloat16(tensor(a, "a"), tensor(b, "b"), own.tensor(c) if with_c else None,
                         alpha=0.5, beta=2.0)
    assert y is not None and _runs(own, f"{tile}.bfloat16")
    exact = 0.5 * (_numbers(a).astype(np.float64) @ _numbers(b)) + with_c * 2.0 * _numbers(c)
    bound = np.abs(_numbers(a)).astype(np.float64) @ np.abs(_numbers(b)) * k * 2.0 ** -23
    assert (np.abs(_numbers(y.numpy()) - exact) <= bound + np.abs(exact) * 2.0 ** -8).all()


def test_rounding_to_bfloat16(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sums of two numbers: ties go to the even one, NaN and infinities stay, the largest
    overflow."""
    multiply_bfloat16(own, "t32", tmp_path, monkeypatch)
    pairs = np.array([
        [1, 2 ** -8], [1 + 2 ** -7, 2 ** -8], [1, 2 ** -8 + 2 ** -15], [-1, -(2 ** -8)],
        [np.inf, 1], [3.3895314e38, 2.0 ** 119], [0, -0.0]], np.float32)
    a = np.concatenate([_bfloat16(pairs), np.array([[0x7F81, 0x3F80]], np.uint16)])
    y = gemm_of_bfloat16(own.tensor(a), own.tensor(_bfloat16(np.ones((2, 8)))))
    assert y is not None
    assert [hex(int(bits)) for bits in y.numpy()[:, 0]] == [
        "0x3f80", "0x3f82", "0x3f81", "0xbf80", "0x7f80", "0x7f80", "0x0", "0x7fc0"]


def test_without_units_there_is_no_product_of_bfloat16(own: dml.Device) -> None:
    x = own.tensor(np.zeros((8, 8), np.uint16))
    assert gemm_of_bfloat16(x, x) is None
