"""NumPy's functions that move elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..attributes import PaddingMode
from ..errors import UnsupportedError, ValidationError, expect, integers, whole
from ..tensors import Tensor
from .operand import as_tensor, as_truth, cast, copied, dml, find_device, result
from .operand import reshape as reshaped
from .reductions import axes_of, bits_of
from .registry import array_function, publish, spelled
from .types import DataTypeLike, TensorLike, element_type, promoted

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@array_function()
def reshape(x: TensorLike, shape: Any, order: str = "C", *, copy: bool | None = None) -> Tensor:
    """Other sizes: a view where possible, else a copy."""
    expect(order == "C", "reshape", "order", "be C (x.T reads columns first)", order)
    t = as_tensor(x)
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
def squeeze(x: TensorLike, axis: Any = None) -> Tensor:
    """A view without dimensions of size 1; one dimension stays."""
    t = as_tensor(x)
    axes = ([d for d, n in enumerate(t.sizes) if n == 1] if axis is None
            else axes_of("squeeze", axis, t.ndim))
    for a in axes:
        expect(t.sizes[a] == 1, "squeeze", f"x.shape[{a}]", "be 1", t.sizes[a])
    return reshaped(t, *([n for d, n in enumerate(t.sizes) if d not in axes] or [1]))


@array_function()
def expand_dims(x: TensorLike, axis: Any) -> Tensor:
    """A view with new dimensions of size 1."""
    t = as_tensor(x)
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = axes_of("expand_dims", given, t.ndim + len(given))
    sizes = list(t.sizes)
    for a in sorted(axes):
        sizes.insert(a, 1)
    return reshaped(t, *sizes)


@array_function()
def broadcast_to(x: TensorLike, shape: Any, subok: bool = False) -> Tensor:
    """A view that repeats dimensions of size 1."""
    return as_tensor(x).broadcast_to(shape)


@array_function()
def flip(x: TensorLike, axis: Any = None) -> Tensor:
    """A copy with elements in the opposite order along ``axis``, by default along all."""
    t = as_tensor(x)
    axes = axes_of("flip", axis, t.ndim)
    y = dml("slice1")(t, input_window_offsets=[0] * t.ndim, input_window_sizes=t.sizes,
                      input_window_strides=[-1 if d in axes else 1 for d in range(t.ndim)])
    return as_truth(y) if t.truth else y


@array_function()
def roll(x: TensorLike, shift: Any, axis: Any = None) -> Tensor:
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
    kind = promoted("concatenate", *arrays) if dtype is None else element_type(dtype)
    tensors = [cast(as_tensor(x, *arrays), kind) for x in arrays]
    if axis is None:
        tensors, axis = [reshaped(t, -1) for t in tensors], 0
    (at,) = axes_of("concatenate", axis, tensors[0].ndim)
    y = dml("join")([bits_of(t) for t in tensors], axis=at)
    return result("concatenate", as_truth(y) if tensors[0].truth else y, out)


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


@array_function("split", "array_split", public=False)
def split(x: TensorLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
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
def tile(x: TensorLike, reps: Any) -> Tensor:
    """``x`` repeated along each dimension (numpy.tile)."""
    t = as_tensor(x)
    times = integers("tile", "reps", reps if isinstance(reps, (tuple, list)) else [reps])
    rank = max(t.ndim, len(times))
    t = reshaped(t, *[1] * (rank - t.ndim), *t.sizes)
    y = dml("tile")(bits_of(t), repeats=(1,) * (rank - len(times)) + times)
    return as_truth(y) if t.truth else y


@array_function()
def repeat(x: TensorLike, repeats: int, axis: int | None = None) -> Tensor:
    """Each element ``repeats`` times."""
    t = as_tensor(x)
    if axis is None:
        t, axis = reshaped(t, -1), 0
    (at,) = axes_of("repeat", axis, t.ndim)
    n = whole("repeat", "repeats", repeats)
    expect(n > 0, "repeat", "repeats", "be at least 1", n)
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


def _triangle(x: Any, begin: int, end: int) -> Tensor:
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


def from_dlpack(x: Any, *, device: Any = None) -> Tensor:
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
            "on an NVIDIA GPU")
    return find_device(device).tensor(np.from_dlpack(x))


publish("from_dlpack", from_dlpack)
