"""Memory that is zero before each dispatch, because each dispatch leaves it zero.

Workgroups that add up one result and find out which is last need such memory. Filling it before
each dispatch would take another dispatch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .heap import ALIGNMENT, Allocation, Slot
from .transfer import Transfer

_BYTES = 4 << 20
"""Bytes for about fifty dispatches of four rows by 4,096 columns."""


class Zeros:
    """A ring of ranges, so that independent dispatches get different ones. When ranges are reused,
    the recorder's hazards order the dispatches."""

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
            self._ring, self._next = ring, 0  # last: a failed upload changes nothing
        if self._next + nbytes > self._ring.nbytes:
            self._next = 0
        begin = self._next
        self._next = -(-(begin + nbytes) // ALIGNMENT) * ALIGNMENT
        return Slot(self._ring, begin)
