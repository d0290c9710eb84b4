"""What truth values choose. The number of results is read from the device, so no graph has it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..table import call, lowers
from ..values import BOOL, I32, I64, Value, broadcast, cast, empty, expanded, resized
from .reductions import Function, reduced


def flat_places(mask: Value) -> Value:
    """The places of true elements in row-major order."""
    n = mask.numel
    if not n:
        return empty((0,), I64)
    flat = resized(cast(mask, BOOL), (n,))
    count = int(reduced(Function.SUM, flat, None, False).elements.numpy().reshape(-1)[0])
    if not count:
        return empty((0,), I64)
    places = call("arange", n, dtype=I32)
    keys = call("where.self", flat, places, call("full", (), n, I32))
    return cast(call("topk", keys, count, 0, False)[0], I64)


def columns(mask: Value) -> list[Value]:
    """The indices of true elements along each dimension."""
    flat, indices = flat_places(mask), []
    for d, n in enumerate(mask.shape):
        inner = math.prod(mask.shape[d + 1:])
        if flat.data is None:
            indices.append(flat)
        else:
            at = call("floor_divide", flat, inner) if inner > 1 else flat
            indices.append(call("remainder.Scalar", at, n) if d else at)
    return indices


@lowers("nonzero")
def nonzero(x: Value) -> Value:
    if not x.ndim:
        return empty((flat_places(x).numel, 0), I64)
    indices = columns(x)
    if indices[0].data is None:
        return empty((0, x.ndim), I64)
    return call("stack", indices, 1)


@lowers("masked_select")
def masked_select(x: Value, mask: Value) -> Value:
    shape = broadcast(x, mask)
    at = flat_places(expanded(mask, shape))
    return call("index_select", resized(expanded(x, shape), (math.prod(shape),)), 0, at)


def without_masks(indices: Sequence[Value | None]) -> list[Value | None]:
    """Each index of truth values as indices of integers, one for each of its dimensions."""
    plain: list[Value | None] = []
    for i in indices:
        if i is not None and i.dtype in (BOOL, torch.uint8):
            if not i.ndim:
                i = resized(i, (1,))
            plain += columns(i)
        else:
            plain.append(i)
    return plain


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
