"""Functions that create tensors, with the spellings of NumPy, CuPy and PyTorch."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import kompute_dml

from ..device import Device, default_device
from ..errors import ValidationError, expect, whole
from ..functions import functions as directml
from ..tensors import Tensor
from ..tensors.attached import F, attached
from ..tensors.types import BOOL, DataTypeLike, TensorLike, device_type, element_type, host_array
from .operand import (
    DeviceLike,
    as_tensor,
    as_truth,
    astype,
    cast,
    copied,
    dml,
    find_device,
    number,
    store,
)
from .registry import array_function, publish, spelled


def _publish(*names: str) -> Callable[[F], F]:
    """Publish a function. ``data_type`` is another name for ``dtype``."""
    def register(f: F) -> F:
        f = spelled(f, {"data_type": "dtype"})
        for name in names or (f.__name__,):
            publish(name, f)
        return f

    return register


def _holds_tensors(data: object) -> bool:
    return isinstance(data, Tensor) or (isinstance(data, (list, tuple)) and any(
        _holds_tensors(v) for v in data))


def _on_host(data: object) -> Any:
    """Nested lists of tensors, as lists of arrays."""
    if isinstance(data, Tensor):
        return data.numpy()
    if isinstance(data, (list, tuple)):
        items = [_on_host(v) for v in data]
        return np.stack(items) if items and all(isinstance(v, np.ndarray) for v in items) else items
    return data


@_publish("tensor", "array", "from_numpy")
def tensor(
    data: TensorLike, dtype: DataTypeLike | None = None, *, device: DeviceLike = None
) -> Tensor:
    """A copy of ``data`` on the device.

    Arrays keep their type. Python floats become FLOAT32, integers INT64, truth values bool.
    ``device`` is a Device, or an adapter's index, UUID or name; by default the device of ``data``,
    or the default device.
    """
    kind = None if dtype is None else element_type(dtype)
    if isinstance(data, (list, tuple)) and _holds_tensors(data):
        data = _on_host(data)
    if isinstance(data, Tensor):
        there = data.device if device is None else find_device(device)
        if there is not data.device:
            data = there.tensor(data.numpy())
        elif kind is None or kind == data.dtype:
            return copied(data)
        return data if kind is None else cast(data, kind)
    host = host_array(data) if kind is None else np.asarray(data).astype(kind)
    return find_device(device).tensor(host)


@_publish("asarray", "as_tensor")
def asarray(
    data: TensorLike, dtype: DataTypeLike | None = None, *, device: DeviceLike = None
) -> Tensor:
    """``data`` itself if it is such a tensor, else a copy, as :func:`tensor` makes it."""
    same = isinstance(data, Tensor) and (dtype is None or element_type(dtype) == data.dtype) and (
        device is None or find_device(device) is data.device)
    if same:
        assert isinstance(data, Tensor)
        return data
    return tensor(data, dtype, device=device)


@attached
def to(x: Tensor, target: Any) -> Any:
    """``x`` on another device, or with another type; itself if nothing changes. For "cpu", an array
    of NumPy's."""
    if isinstance(target, str) and target == "cpu":
        return x.numpy()
    if isinstance(target, (Device, int)):
        return asarray(x, device=target)
    try:
        return astype(x, target, copy=False)
    except ValidationError:
        if isinstance(target, str):
            return asarray(x, device=target)
        raise


@attached
def to_device(x: Tensor, device: DeviceLike) -> Tensor:
    """``x`` on another device, through the host."""
    return asarray(x, device=device)


@attached
def unpickled(host: np.ndarray, data_type: str) -> Tensor:
    """A pickled tensor, on the default device."""
    return default_device().tensor(host, None if host.dtype == bool else data_type)


def _sizes(name: str, shape: tuple[Any, ...]) -> list[int]:
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
    return [whole(name, "shape", n) for n in sizes]


def _filled(name: str, shape: Any, value: Any, dtype: object, device: DeviceLike) -> Tensor:
    kind = element_type(dtype)
    y = find_device(device).empty(_sizes(name, shape), device_type(kind))
    return store(as_truth(y) if kind == BOOL else y, number(value, kind))


@_publish()
def zeros(*shape: Any, dtype: DataTypeLike = "float32", device: DeviceLike = None) -> Tensor:
    """Zeros of these sizes."""
    return _filled("zeros", shape, 0, dtype, device)


@_publish()
def ones(*shape: Any, dtype: DataTypeLike = "float32", device: DeviceLike = None) -> Tensor:
    """Ones of these sizes."""
    return _filled("ones", shape, 1, dtype, device)


@_publish()
def full(shape: object, fill_value: ArrayLike, dtype: DataTypeLike | None = None, *,
         device: DeviceLike = None) -> Tensor:
    """One number everywhere. The default type is that of :func:`tensor`."""
    kind = host_array(fill_value).dtype if dtype is None else dtype
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    return _filled("full", (shape,), value, kind, device)


@_publish()
def empty(*shape: object, dtype: DataTypeLike = "float32", device: DeviceLike = None) -> Tensor:
    """Undefined contents."""
    kind = element_type(dtype)
    y = find_device(device).empty(_sizes("empty", shape), device_type(kind))
    return as_truth(y) if kind == BOOL else y


@_publish()
def arange(start: float, stop: float | None = None, step: float = 1, *,
           dtype: DataTypeLike | None = None, device: DeviceLike = None) -> Tensor:
    """``start + k * step`` below ``stop``: INT64 for integers, else FLOAT32."""
    if stop is None:
        start, stop = 0, start
    expect(step != 0, "arange", "step", "not be 0", step)
    count = math.ceil((stop - start) / step)
    kind = host_array([start, stop, step]).dtype if dtype is None else element_type(dtype)
    y = find_device(device).empty([max(count, 0)], device_type(kind))
    first, by = (number(n, kind) for n in (start, step))
    if y.size:
        dml("fill_value_sequence")(y.sizes, value_start=first, value_delta=by,
                                   data_type=y.data_type, out=y)
    return y


@_publish()
def linspace(start: float, stop: float, num: int = 50, *, dtype: DataTypeLike = "float32",
             device: DeviceLike = None) -> Tensor:
    """``num`` numbers at equal distances, both ends included."""
    return tensor(np.linspace(start, stop, num).astype(element_type(dtype)), device=device)


@_publish()
def logspace(start: float, stop: float, num: int = 50, base: float = 10.0, *,
             dtype: DataTypeLike = "float32", device: DeviceLike = None) -> Tensor:
    """``num`` powers of ``base``, from ``base ** start`` to ``base ** stop``."""
    return tensor(np.logspace(start, stop, num, base=base).astype(element_type(dtype)),
                  device=device)


@_publish()
def geomspace(start: float, stop: float, num: int = 50, *, dtype: DataTypeLike = "float32",
              device: DeviceLike = None) -> Tensor:
    """``num`` numbers of equal ratios, both ends included."""
    return tensor(np.geomspace(start, stop, num).astype(element_type(dtype)), device=device)


@_publish()
def tri(N: int, M: int | None = None, k: int = 0, *, dtype: DataTypeLike = "float32",
        device: DeviceLike = None) -> Tensor:
    """Ones on diagonal ``k`` and below it, zeros elsewhere."""
    return tensor(np.tri(N, M, k, element_type(dtype)), device=device)


@_publish()
def frombuffer(buffer: Any, dtype: DataTypeLike = "float32", count: int = -1, offset: int = 0, *,
               device: DeviceLike = None) -> Tensor:
    """A copy of the elements in bytes, as numpy.frombuffer reads them."""
    return tensor(np.frombuffer(buffer, element_type(dtype), count, offset), device=device)


@_publish()
def fromiter(values: Iterable[object], dtype: DataTypeLike, count: int = -1, *,
             device: DeviceLike = None) -> Tensor:
    """A vector of what an iterator gives."""
    return tensor(np.fromiter(values, element_type(dtype), count), device=device)


@_publish()
def fromfunction(function: Callable[..., Any], shape: Sequence[int], *,
                 dtype: DataTypeLike = "float32", device: DeviceLike = None) -> Tensor:
    """``function`` of the coordinates of all elements, which are tensors."""
    grid = [tensor(g.astype(element_type(dtype)), device=device) for g in np.indices(shape)]
    return asarray(function(*grid))


@_publish()
def load(file: Any, *, device: DeviceLike = None) -> Tensor:
    """The array of a file that numpy.save wrote."""
    return tensor(np.load(file, allow_pickle=False), device=device)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work of a device, by default the default one."""
    find_device(device).synchronize()


def get_array_module(*arrays: object) -> Any:
    """This module if one of the arrays is a tensor, else NumPy."""
    return kompute_dml if builtins.any(isinstance(x, Tensor) for x in arrays) else np


publish("synchronize", synchronize)
publish("get_array_module", get_array_module)


@_publish()
def asnumpy(x: TensorLike) -> np.ndarray:
    """A copy on the host; also ``x.numpy()``."""
    return x.numpy() if isinstance(x, Tensor) else np.asarray(x)


@_publish("ascontiguousarray")
def ascontiguousarray(x: TensorLike, dtype: DataTypeLike | None = None) -> Tensor:
    """``x`` itself if it is packed, else a packed copy."""
    return asarray(x, dtype).contiguous()


@_publish()
def indices(dimensions: Sequence[int], *, dtype: DataTypeLike = "int64",
            device: DeviceLike = None) -> Tensor:
    """The coordinates of all elements, one tensor for each dimension, stacked."""
    return tensor(np.indices(tuple(dimensions), element_type(dtype)), device=device)


@_publish()
def eye(N: int, M: int | None = None, k: int = 0, *, dtype: DataTypeLike = "float32",
        device: DeviceLike = None) -> Tensor:
    """Ones on diagonal ``k``, zeros elsewhere."""
    kind = element_type(dtype)
    sizes = [whole("eye", "N", N), whole("eye", "M", N if M is None else M)]
    y = find_device(device).empty(sizes, device_type(kind))
    if y.size:
        dml("diagonal_matrix")(y.sizes, offset=k, data_type=y.data_type, out=y)
    return as_truth(y) if kind == BOOL else y


def identity(n: TensorLike, dtype: DataTypeLike = "float32", *, device: DeviceLike = None,
             scale_bias: object = None, out: Tensor | None = None) -> Tensor:
    """The square matrix of ``n`` rows with ones on its diagonal, as numpy.identity. Of a tensor or
    an array, a copy by DirectML's function of this name:"""
    if isinstance(n, (int, np.integer)) and not isinstance(n, bool):
        return eye(int(n), dtype=dtype, device=device)
    return dml("identity")(n, scale_bias=scale_bias, out=out)


identity.__doc__ = f"{identity.__doc__}\n\n{directml()['identity'].__doc__}"
publish("identity", identity)


@array_function()
def zeros_like(x: TensorLike, dtype: DataTypeLike | None = None) -> Tensor:
    """Zeros with the sizes and the type of ``x``."""
    return full_like(x, 0, dtype)


@array_function()
def ones_like(x: TensorLike, dtype: DataTypeLike | None = None) -> Tensor:
    """Ones with the sizes and the type of ``x``."""
    return full_like(x, 1, dtype)


@array_function()
def full_like(x: TensorLike, fill_value: Any, dtype: DataTypeLike | None = None) -> Tensor:
    """One number everywhere, with the sizes and the type of ``x``."""
    t = as_tensor(x)
    return _filled("full_like", (t.sizes,), fill_value, t.dtype if dtype is None else dtype,
                   t.device)


@array_function()
def empty_like(x: TensorLike, dtype: DataTypeLike | None = None) -> Tensor:
    """Undefined contents, with the sizes and the type of ``x``."""
    t = as_tensor(x)
    return empty(t.sizes, dtype=t.dtype if dtype is None else dtype, device=t.device)
