"""FLOAT8E4M3FN: a sign, 4 bits of an exponent from 2**-7 on and 3 bits more, without infinities.
DirectML has no such type. The device has bytes, which are read and written by arithmetic on the
bits of FLOAT32 numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..lowerings import converted, emit_elementwise

BYTE = np.dtype("uint8")
LARGEST = 448.0
_WORD, _REAL = np.dtype("uint32"), np.dtype("float32")
_NONE = 0x7F
"""No number, with either sign."""
_LEAST = 8
"""The code of 2**-6, from which on numbers have a leading bit that is not stored."""
_STEP = 2.0**-9
"""The distance of smaller numbers."""
_SHORTER, _SMALLER = 20, 127 - 7
"""Bits that FLOAT32 has more behind the point, and how much more its exponents count."""


class _On:
    """Elementwise operators of one type, of arrays and numbers."""

    def __init__(self, builder: Builder, dtype: np.dtype[Any]) -> None:
        self._builder, self._dtype = builder, dtype

    def __call__(self, operator: str, *operands: Array | float) -> Array:
        arrays = [x if isinstance(x, Array) else self._builder.constant(np.full((), x, self._dtype))
                  for x in operands]
        dtype = BOOL if operator.startswith(("LOGICAL", "IS_NAN")) else self._dtype
        return emit_elementwise(self._builder, f"ELEMENT_WISE_{operator}", arrays, dtype, {})


def _as(x: Array, dtype: np.dtype[Any]) -> Array:
    """The same bits."""
    return replace(x, dtype=dtype, host=None)


def encoded(builder: Builder, x: Array) -> Array:
    """FLOAT32 numbers as bytes: the nearest ones, of two as near the even one, and the largest for
    those beyond it."""
    word, real = _On(builder, _WORD), _On(builder, _REAL)
    x = builder.pack(x)
    size = real("MIN", real("ABS", x), LARGEST)
    bits = _as(size, _WORD)
    even = word("BIT_AND", word("BIT_SHIFT_RIGHT", bits, _SHORTER), 1)
    half = word("ADD", even, (1 << _SHORTER - 1) - 1)
    upper = word("SUBTRACT", word("BIT_SHIFT_RIGHT", word("ADD", bits, half), _SHORTER),
                 _SMALLER << 3)
    lower = converted(builder, emit_elementwise(builder, "ELEMENT_WISE_ROUND", [
        real("MULTIPLY", size, 1 / _STEP)], _REAL, {"rounding_mode": 0}), _WORD)
    small = real("LOGICAL_LESS_THAN", size, _STEP * _LEAST)
    code = word("IF", real("IS_NAN", x), _NONE, word("IF", small, lower, upper))
    sign = word("BIT_SHIFT_LEFT", word("BIT_SHIFT_RIGHT", _as(x, _WORD), 31), 7)
    return converted(builder, word("BIT_OR", code, sign), BYTE)


def decoded(builder: Builder, x: Array) -> Array:
    """Bytes as FLOAT32 numbers."""
    word, real = _On(builder, _WORD), _On(builder, _REAL)
    x = converted(builder, x, _WORD)
    code = word("BIT_AND", x, _NONE)
    upper = word("ADD", word("BIT_SHIFT_LEFT", code, _SHORTER), _SMALLER << 23)
    lower = real("MULTIPLY", converted(builder, code, _REAL), _STEP)
    size = real("IF", word("LOGICAL_LESS_THAN", code, _LEAST), lower, _as(upper, _REAL))
    size = real("IF", word("LOGICAL_EQUALS", code, _NONE), np.nan, size)
    negative = word("LOGICAL_GREATER_THAN", x, _NONE)
    return real("IF", negative, real("NEGATE", size), size)
