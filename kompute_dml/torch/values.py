"""Values that lowerings take and return, and what most of them are made of.

A :class:`Value` holds a tensor or a graph's expression, with PyTorch's sizes and type. This
package's functions take both, so one lowering serves eager calls and graphs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

import kompute_dml as dml

from ..desc import TensorDesc
from ..dtypes import DataType
from ..layout import bounds, broadcast_sizes
from ..sizes import whole
from ..tensors import Tensor
from .types import Unsupported, data_type, floating, is_integer, spec

BOOL, I32, I64, F32 = torch.bool, torch.int32, torch.int64, torch.float32
MOST_PAIRS = 1 << 26
"""The most pairs of elements that a scan, a search or a product of integers looks at."""
Number: TypeAlias = "bool | int | float"
Sizes: TypeAlias = "Sequence[int]"


class Value:
    """A tensor as PyTorch describes it. ``data`` is None where it has no elements, and has sizes
    ``(1,)`` for a scalar. Raises Unsupported where its elements have another type: functions give
    FLOAT32 for types that they compute nothing with."""

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, data: Tensor | None, shape: Sizes, dtype: torch.dtype) -> None:
        if data is not None and data.data_type is not data_type(dtype):
            raise Unsupported(f"{dtype}, of which a function makes {data.data_type.name}")
        self.data, self.shape, self.dtype = data, tuple(map(whole, shape)), dtype

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def elements(self) -> Tensor:
        """``data`` of a value that has elements."""
        if self.data is None:
            raise Unsupported(f"no elements: {self!r}")
        return self.data


Operand: TypeAlias = "Value | Number"


def value(data: Tensor, shape: Sizes, dtype: torch.dtype) -> Value:
    """A function's result. Truth values become bytes."""
    if data.truth:
        data = data.viewed_as(data.data_type, False)
    wanted = tuple(map(whole, shape))
    if tuple(data.desc.sizes) != (wanted or (1,)):
        data = data.reshape(wanted or (1,))
    return Value(data, wanted, dtype)


def empty(shape: Sizes, dtype: torch.dtype) -> Value:
    """A value without elements."""
    return Value(None, shape, dtype)


def full(shape: Sizes, number: Number, dtype: torch.dtype) -> Value:
    """One element that is read as often as needed."""
    if dtype.is_complex and isinstance(number, (bool, int, float, complex)):
        spec(dtype)
        number, stored = int(np.complex64(number).view(np.uint64)), torch.uint64
        return Value(full(shape, number, stored).data, shape, dtype)
    if not isinstance(number, (bool, int, float)):
        raise Unsupported(f"elements of {type(number).__name__}")
    if not math.prod(shape):
        spec(dtype)
        return empty(shape, dtype)
    if dtype == torch.bfloat16:
        return cast(full(shape, number, F32), dtype)
    if dtype == BOOL:
        number = int(bool(number))
    elif not dtype.is_floating_point:
        number = int(number)
        bits = spec(dtype).bits
        number &= (1 << bits) - 1
        if is_integer(dtype) and dtype.is_signed and number >> (bits - 1):
            number -= 1 << bits
    else:
        number = float(number)
        if dtype == torch.float16 and abs(number) > 65504 and not math.isinf(number):
            number = math.copysign(math.inf, number)
    one = dml.fill_value_constant([1] * max(len(shape), 1), value=number,
                                  data_type=data_type(dtype))
    return Value(one.broadcast_to(tuple(map(whole, shape)) or (1,)), shape, dtype)


def constant(array: np.ndarray, dtype: torch.dtype) -> Value:
    """These elements, which must be of the stored type."""
    shape = array.shape
    if not array.size:
        return empty(shape, dtype)
    tensor = dml.default_device().tensor(array.reshape(shape or (1,)))
    return Value(tensor, shape, dtype)


# Views


def resized(x: Value, shape: Sizes) -> Value:
    """The same elements with other sizes."""
    shape = tuple(map(whole, shape))
    if shape == x.shape:
        return x
    return Value(None if x.data is None else x.data.reshape(shape or (1,)), shape, x.dtype)


def expanded(x: Value, shape: Sizes) -> Value:
    """Broadcast; -1 keeps a size."""
    extra = len(shape) - x.ndim
    if extra < 0:
        raise RuntimeError(f"expected {x.ndim} sizes or more for a tensor of the sizes "
                           f"{list(x.shape)}, but got {list(shape)}")
    shape = tuple(x.shape[i - extra] if n == -1 else whole(n) for i, n in enumerate(shape))
    if x.data is None or shape == x.shape:
        return Value(x.data, shape, x.dtype)
    if not math.prod(shape):
        return empty(shape, x.dtype)
    return Value(x.data.broadcast_to(shape or (1,)), shape, x.dtype)


def window(x: Value, dim: int, start: int, end: int, step: int = 1) -> Value:
    """A slice of one dimension, clamped as Python clamps it."""
    dim %= x.ndim
    shape = list(x.shape)
    start, shape[dim], step = bounds(slice(start, end, step), x.shape[dim])
    if not math.prod(shape):
        return empty(shape, x.dtype)
    key = (*[slice(None)] * dim, slice(start, start + (shape[dim] - 1) * step + 1, step))
    return Value(x.elements.window(key), shape, x.dtype)


def permuted(x: Value, dims: Sizes) -> Value:
    dims = [d % max(x.ndim, 1) for d in dims]
    shape = [x.shape[d] for d in dims]
    if x.data is None or x.ndim < 2:
        return Value(x.data, shape, x.dtype)
    return Value(x.data.transpose(*dims), shape, x.dtype)


def moved_last(x: Value, dim: int) -> Value:
    return permuted(x, [*[d for d in range(x.ndim) if d != dim], dim])


def moved_from_last(x: Value, dim: int) -> Value:
    order = list(range(x.ndim - 1))
    order.insert(dim, x.ndim - 1)
    return permuted(x, order)


def packed(t: Tensor) -> Tensor:
    """The tensor, or a packed copy."""
    return t if t.desc.is_packed else dml.identity(t)


# Types


def low_bits(t: Tensor, wanted: DataType) -> Tensor:
    """A view of the low bits of each integer: how C and PyTorch make integers narrower."""
    ratio = t.data_type.bits // wanted.bits
    if ratio == 1:
        return t.viewed_as(wanted)
    desc = TensorDesc(wanted, t.desc.sizes, tuple(ratio * s for s in t.desc.strides),
                      guaranteed_base_offset_alignment=t.desc.guaranteed_base_offset_alignment)
    return type(t)(t.device, t.allocation, t.byte_offset, desc)


def pairs(x: Value) -> Value:
    """A view of complex numbers: their real and imaginary parts in a new last dimension."""
    shape = (*x.shape, 2)
    if x.data is None:
        return empty(shape, F32)
    t = x.data
    strides = [2 * s for s in t.desc.strides] if x.ndim else []
    return Value(_seen(t, DataType.FLOAT32, shape, (*strides, 1)), shape, F32)


def parts(x: Value) -> tuple[Value, Value]:
    """Real and imaginary parts of complex numbers, as views."""
    both = pairs(x)
    real, imaginary = (resized(window(both, -1, i, i + 1), x.shape) for i in (0, 1))
    return real, imaginary


def paired(t: Tensor, shape: Sizes) -> Value:
    """Packed real and imaginary parts as complex numbers of these sizes."""
    strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    seen = _seen(t, DataType.UINT64, shape or (1,), strides or (1,))
    return Value(seen, shape, torch.complex64)


def _seen(t: Tensor, data_type: DataType, sizes: Sizes, strides: Sizes) -> Tensor:
    desc = TensorDesc(data_type, tuple(sizes), tuple(strides),
                      guaranteed_base_offset_alignment=t.desc.guaranteed_base_offset_alignment)
    return type(t)(t.device, t.allocation, t.byte_offset, desc)


_SIGNED = {8: I32, 16: I32, 32: I32, 64: I64}


def cast(x: Value, dtype: torch.dtype) -> Value:
    """Convert as PyTorch does: integers wrap around, whatever is not 0 is true."""
    if x.dtype == dtype:
        return x
    spec(dtype)
    if x.data is None:
        return empty(x.shape, dtype)
    if dtype.is_complex:
        real = resized(cast(x, F32), (*x.shape, 1))
        return paired(dml.join([real.elements, full(real.shape, 0.0, F32).elements], axis=x.ndim),
                      x.shape)
    if x.dtype.is_complex:
        real, imaginary = parts(x)
        if dtype != BOOL:
            return cast(real, dtype)
        either = dml.logical_or(cast(real, BOOL).elements, cast(imaginary, BOOL).elements)
        return value(either, x.shape, BOOL)
    if x.dtype == torch.bfloat16:
        return cast(_from_bfloat16(x), dtype)
    if dtype == torch.bfloat16:
        return _to_bfloat16(cast(x, F32))
    if dtype == BOOL:
        zero = value(dml.logical_equals(x.data, 0), x.shape, BOOL)
        return value(dml.logical_not(zero.elements), x.shape, BOOL)
    t, wanted = x.data, data_type(dtype)
    if not dtype.is_floating_point:
        if x.dtype.is_floating_point and wanted.bits < 32:
            t = dml.cast(t, DataType.INT32)
        if not x.dtype.is_floating_point or wanted.bits < 32:
            if wanted.bits <= t.data_type.bits:
                return Value(low_bits(t, wanted), x.shape, dtype)
            signed = data_type(_SIGNED[wanted.bits])
            t = dml.cast(t, signed)
            return Value(low_bits(t, wanted), x.shape, dtype)
    return Value(dml.cast(t, wanted), x.shape, dtype)


def _from_bfloat16(x: Value) -> Value:
    words = dml.bit_shift_left(dml.cast(x.elements, DataType.UINT32), 16)
    return Value(words.viewed_as(DataType.FLOAT32), x.shape, F32)


def _to_bfloat16(x: Value) -> Value:
    """Round to the nearest, ties to even; NaN stays NaN."""
    words = packed(x.elements).viewed_as(DataType.UINT32)
    odd = dml.bit_and(dml.bit_shift_right(words, 16), 1)
    rounded = dml.bit_shift_right(dml.add(dml.add(words, 0x7FFF), odd), 16)
    magnitude = dml.bit_and(words, 0x7FFFFFFF)
    nan = value(dml.logical_greater_than(magnitude, 0x7F800000), x.shape, BOOL)
    rounded = dml.if_(nan.elements, full(x.shape, 0x7FC0, torch.uint32).elements, rounded)
    return Value(low_bits(rounded, DataType.UINT16), x.shape, torch.bfloat16)


def rounded_once(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering of several functions, computed in FLOAT32 if its floats are all FLOAT16, or all
    BFLOAT16: each function would round."""
    @functools.wraps(lowering)
    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Value)
                   and x.dtype.is_floating_point]
        types = {x.dtype for x in tensors}
        if types not in ({torch.float16}, {torch.bfloat16}):
            return lowering(*args, **kwargs)
        args, kwargs = _floats_as(F32, (args, kwargs))
        return _floats_as(types.pop(), lowering(*args, **kwargs))

    return run


def _floats_as(dtype: torch.dtype, tree: Any) -> Any:
    return pytree.tree_map_only(
        Value, lambda x: cast(x, dtype) if x.dtype.is_floating_point else x, tree)


def result_type(*operands: Operand) -> torch.dtype:
    """PyTorch's promotion: tensors with dimensions, then scalars' tensors, then numbers.

    https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
    """
    groups = (
        [x.dtype for x in operands if isinstance(x, Value) and x.shape],
        [x.dtype for x in operands if isinstance(x, Value) and not x.shape],
        [number_type(x) for x in operands if not isinstance(x, Value)],
    )
    best: torch.dtype | None = None
    for group in groups:
        if not group:
            continue
        own = group[0]
        for dtype in group[1:]:
            own = torch.promote_types(own, dtype)
        if best is None or _category(own) > _category(best):
            best = own
    if best is None:
        raise Unsupported("no operands")
    return best


def number_type(number: object) -> torch.dtype:
    if isinstance(number, complex):
        return torch.complex64
    if isinstance(number, bool):
        return BOOL
    if isinstance(number, int):
        return I64
    if isinstance(number, float):
        return torch.get_default_dtype()
    raise Unsupported(f"a number of type {type(number).__name__}")


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 0 if dtype == BOOL else 1


# Operators of elements


def broadcast(*operands: Operand) -> tuple[int, ...]:
    return broadcast_shapes(*[x.shape for x in operands if isinstance(x, Value)])


def broadcast_shapes(*shapes: Sizes) -> tuple[int, ...]:
    """The sizes that these broadcast to. Raises RuntimeError, as PyTorch does, if there are
    none."""
    try:
        return broadcast_sizes((), *shapes)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def as_value(x: Operand, dtype: torch.dtype) -> Value:
    """A tensor or a number as a tensor of this type."""
    return cast(x, dtype) if isinstance(x, Value) else full((), x, dtype)


def operand(x: Operand, dtype: torch.dtype) -> Tensor | Number:
    """What a function takes: a tensor of this type, or a number."""
    if isinstance(x, Value):
        return cast(x, dtype).elements
    if dtype.is_floating_point:
        return float(x)
    return full((), x, dtype).elements if is_integer(dtype) else int(x)


def elementwise(function: Callable[..., Tensor], operands: Sequence[Operand], dtype: torch.dtype,
                result: torch.dtype | None = None) -> Value:
    """Apply a function of this package to operands of type ``dtype``, broadcast."""
    shape = broadcast(*operands)
    if not math.prod(shape):
        return empty(shape, result or dtype)
    if dtype == torch.bfloat16:
        z = elementwise(function, operands, F32, result or F32)
        return cast(z, result or dtype)
    arguments = [operand(x, dtype) for x in operands]
    if not isinstance(operands[0], Value):
        arguments[0] = full((), operands[0], dtype).elements
    y = function(*arguments)
    if y.truth:
        y = y.viewed_as(y.data_type, False)
    if tuple(y.desc.sizes) != (shape or (1,)):
        y = y.broadcast_to(shape or (1,))
    return Value(y, shape, result or dtype)


def dimensions(x: Value, dims: int | Sizes | None) -> list[int]:
    """Dimensions of a reduction, sorted: all for None and for an empty list."""
    if isinstance(dims, int):
        dims = [dims]
    if dims is None or not len(dims):
        return list(range(x.ndim))
    return sorted({d % max(x.ndim, 1) for d in dims})


__all__ = ["BOOL", "F32", "I32", "I64", "Number", "Operand", "Sizes", "Unsupported", "Value",
           "as_value", "broadcast", "broadcast_shapes", "cast", "constant", "data_type",
           "dimensions", "elementwise", "empty", "expanded", "floating", "full", "is_integer",
           "low_bits", "moved_from_last", "moved_last", "operand", "packed", "paired", "pairs",
           "parts", "permuted", "resized", "result_type", "rounded_once", "spec", "value", "window"]
