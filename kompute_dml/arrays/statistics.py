"""NumPy's statistics, searches in sorted values, and sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import expect
from ..tensors import Tensor
from ..tensors.attached import UFUNCS
from ..tensors.types import FLOAT32, TensorLike, is_number
from .creation import arange, linspace, zeros
from .movement import concatenate, moveaxis
from .operand import as_tensor, cast, computed, constant, reshape, result
from .reductions import Axis, argsort, average, axes_of, cumsum, sort
from .registry import array_function
from .selection import nonzero, put, take, where

INT64 = np.dtype(np.int64)


def _floats(x: TensorLike, *beside: object) -> Tensor:
    t = computed(x, *beside)
    return t if t.dtype.kind == "f" else cast(t, FLOAT32)


@array_function()
def quantile(
    x: TensorLike, q: TensorLike, axis: Axis = None,
    out: Tensor | None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False
) -> Tensor:
    """The values below which the parts ``q`` of the elements lie, interpolated linearly or by
    ``method`` lower, higher, nearest or midpoint (numpy.quantile). NaN where there is one."""
    t = _floats(x)
    parts = np.asarray(q.numpy() if isinstance(q, Tensor) else q, np.float64)
    expect(((parts >= 0) & (parts <= 1)).all(), "quantile", "q", "be in [0, 1]", q)
    expect(method in ("linear", "lower", "higher", "nearest", "midpoint"), "quantile", "method",
           "be linear, lower, higher, nearest or midpoint", method)
    axes = axes_of("quantile", axis, t.ndim)
    others = [d for d in range(t.ndim) if d not in axes]
    kept = [1 if d in axes else n for d, n in enumerate(t.shape)]
    rows = reshape(t.transpose(*others, *axes), *(t.shape[d] for d in others), -1)
    count = rows.shape[-1]
    expect(count > 0, "quantile", "the axis", "have an element", list(t.shape))
    ordered = sort(rows, -1)
    at = parts.reshape(-1) * (count - 1)
    low, high = np.floor(at).astype(int), np.ceil(at).astype(int)
    share = {"linear": at - low, "midpoint": (high > low) * 0.5, "lower": at * 0,
             "higher": (high > low) * 1.0, "nearest": np.rint(at) - low}[method]
    a, b = take(ordered, low, -1), take(ordered, high, -1)
    y = a + (b - a) * share.astype(t.dtype)
    y = where(UFUNCS["isnan"](ordered[..., -1:]), np.nan, where(a == b, a, y))
    y = moveaxis(y, -1, 0)
    return result("quantile", reshape(y, *parts.shape, *(kept if keepdims else y.shape[1:])), out)


@array_function()
def percentile(
    x: TensorLike, q: TensorLike, axis: Axis = None,
    out: Tensor | None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False
) -> Tensor:
    """:func:`quantile` of ``q`` in percent."""
    parts = np.asarray(q.numpy() if isinstance(q, Tensor) else q, np.float64) / 100
    return quantile(x, parts, axis, out, overwrite_input, method, keepdims)


@array_function()
def median(x: TensorLike, axis: Axis = None, out: Tensor | None = None,
           overwrite_input: bool = False, keepdims: bool = False) -> Tensor:
    """The middle element, or the mean of the two middle ones (numpy.median)."""
    return quantile(x, 0.5, axis, out, keepdims=keepdims)


@array_function()
def cov(m: TensorLike, y: TensorLike | None = None, rowvar: bool = True, bias: bool = False,
        ddof: int | None = None) -> Tensor:
    """The covariances of the rows (numpy.cov)."""
    t = _floats(m)
    t = t[None] if t.ndim == 1 else t
    t = t if rowvar or t.shape[0] == 1 else t.T
    if y is not None:
        other = _floats(y, t)
        other = other[None] if other.ndim == 1 else other
        t = concatenate([t, other if rowvar or other.shape[0] == 1 else other.T], 0)
    less = (0 if bias else 1) if ddof is None else ddof
    centered = t - average(t, axis=1, keepdims=True)
    matrix = centered @ centered.T / (t.shape[1] - less)
    return matrix[0, 0] if matrix.shape == (1, 1) else matrix


@array_function()
def corrcoef(x: TensorLike, y: TensorLike | None = None, rowvar: bool = True) -> Tensor:
    """The correlations of the rows (numpy.corrcoef)."""
    c = cov(x, y, rowvar)
    if not c.ndim:
        return c / c
    scale = UFUNCS["sqrt"](c.diagonal_view())
    return UFUNCS["minimum"](UFUNCS["maximum"](c / scale[:, None] / scale, -1.0), 1.0)


# Searches

@array_function()
def searchsorted(a: TensorLike, v: TensorLike, side: str = "left",
                 sorter: TensorLike | None = None) -> Tensor:
    """Where to insert ``v`` so that sorted ``a`` stays so (numpy.searchsorted): a binary search of
    all values at once."""
    expect(side in ("left", "right"), "searchsorted", "side", "be left or right", side)
    edges = computed(a, v)
    expect(edges.ndim == 1, "searchsorted", "a", "be a vector", list(edges.shape))
    edges = edges if sorter is None else take(edges, sorter)
    values = constant(np.asarray(v, edges.dtype), edges.device) if is_number(v) else (
        computed(v, edges))
    before = UFUNCS["less" if side == "left" else "less_equal"]
    n = edges.size
    low = cast(values != values, INT64) * 0  # zeros of this shape
    if not n or not values.size:
        return low
    high = low + n
    for _ in range(n.bit_length()):
        middle = UFUNCS["right_shift"](low + high, 1)
        beyond = before(take(edges, UFUNCS["minimum"](middle, n - 1)), values) & (low < high)
        if values.dtype.kind == "f" and side == "left":
            beyond = beyond | (UFUNCS["isnan"](values) & (low < high)
                               & ~UFUNCS["isnan"](take(edges, UFUNCS["minimum"](middle, n - 1))))
        low, high = where(beyond, middle + 1, low), where(beyond, high, middle)
    if values.dtype.kind == "f" and side == "right":
        low = where(UFUNCS["isnan"](values), n, low)
    return low


@array_function()
def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Tensor:
    """The bin of each element (numpy.digitize). ``bins`` ascend or descend."""
    edges = computed(bins, x)
    host = edges.numpy()
    if host.size > 1 and host[0] > host[-1]:
        return edges.size - searchsorted(edges[::-1], x, "left" if not right else "right")
    return searchsorted(edges, x, "left" if right else "right")


@array_function()
def interp(x: TensorLike, xp: TensorLike, fp: TensorLike, left: float | None = None,
           right: float | None = None) -> Tensor:
    """Values between points, on straight lines (numpy.interp)."""
    beside = [v for v in (x, xp, fp) if isinstance(v, Tensor)]
    at, points, values = (_floats(v, *beside) for v in (x, xp, fp))
    expect(points.ndim == values.ndim == 1 and points.size == values.size > 0, "interp",
           "xp and fp", "be vectors of one size", list(points.shape), list(values.shape))
    if points.size == 1:
        y = at * 0 + values[0]
    else:
        high = UFUNCS["minimum"](UFUNCS["maximum"](searchsorted(points, at), 1), points.size - 1)
        x0, x1, y0, y1 = (take(t, i) for t in (points, values) for i in (high - 1, high))
        y = y0 + (at - x0) * ((y1 - y0) / (x1 - x0))
    y = where(at <= points[0], values[0], where(at >= points[-1], values[-1], y))
    y = y if left is None else where(at < points[0], left, y)
    y = y if right is None else where(at > points[-1], right, y)
    return where(UFUNCS["isnan"](at), np.nan, y)


# Counts

@array_function()
def bincount(x: TensorLike, weights: TensorLike | None = None, minlength: int = 0) -> Tensor:
    """How often each number of at least 0 occurs, or the sums of the weights (numpy.bincount).
    The largest number is read."""
    t = as_tensor(x, weights)
    expect(t.ndim == 1 and t.dtype.kind in "biu", "bincount", "x", "be a vector of integers",
           t.summary())
    if not t.size:
        return zeros(minlength, dtype="int64" if weights is None else "float32", device=t.device)
    ends = t.numpy()
    expect(ends.min() >= 0, "bincount", "x", "hold no negative number", ends.min())
    count = max(int(ends.max()) + 1, minlength)
    if weights is None:
        return _steps(searchsorted(sort(t), arange(count + 1, device=t.device)))
    order = argsort(t)
    sums = cumsum(take(_floats(weights, t), order))
    at = searchsorted(take(t, order), arange(count + 1, device=t.device))
    return _steps(take(concatenate([sums[:1] * 0, sums], 0), at))


def _steps(ends: Tensor) -> Tensor:
    return ends[1:] - ends[:-1]


@array_function()
def histogram_bin_edges(x: TensorLike, bins: Any = 10, range: Any = None,
                        weights: TensorLike | None = None) -> Tensor:
    """The edges of bins, equal in width where ``bins`` is their number. Extremes are read."""
    t = _floats(x)
    if not isinstance(bins, (int, np.integer)):
        expect(not isinstance(bins, str), "histogram", "bins", "be a number or edges", bins)
        return _floats(bins, t)
    if range is None:
        low, high = (t.min().item(), t.max().item()) if t.size else (0.0, 1.0)
    else:
        low, high = map(float, range)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return linspace(low, high, int(bins) + 1, device=t.device)


@array_function()
def histogram(x: TensorLike, bins: object = 10, range: object = None, density: bool | None = None,
              weights: TensorLike | None = None) -> tuple[Tensor, Tensor]:
    """How many elements lie in each bin, and the bins' edges (numpy.histogram)."""
    edges = histogram_bin_edges(x, bins, range)
    t = reshape(_floats(x, edges), -1)
    order = argsort(t)
    ordered = take(t, order)
    at = concatenate([searchsorted(ordered, edges[:-1]),
                      searchsorted(ordered, edges[-1:], "right")], 0)
    if weights is None:
        counts = _steps(at)
    else:
        sums = cumsum(take(reshape(_floats(weights, t), -1), order))
        counts = _steps(take(concatenate([sums[:1] * 0, sums], 0), at))
    if density:
        counts = counts / (edges[1:] - edges[:-1]) / counts.sum()
    return counts, edges


# Sets

@array_function()
def unique(x: TensorLike, return_index: bool = False, return_inverse: bool = False,
           return_counts: bool = False, axis: int | None = None, *,
           equal_nan: bool = True) -> Any:
    """The different elements in ascending order, and the first index, the inverse and the counts of
    each as asked for (numpy.unique). Their number is read."""
    t = as_tensor(x)
    expect(axis is None, "unique", "axis", "be None", axis)
    flat = reshape(t, -1)
    order = argsort(flat)
    ordered = take(flat, order)
    new = ordered[1:] != ordered[:-1]
    if t.dtype.kind == "f" and equal_nan:
        new = new & ~(UFUNCS["isnan"](ordered[1:]) & UFUNCS["isnan"](ordered[:-1]))
    first = concatenate([cast(ordered[:1] == ordered[:1], INT64) * 0 + 1, cast(new, INT64)], 0)
    at = nonzero(first)[0]
    results = [take(ordered, at)]
    if return_index:
        results.append(take(order, at))
    if return_inverse:
        inverse = zeros(flat.shape, dtype="int64", device=t.device)
        put(inverse, order, cumsum(first) - 1)
        results.append(reshape(inverse, *t.shape))
    if return_counts:
        ends = concatenate([at, at[:1] * 0 + flat.size], 0)
        results.append(ends[1:] - ends[:-1])
    return results[0] if len(results) == 1 else tuple(results)


@array_function("isin", "in1d")
def isin(element: TensorLike, test_elements: TensorLike, assume_unique: bool = False,
         invert: bool = False) -> Tensor:
    """Whether each element is one of others (numpy.isin)."""
    t = computed(element, test_elements)
    others = sort(reshape(computed(test_elements, t), -1))
    if not others.size:
        inside = t != t
    else:
        at = UFUNCS["minimum"](searchsorted(others, t), others.size - 1)
        inside = take(others, at) == t
    return ~inside if invert else inside


@array_function()
def union1d(a: TensorLike, b: TensorLike) -> Tensor:
    """The different elements of both."""
    x, y = as_tensor(a, b), as_tensor(b, a)
    union: Tensor = unique(concatenate([reshape(x, -1), reshape(y, -1)], 0))
    return union


@array_function()
def intersect1d(a: TensorLike, b: TensorLike, assume_unique: bool = False) -> Tensor:
    """The different elements that are in both."""
    x = unique(as_tensor(a, b))
    both: Tensor = x[isin(x, b)]
    return both


@array_function()
def setdiff1d(a: TensorLike, b: TensorLike, assume_unique: bool = False) -> Tensor:
    """The different elements of ``a`` that are not in ``b``."""
    x = unique(as_tensor(a, b))
    rest: Tensor = x[isin(x, b, invert=True)]
    return rest
