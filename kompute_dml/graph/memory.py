"""Memory of values that are not alive all the time. Knows no device."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..runtime.heap import ALIGNMENT, Allocation, Slot


@dataclass(eq=False)
class Storage:
    """A range of memory that a graph needs."""

    nbytes: int
    first: int = -1
    """The step that first touches it; -1 before any."""
    last: int = -1
    allocation: Allocation | None = None
    offset: int = 0
    constant: bool = False
    values: np.ndarray | None = None
    """Bytes that it holds, where they are known and few."""
    _into: Storage | None = None
    _at: int = 0
    """Bytes of that one before it."""

    def touch(self, step: int) -> None:
        """Note that ``step``, the newest one, uses it."""
        self.first = step if self.first < 0 else self.first
        self.last = step
        if self._into is not None:
            self._into.touch(step)

    def part(self, begin: int) -> Storage:
        """What lies in it from byte ``begin`` on."""
        return Storage(self.nbytes - begin, constant=self.constant, _into=self, _at=begin)

    @property
    def is_part(self) -> bool:
        """Whether it is a part of another one."""
        return self._into is not None and self._at > 0

    @property
    def begin(self) -> int:
        """Bytes of the root before it."""
        return 0 if self._into is None else self._at + self._into.begin

    @property
    def root(self) -> Storage:
        """The storage whose memory it has: itself, unless it was merged."""
        return self if self._into is None else self._into.root

    def merge(self, other: Storage) -> None:
        """Give ``other`` the memory of this one: where a step ends the one and begins the other."""
        root = self.root
        root.nbytes, root.last = max(root.nbytes, other.nbytes), max(root.last, other.last)
        other._into = root

    def slot(self) -> Slot:
        """Where it lies."""
        root = self.root
        assert root.allocation is not None
        return Slot(root.allocation, root.offset + self.begin)


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to where the next range may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def side_by_side(storages: Iterable[Storage]) -> int:
    """Give each storage an offset of its own. Returns the bytes of all."""
    end = 0
    for storage in storages:
        storage.offset = aligned(end)
        end = storage.offset + storage.nbytes
    return end


@dataclass(frozen=True)
class MemoryUse:
    """How many bytes the values inside of a graph share."""

    planned: int
    alive: int
    """The most that is alive at once: no plan needs less."""

    def __str__(self) -> str:
        ratio = self.planned / self.alive if self.alive else 1
        return (f"{self.planned} bytes for values inside, of which {self.alive} are alive at once "
                f"({ratio:.2f})")


def most_alive(storages: Sequence[Storage]) -> int:
    """The largest sum of storages that are alive at the same step, each as it is aligned."""
    changes: dict[int, int] = {}
    for s in storages:
        changes[s.first] = changes.get(s.first, 0) + aligned(s.nbytes)
        changes[s.last + 1] = changes.get(s.last + 1, 0) - aligned(s.nbytes)
    total = most = 0
    for step in sorted(changes):
        total += changes[step]
        most = max(most, total)
    return most


def share(storages: Sequence[Storage]) -> MemoryUse:
    """Give storages offsets, where those alive at the same time leave room.

    The largest come first. Where much is left over, orders that are drawn by lot, always the same
    ones, are tried as long as that takes no time to speak of.
    """
    alive = most_alive(storages)
    draw = random.Random(0)
    order = sorted(storages, key=lambda s: -s.nbytes)
    best, offsets = _place(order), [s.offset for s in storages]
    for _ in range(min(_TRIES, _PAIRS // max(len(storages), 1) ** 2)):
        if best <= _GOOD * alive:
            break
        power = draw.uniform(0, 1.5)
        order.sort(key=lambda s: -s.nbytes * (s.last - s.first + 1) ** power * draw.uniform(0.5, 1))
        if (planned := _place(order)) < best:
            best, offsets = planned, [s.offset for s in storages]
    for storage, offset in zip(storages, offsets):
        storage.offset = offset
    return MemoryUse(best, alive)


_GOOD = 1.02
"""Times the least there may be: no other order is tried."""
_TRIES, _PAIRS = 64, 1_000_000
"""Orders at most, and pairs of storages that are compared for all of them."""


def _place(storages: Sequence[Storage]) -> int:
    """Give storages offsets one after the other, each the lowest one with room."""
    placed: list[Storage] = []
    for storage in storages:
        storage.offset = 0
        meets = [p for p in placed if p.first <= storage.last and storage.first <= p.last]
        for p in sorted(meets, key=lambda p: p.offset):
            if storage.offset + storage.nbytes <= p.offset:
                break
            storage.offset = max(storage.offset, aligned(p.offset + p.nbytes))
        placed.append(storage)
    return max((s.offset + s.nbytes for s in placed), default=0)
