"""CUDA's driver library, and its device for an adapter."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

from .adapters import Adapter, same_device

NAME = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class CudaDevice(NamedTuple):
    ordinal: int
    """Its number among the devices that CUDA shows to this process."""
    handle: ctypes.c_int


def library() -> Any:
    """The driver library, or None."""
    try:
        return ctypes.CDLL(NAME)
    except OSError:
        return None


def device_of(cuda: ctypes.CDLL, adapter: Adapter) -> CudaDevice | None:
    """Initialize CUDA and find the adapter among its devices."""
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    devices = [_device(cuda, ordinal) for ordinal in range(count.value)]
    ordinal = same_device(adapter, [_uuid(cuda, device) for device in devices])
    return None if ordinal is None else CudaDevice(ordinal, devices[ordinal])


def _device(cuda: ctypes.CDLL, ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    return device


def _uuid(cuda: ctypes.CDLL, device: ctypes.c_int) -> str:
    uuid = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetUuid(uuid, device)
    return uuid.raw.hex()
