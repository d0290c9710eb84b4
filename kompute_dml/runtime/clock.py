"""Keeping an NVIDIA GPU's clock up between submits.

Without CUDA, NVIDIA's driver lowers the clock of the multiprocessors (an H200's from 1980 to
345 MHz) as soon as the host leaves gaps between submits. A CUDA context in any process prevents it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from .adapters import Adapter, same_device


@contextlib.contextmanager
def held(adapter: Adapter) -> Iterator[bool]:
    """Hold a CUDA context on the device inside the block, if it has NVIDIA's driver and CUDA is
    installed. Yields whether a context is held."""
    cuda = _library() if adapter.driver == "NVIDIA" else None
    device = None if cuda is None else _retain(cuda, adapter)
    try:
        yield device is not None
    finally:
        if cuda is not None and device is not None:
            cuda.cuDevicePrimaryCtxRelease(device)


def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _retain(cuda: Any, adapter: Adapter) -> ctypes.c_int | None:
    """Retain a context on the adapter. Returns its CUDA device, or None."""
    count, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    devices = [_device(cuda, ordinal) for ordinal in range(count.value)]
    ordinal = same_device(adapter, [_uuid(cuda, device) for device in devices])
    if ordinal is None or cuda.cuDevicePrimaryCtxRetain(
            ctypes.byref(context), devices[ordinal]):
        return None
    return devices[ordinal]


def _device(cuda: Any, ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    return device


def _uuid(cuda: Any, device: ctypes.c_int) -> str:
    uuid = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetUuid(uuid, device)
    return uuid.raw.hex()
