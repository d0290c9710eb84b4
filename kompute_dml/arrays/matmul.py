"""Matrix products under NumPy's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attributes import ReduceFunction
from ..errors import UnsupportedError, ValidationError, expect
from ..layout import broadcast_sizes, product
from ..tensors import Tensor
from ..tensors.types import BOOL, TensorLike, promoted
from .creation import zeros_like
from .movement import concatenate, diagonal
from .operand import as_tensor, cast, dml, reshape, result
from .reductions import axes_of, reduce
from .registry import array_function

INT32 = np.dtype(np.int32)
_MOST = 1 << 24
"""The most products of integers that exist at once."""


def matmul(a: TensorLike, b: TensorLike) -> Tensor:
    """``a @ b``, as in numpy.matmul. A vector is a row on the left, a column on the right.
    Products of integers wrap."""
    a, b = as_tensor(a, b), as_tensor(b, a)
    expect(a.ndim and b.ndim, "matmul", "the operands", "have dimensions", list(a.sizes),
           list(b.sizes))
    dtype = promoted("matmul", a, b)
    row, column = a.ndim == 1, b.ndim == 1
    x = cast(reshape(a, 1, a.size) if row else a, dtype)
    y = cast(reshape(b, b.size, 1) if column else b, dtype)
    expect(x.sizes[-1] == y.sizes[-2], "matmul", "the sizes",
           "agree (columns of a, rows of b)", list(a.sizes), list(b.sizes))
    try:
        batch = broadcast_sizes(x.sizes[:-2] or (1,), y.sizes[:-2] or (1,))
    except ValueError as error:
        raise ValidationError(f"matmul: {error}") from None
    sizes = (*(batch if max(x.ndim, y.ndim) > 2 else ()),
             *(() if row else x.sizes[-2:-1]), *(() if column else y.sizes[-1:]))
    if max(x.ndim, y.ndim) > 4:  # GEMM takes two dimensions of matrices
        x, y = (reshape(t.broadcast_to(*batch, *t.sizes[-2:]), product(batch), *t.sizes[-2:])
                for t in (x, y))
    z = _product(x, y)
    return z if z.sizes == sizes else reshape(z, *sizes)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices of one type."""
    sizes = (*broadcast_sizes(x.sizes[:-2], y.sizes[:-2]), x.sizes[-2], y.sizes[-1])
    if 0 in (*x.sizes, *y.sizes):
        return cast(zeros_like(x.device.empty(sizes, x.data_type)), x.dtype)
    return dml("gemm")(x, y) if x.dtype.kind == "f" else _of_integers(x, y)


def _of_integers(x: Tensor, y: Tensor) -> Tensor:
    """GEMM takes floats. Integers are multiplied and summed in 32 or 64 bits, some rows at a time,
    and wrap to their type."""
    kind = x.dtype
    if kind == BOOL:
        return cast(_of_integers(cast(x, INT32), cast(y, INT32)), BOOL)
    wide = kind if kind.itemsize >= 4 else INT32
    x, y = cast(x, wide), cast(y, wide)
    rows = max(1, _MOST * x.sizes[-2] // (product(x.sizes) * y.sizes[-1]))
    right = y.mT[..., None, :, :]
    parts = []
    for at in range(0, x.sizes[-2], rows):
        products = x[..., at:at + rows, None, :] * right
        parts.append(reduce("matmul", products, ReduceFunction.SUM, -1, False))
    return cast(concatenate(parts, -2), kind)


@array_function()
def dot(a: TensorLike, b: TensorLike, out: Tensor | None = None) -> Tensor:
    """numpy.dot of vectors and matrices."""
    a, b = as_tensor(a, b), as_tensor(b, a)
    if not a.ndim or not b.ndim:
        return result("dot", a * b, out)
    if a.ndim > 2 and b.ndim > 1:
        raise UnsupportedError("dot: expected vectors and matrices, but got "
                               f"{list(a.sizes)} and {list(b.sizes)}; use matmul")
    return result("dot", matmul(a, b), out)


@array_function()
def outer(a: TensorLike, b: TensorLike, out: Tensor | None = None) -> Tensor:
    """The products of every element of ``a`` with every one of ``b``."""
    x, y = as_tensor(a, b), as_tensor(b, a)
    return result("outer", reshape(x, -1, 1) * reshape(y, 1, -1), out)


@array_function()
def vdot(a: TensorLike, b: TensorLike) -> Tensor:
    """The product of two tensors as vectors."""
    return dot(reshape(as_tensor(a, b), -1), reshape(as_tensor(b, a), -1))


@array_function()
def inner(a: TensorLike, b: TensorLike) -> Tensor:
    """The sums of products over the last axes (numpy.inner)."""
    return tensordot(a, b, ((-1,), (-1,)))


@array_function()
def tensordot(a: TensorLike, b: TensorLike, axes: Any = 2) -> Tensor:
    """The sums of products over some axes of each (numpy.tensordot)."""
    x, y = as_tensor(a, b), as_tensor(b, a)
    if np.ndim(axes) == 0:
        axes = (range(x.ndim - axes, x.ndim), range(axes))
    over = [axes_of("tensordot", tuple(np.atleast_1d(g)), t.ndim) for g, t in zip(axes, (x, y))]
    shared = [[t.sizes[d] for d in g] for t, g in zip((x, y), over)]
    expect(shared[0] == shared[1], "tensordot", "the sizes along the axes", "agree", *shared)
    free = [[d for d in range(t.ndim) if d not in g] for t, g in zip((x, y), over)]
    sizes = [x.sizes[d] for d in free[0]] + [y.sizes[d] for d in free[1]]
    rows = reshape(x.transpose(*free[0], *over[0]), -1, product(shared[0]))
    columns = reshape(y.transpose(*over[1], *free[1]), product(shared[1]), -1)
    return reshape(matmul(rows, columns), *sizes)


@array_function()
def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum along a diagonal (numpy.trace)."""
    return diagonal(x, offset, axis1, axis2).sum(-1)
