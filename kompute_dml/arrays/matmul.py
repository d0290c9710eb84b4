"""Matrix products under NumPy's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UnsupportedError, ValidationError, expect
from ..layout import broadcast_sizes, product
from ..tensors import Tensor
from .movement import diagonal
from .operand import as_tensor, cast, dml, reshape, result
from .reductions import axes_of
from .registry import array_function
from .types import TensorLike, computable, promoted


def matmul(a: Any, b: Any) -> Tensor:
    """``a @ b`` of floats, as in numpy.matmul. A vector is a row on the left, a column on the
    right."""
    a, b = as_tensor(a, b), as_tensor(b, a)
    dtype = computable("matmul", promoted("matmul", a, b))
    if dtype.kind != "f":
        raise UnsupportedError(
            f"matmul: expected floats, but got {dtype}; x.astype('float32') converts, and "
            "kompute_dml.matrix_multiply_integer takes INT8 and UINT8 to INT32")
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
    return reshape(dml("gemm")(x, y), *(sizes or (1,)))


@array_function()
def dot(a: TensorLike, b: TensorLike, out: Tensor | None = None) -> Tensor:
    """numpy.dot of vectors and matrices."""
    a, b = as_tensor(a, b), as_tensor(b, a)
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
    return reshape(matmul(rows, columns), *(sizes or (1,)))


@array_function()
def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum along a diagonal (numpy.trace)."""
    return diagonal(x, offset, axis1, axis2).sum(-1)


@array_function("linalg.norm", public=False)
def norm(x: TensorLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """numpy.linalg.norm of vectors: the root of the sum of squares, or the sum of absolute
    values."""
    from ..attributes import ReduceFunction
    from .reductions import reduce

    expect(ord in (None, 1, 2, "fro", np.inf), "norm", "ord", "be None, 1 or 2", ord)
    function = ReduceFunction.L1 if ord == 1 else ReduceFunction.L2
    t = as_tensor(x)
    expect(ord in (None, "fro") or axis is not None or t.ndim == 1, "norm", "ord",
           "be None for matrices", ord)
    return reduce("norm", t, function, axis, keepdims)
