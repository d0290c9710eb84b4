"""Keeping a GPU's clock up between submits.

Without a CUDA context, a driver that has CUDA, too, lowers the clock of the multiprocessors (an
H200's from 1980 to 345 MHz) as soon as the host leaves gaps between submits. A context in any
process prevents it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from . import libcuda, traits
from .adapters import Adapter


@contextlib.contextmanager
def held(adapter: Adapter) -> Iterator[bool]:
    """Hold a CUDA context on the device inside the block, if its driver has CUDA, too, and CUDA is
    installed. Yields whether a context is held."""
    cuda = libcuda.library() if traits.has_cuda(adapter) else None
    device = None if cuda is None else _retain(cuda, adapter)
    try:
        yield device is not None
    finally:
        if cuda is not None and device is not None:
            cuda.cuDevicePrimaryCtxRelease(device)


def _retain(cuda: ctypes.CDLL, adapter: Adapter) -> ctypes.c_int | None:
    """Retain a context on the adapter. Returns its CUDA device, or None."""
    context = ctypes.c_void_p()
    device = libcuda.device_of(cuda, adapter)
    if device is None or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.handle):
        return None
    return device.handle
