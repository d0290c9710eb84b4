"""Byte ranges that pending dispatches read and write. Knows no Vulkan."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

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
    """The accesses of many dispatches, in order, in arrays. Where some begin and end may change
    from one recording to the next."""

    def __init__(
        self, dispatches: np.ndarray, allocations: Sequence[Allocation], writes: np.ndarray,
        changes: np.ndarray,
    ) -> None:
        """Of each access: the number of its dispatch, in order, its memory, whether it writes, and
        whether it may begin or end elsewhere in another recording."""
        self._dispatches, self._allocations, self._writes = dispatches, allocations, writes
        self._changes = changes
        numbers: dict[Block, int] = {}
        self._blocks = np.array([numbers.setdefault(a.block, len(numbers)) for a in allocations])
        self.waits = np.zeros(0, bool)
        """Which dispatches wait for all before. The first one does."""
        self.watched = np.zeros(0, np.int64)
        """Accesses that :meth:`hold` looks at, by number."""
        self._left = self._right = np.zeros(0, np.int64)
        """Pairs of these that must not meet: no wait is between them."""

    def order(self, begins: np.ndarray, ends: np.ndarray) -> bool:
        """Let dispatches wait where accesses meet, for these ranges. Other ranges need no more
        waits where :meth:`hold`. False if too many dispatches do not wait."""
        count = int(self._dispatches[-1]) + 1
        firsts = np.searchsorted(self._dispatches, np.arange(count + 2))
        # Most dispatches wait for the one before them.
        left, right = _pairs(np.arange(len(begins)), firsts[self._dispatches + 1],
                             firsts[np.minimum(self._dispatches + 2, count + 1)])
        left, right = self._may_meet(left, right)
        meet = (begins[left] < ends[right]) & (begins[right] < ends[left])
        waits = np.zeros(count, bool)
        waits[0] = True
        waits[self._dispatches[right[meet]]] = True

        def accesses(first: int, end: int) -> list[Access]:
            """Those of dispatches."""
            begin, last = firsts[first], firsts[end]
            return [*zip(self._allocations[begin:last], begins[begin:last].tolist(),
                         ends[begin:last].tolist(), self._writes[begin:last].tolist())]

        last, hazards = 0, Hazards()  # of those from the last wait on
        hazards.add(accesses(0, 1))
        sure = np.maximum.accumulate(np.where(waits, np.arange(count), 0)).tolist()
        for i in np.flatnonzero(~waits).tolist():
            if sure[i] > last:
                last, hazards = sure[i], Hazards()
                hazards.add(accesses(last, i))
            own = accesses(i, i + 1)
            if hazards.conflicts(own):
                waits[i], last = True, i
                hazards.clear()
            hazards.add(own)
        self.waits = waits
        return self._pair(np.cumsum(waits)[self._dispatches])

    def _may_meet(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those pairs of accesses to one block of which one writes."""
        may = (self._blocks[left] == self._blocks[right]) & (
            self._writes[left] | self._writes[right])
        return left[may], right[may]

    def _pair(self, runs: np.ndarray) -> bool:
        """Note the pairs of accesses of the same run, in which no dispatch waits."""
        begins = np.searchsorted(runs, runs)
        ends = np.searchsorted(runs, runs, "right")
        several = np.flatnonzero(self._dispatches[begins] != self._dispatches[ends - 1])
        if (ends - begins)[several].sum() > _MOST_PAIRS:
            return False
        left, right = _pairs(several, several + 1, ends[several])
        apart = self._dispatches[left] != self._dispatches[right]
        left, right = self._may_meet(left[apart], right[apart])
        may_change = self._changes[left] | self._changes[right]
        left, right = left[may_change], right[may_change]
        self.watched, among = np.unique([left, right], return_inverse=True)
        self._left, self._right = among.reshape(2, -1)
        return True

    def hold(self, begins: np.ndarray, ends: np.ndarray) -> bool:
        """Whether the waits are enough for these ranges of the accesses that are watched."""
        return not np.any((begins[self._left] < ends[self._right])
                          & (begins[self._right] < ends[self._left]))


def _pairs(
    left: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Each number of ``left`` with each number from one of ``begins`` to one of ``ends``."""
    counts = ends - begins
    before = np.cumsum(counts) - counts
    return np.repeat(left, counts), np.arange(counts.sum()) + np.repeat(begins - before, counts)


_MOST_PAIRS = 1 << 20
"""The most pairs of accesses to look at."""
