"""Byte ranges that pending dispatches read and write. Knows no Vulkan."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from .heap import Allocation, Block

Access = tuple[Allocation, int, int, bool]
"""(allocation, begin, end, writes): bytes of the allocation's block that one dispatch touches."""


class Intervals:
    """A set of half-open integer intervals; those that touch are one."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, begin: int, end: int) -> None:
        self._begins = [begin]
        self._ends = [end]

    def overlaps(self, begin: int, end: int) -> bool:
        i = bisect_right(self._ends, begin)
        return i < len(self._begins) and self._begins[i] < end

    def add(self, begin: int, end: int) -> None:
        i = bisect_left(self._ends, begin)
        j = bisect_right(self._begins, end)
        if i < j:
            begin = min(begin, self._begins[i])
            end = max(end, self._ends[j - 1])
        # One statement: after an interrupt, lists of different lengths would be invalid.
        self._begins[i:j], self._ends[i:j] = [begin], [end]


class Hazards:
    """The accesses since the last barrier."""

    __slots__ = ("_read", "_written")

    def __init__(self) -> None:
        self._read: dict[Block, Intervals] = {}
        self._written: dict[Block, Intervals] = {}

    def conflicts(self, accesses: Iterable[Access]) -> bool:
        """Whether an access overlaps an earlier one, and at least one of the two writes."""
        for allocation, begin, end, writes in accesses:
            written = self._written.get(allocation.block)
            if written is not None and written.overlaps(begin, end):
                return True
            if writes:
                read = self._read.get(allocation.block)
                if read is not None and read.overlaps(begin, end):
                    return True
        return False

    def add(self, accesses: Iterable[Access]) -> None:
        for allocation, begin, end, writes in accesses:
            side = self._written if writes else self._read
            intervals = side.get(allocation.block)
            if intervals is None:
                side[allocation.block] = Intervals(begin, end)
            else:
                intervals.add(begin, end)

    def blocks(self) -> set[Block]:
        """The blocks touched."""
        return {*self._read, *self._written}

    def clear(self) -> None:
        self._read.clear()
        self._written.clear()


class Spans:
    """The accesses of many dispatches, in order, in arrays. Where each begins and ends may change
    from one recording to the next."""

    def __init__(
        self, dispatches: np.ndarray, allocations: Sequence[Allocation], writes: np.ndarray
    ) -> None:
        """Of each access: the number of its dispatch, in order, and its memory."""
        self._dispatches, self._allocations, self._writes = dispatches, allocations, writes
        numbers: dict[Block, int] = {}
        self._blocks = np.array([numbers.setdefault(a.block, len(numbers)) for a in allocations])
        self.waits = np.zeros(0, bool)
        """Which dispatches wait for all before. The first one does."""
        self._left = self._right = np.zeros(0, np.int64)
        """Pairs of accesses that must not meet: no wait is between them."""

    def order(self, begins: np.ndarray, ends: np.ndarray) -> bool:
        """Let dispatches wait where accesses meet, for these ranges. Other ranges need no more
        waits where :meth:`hold`. False if too many dispatches do not wait."""
        count = int(self._dispatches[-1]) + 1
        waits = np.zeros(count, bool)
        waits[0] = True
        firsts = np.searchsorted(self._dispatches, np.arange(count + 1)).tolist()
        accesses: list[Access] = [*zip(
            self._allocations, begins.tolist(), ends.tolist(), self._writes.tolist())]
        hazards = Hazards()
        for i, (first, last) in enumerate(pairwise(firsts)):
            own = accesses[first:last]
            if hazards.conflicts(own):
                waits[i] = True
                hazards.clear()
            hazards.add(own)
        self.waits = waits
        return self._pair(np.cumsum(waits)[self._dispatches])

    def _pair(self, runs: np.ndarray) -> bool:
        """Note the pairs of accesses of the same run, in which no dispatch waits."""
        none = np.zeros(0, np.int64)
        left, right, total = [none], [none], 0
        bounds = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]
        dispatches = self._dispatches.tolist()
        for begin, end in pairwise(bounds):
            if dispatches[begin] == dispatches[end - 1]:
                continue
            total += (end - begin) ** 2
            if total > _MOST_PAIRS:
                return False
            a, b = (i + begin for i in np.triu_indices(end - begin, 1))
            meet = (self._dispatches[a] != self._dispatches[b]) & (
                self._blocks[a] == self._blocks[b]) & (self._writes[a] | self._writes[b])
            left.append(a[meet])
            right.append(b[meet])
        self._left, self._right = np.concatenate(left), np.concatenate(right)
        return True

    def hold(self, begins: np.ndarray, ends: np.ndarray) -> bool:
        """Whether the waits are enough for these ranges."""
        return not np.any((begins[self._left] < ends[self._right])
                          & (begins[self._right] < ends[self._left]))


_MOST_PAIRS = 1 << 20
"""The most pairs of accesses to look at."""
