"""Matrix products."""

from __future__ import annotations

import math

import torch

import kompute_dml as dml

from ...functions.matrix_multiply import gemm_of_bfloat16
from ..table import call, lowers
from ..values import (
    F32,
    MOST_PAIRS,
    Number,
    Unsupported,
    Value,
    broadcast_shapes,
    cast,
    expanded,
    full,
    value,
)


@lowers("mm", "bmm", "matmul")
def product(a: Value, b: Value) -> Value:
    if a.dtype != b.dtype:
        raise Unsupported(f"a product of {a!r} and {b!r}")
    if min(a.ndim, b.ndim) < 2:
        raise Unsupported("a product with a vector")
    shape = (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if not a.numel or not b.numel:
        return full(shape, 0, a.dtype)
    if a.dtype == torch.bfloat16:
        y = gemm_of_bfloat16(a.elements, b.elements) if len(shape) <= 4 else None
        return value(y, shape, a.dtype) if y is not None else cast(
            product(cast(a, F32), cast(b, F32)), a.dtype)
    if not a.dtype.is_floating_point:
        return _exact(a, b)
    return value(dml.matmul(a.elements, b.elements), shape, a.dtype)


def _exact(a: Value, b: Value) -> Value:
    """Integers: products of all pairs, and sums."""
    terms = math.prod(a.shape) * b.shape[-1]
    if terms > MOST_PAIRS:
        raise Unsupported(f"a product of integers of {terms} terms")
    left, right = call("unsqueeze", a, -1), call("unsqueeze", b, -3)
    pairs = call("mul.Tensor", left, right)
    return call("sum.dim_IntList", pairs, [-2], dtype=a.dtype)


@lowers("addmm")
def addmm(c: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    shape = (a.shape[0], b.shape[1])
    if a.dtype.is_floating_point and a.numel and b.numel and c.dtype == a.dtype == b.dtype:
        gemm = gemm_of_bfloat16 if a.dtype == torch.bfloat16 else dml.gemm
        # With a factor of 0, whatever C holds counts for nothing, NaN too.
        added = None if beta == 0 else expanded(c, shape).elements
        y = gemm(a.elements, b.elements, added, alpha=float(alpha), beta=float(beta))
        if y is not None:
            return value(y, shape, a.dtype)
        wide = addmm(cast(c, F32), cast(a, F32), cast(b, F32), beta=beta, alpha=alpha)
        return cast(wide, a.dtype)
    return _added(c, product(a, b), beta, alpha)


@lowers("baddbmm")
def baddbmm(c: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _added(c, product(a, b), beta, alpha)


def _added(c: Value, y: Value, beta: Number, alpha: Number) -> Value:
    y = y if alpha == 1 else call("mul.Tensor", y, alpha)
    if beta == 0:
        return y
    return call("add.Tensor", y, c if beta == 1 else call("mul.Tensor", c, beta))


@lowers("linear")
def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.ndim != 2:
        raise Unsupported("linear of a vector of weights")
    rows = math.prod(x.shape[:-1])
    flat = call("view", x, (rows, x.shape[-1]))
    w = call("t", weight)
    y = product(flat, w) if bias is None else addmm(bias, flat, w)
    return call("view", y, (*x.shape[:-1], weight.shape[0]))


@lowers("mv")
def mv(a: Value, b: Value) -> Value:
    return call("view", product(a, call("unsqueeze", b, 1)), (a.shape[0],))


@lowers("dot")
def dot(a: Value, b: Value) -> Value:
    return call("sum", call("mul.Tensor", a, b), dtype=a.dtype)
