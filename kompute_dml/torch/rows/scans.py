"""Orders along a dimension: running extremes, medians, and pools whose windows differ."""

from __future__ import annotations

import math

import numpy as np
import torch

from ..table import call, lowers
from ..values import (
    F32,
    I64,
    MOST_PAIRS,
    Sizes,
    Unsupported,
    Value,
    cast,
    constant,
    empty,
    expanded,
    full,
    moved_from_last,
    moved_last,
    resized,
    rounded_once,
)
from .indices import scattered, take


def _pairs(x: Value, dim: int, least: float) -> tuple[Value, Value]:
    """{..., i, j}: element j where j is at most i, else ``least``; and the line moved last."""
    line = moved_last(x, dim % max(x.ndim, 1))
    n = line.shape[-1]
    if line.numel * n > MOST_PAIRS:
        raise Unsupported("a scan of more than 67 million pairs")
    before = call("le.Tensor", call("arange", n), resized(call("arange", n), (n, 1)))
    return call("where.self", before, call("unsqueeze", line, -2), full((), least, x.dtype)), line


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _running(x: Value, dim: int, largest: bool) -> list[Value]:
    """The extreme so far and its last place."""
    if not x.ndim:
        return [x, full((), 0, I64)]
    if x.data is None:
        return [x, empty(x.shape, I64)]
    if x.dtype == torch.bool:
        best, at = _running(cast(x, torch.int32), dim, largest)
        return [cast(best, torch.bool), at]
    least = _lowest(x.dtype)
    if not largest:
        least = math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).max
    pairs, line = _pairs(x, dim, least)
    n = line.shape[-1]
    best = call("amax" if largest else "amin", pairs, [-1])
    hit = call("eq.Tensor", call("unsqueeze", line, -2), call("unsqueeze", best, -1))
    if x.dtype.is_floating_point:
        hit = call("logical_or", hit, call("isnan", call("unsqueeze", line, -2)))
    before = call("le.Tensor", call("arange", n), resized(call("arange", n), (n, 1)))
    hit = call("logical_and", hit, before)
    at = call("amax", call("where.self", hit, call("arange", n), full((), 0, I64)), [-1])
    dim %= x.ndim
    return [moved_from_last(best, dim), moved_from_last(at, dim)]


@lowers("cummax")
def cummax(x: Value, dim: int) -> list[Value]:
    return _running(x, dim, True)


@lowers("cummin")
def cummin(x: Value, dim: int) -> list[Value]:
    return _running(x, dim, False)


@lowers("logcumsumexp", "_logcumsumexp")
def logcumsumexp(x: Value, dim: int) -> Value:
    if x.dtype == torch.float64:
        raise Unsupported("logcumsumexp in FLOAT64")
    if not x.ndim or x.data is None:
        return x
    pairs, _ = _pairs(cast(x, F32), dim, -math.inf)
    most = call("amax", pairs, [-1], True)
    shift = call("where.self", call("isinf", most), full((), 0.0, F32), most)
    total = call("sum.dim_IntList", call("exp", call("sub.Tensor", pairs, shift)), [-1])
    y = call("add.Tensor", call("log", total), call("squeeze.dim", shift, -1))
    return cast(moved_from_last(y, dim % x.ndim), x.dtype)


# Medians


@lowers("median.dim")
def median_dim(x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    """The lower of both middle elements; NaN where one is."""
    if x.data is None:
        raise Unsupported("a median of no elements")
    if not x.ndim:
        return [x, full((), 0, I64)]
    best, at = call("kthvalue", x, (x.shape[dim] - 1) // 2 + 1, dim, keepdim)
    if x.dtype.is_floating_point:
        nan = call("isnan", x)
        some = call("any.dim", nan, dim, keepdim)
        best = call("where.self", some, full((), math.nan, x.dtype), best)
        at = call("where.self", some, call("argmax", cast(nan, torch.int32), dim, keepdim), at)
    return [best, at]


@lowers("nanmedian.dim")
def nanmedian_dim(x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    """The lower of both middle elements of those that are numbers."""
    if x.data is None:
        raise Unsupported("a median of no elements")
    if not x.ndim:
        return [x, full((), 0, I64)]
    if not x.dtype.is_floating_point:
        return median_dim(x, dim, keepdim)
    ordered = call("sort", x, dim)
    numbers = call("sum.dim_IntList", call("logical_not", call("isnan", x)), [dim], True)
    middle = call("clamp_min", call("floor_divide", call("sub.Tensor", numbers, 1), 2), 0)
    picked = [call("gather", v, dim, middle) for v in ordered]
    return picked if keepdim else [call("squeeze.dim", v, dim) for v in picked]


@lowers("median")
def median(x: Value) -> Value:
    return _of_all(x, median_dim)


@lowers("nanmedian")
def nanmedian(x: Value) -> Value:
    return _of_all(x, nanmedian_dim)


def _of_all(x: Value, of_line: object) -> Value:
    if not x.numel:
        if not x.dtype.is_floating_point:
            raise Unsupported("a median of no integers")
        return full((), math.nan, x.dtype)
    return of_line(resized(x, (x.numel,)), 0)[0]  # type: ignore[operator]


# Pools whose windows differ


def _windows(inner: Sizes, outer: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """{windows, elements of the largest}: flat places, the last one repeated, and whether each is
    one of its window."""
    sides = []
    for n, m in zip(inner, outer):
        begin = np.arange(m) * n // m
        end = -(-(np.arange(m) + 1) * n // m)
        taps = begin[:, None] + np.arange((end - begin).max())
        sides.append((np.minimum(taps, end[:, None] - 1), taps < end[:, None]))
    places: np.ndarray = np.zeros((1, 1), np.int64)
    inside: np.ndarray = np.ones((1, 1), bool)
    for n, (taps, counts) in zip(inner, sides):
        places = (places[:, None, :, None] * n + taps[None, :, None, :]).reshape(
            len(places) * len(taps), -1)
        inside = (inside[:, None, :, None] & counts[None, :, None, :]).reshape(places.shape)
    return places, inside


def _taken(x: Value, size: Sizes) -> tuple[Value, np.ndarray, np.ndarray, tuple[int, ...]]:
    rank = len(size)
    inner, rows = x.shape[-rank:], x.shape[:-rank]
    places, inside = _windows(inner, size)
    lines = resized(x, (math.prod(rows), math.prod(inner)))
    return take(lines, 1, constant(places, I64)), places, inside, (*rows, *size)


@lowers("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(x: Value, size: Sizes) -> list[Value]:
    """The maxima and their first places."""
    if not x.numel or not math.prod(size):
        shape = (*x.shape[:x.ndim - len(size)], *size)
        return [empty(shape, x.dtype), empty(shape, I64)]
    taken, places, _, shape = _taken(x, size)
    first = call("argmax", taken, -1)
    table = expanded(constant(places, I64), taken.shape)
    at = call("squeeze.dim", call("gather", table, -1, call("unsqueeze", first, -1)), -1)
    return [resized(call("amax", taken, [-1]), shape), resized(at, shape)]


@lowers("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(g: Value, x: Value, at: Value) -> Value:
    return _spread(g, x, at, 2)


@lowers("adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(g: Value, x: Value, at: Value) -> Value:
    return _spread(g, x, at, 3)


def _spread(g: Value, x: Value, at: Value, rank: int) -> Value:
    """Each gradient at the place of its maximum."""
    if not g.numel:
        return full(x.shape, 0, x.dtype)
    rows = math.prod(x.shape[:-rank])
    shape = (rows, g.numel // rows)
    zeros = full((rows, math.prod(x.shape[-rank:])), 0, x.dtype)
    return resized(scattered(zeros, 1, resized(at, shape), resized(g, shape), "SUM"), x.shape)


@lowers("_adaptive_avg_pool3d")
@rounded_once
def adaptive_avg_pool3d(x: Value, size: Sizes) -> Value:
    if not x.numel or not math.prod(size):
        return full((*x.shape[:-3], *size), 0, x.dtype)
    taken, _, inside, shape = _taken(cast(x, F32), size)
    share = constant((inside / inside.sum(1, keepdims=True)).astype(np.float32), F32)
    total = call("sum.dim_IntList", call("mul.Tensor", taken, share), [-1])
    return cast(resized(total, shape), x.dtype)


@lowers("_adaptive_avg_pool3d_backward")
@rounded_once
def adaptive_avg_pool3d_backward(g: Value, x: Value) -> Value:
    if not g.numel:
        return full(x.shape, 0, x.dtype)
    places, inside = _windows(x.shape[-3:], g.shape[-3:])
    share = constant((inside / inside.sum(1, keepdims=True)).astype(np.float32), F32)
    rows = math.prod(x.shape[:-3])
    parts = call("mul.Tensor", resized(cast(g, F32), (rows, len(places), 1)), share)
    at = expanded(resized(constant(places, I64), (1, places.size)), (rows, places.size))
    zeros = full((rows, math.prod(x.shape[-3:])), 0, F32)
    y = scattered(zeros, 1, at, resized(parts, (rows, places.size)), "SUM")
    return cast(resized(y, x.shape), x.dtype)
