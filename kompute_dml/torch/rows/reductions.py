"""Sums, extremes, scans, and orders."""

from __future__ import annotations

import math

import torch

import kompute_dml as dml

from ..table import call, lowers
from ..values import (
    BOOL,
    F32,
    I64,
    Number,
    Sizes,
    Unsupported,
    Value,
    cast,
    dimensions,
    elementwise,
    empty,
    full,
    resized,
    value,
)

Function = dml.ReduceFunction
_OF_NOTHING = {Function.SUM: 0, Function.MULTIPLY: 1, Function.AVERAGE: math.nan}
_REDUCED = (F32, torch.float16, torch.int32, I64)


def reduced(function: Function, x: Value, dims: int | Sizes | None, keep: bool,
            dtype: torch.dtype | None = None) -> Value:
    """Reduce dimensions, all of them for None and for an empty list."""
    axes = dimensions(x, dims)
    if dtype is None:
        exact = function in (Function.SUM, Function.MULTIPLY) and not x.dtype.is_floating_point
        dtype = I64 if exact else x.dtype
    ones = [1 if d in axes else n for d, n in enumerate(x.shape)]
    shape = ones if keep else [n for d, n in enumerate(x.shape) if d not in axes]
    if x.data is None:
        if function not in _OF_NOTHING and 0 not in shape:
            raise Unsupported("an extreme of no elements")
        return full(shape, _OF_NOTHING.get(function, 0), dtype)
    if dtype == torch.float64:
        raise Unsupported("a reduction in FLOAT64")
    work = dtype if dtype in _REDUCED else F32 if dtype.is_floating_point else I64
    y = cast(x, work)
    if not axes or not x.ndim:
        return cast(resized(y, shape), dtype)
    z = dml.reduce(y.elements, function=function, axes=axes)
    return cast(resized(value(z, ones, work), shape), dtype)


@lowers("sum", "sum.dim_IntList")
def sum_(x: Value, dim: int | Sizes | None = None, keepdim: bool = False,
         dtype: torch.dtype | None = None) -> Value:
    return reduced(Function.SUM, x, dim, keepdim, dtype)


@lowers("mean", "mean.dim")
def mean(x: Value, dim: int | Sizes | None = None, keepdim: bool = False,
         dtype: torch.dtype | None = None) -> Value:
    dtype = dtype or x.dtype
    if not dtype.is_floating_point:
        raise Unsupported("a mean of integers")
    return reduced(Function.AVERAGE, cast(x, dtype), dim, keepdim, dtype)


@lowers("amax")
def amax(x: Value, dim: Sizes = (), keepdim: bool = False) -> Value:
    return _extreme(Function.MAX, x, dim, keepdim)


@lowers("amin")
def amin(x: Value, dim: Sizes = (), keepdim: bool = False) -> Value:
    return _extreme(Function.MIN, x, dim, keepdim)


def _extreme(function: Function, x: Value, dim: int | Sizes | None, keep: bool) -> Value:
    y = reduced(function, x, dim, keep)
    if not x.dtype.is_floating_point or x.data is None:
        return y
    some = any_(call("isnan", x), dim, keep)
    return call("where.self", some, full((), math.nan, x.dtype), y)


@lowers("max")
def max_(x: Value) -> Value:
    return _extreme(Function.MAX, x, None, False)


@lowers("min")
def min_(x: Value) -> Value:
    return _extreme(Function.MIN, x, None, False)


@lowers("aminmax")
def aminmax(x: Value, *, dim: int | None = None, keepdim: bool = False) -> list[Value]:
    return [_extreme(f, x, dim, keepdim) for f in (Function.MIN, Function.MAX)]


@lowers("prod", "prod.dim_int")
def prod(x: Value, dim: int | None = None, keepdim: bool = False,
         dtype: torch.dtype | None = None) -> Value:
    return reduced(Function.MULTIPLY, x, dim, keepdim, dtype)


@lowers("any", "any.dim", "any.dims")
def any_(x: Value, dim: int | Sizes | None = None, keepdim: bool = False) -> Value:
    return _truth(Function.MAX, x, dim, keepdim, False)


@lowers("all", "all.dim", "all.dims")
def all_(x: Value, dim: int | Sizes | None = None, keepdim: bool = False) -> Value:
    return _truth(Function.MIN, x, dim, keepdim, True)


def _truth(function: Function, x: Value, dim: int | Sizes | None, keep: bool, of_nothing: bool
           ) -> Value:
    result = torch.uint8 if x.dtype == torch.uint8 else BOOL
    axes = dimensions(x, dim)
    if x.data is None:
        shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
        return full(shape, of_nothing, result)
    words = cast(cast(x, BOOL), torch.int32)
    return cast(cast(reduced(function, words, dim, keep), BOOL), result)


@lowers("var.correction", "var.dim", "var")
def var(x: Value, dim: Sizes | bool | None = None, unbiased: bool | None = None,
        keepdim: bool = False, *, correction: Number | None = None) -> Value:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    average = reduced(Function.AVERAGE, x, dim, True)
    apart = call("sub.Tensor", x, average)
    total = reduced(Function.SUM, call("mul.Tensor", apart, apart), dim, keepdim)
    count = math.prod(x.shape[d] for d in dimensions(x, dim) if x.ndim) - correction
    if count <= 0:  # 0 / 0 and x / 0
        return call("div.Tensor", total, full((), 0.0, x.dtype))
    return call("div.Tensor", total, float(count))


@lowers("std.correction", "std.dim", "std")
def std(x: Value, dim: Sizes | bool | None = None, unbiased: bool | None = None,
        keepdim: bool = False, *, correction: Number | None = None) -> Value:
    return call("sqrt", var(x, dim, unbiased, keepdim, correction=correction))


@lowers("var_mean.correction")
def var_mean(x: Value, dim: Sizes | None = None, *, correction: Number | None = None,
             keepdim: bool = False) -> list[Value]:
    return [var(x, dim, keepdim=keepdim, correction=correction),
            reduced(Function.AVERAGE, x, dim, keepdim)]


@lowers("argmax")
def argmax(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _place(True, x, dim, keepdim)


@lowers("argmin")
def argmin(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _place(False, x, dim, keepdim)


def _place(largest: bool, x: Value, dim: int | None, keep: bool) -> Value:
    """The first place of the extreme. NaN counts as the extreme, as in PyTorch."""
    y = x if dim is not None else resized(x, (x.numel,))
    axis = (dim or 0) % max(y.ndim, 1)
    if keep:
        shape = [1 if i == axis or dim is None else n for i, n in enumerate(x.shape)]
    else:
        shape = [n for i, n in enumerate(y.shape) if i != axis]
    if y.data is None:
        if math.prod(shape):
            raise Unsupported("the place of an extreme of no elements")
        return empty(shape, I64)
    if not y.ndim:
        return full(shape, 0, I64)
    if y.dtype == torch.float64:
        raise Unsupported("the place of an extreme in FLOAT64")
    if y.dtype not in (F32, torch.float16, torch.int32, I64):
        y = cast(y, F32 if y.dtype.is_floating_point else I64)
    if y.dtype.is_floating_point:
        best = _extreme(Function.MAX if largest else Function.MIN, y, axis, True)
        nan = call("isnan", y)
        hit = call("logical_or", call("eq.Tensor", y, best), nan)
    else:
        best = reduced(Function.MAX if largest else Function.MIN, y, axis, True)
        hit = call("eq.Tensor", y, best)
    count = y.shape[axis]
    at = resized(call("arange", count, dtype=torch.int32),
                 [count if d == axis else 1 for d in range(y.ndim)])
    first = reduced(Function.MIN, call("where.self", hit, at, full((), count, torch.int32)), axis,
                    False)
    return resized(cast(first, I64), shape)


@lowers("max.dim")
def max_dim(x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return [_extreme(Function.MAX, x, dim, keepdim), argmax(x, dim, keepdim)]


@lowers("min.dim")
def min_dim(x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return [_extreme(Function.MIN, x, dim, keepdim), argmin(x, dim, keepdim)]


@lowers("cumsum")
def cumsum(x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return _scan(dml.cumulative_summation, x, dim, dtype)


@lowers("cumprod")
def cumprod(x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return _scan(dml.cumulative_product, x, dim, dtype)


def _scan(function: object, x: Value, dim: int, dtype: torch.dtype | None) -> Value:
    dtype = dtype or (x.dtype if x.dtype.is_floating_point else I64)
    y = cast(x, dtype)
    if not x.ndim or y.data is None:
        return y
    return elementwise(lambda t: function(t, axis=dim % x.ndim), [y], dtype)  # type: ignore[operator]


@lowers("topk")
def topk(x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
         ) -> list[Value]:
    """Equal elements keep their order; NaN is the largest."""
    if not x.ndim:
        return [x, full((), 0, I64)] if k else [empty((0,), x.dtype), empty((0,), I64)]
    dim %= x.ndim
    shape = [k if d == dim else n for d, n in enumerate(x.shape)]
    if not math.prod(shape):
        return [empty(shape, x.dtype), empty(shape, I64)]
    y = cast(x, F32 if x.dtype == torch.bfloat16 else torch.int32 if x.dtype in (
        BOOL, torch.int8, torch.int16, torch.uint8) else x.dtype)
    best, at = dml.top_k1(y.elements, axis=dim, k=k, data_type="uint32",
                          axis_direction=1 if largest else 0)
    return [cast(value(best, shape, y.dtype), x.dtype),
            cast(value(at, shape, torch.uint32), I64)]


@lowers("sort", "sort.stable")
def sort(x: Value, *order: object, stable: bool | None = None, dim: int = -1,
         descending: bool = False) -> list[Value]:
    rest = list(order)
    if rest and (rest[0] is None or len(rest) == 3):
        rest.pop(0)  # stable, by place
    dim = int(rest[0]) if rest else dim  # type: ignore[call-overload]
    descending = bool(rest[1]) if len(rest) > 1 else descending
    return topk(x, x.shape[dim] if x.ndim else 1, dim, descending)


@lowers("argsort", "argsort.stable")
def argsort(x: Value, *order: object, stable: bool | None = None, dim: int = -1,
            descending: bool = False) -> Value:
    return sort(x, *order, stable=stable, dim=dim, descending=descending)[1]


