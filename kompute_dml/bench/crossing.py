"""Arrays to a device and back through a plan, by the host's clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..cases import Scale
from ..device import Device
from ..graph.expression import Graph
from .case import Case, Recipe, shape

_WHAT = "NumPy in to NumPy out"
MEGABYTES = (1, 10, 100)


def crossing(megabytes: int) -> Recipe:
    """A plan negates an array of so many MB. Each run brings a new result, as ONNX Runtime's do."""

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        x = np.linspace(-1, 1, scale.of(megabytes * 10**6 // 4), dtype=np.float32)
        with Graph(device) as g:
            run = g.compile(-g.input(x.shape))

        def dispatch() -> np.ndarray:
            result: np.ndarray = run(x)
            return result

        def check(result: np.ndarray) -> str:
            return "" if (result == -x).all() else "the result is not the negated array"

        yield Case(f"{_WHAT}, {megabytes} MB", "f32", shape(x.shape), dispatch, check, 0,
                   on_host=True)

    return Recipe(f"{_WHAT}, {megabytes} MB", "f32", make)


def most_us(megabytes: int) -> float:
    """Microseconds of both ways at 10 GB/s, and 100 more."""
    return 2 * megabytes * 1e6 / 10e9 * 1e6 + 100
