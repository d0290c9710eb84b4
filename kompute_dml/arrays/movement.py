"""NumPy's functions that move elements."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..attributes import PaddingMode
from ..errors import (
    OutOfRangeError,
    UnsupportedError,
    ValidationError,
    expect,
    integers,
    whole,
)
from ..layout import product
from ..tensors import Tensor
from ..tensors.types import DataTypeLike, TensorLike, dtype_of, element_type, is_number, promoted
from .creation import zeros_like
from .operand import DeviceLike, as_tensor, as_truth, cast, copied, dml, find_device, result, store
from .operand import reshape as reshaped
from .reductions import Axis, axes_of, bits_of, one_axis
from .registry import array_function, publish, spelled

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@array_function()
def reshape(
    x: TensorLike, shape: int | Sequence[int], order: str = "C", *, copy: bool | None = None
) -> Tensor:
    """Other sizes: a view where possible, else a copy."""
    expect(order in ("C", "F", "A"), "reshape", "order", "be C or F", order)
    t = as_tensor(x)
    if order == "F":
        turned = shape[::-1] if isinstance(shape, (tuple, list)) else shape
        return reshaped(t.T, turned).T
    return reshaped(copied(t) if copy else t, shape)


@array_function()
def ravel(x: TensorLike, order: str = "C") -> Tensor:
    """One dimension: a view where possible, else a copy."""
    return reshape(x, -1, order)


@array_function("transpose", "permute_dims")
def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """A view with its dimensions in another order; reversed by default."""
    return as_tensor(x).transpose(*(axes or ()))


@array_function()
def matrix_transpose(x: TensorLike) -> Tensor:
    """A view with its last two dimensions exchanged."""
    return as_tensor(x).mT


@array_function()
def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """A view with two dimensions exchanged."""
    t = as_tensor(x)
    (a,), (b,) = axes_of("swapaxes", axis1, t.ndim), axes_of("swapaxes", axis2, t.ndim)
    order = list(range(t.ndim))
    order[a], order[b] = b, a
    return t.transpose(*order)


@array_function()
def moveaxis(x: TensorLike, source: Any, destination: Any) -> Tensor:
    """A view with dimensions at other places."""
    t = as_tensor(x)
    froms = axes_of("moveaxis", source, t.ndim)
    order = [d for d in range(t.ndim) if d not in froms]
    for to, at in sorted(zip(axes_of("moveaxis", destination, t.ndim), froms)):
        order.insert(to, at)
    return t.transpose(*order)


@array_function()
def squeeze(x: TensorLike, axis: Axis = None) -> Tensor:
    """A view without dimensions of size 1."""
    t = as_tensor(x)
    axes = ([d for d, n in enumerate(t.sizes) if n == 1] if axis is None
            else axes_of("squeeze", axis, t.ndim))
    for a in axes:
        expect(t.sizes[a] == 1, "squeeze", f"x.shape[{a}]", "be 1", t.sizes[a])
    return reshaped(t, *(n for d, n in enumerate(t.sizes) if d not in axes))


@array_function()
def expand_dims(x: TensorLike, axis: Axis) -> Tensor:
    """A view with new dimensions of size 1."""
    t = as_tensor(x)
    places = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = axes_of("expand_dims", places, t.ndim + len(places))
    sizes = list(t.sizes)
    for a in sorted(axes):
        sizes.insert(a, 1)
    return reshaped(t, *sizes)


@array_function()
def broadcast_to(x: TensorLike, shape: int | Sequence[int], subok: bool = False) -> Tensor:
    """A view that repeats dimensions of size 1."""
    return as_tensor(x).broadcast_to(shape)


@array_function()
def broadcast_arrays(*arrays: TensorLike, subok: bool = False) -> tuple[Any, ...]:
    """Views of the same sizes (numpy.broadcast_arrays). Beside objects, which no tensor holds,
    tensors are copied to the host, and the results are arrays of NumPy's."""
    host = [x if isinstance(x, Tensor) else np.asarray(x) for x in arrays]
    if any(x.dtype == object for x in host):
        return tuple(np.broadcast_arrays(*map(np.asarray, host)))
    sizes = np.broadcast_shapes(*(x.shape for x in host))
    return tuple(as_tensor(x, *arrays).broadcast_to(sizes) for x in host)


@array_function()
def flip(x: TensorLike, axis: Axis = None) -> Tensor:
    """A copy with elements in the opposite order along ``axis``, by default along all."""
    t = as_tensor(x)
    axes = axes_of("flip", axis, t.ndim)
    if not t.size or not t.ndim:
        return copied(t)
    y = dml("slice1")(t, input_window_offsets=[0] * t.ndim, input_window_sizes=t.sizes,
                      input_window_strides=[-1 if d in axes else 1 for d in range(t.ndim)])
    return as_truth(y) if t.truth else y


@array_function()
def roll(x: TensorLike, shift: ArrayLike, axis: Axis = None) -> Tensor:
    """A copy whose elements move along ``axis``, from the end back to the beginning."""
    t = as_tensor(x)
    if axis is None:
        return reshaped(roll(reshaped(t, -1), shift, 0), t.sizes)
    axes = axes_of("roll", axis, t.ndim)
    shifts = integers("roll", "shift", shift if isinstance(shift, (tuple, list)) else [shift])
    for a, by in zip(axes, shifts * len(axes) if len(shifts) == 1 else shifts):
        at = -by % t.sizes[a]
        if at:
            begin, end = _cut(t, [0, at, t.sizes[a]], a)
            t = concatenate([end, begin], a)
    return copied(t) if t is x else t


@array_function("concatenate", "concat")
def concatenate(arrays: Sequence[TensorLike], axis: int | None = 0, out: Tensor | None = None,
                *, dtype: DataTypeLike | None = None) -> Tensor:
    """Tensors joined along ``axis``. Types promote."""
    expect(isinstance(arrays, (tuple, list)) and len(arrays) > 0, "concatenate", "the arrays",
           "be a sequence of tensors", arrays)
    kind = _common("concatenate", arrays) if dtype is None else element_type(dtype)
    tensors = [cast(as_tensor(x, *arrays), kind) for x in arrays]
    if axis is None:
        tensors, axis = [reshaped(t, -1) for t in tensors], 0
    (at,) = axes_of("concatenate", axis, tensors[0].ndim)
    sizes = list(tensors[0].shape)
    sizes[at] = builtins.sum(t.shape[at] for t in tensors)
    others = {(*t.shape[:at], *t.shape[at + 1:]) for t in tensors if t.ndim == len(sizes)}
    expect(len(others) == 1 and all(t.ndim == len(sizes) for t in tensors), "concatenate",
           "the sizes", "agree but along the axis", *(list(t.shape) for t in tensors))
    present = [t for t in tensors if t.size]
    if not present:
        y = tensors[0].device.empty(sizes, tensors[0].data_type)
    else:
        y = dml("join")([bits_of(t) for t in present], axis=at)
    return result("concatenate", as_truth(y) if tensors[0].truth else y, out)


def _common(name: str, arrays: Sequence[object]) -> Any:
    """The type of what is joined: FLOAT64 stays if all have it, as nothing is computed."""
    kinds = {dtype_of(x) for x in arrays}
    return kinds.pop() if len(kinds) == 1 else promoted(name, *arrays)


def cat(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """torch.cat: :func:`concatenate`."""
    return concatenate(tensors, axis)


publish("cat", spelled(cat))


@array_function()
def stack(arrays: Sequence[TensorLike], axis: int = 0, out: Tensor | None = None) -> Tensor:
    """Tensors of one shape, joined along a new dimension."""
    tensors = [as_tensor(x, *arrays) for x in arrays]
    return concatenate([expand_dims(t, axis) for t in tensors], axis, out)


@array_function()
def vstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors joined along the rows."""
    tensors = [as_tensor(x, *arrays) for x in arrays]
    return concatenate([reshaped(t, 1, -1) if t.ndim == 1 else t for t in tensors], 0)


@array_function()
def hstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors joined along the columns; vectors along their only dimension."""
    tensors = [as_tensor(x, *arrays) for x in arrays]
    return concatenate(tensors, 0 if tensors[0].ndim == 1 else 1)


def _cut(t: Tensor, bounds: list[int], at: int) -> list[Tensor]:
    before = (slice(None),) * at
    return [t.window((*before, slice(a, b))) for a, b in itertools.pairwise(bounds)]


@array_function()
def array_split(x: TensorLike, indices_or_sections: ArrayLike, axis: int = 0) -> list[Tensor]:
    """Views of parts that differ by at most one in size (numpy.array_split)."""
    t = as_tensor(x)
    if not isinstance(indices_or_sections, (int, np.integer)):
        return split(t, indices_or_sections, axis)
    (at,) = axes_of("array_split", axis, t.ndim)
    parts = whole("array_split", "sections", indices_or_sections)
    expect(parts > 0, "array_split", "the parts", "be at least 1", parts)
    size, larger = divmod(t.sizes[at], parts)
    ends = [i * size + builtins.min(i, larger) for i in range(parts + 1)]
    return _cut(t, ends, at)


@array_function("split", public=False)
def split(x: TensorLike, indices_or_sections: ArrayLike, axis: int = 0) -> list[Tensor]:
    """Views of equal parts, or of the parts between indices (numpy.split)."""
    t = as_tensor(x)
    (at,) = axes_of("split", axis, t.ndim)
    n = t.sizes[at]
    if isinstance(indices_or_sections, (int, np.integer)):
        parts = int(indices_or_sections)
        expect(parts > 0 and n % parts == 0, "split", "the parts", f"divide {n}", parts)
        return _cut(t, list(range(0, n + 1, n // parts)), at)
    return _cut(t, [0, *integers("split", "indices", indices_or_sections), n], at)


@array_function(public=False)
def tile(x: TensorLike, reps: ArrayLike) -> Tensor:
    """``x`` repeated along each dimension (numpy.tile)."""
    t = as_tensor(x)
    times = integers("tile", "reps", reps if isinstance(reps, (tuple, list)) else [reps])
    rank = max(t.ndim, len(times))
    t = reshaped(t, *[1] * (rank - t.ndim), *t.sizes)
    y = dml("tile")(bits_of(t), repeats=(1,) * (rank - len(times)) + times)
    return as_truth(y) if t.truth else y


@array_function()
def repeat(x: TensorLike, repeats: ArrayLike, axis: int | None = None) -> Tensor:
    """Each element ``repeats`` times; a sequence is a number for each."""
    t = as_tensor(x)
    t, at = one_axis("repeat", t, axis)
    if not isinstance(repeats, (int, np.integer)):
        times = np.broadcast_to(np.asarray(repeats), t.sizes[at])
        return t[(slice(None),) * at + (np.repeat(np.arange(t.sizes[at]), times),)]
    n = whole("repeat", "repeats", repeats)
    expect(n >= 0, "repeat", "repeats", "be at least 0", n)
    sizes = [*t.sizes[: at + 1], n, *t.sizes[at + 1:]]
    wide = reshaped(expand_dims(t, at + 1).broadcast_to(sizes), [
        m * n if d == at else m for d, m in enumerate(t.sizes)])
    return copied(wide) if n == 1 else wide


_MODES = {"constant": PaddingMode.CONSTANT, "edge": PaddingMode.EDGE,
          "reflect": PaddingMode.REFLECTION, "symmetric": PaddingMode.SYMMETRIC,
          "wrap": PaddingMode.WRAP}


@array_function()
def pad(x: TensorLike, pad_width: Any, mode: str = "constant", *,
        constant_values: float = 0) -> Tensor:
    """``x`` with elements before and after it in each dimension (numpy.pad)."""
    t = as_tensor(x)
    expect(mode in _MODES, "pad", "mode", f"be one of {', '.join(_MODES)}", mode)
    try:
        widths = np.broadcast_to(pad_width, (t.ndim, 2)).tolist()
    except ValueError:
        raise ValidationError(f"pad: expected pad_width to have a pair for each of {t.ndim} "
                              f"dimensions, but got {pad_width}") from None
    y = dml("padding1")(t, start_padding=[a for a, _ in widths], end_padding=[b for _, b in widths],
                        padding_mode=_MODES[mode], padding_value=constant_values)
    return as_truth(y) if t.truth else y


def _triangle(x: TensorLike, begin: int, end: int) -> Tensor:
    t = as_tensor(x)
    return dml("diagonal_matrix1")(t, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)


@array_function()
def triu(x: TensorLike, k: int = 0) -> Tensor:
    """The upper triangle; 0 below diagonal ``k``."""
    return _triangle(x, INT32_MIN, k)


@array_function()
def tril(x: TensorLike, k: int = 0) -> Tensor:
    """The lower triangle; 0 above diagonal ``k``."""
    return _triangle(x, k + 1, INT32_MAX)


@array_function()
def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """A view of the elements whose indices on two axes differ by ``offset``, along the last axis
    (numpy.diagonal)."""
    t = as_tensor(x)
    axes_of("diagonal", (axis1, axis2), t.ndim)
    t = moveaxis(t, (axis1, axis2), (-2, -1))
    below, right = max(-offset, 0), max(offset, 0)
    expect(below < t.sizes[-2] and right < t.sizes[-1], "diagonal", "offset",
           f"lie within {list(t.sizes[-2:])}", offset)
    return t[..., below:, right:].diagonal_view()


@array_function()
def diag(x: TensorLike, k: int = 0) -> Tensor:
    """The diagonal of a matrix, or a matrix with this diagonal (numpy.diag)."""
    t = as_tensor(x)
    if t.ndim > 1:
        expect(t.ndim == 2, "diag", "x", "have one or two dimensions", t)
        return diagonal(t, k)
    n = t.size + abs(k)
    y = zeros_like(t[:1].broadcast_to(n, n))
    store(diagonal(y, k), t)
    return y


@array_function()
def meshgrid(*arrays: TensorLike, indexing: str = "xy", sparse: bool = False,
             copy: bool = True) -> tuple[Tensor, ...]:
    """Coordinates of a grid from those along its axes (numpy.meshgrid)."""
    expect(indexing in ("xy", "ij"), "meshgrid", "indexing", "be 'xy' or 'ij'", indexing)
    lines = [reshaped(as_tensor(x, *arrays), -1) for x in arrays]
    order = [1, 0, *range(2, len(lines))] if indexing == "xy" and len(lines) > 1 else range(
        len(lines))
    sizes = [lines[i].size for i in order]
    grids = []
    for i, line in enumerate(lines):
        y = reshaped(line, *[-1 if j == i else 1 for j in order])
        grids.append(y if sparse else y.broadcast_to(*sizes))
    return tuple(copied(y) if copy else y for y in grids)


_BESIDE = {(3, 1): (None, ..., None), (3, 2): (..., None)}
"""Least and given number of dimensions -> where numpy.atleast_3d does not put new ones first."""


def _at_least(rank: int) -> None:
    def call(*arrays: TensorLike) -> Any:
        widened = [t[_BESIDE.get((rank, t.ndim), (None,) * (rank - t.ndim))]
                   for t in (as_tensor(x, *arrays) for x in arrays)]
        return widened[0] if len(widened) == 1 else tuple(widened)

    call.__doc__ = f"numpy.atleast_{rank}d: views with at least {rank} dimensions."
    array_function(f"atleast_{rank}d")(call)


for _rank in (1, 2, 3):
    _at_least(_rank)


@array_function()
def rot90(x: TensorLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tensor:
    """A copy turned ``k`` times by 90 degrees, from the first axis to the second (numpy.rot90)."""
    t = as_tensor(x)
    a, b = axes_of("rot90", axes, t.ndim)
    turns = k % 4
    if turns == 0:
        return copied(t)
    if turns == 2:
        return flip(t, (a, b))
    return flip(swapaxes(t, a, b), a if turns == 1 else b)


@array_function()
def fliplr(x: TensorLike) -> Tensor:
    """A copy with its columns in the opposite order."""
    return flip(x, 1)


@array_function()
def flipud(x: TensorLike) -> Tensor:
    """A copy with its rows in the opposite order."""
    return flip(x, 0)


@array_function()
def column_stack(arrays: Sequence[TensorLike]) -> Tensor:
    """Vectors as columns, and matrices, side by side (numpy.column_stack)."""
    tensors = [as_tensor(x, *arrays) for x in arrays]
    return concatenate([reshaped(t, -1, 1) if t.ndim < 2 else t for t in tensors], 1)


@array_function()
def dstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors joined along the third dimension (numpy.dstack)."""
    tensors = [as_tensor(x, *arrays) for x in arrays]
    wide = [t[None, :, None] if t.ndim == 1 else t[..., None] if t.ndim == 2 else t
            for t in tensors]
    return concatenate(wide, 2)


@array_function()
def append(x: TensorLike, values: TensorLike, axis: int | None = None) -> Tensor:
    """A copy with values at its end (numpy.append)."""
    t, new = as_tensor(x, values), as_tensor(values, x)
    if axis is None:
        t, new, axis = reshaped(t, -1), reshaped(new, -1), 0
    return concatenate([t, cast(new, t.dtype) if is_number(values) else new], axis)


def _places(name: str, index: object, n: int) -> np.ndarray:
    """Positions along an axis, counted from the front."""
    if isinstance(index, slice):
        return np.arange(n)[index]
    host = np.asarray(index.numpy() if isinstance(index, Tensor) else index)
    if host.dtype == bool:
        return np.flatnonzero(host)
    at = np.atleast_1d(host)
    if at.size and (at.min() < -n or at.max() > n):
        raise OutOfRangeError(f"{name}: expected indices in [-{n}, {n}], but got {index}")
    return np.where(at < 0, at + n, at).astype(int)


@array_function()
def delete(x: TensorLike, obj: ArrayLike, axis: int | None = None) -> Tensor:
    """A copy without some elements along ``axis`` (numpy.delete)."""
    t = as_tensor(x)
    t, at = one_axis("delete", t, axis)
    left = np.ones(t.sizes[at], bool)
    left[_places("delete", obj, t.sizes[at])] = False
    return t[(slice(None),) * at + (np.flatnonzero(left),)]


@array_function()
def insert(x: TensorLike, obj: Any, values: TensorLike, axis: int | None = None) -> Tensor:
    """A copy with values before some positions along ``axis`` (numpy.insert)."""
    t = as_tensor(x, values)
    t, at = one_axis("insert", t, axis)
    n = t.sizes[at]
    places = _places("insert", obj, n)
    new = cast(as_tensor(values, t), t.dtype)
    if places.size == 1 and np.ndim(obj) == 0:
        new = moveaxis(new, 0, at) if new.ndim == t.ndim else new
        count = new.sizes[at] if new.ndim == t.ndim else new.size if t.ndim == 1 else 1
        places = np.repeat(places, count)
        if t.ndim > 1 and new.ndim == t.ndim - 1:
            new = expand_dims(new, at)
    sizes = [*t.sizes[:at], places.size, *t.sizes[at + 1:]]
    joined = concatenate([t, copied(new.broadcast_to(sizes))], at)
    order = np.argsort(np.concatenate([np.arange(n) + 0.5, places]), kind="stable")
    return joined[(slice(None),) * at + (order,)]


@array_function()
def resize(x: TensorLike, new_shape: Any) -> Tensor:
    """A copy with other sizes, which repeats the elements (numpy.resize)."""
    flat = reshaped(as_tensor(x), -1)
    sizes = _given_sizes(new_shape)
    n = product(sizes)
    if not n or not flat.size:
        return zeros_like(flat.device.empty(sizes, flat.data_type))
    times = -(-n // flat.size)
    return copied(reshaped(concatenate([flat] * times, 0)[:n], *sizes))


def _given_sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return integers("resize", "new_shape", shape if isinstance(shape, (tuple, list)) else [shape])


@array_function()
def kron(a: TensorLike, b: TensorLike) -> Tensor:
    """The products of every element of ``a`` with ``b`` (numpy.kron)."""
    x, y = as_tensor(a, b), as_tensor(b, a)
    rank = builtins.max(x.ndim, y.ndim)
    x, y = (reshaped(t, *[1] * (rank - t.ndim), *t.sizes) for t in (x, y))
    wide = reshaped(x, *(n for size in x.sizes for n in (size, 1))) * reshaped(
        y, *(n for size in y.sizes for n in (1, size)))
    return reshaped(wide, *(n * m for n, m in zip(x.sizes, y.sizes)))


@array_function()
def cross(a: TensorLike, b: TensorLike, axis: int = -1) -> Tensor:
    """The products of vectors of three elements (numpy.cross)."""
    x, y = (moveaxis(as_tensor(v, a, b), axis, -1) for v in (a, b))
    expect(x.sizes[-1] == y.sizes[-1] == 3, "cross", "the vectors", "have 3 elements",
           x.sizes[-1], y.sizes[-1])
    after, before = [1, 2, 0], [2, 0, 1]
    return moveaxis(x[..., after] * y[..., before] - x[..., before] * y[..., after], -1, axis)


@array_function()
def ediff1d(x: TensorLike) -> Tensor:
    """Each element less the one before it, of all elements in one dimension."""
    return diff(reshaped(as_tensor(x), -1))


@array_function()
def diff(x: TensorLike, n: int = 1, axis: int = -1) -> Tensor:
    """Each element less the one before it."""
    t = as_tensor(x)
    (at,) = axes_of("diff", axis, t.ndim)
    before = (slice(None),) * at
    for _ in range(n):
        t = t.window((*before, slice(1, None))) - t.window((*before, slice(-1)))
    return t


@array_function("copy", public=False)
def copy(x: TensorLike, order: str = "K", subok: bool = False) -> Tensor:
    """A packed copy on the same device."""
    return copied(as_tensor(x))


def from_dlpack(x: Any, *, device: DeviceLike = None) -> Tensor:
    """A copy of another library's data in the host's memory, by DLPack."""
    try:
        kind = int(x.__dlpack_device__()[0])
    except AttributeError:
        raise ValidationError("from_dlpack: expected an object with __dlpack__, but got "
                              f"{type(x).__name__}") from None
    if kind not in (1, 3):
        raise UnsupportedError(
            f"from_dlpack: expected data in the host's memory, but it lies on DLPack's device type "
            f"{kind}; x.cpu() or x.get() brings it there, and kompute_dml.cuda.tensor(x) copies it "
            "on a GPU with CUDA")
    return find_device(device).tensor(np.from_dlpack(x))


publish("from_dlpack", from_dlpack)


@array_function(public=False)
def put(x: Tensor, indices: ArrayLike, values: TensorLike) -> None:
    """Write values to elements by their index in one dimension (numpy.put)."""
    flat = x.reshaped(-1)
    expect(flat is not None, "put", "x", "have one dimension in memory", x.summary())
    assert flat is not None
    new = as_tensor(values, x)
    at = np.asarray(indices.numpy() if isinstance(indices, Tensor) else indices).reshape(-1)
    flat[at] = reshaped(new, -1)[np.arange(at.size) % new.size] if new.ndim else new


@array_function()
def apply_along_axis(func1d: Any, axis: int, arr: TensorLike, *args: Any, **options: Any) -> Tensor:
    """``func1d`` of each vector along ``axis`` (numpy.apply_along_axis), one after the other."""
    t = moveaxis(as_tensor(arr), axis, -1)
    rows = reshaped(t, -1, t.sizes[-1])
    results = [as_tensor(func1d(row, *args, **options), t) for row in rows]
    expect(len(results) > 0, "apply_along_axis", "arr", "have a vector", list(t.sizes))
    y = reshaped(stack(results), *t.sizes[:-1], *results[0].sizes)
    return moveaxis(y, -1, axis) if results[0].ndim else y


@array_function("may_share_memory", "shares_memory", public=False)
def may_share_memory(a: TensorLike, b: TensorLike, max_work: object = None) -> bool:
    """Whether two tensors have memory in common."""
    return (isinstance(a, Tensor) and isinstance(b, Tensor) and a.allocation is b.allocation
            and a.byte_offset < b.byte_offset + b.nbytes
            and b.byte_offset < a.byte_offset + a.nbytes)
