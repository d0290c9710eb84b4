"""NumPy's reductions, scans and sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..attributes import AxisDirection, ReduceFunction
from ..errors import OutOfRangeError, expect, integers
from ..layout import product
from ..tensors import Tensor
from ..tensors.attached import attached
from ..tensors.types import (
    BOOL,
    FLOAT32,
    DataTypeLike,
    DType,
    TensorLike,
    computable,
    element_type,
    floating,
)
from .operand import as_tensor, as_truth, cast, computed, copied, dml, reshape, result, store
from .registry import array_function, publish, spelled

Axis = int | Sequence[int] | None


def axes_of(name: str, axis: Axis, rank: int) -> tuple[int, ...]:
    """Axes counted from the front; all axes for None."""
    if axis is None:
        return tuple(range(rank))
    signed = integers(name, "axis", axis if isinstance(axis, (tuple, list)) else (axis,))
    for a in signed:
        if not -rank <= a < rank:
            raise OutOfRangeError(f"{name}: expected axis to be in [-{rank}, {rank}), but got {a}")
    axes = tuple(a % rank for a in signed)
    expect(len(set(axes)) == len(axes), name, "axis", "name each axis once", axis)
    return axes


def one_axis(name: str, x: Tensor, axis: Axis) -> tuple[Tensor, int]:
    """The tensor and the axis, counted from the front. For None, all elements as one dimension."""
    if axis is None:
        return reshape(x, x.size), 0
    (at,) = axes_of(name, axis, x.ndim)
    return x, at


def _without(y: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Remove the reduced axes."""
    if keepdims:
        return y
    return reshape(y, *(n for d, n in enumerate(y.sizes) if d not in axes))


def reduce(
    name: str, x: Tensor, function: ReduceFunction, axis: Axis,
    keepdims: bool, out: Tensor | None = None
) -> Tensor:
    """DirectML's REDUCE over NumPy's axes."""
    computable(name, x.dtype)
    axes = axes_of(name, axis, x.ndim)
    if not x.size:
        y = _of_nothing(name, x, function, axes)
        return result(name, _without(y, axes, keepdims), out)
    y = dml("reduce")(x, function=function, axes=axes) if axes else copied(x)
    return result(name, _without(y, axes, keepdims), out)


_NEUTRAL: dict[ReduceFunction, float] = {
    ReduceFunction.SUM: 0, ReduceFunction.L1: 0, ReduceFunction.L2: 0, ReduceFunction.MULTIPLY: 1,
    ReduceFunction.AVERAGE: np.nan}
"""What NumPy makes of no elements."""


def _of_nothing(name: str, x: Tensor, function: ReduceFunction, axes: Sequence[int]) -> Tensor:
    """A reduction of a tensor without elements. NumPy refuses the extremes of none."""
    sizes = [1 if d in axes else n for d, n in enumerate(x.shape)]
    y = x.device.empty(sizes, x.data_type)
    if not y.size:
        return y
    expect(function in _NEUTRAL, name, "the tensor", "have an element to choose", x.summary())
    return store(y, _NEUTRAL[function])


def _summed(dtype: DType[np.generic]) -> DType[Any]:
    """The type that NumPy sums such elements in."""
    if dtype.kind in "bi":
        return np.dtype(np.int64)
    return np.dtype(np.uint64) if dtype.kind == "u" else dtype


def _over(name: str, function: ReduceFunction) -> Any:
    def call(x: TensorLike, axis: Axis = None, dtype: DataTypeLike | None = None,
             out: Tensor | None = None, keepdims: bool = False) -> Tensor:
        t = computed(x)
        kind = _summed(t.dtype) if dtype is None else element_type(dtype)
        return reduce(name, cast(t, kind), function, axis, keepdims, out)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"numpy.{name}: small integers and truth values in 64 bits."
    return array_function()(call)


sum = _over("sum", ReduceFunction.SUM)
prod = _over("prod", ReduceFunction.MULTIPLY)


def _extreme(
    x: TensorLike, function: ReduceFunction, name: str, axis: Axis,
    keepdims: bool, out: Tensor | None
) -> Tensor:
    t = computed(x)
    if t.dtype == BOOL:
        return result(name, as_truth(reduce(name, cast(t, np.dtype("uint8")), function, axis,
                                            keepdims)), out)
    return reduce(name, t, function, axis, keepdims, out)


@array_function("max", "amax", public=False)
def amax(x: TensorLike, axis: Axis = None, out: Tensor | None = None,
         keepdims: bool = False) -> Tensor:
    """The largest element; NaN where there is one."""
    return _extreme(x, ReduceFunction.MAX, "max", axis, keepdims, out)


@array_function("min", "amin", public=False)
def amin(x: TensorLike, axis: Axis = None, out: Tensor | None = None,
         keepdims: bool = False) -> Tensor:
    """The smallest element; NaN where there is one."""
    return _extreme(x, ReduceFunction.MIN, "min", axis, keepdims, out)


@array_function("mean", public=False)
def average(x: TensorLike, axis: Axis = None, dtype: DataTypeLike | None = None,
            out: Tensor | None = None, keepdims: bool = False) -> Tensor:
    """The mean. Integers are averaged in float32."""
    t = computed(x)
    kind = element_type(dtype) if dtype is not None else (
        t.dtype if t.dtype.kind == "f" else FLOAT32)
    return reduce("mean", cast(t, kind), ReduceFunction.AVERAGE, axis, keepdims, out)


def _one_or_two(name: str, of_one: Any) -> None:
    """Publish a function that reduces one tensor, or is DirectML's function of two tensors."""

    def call(a: TensorLike, b: TensorLike | None = None, axis: Axis = None,
             keepdims: bool = False, out: Tensor | None = None) -> Tensor:
        if b is not None:
            expect(axis is None and not keepdims, name, "axis and keepdims",
                   "be left out with two tensors", axis)
            return dml(name)(a, b, out=out)
        return of_one(a, axis=axis, keepdims=keepdims, out=out)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "kompute_dml"
    call.__doc__ = (f"Of one tensor NumPy's ``{name}`` over ``axis``. "
                    f"Of two, element by element:\n\n{dml(name).__doc__}")
    publish(name, spelled(call))


_one_or_two("max", amax)
_one_or_two("min", amin)
_one_or_two("mean", average)


@array_function()
def var(x: TensorLike, axis: Axis = None, dtype: DataTypeLike | None = None,
        out: Tensor | None = None, ddof: float = 0, keepdims: bool = False, *,
        correction: float | None = None) -> Tensor:
    """The sum of squares about the mean over the count less ``ddof`` (PyTorch's default is 1)."""
    t = computed(x)
    kind = floating("var", t.dtype) if t.dtype.kind == "f" else FLOAT32
    kind = kind if dtype is None else element_type(dtype)
    wide = cast(t, FLOAT32)
    axes = axes_of("var", axis, t.ndim)
    centered = wide - average(wide, axis=axes, keepdims=True)
    count = product([t.sizes[a] for a in axes])
    less = ddof if correction is None else correction
    expect(count > less, "var", "ddof", f"be less than the count {count}", less)
    squares = reduce("var", centered * centered, ReduceFunction.SUM, axes, keepdims)
    return result("var", cast(squares / (count - less), kind), out)


@array_function()
def std(x: TensorLike, axis: Axis = None, dtype: DataTypeLike | None = None,
        out: Tensor | None = None, ddof: float = 0, keepdims: bool = False, *,
        correction: float | None = None) -> Tensor:
    """The root of :func:`var`."""
    of = var(x, axis, dtype, None, ddof, keepdims, correction=correction)
    return result("std", dml("sqrt")(of), out)


def _truth_of(
    x: TensorLike, axis: object, out: Any, keepdims: bool, extreme: Any, of_none: bool
) -> Tensor:
    """The largest or the smallest truth value; ``of_none`` without elements."""
    t = cast(as_tensor(x), BOOL)
    if t.size:
        y: Tensor = extreme(t, axis, out, keepdims)
        return y
    counts = sum(t, axis, keepdims=keepdims)
    return result("any", (counts == 0) if of_none else cast(counts, BOOL), out)


@array_function()
def any(x: TensorLike, axis: Axis = None, out: Tensor | None = None,
        keepdims: bool = False) -> Tensor:
    """Whether any element is not 0."""
    return _truth_of(x, axis, out, keepdims, amax, False)


@array_function()
def all(x: TensorLike, axis: Axis = None, out: Tensor | None = None,
        keepdims: bool = False) -> Tensor:
    """Whether no element is 0."""
    return _truth_of(x, axis, out, keepdims, amin, True)


@array_function()
def count_nonzero(x: TensorLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """How many elements are not 0."""
    return sum(cast(as_tensor(x), BOOL), axis, keepdims=keepdims)


@array_function()
def ptp(x: TensorLike, axis: Axis = None, out: Tensor | None = None,
        keepdims: bool = False) -> Tensor:
    """The largest element less the smallest."""
    return result("ptp", amax(x, axis, None, keepdims) - amin(x, axis, None, keepdims), out)


def bits_of(x: Tensor) -> Tensor:
    """Truth values as UINT8, which DirectML sorts and compares."""
    return cast(x, np.dtype("uint8")) if x.dtype == BOOL else x


def _position(name: str) -> Any:
    def call(x: TensorLike, axis: int | None = None, out: Tensor | None = None,
             keepdims: bool = False) -> Tensor:
        t, at = one_axis(name, computed(x), axis)
        expect(t.sizes[at] > 0, name, "the tensor", "have an element to choose", t.summary())
        if not t.size:
            places = t.device.empty([1 if d == at else n for d, n in enumerate(t.sizes)], "int64")
            return result(name, _without(places, (at,), keepdims), out)
        y = dml(name)(bits_of(t), axes=(at,), data_type="int64")
        if axis is None and keepdims:
            return result(name, reshape(y, *[1] * as_tensor(x).ndim), out)
        return result(name, _without(y, (at,), keepdims), out)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (f"Where the {'largest' if name == 'argmax' else 'smallest'} element lies, the "
                    "first of several.\n\nWith ``axes``, DirectML's:\n\n" + dml(name).__doc__)

    def either(x: TensorLike, axis: int | None = None, *, axes: Sequence[int] | None = None,
               keepdims: bool = False, out: Tensor | None = None, **options: object) -> Tensor:
        if axes is not None:
            return dml(name)(x, axes=axes, out=out, **options)
        return call(x, axis, out, keepdims)

    either.__name__ = either.__qualname__ = name
    either.__doc__ = call.__doc__
    publish(name, spelled(either))
    return array_function(public=False)(call)


argmax = _position("argmax")
argmin = _position("argmin")


def _scan(name: str, function: str) -> Any:
    def call(x: TensorLike, axis: int | None = None, dtype: DataTypeLike | None = None,
             out: Tensor | None = None) -> Tensor:
        t, at = one_axis(name, computed(x), axis)
        kind = computable(name, _summed(t.dtype) if dtype is None else element_type(dtype))
        return result(name, dml(function)(cast(t, kind), axis=at) if t.size else cast(t, kind), out)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"numpy.{name}: small integers and truth values in 64 bits."
    return array_function()(call)


cumsum = _scan("cumsum", "cumulative_summation")
cumprod = _scan("cumprod", "cumulative_product")


def _ordered(
    x: TensorLike, axis: Axis, name: str, descending: bool, k: int | None
) -> Any:
    t, at = one_axis(name, computed(x), axis)
    if not t.size and k is None:
        return copied(t), t.device.empty(t.shape, "int64")
    direction = AxisDirection.DECREASING if descending else AxisDirection.INCREASING
    values, indices = dml("top_k1")(bits_of(t), axis=at, k=t.sizes[at] if k is None else k,
                                    axis_direction=direction)
    return as_truth(values) if t.truth else values, cast(indices, np.dtype(np.int64))


def _stable(name: str, kind: object) -> None:
    expect(kind in (None, "quicksort", "mergesort", "heapsort", "stable"), name, "kind",
           "be a sort of NumPy's (all are stable here)", kind)


@array_function()
def sort(x: TensorLike, axis: int | None = -1, kind: str | None = None, order: None = None, *,
         stable: bool | None = None, descending: bool = False) -> Tensor:
    """A sorted copy; NaN comes last."""
    _stable("sort", kind)
    return _ordered(x, axis, "sort", descending, None)[0]


@array_function()
def argsort(x: TensorLike, axis: int | None = -1, kind: str | None = None, order: None = None, *,
            stable: bool | None = None, descending: bool = False) -> Tensor:
    """The indices that sort, INT64; equal elements keep their order."""
    _stable("argsort", kind)
    return _ordered(x, axis, "argsort", descending, None)[1]


def topk(x: TensorLike, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The ``k`` largest elements along ``axis`` and their indices, INT64, as torch.topk."""
    top: tuple[Tensor, Tensor] = _ordered(x, axis, "topk", largest, k)
    return top


publish("topk", spelled(topk))


@array_function()
def partition(
    x: TensorLike, kth: ArrayLike, axis: int | None = -1, kind: str = "introselect"
) -> Tensor:
    """A copy in which element ``kth`` is where sorting puts it: all are sorted."""
    return sort(x, axis)


@array_function()
def argpartition(x: TensorLike, kth: ArrayLike, axis: int | None = -1,
                 kind: str = "introselect") -> Tensor:
    """The indices of :func:`partition`."""
    return argsort(x, axis)


@array_function()
def lexsort(keys: Any, axis: int = -1) -> Tensor:
    """The indices that sort by the last key, then by the one before it, and so on."""
    order: Tensor | None = None
    for key in keys:
        t = as_tensor(key, *keys)
        expect(t.ndim == 1, "lexsort", "the keys", "be vectors", list(t.shape))
        order = argsort(t) if order is None else order[argsort(t[order])]
    expect(order is not None, "lexsort", "the keys", "be at least one", 0)
    assert order is not None
    return order


@attached
def sort_in_place(x: Tensor, axis: int = -1, **options: Any) -> None:
    """``x.sort()``."""
    store(x, sort(x, axis, **options))


@array_function("average", public=False)
def weighted_average(x: TensorLike, axis: Axis = None, weights: TensorLike | None = None, *,
                     keepdims: bool = False) -> Tensor:
    """numpy.average: the mean, or the sum of weighted elements over the sum of the weights."""
    if weights is None:
        return average(x, axis, keepdims=keepdims)
    t, w = as_tensor(x, weights), as_tensor(weights, x)
    if w.ndim == 1 and t.ndim > 1:
        at = axes_of("average", axis, t.ndim)
        expect(len(at) == 1, "average", "axis", "be one, as the weights have one", axis)
        w = reshape(w, *[-1 if d in at else 1 for d in range(t.ndim)])
    w = w.broadcast_to(t.sizes)
    return sum(t * w, axis, keepdims=keepdims) / sum(w, axis, keepdims=keepdims)


@array_function("linalg.norm", public=False)
def norm(
    x: TensorLike, ord: object = None, axis: Axis = None,
    keepdims: bool = False
) -> Tensor:
    """numpy.linalg.norm of vectors: the root of the sum of squares, or the sum of absolute
    values."""
    expect(ord in (None, 1, 2, "fro", np.inf), "norm", "ord", "be None, 1 or 2", ord)
    function = ReduceFunction.L1 if ord == 1 else ReduceFunction.L2
    t = computed(x)
    t = t if t.dtype.kind == "f" else cast(t, FLOAT32)
    expect(ord in (None, "fro") or axis is not None or t.ndim == 1, "norm", "ord",
           "be None for matrices", ord)
    return reduce("norm", t, function, axis, keepdims)
