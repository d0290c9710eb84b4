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
from typing import Any, NamedTuple, TypeAlias

ALIGNMENT = 256
"""Offsets and sizes of allocations are multiples of it (DirectML's buffer alignment)."""

DEDICATED = 1 << 30
"""What is uploaded and larger has a block of its own, in dedicated memory. Random rows are read
faster out of it than out of memory that is compressed, and compression gains nothing for the
elements of most tables and weights."""
_FIRST_BLOCK = 16 << 20


User: TypeAlias = "weakref.ref[Any] | None"
"""The submitted batch that may still use a gap."""
Gap: TypeAlias = "tuple[int, int, User]"
"""(offset, size, the last user)"""


def _pending(user: User) -> Any:
    """The batch, if the device may still run it."""
    batch = None if user is None else user()
    return None if batch is None or batch.done else batch


def _later(a: User, b: User) -> User:
    """The one of two users that is done last."""
    first, second = _pending(a), _pending(b)
    return a if second is None or (first is not None and first.order > second.order) else b


class Block:
    """One storage buffer on the device."""

    __slots__ = ("buffer", "free", "size", "used")

    def __init__(self, buffer: object, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self.used = 0
        self.free: list[Gap] = [(0, size, None)]
        """The gaps, sorted by offset. No two gaps touch."""

    # take() and give() change the list by one assignment, so an interrupt leaves it valid.

    def take(self, gap: int, taken: Range) -> None:
        """Allocate the beginning of a gap."""
        offset, size, user = self.free[gap]
        nbytes = taken.nbytes
        rest = [(offset + nbytes, size - nbytes, user)] if size > nbytes else []
        self.free[gap : gap + 1], self.used, taken.block = rest, self.used + nbytes, self

    def give(self, taken: Range) -> None:
        """Return a range. It merges with the gaps that it touches."""
        begin, end = taken.offset, taken.offset + taken.nbytes
        user: User = None if taken.last_use is None else weakref.ref(taken.last_use)
        first = after = bisect_left(self.free, (begin, 0, None))
        if after < len(self.free) and self.free[after][0] == end:
            end += self.free[after][1]
            user = _later(user, self.free[after][2])
            after += 1
        if first and sum(self.free[first - 1][:2]) == begin:
            first -= 1
            begin = self.free[first][0]
            user = _later(user, self.free[first][2])
        merged = [(begin, end - begin, user)]
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
    """The last batch that used it, or what lay there before. See :class:`.Batch`."""


class Allocation:
    """A range of a block, while it is referenced. ``on_drop`` gets the Range when the last
    reference goes, in any thread."""

    __slots__ = ("__weakref__", "block", "nbytes", "offset", "on_drop", "range", "writes")

    def __init__(
        self, block: Block, offset: int, nbytes: int,
        on_drop: Callable[[Range], None] | None = None,
    ) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes
        self.on_drop = on_drop
        self.writes = 0
        """Writes that the owner has counted."""
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


class AllocationPart(Allocation):
    """Bytes of an allocation, which stays while one of its parts is referenced."""

    __slots__ = ("whole",)

    def __init__(self, whole: Allocation, begin: int, nbytes: int) -> None:
        self.whole, self.nbytes, self.on_drop, self.writes = whole, nbytes, None, 0
        self.block, self.offset, self.range = whole.block, whole.offset + begin, whole.range


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

    A range may be taken while a submitted batch still uses what lay there: later batches wait for
    it. The new range has that batch as its last use, so that the host waits, too. So the same
    calls find the same places. A block goes when no batch uses it any more.
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
        self.emptied_in_use = False
        """Whether a block has no range any more, but a batch that uses it."""
        self.peak = 0
        """The most bytes that were allocated at once. Who measures sets it to :attr:`used`."""
        self.keep = keep
        """The most bytes of empty blocks that stay."""
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
        ``uploaded``: for elements from the host, which may have to wait where the device still
        uses a gap."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        dedicated = uploaded and size > DEDICATED
        busy: tuple[Block, int] | None = None
        for block in self.blocks if self._shares_blocks and not dedicated else ():
            if block.size - block.used >= size:
                for gap, (_, room, user) in enumerate(block.free):
                    if room < size:
                        continue
                    if not uploaded or _pending(user) is None:
                        return self._take(block, gap, size)
                    busy = busy or (block, gap)
        if busy is not None:
            return self._take(*busy, size)
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
                room >= nbytes for block in self.blocks for _, room, _ in block.free):
            return
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with contextlib.suppress(MemoryError):  # smaller ones may fit
            self.blocks.append(Block(self._make_block(size, False), size))

    def _take(self, block: Block, gap: int, size: int) -> Allocation:
        offset, _, user = block.free[gap]
        allocation = Allocation(block, offset, size, self.dropped.append)
        taken = allocation.range
        taken.last_use = _pending(user)
        self.live[id(taken)] = taken
        block.take(gap, taken)
        self.peak = max(self.peak, self.used)
        return allocation

    def release(self, taken: Range) -> None:
        """Return a range, unless it was returned before. If more than ``keep`` bytes are idle,
        empty blocks go: first those that are too large to keep, then the smallest, because a large
        one serves all requests. One block of the first size may always stay."""
        block = taken.block
        if block is not None:
            block.give(taken)
        self.live.pop(id(taken), None)
        if block is not None and not block.used:
            self.shed()

    def shed(self) -> None:
        """Let empty blocks go as :meth:`release` does. Where a batch uses one, call it again once
        that is done."""
        most = max(self.keep, _FIRST_BLOCK) if self._shares_blocks else 0
        idle = [b for b in self.blocks if not b.used and _pending(b.free[0][2]) is None]
        self.emptied_in_use = len(idle) < sum(not b.used for b in self.blocks)
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
        """Give every empty block back to the device, which must be done with all work."""
        for block in [b for b in self.blocks if not b.used]:
            self._drop(block)
