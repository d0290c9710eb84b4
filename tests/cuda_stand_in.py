"""A stand-in for CUDA's driver library, on memory that a CPU driver of Vulkan exports.

Its functions are C functions, called with the C types that CUDA's cuda.h declares. Structures are
read at the offsets that a C compiler gives them. Device pointers are addresses of this process.
A stream is a thread, so work is as asynchronous as on a GPU. CPU drivers export no timeline
semaphores: the file descriptors of these name them, and the streams use them by Vulkan's calls.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import struct
import threading
from collections import Counter
from ctypes import CFUNCTYPE, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
import vulkan as vk

UUID = bytes(range(100, 116))
NO_MEMORY, INVALID = 2, 1
SECONDS = 60
"""Longer than the validation layer loses over its faults."""
_WORDS = {NO_MEMORY: b"out of memory", INVALID: b"invalid argument"}
_SEMAPHORES = (c_void_p, c_void_p, c_uint, c_void_p)
_TYPES = {  # as cuda.h declares them
    "cuInit": (c_uint,), "cuDeviceGetCount": (c_void_p,), "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetUuid": (c_void_p, c_int), "cuGetErrorString": (c_int, c_void_p),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int), "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,), "cuCtxPopCurrent_v2": (c_void_p,), "cuCtxSynchronize": (),
    "cuImportExternalMemory": (c_void_p, c_void_p),
    "cuExternalMemoryGetMappedBuffer": (c_void_p, c_void_p, c_void_p),
    "cuMemFree_v2": (c_uint64,), "cuDestroyExternalMemory": (c_void_p,),
    "cuImportExternalSemaphore": (c_void_p, c_void_p),
    "cuSignalExternalSemaphoresAsync": _SEMAPHORES, "cuWaitExternalSemaphoresAsync": _SEMAPHORES,
    "cuDestroyExternalSemaphore": (c_void_p,),
    "cuStreamCreate": (c_void_p, c_uint), "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint), "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p), "cuEventDestroy_v2": (c_void_p,),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
}
_ANYWHERE = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid", "cuGetErrorString",
             "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2"}
CONTEXT = 0xC0FFEE0000  # more than 32 bits, so that a cut handle shows


class _Stream:
    def __init__(self, errors: list[Exception]) -> None:
        self._work: queue.Queue[Any] = queue.Queue()
        self._errors = errors
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                self._errors.append(error)

    def put(self, work: Any) -> None:
        self._work.put(work)

    def synchronize(self) -> None:
        done = threading.Event()
        self.put(done.set)
        assert done.wait(SECONDS), "a stream does not end"


def _write(address: int, value: int) -> None:
    c_uint64.from_address(address).value = value


def _fields(address: int, nbytes: int, form: str, *offsets: int) -> list[int]:
    """Fields of a structure. All its other bytes must be 0."""
    raw = bytearray(ctypes.string_at(address, nbytes))
    values = []
    for kind, offset in zip(form, offsets):
        values += struct.unpack_from(f"={kind}", raw, offset)
        struct.pack_into(f"={kind}", raw, offset, 0)
    assert not any(raw), "bytes that are reserved"
    return values


class StandIn:
    """What ``ctypes.CDLL("libcuda.so.1")`` returns. Functions in ``failing`` return an error."""

    def __init__(self, uuid: bytes = UUID) -> None:
        self.dedicated: list[bool] = []
        """Whether memory that was imported belongs to one buffer."""
        self.uuid = uuid
        self.failing: dict[str, int] = {}
        self.errors: list[Exception] = []
        self.calls: Counter[str] = Counter()
        self.alive: Counter[str] = Counter()
        """Contexts, memory, mappings, semaphores, streams and events that were made and not
        destroyed."""
        self._made: dict[int, Any] = {}
        self._next = CONTEXT + 8
        self._pending: Counter[int] = Counter()
        """Signals and waits of each semaphore that streams have not reached."""
        self._here = threading.local()
        self._signals = threading.Lock()
        self._streams = {1: _Stream(self.errors)}
        self._functions = {n: CFUNCTYPE(c_int, *t)(self._guarded(n)) for n, t in _TYPES.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self._functions[name]
        except KeyError:
            raise AttributeError(f"undefined symbol: {name}") from None

    def _guarded(self, name: str) -> Any:
        work = getattr(type(self), f"_{name}")

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            try:
                assert name in _ANYWHERE or getattr(self._here, "depth", 0), f"{name}: no context"
                if name in self.failing:
                    return self.failing[name]
                work(self, *(a or 0 for a in arguments))
                return 0
            except Exception as error:  # ctypes would only print it
                self.errors.append(error)
                return 999

        return call

    # For tests

    def new_stream(self) -> int:
        self._next += 8
        self._streams[self._next] = _Stream(self.errors)
        return self._next

    def launch(self, stream: int, kernel: Any) -> None:
        self._streams[stream].put(kernel)

    def synchronize(self) -> None:
        for stream in list(self._streams.values()):
            stream.synchronize()

    # The driver's functions

    def _make(self, out: int, kind: str, value: Any) -> None:
        self._next += 8
        self._made[self._next] = value
        self.alive[kind] += 1
        _write(out, self._next)

    def _destroy(self, handle: int, kind: str) -> None:
        del self._made[handle]
        self.alive[kind] -= 1

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDeviceGetCount(self, out: int) -> None:
        c_int.from_address(out).value = 1

    def _cuDeviceGet(self, out: int, ordinal: int) -> None:
        c_int.from_address(out).value = 10 + ordinal

    def _cuDeviceGetUuid(self, out: int, device: int) -> None:
        assert device == 10
        ctypes.memmove(out, self.uuid, 16)

    def _cuGetErrorString(self, status: int, out: int) -> None:
        text = ctypes.c_char_p(_WORDS[status])
        self._made[0] = text
        _write(out, ctypes.cast(text, c_void_p).value or 0)

    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        assert device == 10
        self.alive["context"] += 1
        _write(out, CONTEXT)

    def _cuDevicePrimaryCtxRelease_v2(self, device: int) -> None:
        assert device == 10
        self.alive["context"] -= 1

    def _cuCtxPushCurrent_v2(self, context: int) -> None:
        assert context == CONTEXT
        self._here.depth = getattr(self._here, "depth", 0) + 1

    def _cuCtxPopCurrent_v2(self, out: int) -> None:
        self._here.depth -= 1
        _write(out, CONTEXT)

    def _cuCtxSynchronize(self) -> None:
        self.synchronize()

    def _cuImportExternalMemory(self, out: int, desc: int) -> None:
        kind, fd, size, flags = _fields(desc, 104, "IiQI", 0, 8, 24, 32)
        assert kind == 1 and flags in (0, 1)
        self.dedicated.append(flags == 1)
        whole = mmap.mmap(fd, 0)
        # llvmpipe puts a header before the memory: the bytes of the file, and where it begins.
        of_llvmpipe = "llvmpipe" in os.readlink(f"/proc/self/fd/{fd}")
        begin = struct.unpack("QQ", whole[:16])[1] if of_llvmpipe else 0
        assert begin + size <= len(whole)
        os.close(fd)
        self._make(out, "memory", (whole, begin, size))

    def _cuExternalMemoryGetMappedBuffer(self, out: int, memory: int, desc: int) -> None:
        offset, nbytes = _fields(desc, 88, "QQ", 0, 8)
        whole, begin, size = self._made[memory]
        assert offset + nbytes <= size
        self.alive["mapping"] += 1
        _write(out, ctypes.addressof(ctypes.c_char.from_buffer(whole)) + begin + offset)

    def _cuMemFree_v2(self, address: int) -> None:
        self.alive["mapping"] -= 1

    def _cuDestroyExternalMemory(self, memory: int) -> None:
        assert self.alive["mapping"] < self.alive["memory"], "it is mapped"
        self._destroy(memory, "memory")

    def _cuImportExternalSemaphore(self, out: int, desc: int) -> None:
        kind, fd = _fields(desc, 96, "Ii", 0, 8)
        assert kind == 9
        device, semaphore = struct.unpack("QQ", os.pread(fd, 16, 0))
        os.close(fd)
        self._make(out, "semaphore", (vk.ffi.cast("VkDevice", device),
                                      vk.ffi.cast("VkSemaphore", semaphore)))

    def _semaphore(
        self, semaphores: int, params: int, count: int, stream: int, use: Any
    ) -> None:
        assert count == 1
        value, = _fields(params, 144, "Q", 0)
        handle = c_uint64.from_address(semaphores).value
        device, semaphore = self._made[handle]
        with self._signals:
            self._pending[handle] += 1

        def work() -> None:
            use(device, semaphore, value)
            with self._signals:
                self._pending[handle] -= 1

        self._streams[stream].put(work)

    def _cuSignalExternalSemaphoresAsync(
        self, semaphores: int, params: int, count: int, stream: int
    ) -> None:
        self._semaphore(semaphores, params, count, stream, self._signal)

    def _signal(self, device: Any, semaphore: Any, value: int) -> None:
        with self._signals:
            now = vk.ffi.new("uint64_t *")
            assert vk.lib.vkGetSemaphoreCounterValue(device, semaphore, now) == 0
            assert now[0] < value, f"a signal of {value} after {now[0]}"
            assert vk.lib.vkSignalSemaphore(device, vk.ffi.new("VkSemaphoreSignalInfo *", {
                "sType": vk.VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, "semaphore": semaphore,
                "value": value})) == 0

    def _cuWaitExternalSemaphoresAsync(
        self, semaphores: int, params: int, count: int, stream: int
    ) -> None:
        self._semaphore(semaphores, params, count, stream, self._wait)

    def _wait(self, device: Any, semaphore: Any, value: int) -> None:
        which = vk.ffi.new("VkSemaphore[]", [semaphore])
        values = vk.ffi.new("uint64_t[]", [value])
        info = vk.ffi.new("VkSemaphoreWaitInfo *", {
            "sType": vk.VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, "semaphoreCount": 1,
            "pSemaphores": which, "pValues": values})
        assert vk.lib.vkWaitSemaphores(device, info, SECONDS * 10**9) == 0, "no signal"

    def _cuDestroyExternalSemaphore(self, semaphore: int) -> None:
        assert not self._pending[semaphore], "it is in use"
        self._destroy(semaphore, "semaphore")

    def _cuStreamCreate(self, out: int, flags: int) -> None:
        assert flags == 1
        handle = self.new_stream()
        self.alive["stream"] += 1
        _write(out, handle)

    def _cuStreamDestroy_v2(self, stream: int) -> None:
        self.alive["stream"] -= 1
        self._streams.pop(stream).put(None)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        assert flags == 0
        recorded: threading.Event = self._made[event][0]
        self._streams[stream].put(lambda: recorded.wait(SECONDS))

    def _cuEventCreate(self, out: int, flags: int) -> None:
        assert flags == 2
        self._make(out, "event", [threading.Event()])

    def _cuEventRecord(self, event: int, stream: int) -> None:
        recorded = threading.Event()
        self._made[event][0] = recorded
        self._streams[stream].put(recorded.set)

    def _cuEventDestroy_v2(self, event: int) -> None:
        self._destroy(event, "event")

    def _cuMemcpyDtoDAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._streams[stream].put(lambda: ctypes.memmove(to, source, nbytes))


def array_of(interface: dict[str, Any]) -> np.ndarray:
    """NumPy's array of a CUDA array's memory, which the host can access here."""

    class Host:
        __array_interface__ = {**interface, "version": 3}

    return np.asarray(Host())


def export_semaphores(exporter: type, patch: Any) -> None:
    """Let the file descriptors of semaphores only name them. What Vulkan is asked is checked."""
    create, fd_of = exporter.create, exporter._fd  # type: ignore[attr-defined]

    def timeline(self: Any, exported: Any) -> Any:
        assert exported.sType == vk.VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO
        assert exported.handleTypes == vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
        return create(self, exported.pNext)

    def named(self: Any, name: str, info: Any) -> int:
        if name != "vkGetSemaphoreFdKHR":
            return int(fd_of(self, name, info))
        assert info.sType == vk.VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR
        assert info.handleType == vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
        fd = os.memfd_create("semaphore")
        handles = (int(vk.ffi.cast("uintptr_t", h)) for h in (self.device, info.semaphore))
        os.pwrite(fd, struct.pack("QQ", *handles), 0)
        return fd

    patch.setattr(exporter, "create", timeline)
    patch.setattr(exporter, "_fd", named)
