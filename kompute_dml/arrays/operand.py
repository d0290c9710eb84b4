"""Operands as tensors of one type, and results that are written to the caller's ``out``."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ..device import Device, default_device, shared_device
from ..dtypes import DataType
from ..errors import NoDeviceError, expect, refuse
from ..functions import functions
from ..functions.call import device_of
from ..tensors import Tensor
from ..tensors.attached import attached
from ..tensors.types import (
    BOOL,
    FLOAT64,
    DataTypeLike,
    DType,
    device_type,
    element_type,
    host_array,
    is_number,
    python_number,
    without_float64,
)
from ..tracing import Tracer

DeviceLike: TypeAlias = "Device | int | str | None"
"""What names a device, see :func:`find_device`."""


def dml(name: str) -> Any:
    """The function of the function level."""
    return functions()[name]


def find_device(device: DeviceLike) -> Device:
    """A Device as it is; the shared device of an index, UUID or name; the default one for None."""
    if isinstance(device, Device):
        return device
    if device == "cpu":
        raise NoDeviceError("device 'cpu': expected a device of Vulkan (dml.list_devices() names "
                            "them); arrays of NumPy's lie on the host, and x.numpy() copies there")
    return default_device() if device is None else shared_device(device)


def as_truth(x: Tensor) -> Tensor:
    """The same bytes, marked as truth values."""
    return x.viewed_as(DataType.UINT8, truth=True)


def as_tensor(value: object, *beside: object) -> Tensor:
    """``value`` as a tensor, on the device of the tensors ``beside`` it."""
    if isinstance(value, Tensor):
        return value
    return device_of(*beside).tensor(host_array(value))


def computed(value: object, *beside: object) -> Tensor:
    """:func:`as_tensor`, of a type that DirectML computes with."""
    x = as_tensor(value, *beside)
    return cast(x, without_float64()) if x.dtype == FLOAT64 else x


def constant(array: np.ndarray, device: Device) -> Tensor:
    """The array as a tensor, which nothing may write."""
    return device.tensor(array) if array.ndim else device.number(array)


def cast(x: Tensor, dtype: DType[np.generic]) -> Tensor:
    """``x`` converted to another type; ``x`` itself if it has that type.

    Floats that an integer type cannot hold wrap, as in NumPy and PyTorch, where DirectML's CAST
    saturates: they pass through a wider one.
    """
    if x.dtype == dtype:
        return x
    if dtype == BOOL:
        if x.dtype == FLOAT64:  # DirectML only moves it
            x = dml("cast")(x, DataType.FLOAT32)
        zero = as_truth(dml("logical_equals")(x, 0))
        return as_truth(dml("logical_not")(zero))
    kind = device_type(dtype)
    if x.data_type is kind:
        return x.viewed_as(kind)
    if not x.data_type.is_float or kind.is_float:
        return dml("cast")(x, kind)
    if kind.bits < 32:
        return dml("cast")(dml("cast")(x, DataType.INT32), kind)
    if kind.is_signed:
        return dml("cast")(x, kind)
    signed = dml("cast")(dml("cast")(x, DataType.INT64), kind)
    if kind.bits == 32:
        return signed
    return dml("if_")(dml("logical_less_than")(x, 0.0), signed, dml("cast")(x, kind))


def operand(value: object, dtype: DType[np.generic], device: Device) -> Any:
    """``value`` as elements of ``dtype``: a tensor, or a Python number as it is."""
    if isinstance(value, Tensor):
        return cast(value, dtype)
    if is_number(value):
        if dtype == BOOL:
            return bool(value)
        return float(value) if dtype.kind == "f" else python_number(value)
    array = host_array(value)
    return constant(array if array.dtype == dtype else array.astype(dtype), device)


def is_expression(x: Tensor) -> bool:
    """Whether it is a result of a graph, without values."""
    return isinstance(x.device, Tracer)


def copied(x: Tensor) -> Tensor:
    """A packed copy on the same device."""
    y = dml("identity")(x)
    return as_truth(y) if x.truth else y


@attached
def astype(x: Tensor, dtype: DataTypeLike | None, copy: bool = True) -> Tensor:
    """``x`` converted to another type. With ``copy`` it is another tensor in any case."""
    y = cast(x, element_type(dtype))
    return copied(y) if copy and y.allocation is x.allocation else y


@attached
def reshape(x: Tensor, *sizes: object) -> Tensor:
    """``x`` with other sizes: a view where possible, else a copy."""
    y = x.reshaped(*sizes)
    if y is None:
        y = copied(x).reshaped(*sizes)
        assert y is not None  # a packed tensor has any sizes
    return y


def meets(out: Tensor, *tensors: object) -> bool:
    """Whether ``out`` shares memory with a tensor that has another layout or begins elsewhere."""
    return any(isinstance(t, Tensor) and t.allocation is out.allocation
               and (t.byte_offset, t.desc) != (out.byte_offset, out.desc) for t in tensors)


def number(value: object, dtype: DType[np.generic]) -> Any:
    """A Python number for ``dtype``. Floats are truncated for integers."""
    if dtype == BOOL:
        return int(bool(value))
    if dtype.kind in "iu" and isinstance(value, float):
        expect(np.isfinite(value), "assignment", "the value", "be finite for integers", value)
        return int(value)
    return value


def store(out: Tensor, value: object) -> Tensor:
    """Write ``value`` to ``out``. It is broadcast and converted, as in NumPy's assignments."""
    if is_number(value):
        value = python_number(value)
        if not out.shape or not out.size:
            return store(out, constant(np.asarray(number(value, out.dtype), out.dtype), out.device)
                         ) if out.size else out
        dml("fill_value_constant")(out.sizes, value=number(value, out.dtype),
                                   data_type=out.data_type, out=out)
        return out
    x = as_tensor(value, out)
    if (x.allocation, x.byte_offset, x.desc) == (out.allocation, out.byte_offset, out.desc):
        return out
    if not out.size:
        np.broadcast_to(np.empty(x.shape, bool), out.shape)
        return out
    if x.ndim > out.ndim and x.sizes[: x.ndim - out.ndim] == (1,) * (x.ndim - out.ndim):
        x = reshape(x, *x.sizes[x.ndim - out.ndim:])
    x = cast(x, out.dtype)
    if meets(out, x):
        x = copied(x)
    dml("identity")(x.broadcast_to(*out.sizes), out=out)
    return out


def result(name: str, y: Tensor, out: Tensor | None) -> Tensor:
    """``y``, or ``out`` after ``y`` is written to it."""
    if out is None:
        return y
    expect(isinstance(out, Tensor), name, "out", "be a Tensor", type(out).__name__)
    if y.sizes != out.sizes:
        refuse(name, "out.sizes", f"be {list(y.sizes)}", list(out.sizes))
    expect(np.can_cast(y.dtype, out.dtype, "same_kind"), name, "out.dtype",
           f"take {y.dtype} (x.astype converts)", out.dtype)
    return store(out, y)
