"""Special functions, by polynomials of FLOAT32's precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ..table import call, lowers
from ..values import F32, Operand, Unsupported, Value, cast, floating
from .elementwise import abs_, add, divide, equal, greater, less, logical_not, multiply, subtract
from .elementwise import where as chosen


def in_float32(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """FLOAT16 and integers are computed in FLOAT32."""
    def run(x: Value) -> Value:
        dtype = floating(x.dtype)
        if dtype == torch.float64:
            raise Unsupported("a special function in FLOAT64")
        return cast(function(cast(x, F32)), dtype)

    return run


def polynomial(x: Value, coefficients: Sequence[float]) -> Operand:
    """By Horner's rule, the highest power first."""
    y: Operand = coefficients[0]
    for c in coefficients[1:]:
        y = add(multiply(x, y), c)
    return y


_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418,
         0.37409196, 1.00002368, -1.26551223)
_ERFINV_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_ERFINV_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
               -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
_GAMMA = (76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155,
          0.1208650973866179e-2, -0.5395239384953e-5)
_COTANGENT = (2 * math.pi ** 6 / 945, math.pi ** 4 / 45, math.pi ** 2 / 3)
_I0_NEAR = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_I0_FAR = (0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319,
           0.01328592, 0.39894228)
_I1_NEAR = (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5)
_I1_FAR = (-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018,
           -0.03988024, 0.39894228)
# Of Press and others, Numerical Recipes; Giles, Approximating the erfinv function; Abramowitz and
# Stegun, 9.8.1 to 9.8.4. Near zeros of a function, and in the tail of erfc, fewer digits are right.


@lowers("erfc", "special_erfc")
@in_float32
def erfc(x: Value) -> Value:
    size = abs_(x)
    t = call("reciprocal", add(multiply(size, 0.5), 1.0))
    power = subtract(polynomial(t, _ERFC), multiply(size, size))
    y = multiply(t, call("exp", power))
    return chosen(less(x, 0), subtract(2.0, y), y)


@lowers("special_erfcx")
@in_float32
def erfcx(x: Value) -> Value:
    """``exp(x * x) * erfc(x)``, which overflows for x far below 0 only."""
    size = abs_(x)
    t = call("reciprocal", add(multiply(size, 0.5), 1.0))
    y = multiply(t, call("exp", polynomial(t, _ERFC)))
    return chosen(less(x, 0), subtract(multiply(call("exp", multiply(x, x)), 2.0), y), y)


@lowers("erfinv", "special_erfinv")
@in_float32
def erfinv(x: Value) -> Value:
    w = call("neg", call("log", multiply(subtract(1.0, x), add(x, 1.0))))
    near = polynomial(subtract(w, 2.5), _ERFINV_NEAR)
    far = polynomial(subtract(call("sqrt", w), 3.0), _ERFINV_FAR)
    y = multiply(chosen(less(w, 5.0), near, far), x)
    end = chosen(less(x, 0), -math.inf, math.inf)
    return chosen(equal(abs_(x), 1.0), end, y)


def _from_half(x: Value) -> tuple[Value, Value, Value]:
    """Where x is below 0.5, the argument of the reflection formula there, and x less the nearest
    integer."""
    low = less(x, 0.5)
    return low, chosen(low, subtract(1.0, x), x), subtract(x, call("round", x))


@lowers("lgamma")
@in_float32
def lgamma(x: Value) -> Value:
    low, z, rest = _from_half(x)
    series: Operand = 1.000000000190015
    for i, c in enumerate(_GAMMA):
        series = add(divide(c, add(z, float(i + 1))), series)
    base = add(z, 5.5)
    y = subtract(multiply(add(z, 0.5), call("log", base)), base)
    y = add(y, call("log", divide(multiply(series, 2.5066282746310005), z)))
    sine = abs_(call("sin", multiply(rest, math.pi)))
    y = chosen(low, subtract(call("log", divide(math.pi, sine)), y), y)
    return chosen(call("isinf", x), math.inf, y)


@lowers("digamma", "special_digamma")
@in_float32
def digamma(x: Value) -> Value:
    low, z, rest = _from_half(x)
    shift: Operand = 0.0
    for i in range(6):
        shift = add(call("reciprocal", add(z, float(i))), shift)
    z = add(z, 6.0)
    square = call("reciprocal", multiply(z, z))
    tail = multiply(polynomial(square, (1 / 252, -1 / 120, 1 / 12)), square)
    y = subtract(call("log", z), divide(0.5, z))
    y = subtract(subtract(y, tail), shift)
    square = multiply(rest, rest)
    slope = multiply(polynomial(square, _COTANGENT), rest)
    near = subtract(call("reciprocal", rest), slope)  # exact near poles
    far = divide(math.pi, call("tan", multiply(rest, math.pi)))
    cotangent = chosen(less(abs_(rest), 0.1), near, far)
    y = chosen(low, subtract(y, cotangent), y)
    pole = call("logical_and", less(x, 0), equal(rest, 0))
    y = chosen(pole, math.nan, y)
    return chosen(equal(x, 0), call("neg", call("reciprocal", x)), y)


def _bessel(near: Sequence[float], far: Sequence[float], odd: bool, scaled: bool
            ) -> Callable[[Value], Value]:
    """A modified Bessel function of the first kind; scaled by ``exp(-|x|)``."""
    def run(x: Value) -> Value:
        size = abs_(x)
        t = multiply(x, 1 / 3.75)
        small = polynomial(multiply(t, t), near)
        small = multiply(small, size) if odd else small
        if scaled:
            small = multiply(small, call("exp", call("neg", size)))
        large = multiply(polynomial(divide(3.75, size), far), call("rsqrt", size))
        if not scaled:
            large = multiply(large, call("exp", size))
        y = chosen(less(size, 3.75), small, large)
        return multiply(y, call("sign", x)) if odd else y

    return in_float32(run)


lowers("i0", "special_i0", "special_modified_bessel_i0")(
    _bessel(_I0_NEAR, _I0_FAR, odd=False, scaled=False))
lowers("special_i0e")(_bessel(_I0_NEAR, _I0_FAR, odd=False, scaled=True))
lowers("special_i1", "special_modified_bessel_i1")(
    _bessel(_I1_NEAR, _I1_FAR, odd=True, scaled=False))
lowers("special_i1e")(_bessel(_I1_NEAR, _I1_FAR, odd=True, scaled=True))


@lowers("special_ndtri")
@in_float32
def ndtri(p: Value) -> Value:
    """The quantile of the normal distribution."""
    y = multiply(erfinv(subtract(multiply(p, 2.0), 1.0)), math.sqrt(2))
    outside = call("logical_or", less(p, 0), greater(p, 1))
    return chosen(call("logical_and", outside, logical_not(call("isnan", p))), math.nan, y)
