"""Tolerances of results, in units in the last place. The only such table."""

from __future__ import annotations

import numpy as np

ULP = {
    # Operators that move bits or compute integers.
    "bits": None,
    # Each step (convert, multiply, add, narrow) is a correctly rounded operation in a documented
    # order. The oracle takes the same steps, so the bits are equal.
    "stepwise": 0,
    # No bound in kompute_dml/spec/accuracy.md is larger, and none for FLOAT16 is larger than 1.
    "function": 6,
}

LOST = 2.0**-119
"""The error of FLOAT32 results that is always allowed: denormal intermediate results may be treated
as 0 (accuracy.md)."""


def compare(actual: np.ndarray, expected: np.ndarray, kind: str, lost: float = 0.0) -> str:
    """What is wrong, or "". Only floats have a tolerance. Positions of NaN are compared first, then
    infinities, then distances; for FLOAT32, distances of up to ``lost`` do not count."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
    bits = np.dtype(f"u{expected.itemsize}")
    if ULP[kind] is None or expected.dtype.kind != "f":
        wrong = actual.copy().view(bits) != expected.copy().view(bits)
        return _describe(actual, expected, wrong, "bits differ")
    nan = np.isnan(expected)
    if wrong_nan := _describe(actual, expected, np.isnan(actual) != nan, "NaN differs"):
        return wrong_nan
    infinite = np.isinf(expected)
    wrong = (np.isinf(actual) != infinite) | (infinite & (actual != expected))
    if wrong_infinity := _describe(actual, expected, wrong, "infinity differs"):
        return wrong_infinity
    distance = np.abs(_ordered(actual) - _ordered(expected))
    room = min(ULP[kind], 1) if expected.dtype == np.float16 else ULP[kind]
    wrong = ~nan & (distance > room)
    if lost and expected.dtype == np.float32:
        with np.errstate(invalid="ignore", over="ignore"):
            wrong &= ~(np.abs(actual - expected) <= lost)
    return _describe(actual, expected, wrong, f"more than {room} ulp off")


def within(actual: np.ndarray, expected: np.ndarray, room: np.ndarray | float) -> str:
    """What is wrong, or "". Each element may have an error of ``room``, plus rounding to its type.

    ``expected`` is float64, or has the output's type if that is an integer type.
    """
    if actual.shape != expected.shape:
        return f"{actual.shape} instead of {expected.shape}"
    if actual.dtype.kind != "f":
        wrong = np.abs(actual.astype(np.float64) - expected.astype(np.float64)) > room
        return _describe(actual, expected, wrong, "too far off")
    nan = np.isnan(expected)
    if wrong_nan := _describe(actual, expected, np.isnan(actual) != nan, "NaN differs"):
        return wrong_nan
    info = np.finfo(actual.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = expected.astype(actual.dtype)
        step = np.maximum(np.abs(expected) * info.eps, float(info.smallest_subnormal))
        distance = np.abs(actual.astype(np.float64) - expected)
        wrong = ~nan & ~(distance <= room + step) & (actual != rounded)
    return _describe(actual, expected, wrong, "too far off")


def _ordered(x: np.ndarray) -> np.ndarray:
    """Floats as integers in the same order. Neighbours differ by 1. -0.0 comes before 0.0."""
    raw = x.copy().view(f"i{x.itemsize}").astype(np.int64)
    magnitude = raw & np.int64(2 ** (8 * x.itemsize - 1) - 1)
    return np.where(raw < 0, ~magnitude, raw)


def _describe(actual: np.ndarray, expected: np.ndarray, wrong: np.ndarray, what: str) -> str:
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{what} in {int(wrong.sum())} of {wrong.size} elements, first at {list(at)}: "
        f"{actual[at]!r} instead of {expected[at]!r}"
    )
