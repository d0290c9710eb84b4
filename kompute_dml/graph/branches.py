"""The order of a graph's operators: groups of them that do not depend on one another.

A dispatch that waits for the one before costs a GPU microseconds, in which few workgroups run. So a
small operator moves ahead, beside the first ones that it does not wait for, and the others stay in
their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..sizes import is_open
from .memory import Storage
from .node import Node
from .switches import BRANCHES, disabled

_SMALL = 256 << 10
"""The most bytes that an operator writes which moves: memory holds them for longer."""


def in_groups(nodes: Sequence[Node], is_cpu: bool) -> list[tuple[Node, int]]:
    """The operators in an order in which they can run, and the number of the group of each. Those
    of a group follow each other. CPUs run one dispatch after the other, so there each operator is
    a group."""
    if is_cpu or BRANCHES in disabled() or any(
            is_open(s.nbytes) or is_open(s.begin) for node in nodes
            for s in node.storages.values()):
        return [(node, i) for i, node in enumerate(nodes)]
    groups: list[int] = []
    reads: _Accesses = defaultdict(list)
    writes: _Accesses = defaultdict(list)
    last = -1
    for node in nodes:
        inputs, outputs = ([s for _, s in node.slots(kind) if not s.root.constant]
                           for kind in ("input", "output"))
        first = 1 + max(_last(writes, inputs), _last(writes, outputs), _last(reads, outputs))
        moves = sum(s.nbytes for s in outputs) <= _SMALL
        group = first if moves else max(first, last)
        last = max(last, group)
        groups.append(group)
        for accesses, storages in ((reads, inputs), (writes, outputs)):
            for s in storages:
                accesses[s.root].append((s, group))
    return sorted(zip(nodes, groups), key=lambda pair: pair[1])


_Accesses = dict[Storage, list[tuple[Storage, int]]]
"""By root: parts of it, and the groups whose operators read or write them."""


def _last(accesses: _Accesses, storages: Sequence[Storage]) -> int:
    """The last group that accesses a byte of these storages; -1 if none does."""
    return max((group for s in storages for other, group in accesses[s.root] if _meet(s, other)),
               default=-1)


def _meet(a: Storage, b: Storage) -> bool:
    return a.begin < b.begin + b.nbytes and b.begin < a.begin + a.nbytes
