"""Complex numbers: pairs of FLOAT32, stored as one element of 64 bits, and Fourier transforms.

DirectML has no such elements. What moves elements moves these. What computes takes the parts apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch

import kompute_dml as dml

from ...onnx.operators.fourier import matrix_of, roots_of
from ..table import LOWERINGS, call, lowers, overload
from ..values import (
    F32,
    Number,
    Operand,
    Sizes,
    Unsupported,
    Value,
    as_value,
    broadcast_shapes,
    cast,
    constant,
    dimensions,
    empty,
    expanded,
    packed,
    paired,
    pairs,
    parts,
    permuted,
    resized,
    window,
)
from . import elementwise, indices, movement, products  # noqa: F401  (their rows come first)

C64 = torch.complex64

for _name in (
        "view", "_unsafe_view", "reshape", "_reshape_alias", "alias", "clone", "detach",
        "lift_fresh_copy", "lift_fresh", "contiguous", "expand", "copy", "permute", "t",
        "transpose.int", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims", "slice.Tensor",
        "select.int", "unbind.int", "split_with_sizes", "split.Tensor", "cat", "stack",
        "slice_scatter", "select_scatter", "constant_pad_nd", "repeat", "flip", "roll", "full",
        "full_like", "new_full", "fill.Scalar", "scalar_tensor", "zeros", "ones", "empty_strided",
        "new_empty_strided", "new_empty", "new_zeros", "new_ones", "empty_like", "zeros_like",
        "ones_like", "zero", "empty.memory_format", "index_select", "_to_copy",
        "prims::convert_element_type"):
    if overload(_name) in LOWERINGS:  # elements are moved as they are, or converted
        lowers(_name, takes_complex=True)(LOWERINGS[overload(_name)])


def joined(real: Value, imaginary: Value) -> Value:
    """Complex numbers of parts in FLOAT32, broadcast."""
    shape = broadcast_shapes(real.shape, imaginary.shape)
    if not math.prod(shape):
        return empty(shape, C64)
    whole = [resized(expanded(cast(x, F32), shape), (*shape, 1)).elements
             for x in (real, imaginary)]
    return paired(dml.join(whole, axis=len(shape)), shape)


def _both(x: Operand) -> tuple[Value, Value]:
    return parts(as_value(x, C64))


@lowers("view_as_real", takes_complex=True)
def view_as_real(x: Value) -> Value:
    return pairs(x)


@lowers("view_as_complex", takes_complex=True)
def view_as_complex(x: Value) -> Value:
    if x.dtype != F32:
        raise Unsupported(f"complex numbers of {x.dtype}")
    shape = x.shape[:-1]
    return empty(shape, C64) if x.data is None else paired(dml.identity(x.data), shape)


@lowers("complex", takes_complex=True)
def complex_(real: Value, imaginary: Value) -> Value:
    if real.dtype != F32 or imaginary.dtype != F32:
        raise Unsupported(f"complex numbers of {real.dtype}")
    return joined(real, imaginary)


@lowers("polar", takes_complex=True)
def polar(size: Value, angle: Value) -> Value:
    if size.dtype != F32 or angle.dtype != F32:
        raise Unsupported(f"complex numbers of {size.dtype}")
    return joined(*(call("mul.Tensor", size, call(f, angle)) for f in ("cos", "sin")))


@lowers("real", "real_copy", takes_complex=True)
def real_(x: Value) -> Value:
    return parts(x)[0] if x.dtype.is_complex else x


@lowers("imag", "imag_copy", takes_complex=True)
def imag(x: Value) -> Value:
    return parts(x)[1]


@lowers("conj", "_conj", "_conj_copy", "conj_physical", "_conj_physical", takes_complex=True)
def conj(x: Value) -> Value:
    if not x.dtype.is_complex:
        return x
    real, imaginary = parts(x)
    return joined(real, call("neg", imaginary))


@lowers("resolve_conj", "resolve_neg", takes_complex=True)
def resolved(x: Value) -> Value:
    return x


@lowers("mm", "bmm", "matmul", takes_complex=True)
def product(a: Value, b: Value) -> Value:
    """Four products of matrices."""
    if a.dtype != b.dtype:
        raise Unsupported(f"a product of {a!r} and {b!r}")
    (c, d), (e, f) = parts(a), parts(b)
    return joined(call("sub.Tensor", call("matmul", c, e), call("matmul", d, f)),
                  call("add.Tensor", call("matmul", c, f), call("matmul", d, e)))


@lowers("abs", takes_complex=True)
def abs_(x: Value) -> Value:
    return call("hypot", *parts(x))


@lowers("angle", takes_complex=True)
def angle(x: Value) -> Value:
    real, imaginary = parts(x)
    return call("atan2", imaginary, real)


@lowers("sgn", takes_complex=True)
def sgn(x: Value) -> Value:
    size = abs_(x)
    zero = call("eq.Scalar", size, 0)
    return joined(*(call("where.self", zero, 0.0, call("div.Tensor", p, size)) for p in parts(x)))


@lowers("neg", takes_complex=True)
def neg(x: Value) -> Value:
    return joined(*(call("neg", p) for p in parts(x)))


def _sum(name: str) -> Callable[..., Value]:
    def lowering(x: Operand, y: Operand, alpha: Number = 1) -> Value:
        if isinstance(alpha, complex):
            raise Unsupported("a complex alpha")
        return joined(*(call(name, a, b, alpha=alpha) for a, b in zip(_both(x), _both(y))))

    return lowering


for _name in ("add", "sub"):
    lowers(f"{_name}.Tensor", f"{_name}.Scalar", takes_complex=True)(_sum(f"{_name}.Tensor"))


@lowers("mul.Tensor", "mul.Scalar", takes_complex=True)
def mul(x: Operand, y: Operand) -> Value:
    reals = [z for z in (x, y) if not _is_complex(z)]
    if reals:  # no infinity times zero
        factor, = reals
        other = y if factor is x else x
        return joined(*(call("mul.Tensor", p, factor) for p in _both(other)))
    (a, b), (c, d) = _both(x), _both(y)
    return joined(
        call("sub.Tensor", call("mul.Tensor", a, c), call("mul.Tensor", b, d)),
        call("add.Tensor", call("mul.Tensor", a, d), call("mul.Tensor", b, c)))


def _is_complex(x: Operand) -> bool:
    return x.dtype.is_complex if isinstance(x, Value) else isinstance(x, complex)


@lowers("div.Tensor", "div.Scalar", takes_complex=True)
def div(x: Operand, y: Operand) -> Value:
    if _is_complex(y):
        raise Unsupported("a quotient by complex numbers")
    return joined(*(call("div.Tensor", p, y) for p in _both(x)))


@lowers("eq.Tensor", "eq.Scalar", takes_complex=True)
def eq(x: Operand, y: Operand) -> Value:
    return call("logical_and", *(call("eq.Tensor", a, b) for a, b in zip(_both(x), _both(y))))


@lowers("ne.Tensor", "ne.Scalar", takes_complex=True)
def ne(x: Operand, y: Operand) -> Value:
    return call("logical_not", eq(x, y))


@lowers("sum", "sum.dim_IntList", takes_complex=True)
def sum_(x: Value, dim: int | Sizes | None = None, keepdim: bool = False,
         dtype: torch.dtype | None = None) -> Value:
    if dtype not in (None, C64):
        raise Unsupported(f"a sum as {dtype}")
    dims = dimensions(x, dim)
    x = cast(x, C64)
    if not dims:
        return x
    return joined(*(call("sum.dim_IntList", p, dims, keepdim) for p in parts(x)))


# Fourier transforms


_SHORT = 512
"""Elements of a transform that is one product."""
_matrix = functools.lru_cache(maxsize=64)(matrix_of)


def _product(x: Value, length: int, kept: int, inverse: bool, back: bool = False) -> Value:
    """Rows of pairs, or of real numbers, times a matrix. Zeros follow what a row has."""
    rows, count, width = x.shape
    matrix = constant(_matrix(length, count, kept, width, inverse, back).astype(np.float32), F32)
    y = call("mm", resized(x, (rows, count * width)), matrix)
    return resized(y, (rows, kept, 1 if back else 2))


def _transformed(x: Value, inverse: bool) -> Value:
    """The transform of rows of pairs. The inverse divides by the length."""
    rows, n, _ = x.shape
    if n <= _SHORT:
        return _product(x, n, n, inverse)
    a = max(d for d in range(1, _SHORT + 1) if n % d == 0)
    if a == 1:
        raise Unsupported(f"a Fourier transform of {n} elements, a prime number")
    b = n // a
    # Element b j + k of what is read, and k + a j of what is made.
    x = permuted(resized(x, (rows, a, b, 2)), (0, 2, 1, 3))
    x = resized(_transformed(resized(x, (rows * b, a, 2)), inverse), (rows, b, a, 2))
    turns = constant(roots_of(b, a, n, inverse).astype(np.complex64).view(np.uint64), torch.uint64)
    x = pairs(mul(_as_complex(x), Value(turns.data, turns.shape, C64)))
    x = resized(permuted(x, (0, 2, 1, 3)), (rows * a, b, 2))
    y = resized(_transformed(x, inverse), (rows, a, b, 2))
    return resized(permuted(y, (0, 2, 1, 3)), (rows, n, 2))


def _along(x: Value, dim: int, transform: Callable[[Value], Value]) -> Value:
    """A transform of rows of pairs along a dimension of pairs."""
    dim %= x.ndim - 1
    order = [*(d for d in range(x.ndim - 1) if d != dim), dim, x.ndim - 1]
    lines = permuted(x, order)
    front = lines.shape[:-2]
    y = transform(resized(lines, (math.prod(front), *lines.shape[-2:])))
    return permuted(resized(y, (*front, *y.shape[1:])),
                    [order.index(d) for d in range(x.ndim)])


def _scaled(x: Value, normalization: int, length: int, inverse: bool) -> Value:
    """Times what PyTorch's normalization (0 none, 1 by the root, 2 by the length) leaves."""
    factor = (1.0, length**-0.5, 1 / length)[normalization] * (length if inverse else 1)
    return x if factor == 1 else call("mul.Scalar", x, factor)


def _whole(x: Value, dims: Sizes, inverse: bool) -> Value:
    for dim in dims:
        x = _along(x, dim, lambda rows: _transformed(rows, inverse))
    return x


def _as_complex(x: Value) -> Value:
    return paired(packed(x.elements), x.shape[:-1])


def _needs(x: Value, dtype: torch.dtype) -> None:
    if x.dtype != dtype:
        raise Unsupported(f"a Fourier transform of {x.dtype}")
    if not x.numel:
        raise Unsupported("a Fourier transform of no elements")


@lowers("_fft_c2c", takes_complex=True)
def fft_c2c(x: Value, dim: Sizes, normalization: int, forward: bool) -> Value:
    _needs(x, C64)
    if not dim:
        return x
    dim = [d % x.ndim for d in dim]
    y = _whole(pairs(x), dim, not forward)
    return _as_complex(_scaled(y, normalization, math.prod(x.shape[d] for d in dim), not forward))


@lowers("_fft_r2c", takes_complex=True)
def fft_r2c(x: Value, dim: Sizes, normalization: int, onesided: bool) -> Value:
    _needs(x, F32)
    dim = [d % x.ndim for d in dim]
    last = dim[-1]
    length = x.shape[last]
    y = resized(x, (*x.shape, 1))
    kept = length // 2 + 1 if onesided else length
    if length <= _SHORT:
        y = _along(y, last, lambda rows: _product(rows, length, kept, False))
    else:
        y = window(_whole(pairs(cast(x, C64)), [last], False), last, 0, kept)
    y = _whole(y, dim[:-1], False)
    return _as_complex(_scaled(y, normalization, math.prod(x.shape[d] for d in dim), False))


@lowers("_fft_c2r", takes_complex=True)
def fft_c2r(x: Value, dim: Sizes, normalization: int, last_dim_size: int) -> Value:
    _needs(x, C64)
    dim = [d % x.ndim for d in dim]
    if last_dim_size > _SHORT:
        raise Unsupported(f"a Fourier transform to {last_dim_size} real numbers")
    count = last_dim_size // 2 + 1
    y = _whole(pairs(x), dim[:-1], True)
    y = _along(window(y, dim[-1], 0, count), dim[-1],
               lambda rows: _product(rows, last_dim_size, last_dim_size, True, True))
    y = resized(y, y.shape[:-1])
    length = last_dim_size * math.prod(x.shape[d] for d in dim[:-1])
    return _scaled(y, normalization, length, True)


