"""NumPy's functions of elements that no operator of DirectML is: made of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import expect
from ..tensors import Tensor
from ..tensors.attached import UFUNCS
from ..tensors.types import DType, TensorLike, floating
from .movement import concatenate, flip, moveaxis, pad
from .operand import as_tensor, cast, computed, result
from .reductions import Axis, amax, amin, axes_of, prod
from .reductions import sum as sum_over
from .registry import array_function
from .selection import where
from .ufuncs import Compute, define

_LN2 = math.log(2)


def _of_floats(*values: object) -> list[Tensor]:
    """Operands as tensors of the float type in which NumPy computes a function of them."""
    tensors = [computed(v, *values) for v in values]
    kind = floating("composed", np.result_type(*(t.dtype for t in tensors)))
    return [cast(t, np.dtype(np.float32) if kind == np.float64 else kind) for t in tensors]


def _log1p(x: Tensor) -> Tensor:
    """log(u) x / (u - 1) with u = 1 + x: the rounding of u cancels (Goldberg)."""
    u = x + 1.0
    y = UFUNCS["log"](u)
    exact = (u - 1.0 == 0.0) | ~UFUNCS["isfinite"](u)
    return where(u - 1.0 == 0.0, x, where(exact, y, y * (x / (u - 1.0))))


def _expm1(x: Tensor) -> Tensor:
    """(u - 1) x / log(u) with u = exp(x): the rounding of u cancels (Kahan)."""
    u = UFUNCS["exp"](x)
    y = (u - 1.0) * (x / UFUNCS["log"](u))
    return where(u == 1.0, x, where(UFUNCS["isfinite"](u) & (u > 0.0), y, u - 1.0))


def _cbrt(x: Tensor) -> Tensor:
    root = UFUNCS["power"](abs(x), 1 / 3)
    return where(UFUNCS["isfinite"](x) & (x != 0.0), UFUNCS["sign"](x) * root, x)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """The larger one times the root of 1 + ratio^2, so that no square overflows."""
    large, small = UFUNCS["maximum"](abs(x), abs(y)), UFUNCS["minimum"](abs(x), abs(y))
    ratio = small / large
    return where(UFUNCS["isfinite"](large) & (large > 0.0),
                 large * UFUNCS["sqrt"](ratio * ratio + 1.0), large)


def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    large = UFUNCS["maximum"](x, y)
    rest = _log1p(UFUNCS["exp"](-abs(x - y)))
    return where(x == y, x + _LN2, large + rest)


def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    return _logaddexp(x * _LN2, y * _LN2) / _LN2


def _heaviside(x: Tensor, at_zero: Tensor) -> Tensor:
    step = cast(x > 0.0, x.dtype)
    return where(UFUNCS["isnan"](x), x, where(x == 0.0, at_zero, step))


def _signbit(x: Tensor) -> Tensor:
    """Whether the sign's bit is set, of zeros and NaN, too."""
    return x.view(f"int{8 * x.itemsize}") < 0


def _copysign(x: Tensor, y: Tensor) -> Tensor:
    return where(_signbit(y), -abs(x), abs(x))


def _log_over(base: float) -> Callable[[Tensor], Tensor]:
    return lambda x: UFUNCS["log"](x) * (1 / math.log(base))


def _floats(compute: Callable[..., Tensor]) -> Compute:
    def of(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: object
    ) -> Tensor:
        tensors = _of_floats(*values)
        return compute(*(tensors if dtype is None else [cast(t, dtype) for t in tensors]))

    return of


def _float_power(name: str, values: Sequence[object], dtype: object, out: object) -> Tensor:
    return UFUNCS["power"](cast(computed(values[0], *values), np.dtype(np.float32)), values[1])


def _with_nan(name: str) -> Compute:
    """The other operand where one is NaN."""
    def of(_: str, values: Sequence[object], dtype: object, out: Tensor | None) -> Tensor:
        x, y = (computed(v, *values) for v in values)
        both = UFUNCS[name](x, y)
        if both.dtype.kind != "f":
            return both
        x, y = cast(x, both.dtype), cast(y, both.dtype)
        return where(UFUNCS["isnan"](x), y, where(UFUNCS["isnan"](y), x, both))

    return of


def _gcd(name: str, values: Sequence[object], dtype: object, out: Tensor | None) -> Tensor:
    """Euclid's algorithm, until the device says that no remainder is left."""
    x, y = (abs(computed(v, *values)) for v in values)
    x, y = x + y * 0, y + x * 0
    while y.any():
        x, y = where(y == 0, x, y), where(y == 0, y, x % y)
    return x


for _name, _function in {
    "log1p": _log1p, "expm1": _expm1, "cbrt": _cbrt, "log2": _log_over(2), "log10": _log_over(10),
    "exp2": lambda x: UFUNCS["power"](2.0, x),
    "signbit": _signbit,
}.items():
    define(_name, 1, _floats(_function))
for _name, _of_two in {
    "hypot": _hypot, "logaddexp": _logaddexp, "logaddexp2": _logaddexp2, "heaviside": _heaviside,
    "copysign": _copysign,
}.items():
    define(_name, 2, _floats(_of_two))
define("float_power", 2, _float_power)
define("fmax", 2, _with_nan("maximum"))
define("fmin", 2, _with_nan("minimum"))
define("gcd", 2, _gcd)


@array_function()
def sinc(x: TensorLike) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    (t,) = _of_floats(x)
    angle = t * math.pi
    return where(t == 0.0, 1.0, UFUNCS["sin"](angle) / angle)


_I0_SMALL = (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813)
_I0_LARGE = (0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537,
             -0.01647633, 0.00392377)


def _polynomial(factors: tuple[float, ...], x: Tensor) -> Tensor:
    y: Any = factors[-1]
    for f in reversed(factors[:-1]):
        y = x * y + f
    return y


@array_function()
def i0(x: TensorLike) -> Tensor:
    """The modified Bessel function of order 0, to 2e-7 (Abramowitz and Stegun 9.8.1 and 9.8.2)."""
    (t,) = _of_floats(x)
    size = abs(t)
    near = _polynomial(_I0_SMALL, UFUNCS["square"](size / 3.75))
    inverse = 3.75 / UFUNCS["maximum"](size, 3.75)
    far = UFUNCS["exp"](size) / UFUNCS["sqrt"](size) * _polynomial(_I0_LARGE, inverse)
    return where(size <= 3.75, near, far)


@array_function()
def nan_to_num(x: TensorLike, copy: bool = True, nan: float = 0.0, posinf: float | None = None,
               neginf: float | None = None) -> Tensor:
    """Numbers instead of NaN and infinities, by default 0 and the largest ones."""
    t = computed(x)
    if t.dtype.kind != "f":
        return t.copy()
    limits = np.finfo(t.dtype)
    y = where(UFUNCS["isnan"](t), nan, t)
    y = where(t == math.inf, float(limits.max) if posinf is None else posinf, y)
    return where(t == -math.inf, float(limits.min) if neginf is None else neginf, y)


def _ignoring(name: str, of: Any, of_nan: float) -> None:

    def call(x: TensorLike, axis: Any = None, out: Tensor | None = None,
             keepdims: bool = False) -> Tensor:
        t = computed(x)
        if t.dtype.kind == "f":
            t = where(UFUNCS["isnan"](t), of_nan, t)
        y: Tensor = of(t, axis=axis, keepdims=keepdims)
        return result(f"nan{name}", y, out)

    call.__doc__ = f"numpy.nan{name}: NaN counts for nothing."
    call.__name__ = call.__qualname__ = f"nan{name}"
    array_function(f"nan{name}")(call)


_ignoring("sum", sum_over, 0.0)
_ignoring("prod", prod, 1.0)
_ignoring("max", amax, -math.inf)
_ignoring("min", amin, math.inf)


@array_function()
def nanmean(
    x: TensorLike, axis: Axis = None, keepdims: bool = False
) -> Tensor:
    """The mean of the elements that are not NaN."""
    t = computed(x)
    count = (~UFUNCS["isnan"](t)).sum(axis, keepdims=keepdims)
    total = where(UFUNCS["isnan"](t), 0.0, t) if t.dtype.kind == "f" else t
    return total.sum(axis, keepdims=keepdims) / count


@array_function()
def gradient(f: TensorLike, *spacing: float, axis: int | None = None) -> Any:
    """Central differences inside, one-sided ones at both ends (numpy.gradient). A list for several
    axes."""
    (t,) = _of_floats(f)
    axes = axes_of("gradient", axis, t.ndim)
    steps = list(spacing) * len(axes) if len(spacing) == 1 else list(spacing) or [1.0] * len(axes)
    expect(len(steps) == len(axes), "gradient", "the spacing", f"be {len(axes)} numbers", spacing)
    slopes = []
    for at, step in zip(axes, steps):
        expect(t.shape[at] > 1, "gradient", "the axis", "have two elements", t.shape[at])
        x = moveaxis(t, at, 0)
        parts = [(x[1:2] - x[:1]) / step, (x[2:] - x[:-2]) / (2 * step), (x[-1:] - x[-2:-1]) / step]
        slopes.append(moveaxis(concatenate(parts, 0), 0, at))
    return slopes[0] if len(slopes) == 1 else slopes


@array_function("trapezoid", "trapz")
def trapezoid(y: TensorLike, x: TensorLike | None = None, dx: float = 1.0,
              axis: int = -1) -> Tensor:
    """The integral by the trapezoidal rule (numpy.trapezoid)."""
    (t,) = _of_floats(y)
    t = moveaxis(t, axis, -1)
    if x is None:
        return ((t[..., 1:] + t[..., :-1]) * (0.5 * dx)).sum(-1)
    at = as_tensor(x, t)
    at = moveaxis(at, axis, -1) if at.ndim > 1 else at
    return ((t[..., 1:] + t[..., :-1]) * 0.5 * (at[..., 1:] - at[..., :-1])).sum(-1)


@array_function()
def convolve(a: TensorLike, v: TensorLike, mode: str = "full") -> Tensor:
    """The convolution of two vectors (numpy.convolve)."""
    x, y = computed(a, v), computed(v, a)
    expect(x.ndim == y.ndim == 1 and x.size and y.size, "convolve", "the operands",
           "be vectors with elements", list(x.shape), list(y.shape))
    expect(mode in ("full", "same", "valid"), "convolve", "mode", "be full, same or valid", mode)
    if y.size > x.size:
        x, y = y, x
    n, m = x.size, y.size
    wide = pad(x, m - 1)
    windows = wide.strided((n + m - 1, m), (1, 1))
    full = windows @ flip(y)
    if mode == "full":
        return full
    first = (m - 1) // 2 if mode == "same" else m - 1
    return full[first:first + (n if mode == "same" else n - m + 1)]


@array_function()
def correlate(a: TensorLike, v: TensorLike, mode: str = "valid") -> Tensor:
    """The cross-correlation of two vectors (numpy.correlate)."""
    x, y = computed(a, v), computed(v, a)
    if y.size > x.size:
        return flip(correlate(y, x, mode))
    return convolve(x, flip(y), mode)
