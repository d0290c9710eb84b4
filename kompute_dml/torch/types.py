"""Element types: how a torch.dtype is stored on the device, and PyTorch's promotion."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..dtypes import DataType


class Unsupported(NotImplementedError):
    """What has no form on the device. The message says what."""


class Spec(NamedTuple):
    """An element type."""

    stored: np.dtype[np.generic]
    """NumPy's type of the same bits on the device."""
    code: int
    """DLPack's type code."""

    @property
    def itemsize(self) -> int:
        return self.stored.itemsize

    @property
    def bits(self) -> int:
        return 8 * self.stored.itemsize


SPECS = {
    getattr(torch, dtype): Spec(np.dtype(stored), code)
    for dtype, stored, code in (
        ("float32", "float32", 2), ("float16", "float16", 2), ("float64", "float64", 2),
        ("bfloat16", "uint16", 4), ("bool", "uint8", 6),
        ("int64", "int64", 0), ("int32", "int32", 0), ("int16", "int16", 0), ("int8", "int8", 0),
        ("uint64", "uint64", 1), ("uint32", "uint32", 1), ("uint16", "uint16", 1),
        ("uint8", "uint8", 1),
        ("complex64", "uint64", 5),  # pairs of FLOAT32: ``rows/complex.py``
    )
}
_DATA_TYPES = {dtype: DataType.of(spec.stored) for dtype, spec in SPECS.items()}


def spec(dtype: torch.dtype) -> Spec:
    """How elements of this type are stored."""
    known = SPECS.get(dtype)
    if known is None:
        raise Unsupported(f"elements of type {dtype}")
    return known


def data_type(dtype: torch.dtype) -> DataType:
    """DirectML's type of the stored elements."""
    spec(dtype)
    return _DATA_TYPES[dtype]


def is_integer(dtype: torch.dtype) -> bool:
    """Whether elements are integers, not truth values."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def floating(dtype: torch.dtype) -> torch.dtype:
    """The type of a function of real numbers: integers become the default type."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()
