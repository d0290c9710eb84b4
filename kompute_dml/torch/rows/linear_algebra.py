"""Elimination and reflections of small matrices, one column a step, all matrices at once.

Eigenvectors and singular values are a step of the CPU.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

from ...graph.expression import Expression
from ..table import call, lowers
from ..values import (
    BOOL,
    F32,
    I32,
    I64,
    Sizes,
    Unsupported,
    Value,
    broadcast_shapes,
    cast,
    constant,
    full,
    resized,
)

LARGEST = 64
"""Columns that are eliminated here. The CPU is faster with more."""


def _taken(*matrices: Value) -> None:
    for a in matrices:
        if a.dtype != F32:
            raise Unsupported(f"linear algebra of {a.dtype}")
        if a.ndim < 2 or not a.numel or max(a.shape[-2:]) > LARGEST:
            raise Unsupported(f"linear algebra of matrices of sizes {list(a.shape)}")


def _square(a: Value) -> None:
    _taken(a)
    if a.shape[-1] != a.shape[-2]:
        raise Unsupported(f"square matrices are expected, not {list(a.shape)}")


def _joined(a: Value) -> Value:
    """{count, rows, columns}."""
    return resized(a, (math.prod(a.shape[:-2]), *a.shape[-2:]))


def _apart(a: Value, batch: Sizes) -> Value:
    return resized(a, (*batch, *a.shape[1:]))


def _together(a: Value, b: Value) -> tuple[tuple[int, ...], Value, Value]:
    """The sizes before the matrices', and both joined, after broadcasting."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    first, second = (_joined(call("expand", x, (*batch, *x.shape[-2:]))) for x in (a, b))
    return batch, first, second


def _turned(a: Value) -> Value:
    return call("transpose.int", a, -1, -2)


def _mask(truth: np.ndarray) -> Value:
    return constant(truth.astype(np.uint8), BOOL)


def _eye(count: int, rows: int, columns: int, dtype: torch.dtype = F32) -> Value:
    one = cast(constant(np.eye(rows, columns, dtype=np.float32), F32), dtype)
    return call("expand", one, (count, rows, columns))


def _row(a: Value, k: int) -> Value:
    return call("slice.Tensor", a, 1, k, k + 1)


def _column(a: Value, k: int) -> Value:
    return call("slice.Tensor", a, 2, k, k + 1)


def _less_product(a: Value, b: Value, c: Value) -> Value:
    return call("sub.Tensor", a, call("mul.Tensor", b, c))


# By elimination


def _factored(a: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    """{count, m, n} as triangles in one matrix, the exchanges of rows from 1, and the order of the
    rows."""
    count, m, n = a.shape
    rows, columns = np.arange(m), np.arange(n)
    order = call("expand", constant(rows, I64), (count, m))
    numbers, exchanged = order, []
    for k in range(min(m, n)):
        if pivot:
            sizes = call("where.self", _mask(rows < k), -1.0,
                         call("select.int", call("abs", a), 2, k))
            at = call("argmax", sizes, 1, True)
            swap = call("where.self", _mask(rows == k), at,
                        call("where.self", call("eq.Tensor", numbers, at), k, numbers))
            a = call("gather", a, 1, call("expand", call("unsqueeze", swap, 2), a.shape))
            order = call("gather", order, 1, swap)
            exchanged.append(call("add.Tensor", at, 1))
        else:
            exchanged.append(full((count, 1), k + 1, I64))
        column, top = _column(a, k), _column(_row(a, k), k)
        factors = call("where.self", call("eq.Scalar", top, 0), 0.0,
                       call("div.Tensor", column, top))
        factors = call("where.self", _mask(rows[:, None] > k), factors, 0.0)
        beyond = call("where.self", _mask(columns > k), _row(a, k), 0.0)
        a = _less_product(a, factors, beyond)
        a = call("where.self", _mask((rows[:, None] > k) & (columns == k)), factors, a)
    return a, cast(call("cat", exchanged, 1), I32), order


def _triangles(a: Value) -> tuple[Value, Value]:
    """The lower triangle with ones, and the upper one."""
    count, m, n = a.shape
    k = min(m, n)
    lower = call("tril", call("slice.Tensor", a, 2, 0, k), -1)
    return (call("add.Tensor", lower, _eye(count, m, k)),
            call("triu", call("slice.Tensor", a, 1, 0, k)))


def _info(wrong: Value, batch: Sizes) -> Value:
    """LAPACK's info: the first place {count, n} that is wrong, counted from 1, or 0."""
    first = call("add.Tensor", call("argmax", cast(wrong, I32), 1), 1)
    return cast(resized(call("mul.Tensor", first, call("any.dim", wrong, 1)), batch), I32)


def _zero_at(a: Value, batch: Sizes) -> Value:
    """LAPACK's info of triangles: a diagonal element that is 0 is wrong."""
    return _info(call("eq.Scalar", call("diagonal", a, 0, 1, 2), 0), batch)


def _odd(exchanged: Value) -> Value:
    """-1 where an odd number of rows was exchanged, else 1: {...} of {..., n}."""
    places = constant(np.arange(1, exchanged.shape[-1] + 1, dtype=np.int32), I32)
    moved = call("sum.dim_IntList", call("ne.Tensor", exchanged, places), [-1])
    return call("sub.Tensor", 1.0, call("mul.Tensor", cast(call(
        "remainder.Scalar", moved, 2), F32), 2.0))


def _substituted(a: Value, b: Value, upper: bool, ones: bool) -> Value:
    """``x`` with ``a @ x = b`` for triangles {count, n, n}."""
    n = a.shape[1]
    rows = np.arange(n)[:, None]
    solved: list[Value] = [b] * n
    for k in reversed(range(n)) if upper else range(n):
        x = _row(b, k)
        solved[k] = x = x if ones else call("div.Tensor", x, _column(_row(a, k), k))
        left = _mask(rows < k if upper else rows > k)
        b = _less_product(b, call("where.self", left, _column(a, k), 0.0), x)
    return call("cat", solved, 1)


def _of_factors(factors: Value, order: Value, b: Value) -> Value:
    at = call("expand", call("unsqueeze", order, 2), b.shape)
    y = _substituted(factors, call("gather", b, 1, at), upper=False, ones=True)
    return _substituted(factors, y, upper=True, ones=False)


@lowers("linalg_lu_factor_ex")
def lu_factor(a: Value, *, pivot: bool = True, check_errors: bool = False) -> list[Value]:
    _taken(a)
    batch = a.shape[:-2]
    factors, exchanged, _ = _factored(_joined(a), pivot)
    return [_apart(factors, batch), _apart(exchanged, batch), _zero_at(factors, batch)]


def _exchange(order: Value) -> Value:
    """The matrix P with ``P @ L @ U = A``."""
    m = order.shape[1]
    rows = constant(np.arange(m), I64)
    at = call("eq.Tensor", resized(rows, (m, 1)), call("unsqueeze", order, 1))
    return cast(at, F32)


@lowers("linalg_lu")
def lu(a: Value, *, pivot: bool = True) -> list[Value]:
    _taken(a)
    batch = a.shape[:-2]
    factors, _, order = _factored(_joined(a), pivot)
    p = _apart(_exchange(order), batch) if pivot else full((0,), 0, F32)
    return [p, *[_apart(t, batch) for t in _triangles(factors)]]


def _order(exchanged: Value, m: int) -> Value:
    """The order of the rows after these exchanges."""
    order = numbers = call("expand", constant(np.arange(m), I64), (exchanged.shape[0], m))
    for k in range(exchanged.shape[1]):
        at = call("sub.Tensor", cast(call("slice.Tensor", exchanged, 1, k, k + 1), I64), 1)
        swap = call("where.self", _mask(np.arange(m) == k), at,
                    call("where.self", call("eq.Tensor", numbers, at), k, numbers))
        order = call("gather", order, 1, swap)
    return order


@lowers("lu_unpack")
def lu_unpack(factors: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
              ) -> list[Value]:
    _taken(factors)
    batch, nothing = factors.shape[:-2], full((0,), 0, factors.dtype)
    p = lower = upper = nothing
    if unpack_pivots:
        exchanged = resized(pivots, (math.prod(batch), pivots.shape[-1]))
        p = _apart(_exchange(_order(exchanged, factors.shape[-2])), batch)
    if unpack_data:
        lower, upper = (_apart(t, batch) for t in _triangles(_joined(factors)))
    return [p, lower, upper]


@lowers("linalg_lu_solve")
def lu_solve(factors: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False
             ) -> Value:
    _square(factors)
    _taken(b)
    b = b if left else _turned(b)
    batch, joined, right = _together(factors, b)
    n = joined.shape[1]
    exchanged = resized(call("expand", pivots, (*batch, n)), (joined.shape[0], n))
    order = _order(exchanged, n)
    if left != adjoint:
        x = _of_factors(joined, order, right)
    else:
        turned = _turned(joined)
        y = _substituted(turned, right, upper=False, ones=False)
        y = _substituted(turned, y, upper=True, ones=True)
        x = call("bmm", _exchange(order), y)
    x = _apart(x, batch)
    return x if left else _turned(x)


def _factored_for_gradients(a: Value) -> tuple[bool, list[Value]]:
    """As PyTorch's gradients expect: of the transposed matrix, if the matrix is contiguous.
    Whether it was transposed, and what :func:`lu_factor` returns."""
    if isinstance(a.data, Expression):
        raise Unsupported("layouts, which a graph does not keep")
    turned = a.elements.desc.is_packed
    return turned, lu_factor(_turned(a) if turned else a)


@lowers("_linalg_det")
def det(a: Value) -> list[Value]:
    _square(a)
    _, (factors, exchanged, _) = _factored_for_gradients(a)
    product = call("prod.dim_int", call("diagonal", factors, 0, -2, -1), -1)
    return [call("mul.Tensor", product, _odd(exchanged)), factors, exchanged]


@lowers("_linalg_slogdet")
def slogdet(a: Value) -> list[Value]:
    _square(a)
    _, (factors, exchanged, _) = _factored_for_gradients(a)
    pivots = call("diagonal", factors, 0, -2, -1)
    sign = call("prod.dim_int", call("sign", pivots), -1)
    size = call("sum.dim_IntList", call("log", call("abs", pivots)), [-1])
    return [call("mul.Tensor", sign, _odd(exchanged)), size, factors, exchanged]


@functools.cache
def _solve_keeps_turned() -> bool:
    """Whether PyTorch keeps factors of the transposed matrix for the gradient of ``solve``, which
    its releases do differently."""
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    _, factors, *_ = torch.ops.aten._linalg_solve_ex(a, a)
    return float(factors[0, 0]) == 2.0


@lowers("_linalg_solve_ex")
def solve(a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> list[Value]:
    _square(a)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    columns = call("unsqueeze", b, -1) if vector else b
    turned, (factors, exchanged, info) = (
        _factored_for_gradients(a) if _solve_keeps_turned() else (False, lu_factor(a)))
    x = lu_solve(factors, exchanged, columns, left=left or vector, adjoint=turned)
    return [call("squeeze.dim", x, -1) if vector else x, factors, exchanged, info]


@lowers("linalg_inv_ex")
def inverse(a: Value, *, check_errors: bool = False) -> list[Value]:
    _square(a)
    joined = _joined(a)
    factors, _, order = _factored(joined)
    x = _of_factors(factors, order, _eye(*joined.shape))
    return [_apart(x, a.shape[:-2]), _zero_at(factors, a.shape[:-2])]


@lowers("linalg_solve_triangular")
def solve_triangular(a: Value, b: Value, *, upper: bool, left: bool = True,
                     unitriangular: bool = False) -> Value:
    _square(a)
    _taken(b)
    if not left:
        turned = solve_triangular(_turned(a), _turned(b), upper=not upper,
                                  unitriangular=unitriangular)
        return _turned(turned)
    batch, triangle, right = _together(a, b)
    return _apart(_substituted(triangle, right, upper, unitriangular), batch)


@lowers("triangular_solve")
def triangular_solve(b: Value, a: Value, upper: bool = True, transpose: bool = False,
                     unitriangular: bool = False) -> list[Value]:
    triangle, seen = (_turned(a), not upper) if transpose else (a, upper)
    x = solve_triangular(triangle, b, upper=seen, unitriangular=unitriangular)
    return [x, call("expand", a, (*x.shape[:-2], *a.shape[-2:]))]


@lowers("linalg_cholesky_ex")
def cholesky_ex(a: Value, *, upper: bool = False, check_errors: bool = False) -> list[Value]:
    """The triangle that is asked for is read."""
    _square(a)
    joined = _joined(_turned(a) if upper else a)
    n = joined.shape[1]
    rows = np.arange(n)[:, None]
    columns = []
    for k in range(n):
        column = call("where.self", _mask(rows >= k), _column(joined, k), 0.0)
        column = call("div.Tensor", column, call("sqrt", _column(_row(joined, k), k)))
        columns.append(column)
        joined = _less_product(joined, column, _turned(column))
    y = call("cat", columns, 2)
    diagonal = call("diagonal", y, 0, 1, 2)
    wrong = call("logical_not", call("gt.Scalar", diagonal, 0))  # NaN is wrong, too
    info = _info(wrong, a.shape[:-2])
    y = _apart(y, a.shape[:-2])
    return [_turned(y) if upper else y, info]


@lowers("_cholesky_solve_helper")
def cholesky_solve(b: Value, a: Value, upper: bool) -> Value:
    lower = _turned(a) if upper else a
    y = solve_triangular(lower, b, upper=False)
    return solve_triangular(_turned(lower), y, upper=True)


@lowers("cholesky_inverse")
def cholesky_inverse(a: Value, upper: bool = False) -> Value:
    _square(a)
    one = _apart(_eye(math.prod(a.shape[:-2]), *a.shape[-2:]), a.shape[:-2])
    return cholesky_solve(one, a, upper)


# By reflections


def _reflected(a: Value) -> tuple[Value, Value, Value]:
    """The upper triangle {count, m, n}, the reflections {count, m, k} and their factors
    {count, k}, with LAPACK's signs."""
    m = a.shape[1]
    rows = np.arange(m)[:, None]
    vectors, scales = [], []
    for k in range(min(a.shape[1:])):
        x, first = _column(a, k), _column(_row(a, k), k)
        below = call("where.self", _mask(rows > k), x, 0.0)
        rest = call("sum.dim_IntList", call("mul.Tensor", below, below), [1], True)
        size = call("sqrt", call("add.Tensor", call("mul.Tensor", first, first), rest))
        end = call("where.self", call("lt.Scalar", first, 0), size, call("neg", size))
        apart = call("gt.Scalar", rest, 0)
        scale = call("where.self", apart, call("div.Tensor", call(
            "sub.Tensor", end, first), end), 0.0)
        v = call("where.self", apart, call("div.Tensor", below, call(
            "sub.Tensor", first, end)), 0.0)
        v = call("where.self", _mask(rows == k), 1.0, v)
        a = _mirrored(a, v, scale)
        vectors.append(v)
        scales.append(call("squeeze.dim", scale, 2))
    return a, call("cat", vectors, 2), call("cat", scales, 1)


def _mirrored(a: Value, v: Value, scale: Value) -> Value:
    """``a`` less ``scale * v @ (v.T @ a)``."""
    return _less_product(a, call("mul.Tensor", v, scale), call("bmm", _turned(v), a))


def _reflect(y: Value, vectors: Value, scales: Value, *, from_first: bool = False) -> Value:
    """``y`` after all reflections, by default the last one first."""
    k = vectors.shape[2]
    for i in range(k) if from_first else reversed(range(k)):
        scale = call("unsqueeze", call("slice.Tensor", scales, 1, i, i + 1), 2)
        y = _mirrored(y, _column(vectors, i), scale)
    return y


def _orthonormal(vectors: Value, scales: Value, columns: int) -> Value:
    count, m, _ = vectors.shape
    return _reflect(_eye(count, m, columns), vectors, scales)


def _reflections(a: Value, scales: Value) -> tuple[Value, Value]:
    """The reflections {count, m, k} below the diagonal of ``a``, and their factors {count, k}."""
    k = scales.shape[-1]
    below = call("tril", call("slice.Tensor", _joined(a), 2, 0, k), -1)
    count, m, _ = below.shape
    return call("add.Tensor", below, _eye(count, m, k)), resized(scales, (count, k))


@lowers("linalg_qr")
def qr(a: Value, mode: str = "reduced") -> list[Value]:
    _taken(a)
    batch, (m, n) = a.shape[:-2], a.shape[-2:]
    triangle, vectors, scales = _reflected(_joined(a))
    count = m if mode == "complete" else min(m, n)
    r = call("triu", call("slice.Tensor", triangle, 1, 0, count))
    if mode == "r":
        return [full((0,), 0, a.dtype), _apart(r, batch)]
    return [_apart(_orthonormal(vectors, scales, count), batch), _apart(r, batch)]


@lowers("geqrf")
def geqrf(a: Value) -> list[Value]:
    _taken(a)
    batch, (m, n) = a.shape[:-2], a.shape[-2:]
    triangle, vectors, scales = _reflected(_joined(a))
    if m < n:
        vectors = call("constant_pad_nd", vectors, [0, n - m])
    below = _mask(np.arange(m)[:, None] > np.arange(n))
    return [_apart(call("where.self", below, vectors, triangle), batch), _apart(scales, batch)]


@lowers("linalg_householder_product")
def householder_product(a: Value, scales: Value) -> Value:
    _taken(a)
    if not scales.shape[-1]:
        raise Unsupported("no reflections")
    return _apart(_orthonormal(*_reflections(a, scales), a.shape[-1]), a.shape[:-2])


@lowers("ormqr")
def ormqr(a: Value, scales: Value, b: Value, left: bool = True, transpose: bool = False) -> Value:
    """The product with the orthonormal matrix of all reflections."""
    _taken(a, b)
    if not left:
        return _turned(ormqr(a, scales, _turned(b), True, not transpose))
    y = _reflect(_joined(b), *_reflections(a, scales), from_first=transpose)
    return _apart(y, b.shape[:-2])
