"""Memory of values that are not alive all the time. Knows no device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


def share(storages: Sequence[Storage]) -> int:
    """Give storages offsets, largest first, where those alive at the same time leave room.

    Returns the bytes that they need together.
    """
    placed: list[Storage] = []
    for storage in sorted(storages, key=lambda s: -s.nbytes):
        storage.offset = 0
        meets = [p for p in placed if p.first <= storage.last and storage.first <= p.last]
        for p in sorted(meets, key=lambda p: p.offset):
            if storage.offset + storage.nbytes <= p.offset:
                break
            storage.offset = max(storage.offset, aligned(p.offset + p.nbytes))
        placed.append(storage)
    return max((s.offset + s.nbytes for s in placed), default=0)
