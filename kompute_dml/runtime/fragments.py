"""Where a device's matrix units hold elements: a measurement.

Vulkan leaves it to drivers which invocation of a subgroup holds an element of a matrix. Some
kernels fill matrices from memory by themselves, or take a sum as an operand. They run only where
elements lie as :func:`expected` says (DeviceTraits.fragments_alike).
"""

from __future__ import annotations

import numpy as np

LANES, PLACES = 32, 8
"""Invocations of a subgroup, and elements of a 16 x 16 matrix that each holds."""


def expected() -> np.ndarray:
    """The element numbers 16 * row + column, by matrix (left operand, right operand, sum), place
    and invocation."""
    place, lane = np.arange(PLACES)[:, None], np.arange(LANES)
    row = lane // 4 + place // 4 * 8
    column = lane % 4 * 2 + place % 2 + place // 2 % 2 * 8
    return np.stack([16 * row + column, 16 * column + row, 16 * row + column]).astype(np.uint32)


def alike(words: np.ndarray) -> bool:
    """Whether the words that fragments.comp makes say so."""
    return bool(np.array_equal(words, expected().ravel()))
