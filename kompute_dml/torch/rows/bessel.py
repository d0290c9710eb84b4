"""Bessel functions of both kinds, and Hurwitz's zeta function.

The polynomials are of Abramowitz and Stegun, 9.4 and 9.8, absolute errors below 2e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ...graph.expression import Expression
from ..table import call, lowers
from ..values import F32, Operand, Unsupported, Value, broadcast, cast, expanded, full
from .elementwise import abs_, add, divide, equal, less, multiply, subtract
from .elementwise import where as chosen
from .special import in_float32, polynomial

_J0_NEAR = (2.1e-4, -3.9444e-3, 4.44479e-2, -0.3163866, 1.2656208, -2.2499997, 1.0)
_Y0_NEAR = (-2.4846e-4, 4.27916e-3, -4.261214e-2, 0.25300117, -0.74350384, 0.60559366, 0.36746691)
_SIZE_0 = (1.4476e-4, -7.2805e-4, 1.37237e-3, -9.512e-5, -5.5274e-3, -7.7e-7, 0.79788456)
_ANGLE_0 = (1.3558e-4, -2.9333e-4, -5.4125e-4, 2.62573e-3, -3.954e-5, -4.166397e-2, -0.78539816)
_J1_NEAR = (1.109e-5, -3.1761e-4, 4.43319e-3, -3.954289e-2, 0.21093573, -0.56249985, 0.5)
_Y1_NEAR = (2.7873e-3, -4.00976e-2, 0.3123951, -1.3164827, 2.1682709, 0.2212091, -0.6366198)
_SIZE_1 = (-2.0033e-4, 1.13653e-3, -2.49511e-3, 1.7105e-4, 1.659667e-2, 1.56e-6, 0.79788456)
_ANGLE_1 = (-2.9166e-4, 7.9824e-4, 7.4348e-4, -6.37879e-3, 5.65e-5, 0.12499612, -2.35619449)
_K0_NEAR = (7.4e-6, 1.075e-4, 2.62698e-3, 3.48859e-2, 0.23069756, 0.4227842, -0.57721566)
_K0_FAR = (5.3208e-4, -2.5154e-3, 5.87872e-3, -1.062446e-2, 2.189568e-2, -7.832358e-2, 1.25331414)
_K1_NEAR = (-4.686e-5, -1.10404e-3, -1.919402e-2, -0.18156897, -0.67278579, 0.15443144, 1.0)
_K1_FAR = (-6.8245e-4, 3.25614e-3, -7.80353e-3, 1.504268e-2, -3.65562e-2, 0.23498619, 1.25331414)


def _third(x: Value) -> Value:
    third = multiply(x, 1 / 3)
    return multiply(third, third)


def _far(x: Value, size: Sequence[float], angle: Sequence[float], wave: str) -> Value:
    """Beyond 3: a wave whose size and angle are polynomials of ``3 / x``."""
    u = divide(3.0, x)
    height = multiply(polynomial(u, size), call("rsqrt", x))
    return multiply(height, call(wave, add(x, polynomial(u, angle))))


def _j0(x: Value) -> Value:
    x = abs_(x)
    return chosen(less(x, 3), polynomial(_third(x), _J0_NEAR), _far(x, _SIZE_0, _ANGLE_0, "cos"))


def _j1(x: Value) -> Value:
    size = abs_(x)
    near = multiply(polynomial(_third(x), _J1_NEAR), x)
    far = multiply(_far(size, _SIZE_1, _ANGLE_1, "cos"), call("sign", x))
    return chosen(less(size, 3), near, far)


def _logarithm(x: Value) -> Value:
    return call("log", multiply(x, 0.5))


def _defined(x: Value, y: Value, at_zero: float) -> Value:
    """Functions of the second kind: NaN below 0."""
    y = chosen(equal(x, 0), at_zero, y)
    return chosen(less(x, 0), math.nan, y)


def _y0(x: Value) -> Value:
    near = add(multiply(multiply(_logarithm(x), _j0(x)), 2 / math.pi),
               polynomial(_third(x), _Y0_NEAR))
    y = chosen(less(x, 3), near, _far(x, _SIZE_0, _ANGLE_0, "sin"))
    return _defined(x, y, -math.inf)


def _y1(x: Value) -> Value:
    near = multiply(multiply(multiply(_logarithm(x), _j1(x)), x), 2 / math.pi)
    near = divide(add(near, polynomial(_third(x), _Y1_NEAR)), x)
    y = chosen(less(x, 3), near, _far(x, _SIZE_1, _ANGLE_1, "sin"))
    return _defined(x, y, -math.inf)


def _half(x: Value) -> Value:
    half = multiply(x, 0.5)
    return multiply(half, half)


def _second(first: str, near: Sequence[float], far: Sequence[float], order: int, scaled: bool
            ) -> Callable[[Value], Value]:
    """A modified Bessel function of the second kind; scaled by ``exp(x)``."""
    def run(x: Value) -> Value:
        part = multiply(_logarithm(x), call(first, x))
        if order:
            small = divide(add(multiply(x, part), polynomial(_half(x), near)), x)
        else:
            small = subtract(polynomial(_half(x), near), part)
        large = multiply(polynomial(divide(2.0, x), far), call("rsqrt", x))
        if scaled:
            small = multiply(small, call("exp", x))
        else:
            large = multiply(large, call("exp", call("neg", x)))
        return _defined(x, chosen(less(x, 2), small, large), math.inf)

    return run


for _name, _function in {
    "bessel_j0": _j0, "bessel_j1": _j1, "bessel_y0": _y0, "bessel_y1": _y1,
    "modified_bessel_k0": _second("i0", _K0_NEAR, _K0_FAR, 0, False),
    "modified_bessel_k1": _second("special_i1", _K1_NEAR, _K1_FAR, 1, False),
    "scaled_modified_bessel_k0": _second("i0", _K0_NEAR, _K0_FAR, 0, True),
    "scaled_modified_bessel_k1": _second("special_i1", _K1_NEAR, _K1_FAR, 1, True),
}.items():
    lowers(f"special_{_name}")(in_float32(_function))


@lowers("special_spherical_bessel_j0")
@in_float32
def spherical_j0(x: Value) -> Value:
    """``sin(x) / x``; by its series near 0."""
    square = multiply(x, x)
    near = polynomial(square, (1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0))
    return chosen(less(abs_(x), 0.5), near, divide(call("sin", x), x))


# https://dlmf.nist.gov/25.11#E43
_TERMS, _MOST = 10, 64


@lowers("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar")
def zeta(s: Operand, q: Operand) -> Value:
    """The sum of ``(q + k) ** -s``: the first terms, and Euler's and Maclaurin's rest."""
    shape = broadcast(s, q)
    if not math.prod(shape) or any(
            isinstance(v, Value) and v.dtype == torch.float64 for v in (s, q)):
        raise Unsupported("zeta in FLOAT64, or of no elements")
    whole_number = s if isinstance(s, (int, float)) and s in range(2, 9) else None

    s, q = (expanded(cast(v, F32) if isinstance(v, Value) else full((), v, F32), shape)
            for v in (s, q))
    order = s

    def power(x: Value) -> Value:
        if whole_number is None:
            return _power(x, order)
        return call("reciprocal", call("pow.Tensor_Scalar", x, whole_number))

    terms = _TERMS + _below_zero(q)
    y = full(shape, 0, F32)
    for k in range(terms):
        y = add(y, power(add(q, float(k))))
    w = add(q, float(terms))
    part = power(w)
    inverse = divide(1.0, multiply(w, w))
    y = add(y, multiply(part, add(divide(w, subtract(s, 1.0)), 0.5)))
    rising = divide(multiply(part, s), w)
    for j, number in enumerate((1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)):
        y = add(y, multiply(rising, number))
        factor = multiply(add(s, 2.0 * j + 1), add(s, 2.0 * j + 2))
        rising = multiply(multiply(rising, factor), inverse)
    whole = equal(call("floor", s), s)
    low = call("logical_and", less(q, 0), call("logical_not", whole))
    y = chosen(low, math.nan, y)
    pole = call("logical_and", call("le.Scalar", q, 0), equal(call("floor", q), q))
    y = chosen(pole, math.inf, y)
    y = chosen(less(s, 1), math.nan, y)
    return chosen(equal(s, 1), math.inf, y)


def _below_zero(q: Value) -> int:
    """How far the arguments reach below 0. It is read from the device."""
    if isinstance(q.data, Expression):
        raise Unsupported("zeta of numbers that a graph computes")
    lowest = float(q.elements.numpy().min())
    if lowest < -_MOST:
        raise Unsupported(f"zeta of {lowest}")
    return max(0, -math.floor(lowest)) if lowest < 0 else 0


def _power(x: Value, s: Value) -> Value:
    """``x ** -s``, with the sign of whole powers."""
    size = call("pow.Tensor_Tensor", abs_(x), call("neg", s))
    odd = equal(call("remainder.Scalar", s, 2), 1)
    return chosen(call("logical_and", odd, less(x, 0)), call("neg", size), size)


@lowers("polygamma")
def polygamma(n: int, x: Value) -> Value:
    """Derivative ``n`` of digamma."""
    if n == 0:
        return call("digamma", x)
    if n > 20:
        raise Unsupported(f"polygamma of order {n}")
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    return cast(multiply(zeta(float(n + 1), cast(x, dtype)),
                         float((-1) ** (n + 1) * math.factorial(n))), dtype)
