"""Rows in segments: one result for each, and segments beside each other with padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..table import call, lowers
from ..values import F32, I64, Number, Unsupported, Value, cast, empty, expanded, full, resized

_REDUCTIONS = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}
_EMPTY = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


def _segments(x: Value, lengths: Value | None, offsets: Value | None, axis: int, unsafe: bool
              ) -> tuple[Value, Value]:
    """The lengths, and each row's segment. Lengths that do not fill the rows raise, as on the
    CPU."""
    if axis or x.ndim < 1 or x.dtype not in (F32, torch.float16, torch.bfloat16):
        raise Unsupported("segments of another dimension or type")
    if lengths is not None:
        lengths = cast(lengths, I64)
    elif offsets is not None and offsets.ndim == 1:
        begins = call("slice.Tensor", offsets, 0, 0, offsets.numel - 1)
        lengths = cast(call("sub.Tensor", call(
            "slice.Tensor", offsets, 0, 1, offsets.numel), begins), I64)
    if lengths is None or lengths.ndim != 1 or not lengths.numel or not x.numel:
        raise Unsupported("segments without lengths, or of no elements")
    if not unsafe:
        found = lengths.elements.numpy()
        if found.min() < 0 or found.sum() != x.shape[0]:
            raise RuntimeError("segment_reduce(): Expected all rows of lengths along axis to sum "
                               "to data.size(lengths.dim()-1) when !unsafe.")
    ends = call("cumsum", lengths, 0)
    rows = call("searchsorted.Tensor", ends, call("arange", x.shape[0]), right=True)
    return lengths, rows


def _rows(v: Value, x: Value) -> Value:
    """One number for each row, or segment, beside the other dimensions of ``x``."""
    return resized(v, (v.numel, *[1] * (x.ndim - 1)))


@lowers("segment_reduce")
def segment_reduce(
    x: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
    offsets: Value | None = None, axis: int = 0, unsafe: bool = False,
    initial: Number | None = None,
) -> Value:
    lengths, rows = _segments(x, lengths, offsets, axis, unsafe or offsets is not None)
    start = full((lengths.numel, *x.shape[1:]),
                 _EMPTY[reduce] if initial is None else initial, F32)
    y = call("scatter_reduce.two", start, 0, expanded(_rows(rows, x), x.shape), cast(x, F32),
             _REDUCTIONS[reduce])
    if reduce == "mean":
        count = _rows(lengths, x)
        if initial is not None:  # stays where there are no rows
            count = call("clamp_min", count, 1)
        y = call("div.Tensor", y, count)
    return cast(y, x.dtype)


@lowers("_segment_reduce_backward")
def segment_reduce_backward(
    g: Value, y: Value, x: Value, reduce: str, *, lengths: Value | None = None,
    offsets: Value | None = None, axis: int = 0, initial: Number | None = None,
) -> Value:
    """An extreme's gradient is shared by the rows that have it."""
    if reduce == "prod":
        raise Unsupported("the gradient of products of segments")
    lengths, rows = _segments(x, lengths, offsets, axis, True)
    if reduce == "mean":
        g = call("div.Tensor", cast(g, F32), _rows(lengths, x))
    slope = call("index_select", cast(g, F32), 0, rows)
    if reduce in ("sum", "mean"):
        return cast(slope, x.dtype)
    hit = call("logical_or", call("eq.Tensor", x, call("index_select", y, 0, rows)),
               call("isnan", x))
    places = expanded(_rows(rows, x), x.shape)
    count = call("scatter_add", full(y.shape, 0.0, F32), 0, places, cast(hit, F32))
    share = call("div.Tensor", slope, call("index_select", count, 0, rows))
    return cast(call("where.self", hit, share, full((), 0.0, F32)), x.dtype)


# Tensors whose layout is torch.jagged


def _one_offset(offsets: Sequence[Value]) -> Value:
    if len(offsets) != 1:
        raise Unsupported("several lengths that differ")
    return cast(offsets[0], I64)


@lowers("_jagged_to_padded_dense_forward")
def to_padded(x: Value, offsets: Sequence[Value], sizes: Sequence[int], padding: float = 0.0
              ) -> Value:
    at, n = _one_offset(offsets), sizes[0]
    count = at.numel - 1
    shape = (count, n, *x.shape[1:])
    if not x.numel or not math.prod(shape):
        return full(shape, padding, x.dtype)
    begins = resized(call("slice.Tensor", at, 0, 0, count), (count, 1))
    ends = resized(call("slice.Tensor", at, 0, 1, count + 1), (count, 1))
    place = call("add.Tensor", begins, call("arange", n))
    inside = resized(call("lt.Tensor", place, ends), (count, n, *[1] * (x.ndim - 1)))
    place = resized(call("clamp", place, 0, x.shape[0] - 1), (count * n,))
    rows = resized(call("index_select", x, 0, place), shape)
    return call("where.self", inside, rows, full((), padding, x.dtype))


@lowers("_padded_dense_to_jagged_forward")
def to_jagged(x: Value, offsets: Sequence[Value], total: int | None = None) -> Value:
    at, (count, n) = _one_offset(offsets), x.shape[:2]
    if total is None:
        total = int(call("select.int", at, 0, -1).elements.numpy().reshape(-1)[0])
    if not total or not x.numel:
        return empty((0, *x.shape[2:]), x.dtype)
    row = call("arange", total)
    ends = call("slice.Tensor", at, 0, 1, count + 1)
    tensor = call("searchsorted.Tensor", ends, row, right=True)
    place = call("sub.Tensor", row, call("index_select", at, 0, tensor))
    flat = call("add.Tensor", call("mul.Tensor", tensor, n), place)
    return call("index_select", resized(x, (count * n, *x.shape[2:])), 0, flat)
