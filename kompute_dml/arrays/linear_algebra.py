"""numpy.linalg on the device: what matrix products and a loop over columns compute.

Decompositions into eigenvectors and singular values are computed on the host, when
:mod:`kompute_dml.linalg` is asked to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UnsupportedError, expect
from ..tensors import Tensor
from ..tensors.attached import UFUNCS
from ..tensors.types import FLOAT32, TensorLike
from .creation import arange, eye, zeros
from .matmul import matmul
from .movement import concatenate, tril, triu
from .operand import as_tensor, cast, computed, copied
from .registry import array_function
from .selection import put, take, where


class LinAlgError(UnsupportedError, np.linalg.LinAlgError):
    """A matrix that has no such decomposition, as numpy.linalg.LinAlgError."""


def _square(name: str, a: TensorLike) -> Tensor:
    t = computed(a)
    t = t if t.dtype.kind == "f" else cast(t, FLOAT32)
    expect(t.ndim == 2 and t.shape[0] == t.shape[1], name, "a", "be a square matrix",
           list(t.shape))
    return t


def _eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``a`` and ``b`` after Gauss's elimination with the largest pivot of each column: the upper
    triangle of ``a``, ``b`` in step, and the sign of the exchanges of rows."""
    n = a.shape[0]
    both = concatenate([a, b], 1)
    sign = eye(1, device=a.device)[0, 0]
    rows = arange(n, device=a.device)
    for k in range(n):
        sizes = where(rows < k, -1.0, abs(both[:, k]))
        pivot = sizes.argmax()
        order = where(rows == k, pivot, where(rows == pivot, k, rows))
        both = take(both, order, 0)
        sign = where(pivot == k, sign, -sign)
        factors = where(rows > k, both[:, k] / both[k, k], 0.0)
        both = both - factors[:, None] * both[k]
    return both, sign


def _back_substituted(both: Tensor) -> Tensor:
    n = both.shape[0]
    x = copied(both[:, n:])
    for k in reversed(range(n)):
        put(x, k, x[k] / both[k, k])
        if k:
            put(x, slice(0, k), x[:k] - both[:k, k:k + 1] * x[k])
    return x


def _check_pivots(name: str, both: Tensor) -> None:
    pivots = both[:, : both.shape[0]].diagonal_view().numpy()
    if not np.isfinite(pivots).all() or (pivots == 0).any():
        raise LinAlgError(f"{name}: expected a matrix that has an inverse, but got a singular one")


@array_function("linalg.solve", public=False)
def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """``x`` with ``a @ x = b``, by Gauss's elimination. The pivots are read. Raises LinAlgError for
    a singular matrix."""
    t = _square("solve", a)
    right = cast(as_tensor(b, t), t.dtype)
    expect(right.ndim in (1, 2) and right.shape[0] == t.shape[0], "solve", "b",
           f"have {t.shape[0]} rows", list(right.shape))
    columns = right[:, None] if right.ndim == 1 else right
    both, _ = _eliminated(t, columns)
    _check_pivots("solve", both)
    x = _back_substituted(both)
    return x[:, 0] if right.ndim == 1 else x


@array_function("linalg.inv", public=False)
def inv(a: TensorLike) -> Tensor:
    """The inverse of a matrix. Raises LinAlgError for a singular one."""
    t = _square("inv", a)
    return solve(t, eye(t.shape[0], dtype=t.dtype, device=t.device))


@array_function("linalg.det", public=False)
def det(a: TensorLike) -> Tensor:
    """The determinant of a matrix."""
    t = _square("det", a)
    if not t.size:
        return zeros((), dtype=t.dtype, device=t.device) + 1.0
    both, sign = _eliminated(t, zeros(t.shape[0], 0, dtype=t.dtype, device=t.device))
    product = both.diagonal_view().prod() * sign
    return where(UFUNCS["isnan"](product) & UFUNCS["isfinite"](t).all(), 0.0, product)


@array_function("linalg.slogdet", public=False)
def slogdet(a: TensorLike) -> tuple[Tensor, Tensor]:
    """The sign of the determinant, and the logarithm of its size."""
    t = _square("slogdet", a)
    both, sign = _eliminated(t, zeros(t.shape[0], 0, dtype=t.dtype, device=t.device))
    pivots = both.diagonal_view()
    return sign * UFUNCS["sign"](pivots).prod(), UFUNCS["log"](abs(pivots)).sum()


@array_function("linalg.cholesky", public=False)
def cholesky(a: TensorLike, *, upper: bool = False) -> Tensor:
    """The lower triangle whose product with its transpose is ``a``. The diagonal is read. Raises
    LinAlgError for a matrix that is not positive definite."""
    t = copied(_square("cholesky", a))
    n = t.shape[0]
    for k in range(n):
        column = t[k:, k] / UFUNCS["sqrt"](t[k, k])
        put(t, (slice(k, None), k), column)
        if k + 1 < n:
            put(t, (slice(k + 1, None), slice(k + 1, None)),
                t[k + 1:, k + 1:] - column[1:, None] * column[1:])
    diagonal = t.diagonal_view().numpy()
    if not (np.isfinite(diagonal) & (diagonal > 0)).all():
        raise LinAlgError("cholesky: expected a positive definite matrix, but got another")
    return copied(tril(t).T) if upper else tril(t)


@array_function("linalg.qr", public=False)
def qr(a: TensorLike, mode: str = "reduced") -> Any:
    """Orthonormal columns and an upper triangle whose product is ``a``, by Householder's
    reflections, with LAPACK's signs. ``mode`` is reduced, complete or r."""
    expect(mode in ("reduced", "complete", "r"), "qr", "mode", "be reduced, complete or r", mode)
    t = computed(a)
    r = copied(t if t.dtype.kind == "f" else cast(t, FLOAT32))
    expect(r.ndim == 2, "qr", "a", "be a matrix", list(r.shape))
    m, n = r.shape
    q = eye(m, dtype=r.dtype, device=r.device)
    rows = arange(m, device=r.device)
    for k in range(min(m - 1, n)):
        x = where(rows < k, 0.0, r[:, k])
        size = UFUNCS["sqrt"]((x * x).sum())
        v = where(rows == k, x + where(x < 0.0, -1.0, 1.0) * size, x)
        square = (v * v).sum()
        scale = where(square > 0.0, 2.0 / square, 0.0)
        r = r - (v * scale)[:, None] * matmul(v, r)
        q = q - matmul(q, v)[:, None] * (v * scale)
    r = triu(r)
    count = m if mode == "complete" else min(m, n)
    return copied(r[:count]) if mode == "r" else (copied(q[:, :count]), copied(r[:count]))


@array_function("linalg.matrix_power", public=False)
def matrix_power(a: TensorLike, n: int) -> Tensor:
    """The product of ``n`` times the matrix; of the inverse for a negative ``n``."""
    t = computed(a)
    expect(t.ndim == 2 and t.shape[0] == t.shape[1], "matrix_power", "a", "be a square matrix",
           list(t.shape))
    if n < 0:
        return matrix_power(inv(t), -n)
    y = eye(t.shape[0], dtype=t.dtype, device=t.device)
    while n:
        if n & 1:
            y = matmul(y, t)
        t, n = (matmul(t, t) if n > 1 else t), n >> 1
    return y


@array_function("linalg.multi_dot", public=False)
def multi_dot(arrays: Any) -> Tensor:
    """The product of several matrices, from left to right."""
    y = as_tensor(arrays[0], *arrays)
    for other in arrays[1:]:
        y = matmul(y, other)
    return y


@array_function("linalg.lstsq", public=False)
def lstsq(a: TensorLike, b: TensorLike, rcond: object = None) -> Any:
    """numpy.linalg.lstsq needs singular values, so it is computed on the host if it is asked to."""
    raise on_host("lstsq")


def on_host(name: str) -> UnsupportedError:
    """The error for a decomposition that the device does not compute."""
    return UnsupportedError(
        f"numpy.linalg.{name}: expected a function that the device computes, but it has none; "
        f"kompute_dml.linalg.{name}(..., host=True) computes it on the host, and "
        "numpy.asarray(tensor) copies a Tensor there")


def _refuse(name: str) -> None:
    def refused(*args: object, **options: object) -> Any:
        raise on_host(name)

    array_function(f"linalg.{name}", public=False)(refused)


for _name in ("svd", "svdvals", "eig", "eigh", "eigvals", "eigvalsh", "pinv", "matrix_rank",
              "cond"):
    _refuse(_name)
