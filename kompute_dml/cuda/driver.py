"""CUDA's driver API, as far as sharing needs it: memory, semaphores, streams, events.

Structures and numbers are those of CUDA 12's ``cuda.h``. Timeline semaphores need CUDA 11.2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from ctypes import POINTER, Structure, Union, c_int, c_uint, c_uint64, c_void_p
from typing import Any

from ..errors import DmlError, UnsupportedError
from ..runtime import libcuda, traits
from ..runtime.adapters import Adapter

LEGACY_STREAM = 1
"""The default stream of libraries. 0 means the same."""

_OPAQUE_FD, _TIMELINE_SEMAPHORE_FD = 1, 9
_DEDICATED = 1  # CUDA_EXTERNAL_MEMORY_DEDICATED
_NON_BLOCKING, _DISABLE_TIMING = 1, 2


class _Handle(Union):
    """A file descriptor, or two pointers of other systems."""

    _fields_ = [("fd", c_int), ("others", c_void_p * 2)]


class MemoryHandleDesc(Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""

    _fields_ = [("type", c_uint), ("handle", _Handle), ("size", c_uint64), ("flags", c_uint),
                ("reserved", c_uint * 16)]


class MemoryBufferDesc(Structure):
    """CUDA_EXTERNAL_MEMORY_BUFFER_DESC."""

    _fields_ = [("offset", c_uint64), ("size", c_uint64), ("flags", c_uint),
                ("reserved", c_uint * 16)]


class SemaphoreHandleDesc(Structure):
    """CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC."""

    _fields_ = [("type", c_uint), ("handle", _Handle), ("flags", c_uint),
                ("reserved", c_uint * 16)]


class SemaphoreParams(Structure):
    """CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, and ..._WAIT_PARAMS: both have the value first."""

    _fields_ = [("value", c_uint64), ("others", c_uint64 * 8), ("flags", c_uint),
                ("reserved", c_uint * 16)]


_OUT = POINTER(c_void_p)
_SEMAPHORES = (_OUT, POINTER(SemaphoreParams), c_uint, c_void_p)
# cuda.h maps names without a version to these. Without types, ctypes would cut pointers.
_CALLS: dict[str, tuple[Any, ...]] = {
    "cuGetErrorString": (c_int, POINTER(ctypes.c_char_p)),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuCtxSynchronize": (),
    "cuImportExternalMemory": (_OUT, POINTER(MemoryHandleDesc)),
    "cuExternalMemoryGetMappedBuffer": (POINTER(c_uint64), c_void_p, POINTER(MemoryBufferDesc)),
    "cuMemFree_v2": (c_uint64,),
    "cuDestroyExternalMemory": (c_void_p,),
    "cuImportExternalSemaphore": (_OUT, POINTER(SemaphoreHandleDesc)),
    "cuSignalExternalSemaphoresAsync": _SEMAPHORES,
    "cuWaitExternalSemaphoresAsync": _SEMAPHORES,
    "cuDestroyExternalSemaphore": (c_void_p,),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, ctypes.c_size_t, c_void_p),
}


class Context:
    """The primary context of an adapter's CUDA device, which PyTorch uses, too.

    Inside ``with context:`` it is the thread's current one.
    """

    def __init__(self, adapter: Adapter) -> None:
        if not traits.has_cuda(adapter):
            raise UnsupportedError(
                f"kompute_dml.cuda: expected a device of NVIDIA's driver, but {adapter.name} has "
                f"the driver {adapter.driver}")
        cuda = libcuda.library()
        if cuda is None:
            raise UnsupportedError(
                f"kompute_dml.cuda: CUDA's driver is not installed (no {libcuda.NAME})")
        device = libcuda.device_of(cuda, adapter)
        if device is None:
            raise UnsupportedError(
                f"kompute_dml.cuda: expected CUDA to see {adapter.name} (UUID {adapter.uuid}), but "
                "none of its devices is that one (CUDA_VISIBLE_DEVICES may hide it)")
        try:
            self._calls = {name: getattr(cuda, name) for name in _CALLS}
        except AttributeError as error:
            raise UnsupportedError(
                f"kompute_dml.cuda: expected the driver of CUDA 11.2 or later ({error})") from None
        for name, types in _CALLS.items():
            self._calls[name].argtypes = types
        self.ordinal = device.ordinal
        self._context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device.handle)
        release = weakref.finalize(
            self, self._calls["cuDevicePrimaryCtxRelease_v2"], device.handle)
        release.atexit = False  # the driver sees to it

    def __enter__(self) -> Context:
        self.call("cuCtxPushCurrent_v2", self._context)
        return self

    def __exit__(self, *_: object) -> None:
        self._calls["cuCtxPopCurrent_v2"](ctypes.byref(c_void_p()))

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver. Raises DmlError with the driver's words."""
        status = self._calls[name](*arguments)
        if status:
            text = ctypes.c_char_p()
            self._calls["cuGetErrorString"](status, ctypes.byref(text))
            said = (text.value or b"unknown error").decode()
            raise DmlError(f"{name}: CUDA error {status}, {said}")

    def make(self, name: str, *arguments: object) -> c_void_p:
        """Call a function that returns a handle by its first argument."""
        handle = c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def stream(self) -> int:
        """A new stream, which does not wait for the default stream."""
        return self.make("cuStreamCreate", _NON_BLOCKING).value or 0

    def event(self) -> c_void_p:
        return self.make("cuEventCreate", _DISABLE_TIMING)

    def synchronize(self) -> None:
        """Wait for all of CUDA's work. A context with an error has none."""
        with contextlib.suppress(DmlError), self:
            self.call("cuCtxSynchronize")

    def destroy(self, *pairs: tuple[str, Any]) -> None:
        """Call these functions with their handles. Errors do not matter: all of it goes."""
        with contextlib.suppress(DmlError), self:
            for name, handle in pairs:
                self._calls[name](handle)


class MemoryMapping:
    """Memory that CUDA has imported. It is mapped while this object is referenced."""

    def __init__(self, context: Context, fd: int, nbytes: int, dedicated: bool) -> None:
        """Takes the file descriptor over. ``dedicated``: the memory belongs to one buffer."""
        desc = MemoryHandleDesc(type=_OPAQUE_FD, handle=_Handle(fd=fd), size=nbytes,
                                flags=_DEDICATED if dedicated else 0)
        with context:
            memory = _imported(context, "cuImportExternalMemory", desc)
            address = c_uint64()
            try:
                context.call("cuExternalMemoryGetMappedBuffer", ctypes.byref(address), memory,
                             MemoryBufferDesc(offset=0, size=nbytes))
            except DmlError:
                context.destroy(("cuDestroyExternalMemory", memory))
                raise
        self.context = context
        self.address: int = address.value
        unmap = weakref.finalize(self, context.destroy, ("cuMemFree_v2", address),
                                 ("cuDestroyExternalMemory", memory))
        unmap.atexit = False


class Semaphore:
    """A timeline semaphore that CUDA has imported. Callers have the context current."""

    def __init__(self, context: Context, fd: int) -> None:
        """Takes the file descriptor over."""
        desc = SemaphoreHandleDesc(type=_TIMELINE_SEMAPHORE_FD, handle=_Handle(fd=fd))
        self.handle = _imported(context, "cuImportExternalSemaphore", desc)
        self._context = context

    def signal(self, value: int, stream: int) -> None:
        """Set it to ``value`` once the stream's work so far is done."""
        self._context.call("cuSignalExternalSemaphoresAsync", ctypes.byref(self.handle),
                           SemaphoreParams(value=value), 1, stream)

    def wait(self, value: int, stream: int) -> None:
        """Make the stream's later work wait for ``value``."""
        self._context.call("cuWaitExternalSemaphoresAsync", ctypes.byref(self.handle),
                           SemaphoreParams(value=value), 1, stream)


def _imported(context: Context, name: str, desc: Any) -> c_void_p:
    """Import what a file descriptor stands for. CUDA owns the descriptor if that succeeds."""
    try:
        return context.make(name, desc)
    except DmlError:
        os.close(desc.handle.fd)
        raise
