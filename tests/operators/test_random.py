"""Random words are the same with and without 64-bit integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import kompute_dml as dml

VARIANTS = {"random_generator.words"}
"""The variant that the test below runs."""


def test_words_do_not_depend_on_how_they_are_multiplied(
    device: dml.Device, device_without: Callable[[str], dml.Device]
) -> None:
    state = np.array([[[[0xFFFFFFFE, 1, 2, 3, 4, 5]]]], np.uint32)
    other = device_without("int64")
    first, second = (dml.random_generator(d.tensor(state), sizes=(9001,)).numpy()
                     for d in (device, other))
    np.testing.assert_array_equal(first, second)
    assert VARIANTS & {n for c in other.compiled.values() for n in c.variants}
