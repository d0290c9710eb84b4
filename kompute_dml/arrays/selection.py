"""Reads and writes of elements by indices and conditions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import OutOfRangeError, UnsupportedError, ValidationError, expect
from ..layout import broadcast_sizes
from ..tensors import Tensor
from ..tensors.attached import UFUNCS, attached
from ..tensors.types import BOOL, TensorLike, dtype_of, is_number, promoted
from .movement import flip
from .operand import (
    as_tensor,
    as_truth,
    cast,
    constant,
    copied,
    dml,
    is_expression,
    operand,
    reshape,
    result,
    store,
)
from .reductions import bits_of, one_axis
from .registry import array_function

INT64 = np.dtype(np.int64)


def _is_list(key: object) -> bool:
    """Whether a part of an index is an array of indices or truth values."""
    return isinstance(key, (list, np.ndarray, Tensor))


def _parts(key: object) -> tuple[Any, ...]:
    """The parts of an index. An array of the host without dimensions is an integer."""
    return tuple(int(k) if isinstance(k, (np.ndarray, Tensor)) and k.ndim == 0
                 and k.dtype.kind in "iu" else k
                 for k in (key if isinstance(key, tuple) else (key,)))


def _mask(key: object) -> bool:
    return _is_list(key) and dtype_of(key) == BOOL


def _indices(key: object, size: int, beside: Tensor) -> Tensor:
    """Indices as INT64. Those of the host are checked; those of a device are wrapped and
    clamped."""
    if isinstance(key, Tensor):
        expect(key.dtype.kind in "iu", "tensor[indices]", "the indices", "be integers", key.dtype)
        wanted = key.dtype if key.dtype.itemsize >= 4 else INT64
        return cast(key, wanted)
    host = np.asarray(key)
    if host.size == 0:
        return beside.device.tensor(host.astype(np.int64))
    if host.dtype.kind not in "iu":
        raise OutOfRangeError(f"only integers, slices, Ellipsis, None and arrays of integers "
                              f"index a tensor, not {key!r}")
    if host.min() < -size or host.max() >= size:
        raise OutOfRangeError(f"index {int(host.min()) if host.min() < -size else int(host.max())} "
                              f"is out of range for size {size}")
    return beside.device.tensor(host.astype(np.int64))


def _spelled_out(x: Tensor, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parts of an index. A mask becomes the indices at which it is true. One on the device is
    counted first, and the count is read."""
    widths = [0 if k is None or k is Ellipsis else np.ndim(k) if _mask(k) else 1 for k in parts]
    spelled: list[Any] = []
    dimension = 0
    for i, k in enumerate(parts):
        if k is Ellipsis:
            dimension = x.ndim - sum(widths[i + 1:])
        if _mask(k):
            sizes = x.sizes[dimension:dimension + widths[i]]
            expect(np.shape(k) == sizes, "tensor[mask]", "the mask's sizes", f"be {list(sizes)}",
                   list(np.shape(k)))
            spelled += nonzero(k) if isinstance(k, Tensor) else np.nonzero(k)
        else:
            spelled.append(k)
        dimension += widths[i]
    return tuple(spelled)


def _points(x: Tensor, key: tuple[object, ...]) -> tuple[Tensor, list[int], list[Tensor]]:
    """The view that the slices give, the axes of it that arrays of indices select from, and these
    arrays. An integer beside an array is one, as in NumPy."""
    parts = list(key)
    if Ellipsis in [k for k in parts if not _is_list(k)]:
        place = next(i for i, k in enumerate(parts) if k is Ellipsis)
        hidden = x.ndim - sum(k is not None for k in parts) + 1
        parts[place:place + 1] = [slice(None)] * hidden
    at = [i for i, k in enumerate(parts) if _is_list(k) or isinstance(k, (int, np.integer))]
    view = x.window(tuple(slice(None) if i in at else k for i, k in enumerate(parts)))
    lists = [_indices(parts[i], view.sizes[i], x) for i in at]
    try:
        sizes = broadcast_sizes(*(t.sizes for t in lists))
    except ValueError as error:
        raise OutOfRangeError(f"tensor[...]: the arrays of indices: {error}") from None
    return view, at, [t.broadcast_to(sizes) for t in lists] if len(at) > 1 else lists


def _tuples(view: Tensor, at: list[int], lists: list[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
    """``view`` with the indexed axes first, one tensor of all indices, and the axes of the result
    in NumPy's order: at those of the arrays if these are neighbours, else first."""
    first = view.transpose(*at, *(d for d in range(view.ndim) if d not in at))
    indices = dml("join")([cast(t, INT64).reshape(*t.sizes, 1) for t in lists], axis=lists[0].ndim)
    count, rest = lists[0].ndim, view.ndim - len(at)
    before = at[0] if at[-1] - at[0] == len(at) - 1 else 0
    order = [*range(count, count + before), *range(count), *range(count + before, count + rest)]
    return first, indices, order


def _of_rank(rank: int, *tensors: Tensor) -> list[Tensor]:
    return [reshape(t, *[1] * (rank - t.ndim), *t.sizes) for t in tensors]


@attached
def get(x: Tensor, key: object) -> Tensor:
    """``x[key]``: a view, or a copy for arrays of indices."""
    parts = _parts(key)
    if any(isinstance(k, slice) and k.step is not None and k.step < 0 for k in parts):
        return _backward(x, parts)
    if not any(_is_list(k) for k in parts):
        return x.window(parts)
    parts = _spelled_out(x, parts)
    view, at, lists = _points(x, parts)
    if len(at) == 1:
        return take(view, lists[0], at[0])
    if not view.size or not lists[0].size:
        return x.device.empty(_selected(view, at, lists), x.data_type)
    first, indices, order = _tuples(view, at, lists)
    rank = max(first.ndim, indices.ndim, len(order))
    y = dml("gather_nd")(*_of_rank(rank, first, indices), input_dimension_count=first.ndim,
                         indices_dimension_count=indices.ndim)
    sizes = (*lists[0].sizes, *first.sizes[len(at):])
    return _typed(x, reshape(y, *sizes).transpose(*order))


def _selected(view: Tensor, at: list[int], lists: list[Tensor]) -> tuple[int, ...]:
    """The sizes of what several arrays of indices select."""
    rest = [n for d, n in enumerate(view.sizes) if d not in at]
    before = at[0] if at[-1] - at[0] == len(at) - 1 else 0
    return (*rest[:before], *lists[0].sizes, *rest[before:])


def _forward(x: Tensor, parts: tuple[object, ...]) -> tuple[tuple[Any, ...], Any]:
    """The parts of an index with positive steps, and the index that turns their selection round.
    Strides are unsigned."""
    hidden = x.ndim - sum(k is not None and k is not Ellipsis for k in parts)
    dimension = 0
    steps: list[Any] = []
    turned: list[Any] = []
    for k in parts:
        if isinstance(k, slice) and k.step is not None and k.step < 0:
            chosen = range(x.sizes[dimension])[k]
            steps.append(slice(chosen[-1], chosen[0] + 1, -k.step) if chosen else slice(0, 0))
            turned.append(slice(None, None, -1))
        else:
            steps.append(k)
            if k is Ellipsis or k is None or isinstance(k, slice):
                turned.append(Ellipsis if k is Ellipsis else slice(None))
        dimension += 0 if k is None else hidden if k is Ellipsis else 1
    return tuple(steps), tuple(turned)


def _backward(x: Tensor, parts: tuple[object, ...]) -> Tensor:
    """A copy, by slices of which some have negative steps."""
    expect(not any(_is_list(k) for k in parts), "tensor[...]", "slices of negative step",
           "stand without arrays of indices", parts)
    forward, turned = _forward(x, parts)
    y = x.window(forward)
    place = next((i for i, k in enumerate(turned) if k is Ellipsis), len(turned))
    steps = [*turned[:place], *[slice(None)] * (y.ndim - len(turned) + (place < len(turned))),
             *turned[place + 1:]]
    return flip(y, [d for d, k in enumerate(steps) if k.step is not None])


@attached
def put(x: Tensor, key: object, value: object) -> None:
    """``x[key] = value``."""
    parts = _parts(key)
    if any(isinstance(k, slice) and k.step is not None and k.step < 0 for k in parts):
        forward, turned = _forward(x, parts)
        view = x.window(forward)
        store(view, copied(operand_like(value, x).broadcast_to(view.sizes))[turned])
        return
    if not any(_is_list(k) for k in parts):
        store(x.window(parts), value)
        return
    new = operand_like(value, x)
    if len(parts) == 1 and _mask(parts[0]) and new.size == 1:
        _put_masked(x, as_tensor(parts[0], x), new)
        return
    _scattered(x, _spelled_out(x, parts), new, "scatter")


def _scattered(x: Tensor, parts: tuple[object, ...], new: Tensor, operator: str,
               **options: object) -> None:
    """Write ``new`` to what a spelled-out index with arrays selects. ``operator`` and "..._nd" with
    these options write it."""
    view, at, lists = _points(x, parts)
    if not lists[0].size or not view.size:
        store(x.device.empty(_selected(view, at, lists), x.data_type), new)  # checks the sizes
        return
    if len(at) == 1:
        axis, picked = at[0], lists[0]
        sizes = (*view.sizes[:axis], *picked.sizes, *view.sizes[axis + 1:])
        updates = copied(new.broadcast_to(sizes))
        flat = (*view.sizes[:axis], picked.size, *view.sizes[axis + 1:])
        along = reshape(picked, *[-1 if d == axis else 1 for d in range(view.ndim)])
        filled = dml(operator)(copied(view), copied(along.broadcast_to(flat)),
                               reshape(updates, flat), axis=axis, **options)
        store(view, _typed(x, filled))
        return
    first, indices, order = _tuples(view, at, lists)
    sizes = (*lists[0].sizes, *first.sizes[len(at):])
    updates = copied(new.broadcast_to([sizes[d] for d in order]).transpose(
        *(order.index(d) for d in range(len(order)))))
    rank = max(first.ndim, indices.ndim, len(order))
    filled = dml(operator.replace("scatter", "scatter_nd"))(
        *_of_rank(rank, copied(first), indices, updates), input_dimension_count=first.ndim,
        indices_dimension_count=indices.ndim, **options)
    store(first, _typed(x, reshape(filled, *first.sizes)))


_REDUCED = {"add": "SUM", "subtract": "SUM", "multiply": "MULTIPLY", "minimum": "MIN",
            "maximum": "MAX"}
"""NumPy's universal function -> how elements that an index names several times are reduced."""


@attached
def reduce_at(ufunc: str, x: Tensor, key: object, value: object) -> None:
    """``x[key] = ufunc(x[key], value)``, once for each time that ``key`` names an element
    (numpy.add.at). Raises UnsupportedError for other functions."""
    if ufunc not in _REDUCED:
        raise UnsupportedError(f"numpy.{ufunc}.at: expected one of {', '.join(_REDUCED)}; "
                               "x[indices] = values writes each element once")
    kind = promoted(f"{ufunc}.at", x, value)
    expect(np.can_cast(kind, x.dtype, "same_kind"), f"numpy.{ufunc}.at", "the values",
           f"fit {x.dtype}", kind)
    parts = _parts(key)
    if not any(_is_list(k) for k in parts):
        put(x, key, UFUNCS[ufunc](get(x, key), value))
        return
    new = operand_like(value, x)
    _scattered(x, _spelled_out(x, parts), -new if ufunc == "subtract" else new, "scatter_reduce",
               function=_REDUCED[ufunc])


def _typed(like: Tensor, y: Tensor) -> Tensor:
    return as_truth(y) if like.truth and not y.truth else y


def operand_like(value: object, x: Tensor) -> Tensor:
    """``value`` as a tensor with the type of ``x``."""
    if is_number(value):
        y = x.device.empty([], x.data_type)
        return store(_typed(x, y), value)
    return cast(as_tensor(value, x), x.dtype)


def _put_masked(x: Tensor, mask: Tensor, new: Tensor) -> None:
    expect(mask.sizes == x.sizes[: mask.ndim], "tensor[mask] = value", "the mask's sizes",
           f"be the first of {list(x.sizes)}", list(mask.sizes))
    if not x.size:
        return
    wide = reshape(mask, *mask.sizes, *[1] * (x.ndim - mask.ndim)).broadcast_to(x.sizes)
    store(x, _typed(x, dml("if_")(wide, reshape(new), x)))


@array_function()
def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """The indices along each dimension of the elements that are not 0 (numpy.nonzero). Their
    count is read from the device."""
    t = as_tensor(x)
    expect(t.ndim > 0, "nonzero", "x", "have dimensions", t.summary())
    coordinates = argwhere(t)
    return tuple(coordinates[:, d] for d in range(t.ndim))


@array_function()
def argwhere(x: TensorLike) -> Tensor:
    """The indices of the elements that are not 0, a row for each (numpy.argwhere). Their count is
    read from the device."""
    t = cast(as_tensor(x), BOOL)
    if is_expression(t):
        raise UnsupportedError("nonzero and masks: expected a tensor with values, which say how "
                               "many there are, but got a result of a graph")
    if not t.size or not t.ndim:
        return t.device.tensor(np.argwhere(t.numpy()))
    count, coordinates = dml("nonzero_coordinates")(bits_of(t))
    n = count.item()
    return cast(coordinates[:n], INT64)


@array_function()
def flatnonzero(x: TensorLike) -> Tensor:
    """The indices of the elements that are not 0, in one dimension."""
    return nonzero(reshape(as_tensor(x), -1))[0]


@array_function()
def compress(condition: TensorLike, x: TensorLike, axis: int | None = None) -> Tensor:
    """The elements along ``axis`` where the condition holds (numpy.compress)."""
    t, c = as_tensor(x, condition), as_tensor(condition, x)
    t, at = one_axis("compress", t, axis)
    return take(t, nonzero(c)[0], at)


@array_function()
def extract(condition: TensorLike, x: TensorLike) -> Tensor:
    """The elements where the condition holds, in one dimension (numpy.extract)."""
    return compress(reshape(as_tensor(condition, x), -1), x)


@array_function()
def take(x: TensorLike, indices: TensorLike, axis: int | None = None,
         out: Tensor | None = None, mode: str = "raise") -> Tensor:
    """Elements by index along ``axis``, by default among all elements. Indices in a tensor are not
    checked: negative ones count from the end, and all are clamped."""
    t = as_tensor(x, indices)
    t, at = one_axis("take", t, axis)
    picked = _indices(np.asarray(indices) if is_number(indices) else indices, t.sizes[at], t)
    sizes = (*t.sizes[:at], *(() if is_number(indices) else picked.sizes), *t.sizes[at + 1:])
    if 0 in sizes:
        return result("take", _typed(t, t.device.empty(sizes, t.data_type)), out)
    flat = reshape(picked, *[1] * (t.ndim - 1), picked.size)
    y = dml("gather")(t, flat, axis=at, index_dimensions=1)
    return result("take", _typed(t, reshape(y, *sizes)), out)


@array_function()
def take_along_axis(x: TensorLike, indices: TensorLike, axis: int | None = -1) -> Tensor:
    """``y[i, j] = x[indices[i, j], j]`` (numpy.take_along_axis)."""
    t, by = as_tensor(x, indices), as_tensor(indices, x)
    t, at = one_axis("take_along_axis", t, axis)
    expect(by.dtype.kind in "iu", "take_along_axis", "the indices", "be integers", by.dtype)
    by = by if by.itemsize >= 4 else cast(by, INT64)
    sizes = [n if d == at else max(n, m) for d, (n, m) in enumerate(zip(by.sizes, t.sizes))]
    return _typed(t, dml("gather_elements")(t, by.broadcast_to(sizes), axis=at))


@array_function()
def where(condition: TensorLike, x: TensorLike | None = None,
          y: TensorLike | None = None) -> Any:
    """``x`` where the condition is not 0, else ``y``; types promote. Of a condition alone,
    :func:`nonzero`."""
    if x is None and y is None:
        return nonzero(condition)
    expect(x is not None and y is not None, "where", "x and y", "be given both, or neither", None)
    kind = promoted("where", x, y)
    t = as_tensor(condition, x, y)
    a, b = (_tensor_of(operand(v, kind, t.device), kind, t) for v in (x, y))
    chosen = dml("if_")(cast(t, BOOL), a, b)
    return as_truth(chosen) if kind == BOOL else chosen


def _tensor_of(value: Any, kind: Any, beside: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else constant(np.asarray(value, kind), beside.device)


@array_function(public=False)
def clip(x: TensorLike, a_min: object = None, a_max: object = None, out: Tensor | None = None, *,
         min: object = None, max: object = None) -> Tensor:
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
def copyto(dst: Tensor, src: TensorLike, casting: str = "same_kind", where: object = True) -> None:
    """``dst[...] = src``."""
    if not isinstance(dst, Tensor):
        raise ValidationError("copyto: expected a Tensor to copy to, but got "
                              f"{type(dst).__name__}; tensor.numpy() copies to the host")
    expect(where is True, "copyto", "where", "be True (dst[mask] = value)", where)
    store(dst, src)
