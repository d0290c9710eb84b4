"""A device's memory as ONNX Runtime sees it: addresses that stand for tensors on the device.

The addresses are never dereferenced. An address finds its contents on the device, or where they
were made: small values from the host wait for the region that reads them, to be uploaded with its
other inputs, and results stay in their plan until its next run.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ..device import shared_device
from ..graph.recorded import Resident, Result
from ..runtime.heap import ALIGNMENT, Slot
from ..runtime.windows import SIZE as SMALL

if TYPE_CHECKING:
    from ..device import Device

FIRST = 1 << 62
"""Addresses begin here, where no processor has memory."""
_BITS = 54
"""Bits of an address within one device."""


def adapter_of(address: int) -> int:
    """The adapter of an address, which is at least FIRST."""
    return (address - FIRST) >> _BITS


class Span:
    """Bytes of a tensor in device memory, in a plan's result, or on the host."""

    __slots__ = ("__weakref__", "at", "device", "end", "lies", "nbytes")

    def __init__(
        self, at: int, nbytes: int, device: Device | None, lies: np.ndarray | Slot | Result
    ) -> None:
        self.at = at
        """Its first address."""
        self.nbytes = nbytes
        self.end = at + nbytes
        self.device = device
        self.lies = lies

    def bytes(self) -> np.ndarray:
        """Its bytes on the host."""
        if isinstance(self.lies, np.ndarray):
            return self.lies
        if isinstance(self.lies, Result):
            return self.lies.values().reshape(-1).view(np.uint8)
        assert self.device is not None
        return self.device.read(self.lies.allocation, self.lies.byte_offset, self.nbytes)

    def copy_to(self, out: np.ndarray) -> None:
        """Copy all of its bytes to the host's ``out``."""
        if isinstance(self.lies, Result):
            self.lies.copy_to(out)
        elif isinstance(self.lies, Slot):
            assert self.device is not None
            self.device.read(self.lies.allocation, self.lies.byte_offset, self.nbytes, out)
        else:
            out[...] = self.lies


class DeviceMemory:
    """The memory of one adapter."""

    def __init__(self, adapter: int) -> None:
        self.adapter = adapter
        self._next = FIRST + (adapter << _BITS)
        self._ranges: dict[int, int] = {}
        """Sizes of allocated ranges by first address."""
        self._pieces: list[Span] = []
        """Pieces sorted by address. No two overlap."""
        self._starts: list[int] = []
        """Their first addresses."""
        self._at: dict[int, Span] = {}
        """The same by first address."""
        self._left: deque[tuple[int, int]] = deque()
        """Addresses and sizes of ranges that were freed while another thread held the lock."""
        self._lock = threading.RLock()
        self.moves = 0
        """How often anything that lay in device memory of its own has gone from its address."""
        self.frees = 0
        """How many ranges were freed."""

    @property
    def count(self) -> int:
        """Allocated ranges: values that ONNX Runtime holds."""
        return len(self._ranges)

    @property
    def used(self) -> int:
        """Allocated bytes."""
        return sum(self._ranges.values())

    def allocate(self, nbytes: int) -> int:
        with self._lock:
            if self._left:
                self._forget_left()
            address = self._next
            self._next += (nbytes // ALIGNMENT + 1) * ALIGNMENT
            self._ranges[address] = nbytes
            return address

    def holds(self, address: int) -> bool:
        """Whether what begins at an address is handed out. No address is handed out twice."""
        return address in self._ranges

    def free(self, address: int) -> None:
        """Give a range back. It waits for no other thread: Python may collect a value in any
        thread, also in one that compiles what the holder of a lock waits for."""
        self._left.append((address, self._ranges.pop(address, 0)))
        self.frees += 1
        if self._lock.acquire(blocking=False):
            try:
                self._forget_left()
            finally:
                self._lock.release()

    def _forget_left(self) -> None:
        while self._left:
            address, nbytes = self._left.popleft()
            self._clear(address, address + nbytes)

    def forget(self, address: int, nbytes: int) -> None:
        """Let nothing lie at an address."""
        with self._lock:
            self._clear(address, address + nbytes)

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy bytes from the host to an address."""
        if data.nbytes <= SMALL:
            self._put(Span(address, data.nbytes, None, data.copy()))
            return
        device = shared_device(self.adapter)
        allocation = device.allocate(data.nbytes, True)  # what is locked takes no keywords
        device.write(allocation, 0, data)
        self._put(Span(address, data.nbytes, device, Slot(allocation, 0)))

    def lend(self, address: int, data: np.ndarray) -> None:
        """Let bytes of the host, which stay as they are until :meth:`settle`, lie at an
        address."""
        self._put(Span(address, data.nbytes, None, data))

    def settle(self, address: int, nbytes: int) -> None:
        """Copy what was lent, as far as it still lies there. Other contents may have taken the
        place of a part."""
        with self._lock:
            begin, end = self._within(address, address + nbytes)
            for piece in self._pieces[begin:end]:
                if isinstance(piece.lies, np.ndarray):
                    piece.lies = piece.lies.copy()

    def put(self, address: int, result: Result) -> None:
        """Put a plan's result at an address."""
        self._put(Span(address, result.nbytes, result.device, result))

    def copy(self, source: int, address: int, nbytes: int) -> None:
        """Copy the contents of an address, on the device if they are there."""
        with self._lock:
            content = self.find(source, nbytes)
            if isinstance(content, Resident):
                self._put(Span(address, nbytes, content.device, content.copied()))
            else:
                self.write(address, content)

    def find(self, address: int, nbytes: int) -> np.ndarray | Resident:
        """The contents of an address, on the device or on the host."""
        with self._lock:
            piece = self._holder(address, nbytes)
            if piece is None or isinstance(piece.lies, np.ndarray) or piece.at % 4 != address % 4:
                return self._read(piece, address, nbytes)
            assert piece.device is not None
            return Resident(piece.device, piece.lies, address - piece.at, nbytes)

    def piece_at(self, address: int) -> Span | None:
        """The piece that begins at an address."""
        return self._at.get(address)

    def owned(self, address: int, nbytes: int) -> Resident:
        """The contents of an address, in memory of their own that a plan may write."""
        with self._lock:
            piece = self._holder(address, nbytes)
            if piece is None or (piece.at, piece.nbytes) != (address, nbytes) or (
                    not isinstance(piece.lies, Slot)):
                lies = self.find(address, nbytes)
                if isinstance(lies, Resident):
                    piece = Span(address, nbytes, lies.device, lies.copied())
                else:
                    device = shared_device(self.adapter)
                    allocation = device.allocate(nbytes, True)
                    device.write(allocation, 0, lies)
                    piece = Span(address, nbytes, device, Slot(allocation, 0))
                self._put(piece)
            assert piece.device is not None and not isinstance(piece.lies, np.ndarray)
            return Resident(piece.device, piece.lies, 0, nbytes)

    def read(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes from an address on. Bytes that were never written are 0."""
        with self._lock:
            return self._read(self._holder(address, nbytes), address, nbytes)

    def _read(self, holder: Span | None, address: int, nbytes: int) -> np.ndarray:
        if holder is not None:
            return holder.bytes()[address - holder.at : address - holder.at + nbytes]
        data, end = np.zeros(nbytes, np.uint8), address + nbytes
        first, after = self._within(address, end)
        for piece in self._pieces[first:after]:
            low, high = max(piece.at, address), min(piece.end, end)
            data[low - address : high - address] = piece.bytes()[low - piece.at : high - piece.at]
        return data

    def read_to(self, address: int, out: np.ndarray) -> None:
        """Copy the bytes from an address on to the host's ``out``."""
        with self._lock:
            piece = self._holder(address, out.nbytes)
            if piece is not None and (piece.at, piece.nbytes) == (address, out.nbytes):
                piece.copy_to(out)
            else:
                out[...] = self.read(address, out.nbytes)

    # Contents by address

    def _within(self, begin: int, end: int) -> tuple[int, int]:
        """Which pieces have bytes of a range: the first one, and the first one after them."""
        starts, first = self._starts, bisect_right(self._starts, begin)
        if first and self._pieces[first - 1].end > begin:
            first -= 1
        after = first
        while after < len(starts) and starts[after] < end:
            after += 1
        return first, after

    def _holder(self, address: int, nbytes: int) -> Span | None:
        """The piece that holds all of the bytes."""
        piece = self._at.get(address)
        if piece is not None and piece.nbytes >= nbytes:
            return piece
        first = bisect_right(self._starts, address) - 1
        if first < 0 or self._pieces[first].end < address + nbytes:
            return None
        return self._pieces[first]

    def _put(self, piece: Span) -> None:
        with self._lock:
            if self._pieces and self._pieces[-1].end > piece.at:
                self._clear(piece.at, piece.end)
            self._insert(piece)

    def _insert(self, piece: Span) -> None:
        place = bisect_right(self._starts, piece.at)
        self._pieces.insert(place, piece)
        self._starts.insert(place, piece.at)
        self._at[piece.at] = piece

    def _clear(self, begin: int, end: int) -> None:
        """Drop the contents of a range. Parts of pieces outside the range are kept."""
        first, after = self._within(begin, end)
        if first == after:
            return
        rest = []
        for piece in self._pieces[first:after]:
            if piece.at < begin or piece.end > end:
                data = piece.bytes()
                if piece.at < begin:
                    rest.append(Span(piece.at, begin - piece.at, None, data[: begin - piece.at]))
                if piece.end > end:
                    rest.append(Span(end, piece.end - end, None, data[end - piece.at :]))
        dropped = self._pieces[first:after]
        del self._pieces[first:after], self._starts[first:after]
        for piece in dropped:
            del self._at[piece.at]
            self.moves += isinstance(piece.lies, Slot)
        for left in rest:
            self._insert(left)
