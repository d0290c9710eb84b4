"""New arrays on the host, in memory of earlier ones that nobody holds any more.

The system fills new pages with zeros, which takes as long as the copy into them. Memory that was
used before has its pages.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

_LEAST, _MOST = 4 << 20, 128 << 20
"""The least and most bytes of an array. The allocator itself keeps the memory of smaller ones."""
_WASTE = 2
"""An array takes memory of at most so many times its bytes."""

_idle: deque[np.ndarray] = deque(maxlen=2)
"""Memory that came back, the latest last. Its operations are atomic: the collector of garbage gives
memory back in the midst of any."""


class _Lent:
    """What all views of an array hold."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
        weakref.finalize(self, _idle.append, memory).atexit = False


def empty(nbytes: int) -> np.ndarray:
    """An array of so many bytes (uint8), whose values are any. Its memory comes back with the last
    view of it."""
    if not _LEAST <= nbytes <= _MOST:
        return np.empty(nbytes, np.uint8)
    memory = _take(nbytes)
    return np.asarray(_Lent(np.empty(nbytes, np.uint8) if memory is None else memory))[:nbytes]


def _take(nbytes: int) -> np.ndarray | None:
    for _ in range(len(_idle)):
        try:
            memory = _idle.pop()
        except IndexError:  # another thread was faster
            return None
        if nbytes <= memory.nbytes <= _WASTE * nbytes:
            return memory
        _idle.appendleft(memory)
    return None
