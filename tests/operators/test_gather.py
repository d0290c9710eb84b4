"""Gathers and scatters of random shapes, layouts and indices, most of which are outside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kompute_dml as dml
from cases import gather
from harness import Case, Run, check
from layouts import ALL, Sizes

pytestmark = pytest.mark.values


def _sizes(rng: np.random.Generator, rank: int, most: int = 5) -> Sizes:
    return tuple(int(n) for n in rng.integers(1, most + 1, rank))


def _along_axis(make: Callable[..., Case]) -> Callable[[np.random.Generator], Case]:
    def draw(rng: np.random.Generator) -> Case:
        x = _sizes(rng, int(rng.integers(1, 5)))
        axis = int(rng.integers(len(x)))
        indices = [int(rng.integers(1, n + 1)) for n in x] if rng.random() < 0.5 else list(x)
        indices[axis] = int(rng.integers(1, 20))
        return make("random", x, tuple(indices), axis)

    return draw


def _whole(rng: np.random.Generator) -> Case:
    inner = _sizes(rng, int(rng.integers(1, 4)))
    indices = _sizes(rng, int(rng.integers(0, 3)), 4)
    axis = int(rng.integers(len(inner)))
    made = (*inner[:axis], *indices, *inner[axis + 1:])
    rank = max(len(inner), len(indices), len(made), 1)

    def padded(sizes: Sizes) -> Sizes:
        return (1,) * (rank - len(sizes)) + sizes

    return gather.gather("random", padded(inner), padded(indices), padded(made),
                         axis + rank - len(inner), len(indices))


def _tuples(scatters: bool) -> Callable[[np.random.Generator], Case]:
    def draw(rng: np.random.Generator) -> Case:
        x = _sizes(rng, int(rng.integers(1, 5)))
        batches = 0 if scatters else int(rng.integers(0, len(x)))
        length = int(rng.integers(1, len(x) - batches + 1))
        outer = (*x[:batches], *_sizes(rng, int(rng.integers(0 if batches else 1, 3)), 4))
        made = (*outer, *x[batches + length:])
        rank = max(len(x), len(outer) + 1, len(made))

        def padded(sizes: Sizes) -> Sizes:
            return (1,) * (rank - len(sizes)) + sizes

        given = "random", padded(x), padded((*outer, length)), padded(made)
        real = len(x), len(outer) + 1
        return (gather.scatter_nd(*given, real=real) if scatters
                else gather.gather_nd(*given, batches, real=real))

    return draw


_DRAW = {
    "gather": _whole, "gather_elements": _along_axis(gather.elements),
    "gather_nd1": _tuples(False), "scatter": _along_axis(gather.scatter),
    "scatter_nd": _tuples(True),
}
_TYPES = [dml.DataType[t] for t in ("UINT8", "FLOAT16", "FLOAT32", "INT64")]
_INDICES = [dml.DataType[t] for t in ("INT32", "INT64", "UINT32", "UINT64")]


@pytest.mark.parametrize("operator", _DRAW)
def test_indices_that_point_nowhere_touch_nothing(
    operator: str, device: dml.Device, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    """Repeat with --hostile for more of them."""
    for number in range(request.config.getoption("--hostile")):
        case = _DRAW[operator](rng)
        kind, index = rng.choice(_TYPES), rng.choice(_INDICES)
        types = {f: index if f == "indices_tensor" else kind for f in case.sizes}
        placed = {}
        for name, sizes in case.sizes.items():
            fitting = [x for x in ALL if x.fits(tuple(sizes))
                       and not (x.inputs_only and name in case.outputs)]
            placed[name] = fitting[int(rng.integers(len(fitting)))]
        run = Run(case, types, placed, ["descriptor", "function"][number % 2])
        try:
            check(run, device, rng)
        except AssertionError as error:
            raise AssertionError(f"{run} of {dict(case.sizes)}, {case.attributes}") from error
