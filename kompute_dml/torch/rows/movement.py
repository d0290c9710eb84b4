"""Views, copies, and tensors made of nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np
import torch

import kompute_dml as dml

from ...layout import bounds, extent
from ..table import LOWERINGS, call, lowers
from ..values import (
    F32,
    I64,
    Number,
    Operand,
    Sizes,
    Unsupported,
    Value,
    as_value,
    cast,
    constant,
    data_type,
    empty,
    expanded,
    full,
    number_type,
    packed,
    permuted,
    resized,
    result_type,
    value,
    window,
)

LOWERINGS[operator.getitem] = lambda x, i: x[i]


@lowers("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(x: Value, size: Sizes, *unused: object) -> Value:
    known = math.prod(n for n in size if n != -1)
    return resized(x, [x.numel // max(1, known) if n == -1 else n for n in size])


@lowers("alias", "clone", "detach", "lift_fresh_copy", "lift_fresh", "lift", "contiguous",
        "alias_copy", "detach_copy", "positive")
def same(x: Value, **other: object) -> Value:
    return x


@lowers("expand", "expand_copy")
def expand(x: Value, size: Sizes, **other: object) -> Value:
    return expanded(x, size)


@lowers("copy")
def copy(x: Value, source: Value, *unused: object) -> Value:
    return cast(expanded(source, x.shape), x.dtype)


@lowers("permute", "permute_copy")
def permute(x: Value, dims: Sizes) -> Value:
    return permuted(x, dims)


@lowers("t", "t_copy")
def t(x: Value) -> Value:
    return permuted(x, list(reversed(range(x.ndim))))


@lowers("transpose.int", "transpose_copy.int")
def transpose(x: Value, a: int, b: int) -> Value:
    dims = list(range(x.ndim))
    if x.ndim:
        dims[a], dims[b] = dims[b], dims[a]
    return permuted(x, dims)


@lowers("unsqueeze", "unsqueeze_copy")
def unsqueeze(x: Value, dim: int) -> Value:
    shape = list(x.shape)
    shape.insert(dim % (x.ndim + 1), 1)
    return resized(x, shape)


@lowers("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy", "squeeze_copy.dim",
        "squeeze_copy.dims")
def squeeze(x: Value, dims: int | Sizes | None = None) -> Value:
    if dims is None:
        dims = range(x.ndim)
    gone = {d % max(x.ndim, 1) for d in ([dims] if isinstance(dims, int) else dims)}
    return resized(x, [n for d, n in enumerate(x.shape) if not (d in gone and n == 1)])


@lowers("as_strided", "as_strided_copy")
def as_strided(x: Value, size: Sizes, stride: Sizes, storage_offset: int | None = None) -> Value:
    """The strides count in a packed tensor: graphs see no other."""
    if not math.prod(size):
        return empty(size, x.dtype)
    flat = packed(x.elements.reshape((x.numel,)))
    view = flat.strided(tuple(size) or (1,), tuple(stride) or (1,), storage_offset or 0)
    return Value(view, size, x.dtype)


@lowers("slice.Tensor", "slice_copy.Tensor")
def slice_(x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
           ) -> Value:
    return window(x, dim, 0 if start is None else start, x.shape[dim] if end is None else end, step)


@lowers("select.int", "select_copy.int")
def select(x: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    index %= x.shape[dim]
    return resized(window(x, dim, index, index + 1), (*x.shape[:dim], *x.shape[dim + 1:]))


@lowers("unbind.int", "unbind_copy.int")
def unbind(x: Value, dim: int = 0) -> list[Value]:
    return [select(x, dim, i) for i in range(x.shape[dim])]


@lowers("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(x: Value, sizes: Sizes, dim: int = 0) -> list[Value]:
    ends = np.cumsum(sizes)
    return [window(x, dim, int(e) - int(n), int(e)) for n, e in zip(sizes, ends)]


@lowers("split.Tensor", "split_copy.Tensor")
def split(x: Value, size: int, dim: int = 0) -> list[Value]:
    n = x.shape[dim]
    return [window(x, dim, i, min(n, i + size)) for i in range(0, n, size)] or [x]


@lowers("diagonal", "diagonal_copy")
def diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    y = permuted(x, [*[d for d in range(x.ndim) if d not in (a, b)], a, b])
    rows, columns = y.shape[-2:]
    n = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    shape = (*y.shape[:-2], n)
    if not math.prod(shape):
        return empty(shape, x.dtype)
    strides = y.elements.desc.strides
    skip = offset * strides[-1] if offset >= 0 else -offset * strides[-2]
    y_view = y.elements.strided(shape, (*strides[:-2], strides[-2] + strides[-1]), skip)
    return Value(y_view, shape, x.dtype)


@lowers("unfold", "unfold_copy")
def unfold(x: Value, dim: int, size: int, step: int) -> Value:
    if not x.ndim:
        return resized(window(resized(x, (1,)), 0, 0, size), (size,))
    dim %= x.ndim
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1:], size)
    if not math.prod(shape):
        return empty(shape, x.dtype)
    strides = x.elements.desc.strides
    moved = (*strides[:dim], strides[dim] * step, *strides[dim + 1:], strides[dim])
    return Value(x.elements.strided(shape, moved, 0), shape, x.dtype)


@lowers("cat")
def cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    dtype = result_type(*tensors)
    parts = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    dim %= max(parts[0].ndim, 1)
    shape = list(parts[0].shape)
    shape[dim] = sum(x.shape[dim] for x in parts)
    filled = [cast(x, dtype).elements for x in parts if x.data is not None]
    if len(filled) < 2:
        return Value(filled[0] if filled else None, shape, dtype)
    return Value(dml.join(filled, axis=dim), shape, dtype)


@lowers("stack")
def stack(tensors: Sequence[Value], dim: int = 0) -> Value:
    return cat([unsqueeze(x, dim) for x in tensors], dim % (tensors[0].ndim + 1))


@lowers("slice_scatter")
def slice_scatter(x: Value, source: Value, dim: int = 0, start: int | None = None,
                  end: int | None = None, step: int = 1) -> Value:
    dim %= x.ndim
    first, count, step = bounds(slice(start, end, step), x.shape[dim])
    last = first + (count - 1) * step + 1
    source = cast(source, x.dtype)
    if not count:
        return x
    if step != 1:
        at = arange(0, x.shape[dim], 1)
        apart = call("sub.Tensor", at, first)
        inside = call("logical_and", call("ge.Scalar", apart, 0), call(
            "logical_and", call("lt.Scalar", at, last),
            call("eq.Scalar", call("remainder.Scalar", apart, step), 0)))
        where = call("clamp", call("floor_divide", apart, step), 0, count - 1)
        shape = [n if d == dim else 1 for d, n in enumerate(x.shape)]
        return call("where.self", resized(inside, shape), call("index_select", source, dim, where),
                    x)
    parts = (window(x, dim, 0, first), source, window(x, dim, first + count, x.shape[dim]))
    return cat([p for p in parts if p.shape[dim]], dim)


@lowers("select_scatter")
def select_scatter(x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    index %= x.shape[dim]
    return slice_scatter(x, unsqueeze(source, dim), dim, index, index + 1)


@lowers("as_strided_scatter")
def as_strided_scatter(x: Value, source: Value, size: Sizes, stride: Sizes,
                       storage_offset: int | None = None) -> Value:
    row = [math.prod(size[i + 1:]) for i in range(len(size))]
    whole = math.prod(size) == x.numel and not storage_offset
    if whole and all(n == 1 or s == r for n, s, r in zip(size, stride, row)):
        return resized(cast(source, x.dtype), x.shape)
    begin = storage_offset or 0
    if begin + extent(size, stride) > x.numel:
        raise Unsupported(f"as_strided_scatter beyond {x.numel} elements: they lie in a larger "
                          "tensor")
    flat = np.arange(x.numel)[begin:]
    places = np.lib.stride_tricks.as_strided(flat, tuple(size), [8 * s for s in stride])
    if len(set(places.reshape(-1).tolist())) != places.size:
        raise Unsupported("as_strided_scatter that writes twice")
    at = constant(places.reshape(-1).astype(np.int64), I64)
    y = call("index_put", resized(x, (x.numel,)), [at], resized(source, (source.numel,)))
    return resized(y, x.shape)


@lowers("constant_pad_nd")
def constant_pad_nd(x: Value, pad: Sizes, value: Number = 0) -> Value:
    before, after = [0] * x.ndim, [0] * x.ndim
    for k in range(len(pad) // 2):
        before[x.ndim - 1 - k], after[x.ndim - 1 - k] = pad[2 * k], pad[2 * k + 1]
    for d in range(x.ndim):  # negative ones cut
        if before[d] < 0 or after[d] < 0:
            x = window(x, d, max(0, -before[d]), x.shape[d] - max(0, -after[d]))
    before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    for d in range(x.ndim):
        for n, first in ((before[d], True), (after[d], False)):
            if n:
                shape = [n if i == d else m for i, m in enumerate(x.shape)]
                edge = full(shape, value, x.dtype)
                x = cat([edge, x] if first else [x, edge], d) if x.numel or edge.numel else empty(
                    [m + n if i == d else m for i, m in enumerate(x.shape)], x.dtype)
    return x


@lowers("repeat")
def repeat(x: Value, repeats: Sizes) -> Value:
    y = resized(x, (*[1] * (len(repeats) - x.ndim), *x.shape))
    shape = [n * k for n, k in zip(y.shape, repeats)]
    if not math.prod(shape):
        return empty(shape, x.dtype)
    spread = [m for n in y.shape for m in (1, n)]
    wide = [m for n, k in zip(y.shape, repeats) for m in (k, n)]
    if len(wide) > 8:
        return value(dml.tile(y.elements, repeats=list(repeats)), shape, x.dtype)
    return resized(expanded(resized(y, spread), wide), shape)


@lowers("flip")
def flip(x: Value, dims: Sizes) -> Value:
    if not dims or not x.ndim or x.data is None:
        return x
    return value(dml.flip(x.data, tuple(d % x.ndim for d in dims)), x.shape, x.dtype)


@lowers("roll")
def roll(x: Value, shifts: Sizes, dims: Sizes = ()) -> Value:
    if x.data is None:
        return x
    shifts = [shifts] if isinstance(shifts, int) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        return resized(roll(resized(x, (x.numel,)), shifts, (0,)), x.shape)
    for shift, dim in zip(shifts, dims):
        if not x.ndim or not (n := shift % x.shape[dim]):
            continue
        cut = x.shape[dim] - n
        x = cat([window(x, dim, cut, x.shape[dim]), window(x, dim, 0, cut)], dim)
    return x


# Made of nothing


@lowers("full")
def full_(size: Sizes, fill: Number, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(size, fill, dtype or number_type(fill))


@lowers("full_like")
def full_like(x: Value, fill: Number, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(x.shape, fill, dtype or x.dtype)


@lowers("new_full")
def new_full(x: Value, size: Sizes, fill: Number, dtype: torch.dtype | None = None,
             **other: object) -> Value:
    return full(size, fill, dtype or x.dtype)


@lowers("fill.Scalar", "fill.Tensor")
def fill(x: Value, number: Operand) -> Value:
    return expanded(as_value(number, x.dtype), x.shape)


@lowers("scalar_tensor")
def scalar_tensor(number: Number, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full((), number, dtype or torch.get_default_dtype())


@lowers("zeros", "empty.memory_format", "empty_permuted", "_efficientzerotensor")
def zeros(size: Sizes, *order: object, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(size, 0, dtype or torch.get_default_dtype())


@lowers("ones")
def ones(size: Sizes, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(size, 1, dtype or torch.get_default_dtype())


@lowers("empty_strided")
def empty_strided(size: Sizes, stride: Sizes, dtype: torch.dtype | None = None, **other: object
                  ) -> Value:
    return full(size, 0, dtype or torch.get_default_dtype())


@lowers("new_empty_strided")
def new_empty_strided(x: Value, size: Sizes, stride: Sizes, dtype: torch.dtype | None = None,
                      **other: object) -> Value:
    return full(size, 0, dtype or x.dtype)


@lowers("new_empty", "new_zeros")
def new_zeros(x: Value, size: Sizes, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(size, 0, dtype or x.dtype)


@lowers("new_ones")
def new_ones(x: Value, size: Sizes, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(size, 1, dtype or x.dtype)


@lowers("empty_like", "zeros_like")
def zeros_like(x: Value, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(x.shape, 0, dtype or x.dtype)


@lowers("ones_like")
def ones_like(x: Value, dtype: torch.dtype | None = None, **other: object) -> Value:
    return full(x.shape, 1, dtype or x.dtype)


@lowers("zero")
def zero(x: Value) -> Value:
    return full(x.shape, 0, x.dtype)


@lowers("arange", "arange.start", "arange.start_step")
def arange(start: Number, end: Number | None = None, step: Number = 1,
           dtype: torch.dtype | None = None, **other: object) -> Value:
    if end is None:
        start, end = 0, start
    exact = all(isinstance(a, int) for a in (start, end, step))
    dtype = dtype or (I64 if exact else torch.get_default_dtype())
    count = max(0, math.ceil((end - start) / step))
    return sequence(count, start, step, dtype)


@lowers("prims::iota")
def iota(length: int, start: int = 0, step: int = 1, dtype: torch.dtype = I64, **other: object
         ) -> Value:
    return sequence(length, start, step, dtype)


def sequence(count: int, start: Number, step: Number, dtype: torch.dtype) -> Value:
    """``start + i * step`` for i below ``count``."""
    if not count:
        return empty((0,), dtype)
    if dtype in (F32, torch.float16, torch.int32, I64):
        y = dml.fill_value_sequence([count], value_start=start, value_delta=step,
                                    data_type=data_type(dtype))
        return value(y, (count,), dtype)
    if dtype.is_floating_point:
        return cast(sequence(count, start, step, F32), dtype)
    return cast(sequence(count, int(start), int(step), I64), dtype)


@lowers("eye", "eye.m")
def eye(n: int, m: int | None = None, dtype: torch.dtype | None = None, **other: object) -> Value:
    m = n if m is None else m
    dtype = dtype or torch.get_default_dtype()
    rows, columns = resized(arange(n), (n, 1)), arange(m)
    if not n * m:
        return empty((n, m), dtype)
    return cast(call("eq.Tensor", rows, columns), dtype)


@lowers("tril")
def tril(x: Value, diagonal: int = 0) -> Value:
    return _triangle("le.Tensor", x, diagonal)


@lowers("triu")
def triu(x: Value, diagonal: int = 0) -> Value:
    return _triangle("ge.Tensor", x, diagonal)


def _triangle(compare: str, x: Value, diagonal: int) -> Value:
    if x.data is None:
        return x
    rows, columns = x.shape[-2:]
    limit = call("add.Scalar", resized(arange(rows), (rows, 1)), diagonal)
    return call("where.self", call(compare, arange(columns), limit), x, full((), 0, x.dtype))


