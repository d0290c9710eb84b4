"""BFLOAT16 at the borders of regions.

DirectML has no such type. Its numbers are the upper halves of FLOAT32, so regions compute in
FLOAT32, and read and write UINT16.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..graph.array import Array
from ..graph.builder import Builder
from .lowerings import converted, emit_elementwise

STORED = np.dtype(np.uint16)
_WORD, _FLOAT = np.dtype(np.uint32), np.dtype(np.float32)
_NAN = 0x7FC0


def widened(x: np.ndarray) -> np.ndarray:
    """The numbers of FLOAT32 whose upper halves these are, of the same sizes."""
    return np.asarray(x.astype(_WORD) << np.uint32(16)).view(_FLOAT)


def to_float(builder: Builder, x: Array) -> Array:
    """:func:`widened` on the device."""
    if x.storage is None:
        return builder.new(x.shape, _FLOAT)
    words = _of(builder, "BIT_SHIFT_LEFT", converted(builder, x, _WORD), 16)
    return replace(words, dtype=_FLOAT)


def to_bfloat16(builder: Builder, x: Array) -> Array:
    """The upper halves of numbers of FLOAT32, rounded to the nearest, halves to even."""
    if x.storage is None:
        return builder.new(x.shape, STORED)
    words = replace(x, dtype=_WORD, host=None)
    odd = _of(builder, "BIT_AND", _of(builder, "BIT_SHIFT_RIGHT", words, 16), 1)
    half = _of(builder, "ADD", odd, 0x7FFF)
    upper = _of(builder, "BIT_SHIFT_RIGHT", _of(builder, "ADD", words, half), 16)
    is_nan = emit_elementwise(builder, "ELEMENT_WISE_IS_NAN", [x], np.dtype(bool), {})
    number = _constant(builder, _NAN)  # the sum of a NaN may be no NaN
    chosen = emit_elementwise(builder, "ELEMENT_WISE_IF", [is_nan, number, upper], _WORD, {})
    return converted(builder, chosen, STORED)


def _of(builder: Builder, operator: str, x: Array, y: Array | int) -> Array:
    other = _constant(builder, y) if isinstance(y, int) else y
    return emit_elementwise(builder, "ELEMENT_WISE_" + operator, [x, other], _WORD, {})


def _constant(builder: Builder, number: int) -> Array:
    return builder.constant(np.array(number, _WORD))
