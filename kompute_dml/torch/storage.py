"""Storages of the device: PyTorch copies the bytes of others, whose addresses the host can read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.storage import UntypedStorage

from . import memory

_copy, _clone, _to = UntypedStorage.copy_, UntypedStorage.clone, UntypedStorage.to
_new, _write_file = UntypedStorage.__new__, UntypedStorage._write_file
_set_from_file = UntypedStorage._set_from_file
_resize, _nbytes = UntypedStorage.resize_, UntypedStorage.nbytes


def _is_ours(storage: UntypedStorage) -> bool:
    return storage.device.type == memory.NAME


def tensor(storage: UntypedStorage) -> torch.Tensor:
    """Its bytes as a tensor of UINT8 over the same memory."""
    x = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return x.set_(storage, 0, (storage.nbytes(),), (1,))


@memory.raises_as_torch
def new(nbytes: int) -> UntypedStorage:
    """A storage of the device of undefined contents."""
    return memory.new((nbytes,), torch.uint8).untyped_storage()


def make(
    cls: type[UntypedStorage], *args: Any, device: torch.device | str | int | None = None,
    **other: Any
) -> UntypedStorage:
    """``UntypedStorage(size, device=...)``, for which PyTorch asks a device's allocator."""
    if device is None or torch.device(device).type != memory.NAME:
        return _new(cls, *args, **({} if device is None else {"device": device}), **other)
    (size,) = args or (0,)
    if isinstance(size, int):
        return new(size)
    return to_device(_new(UntypedStorage, size))


def copy_(self: UntypedStorage, source: UntypedStorage, non_blocking: bool | None = None
          ) -> UntypedStorage:
    """Copy bytes between storages of the device and of the host."""
    if not _is_ours(self) and not _is_ours(source):
        return _copy(self, source, bool(non_blocking))
    if self.nbytes():
        tensor(self).copy_(tensor(source))
    return self


def clone(self: UntypedStorage) -> UntypedStorage:
    """A copy in memory of its own."""
    return copy_(new(self.nbytes()), self) if _is_ours(self) else _clone(self)


def to_device(
    self: UntypedStorage, device: torch.device | str | int | None = None,
    non_blocking: bool = False
) -> UntypedStorage:
    """A copy on the device; the storage itself if it lies there."""
    return self if _is_ours(self) else copy_(new(self.nbytes()), self)


def _typed(
    self: torch.storage.TypedStorage, device: torch.device | str | int | None = None,
    non_blocking: bool = False, **other: object
) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=to_device(self._untyped_storage),
                                      dtype=self.dtype, _internal=True)


def to(self: UntypedStorage, *, device: torch.device, non_blocking: bool = False
       ) -> UntypedStorage:
    """A copy on another device; the storage itself if it lies there."""
    wanted = torch.device(device).type
    if memory.NAME not in (wanted, self.device.type):
        return _to(self, device=device, non_blocking=non_blocking)
    if wanted == memory.NAME:
        return to_device(self)
    return copy_(UntypedStorage(self.nbytes(), device=device), self)


def write_file(self: UntypedStorage, file: Any, *form: Any) -> None:
    """Write the bytes to a file, as pickling does."""
    _write_file(to(self, device=_HOST) if _is_ours(self) else self, file, *form)


def set_from_file(self: UntypedStorage, file: Any, *form: Any) -> UntypedStorage:
    """Read the bytes from a file, as unpickling does."""
    if not _is_ours(self):
        return _set_from_file(self, file, *form)
    return copy_(self, _set_from_file(UntypedStorage(self.nbytes()), file, *form))


def resize_(self: UntypedStorage, nbytes: int) -> UntypedStorage:
    """Give the memory back (0 bytes), or take it again with undefined contents, as sharded training
    does. PyTorch's own number of bytes cannot change, so a storage never grows beyond it. Raises
    RuntimeError there."""
    if not _is_ours(self):
        return _resize(self, nbytes)
    most = _nbytes(self)
    if nbytes > most:
        raise RuntimeError(f"{memory.NAME}: a storage made with {most} bytes cannot have {nbytes}; "
                           "resize the tensor instead")
    if not nbytes:
        self.kompute_dml_allocation = None
    elif self.kompute_dml_allocation is None:
        self.kompute_dml_allocation = memory.raises_as_torch(memory.allocate)(most)
    self.kompute_dml_bytes = nbytes
    return self


def nbytes(self: UntypedStorage) -> int:
    """How many bytes there are."""
    held = getattr(self, "kompute_dml_bytes", None)
    return _nbytes(self) if held is None else int(held)


_HOST = torch.device("cpu")


def item(self: UntypedStorage, index: Any) -> Any:
    if not _is_ours(self):
        return _getitem(self, index)
    values: np.ndarray = tensor(self).cpu().numpy()
    return int(values[index])


_getitem = UntypedStorage.__getitem__


def register() -> None:
    """Teach PyTorch's storages about the device."""
    UntypedStorage.copy_ = copy_
    UntypedStorage.clone = clone
    UntypedStorage.to = to
    UntypedStorage.resize_ = resize_
    UntypedStorage.nbytes = UntypedStorage.size = nbytes
    UntypedStorage.__getitem__ = item
    UntypedStorage.__new__ = make
    UntypedStorage._write_file = write_file
    UntypedStorage._set_from_file = set_from_file
    setattr(UntypedStorage, memory.NAME, to_device)
    setattr(torch.storage.TypedStorage, memory.NAME, _typed)
