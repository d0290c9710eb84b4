"""UINT4 and INT4: two elements in a byte, the first one in the low half."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy has no types of 4 bits")

KINDS = [ml_dtypes.uint4, ml_dtypes.int4]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["uint4", "int4"])


def _values(rng: np.random.Generator, kind: Any, sizes: tuple[int, ...]) -> np.ndarray:
    low = -8 if kind is ml_dtypes.int4 else 0
    return rng.integers(low, low + 16, sizes).astype(kind)


def _spread(block: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    for d, n in enumerate(sizes):
        block = np.repeat(block, n // block.shape[d], d)
    return block.astype(np.float64)


def test_bytes_of_a_description() -> None:
    assert dml.TensorDesc("uint4", [3, 3]).total_tensor_size_in_bytes == 8
    assert dml.TensorDesc("int4", [3, 3], [4, 1]).total_tensor_size_in_bytes == 8
    assert dml.TensorDesc("int4", [8]).total_tensor_size_in_bytes == 4


@each_kind
def test_upload_and_download(kind: Any, device: dml.Device, rng: np.random.Generator) -> None:
    values = _values(rng, kind, (3, 7))
    tensor = device.tensor(values)
    assert tensor.nbytes == 11
    np.testing.assert_array_equal(tensor.numpy(), values, strict=True)
    np.testing.assert_array_equal(tensor.T.numpy(), values.T, strict=True)


def test_the_first_element_is_the_low_half(device: dml.Device) -> None:
    tensor = device.tensor(np.array([1, 2, 15], ml_dtypes.uint4))
    assert device.read(tensor.allocation, 0, 4)[:2].tolist() == [0x21, 0x0F]


def test_views_begin_with_a_byte(device: dml.Device) -> None:
    tensor = device.tensor(np.arange(8).astype(ml_dtypes.uint4))
    assert tensor[2:].numpy().tolist() == [2, 3, 4, 5, 6, 7]
    with pytest.raises(dml.ValidationError, match="begin with a byte"):
        tensor[1:]


@each_kind
@pytest.mark.parametrize("number", ["float32", "float16"])
@pytest.mark.parametrize(("sizes", "blocks"), [
    ((4, 64), (4, 2)), ((6, 40), (3, 40)), ((3, 7), (3, 1)), ((5, 3), (5, 3)), ((37,), (1,)),
])
@pytest.mark.parametrize("has_zero", [True, False], ids=["zero-point", "scale-only"])
def test_quantization(
    kind: Any, number: str, sizes: tuple[int, ...], blocks: tuple[int, ...], has_zero: bool,
    device: dml.Device, rng: np.random.Generator,
) -> None:
    """Quantizing dequantized numbers gives the same numbers."""
    x = _values(rng, kind, sizes)
    scale = 2.0 ** rng.integers(-2, 3, blocks)
    zero = _values(rng, kind, blocks)
    tensors = [scale.astype(number)] + [zero] * has_zero
    attributes = {"quantization_type": len(tensors)}
    y = dml.dequantize(device.tensor(x), tensors, **attributes)
    middle = 0 if kind is ml_dtypes.int4 else 8
    from_zero = _spread(zero, sizes) if has_zero else middle
    expected = (x.astype(np.float64) - from_zero) * _spread(scale, sizes)
    np.testing.assert_array_equal(y.numpy(), expected.astype(number), strict=True)
    back = dml.quantize(y, tensors, data_type=None if has_zero else kind, **attributes)
    np.testing.assert_array_equal(back.numpy(), x, strict=True)


@each_kind
def test_quantization_saturates_and_rounds_to_even(kind: Any, device: dml.Device) -> None:
    x = np.array([-100, 0.5, 1.5, 2.5, 100, np.nan], np.float32)
    y = dml.quantize(device.tensor(x), [np.ones(1, np.float32), np.zeros(1, kind)],
                     quantization_type=2)
    expected = [-8, 0, 2, 2, 7, 0] if kind is ml_dtypes.int4 else [0, 0, 2, 2, 15, 0]
    assert y.numpy().astype(int).tolist() == expected
