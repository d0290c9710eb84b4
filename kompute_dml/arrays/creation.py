"""Functions that create tensors, with the spellings of NumPy, CuPy and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import expect, whole
from ..tensors import Tensor
from .operand import as_tensor, as_truth, cast, copied, dml, find_device, number
from .registry import F, array_function, publish, spelled
from .types import BOOL, DataTypeLike, TensorLike, device_type, element_type, host_array


def _publish(*names: str) -> Callable[[F], F]:
    """Publish a function. ``data_type`` is another name for ``dtype``."""
    def register(f: F) -> F:
        f = spelled(f, {"data_type": "dtype"})
        for name in names or (f.__name__,):
            publish(name, f)
        return f

    return register


@_publish("tensor", "array")
def tensor(data: TensorLike, dtype: DataTypeLike | None = None, *, device: Any = None) -> Tensor:
    """A copy of ``data`` on the device.

    Arrays keep their type. Python floats become FLOAT32, integers INT64, truth values bool.
    ``device`` is a Device, or an adapter's index, UUID or name; by default the device of ``data``,
    or the default device.
    """
    kind = None if dtype is None else element_type(dtype)
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
def asarray(data: TensorLike, dtype: DataTypeLike | None = None, *, device: Any = None) -> Tensor:
    """``data`` itself if it is such a tensor, else a copy, as :func:`tensor` makes it."""
    same = isinstance(data, Tensor) and (dtype is None or element_type(dtype) == data.dtype) and (
        device is None or find_device(device) is data.device)
    if same:
        assert isinstance(data, Tensor)
        return data
    return tensor(data, dtype, device=device)


def _sizes(name: str, shape: tuple[Any, ...]) -> list[int]:
    given = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
    return [whole(name, "shape", n) for n in given] or [1]


def _filled(name: str, shape: Any, value: Any, dtype: Any, device: Any) -> Tensor:
    kind = element_type(dtype)
    y = find_device(device).empty(_sizes(name, shape), device_type(kind))
    dml("fill_value_constant")(y.sizes, value=number(value, kind), data_type=y.data_type, out=y)
    return as_truth(y) if kind == BOOL else y


@_publish()
def zeros(*shape: Any, dtype: DataTypeLike = "float32", device: Any = None) -> Tensor:
    """Zeros of these sizes."""
    return _filled("zeros", shape, 0, dtype, device)


@_publish()
def ones(*shape: Any, dtype: DataTypeLike = "float32", device: Any = None) -> Tensor:
    """Ones of these sizes."""
    return _filled("ones", shape, 1, dtype, device)


@_publish()
def full(shape: Any, fill_value: Any, dtype: DataTypeLike | None = None, *,
         device: Any = None) -> Tensor:
    """One number everywhere. The default type is that of :func:`tensor`."""
    kind = host_array(fill_value).dtype if dtype is None else dtype
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    return _filled("full", (shape,), value, kind, device)


@_publish()
def empty(*shape: Any, dtype: DataTypeLike = "float32", device: Any = None) -> Tensor:
    """Undefined contents."""
    kind = element_type(dtype)
    y = find_device(device).empty(_sizes("empty", shape), device_type(kind))
    return as_truth(y) if kind == BOOL else y


@_publish()
def arange(start: float, stop: float | None = None, step: float = 1, *,
           dtype: DataTypeLike | None = None, device: Any = None) -> Tensor:
    """``start + k * step`` below ``stop``: INT64 for integers, else FLOAT32."""
    if stop is None:
        start, stop = 0, start
    expect(step != 0, "arange", "step", "not be 0", step)
    count = math.ceil((stop - start) / step)
    expect(count > 0, "arange", "the range", "have an element (sizes of 0 are not allowed)",
           start, stop)
    kind = host_array([start, stop, step]).dtype if dtype is None else element_type(dtype)
    y = find_device(device).empty([count], device_type(kind))
    first, by = (number(n, kind) for n in (start, step))
    dml("fill_value_sequence")(y.sizes, value_start=first, value_delta=by,
                               data_type=y.data_type, out=y)
    return y


@_publish()
def linspace(start: float, stop: float, num: int = 50, *, dtype: DataTypeLike = "float32",
             device: Any = None) -> Tensor:
    """``num`` numbers at equal distances, both ends included."""
    return tensor(np.linspace(start, stop, num).astype(element_type(dtype)), device=device)


@_publish()
def eye(N: int, M: int | None = None, k: int = 0, *, dtype: DataTypeLike = "float32",
        device: Any = None) -> Tensor:
    """Ones on diagonal ``k``, zeros elsewhere."""
    kind = element_type(dtype)
    sizes = [whole("eye", "N", N), whole("eye", "M", N if M is None else M)]
    y = find_device(device).empty(sizes, device_type(kind))
    dml("diagonal_matrix")(y.sizes, offset=k, data_type=y.data_type, out=y)
    return as_truth(y) if kind == BOOL else y


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
