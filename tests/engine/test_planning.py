"""How the work of planning a graph grows with the graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph.memory import Storage, share


def _lines(work: Callable[[], object]) -> int:
    """The lines of Python that ``work`` runs. Each turn of a comprehension is one."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _products(device: dml.Device, layers: int, shared: bool) -> Callable[[], object]:
    """Compiles layers of a product and a sum. All read one matrix, or each has its own."""
    with dml.Graph(device) as g:
        x, w = g.input((4, 64), np.float32), g.input((64, 64), np.float32)
        for i in range(layers):
            own = np.full((64, 64), i, np.float32)
            x = x @ (w if shared else own) + np.ones((4, 64), np.float32)
    return lambda: g.compile(x)


@pytest.mark.parametrize("shared", [True, False])
def test_planning_grows_with_the_number_of_operators(device: dml.Device, shared: bool) -> None:
    """Twice the layers are twice the work, even if all read one matrix."""
    _products(device, 4, shared)()
    few, many = (_lines(_products(device, layers, shared)) for layers in (100, 200))
    assert many < 2.3 * few, (few, many)


def test_values_that_live_for_two_steps_get_places_one_by_one() -> None:
    def chain(n: int) -> Callable[[], object]:
        return lambda: share([Storage(256 + i % 7 * 256, first=i, last=i + 1) for i in range(n)])

    few, many = (_lines(chain(n)) for n in (200, 400))
    assert many < 2.3 * few, (few, many)
