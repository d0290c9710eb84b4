"""Device memory: a few large blocks, divided into ranges.

A kp tensor takes milliseconds to create and one Vulkan allocation, and drivers allow only a few
thousand of these. So tensors are ranges of blocks. The caller provides the function that makes a
block.
"""

from __future__ import annotations

import contextlib
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

ALIGNMENT = 256
"""Offsets and sizes of allocations are multiples of it (DirectML's buffer alignment)."""

DEDICATED = 1 << 30
"""What is uploaded and larger has a block of its own, in dedicated memory. Random rows are read
faster out of it than out of memory that is compressed, and compression gains nothing for the
elements of most tables and weights."""
_FIRST_BLOCK = 16 << 20


class Block:
    """One storage buffer on the device."""

    __slots__ = ("buffer", "free", "size", "used")

    def __init__(self, buffer: object, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self.used = 0
        self.free: list[tuple[int, int]] = [(0, size)]
        """(offset, size) of the gaps, sorted by offset. No two gaps touch."""

    # take() and give() change the list by one assignment, so an interrupt leaves it valid.

    def take(self, gap: int, taken: Range) -> None:
        """Allocate the beginning of a gap."""
        offset, size = self.free[gap]
        nbytes = taken.nbytes
        rest = [(offset + nbytes, size - nbytes)] if size > nbytes else []
        self.free[gap : gap + 1], self.used, taken.block = rest, self.used + nbytes, self

    def give(self, taken: Range) -> None:
        """Return a range. It merges with the gaps that it touches."""
        begin, end = taken.offset, taken.offset + taken.nbytes
        first = after = bisect_left(self.free, (begin, 0))
        if after < len(self.free) and self.free[after][0] == end:
            end += self.free[after][1]
            after += 1
        if first and sum(self.free[first - 1]) == begin:
            first -= 1
            begin = self.free[first][0]
        merged = [(begin, end - begin)]
        self.free[first:after], self.used, taken.block = merged, self.used - taken.nbytes, None


class Range(weakref.ref["Allocation"]):
    """The range of a block that an allocation has. It outlives the allocation and is then released.

    It is a weak reference with a callback: no Python code runs where the last reference to an
    allocation goes, so no interrupt can strike there.
    """

    block: Block | None = None
    """None before it is taken and after it is given back."""
    offset: int
    nbytes: int
    last_use: Any = None
    """The recorder's mark of the last batch that used it."""


class Allocation:
    """A range of a block, while it is referenced. ``on_drop`` gets the Range when the last
    reference goes, in any thread."""

    __slots__ = ("__weakref__", "block", "nbytes", "offset", "on_drop", "range")

    def __init__(
        self, block: Block, offset: int, nbytes: int,
        on_drop: Callable[[Range], None] | None = None,
    ) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes
        self.on_drop = on_drop
        self.range = taken = Range(self, on_drop)
        taken.offset = offset
        taken.nbytes = nbytes

    @property
    def last_use(self) -> Any:
        """The last batch that used it, or None."""
        return self.range.last_use

    @property
    def freed(self) -> bool:
        return self.block is None

    def free(self) -> None:
        """Give the range back now, even if it is still referenced."""
        if self.block is not None:
            # First: after an interrupt here, the last reference still releases the range.
            self.block = None  # type: ignore[assignment]
            if self.on_drop is not None:
                self.on_drop(self.range)


class Slot(NamedTuple):
    """Where a tensor lies: bytes after the start of an allocation."""

    allocation: Allocation
    byte_offset: int


Place = tuple[Allocation, int]
"""A Slot, or a plain tuple where one is made at every call: it takes a tenth of the time."""


class Heap:
    """Allocates ranges from blocks that ``make_block(nbytes, dedicated)`` brings.

    ``make_block`` raises OutOfMemoryError itself. ``drop_block`` is called when an empty block
    goes, and again if that call was interrupted. Up to ``keep`` bytes of empty blocks are kept,
    because making a block takes milliseconds. Without ``shares_blocks`` every range has a block of
    its own, so that the validation layer can check it.
    """

    def __init__(
        self,
        make_block: Callable[[int, bool], Any],
        drop_block: Callable[[Block], None],
        max_block: int,
        keep: int = 0,
        shares_blocks: bool = True,
    ) -> None:
        self._make_block = make_block
        self._drop_block = drop_block
        self.max_block = max_block // ALIGNMENT * ALIGNMENT
        self.blocks: list[Block] = []
        self.dropped: deque[Range] = deque()
        """Ranges to release. They may come from any thread, so they are only queued. A range may
        come twice: when it is freed, and when its allocation goes."""
        self.live: dict[int, Range] = {}
        """All allocated ranges, by id. They must be referenced, or their callbacks would not run.
        They cannot be hashed once their allocation is gone."""
        self._keep = keep
        self._shares_blocks = shares_blocks

    @property
    def used(self) -> int:
        """Bytes allocated, including rounding."""
        return sum(b.used for b in self.blocks)

    @property
    def reserved(self) -> int:
        """Bytes of all blocks."""
        return sum(b.size for b in self.blocks)

    def allocate(self, nbytes: int, uploaded: bool = False) -> Allocation:
        """A range of at least ``nbytes`` (and at most 255 more), which fits ``max_block``.
        ``uploaded``: for elements from the host."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        dedicated = uploaded and size > DEDICATED
        for block in self.blocks if self._shares_blocks and not dedicated else ():
            if block.size - block.used >= size:
                for gap, (_, room) in enumerate(block.free):
                    if room >= size:
                        return self._take(block, gap, size)
        # Blocks grow with the memory in use, so that their number stays small. They shrink to the
        # request if memory is short.
        wanted = max(size, min(self.max_block, max(_FIRST_BLOCK, self.reserved // 2)))
        alone = dedicated or not self._shares_blocks
        wanted = size if alone else wanted // ALIGNMENT * ALIGNMENT
        try:
            block = Block(self._make_block(wanted, dedicated), wanted)
        except MemoryError:
            if wanted == size:
                raise
            block = Block(self._make_block(size, dedicated), size)
        self.blocks.append(block)
        return self._take(block, 0, size)

    def reserve(self, nbytes: int) -> None:
        """Make one block for allocations of so many bytes together, unless a gap has room. Does
        nothing where no block holds them."""
        if not self._shares_blocks or not _FIRST_BLOCK < nbytes <= self.max_block or any(
                room >= nbytes for block in self.blocks for _, room in block.free):
            return
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with contextlib.suppress(MemoryError):  # smaller ones may fit
            self.blocks.append(Block(self._make_block(size, False), size))

    def _take(self, block: Block, gap: int, size: int) -> Allocation:
        allocation = Allocation(block, block.free[gap][0], size, self.dropped.append)
        taken = allocation.range
        self.live[id(taken)] = taken
        block.take(gap, taken)
        return allocation

    def release(self, taken: Range) -> None:
        """Return a range, unless it was returned before. If more than ``keep`` bytes are idle,
        empty blocks go: first those that are too large to keep, then the smallest, because a large
        one serves all requests. One block of the first size may always stay."""
        block = taken.block
        if block is not None:
            block.give(taken)
        self.live.pop(id(taken), None)
        if block is None or block.used:
            return
        most = max(self._keep, _FIRST_BLOCK) if self._shares_blocks else 0
        idle = [b for b in self.blocks if not b.used]
        total = sum(b.size for b in idle)
        for b in sorted(idle, key=lambda b: (b.size <= most, b.size)):
            if total <= most:
                break
            total -= b.size
            self._drop(b)

    def _drop(self, block: Block) -> None:
        try:
            self.blocks.remove(block)
            self._drop_block(block)
        except BaseException:
            if block not in self.blocks:
                self._drop_block(block)  # or finishes an interrupted call
            raise

    def trim(self) -> None:
        """Give every empty block back to the device."""
        for block in [b for b in self.blocks if not b.used]:
            self._drop(block)
