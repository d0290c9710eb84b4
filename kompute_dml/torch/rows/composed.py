"""Operators that are made of others."""

from __future__ import annotations

import math

import numpy as np
import torch

import kompute_dml as dml

from ..table import call, lowers
from ..types import spec
from ..values import (
    BOOL,
    F32,
    I32,
    I64,
    MOST_PAIRS,
    Number,
    Sizes,
    Unsupported,
    Value,
    broadcast_shapes,
    cast,
    constant,
    empty,
    floating,
    full,
    packed,
    resized,
    result_type,
    rounded_once,
    value,
)
from .indices import scattered
from .random import normal, uniform


@lowers("elu")
def elu(x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    negative = call("mul.Tensor", call("expm1", call("mul.Tensor", x, float(input_scale))),
                    float(alpha * scale))
    return call("where.self", call("gt.Scalar", x, 0), call("mul.Tensor", x, float(scale)),
                negative)


@lowers("hardtanh")
def hardtanh(x: Value, low: Number = -1, high: Number = 1) -> Value:
    if not x.dtype.is_floating_point:
        low, high = int(low), int(high)
    return call("clamp", x, low, high)


@lowers("round.decimals")
def round_decimals(x: Value, *, decimals: int = 0) -> Value:
    if not x.dtype.is_floating_point:
        return x
    scale = 10.0 ** abs(decimals)
    if decimals >= 0:
        return call("div.Tensor", call("round", call("mul.Tensor", x, scale)), scale)
    return call("mul.Tensor", call("round", call("div.Tensor", x, scale)), scale)


@lowers("hypot")
def hypot(a: Value, b: Value) -> Value:
    """By the larger of both, so that no square overflows."""
    a, b = call("abs", a), call("abs", b)
    large, small = call("maximum", a, b), call("minimum", a, b)
    ratio = call("div.Tensor", small, large)
    y = call("mul.Tensor", large, call("sqrt", call("add.Tensor", call(
        "mul.Tensor", ratio, ratio), 1.0)))
    plain = call("logical_or", call("eq.Scalar", large, 0), call("isinf", large))
    return call("where.self", plain, large, y)


@lowers("copysign.Tensor", "copysign.Scalar")
def copysign(a: Value, b: Value | Number) -> Value:
    dtype = floating(result_type(a, b))
    size = call("abs", cast(a, dtype))
    if not isinstance(b, Value):
        return call("neg", size) if math.copysign(1, b) < 0 else size
    return call("where.self", call("signbit", b), call("neg", size), size)


@lowers("addbmm")
def addbmm(c: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    total = call("sum.dim_IntList", call("bmm", a, b), [0])
    total = total if alpha == 1 else call("mul.Tensor", total, alpha)
    if beta == 0:
        return total
    return call("add.Tensor", total, c if beta == 1 else call("mul.Tensor", c, beta))


def _pooling_matrix(inner: int, outer: int, dtype: torch.dtype) -> Value:
    """{outer, inner}: what each window takes of each element."""
    matrix = np.zeros((outer, inner), np.float32)
    for i in range(outer):
        begin, end = i * inner // outer, -(-(i + 1) * inner // outer)
        matrix[i, begin:end] = 1 / (end - begin)
    return cast(constant(matrix, F32), dtype)


@lowers("_adaptive_avg_pool2d")
@rounded_once
def adaptive_avg_pool2d(x: Value, size: Sizes) -> Value:
    """A product with a matrix of windows for each dimension."""
    if tuple(size) == (1, 1):
        return call("mean.dim", x, [-2, -1], True)
    shape = (*x.shape[:-2], *size)
    if not x.numel or 0 in size:
        return full(shape, 0, x.dtype)
    h, w = x.shape[-2:]
    if h % size[0] == 0 and w % size[1] == 0:
        return call("avg_pool2d", x, [h // size[0], w // size[1]], [h // size[0], w // size[1]])
    right = call("t", _pooling_matrix(w, size[1], x.dtype))
    rows = call("mm", resized(x, (x.numel // w, w)), right)
    images = resized(rows, (math.prod(x.shape[:-2]), h, size[1]))
    left = call("expand", call("unsqueeze", _pooling_matrix(h, size[0], x.dtype), 0),
                (images.shape[0], size[0], h))
    return resized(call("bmm", left, images), shape)


@lowers("_adaptive_avg_pool2d_backward")
@rounded_once
def adaptive_avg_pool2d_backward(g: Value, x: Value) -> Value:
    """The same products with the transposed matrices."""
    if not g.numel:
        return full(x.shape, 0, x.dtype)
    (h, w), (oh, ow) = x.shape[-2:], g.shape[-2:]
    rows = call("mm", resized(g, (g.numel // ow, ow)), _pooling_matrix(w, ow, g.dtype))
    images = resized(rows, (math.prod(x.shape[:-2]), oh, w))
    left = call("expand", call("unsqueeze", call("t", _pooling_matrix(h, oh, g.dtype)), 0),
                (images.shape[0], h, oh))
    return resized(call("bmm", left, images), x.shape)


@lowers("searchsorted.Tensor")
def searchsorted(boundaries: Value, x: Value, *, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: Value | None = None) -> Value:
    """How many boundaries lie before each element."""
    if sorter is not None:
        boundaries = call("gather", boundaries, -1, sorter)
    after = right or side == "right"
    if x.numel * boundaries.shape[-1] > MOST_PAIRS:
        raise Unsupported("a search of more than 67 million pairs")
    if boundaries.ndim == 1:
        lines = boundaries
    else:
        lines = call("unsqueeze", boundaries, -2)
    below = call("le.Tensor" if after else "lt.Tensor", lines, call("unsqueeze", x, -1))
    return cast(call("sum.dim_IntList", below, [-1]), torch.int32 if out_int32 else I64)


@lowers("bucketize.Tensor")
def bucketize(x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False
              ) -> Value:
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@lowers("multinomial")
def multinomial(weights: Value, count: int, replacement: bool = False, **other: object) -> Value:
    """With replacement by the cumulative sums; without, the largest of weights over exponentials.
    """
    n = weights.shape[-1]
    w = cast(weights, F32)
    if not replacement:
        noise = call("neg", call("log", call("rsub.Scalar", uniform(w.shape, F32), 1.0)))
        keys = call("where.self", call("gt.Scalar", w, 0), call("div.Tensor", w, noise),
                    full((), -1.0, F32))
        return call("topk", keys, count)[1]
    ends = call("cumsum", w, -1)
    total = call("slice.Tensor", ends, -1, n - 1, n)
    points = call("mul.Tensor", uniform((*w.shape[:-1], count), F32), total)
    return call("clamp", searchsorted(ends, points, right=True), 0, n - 1)


@lowers("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def normal_of(mean: Value | Number, std: Value | Number = 1.0, **other: object) -> Value:
    dtype = floating(result_type(mean, std))
    shape = broadcast_shapes(*[v.shape for v in (mean, std) if isinstance(v, Value)])
    return cast(call("add.Tensor", call("mul.Tensor", normal(shape, F32), std), mean), dtype)


@lowers("log_normal")
def log_normal(x: Value, mean: Number = 1.0, std: Number = 2.0, **other: object) -> Value:
    y = call("add.Tensor", call("mul.Tensor", normal(x.shape, F32), float(std)), float(mean))
    return cast(call("exp", y), x.dtype)


@lowers("cauchy")
def cauchy(x: Value, median: Number = 0.0, sigma: Number = 1.0, **other: object) -> Value:
    angle = call("mul.Tensor", call("sub.Tensor", uniform(x.shape, F32), 0.5), math.pi)
    return cast(call("add.Tensor", call("mul.Tensor", call("tan", angle), float(sigma)),
                     float(median)), x.dtype)


@lowers("geometric")
def geometric(x: Value, p: float, **other: object) -> Value:
    logs = call("log", call("rsub.Scalar", uniform(x.shape, F32), 1.0))
    y = call("ceil", call("div.Tensor", logs, math.log1p(-p) if p < 1 else -math.inf))
    return cast(call("clamp_min", y, 1.0), x.dtype)


@lowers("kthvalue")
def kthvalue(x: Value, k: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    if not x.ndim:
        return [x, full((), 0, I64)]
    ordered = call("sort", x, dim)
    picked = [call("slice.Tensor", v, dim, k - 1, k) for v in ordered]
    return picked if keepdim else [call("squeeze.dim", v, dim) for v in picked]


@lowers("put")
def put(x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    flat = call("index_put", resized(x, (x.numel,)), [resized(index, (index.numel,))],
                resized(source, (source.numel,)), accumulate)
    return resized(flat, x.shape)


@lowers("unique_consecutive")
def unique_consecutive(x: Value, return_inverse: bool = False, return_counts: bool = False,
                       dim: int | None = None) -> list[Value]:
    if dim is not None and x.ndim != 1:
        raise Unsupported("unique_consecutive of slices")
    n = x.numel
    nothing = empty((0,), I64)
    if not n:
        return [empty((0,), x.dtype), empty(x.shape, I64), nothing]
    flat = resized(x, (n,))
    first = full((1,), True, BOOL)
    if n > 1:
        first = call("cat", [first, call("ne.Tensor", call("slice.Tensor", flat, 0, 1, n),
                                         call("slice.Tensor", flat, 0, 0, n - 1))])
    from_start = call("sub.Tensor", call("cumsum", first, 0), 1)
    starts = call("select.int", call("nonzero", first), 1, 0)
    counts = nothing
    if return_counts:
        ends = call("cat", [call("slice.Tensor", starts, 0, 1, starts.numel),
                            full((1,), n, I64)]) if starts.numel > 1 else full((1,), n, I64)
        counts = call("sub.Tensor", ends, starts)
    return [call("index_select", flat, 0, starts),
            resized(from_start, x.shape) if return_inverse else nothing, counts]


@lowers("_cdist_forward")
def cdist(a: Value, b: Value, p: float, mode: int | None = None) -> Value:
    if a.numel * b.shape[-2] > MOST_PAIRS:
        raise Unsupported("distances of more than 67 million pairs")
    shape = (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2])
    if not a.numel or not b.numel:
        return full(shape, 0, a.dtype)
    apart = call("abs", call("sub.Tensor", call("unsqueeze", a, -2), call("unsqueeze", b, -3)))
    if p == 0:
        return cast(call("sum.dim_IntList", call("ne.Scalar", apart, 0), [-1]), a.dtype)
    if math.isinf(p):
        return call("amax", apart, [-1])
    if p == 1:
        return call("sum.dim_IntList", apart, [-1])
    total = call("sum.dim_IntList", call("pow.Tensor_Scalar", apart, p), [-1])
    return call("sqrt", total) if p == 2 else call("pow.Tensor_Scalar", total, 1 / p)


@lowers("_embedding_bag_forward_only", "_embedding_bag")
@rounded_once
def embedding_bag(weight: Value, indices: Value, offsets: Value, scale_grad: bool = False,
                  mode: int = 0, sparse: bool = False, weights: Value | None = None,
                  include_last: bool = False, padding: int = -1) -> list[Value]:
    """Sums and averages of rows."""
    if mode == 2 or padding >= 0 or not indices.numel:
        raise Unsupported("embedding_bag by max, with padding, or of no indices")
    bags = offsets.numel - include_last
    n = indices.numel
    begins = cast(call("slice.Tensor", offsets, 0, 0, bags), I64)
    bag = call("sub.Tensor", searchsorted(begins, call("arange", n), right=True), 1)
    rows = call("embedding", weight, indices)
    if weights is not None:
        rows = call("mul.Tensor", rows, resized(weights, (n, 1)))
    counts = scattered(full((bags,), 0, I64), 0, bag, full((n,), 1, I64), "SUM")
    places = call("expand", resized(bag, (n, 1)), rows.shape)
    y = scattered(full((bags, weight.shape[1]), 0, weight.dtype), 0, places, rows, "SUM")
    if mode == 1:
        y = call("div.Tensor", y, cast(resized(call("clamp_min", counts, 1), (bags, 1)), y.dtype))
    return [y, bag, counts, full((bags,), 0, I64)]


@lowers("_trilinear")
def trilinear(a: Value, b: Value, c: Value, expand1: Sizes, expand2: Sizes, expand3: Sizes,
              sumdim: Sizes, unroll_dim: int = 1) -> Value:
    """The sum of ``a * b * c`` over some dimensions, after new ones."""
    widened = []
    for x, dims in ((a, expand1), (b, expand2), (c, expand3)):
        for d in dims:
            x = call("unsqueeze", x, d)
        widened.append(x)
    shape = broadcast_shapes(*[x.shape for x in widened])
    if math.prod(shape) > MOST_PAIRS:
        raise Unsupported("a bilinear product of more than 67 million terms")
    product = call("mul.Tensor", call("mul.Tensor", widened[0], widened[2]), widened[1])
    return call("sum.dim_IntList", product, list(sumdim)) if len(sumdim) else product


@lowers("angle")
def angle(x: Value) -> Value:
    """0 or pi, by the sign."""
    dtype = floating(x.dtype)
    y = call("where.self", call("lt.Scalar", x, 0), full((), math.pi, dtype), full((), 0, dtype))
    y = call("expand", y, x.shape)
    return call("where.self", call("isnan", x), cast(x, dtype), y)


@lowers("histc")
def histc(x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """How many elements lie in each of the bins; the last one has its upper end."""
    whole = not x.dtype.is_floating_point
    if whole and math.isfinite(max - min):  # as CUDA does; the CPU has none
        min, max = int(min), int(max)
    if (x.dtype != F32 and not whole) or x.dtype == BOOL or not x.numel or min == max or (
            not math.isfinite(max - min)):
        raise Unsupported("histc of other types, or between ends that are read")
    flat = resized(cast(x, I64) if whole else x, (x.numel,))
    inside = call("logical_and", call("ge.Scalar", flat, min), call("le.Scalar", flat, max))
    above = call("sub.Tensor", flat, min)
    if whole:
        place = call("div.Tensor_mode", call("mul.Tensor", above, bins), max - min,
                     rounding_mode="floor")
    else:
        place = call("floor", call("mul.Tensor", call("div.Tensor", above, max - min), bins))
    place = call("clamp", place, 0, bins - 1)
    place = cast(call("where.self", inside, place, full((), 0, place.dtype)), I64)
    counts = I32 if whole else F32
    return cast(scattered(full((bins,), 0, counts), 0, place, cast(inside, counts), "SUM"), x.dtype)


@lowers("mode")
def mode(x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    """The smallest of the most frequent elements, and its last place."""
    n = x.shape[dim] if x.ndim else 1
    if not x.ndim:
        return [x, full((), 0, I64)]
    if not x.numel or x.numel * n > MOST_PAIRS:
        raise Unsupported("the most frequent of no elements, or of too many")
    ordered, _ = call("sort", x, dim)
    last = call("transpose.int", ordered, dim, -1)
    pairs = call("eq.Tensor", call("unsqueeze", last, -1), call("unsqueeze", last, -2))
    counts = call("sum.dim_IntList", pairs, [-1])
    first = call("argmax", counts, -1, True)
    best = call("gather", last, -1, first)
    own = call("transpose.int", x, dim, -1)
    numbers = call("arange", n)
    at = call("amax", call("where.self", call("eq.Tensor", own, best), numbers, 0), [-1], True)
    results = [call("transpose.int", v, dim, -1) for v in (best, at)]
    return results if keepdim else [call("squeeze.dim", v, dim) for v in results]


@lowers("_pdist_forward")
def pdist(x: Value, p: float = 2) -> Value:
    """The distances of all pairs of rows, each once."""
    n = x.shape[0]
    rows, columns = np.triu_indices(n, 1)
    if not rows.size or not x.shape[1]:
        return full((rows.size,), 0, x.dtype)
    apart = call("sub.Tensor", call("index_select", x, 0, constant(rows, I64)),
                 call("index_select", x, 0, constant(columns, I64)))
    return resized(cdist(call("unsqueeze", apart, 1), full((rows.size, 1, x.shape[1]), 0, x.dtype),
                         p), (rows.size,))


@lowers("nonzero_static")
def nonzero_static(x: Value, *, size: int, fill_value: int = -1) -> Value:
    places = call("nonzero", x)
    count = places.shape[0]
    if count >= size:
        return call("slice.Tensor", places, 0, 0, size)
    rest = full((size - count, x.ndim), fill_value, I64)
    return call("cat", [places, rest]) if count else rest


@lowers("frexp.Tensor")
def frexp(x: Value) -> list[Value]:
    """Parts in [0.5, 1), and powers of 2."""
    if x.dtype != F32:
        raise Unsupported(f"frexp of {x.dtype}")
    tiny = call("lt.Scalar", call("abs", x), 2.0 ** -126)
    scaled = call("where.self", tiny, call("mul.Tensor", x, 2.0 ** 24), x)
    words = call("view.dtype", scaled, torch.int32)
    bits = packed(call("view.dtype", scaled, torch.uint32).elements)
    bits = dml.bit_and(dml.bit_shift_right(bits, 23), 255)
    power = call("sub.Tensor", cast(value(bits, x.shape, torch.uint32), torch.int32), 126)
    power = call("sub.Tensor", power, call("mul.Tensor", cast(tiny, torch.int32), 24))
    part = call("bitwise_or.Scalar", call("bitwise_and.Scalar", words, -2139095041), 126 << 23)
    plain = call("logical_or", call("eq.Scalar", x, 0), call("logical_not", call(
        "lt.Scalar", call("abs", x), math.inf)))
    return [call("where.self", plain, x, call("view.dtype", part, F32)),
            cast(call("where.self", plain, 0, power), torch.int32)]


@lowers("tril_indices")
def tril_indices(rows: int, columns: int, offset: int = 0, *, dtype: torch.dtype | None = None,
                 **other: object) -> Value:
    return _places(np.tril_indices(rows, offset, columns), dtype or torch.int64)


@lowers("triu_indices")
def triu_indices(rows: int, columns: int, offset: int = 0, *, dtype: torch.dtype | None = None,
                 **other: object) -> Value:
    return _places(np.triu_indices(rows, offset, columns), dtype or torch.int64)


def _places(indices: tuple[np.ndarray, ...], dtype: torch.dtype) -> Value:
    """Sizes alone decide them. PyTorch's definition takes roots in FLOAT64."""
    return constant(np.array(indices, spec(dtype).stored), dtype)
