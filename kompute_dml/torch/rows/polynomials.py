"""Orthogonal polynomials, by the recurrences and the closed forms that PyTorch's CPU kernels use.

https://dlmf.nist.gov/18.9
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...graph.expression import Expression
from ..table import call, lowers
from ..values import F32, Operand, Unsupported, Value, broadcast, cast, expanded, full
from .elementwise import (
    abs_,
    add,
    divide,
    equal,
    greater,
    greater_equal,
    less,
    multiply,
    subtract,
)
from .elementwise import where as chosen

HIGHEST = 64
"""Degrees that are computed here."""


def _both(a: Value, b: Value) -> Value:
    return call("logical_and", a, b)


class _Polynomials(NamedTuple):
    """A family of polynomials."""

    first: Callable[[Value], Value]
    """Of degree 1."""
    step: Callable[[Value, int, Value, Value], Value]
    """Of degree ``k + 1``, from those of degrees ``k - 1`` and ``k``."""
    closed: Callable[[Value, Value], Value] | None = None
    """Between -1 and 1, of ``acos(x)`` and the degree; for degrees above ``limit``."""
    limit: int = 8
    ends: tuple[tuple[int, int], tuple[int, int], bool] | None = None
    """At 1 and at -1 a factor of the degree and what is added; whether the sign changes at -1."""


def _degree(x: Value, n: Operand) -> tuple[Value, int]:
    """The degrees as whole numbers in FLOAT32, and the highest. It is read from the device."""
    if not isinstance(n, Value):
        return full(x.shape, int(n), F32), int(n)
    degree: Value = call("trunc", cast(n, F32))
    if isinstance(degree.data, Expression):
        raise Unsupported("degrees that a graph computes")
    return degree, int(degree.elements.numpy().max())


def _lowering(kind: _Polynomials, shifted: bool = False) -> Callable[[Operand, Operand], Value]:
    def run(x: Operand, n: Operand) -> Value:
        shape = broadcast(x, n)
        if not math.prod(shape) or any(
                isinstance(v, Value) and v.dtype == torch.float64 for v in (x, n)):
            raise Unsupported("a polynomial in FLOAT64, or of no elements")
        x = expanded(x if isinstance(x, Value) else full((), x, F32), shape)
        x = cast(x, F32)
        if shifted:
            x = subtract(multiply(x, 2.0), 1.0)
        degree, highest = _degree(x, n)
        if highest > HIGHEST:
            raise Unsupported(f"a polynomial of degree {highest}")
        before, now = full(shape, 1, F32), kind.first(x)
        y = chosen(equal(degree, 1), now, before)
        for k in range(1, highest):
            before, now = now, kind.step(x, k, before, now)
            y = chosen(equal(degree, k + 1), now, y)
        if kind.closed is not None and highest > kind.limit:
            inside = _both(less(abs_(x), 1), greater(degree, kind.limit))
            y = chosen(inside, kind.closed(call("acos", x), degree), y)
        if kind.ends is not None:
            (a, b), (c, d), changes = kind.ends
            low = add(multiply(degree, float(c)), float(d))
            if changes:
                odd = equal(call("remainder.Scalar", degree, 2), 1)
                low = chosen(odd, call("neg", low), low)
            y = chosen(equal(x, -1), low, y)
            y = chosen(equal(x, 1), add(multiply(degree, float(a)), float(b)), y)
        return chosen(greater_equal(degree, 0), y, full(shape, 0, F32))

    return run


def _chebyshev(x: Value, k: int, before: Value, now: Value) -> Value:
    return subtract(multiply(multiply(x, 2.0), now), before)


def _times(n: Value, shift: float, angle: Value) -> Value:
    return multiply(add(n, shift), angle)


_T = _Polynomials(lambda x: x, _chebyshev, lambda a, n: call("cos", multiply(n, a)), 6,
           ((0, 1), (0, 1), True))
_U = _Polynomials(lambda x: multiply(x, 2.0), _chebyshev,
           lambda a, n: divide(call("sin", _times(n, 1.0, a)), call("sin", a)), 8,
           ((1, 1), (1, 1), True))
_V = _Polynomials(lambda x: subtract(multiply(x, 2.0), 1.0), _chebyshev,
           lambda a, n: divide(call("cos", _times(n, 0.5, a)), call("cos", multiply(a, 0.5))), 8,
           ((0, 1), (2, 1), True))
_W = _Polynomials(lambda x: add(multiply(x, 2.0), 1.0), _chebyshev,
           lambda a, n: divide(call("sin", _times(n, 0.5, a)), call("sin", multiply(a, 0.5))), 8,
           ((2, 1), (0, 1), True))
_H = _Polynomials(lambda x: multiply(x, 2.0), lambda x, k, p, q: subtract(
    multiply(multiply(x, 2.0), q), multiply(p, 2.0 * k)))
_HE = _Polynomials(lambda x: x, lambda x, k, p, q: subtract(multiply(x, q), multiply(p, float(k))))
_L = _Polynomials(lambda x: call("rsub.Scalar", x, 1.0), lambda x, k, p, q: divide(subtract(
    multiply(call("rsub.Scalar", x, 2.0 * k + 1), q), multiply(p, float(k))), k + 1.0))
_P = _Polynomials(lambda x: x, lambda x, k, p, q: divide(subtract(
    multiply(multiply(x, 2.0 * k + 1), q), multiply(p, float(k))), k + 1.0),
    ends=((0, 1), (0, 1), True))

for _name, _kind in {"chebyshev_polynomial_t": _T, "chebyshev_polynomial_u": _U,
                     "chebyshev_polynomial_v": _V, "chebyshev_polynomial_w": _W,
                     "hermite_polynomial_h": _H, "hermite_polynomial_he": _HE,
                     "laguerre_polynomial_l": _L, "legendre_polynomial_p": _P}.items():
    for _shifted in (False, True) if "chebyshev" in _name else (False,):
        _full = f"special_{'shifted_' * _shifted}{_name}"
        lowers(_full, f"{_full}.x_scalar", f"{_full}.n_scalar")(_lowering(_kind, _shifted))
