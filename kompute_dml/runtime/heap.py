"""Device memory: a few large blocks that we divide ourselves.

A kp tensor costs milliseconds to create and one Vulkan allocation, of which drivers grant a few
thousand; so tensors are ranges of blocks. Pure bookkeeping: how a block is made is handed in.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, NamedTuple

ALIGNMENT = 256
"""Allocations start at multiples of it and are rounded up to it (DirectML's buffer alignment)."""

_FIRST_BLOCK = 16 << 20


class Block:
    """One storage buffer on the device."""

    __slots__ = ("buffer", "free", "size", "used")

    def __init__(self, buffer: Any, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self.used = 0
        self.free: list[tuple[int, int]] = [(0, size)]
        """(offset, size) of the gaps, by offset; no two touch."""

    def take(self, size: int) -> int | None:
        """The offset of a free range, first fit, or None."""
        for i, (offset, gap) in enumerate(self.free):
            if gap >= size:
                if gap == size:
                    del self.free[i]
                else:
                    self.free[i] = (offset + size, gap - size)
                self.used += size
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        """Return a range; it merges with the gaps that it touches."""
        self.used -= size
        i = bisect_left(self.free, (offset, 0))
        if i < len(self.free) and self.free[i][0] == offset + size:
            size += self.free.pop(i)[1]
        if i and sum(self.free[i - 1]) == offset:
            offset, before = self.free.pop(i - 1)
            size += before
        insort(self.free, (offset, size))


class Allocation:
    """A range of a block.

    ``last_use`` is the recorder's mark of what touched it last. ``on_drop`` gets (block, offset,
    bytes, last_use) when the last reference goes, in whatever thread that happens.
    """

    __slots__ = ("__weakref__", "block", "last_use", "nbytes", "offset", "on_drop")

    def __init__(self, block: Block, offset: int, nbytes: int) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes
        self.last_use: Any = None
        self.on_drop: Callable[[tuple[Block, int, int, Any]], None] | None = None

    @property
    def freed(self) -> bool:
        return self.block is None

    def free(self) -> None:
        """Give the range back now, whoever still refers to it."""
        if self.block is not None and self.on_drop is not None:
            self.on_drop((self.block, self.offset, self.nbytes, self.last_use))
        self.block = None  # type: ignore[assignment]

    def __del__(self) -> None:
        self.free()


class Slot(NamedTuple):
    """Where a tensor lies: bytes after the start of an allocation."""

    allocation: Allocation
    byte_offset: int


class Heap:
    """Allocates ranges from blocks that ``make_block(nbytes)`` brings.

    ``make_block`` raises OutOfMemoryError itself. ``drop_block`` is told when an empty block goes.
    Up to ``keep`` bytes of empty blocks stay for what comes next, as to make a block takes
    milliseconds. Without ``shares_blocks`` every range is a block of its own, as the validation
    layer likes it.
    """

    def __init__(
        self,
        make_block: Callable[[int], Any],
        drop_block: Callable[[Block], None],
        max_block: int,
        keep: int = 0,
        shares_blocks: bool = True,
    ) -> None:
        self._make_block = make_block
        self._drop_block = drop_block
        self.max_block = max_block // ALIGNMENT * ALIGNMENT
        self.blocks: list[Block] = []
        self._keep = keep
        self._shares_blocks = shares_blocks

    @property
    def used(self) -> int:
        """Bytes handed out, rounding included."""
        return sum(b.used for b in self.blocks)

    @property
    def reserved(self) -> int:
        """Bytes of all blocks."""
        return sum(b.size for b in self.blocks)

    def allocate(self, nbytes: int) -> Allocation:
        """A range of at least ``nbytes`` (and at most 255 more), which fits ``max_block``."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        for block in self.blocks if self._shares_blocks else ():
            if block.size - block.used >= size:
                offset = block.take(size)
                if offset is not None:
                    return Allocation(block, offset, size)
        # Blocks grow with what is in use, so that their number stays small, and shrink to the
        # request where memory is short.
        wanted = max(size, min(self.max_block, max(_FIRST_BLOCK, self.reserved // 2)))
        wanted = wanted // ALIGNMENT * ALIGNMENT if self._shares_blocks else size
        try:
            block = Block(self._make_block(wanted), wanted)
        except MemoryError:
            if wanted == size:
                raise
            block = Block(self._make_block(size), size)
        self.blocks.append(block)
        offset = block.take(size)
        assert offset is not None  # the block was made for it
        return Allocation(block, offset, size)

    def release(self, block: Block, offset: int, nbytes: int) -> None:
        """Return a range. Where more would lie idle than is kept, empty blocks go: those that are
        too large to keep, then the small ones, as a large one serves all. One of the first size may
        always stay."""
        block.give(offset, nbytes)
        if block.used:
            return
        most = max(self._keep, _FIRST_BLOCK) if self._shares_blocks else 0
        idle = [b for b in self.blocks if not b.used]
        total = sum(b.size for b in idle)
        for b in sorted(idle, key=lambda b: (b.size <= most, b.size)):
            if total <= most:
                break
            total -= b.size
            self.blocks.remove(b)
            self._drop_block(b)

    def trim(self) -> None:
        """Give every empty block back to the device."""
        for block in [b for b in self.blocks if not b.used]:
            self.blocks.remove(block)
            self._drop_block(block)
