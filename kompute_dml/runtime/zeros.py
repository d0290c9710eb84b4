"""Memory that is zero whenever no dispatch is at work on it, because each leaves it so.

Workgroups that add up one result and count who comes last need such memory, and to fill it anew
for every dispatch would be a dispatch before it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .heap import ALIGNMENT, Allocation, Slot
from .transfer import Transfer

_BYTES = 4 << 20
"""Enough for some fifty dispatches of four rows by 4,096 columns."""


class Zeros:
    """A ring: ranges follow one another, so that dispatches that need not wait for each other get
    ranges of their own. Where it begins anew, the recorder's hazards keep the order."""

    def __init__(self, allocate: Callable[[int], Allocation], transfer: Transfer) -> None:
        self._allocate = allocate
        self._transfer = transfer
        self._ring: Allocation | None = None
        self._next = 0

    def take(self, nbytes: int) -> Slot:
        """The next range. Callers hold the device's lock."""
        if self._ring is None or nbytes > self._ring.nbytes:
            ring = self._allocate(max(nbytes, _BYTES))
            self._transfer.upload(np.zeros(ring.nbytes, np.uint8), ring, 0)
            self._ring, self._next = ring, 0  # only now: a failed upload leaves what it finds
        if self._next + nbytes > self._ring.nbytes:
            self._next = 0
        begin = self._next
        self._next = -(-(begin + nbytes) // ALIGNMENT) * ALIGNMENT
        return Slot(self._ring, begin)
