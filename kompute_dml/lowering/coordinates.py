"""Where the elements of a resampled axis lie in the input: exact ratios of integers."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..sizes import is_open
from .walk import reciprocal

HALVES_UP, UP, DOWN = range(3)
"""How a coordinate is rounded to the nearest element."""
_LARGEST_DENOMINATOR = 1 << 12
"""Of the fractions that a FLOAT32 number is taken for."""
_APART = 1 << 22
"""Ratios with denominators whose product is below this are equal, or differ in FLOAT32."""
_LONGEST = 1 << 62
"""Sums of integers that INT64 surely holds."""
_EXACT_BITS, _MOST_BITS = 24, 100
"""Bits of integers that FLOAT32 holds, and of numbers whose products with sizes do not overflow."""


def ratio(value: float, *candidates: Fraction) -> Fraction:
    """The fraction that a FLOAT32 number stands for: the first of the candidates that rounds to it,
    or a fraction with a small denominator. Else the number itself."""
    rounded = np.float32(value)
    for fraction in candidates:
        if np.float32(fraction) == rounded:
            return fraction
    return _simple(float(rounded))


@functools.lru_cache(1 << 10)
def _simple(value: float) -> Fraction:
    exact = Fraction(value)
    near = exact.limit_denominator(_LARGEST_DENOMINATOR)
    return near if np.float32(near) == np.float32(value) else exact


class Affine(NamedTuple):
    """Output o lies at (``step`` * o + ``first``) / ``divisor`` of the input."""

    step: int
    first: int
    divisor: int

    @classmethod
    def through(cls, first: Fraction, step: Fraction) -> Affine:
        divisor = math.lcm(step.denominator, first.denominator)
        return cls(int(step * divisor), int(first * divisor), divisor)

    @classmethod
    def of_scale(
        cls, n: int, outputs: int, scale: float, in_offset: float, out_offset: float
    ) -> Affine:
        """(o - ``out_offset``) / ``scale`` - ``in_offset``, of ``n`` elements and so many outputs.

        A scale that rounds as the ratio of the sizes does, or as that of the distances from the
        first to the last element, is this ratio.
        """
        simple = _simple(float(np.float32(scale)))
        if (is_open(n) or is_open(outputs)) and (
                simple.denominator * n < _APART and simple.denominator * outputs < _APART):
            step = 1 / simple  # no other ratio of such sizes rounds to the scale
        else:
            n, outputs = int(n), int(outputs)
            distances = Fraction(outputs - 1, max(n - 1, 1))
            step = 1 / ratio(scale, Fraction(outputs, n), *([distances] if distances else []))
        return cls.through(-ratio(out_offset) * step - ratio(in_offset), step)

    def moved(self, by: Fraction) -> Affine:
        """The line whose coordinates are larger by so much."""
        return Affine.through(Fraction(self.first, self.divisor) + by,
                              Fraction(self.step, self.divisor))

    def rounded(self, rounding: int) -> Affine:
        """The line whose floors are the nearest elements of this one."""
        by = {HALVES_UP: Fraction(1, 2), UP: 1 - Fraction(1, self.divisor), DOWN: Fraction()}
        return self.moved(by[rounding])

    def _dividends(self, outputs: int) -> np.ndarray:
        """Of all outputs. They are Python's integers if INT64 might not hold them."""
        fits = abs(self.step) * outputs + abs(self.first) + self.divisor < _LONGEST
        return np.arange(outputs).astype(np.int64 if fits else object) * self.step + self.first

    def floors(self, outputs: int, n: int) -> np.ndarray:
        """The elements, of ``n``, at or before the outputs."""
        return np.clip(self._dividends(outputs) // self.divisor, 0, n - 1).astype(np.int64)

    def places(self, outputs: int) -> np.ndarray:
        """The coordinates of the outputs, each rounded once to FLOAT64."""
        return (self._dividends(outputs) / self.divisor).astype(np.float64)

    @property
    def floats(self) -> tuple[np.float32, np.float32, np.float32]:
        """Step, first and divisor in FLOAT32. Where the three and their products with outputs are
        exact, a coordinate is rounded once, so that whole and half coordinates are exact."""
        shift = max(self.divisor.bit_length() - _EXACT_BITS, self.step.bit_length() - _MOST_BITS,
                    self.first.bit_length() - _MOST_BITS, 0)
        step, first, divisor = (np.float32(float(Fraction(v, 1 << shift))) for v in self)
        return step, first, divisor

    def float_places(self, outputs: int, n: int) -> np.ndarray:
        """The coordinates of the outputs as shaders compute them from ``floats``, at most one
        element outside of ``n``."""
        step, first, divisor = self.floats
        with np.errstate(over="ignore"):
            place = (np.arange(outputs, dtype=np.float32) * step + first) / divisor
        return np.clip(place, np.float32(-1), np.float32(n))

    def words(self, outputs: int) -> tuple[int, int, int, int] | None:
        """Step, first, multiplier and shift with which 32-bit numbers give the floors of all
        outputs (include/quotient.glsl). What is then to be subtracted lies above the 5 bits of the
        shift. None if the numbers are too large."""
        times = 2 if self.divisor == 1 else 1
        step, first, divisor = (v * times for v in self)
        whole = max(-(first // divisor), 0)
        first += whole * divisor
        if step * (outputs - 1) + first >= 1 << 32 or whole >= 1 << 24 or divisor >= 1 << 32:
            return None
        multiplier, shift = reciprocal(divisor)
        return step, first, multiplier, whole << 5 | shift
