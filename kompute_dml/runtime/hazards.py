"""Byte ranges that pending dispatches read and write. Knows no Vulkan."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

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
