"""DLPack capsules of CUDA memory, made by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_int, c_int64, c_void_p
from typing import Any

CUDA = 2
"""DLPack's kDLCUDA."""
_NAME = b"dltensor"
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLDataTypeCode by NumPy's kind."""


class _Tensor(Structure):
    """DLTensor."""

    _fields_ = [
        ("data", c_void_p), ("device_type", c_int), ("device_id", c_int), ("ndim", c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]


_lent: dict[int, tuple[Any, ...]] = {}
"""What the consumers of capsules hold, by the address of its _Managed."""

# With types of its own, unlike ctypes.pythonapi, whose library has no other name on all systems.
_api = ctypes.PyDLL(None, handle=ctypes.pythonapi._handle)
_api.PyCapsule_New.argtypes = c_void_p, ctypes.c_char_p, c_void_p
_api.PyCapsule_New.restype = ctypes.py_object
# A capsule that goes has no references left, so it is passed as an address.
_api.PyCapsule_IsValid.argtypes = c_void_p, ctypes.c_char_p
_api.PyCapsule_GetPointer.argtypes = c_void_p, ctypes.c_char_p
_api.PyCapsule_GetPointer.restype = c_void_p


def _delete(address: int) -> None:
    """The consumer needs the memory no longer."""
    _lent.pop(address, None)


def _drop(capsule_address: int) -> None:
    """A capsule goes. Consumers rename those that they take."""
    if _api.PyCapsule_IsValid(capsule_address, _NAME):
        _delete(_api.PyCapsule_GetPointer(capsule_address, _NAME))


_C_DELETE, _C_DROP = _Deleter(_delete), _Deleter(_drop)


def capsule(
    address: int, ordinal: int, dtype: Any, sizes: Sequence[int], strides: Sequence[int],
    owner: object,
) -> Any:
    """A capsule of elements at ``address``, which keeps ``owner``. Strides count elements."""
    shape, steps = (c_int64 * len(sizes))(*sizes), (c_int64 * len(strides))(*strides)
    tensor = _Tensor(
        address, CUDA, ordinal, len(sizes), _CODES[dtype.kind], 8 * dtype.itemsize, 1, shape, steps)
    managed = _Managed(tensor, None, _C_DELETE)
    place = ctypes.addressof(managed)
    _lent[place] = managed, shape, steps, owner
    return _api.PyCapsule_New(place, _NAME, _C_DROP)
