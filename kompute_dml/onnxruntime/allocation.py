"""ONNX Runtime's allocators and data transfer for the device, and the kernels of copies between
nodes of different providers."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from ..errors import DmlError
from . import capi, identity
from .arguments import copied
from .capi import CData, api, callback, ffi, guarded
from .memory import FIRST, DeviceMemory, adapter_of

_DEFAULT, _DEVICE_ALLOCATOR = 0, 0
_CPU, _GPU = 0, 1
_CPU_OUTPUT, _CPU_INPUT = -1, -2  # OrtMemType
_NEWEST = 0x7FFFFFFF
_POINTER = ffi.typeof("void *")
_FIXED_SIZE = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16)
"""Element types that copies support: all except strings, complex types and types below a byte."""


class ProviderMemory:
    """The memory of an adapter, and ONNX Runtime's descriptions of it."""

    def __init__(self, adapter: int) -> None:
        self.bytes = DeviceMemory(adapter)
        self._adapter = adapter
        self._infos: dict[identity.Identity, Any] = {}

    @property
    def info(self) -> Any:
        """The description under the provider's current identity."""
        who = identity.current()
        if who not in self._infos:
            self._infos[who] = api().get(
                api().CreateMemoryInfo_V2, "void *", who.memory.encode(), _GPU, who.vendor,
                self._adapter, _DEFAULT, 0, _DEVICE_ALLOCATOR)
        return self._infos[who]


memories: dict[int, ProviderMemory] = {}
"""Memories by adapter. They live as long as the process, because tensors may outlive sessions."""


def memory(adapter: int) -> ProviderMemory:
    """The memory of an adapter."""
    if adapter not in memories:
        memories[adapter] = ProviderMemory(adapter)
    return memories[adapter]


@functools.cache
def _host_info() -> Any:
    return api().get(api().CreateMemoryInfo_V2, "void *", b"Cpu", _CPU, 0, 0, _DEFAULT, 0,
                     _DEVICE_ALLOCATOR)


def host_device() -> Any:
    """ONNX Runtime's memory device of the host."""
    return api().MemoryInfo_GetMemoryDevice(_host_info())


def found(address: int) -> DeviceMemory | None:
    """The device memory that an address belongs to; None for host memory."""
    return memories[adapter_of(address)].bytes if address >= FIRST else None


def holds(address: int) -> bool:
    """Whether a tensor on a device begins at an address."""
    return address >= FIRST and memories[adapter_of(address)].bytes.holds(address)


def frees() -> tuple[int, ...]:
    """How many tensors of each device were freed."""
    return tuple([memory.bytes.frees for memory in memories.values()])


def _adapter(device: CData) -> int | None:
    """The adapter of ONNX Runtime's memory device; None if it is not ours."""
    ort = api()
    if ort.MemoryDevice_GetDeviceType(device) != _GPU or (
            ort.MemoryDevice_GetVendorId(device) != identity.current().vendor):
        return None
    number: int = ort.MemoryDevice_GetDeviceId(device)
    return number if number in memories else None


# Allocators


class Allocator:
    """Allocates addresses of one memory."""

    def __init__(self, memory: ProviderMemory) -> None:
        self.memory = memory
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Allocator *", {
            "version": capi.API_VERSION, "Alloc": _alloc, "Free": _free, "Info": _info,
            "Reserve": _alloc, "self": self.handle,
        })


def create_allocator(info: CData) -> Any:
    """The allocator of the memory that ``info`` describes; null for host memory."""
    number = None if info == ffi.NULL else _adapter(api().MemoryInfo_GetMemoryDevice(info))
    if number is None:
        return ffi.NULL
    return ffi.cast("void *", capi.keep(Allocator(memories[number])))


@callback("uintptr_t(Allocator *, size_t)")
def _alloc(this: CData, nbytes: int) -> int:
    address: int = ffi.from_handle(this.self).memory.bytes.allocate(nbytes)
    return address


@callback("void(Allocator *, uintptr_t)")
def _free(this: CData, address: int) -> None:
    if address:
        ffi.from_handle(this.self).memory.bytes.free(address)


@callback("const void *(const Allocator *)")
def _info(this: CData) -> Any:
    return ffi.from_handle(this.self).memory.info


# Copies


class ProviderTransfer:
    """Copies between the host and the devices."""

    def __init__(self) -> None:
        self.table = ffi.new("Transfer *", {
            "version": capi.API_VERSION, "Release": _release_transfer, "CanCopy": _can_copy,
            "CopyTensors": _copy_tensors,
        })


@callback("void(Transfer *)")
def _release_transfer(this: CData) -> None:
    capi.let_go(this)


@callback("bool(const Transfer *, const void *, const void *)")
def _can_copy(this: CData, source: CData, target: CData) -> bool:
    """Whether both are the host or devices of ours."""
    first, second = _adapter(source), _adapter(target)
    if first is not None:
        return second is not None or api().MemoryDevice_GetDeviceType(target) == _CPU
    return second is not None and api().MemoryDevice_GetDeviceType(source) == _CPU


class _SessionRuns(threading.local):
    """The runs of sessions in this thread."""

    def __init__(self) -> None:
        self.count = 0
        self.lent: list[tuple[DeviceMemory, int, int]] = []
        """Memories, addresses and sizes of inputs that the host lends."""


_runs = _SessionRuns()


def begin_run() -> None:
    """Note that a run begins: what it copies to a device stays unchanged on the host until its
    end."""
    _runs.count += 1


def lend(memory: DeviceMemory, address: int, data: np.ndarray) -> None:
    """Let an input of the current run lie at an address without a copy."""
    memory.lend(address, data)
    _runs.lent.append((memory, address, data.nbytes))


def end_run() -> None:
    """Note that a run ends, whose inputs may change from now on."""
    _runs.count -= 1
    if not _runs.count:
        while _runs.lent:
            memory, address, nbytes = _runs.lent.pop()
            memory.settle(address, nbytes)


@guarded("(Transfer *, void **, void **, void **, size_t)")
def _copy_tensors(this: CData, sources: CData, targets: CData, streams: CData, count: int) -> None:
    stays = _runs.count > 0
    for source, target in zip(copied(sources, count), copied(targets, count)):
        _copy(source, target, stays=stays)


def _copy(source: tuple[int, int], target: tuple[int, int], *, stays: bool = False) -> None:
    """Copy a tensor, of which addresses and bytes are given. ``stays``: it does not change until
    the current run ends."""
    first, nbytes = source
    second, room = target
    if nbytes != room:
        raise DmlError("a tensor is copied to one of another size")
    if not nbytes:
        return
    whence, whither = found(first), found(second)
    if whence is not None and whence is whither:
        whence.copy(first, second, nbytes)
        return
    if whither is not None and whence is None and stays:
        lend(whither, second, host(first, nbytes))
    elif whither is not None:
        whither.write(second, host(first, nbytes) if whence is None else whence.read(first, nbytes))
    elif whence is not None:
        whence.read_to(first, host(second, nbytes))
    else:
        host(second, nbytes)[...] = host(first, nbytes)


def host(address: int, nbytes: int) -> np.ndarray:
    """The host's bytes at an address."""
    return np.frombuffer(ffi.buffer(ffi.cast(_POINTER, address), nbytes), np.uint8)


# Kernels of the copies between providers


@guarded("(CopyKernel *, void *)")
def _compute_copy(this: CData, context: CData) -> None:
    ort = api()
    source, target = ffi.new("void **"), ffi.new("void **")
    ort.check(ort.KernelContext_GetInput(context, 0, source))
    sizes = ort.sizes(source[0])
    ort.check(ort.KernelContext_GetOutput(context, 0, sizes, len(sizes), target))
    (one,), (other,) = copied(source, 1), copied(target, 1)
    _copy(one, other)


@callback("void(CopyKernel *)")
def _release_copy(this: CData) -> None:
    pass  # there is only one


_copy_kernel = ffi.new("CopyKernel *", {
    "version": capi.API_VERSION, "Compute": _compute_copy, "Release": _release_copy})


@guarded("(void *, const void *, CopyKernel **)")
def _create_copy(state: CData, info: CData, out: CData) -> None:
    out[0] = _copy_kernel


def copy_kernels(provider: CData) -> Any:
    """A registry of the copies to and from the host, for the provider of this name (a char[])."""
    ort = api()
    registry = ort.get(ort.CreateKernelRegistry, "void *")
    types = [ort.get(ort.GetTensorDataType, "const void *", n) for n in _FIXED_SIZE]
    for name, on_host in ((b"MemcpyFromHost", _CPU_INPUT), (b"MemcpyToHost", _CPU_OUTPUT)):
        builder = ort.get(ort.CreateKernelDefBuilder, "void *")
        try:
            ort.check(ort.KernelDefBuilder_SetOperatorType(builder, name))
            ort.check(ort.KernelDefBuilder_SetDomain(builder, b""))
            ort.check(ort.KernelDefBuilder_SetSinceVersion(builder, 1, _NEWEST))
            ort.check(ort.KernelDefBuilder_SetExecutionProvider(builder, provider))
            place = (ort.KernelDefBuilder_SetInputMemType if on_host == _CPU_INPUT
                     else ort.KernelDefBuilder_SetOutputMemType)
            ort.check(place(builder, 0, on_host))
            ort.check(ort.KernelDefBuilder_AddTypeConstraint(builder, b"T", types, len(types)))
            kernel = ort.get(ort.KernelDefBuilder_Build, "void *", builder)
            ort.check(ort.KernelRegistry_AddKernel(registry, kernel, _create_copy, ffi.NULL))
            ort.ReleaseKernelDef(kernel)
        finally:
            ort.ReleaseKernelDefBuilder(builder)
    return registry
