"""Reads and writes of elements by indices and conditions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import OutOfRangeError, UnsupportedError, ValidationError, expect
from ..tensors import Tensor
from .operand import (
    as_tensor,
    as_truth,
    cast,
    constant,
    copied,
    dml,
    operand,
    reshape,
    result,
    store,
)
from .reductions import axes_of
from .registry import array_function
from .types import BOOL, TensorLike, dtype_of, is_number, promoted
from .ufuncs import UFUNCS

INT64 = np.dtype(np.int64)


def _is_list(key: Any) -> bool:
    """Whether a part of an index is an array of indices or truth values."""
    return isinstance(key, (list, np.ndarray, Tensor))


def _mask(key: Any) -> bool:
    return _is_list(key) and dtype_of(key) == BOOL


def _indices(key: Any, size: int, beside: Tensor) -> Tensor:
    """Indices as INT64. Those of the host are checked; those of a device are wrapped and
    clamped."""
    if isinstance(key, Tensor):
        expect(key.dtype.kind in "iu", "tensor[indices]", "the indices", "be integers", key.dtype)
        wanted = key.dtype if key.dtype.itemsize >= 4 else INT64
        return cast(key, wanted)
    host = np.asarray(key)
    if host.dtype.kind not in "iu" or host.size == 0:
        raise OutOfRangeError(f"only integers, slices, Ellipsis, None and arrays of integers "
                              f"index a tensor, not {key!r}")
    if host.min() < -size or host.max() >= size:
        raise OutOfRangeError(f"index {int(host.min()) if host.min() < -size else int(host.max())} "
                              f"is out of range for size {size}")
    return beside.device.tensor(host.astype(np.int64))


def _lists_first(x: Tensor, key: Any) -> tuple[Tensor, Any, int]:
    """The view that the slices give, the only array of indices, and its axis in the view."""
    parts = key if isinstance(key, tuple) else (key,)
    at = [i for i, k in enumerate(parts) if _is_list(k)]
    others = [k for i, k in enumerate(parts) if i not in at]
    if len(at) > 1 or any(not isinstance(k, slice) and k is not Ellipsis and k is not None
                          for k in others):
        raise UnsupportedError(
            "tensor[...]: expected one array of indices, beside slices only; "
            "kompute_dml.gather_nd and kompute_dml.take_along_axis take several")
    place = at[0]
    view = x.window(tuple(slice(None) if i == place else k for i, k in enumerate(parts)))
    if Ellipsis in others and any(k is Ellipsis for k in parts[:place]):
        axis = view.ndim - (len(parts) - place)
    else:
        axis = place
    return view, parts[place], axis


def get(x: Tensor, key: Any) -> Tensor:
    """``x[key]``: a view, or a copy for an array of indices."""
    parts = key if isinstance(key, tuple) else (key,)
    if not any(_is_list(k) for k in parts):
        return x.window(key)
    if any(_mask(k) for k in parts):
        raise UnsupportedError(
            "tensor[mask]: expected sizes that are known before the device is read, but those of a "
            "mask are not; dml.where(mask, x, other) keeps the sizes, and x.numpy()[mask] "
            "selects on the host")
    view, indices, axis = _lists_first(x, key)
    return take(view, indices, axis)


def put(x: Tensor, key: Any, value: Any) -> None:
    """``x[key] = value``."""
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) == 1 and _mask(parts[0]):
        _put_masked(x, as_tensor(parts[0], x), value)
    elif any(_is_list(k) for k in parts):
        view, indices, axis = _lists_first(x, key)
        expect(not any(_mask(k) for k in parts), "tensor[...] = value", "a mask",
               "stand alone", key)
        picked = _indices(indices, view.sizes[axis], x)
        sizes = (*view.sizes[:axis], *picked.sizes, *view.sizes[axis + 1:])
        updates = copied(operand_like(value, x).broadcast_to(sizes))
        flat = (*view.sizes[:axis], picked.size, *view.sizes[axis + 1:])
        along = reshape(picked, *[-1 if d == axis else 1 for d in range(view.ndim)])
        store(view, _typed(x, dml("scatter")(
            copied(view), copied(along.broadcast_to(flat)), reshape(updates, flat), axis=axis)))
    else:
        store(x.window(key), value)


def _typed(like: Tensor, y: Tensor) -> Tensor:
    return as_truth(y) if like.truth and not y.truth else y


def operand_like(value: Any, x: Tensor) -> Tensor:
    """``value`` as a tensor with the type of ``x``."""
    if is_number(value):
        y = x.device.empty([1], x.data_type)
        return store(_typed(x, y), value)
    return cast(as_tensor(value, x), x.dtype)


def _put_masked(x: Tensor, mask: Tensor, value: Any) -> None:
    expect(mask.sizes == x.sizes[: mask.ndim], "tensor[mask] = value", "the mask's sizes",
           f"be the first of {list(x.sizes)}", list(mask.sizes))
    new = operand_like(value, x)
    if new.size != 1:
        raise UnsupportedError(
            "tensor[mask] = values: expected one value, as how many are needed is not known before "
            "the device is read; x[...] = kompute_dml.where(mask, values, x) takes values of the "
            "sizes of x")
    wide = reshape(mask, *mask.sizes, *[1] * (x.ndim - mask.ndim)).broadcast_to(x.sizes)
    store(x, _typed(x, dml("if_")(wide, new, x)))


@array_function()
def take(x: TensorLike, indices: TensorLike, axis: int | None = None,
         out: Tensor | None = None, mode: str = "raise") -> Tensor:
    """Elements by index along ``axis``, by default among all elements. Indices in a tensor are not
    checked: negative ones count from the end, and all are clamped."""
    t = as_tensor(x, indices)
    if axis is None:
        t, axis = reshape(t, -1), 0
    (at,) = axes_of("take", axis, t.ndim)
    picked = _indices(np.asarray(indices) if is_number(indices) else indices, t.sizes[at], t)
    flat = reshape(picked, *[1] * (t.ndim - 1), picked.size)
    y = dml("gather")(t, flat, axis=at, index_dimensions=1)
    sizes = (*t.sizes[:at], *(() if is_number(indices) else picked.sizes), *t.sizes[at + 1:])
    return result("take", _typed(t, reshape(y, *(sizes or (1,)))), out)


@array_function()
def take_along_axis(x: TensorLike, indices: TensorLike, axis: int | None = -1) -> Tensor:
    """``y[i, j] = x[indices[i, j], j]`` (numpy.take_along_axis)."""
    t, by = as_tensor(x, indices), as_tensor(indices, x)
    if axis is None:
        t, axis = reshape(t, -1), 0
    (at,) = axes_of("take_along_axis", axis, t.ndim)
    expect(by.dtype.kind in "iu", "take_along_axis", "the indices", "be integers", by.dtype)
    by = by if by.itemsize >= 4 else cast(by, INT64)
    sizes = [n if d == at else max(n, m) for d, (n, m) in enumerate(zip(by.sizes, t.sizes))]
    return _typed(t, dml("gather_elements")(t, by.broadcast_to(sizes), axis=at))


@array_function()
def where(condition: TensorLike, x: TensorLike | None = None,
          y: TensorLike | None = None) -> Tensor:
    """``x`` where the condition is not 0, else ``y``; types promote."""
    if x is None or y is None:
        raise UnsupportedError(
            "where: expected x and y, as the sizes of indices are not known before the device is "
            "read; kompute_dml.nonzero_coordinates gives a count and coordinates")
    kind = promoted("where", x, y)
    t = as_tensor(condition, x, y)
    a, b = (_tensor_of(operand(v, kind, t.device), kind, t) for v in (x, y))
    made = dml("if_")(cast(t, BOOL), a, b)
    return as_truth(made) if kind == BOOL else made


def _tensor_of(value: Any, kind: Any, beside: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else constant(np.asarray(value, kind), beside.device)


@array_function(public=False)
def clip(x: TensorLike, a_min: Any = None, a_max: Any = None, out: Tensor | None = None, *,
         min: Any = None, max: Any = None) -> Tensor:
    """``x`` limited to two bounds, each a number, an array or None (numpy.clip)."""
    low, high = a_min if min is None else min, a_max if max is None else max
    y = as_tensor(x)
    if low is not None:
        y = UFUNCS["maximum"](y, low)
    if high is not None:
        y = UFUNCS["minimum"](y, high)
    return result("clip", copied(y) if y is x else y, out)


@array_function("round", "around", public=False)
def round(x: TensorLike, decimals: int = 0, out: Tensor | None = None) -> Tensor:
    """Rounded to ``decimals``, halves to even."""
    expect(decimals == 0 or as_tensor(x).dtype.kind == "f", "round", "decimals",
           "be 0 for integers", decimals)
    if decimals == 0:
        return UFUNCS["rint"](x, out=out)
    scale = 10.0**decimals
    return result("round", UFUNCS["rint"](as_tensor(x) * scale) / scale, out)


@array_function()
def isclose(a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8,
            equal_nan: bool = False) -> Tensor:
    """``abs(a - b) <= atol + rtol * abs(b)``, element by element."""
    x, y = as_tensor(a, b), as_tensor(b, a)
    kind = promoted("isclose", x, y)
    kind = kind if kind.kind == "f" else np.dtype("float32")
    x, y = cast(x, kind), cast(y, kind)
    near = (UFUNCS["absolute"](x - y) <= UFUNCS["absolute"](y) * rtol + atol)
    near = (near & UFUNCS["isfinite"](y)) | (x == y)
    return near | (UFUNCS["isnan"](x) & UFUNCS["isnan"](y)) if equal_nan else near


@array_function()
def allclose(a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8,
             equal_nan: bool = False) -> bool:
    """Whether all elements are close. Waits for the device."""
    return bool(isclose(a, b, rtol, atol, equal_nan).numpy().all())


@array_function("array_equal", "equal_arrays")
def array_equal(a: TensorLike, b: TensorLike, equal_nan: bool = False) -> bool:
    """Whether sizes and elements are equal. Waits for the device."""
    x, y = as_tensor(a, b), as_tensor(b, a)
    if x.sizes != y.sizes:
        return False
    same = x == y
    if equal_nan:
        same = same | (UFUNCS["isnan"](x) & UFUNCS["isnan"](y))
    return bool(same.numpy().all())


@array_function(public=False)
def copyto(dst: Tensor, src: TensorLike, casting: str = "same_kind", where: Any = True) -> None:
    """``dst[...] = src``."""
    if not isinstance(dst, Tensor):
        raise ValidationError("copyto: expected a Tensor to copy to, but got "
                              f"{type(dst).__name__}; tensor.numpy() copies to the host")
    expect(where is True, "copyto", "where", "be True (dst[mask] = value)", where)
    store(dst, src)
