"""Memory for values, shared by those that are never alive together. Knows no device."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..runtime.heap import ALIGNMENT, Allocation, Slot
from ..sizes import is_open


@dataclass(eq=False)
class Storage:
    """A range of memory that a graph needs."""

    nbytes: int
    first: int = -1
    """The first step that uses it; -1 if none has."""
    last: int = -1
    allocation: Allocation | None = None
    offset: int = 0
    constant: bool = False
    values: np.ndarray | None = None
    """Its bytes, if they are known and few."""
    _into: Storage | None = None
    _at: int = 0
    """Where it begins in ``_into``, in bytes."""

    def touch(self, step: int) -> None:
        """Note that ``step``, the newest one, uses it."""
        self.first = step if self.first < 0 else self.first
        self.last = step
        if self._into is not None:
            self._into.touch(step)

    def part(self, begin: int, nbytes: int | None = None) -> Storage:
        """The part of it from byte ``begin`` on: all that follows, or ``nbytes``."""
        return Storage(self.nbytes - begin if nbytes is None else nbytes, constant=self.constant,
                       _into=self, _at=begin)

    @property
    def cut(self) -> tuple[Storage, int]:
        """What it is a part of, and from which byte on. Raises LookupError if it is no part."""
        if self._into is None:
            raise LookupError("not a part")
        return self._into, self._at

    @property
    def is_part(self) -> bool:
        """Whether it lies inside another storage, after its beginning."""
        return self._into is not None and self._at > 0

    @property
    def begin(self) -> int:
        """Where it begins in its root, in bytes."""
        return 0 if self._into is None else self._at + self._into.begin

    @property
    def is_constant(self) -> bool:
        """Whether its elements are known when a graph is planned: those of a constant, or of a
        part of one that begins where no size says."""
        return self.root.constant and not is_open(self.begin)

    @property
    def root(self) -> Storage:
        """The storage whose memory it has: itself, unless it was merged."""
        root = self
        while root._into is not None:
            root = root._into
        return root

    def begins_as(self, other: Storage) -> bool:
        """Whether it begins where ``other`` does, in the same memory."""
        return (self.root, self.begin) == (other.root, other.begin)

    def merge(self, other: Storage) -> None:
        """Let ``other`` have this one's memory. The step that last uses this one first uses
        ``other``."""
        root = self.root
        root.nbytes, root.last = max(root.nbytes, other.nbytes), max(root.last, other.last)
        other._into = root

    def slot(self) -> Slot:
        """Where it lies in device memory."""
        root = self.root
        assert root.allocation is not None
        return Slot(root.allocation, root.offset + self.begin)


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to where the next range may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def side_by_side(storages: Iterable[Storage]) -> int:
    """Place storages one after the other. Returns the bytes of all."""
    end = 0
    for storage in storages:
        storage.offset = aligned(end)
        end = storage.offset + storage.nbytes
    return end


@dataclass(frozen=True)
class MemoryUse:
    """The bytes of the values inside a graph."""

    planned: int
    alive: int
    """The most bytes alive at once. No plan needs less."""

    def __str__(self) -> str:
        ratio = self.planned / self.alive if self.alive else 1
        return (f"{self.planned} bytes for values inside, of which {self.alive} are alive at once "
                f"({ratio:.2f})")


def most_alive(storages: Sequence[Storage]) -> int:
    """The largest sum of aligned bytes of storages that are alive at one step."""
    changes: dict[int, int] = {}
    for s in storages:
        changes[s.first] = changes.get(s.first, 0) + aligned(s.nbytes)
        changes[s.last + 1] = changes.get(s.last + 1, 0) - aligned(s.nbytes)
    total = most = 0
    for step in sorted(changes):
        total += changes[step]
        most = max(most, total)
    return most


def share(storages: Sequence[Storage], *, apart: bool = False) -> MemoryUse:
    """Give storages offsets. Storages that are alive at the same time do not overlap; with
    ``apart`` none do.

    The largest are placed first. If that wastes much, random orders (with a fixed seed) are tried
    for a short time.
    """
    alive = most_alive(storages)
    if apart:
        return MemoryUse(side_by_side(storages), alive)
    draw = random.Random(0)
    order = sorted(storages, key=lambda s: -s.nbytes)
    best, offsets = _place(order), [s.offset for s in storages]
    for _ in range(min(_TRIES, _PAIRS // max(len(storages), 1) ** 2)):
        if best <= max(_GOOD * alive, alive + _LITTLE):
            break
        power = draw.uniform(0, 1.5)
        order.sort(key=lambda s: -s.nbytes * (s.last - s.first + 1) ** power * draw.uniform(0.5, 1))
        if (planned := _place(order)) < best:
            best, offsets = planned, [s.offset for s in storages]
    for storage, offset in zip(storages, offsets):
        storage.offset = offset
    return MemoryUse(best, alive)


_GOOD = 1.02
"""A plan is good enough if it takes so many times the least bytes."""
_LITTLE = 256 << 10
"""Or so many bytes more."""
_TRIES, _PAIRS = 64, 1_000_000
"""The most orders to try, and the most pairs of storages to compare in all of them."""


def _place(storages: Sequence[Storage]) -> int:
    """Give each storage in turn the lowest offset with room. Returns the bytes of all."""
    first, last = (np.array(steps, np.int64).reshape(-1) for steps in (
        [s.first for s in storages], [s.last for s in storages]))
    end = 0
    for i, storage in enumerate(storages):
        storage.offset = 0
        # NumPy compares: a graph of thousands of values has millions of pairs.
        meets = (first[:i] <= storage.last) & (last[:i] >= storage.first)
        for p in sorted([storages[k] for k in meets.nonzero()[0].tolist()], key=lambda p: p.offset):
            if storage.offset + storage.nbytes <= p.offset:
                break
            storage.offset = max(storage.offset, aligned(p.offset + p.nbytes))
        end = max(end, storage.offset + storage.nbytes)
    return end
