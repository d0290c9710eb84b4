"""Readers of slices, splits and tiles read the input instead, in all of their slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

Function = Callable[[Any], Any]


def _parts(x: Any) -> Any:
    return dml.split(x, sections=2, axis=1)


READERS: dict[str, tuple[Function, Callable[[np.ndarray], np.ndarray]]] = {
    "a slice in both slots": (
        lambda x: dml.multiply(*[dml.slice(x, offsets=(0, 1), sizes=(2, 3), strides=(2, 1))] * 2),
        lambda x: np.square(x[0:3:2, 1:4])),
    "both parts of a split": (
        lambda x: dml.subtract(*_parts(x)), lambda x: x[:, :2] - x[:, 2:]),
    "one part of a split in both slots": (
        lambda x: dml.multiply(*[_parts(x)[1]] * 2), lambda x: np.square(x[:, 2:])),
    "a tile in both slots": (
        lambda x: dml.multiply(*[dml.tile(dml.slice(x, offsets=(1, 0), sizes=(1, 4),
                                                    strides=(1, 1)), repeats=(3, 1))] * 2),
        lambda x: np.square(np.tile(x[1:2], (3, 1)))),
}


@pytest.mark.parametrize("name", READERS)
def test_one_operator_reads_a_part_in_several_slots(name: str, device: dml.Device) -> None:
    compute, expected = READERS[name]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with dml.Graph(device) as g:
        run = g.compile(compute(g.input(x.shape)))
    assert len(run.operators) == 1
    np.testing.assert_array_equal(run(x), expected(x))
