"""The ordinary cases of :mod:`kompute_dml.cases` as recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml

from .. import cases
from ..cases import TINY, Scale
from ..cases.case import Entry, Given, as_tuple
from ..device import Device
from ..dtypes import DataType
from ..operators.base import definitions
from .case import Case, Peer, Recipe, shape, touched_bytes
from .peers import NumPy, Torch
from .values import Pattern, host, numbers, offsets

Peers = Callable[..., Iterable[Peer]]
"""(the module torch, the inputs as its tensors) -> peers."""

_CHECKED = 1 << 16
"""Elements that are checked at each end of the first input; at least one item."""


def ordinary(
    operator: str, types: str = "", entry: Entry | None = None, *, torch: Peers | None = None,
    reads: Sequence[int] = (), axis: int = 0,
) -> Recipe:
    """``types`` is the first input's where it is not given, ``entry`` the operator's own case.

    Each input is read once, or as often as ``reads`` tells. Items lie along ``axis``.
    """
    entry = entry or cases.CASES[operator]
    # Types do not depend on the scale.
    types = types or DataType.of(np.dtype(entry(TINY).inputs[0].dtype).name).family

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        c = entry(scale)
        function = getattr(dml, definitions()[operator].function_name)
        patterns = [numbers(g.dtype, math.prod(g.sizes), g.low, g.high, 4 + i)
                    if isinstance(g, Given) else Pattern(g.reshape(-1), g.size)
                    for i, g in enumerate(c.inputs)]
        sizes = [g.sizes if isinstance(g, Given) else g.shape for g in c.inputs]
        inputs = [p.tensor(device).reshape(*n) for p, n in zip(patterns, sizes)]
        out = None if c.out is None else device.empty(c.out, c.out_type)
        outputs = c.call(function, *inputs, **c.arguments, out=out)

        def numpy_peers(library: NumPy) -> Iterator[Peer]:
            arrays = [p.host().reshape(n) for p, n in zip(patterns, sizes)]

            def own(y: np.ndarray) -> np.ndarray:
                """A view of an input is no result."""
                return np.array(y) if any(np.may_share_memory(y, x) for x in arrays) else y

            yield Peer("numpy", lambda: list(map(own, as_tuple(c.reference(*arrays)))),
                       checked=False)

        def torch_peers(library: Torch) -> Iterable[Peer]:
            assert torch is not None
            return torch(library.torch, *(
                library.tensor(p).reshape(n) for p, n in zip(patterns, sizes)))

        moved = [*(x for x, n in zip(inputs, reads or [1] * len(inputs)) for _ in range(n)),
                 *as_tuple(outputs)]
        yield Case(
            operator, types, shape((*inputs, *as_tuple(outputs))[0].sizes),
            lambda: c.call(function, *inputs, **c.arguments, out=outputs),
            _check(c, patterns, sizes, axis), touched_bytes(t.desc for t in moved), c.operations,
            peers={"numpy": numpy_peers} | ({"torch": torch_peers} if torch else {}))

    return Recipe(operator, types, make)


def _check(c: cases.OperatorCase, patterns: Sequence[Pattern], sizes: Sequence[tuple[int, ...]],
           axis: int) -> Callable[[Any], str]:
    """Compares the first and the last items; all items if they depend on each other."""
    items = [isinstance(g, Given) and not g.shared for g in c.inputs]

    def part(i: int, key: tuple[slice, ...]) -> np.ndarray:
        steps = [math.prod(sizes[i][d + 1 :]) for d in range(len(sizes[i]))]
        return patterns[i].at(offsets(key if items[i] else (), sizes[i], steps))

    def check(results: object) -> str:
        outputs, ends = as_tuple(results), {(0, 0)}
        if any(items):
            cut = sizes[items.index(True)]
            count = min(cut[axis], max(1, _CHECKED * cut[axis] // math.prod(cut)))
            ends = {(0, count), (cut[axis] - count, cut[axis])}
        for start, stop in sorted(ends):
            key = (*[slice(None)] * axis, slice(start, stop)) if any(items) else (slice(None),)
            inputs = [part(i, key) for i in range(len(items))]
            if problem := c.wrong([host(y[key]) for y in outputs], *inputs):
                return f"{problem} (from item {start})"
        return ""

    return check
