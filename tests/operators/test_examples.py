"""Every example of DirectML's pages on these operators, as data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

INT32_MIN = -(2**31)

# DML_DIAGONAL_MATRIX_OPERATOR_DESC: (Offset, Value, Sizes, OutputTensor)
_DIAGONAL_MATRIX = {
    "default identity matrix": (0, 1.0, (1, 1, 3, 3), [[[[1, 0, 0],
                                                          [0, 1, 0],
                                                          [0, 0, 1]]]]),
    "shift ones right/up": (1, 1.0, (1, 1, 3, 3), [[[[0, 1, 0],
                                                      [0, 0, 1],
                                                      [0, 0, 0]]]]),
    "shift ones left/down": (-1, 1.0, (1, 1, 3, 2), [[[[0, 0],
                                                        [1, 0],
                                                        [0, 1]]]]),
    "shift so far that all become zeroes": (-3, 1.0, (1, 1, 3, 2), [[[[0, 0],
                                                                       [0, 0],
                                                                       [0, 0]]]]),
}

_INPUT = [[4, 7, 3, 7, 9],
          [1, 2, 8, 6, 9],
          [9, 4, 1, 8, 7],
          [4, 3, 4, 2, 4]]

# DML_DIAGONAL_MATRIX1_OPERATOR_DESC: (InputTensor, Value, DiagonalFillBegin, DiagonalFillEnd,
# OutputTensor). All are FLOAT32 {4,5}.
_DIAGONAL_MATRIX1 = {
    # The page prints ones for a Value of 7. Its pseudocode is right, its print is wrong.
    "default identity matrix": (None, 7, 0, 1, [[7, 0, 0, 0, 0],
                                                [0, 7, 0, 0, 0],
                                                [0, 0, 7, 0, 0],
                                                [0, 0, 0, 7, 0]]),
    "fill a diagonal strip of 3": (None, 7, 0, 3, [[7, 7, 7, 0, 0],
                                                   [0, 7, 7, 7, 0],
                                                   [0, 0, 7, 7, 7],
                                                   [0, 0, 0, 7, 7]]),
    "keep the strictly upper triangle": (_INPUT, 0, INT32_MIN, 1, [[0, 7, 3, 7, 9],
                                                                   [0, 0, 8, 6, 9],
                                                                   [0, 0, 0, 8, 7],
                                                                   [0, 0, 0, 0, 4]]),
    "keep only the diagonal": (_INPUT, 0, 1, 0, [[4, 0, 0, 0, 0],
                                                 [0, 2, 0, 0, 0],
                                                 [0, 0, 1, 0, 0],
                                                 [0, 0, 0, 2, 0]]),
}


@pytest.mark.parametrize("name", _DIAGONAL_MATRIX)
def test_diagonal_matrix(name: str, device: dml.Device) -> None:
    offset, value, sizes, expected = _DIAGONAL_MATRIX[name]
    result = dml.diagonal_matrix(sizes, offset=offset, value=value, out=device.empty(sizes))
    assert result.data_type is dml.DataType.FLOAT32
    assert result.numpy().tolist() == expected


@pytest.mark.parametrize("name", _DIAGONAL_MATRIX1)
def test_diagonal_matrix1(name: str) -> None:
    given, value, begin, end, expected = _DIAGONAL_MATRIX1[name]
    source: dict[str, Any] = {"sizes": (4, 5)} if given is None else {"input": np.float32(given)}
    result = dml.diagonal_matrix1(
        **source, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end
    )
    assert result.data_type is dml.DataType.FLOAT32
    assert result.numpy().tolist() == expected


@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 5])
def test_diagonal_matrix1_with_one_diagonal_is_diagonal_matrix(offset: int) -> None:
    """A remark on the page."""
    one = dml.diagonal_matrix((4, 5), offset=offset, value=3.0)
    other = dml.diagonal_matrix1(
        sizes=(4, 5), value=3.0, diagonal_fill_begin=offset, diagonal_fill_end=offset + 1
    )
    assert (one.numpy() == other.numpy()).all()


def test_attributes_are_truncated() -> None:
    """"10.6 will become 10"."""
    assert dml.diagonal_matrix((1, 1), value=10.6, data_type="int32").item() == 10
    assert dml.diagonal_matrix((1, 1), value=10.6).item() == np.float32(10.6)


def test_matrix_multiply_integer_to_float_computes_batch_by_channel_products() -> None:
    """The page's sizes; it has no numbers."""
    a = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    b = np.arange(2 * 3 * 5 * 6, dtype=np.uint8).reshape(2, 3, 5, 6)
    one = np.ones((1, 1, 1, 1), np.float32)
    y = dml.matrix_multiply_integer_to_float(a, one, b, one).numpy()
    assert y.shape == (2, 3, 4, 6)
    for batch in range(2):
        for channel in range(3):
            product = a[batch, channel].astype(int) @ b[batch, channel].astype(int)
            assert (y[batch, channel] == product).all()


def test_activation_identity() -> None:
    x = np.float32([-1.5, 0.0, np.inf])
    assert (dml.activation_identity(x).numpy() == x).all()
