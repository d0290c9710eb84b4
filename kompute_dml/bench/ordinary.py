"""The ordinary cases of :mod:`kompute_dml.cases` as recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import cases
from ..cases import TINY, Scale
from ..cases.case import Entry, Given, as_tuple
from ..dtypes import DataType
from ..operators.base import definitions
from .case import Case, Peer, Recipe, shape, touched_bytes
from .values import Pattern, host, numbers

_CHECKED = 1 << 16
"""Elements that are checked at each end of the first input; at least one item."""


def ordinary(operator: str, types: str = "", entry: Entry | None = None) -> Recipe:
    """``types`` is the first input's where it is not given, ``entry`` the operator's own case."""
    entry = entry or cases.CASES[operator]
    # Types do not depend on the scale.
    types = types or DataType.of(np.dtype(entry(TINY).inputs[0].dtype).name).family

    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        c = entry(scale)
        function = getattr(dml, definitions()[operator].function_name)
        patterns = [numbers(g.dtype, math.prod(g.sizes), g.low, g.high, 4 + i)
                    if isinstance(g, Given) else Pattern(g.reshape(-1), g.size)
                    for i, g in enumerate(c.inputs)]
        sizes = [g.sizes if isinstance(g, Given) else g.shape for g in c.inputs]
        inputs = [p.tensor(device).reshape(*n) for p, n in zip(patterns, sizes)]
        made = None if c.out is None else device.empty(c.out)
        outputs = c.call(function, *inputs, **c.arguments, out=made)

        def numpy_peers(library: Any) -> Iterator[Peer]:
            arrays = [p.host().reshape(n) for p, n in zip(patterns, sizes)]

            def own(y: Any) -> np.ndarray:
                """A view of an input is no result."""
                return np.array(y) if any(np.may_share_memory(y, x) for x in arrays) else y

            yield Peer("numpy", lambda: list(map(own, as_tuple(c.reference(*arrays)))),
                       checked=False)

        yield Case(
            operator, types, shape((*inputs, *as_tuple(outputs))[0].sizes),
            lambda: c.call(function, *inputs, **c.arguments, out=outputs),
            _check(c, patterns, sizes),
            touched_bytes(t.desc for t in (*inputs, *as_tuple(outputs))), c.operations,
            peers={"numpy": numpy_peers})

    return Recipe(operator, types, make)


def _check(c: cases.Case, patterns: Sequence[Pattern],
           sizes: Sequence[tuple[int, ...]]) -> Callable[[Any], str]:
    """Compares the first and the last items; all items if they depend on each other."""
    items = [isinstance(g, Given) and not g.shared for g in c.inputs]

    def part(i: int, start: int, stop: int) -> np.ndarray:
        each = math.prod(sizes[i][1:])
        at = np.arange(start * each, stop * each) if items[i] else np.arange(math.prod(sizes[i]))
        return patterns[i].at(at).reshape(-1, *sizes[i][1:])

    def check(given: Any) -> str:
        outputs, ends = as_tuple(given), {(0, 0)}
        if any(items):
            cut = sizes[items.index(True)]
            count = min(cut[0], max(1, _CHECKED // math.prod(cut[1:])))
            ends = {(0, count), (cut[0] - count, cut[0])}
        for start, stop in sorted(ends):
            key = slice(start, stop) if any(items) else slice(None)
            inputs = [part(i, start, stop) for i in range(len(items))]
            if problem := c.wrong([host(y[key]) for y in outputs], *inputs):
                return f"{problem} (from item {start})"
        return ""

    return check
