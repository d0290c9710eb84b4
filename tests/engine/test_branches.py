"""Small operators move beside others that they do not depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph import branches
from kompute_dml.graph.branches import in_groups
from kompute_dml.graph.memory import Storage
from kompute_dml.runtime.hazards import Hazards


class _Node:
    """What the order asks of an operator."""

    def __init__(self, inputs: list[Storage], outputs: list[Storage]) -> None:
        self._slots = {"input": inputs, "output": outputs}
        self.storages = dict(enumerate((*inputs, *outputs)))

    def slots(self, kind: str) -> Iterator[tuple[str, Storage]]:
        return iter([("", s) for s in self._slots[kind]])


def _conflict(a: _Node, b: _Node) -> bool:
    def bytes_of(node: _Node, kind: str) -> set[tuple[Storage, int]]:
        return {(s.root, s.begin + i) for _, s in node.slots(kind) for i in range(s.nbytes)
                if not s.root.constant}

    (reads, writes), (later_reads, later_writes) = (
        [bytes_of(n, kind) for kind in ("input", "output")] for n in (a, b))
    return bool(writes & (later_reads | later_writes) or reads & later_writes)


@pytest.mark.parametrize("seed", range(30))
def test_what_depends_on_an_operator_comes_after_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it reads or writes parts of what others do."""
    monkeypatch.setattr(branches, "_SMALL", 6)
    rng = np.random.default_rng(seed)
    roots = [Storage(8, constant=i == 0) for i in range(9)]

    def some(count: int) -> list[Storage]:
        picked = [roots[i] for i in rng.integers(0, len(roots), count)]
        return [x if rng.random() < 0.5 else x.part(int(b := rng.integers(0, 8)), int(8 - b))
                for x in picked]

    nodes: Any = [_Node(some(2), [s for s in some(1) if not s.root.constant]) for _ in range(25)]
    order = in_groups(nodes, is_cpu=False)
    group = dict(order)
    assert sorted(map(nodes.index, group)) == [*range(len(nodes))]
    assert [g for _, g in order] == sorted(group.values())
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            assert not _conflict(a, b) or group[a] < group[b]
    large = [n for n, _ in order if sum(s.nbytes for _, s in n.slots("output")) > 6]
    assert large == [n for n in nodes if n in set(large)]
    assert [n for n, _ in in_groups(nodes, is_cpu=True)] == nodes


def test_an_operator_moves_ahead_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    x, a, b, c, d = (Storage(n) for n in (400, 400, 400, 4, 4))
    nodes: Any = [_Node([x], [a]), _Node([a], [b]), _Node([x], [c]), _Node([c], [d])]
    for least, expected in ((4, [0, 1, 0, 1]), (3, [0, 1, 1, 2])):
        monkeypatch.setattr(branches, "_SMALL", least)
        order = in_groups(nodes, is_cpu=False)
        assert [dict(order)[n] for n in nodes] == expected


def test_chains_wait_less_often(
    gpu: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three chains of three products, one written after the other."""
    x, *ws = (rng.integers(-2, 3, (8, 8)).astype(np.float32) for _ in range(10))
    waits = 0

    def counted(self: Hazards, accesses: Any) -> bool:
        nonlocal waits
        conflict = conflicts(self, accesses)
        waits += conflict
        return conflict

    conflicts = Hazards.conflicts
    monkeypatch.setattr(Hazards, "conflicts", counted)

    def run() -> tuple[int, list[np.ndarray]]:
        nonlocal waits
        with dml.Graph(gpu) as g:
            start = g.input(x.shape, x.dtype)
            ends = [((start @ a) @ b) @ c for a, b, c in zip(ws[::3], ws[1::3], ws[2::3])]
            compiled = g.compile(ends)
        waits = 0
        results = compiled(x)
        return waits, results

    beside, results = run()
    monkeypatch.setattr(branches, "_SMALL", -1)
    apart, others = run()
    for result, other, (a, b, c) in zip(results, others, zip(ws[::3], ws[1::3], ws[2::3])):
        np.testing.assert_array_equal(result, x @ a @ b @ c)
        np.testing.assert_array_equal(result, other)
    # The products of x are one, and two others follow it. Transfers may wait, too.
    assert apart - beside == 2
