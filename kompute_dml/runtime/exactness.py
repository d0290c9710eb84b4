"""Whether a device's own functions are as exact as kernels want them: a measurement.

Vulkan lets drivers round as they like in many places. So kernels compute conversions, quotients
and powers themselves, unless the device's functions are known to do (DeviceTraits.exact_units).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

FUNCTIONS = ("fma", "to_half", "from_half", "from_int", "exp2", "log2", "sqrt", "inversesqrt",
             "quotient")
"""In the order of units.comp."""
Run = Callable[[str, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Computes a function of words on a device."""

_COUNT = 1 << 16
_FEW = 4
"""Units in the last place by which exp2, log2, sqrt, inversesqrt and quotients may be off."""
_NEAR_1 = 2.0**-21
"""How far log2 may be off from 0.5 to 2."""


class Check(NamedTuple):
    """Words that a function takes, and what it should be, in FLOAT32 bits or whole numbers."""

    function: str
    operands: tuple[np.ndarray, np.ndarray, np.ndarray]
    accepts: Callable[[np.ndarray], bool]
    """Whether these words are right."""


def wrong(run: Run) -> list[str]:
    """The functions of a device that are not exact enough."""
    functions = []
    for check in _checks():
        if not check.accepts(run(check.function, *check.operands)):
            functions.append(check.function)
    return functions


def _checks() -> Iterator[Check]:
    rng = np.random.default_rng(1)
    none = np.zeros(_COUNT, np.uint32)

    def floats(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, _COUNT).astype(np.float32)

    # Sums of 49 bits, which float64 holds: the only rounding is the last one.
    a, b = floats(1, 2), floats(1, 2)
    product = a.astype(np.float64) * b
    for c in (floats(-4, 4), -product.astype(np.float32)):
        c[np.abs(c) < 1] += 2
        yield _same("fma", (product + c).astype(np.float32), a, b, c)
    every = np.arange(1 << 16, dtype=np.uint32)
    halves = every.astype(np.uint16).view(np.float16)
    yield _same("from_half", halves.astype(np.float32), every, none, none)
    # Numbers between halves, halfway between them, and beyond them.
    between = halves.astype(np.float32).view(np.uint32) + rng.choice(
        np.array([0, 0xFFF, 0x1000, 0x1001], np.uint32), _COUNT)
    numbers = between.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = numbers.astype(np.float16)
    yield _same("to_half", rounded, numbers, none, none)
    whole = rng.integers(-1 << 31, 1 << 31, _COUNT).astype(np.int32)
    yield _same("from_int", whole.astype(np.float32), whole, none, none)
    a = floats(-125, 127)
    yield _near("exp2", np.exp2(a.astype(np.float64)), a)
    a = np.exp2(floats(-120, 120))
    yield _near("log2", np.log2(a.astype(np.float64)), a, _NEAR_1)
    yield _near("sqrt", np.sqrt(a.astype(np.float64)), a)
    yield _near("inversesqrt", 1 / np.sqrt(a.astype(np.float64)), a)
    a, b = np.exp2(floats(-60, 60)), np.exp2(floats(-60, 60))
    yield _near("quotient", a.astype(np.float64) / b, a, b=b)


def _words(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32) if x.dtype.itemsize == 4 else x.view(np.uint16).astype(np.uint32)


def _same(function: str, expected: np.ndarray, *operands: np.ndarray) -> Check:
    """A check that all bits are the same; of what is no number only that it is none."""
    words, numbers = _words(expected), ~np.isnan(expected)

    def accepts(results: np.ndarray) -> bool:
        narrow = results.astype(np.uint16) if expected.dtype.itemsize == 2 else results
        rest = narrow.view(expected.dtype)[~numbers]
        return bool(np.array_equal(results[numbers], words[numbers]) and np.isnan(rest).all())

    a, b, c = (_words(each) for each in operands)
    return Check(function, (a, b, c), accepts)


def _near(function: str, exact: np.ndarray, a: np.ndarray, least: float = 0.0,
          b: np.ndarray | None = None) -> Check:
    """A check that results are off by few units in the last place, and that NaN stays."""
    a = a.copy()
    a[-1] = np.nan
    other = np.ones_like(a) if b is None else b
    units = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)

    def accepts(results: np.ndarray) -> bool:
        numbers = results.view(np.float32)
        off = np.abs(numbers[:-1] - exact[:-1])
        within = off <= np.maximum(_FEW * units[:-1], least)
        return bool(within.all() and np.isnan(numbers[-1]))

    return Check(function, (_words(a), _words(other), np.zeros(a.size, np.uint32)), accepts)
