"""PyTorch's tensors over device memory, without C++ and without a subclass.

PyTorch takes a DLPack capsule of device type ``kDLExtDev`` for a tensor of the registered device
(https://dmlc.github.io/dlpack/latest/c_api.html). Its address stands for memory that the host
cannot read. The allocation hangs on the Python object of the tensor's storage, which PyTorch
keeps for as long as the storage lives. So the capsule has no deleter: no Python code runs when
PyTorch deletes a tensor, in whatever thread. PyTorch copies all else that the capsule says, so few
of them serve all tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from ..desc import TensorDesc
from ..device import Device, default_device
from ..errors import OutOfMemoryError
from ..runtime.heap import Allocation
from ..tensors import Tensor
from . import types

NAME = "kompute"
"""The name of the device type."""
_EXTENSION = 12  # kDLExtDev
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_dltensor = ctypes.create_string_buffer(b"dltensor")
_NAMED = ctypes.addressof(_dltensor)
_HEAD = struct.Struct("@Pii iBBH PPQ PP")
"""DLManagedTensor: address, device type and index, dimensions, element type (code, bits, lanes),
sizes, strides, byte offset, context, deleter."""
_heads: list[_Head] = []
"""Those that no call fills."""
_all_heads: list[ctypes.Array[ctypes.c_char]] = []
"""PyTorch looks for a deleter when a tensor goes, so they stay."""
_addresses = itertools.count(1)
_GAP = 1 << 36
"""Bytes between the addresses of two storages, more than a device's buffers hold."""
_lock = threading.Lock()
_F = TypeVar("_F", bound=Callable[..., Any])


@functools.cache
def opened() -> Device:
    """The device of this package behind ``torch.device("kompute")``, which the first call opens.

    It keeps all memory that it has taken, as PyTorch's allocator of CUDA does. Where a step's
    memory goes in between, the next step has it at other places, for which all is recorded anew.
    """
    it = default_device()
    it.keep_unused(it.adapter.device_memory)
    return it


def device(index: int = 0) -> Device:
    """The same, for an index. Raises DeviceLostError where it is gone, and in a process that was
    forked after it was opened."""
    if index:
        raise NotImplementedError(
            f"{NAME}:{index}: PyTorch's guard of devices registered from Python counts one device")
    it = opened()
    it.recorder.check()
    return it


def new(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A packed tensor of undefined contents."""
    nbytes = math.prod(shape) * types.spec(dtype).itemsize
    return adopt(allocate(nbytes) if nbytes else None, shape, dtype)


def raises_as_torch(function: _F) -> _F:
    """``function``, where PyTorch calls this package. A lack of memory is torch.OutOfMemoryError
    there, with the bytes wanted and the bytes in use."""
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except OutOfMemoryError as error:
            raise torch.OutOfMemoryError(f"{NAME}: {error}") from None

    return cast(_F, call)


def allocate(nbytes: int) -> Allocation:
    """Device memory. Raises OutOfMemoryError with the bytes wanted and the bytes in use."""
    return device().allocate((nbytes + 3) & ~3)


def adopt(
    allocation: Allocation | None, shape: Sequence[int], dtype: torch.dtype,
    strides: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """A tensor of PyTorch's whose storage is ``allocation``, or has no elements. It is packed, or
    has these dense strides."""
    return adopt_as(allocation, form(tuple(shape), dtype, strides))


def adopt_as(allocation: Allocation | None, form: CapsuleForm) -> torch.Tensor:
    """:func:`adopt` for a form that is known."""
    head = _heads.pop() if _heads else _head()
    try:
        head.address[0] = (next(_addresses) % (1 << 26) + 1) * _GAP
        head.rest[:] = form.head
        y: torch.Tensor = _from_dlpack(_capsule(head.place, _NAMED, None))
    finally:
        _heads.append(head)
    y.untyped_storage().kompute_dml_allocation = allocation
    return y


_from_dlpack = torch._C._from_dlpack


class _Head(NamedTuple):
    """Memory of a capsule: where it is, and what lies there."""

    place: int
    address: memoryview
    """The tensor's."""
    rest: memoryview
    """All behind that."""


def _head() -> _Head:
    memory = ctypes.create_string_buffer(_HEAD.size)
    _all_heads.append(memory)
    whole = memoryview(memory).cast("B")
    return _Head(ctypes.addressof(memory), whole[:8].cast("Q"), whole[8:])


class CapsuleForm(NamedTuple):
    """What a capsule says of sizes, strides and type."""

    head: bytes
    """All of it but the tensor's address."""
    numbers: ctypes.Array[ctypes.c_int64]
    """The sizes and strides, whose addresses it has."""


@functools.lru_cache(maxsize=1 << 12)
def form(sizes: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
         ) -> CapsuleForm:
    """What the capsule of a packed tensor says, or of one of these dense strides."""
    spec, rank, values = types.spec(dtype), len(sizes), (*sizes, *(strides or ()))
    numbers = (ctypes.c_int64 * max(len(values), 1))(*values)
    begin = ctypes.addressof(numbers)
    head = _HEAD.pack(0, _EXTENSION, 0, rank, spec.code, spec.bits, 1, begin,
                      begin + 8 * rank if strides else 0, 0, 0, 0)
    return CapsuleForm(head[8:], numbers)


def allocation_of(x: torch.Tensor) -> Allocation:
    """The device memory of a tensor that has elements. Raises RuntimeError where it was given
    back."""
    allocation: Allocation | None = getattr(x.untyped_storage(), "kompute_dml_allocation", None)
    if allocation is None:
        raise RuntimeError(f"{NAME}: a storage without memory: it was resized to 0 bytes, or this "
                           "package has not made it")
    return allocation


def tensor_of(x: torch.Tensor) -> Tensor | None:
    """The elements as this package has them, sizes ``(1,)`` for a scalar. None without elements."""
    if not x.numel():
        return None
    return Tensor(device(), allocation_of(x), x.storage_offset() * x.element_size(), desc_of(x))


def desc_of(x: torch.Tensor) -> TensorDesc:
    """Type, sizes, strides and alignment of a tensor that has elements."""
    offset = x.storage_offset() * x.element_size() & 15
    return _desc(x.dtype, tuple(x.shape), x.stride(), offset & -offset)


@functools.lru_cache(maxsize=1 << 16)
def _desc(dtype: torch.dtype, sizes: tuple[int, ...], strides: tuple[int, ...], alignment: int
          ) -> TensorDesc:
    return TensorDesc(types.data_type(dtype), sizes or (1,), strides or (1,),
                      guaranteed_base_offset_alignment=alignment)


def host_array(x: torch.Tensor) -> np.ndarray:
    """The elements of a tensor of the host, packed, as the device stores them."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    stored = types.spec(x.dtype).stored
    flat = x.reshape(-1)
    if x.dtype in (torch.bool, torch.bfloat16):
        flat = flat.view(torch.uint8 if x.dtype == torch.bool else torch.int16)
    array: np.ndarray = flat.numpy().view(stored)
    return array.reshape(tuple(x.shape) or (1,))


def upload(x: torch.Tensor) -> Tensor | None:
    """A copy of a tensor of the host. None without elements."""
    if not x.numel():
        types.spec(x.dtype)
        return None
    return device().tensor(host_array(x))


_FEW, _MOST_FORMS = 1 << 16, 8
"""The most bytes of a tensor that is uploaded with others, and the most places of a staging."""


class StagedForm:
    """Where tensors of the host of these sizes and types are uploaded. The small ones are one
    transfer, and lie where they lay in the call before: recordings know places."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """For tensors like these, which have elements."""
        self._forms = [(x.dtype, x.shape) for x in tensors]
        self._device = device()
        nbytes = [x.numel() * types.spec(x.dtype).itemsize for x in tensors]
        few = [i for i, n in enumerate(nbytes) if n <= _FEW]
        begins = [0, *itertools.accumulate((nbytes[i] + 15) & ~15 for i in few)]
        words = torch.zeros(begins[-1], dtype=torch.uint8)
        self._words: np.ndarray = words.numpy()
        self._views = [words[at:at + nbytes[i]].view(tensors[i].dtype).view(tensors[i].shape)
                       for at, i in zip(begins, few)]
        """The elements of each small tensor in ``words``."""
        self._few = few if len(few) < len(nbytes) else None
        """Their numbers. None if all are small."""
        self._large = [i for i, n in enumerate(nbytes) if n > _FEW]
        self._copies: list[Any] = [None] * len(nbytes)
        held = self._device.allocate(begins[-1]) if few else None
        for at, i, view in zip(begins, few, self._views):
            self._copies[i] = Tensor(self._device, held, at, desc_of(view))
        self._held = held

    def fits(self, tensors: Sequence[Any]) -> bool:
        """Whether these are tensors of the host, of the sizes and types."""
        for x, (dtype, shape) in zip(tensors, self._forms):
            if not isinstance(x, torch.Tensor) or not x.is_cpu or x.dtype is not dtype or (
                    x.shape != shape):
                return False
        return self._device is device()

    def upload(self, tensors: Sequence[torch.Tensor]) -> list[Tensor]:
        """The copies. The next call writes over the small ones."""
        if self._held is not None:
            few = tensors if self._few is None else [tensors[i] for i in self._few]
            with torch.no_grad():
                torch._foreach_copy_(self._views, few)
            self._device.write(self._held, 0, self._words)
        if not self._large:
            return self._copies
        copies = list(self._copies)
        for i in self._large:
            copies[i] = self._device.tensor(host_array(tensors[i]))
        return copies


class Staging:
    """Copies of tensors of the host that come with each call, by their sizes and types."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], StagedForm] = {}

    def form(self, tensors: Sequence[torch.Tensor]) -> StagedForm:
        """Where such tensors are uploaded."""
        key = tuple([(x.dtype, x.shape) for x in tensors])
        known = self._known.pop(key, None)
        if known is None or not known.fits(tensors):
            known = StagedForm(tensors)
        self._known[key] = known
        if len(self._known) > _MOST_FORMS:
            del self._known[next(iter(self._known))]
        return known


def download(t: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the host with the elements of ``t``."""
    if t is None:
        return torch.empty(tuple(shape), dtype=dtype)
    values = np.ascontiguousarray(t.numpy()).reshape(-1)
    if dtype == torch.bool:
        return torch.from_numpy(values.view(np.uint8) != 0).reshape(tuple(shape))
    if dtype.is_complex:
        return torch.from_numpy(values.view(np.complex64)).reshape(tuple(shape))
    if dtype == torch.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(dtype).reshape(tuple(shape))
    return torch.from_numpy(values).reshape(tuple(shape))


def to_host(x: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of the device on the host. It has what PyTorch notes of ``x`` instead of
    computing it: a conjugate, or an opposite."""
    y = download(tensor_of(x), x.shape, x.dtype)
    if x.is_conj():
        y = torch.conj_physical(y)
    return y.neg() if x.is_neg() else y


def writes(x: torch.Tensor) -> int:
    """How often a tensor's memory was written since it was made."""
    held: Allocation | None = getattr(x.untyped_storage(), "kompute_dml_allocation", None)
    return 0 if held is None else held.writes


class _Writes(threading.local):
    noted: list[Allocation] | None = None


_writes = _Writes()


@contextlib.contextmanager
def noted_writes() -> Iterator[list[Allocation]]:
    """The memories that this thread notes writes to inside the block."""
    outer, _writes.noted = _writes.noted, []
    try:
        yield _writes.noted
    finally:
        _writes.noted = outer


def note_write(held: Allocation) -> None:
    """Count a write to a tensor's memory: ``x.data`` changes without a new version."""
    if _writes.noted is not None:
        _writes.noted.append(held)
    held.writes += 1
