"""What truth values choose. The number of results is read from the device, so no graph has it."""

from __future__ import annotations

import math

import torch

import kompute_dml as dml

from ..table import call, lowers
from ..values import BOOL, I64, Value, broadcast, cast, empty, expanded, resized, value, window


def flat_places(mask: Value) -> Value:
    """The places of true elements in row-major order."""
    rows = nonzero(resized(mask, (mask.numel,)))
    return resized(rows, rows.shape[:1])


@lowers("nonzero")
def nonzero(x: Value) -> Value:
    if not x.ndim:
        return empty((flat_places(x).numel, 0), I64)
    if x.data is None:
        return empty((0, x.ndim), I64)
    count, rows = dml.nonzero_coordinates(cast(x, BOOL).elements)
    n = int(count.numpy().reshape(-1)[0])
    return cast(window(value(rows, (x.numel, x.ndim), torch.uint32), 0, 0, n), I64)


@lowers("masked_select")
def masked_select(x: Value, mask: Value) -> Value:
    shape = broadcast(x, mask)
    at = flat_places(expanded(mask, shape))
    return call("index_select", resized(expanded(x, shape), (math.prod(shape),)), 0, at)


@lowers("masked_scatter")
def masked_scatter(x: Value, mask: Value, source: Value) -> Value:
    shape = broadcast(x, mask)
    at = flat_places(expanded(mask, shape))
    flat = resized(expanded(x, shape), (math.prod(shape),))
    if at.data is None:
        return resized(flat, shape)
    values = call("slice.Tensor", resized(source, (source.numel,)), 0, 0, at.numel)
    return resized(call("scatter.src", flat, 0, at, values), shape)


@lowers("_unique")
def unique(x: Value, sorted: bool = True, return_inverse: bool = False) -> list[Value]:
    return unique2(x, sorted, return_inverse)[:2]


@lowers("_unique2")
def unique2(x: Value, sorted: bool = True, return_inverse: bool = False,
            return_counts: bool = False) -> list[Value]:
    n = x.numel
    nothing = empty((0,), I64)
    if not n:
        return [empty((0,), x.dtype), empty(x.shape, I64), nothing]
    ordered, origin = call("sort", resized(x, (n,)))
    first = call("full", (1,), True, BOOL)
    if n > 1:
        before = call("slice.Tensor", ordered, 0, 0, n - 1)
        after = call("slice.Tensor", ordered, 0, 1, n)
        first = call("cat", [first, call("ne.Tensor", after, before)])
    starts = flat_places(first)
    values = call("index_select", ordered, 0, starts)
    inverse = counts = nothing
    if return_inverse:
        rank = call("sub.Tensor", call("cumsum", first, 0), 1)
        inverse = resized(call("scatter.src", call("full", (n,), 0, I64), 0, origin, rank), x.shape)
    if return_counts:
        ends = call("full", (1,), n, I64)
        if starts.numel > 1:
            ends = call("cat", [call("slice.Tensor", starts, 0, 1, starts.numel), ends])
        counts = call("sub.Tensor", ends, starts)
    return [values, inverse, counts]


@lowers("repeat_interleave.Tensor")
def repeat_interleave(repeats: Value, output_size: int | None = None) -> Value:
    if not repeats.numel:
        return empty((0,), I64)
    ends = call("cumsum", repeats, 0)
    total = output_size
    if total is None:
        total = int(call("select.int", ends, 0, -1).elements.numpy().reshape(-1)[0])
    if not total:
        return empty((0,), repeats.dtype)
    at = resized(call("arange", total), (total, 1))
    passed = call("le.Tensor", cast(ends, I64), at)
    return cast(call("sum.dim_IntList", passed, [1]), repeats.dtype)


@lowers("bincount")
def bincount(x: Value, weights: Value | None = None, minlength: int = 0) -> Value:
    dtype = I64 if weights is None else (
        weights.dtype if weights.dtype.is_floating_point else torch.float64)
    if not x.numel:
        return call("full", (minlength,), 0, dtype)
    size = max(minlength, int(call("max", x).elements.numpy().reshape(-1)[0]) + 1)
    ones = call("full", x.shape, 1, I64) if weights is None else cast(weights, dtype)
    return call("scatter_add", call("full", (size,), 0, dtype), 0, cast(x, I64), ones)
