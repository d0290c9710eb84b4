"""NumPy's functions that are a few calls of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from ..errors import ValidationError, expect
from ..tensors import Tensor
from ..tensors.attached import NUMPY, UFUNCS
from ..tensors.types import TensorLike, dtype_of
from .composed import nanmean
from .movement import diagonal, split
from .operand import as_tensor, copied, dml, store
from .reductions import Axis, axes_of
from .reductions import sum as sum_over
from .registry import array_function
from .selection import operand_like, where


@array_function()
def hsplit(x: TensorLike, indices_or_sections: ArrayLike) -> list[Tensor]:
    """:func:`split` along the second dimension, or the only one (numpy.hsplit)."""
    t = as_tensor(x)
    return split(t, indices_or_sections, 1 if t.ndim > 1 else 0)


@array_function()
def vsplit(x: TensorLike, indices_or_sections: ArrayLike) -> list[Tensor]:
    """:func:`split` along the first of at least two dimensions (numpy.vsplit)."""
    t = as_tensor(x)
    expect(t.ndim > 1, "vsplit", "x", "have at least 2 dimensions", t.summary())
    return split(t, indices_or_sections, 0)


@array_function()
def dsplit(x: TensorLike, indices_or_sections: ArrayLike) -> list[Tensor]:
    """:func:`split` along the third dimension (numpy.dsplit)."""
    t = as_tensor(x)
    expect(t.ndim > 2, "dsplit", "x", "have at least 3 dimensions", t.summary())
    return split(t, indices_or_sections, 2)


@array_function()
def fix(x: TensorLike, out: Tensor | None = None) -> Tensor:
    """The elements without their fractions."""
    return UFUNCS["trunc"](x, out=out)


@array_function()
def isposinf(x: TensorLike) -> Tensor:
    """Where the elements are infinity."""
    t = as_tensor(x)
    return UFUNCS["isinf"](t) & (t > 0)


@array_function()
def isneginf(x: TensorLike) -> Tensor:
    """Where the elements are -infinity."""
    t = as_tensor(x)
    return UFUNCS["isinf"](t) & (t < 0)


@array_function()
def polyval(p: TensorLike, x: TensorLike) -> Tensor:
    """The polynomial of the factors ``p``, the highest power first, at ``x``."""
    t = as_tensor(x, p)
    y = t * 0
    for factor in p:  # type: ignore[union-attr]
        y = y * t + factor
    return y


@array_function()
def select(condlist: Sequence[TensorLike], choicelist: Sequence[TensorLike],
           default: Any = 0) -> Tensor:
    """For each element the first choice whose condition holds, else the default."""
    expect(len(condlist) == len(choicelist) > 0, "select", "choicelist",
           f"have as many entries as condlist, which has {len(condlist)}", len(choicelist))
    y = default
    for condition, choice in reversed([*zip(condlist, choicelist)]):
        y = where(condition, choice, y)
    return y


@array_function()
def nanvar(
    x: TensorLike, axis: Axis = None, ddof: float = 0, keepdims: bool = False
) -> Tensor:
    """The variance of the elements that are not NaN; NaN where there are no more than ``ddof``."""
    t = as_tensor(x)
    if dtype_of(t).kind != "f":
        return NUMPY["var"](t, axis=axis, ddof=ddof, keepdims=keepdims)
    there = ~UFUNCS["isnan"](t)
    about = t - nanmean(t, axis, keepdims=True)
    squares = sum_over(where(there, about * about, 0), axis=axis, keepdims=keepdims)
    count = sum_over(there, axis=axis, keepdims=keepdims).astype(t.dtype) - ddof
    return where(count > 0, squares / count, float("nan"))


@array_function()
def nanstd(
    x: TensorLike, axis: Axis = None, ddof: float = 0, keepdims: bool = False
) -> Tensor:
    """The root of :func:`nanvar`."""
    return UFUNCS["sqrt"](nanvar(x, axis, ddof, keepdims))


def _written(name: str, x: TensorLike) -> Tensor:
    if not isinstance(x, Tensor):
        raise ValidationError(f"{name}: expected a Tensor to write to, but got {type(x).__name__}")
    return x


@array_function()
def put_along_axis(arr: Tensor, indices: ArrayLike, values: TensorLike, axis: int) -> None:
    """``arr[indices[i, j], j] = values[i, j]``, in place (numpy.put_along_axis)."""
    t = _written("put_along_axis", arr)
    (at,) = axes_of("put_along_axis", axis, t.ndim)
    by = as_tensor(indices, t)
    expect(by.dtype.kind in "iu" and by.ndim == t.ndim, "put_along_axis", "the indices",
           f"be integers of {t.ndim} dimensions", by.summary())
    sizes = [m if d == at else n for d, (n, m) in enumerate(zip(t.sizes, by.sizes))]
    store(t, dml("scatter")(copied(t), copied(by.astype("int64").broadcast_to(sizes)),
                            copied(operand_like(values, t).broadcast_to(sizes)), axis=at))


@array_function()
def fill_diagonal(a: Tensor, val: TensorLike) -> None:
    """``a[i, i] = val`` of a matrix, in place (numpy.fill_diagonal)."""
    t = _written("fill_diagonal", a)
    expect(t.ndim == 2, "fill_diagonal", "a", "be a matrix", t.summary())
    store(diagonal(t), val)
