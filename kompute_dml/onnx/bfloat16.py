"""BFLOAT16 at the borders of regions.

DirectML has no such type. Its numbers are the upper halves of FLOAT32, so regions compute in
FLOAT32, and read and write UINT16.
"""

from __future__ import annotations

import numpy as np

from ..graph.array import Array
from ..graph.builder import Builder
from ..operators.base import OperatorDesc
from ..operators.matrix_multiply.bfloat16 import NarrowDesc, WidenAnyDesc

STORED = np.dtype(np.uint16)


def widened(x: np.ndarray) -> np.ndarray:
    """The numbers of FLOAT32 whose upper halves these are, of the same sizes."""
    return np.asarray(x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_float(builder: Builder, x: Array) -> Array:
    """:func:`widened` on the device."""
    return _converted(builder, x, WidenAnyDesc, np.dtype(np.float32))


def numbers(builder: Builder, x: Array) -> Array:
    """FLOAT32 of BFLOAT16 as it is stored; else the array itself."""
    return to_float(builder, x) if x.dtype == STORED else x


def to_bfloat16(builder: Builder, x: Array) -> Array:
    """The upper halves of numbers of FLOAT32, rounded to the nearest, halves to even."""
    return _converted(builder, x, NarrowDesc, STORED)


def as_stored(builder: Builder, x: Array) -> Array:
    """:func:`to_bfloat16` of FLOAT32; else the array itself."""
    return x if x.dtype == STORED else to_bfloat16(builder, x)


def _converted(
    builder: Builder, x: Array, desc_class: type[OperatorDesc], dtype: np.dtype
) -> Array:
    y = builder.new(x.shape, dtype)
    if x.storage is not None and y.storage is not None:
        builder.emit_own(desc_class, {"input_tensor": (x, x.shape, x.strides),
                                      "output_tensor": (y, y.shape, y.strides)})
    return y
