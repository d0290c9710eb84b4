"""Reading and writing at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

import kompute_dml as dml

from ..table import call, lowers
from ..values import (
    BOOL,
    I64,
    Number,
    Unsupported,
    Value,
    as_value,
    broadcast,
    cast,
    empty,
    expanded,
    full,
    permuted,
    resized,
    value,
    window,
)
from .selection import flat_places

_REDUCTIONS = {"sum": "SUM", "prod": "MULTIPLY", "amax": "MAX", "amin": "MIN"}


@lowers("embedding")
def embedding(weight: Value, indices: Value, *unused: object) -> Value:
    return take(weight, 0, indices)


@lowers("embedding_renorm")
def embedding_renorm(weight: Value, indices: Value, most: float, order: float) -> Value:
    """Rows that are looked up have no larger norm. One that comes twice is written twice."""
    if not indices.numel or not weight.numel:
        return weight
    places = resized(indices, (indices.numel,))
    rows = take(weight, 0, places)
    size = call("abs", rows)
    if math.isinf(order) and order > 0:
        norm = call("amax", size, [1], True)
    elif order > 0:
        total = call("sum.dim_IntList", call("pow.Tensor_Scalar", size, order), [1], True)
        norm = call("pow.Tensor_Scalar", total, 1 / order)
    else:
        raise Unsupported(f"norms of order {order}")
    scale = call("div.Tensor", full((), most, weight.dtype), call("add.Tensor", norm, 1e-7))
    smaller = call("where.self", call("gt.Scalar", norm, most), call("mul.Tensor", rows, scale),
                   rows)
    return index_put(weight, [places], smaller)


def take(x: Value, dim: int, indices: Value) -> Value:
    """The slices at ``indices``, whose dimensions replace ``dim``."""
    dim %= max(x.ndim, 1)
    shape = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1:])
    if not math.prod(shape):
        return empty(shape, x.dtype)
    if not x.ndim:
        return call("expand", x, shape)
    return value(dml.take(x.elements, cast(indices, I64).elements, axis=dim), shape, x.dtype)


@lowers("index_select")
def index_select(x: Value, dim: int, indices: Value) -> Value:
    y = take(x, dim, resized(indices, (indices.numel,)))
    return y if x.ndim else resized(y, ())


@lowers("gather")
def gather(x: Value, dim: int, indices: Value, **other: object) -> Value:
    if not indices.numel:
        return empty(indices.shape, x.dtype)
    if not x.ndim or not indices.ndim:
        flat = gather(resized(x, (x.numel,)), 0, resized(indices, (indices.numel,)))
        return resized(flat, indices.shape)
    dim %= x.ndim
    for d in range(x.ndim):  # DirectML wants equal sizes off the axis
        if d != dim and x.shape[d] != indices.shape[d]:
            x = window(x, d, 0, indices.shape[d])
    y = dml.gather_elements(x.elements, cast(indices, I64).elements, axis=dim)
    return value(y, indices.shape, x.dtype)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(x: Value, indices: Sequence[Value | None]) -> Value:
    if not any(i is not None for i in indices):
        return x
    x, places = _without_masks(x, indices)
    x, places, _ = _neighbours(x, places)
    first, count, shape, flat = _flat_places(x, places)
    rest_before, rest_after = x.shape[:first], x.shape[first + count:]
    joined = resized(x, (*rest_before, math.prod(x.shape[first:first + count]), *rest_after))
    y = take(joined, first, flat)
    return resized(y, (*rest_before, *shape, *rest_after))


def _flat_places(x: Value, indices: Sequence[Value | None]
                 ) -> tuple[int, int, tuple[int, ...], Value]:
    """Neighbouring indexed dimensions as one: the first, how many, the sizes of the indices, and
    the place in the joined dimension. One that is indexed alone is not joined, so its places may
    count from the end."""
    at = [d for d, i in enumerate(indices) if i is not None]
    present = [i for i in indices if i is not None]
    if len(present) == 1:
        return at[0], 1, present[0].shape, cast(present[0], I64)
    shape = broadcast(*present)
    flat: Value | None = None
    for d, i in zip(at, present):
        place = expanded(wrapped(i, x.shape[d]), shape)
        flat = place if flat is None else call("add.Tensor", call(
            "mul.Tensor", flat, x.shape[d]), place)
    assert flat is not None
    return at[0], len(at), shape, flat


def _neighbours(x: Value, indices: Sequence[Value | None]
                ) -> tuple[Value, list[Value | None], list[int] | None]:
    """Indexed dimensions side by side, first if they were apart, and the order that was taken."""
    at = [d for d, i in enumerate(indices) if i is not None]
    if at == list(range(at[0], at[-1] + 1)):
        return x, [*indices], None
    order = [*at, *[d for d in range(x.ndim) if d not in at]]
    return permuted(x, order), [indices[d] for d in at], order


def _without_masks(x: Value, indices: Sequence[Value | None]
                   ) -> tuple[Value, list[Value | None]]:
    """Each mask as the places of its true elements, in its dimensions as one."""
    shape: list[int] = []
    places: list[Value | None] = []
    rest = x.shape
    for i in indices:
        count = 1
        if i is not None and i.dtype in (BOOL, torch.uint8):
            count, i = i.ndim, flat_places(i)
        places.append(i)
        shape.append(math.prod(rest[:count]))
        rest = rest[count:]
    return resized(x, (*shape, *rest)), places


def wrapped(indices: Value, size: int) -> Value:
    """Indices as INT64; negative ones count from the end."""
    i = cast(indices, I64)
    if i.data is None:
        return i
    return call("where.self", call("lt.Scalar", i, 0), call("add.Tensor", i, size), i)


@lowers("_index_put_impl")
def index_put_impl(x: Value, indices: Sequence[Value | None], values: Value,
                   accumulate: bool = False, unsafe: bool = False) -> Value:
    return index_put(x, indices, values, accumulate)


@lowers("index_put", "_unsafe_index_put")
def index_put(x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
              ) -> Value:
    present = [i for i in indices if i is not None]
    if not present:
        return call("add.Tensor", x, values) if accumulate else cast(
            expanded(values, x.shape), x.dtype)
    if len(present) == 1 and present[0].dtype == BOOL and values.numel == 1 and not accumulate:
        at = next(d for d, i in enumerate(indices) if i is not None)
        mask = present[0]
        mask = resized(mask, (*mask.shape, *[1] * (x.ndim - at - mask.ndim)))
        return call("where.self", mask, cast(resized(values, ()), x.dtype), x)
    joined, places = _without_masks(x, indices)
    return resized(_put(joined, places, values, accumulate), x.shape)


def _put(x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """:func:`index_put` without masks."""
    x, indices, order = _neighbours(x, indices)
    if order is not None:
        y = _put(x, indices, values, accumulate)
        return permuted(y, [order.index(d) for d in range(x.ndim)])
    first, count, shape, flat = _flat_places(x, indices)
    before, after = x.shape[:first], x.shape[first + count:]
    source = expanded(cast(values, x.dtype), (*before, *shape, *after))
    if not source.numel or not x.numel:
        return x
    # The joined dimension first: whole slices are written.
    n = math.prod(x.shape[first:first + count])
    joined = resized(x, (math.prod(before), n, math.prod(after)))
    joined = call("transpose.int", joined, 0, 1)
    rows = resized(source, (math.prod(before), flat.numel, math.prod(after)))
    rows = call("transpose.int", rows, 0, 1)
    width = math.prod(before) * math.prod(after)
    table, updates = resized(joined, (n, width)), resized(rows, (flat.numel, width))
    places_ = resized(flat, (flat.numel, 1))
    if accumulate:
        y = scattered(table, 0, expanded(places_, updates.shape), updates, "SUM")
    else:
        y_table = dml.scatter_nd(table.elements, places_.elements, updates.elements,
                                 input_dimension_count=2, indices_dimension_count=2)
        y = value(y_table, (n, width), x.dtype)
    y = resized(y, (n, math.prod(before), math.prod(after)))
    return resized(call("transpose.int", y, 0, 1), x.shape)


def scattered(x: Value, dim: int, indices: Value, source: Value, function: str) -> Value:
    """``source`` reduced into ``x`` at ``indices`` along ``dim``, in a fixed order."""
    if not indices.numel:
        return x
    if not x.ndim:
        flat = scattered(resized(x, (1,)), 0, resized(indices, (1,)), resized(source, (1,)),
                         function)
        return resized(flat, ())
    dim %= x.ndim
    for d in range(source.ndim):
        if source.shape[d] != indices.shape[d]:
            source = window(source, d, 0, indices.shape[d])
    places = cast(indices, I64)
    work = torch.int32 if x.dtype == BOOL else torch.float32 if (
        x.dtype == torch.bfloat16) else x.dtype
    reduce = getattr(dml, "scatter_reduce", None)
    if reduce is None:
        raise Unsupported("sums at indices: no operator of this build")
    y = reduce(cast(x, work).elements, places.elements, cast(source, work).elements, axis=dim,
               function=function)
    return cast(value(y, x.shape, work), x.dtype)


@lowers("scatter_add")
def scatter_add(x: Value, dim: int, indices: Value, source: Value) -> Value:
    return scattered(x, dim, indices, source, "SUM")


@lowers("index_add")
def index_add(x: Value, dim: int, indices: Value, source: Value, *, alpha: Number = 1) -> Value:
    if alpha != 1:
        source = call("mul.Tensor", source, alpha)
    return _along(x, dim, indices, source, "SUM")


def _along(x: Value, dim: int, indices: Value, source: Value, function: str) -> Value:
    dim %= max(x.ndim, 1)
    if not x.ndim:
        return scattered(x, 0, indices, resized(source, ()), function)
    shape = [indices.numel if d == dim else 1 for d in range(x.ndim)]
    places = expanded(resized(indices, shape), source.shape)
    return scattered(x, dim, places, source, function)


@lowers("scatter_reduce.two")
def scatter_reduce(x: Value, dim: int, indices: Value, source: Value, reduce: str, *,
                   include_self: bool = True) -> Value:
    if not indices.numel:
        return x
    y = x if include_self else scatter(x, dim, indices, _start(reduce, x.dtype))
    if reduce != "mean":
        return scattered(y, dim, indices, source, _REDUCTIONS[reduce])
    one = full(indices.shape, 1, I64)
    counts = full(x.shape, 1, I64)
    counts = counts if include_self else scatter(counts, dim, indices, 0)
    counts = call("clamp_min", scattered(counts, dim, indices, one, "SUM"), 1)
    total = scattered(y, dim, indices, source, "SUM")
    rounding = None if x.dtype.is_floating_point else "floor"
    return cast(call("div.Tensor_mode", total, counts, rounding_mode=rounding), x.dtype)


def _start(reduce: str, dtype: torch.dtype) -> Number:
    """What changes no other element."""
    if reduce not in ("amax", "amin"):
        return int(reduce == "prod")
    if dtype == BOOL:
        return reduce == "amin"
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


@lowers("index_reduce")
def index_reduce(x: Value, dim: int, index: Value, source: Value, reduce: str, *,
                 include_self: bool = True) -> Value:
    if not x.ndim:
        return scatter_reduce(x, 0, resized(index, ()), resized(source, ()), reduce,
                              include_self=include_self)
    shape = [index.numel if d == dim % x.ndim else 1 for d in range(x.ndim)]
    places = expanded(resized(index, shape), source.shape)
    return scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


@lowers("scatter.reduce", "scatter.value_reduce")
def scatter_of_two(x: Value, dim: int, indices: Value, source: Value | Number, *, reduce: str
                   ) -> Value:
    source = source if isinstance(source, Value) else full(indices.shape, source, x.dtype)
    return scattered(x, dim, indices, source, {"add": "SUM", "multiply": "MULTIPLY"}[reduce])


@lowers("embedding_dense_backward")
def embedding_dense_backward(g: Value, indices: Value, count: int, padding_idx: int, scale: bool
                             ) -> Value:
    if scale:
        raise Unsupported("embeddings scaled by frequency")
    width = g.shape[-1]
    rows = resized(g, (indices.numel, width))
    places = resized(wrapped(indices, count), (indices.numel, 1))
    y = scattered(full((count, width), 0, g.dtype), 0, expanded(places, rows.shape), rows, "SUM")
    if padding_idx >= 0:
        other = call("ne.Scalar", call("arange", count), padding_idx)
        y = call("where.self", resized(other, (count, 1)), y, full((), 0, g.dtype))
    return y


@lowers("scatter.src", "scatter.value")
def scatter(x: Value, dim: int, indices: Value, source: Value | Number) -> Value:
    if not indices.numel:
        return x
    if not x.ndim:
        flat = scatter(resized(x, (1,)), 0, resized(indices, (1,)), resized(
            as_value(source, x.dtype), (1,)))
        return resized(flat, ())
    if not isinstance(source, Value):
        source = full(indices.shape, source, x.dtype)
    for d in range(source.ndim):
        if source.shape[d] != indices.shape[d]:
            source = window(source, d, 0, indices.shape[d])
    dim %= x.ndim
    y = dml.scatter(x.elements, cast(indices, I64).elements, cast(source, x.dtype).elements,
                    axis=dim)
    return value(y, x.shape, x.dtype)


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(x: Value, dim: int, indices: Value, number: Value | Number) -> Value:
    if not x.ndim:
        return as_value(number, x.dtype)
    n = x.shape[dim]
    places = wrapped(resized(indices, (indices.numel, 1)), n)
    if places.data is None:
        return x
    hit = call("any.dim", call("eq.Tensor", places, call("arange", n)), 0)
    shape = [n if d == dim % x.ndim else 1 for d in range(x.ndim)]
    return call("where.self", resized(hit, shape), as_value(number, x.dtype), x)


@lowers("index_copy")
def index_copy(x: Value, dim: int, indices: Value, source: Value) -> Value:
    if not x.ndim:
        return resized(source, ())
    shape = [indices.numel if d == dim % x.ndim else 1 for d in range(x.ndim)]
    return scatter(x, dim, expanded(resized(indices, shape), source.shape), source)
