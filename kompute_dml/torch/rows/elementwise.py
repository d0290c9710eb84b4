"""Arithmetic, comparisons, and functions of one element."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

import kompute_dml as dml

from ...tensors import Tensor
from ..table import call, lowers
from ..values import (
    BOOL,
    F32,
    Number,
    Operand,
    Unsupported,
    Value,
    as_value,
    broadcast,
    cast,
    data_type,
    elementwise,
    empty,
    expanded,
    floating,
    full,
    is_integer,
    result_type,
    rounded_once,
    spec,
    value,
)

# Of one operand

for _name, _function in {
    "acos": dml.acos, "acosh": dml.acosh, "asin": dml.asin, "asinh": dml.asinh, "atan": dml.atan,
    "atanh": dml.atanh, "cos": dml.cos, "cosh": dml.cosh, "erf": dml.erf, "exp": dml.exp,
    "log": dml.log, "reciprocal": dml.recip, "sigmoid": dml.activation_sigmoid, "sin": dml.sin,
    "sinh": dml.sinh, "sqrt": dml.sqrt, "tan": dml.tan, "tanh": dml.tanh,
    "rsqrt": lambda x: dml.recip(dml.sqrt(x)),
    "log2": lambda x: dml.multiply(dml.log(x), 1 / math.log(2)),
    "log10": lambda x: dml.multiply(dml.log(x), 1 / math.log(10)),
    "deg2rad": lambda x: dml.multiply(x, math.pi / 180),
    "rad2deg": lambda x: dml.multiply(x, 180 / math.pi),
}.items():
    lowers(_name)(lambda x, _f=_function: elementwise(_f, [x], floating(x.dtype)))


@lowers("exp2")
@rounded_once
def exp2(x: Value) -> Value:
    return elementwise(lambda t: dml.exp(dml.multiply(t, math.log(2))), [x], floating(x.dtype))


@lowers("expm1")
@rounded_once
def expm1(x: Value) -> Value:
    """``2 sinh(x / 2) exp(x / 2)``: exact near 0, where ``exp(x) - 1`` cancels."""
    def of(t: Tensor) -> Tensor:
        half = dml.multiply(t, 0.5)
        small = dml.multiply(dml.multiply(dml.sinh(half), dml.exp(half)), 2.0)
        return dml.if_(dml.logical_less_than(dml.abs(t), 1.0), small,
                       dml.subtract(dml.exp(t), 1.0))

    return elementwise(of, [x], floating(x.dtype))


@lowers("log1p")
@rounded_once
def log1p(x: Value) -> Value:
    """``2 atanh(x / (2 + x))`` near 0."""
    def of(t: Tensor) -> Tensor:
        small = dml.multiply(dml.atanh(dml.divide(t, dml.add(t, 2.0))), 2.0)
        return dml.if_(dml.logical_less_than(dml.abs(t), 0.5), small, dml.log(dml.add(t, 1.0)))

    return elementwise(of, [x], floating(x.dtype))


@lowers("abs")
def abs_(x: Value) -> Value:
    if x.dtype == BOOL or not x.dtype.is_signed:
        return x
    return elementwise(dml.abs, [x], x.dtype)


@lowers("neg")
def neg(x: Value) -> Value:
    if x.dtype == BOOL:
        raise Unsupported("neg of truth values")
    if not x.dtype.is_signed:
        return subtract(0, x)
    return elementwise(dml.negate, [x], x.dtype)


@lowers("sign", "sgn")
def sign(x: Value) -> Value:
    if x.dtype == BOOL:
        return x
    if not x.dtype.is_signed:
        return cast(cast(x, BOOL), x.dtype)
    y = elementwise(dml.sign, [x], x.dtype)
    return where(call("isnan", x), 0.0, y) if x.dtype.is_floating_point else y


@lowers("relu")
def relu(x: Value) -> Value:
    if x.dtype == BOOL:
        raise Unsupported("relu of truth values")
    if not x.dtype.is_floating_point:
        return call("clamp_min", x, 0)
    return elementwise(dml.activation_relu, [x], x.dtype)


for _name, _function in {
    "ceil": dml.ceil, "floor": dml.floor, "round": dml.round,
    "trunc": lambda x: dml.round(x, rounding_mode=dml.RoundingMode.TOWARD_ZERO),
}.items():
    lowers(_name)(lambda x, _f=_function: elementwise(_f, [x], x.dtype)
                  if x.dtype.is_floating_point else x)


@lowers("isnan")
def isnan(x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return full(x.shape, False, BOOL)
    return elementwise(lambda t: dml.is_nan(t, data_type="uint8"), [x], x.dtype, BOOL)


@lowers("isinf")
def isinf(x: Value) -> Value:
    return _infinite(x, dml.IsInfinityMode.EITHER)


@lowers("isposinf")
def isposinf(x: Value) -> Value:
    return _infinite(x, dml.IsInfinityMode.POSITIVE)


@lowers("isneginf")
def isneginf(x: Value) -> Value:
    return _infinite(x, dml.IsInfinityMode.NEGATIVE)


def _infinite(x: Value, mode: dml.IsInfinityMode) -> Value:
    if not x.dtype.is_floating_point:
        return full(x.shape, False, BOOL)
    return elementwise(lambda t: dml.is_infinity(t, infinity_mode=mode, data_type="uint8"), [x],
                       x.dtype, BOOL)


@lowers("signbit")
def signbit(x: Value) -> Value:
    words = view_dtype(x, {F32: torch.int32, torch.float16: torch.int16,
                           torch.bfloat16: torch.int16}.get(x.dtype, x.dtype))
    return less(words, 0) if words.dtype != BOOL else full(x.shape, False, BOOL)


@lowers("nextafter")
def nextafter(x: Value, y: Value) -> Value:
    """By the bits, whose order is that of the numbers but for the sign."""
    if x.dtype != F32 or y.dtype != F32:
        raise Unsupported("nextafter of another type than FLOAT32")
    shape = broadcast(x, y)
    if not math.prod(shape):
        return empty(shape, F32)
    lowest = full((), -1 << 31, torch.int32)

    def ordered(v: Value) -> tuple[Value, Value]:
        words = view_dtype(expanded(v, shape), torch.int32)
        below = call("sub.Tensor", lowest, words)
        return words, call("where.self", less(words, 0), below, words)

    (words, start), (goal_words, goal) = ordered(x), ordered(y)
    up = less(start, goal)
    moved = call("add.Tensor", start, call("where.self", up, full((), 1, torch.int32),
                                           full((), -1, torch.int32)))
    bits = call("where.self", less(moved, 0), call("sub.Tensor", lowest, moved), moved)
    to_zero = call("logical_and", call("eq.Scalar", moved, 0), less(words, 0))
    bits = call("where.self", to_zero, lowest, bits)  # -0
    bits = call("where.self", call("eq.Tensor", start, goal), goal_words, bits)
    for v, own in ((x, words), (y, goal_words)):
        nan = call("ne.Tensor", expanded(v, shape), expanded(v, shape))
        bits = call("where.self", nan, own, bits)
    return view_dtype(bits, F32)


@lowers("logical_not")
def logical_not(x: Value) -> Value:
    return elementwise(dml.logical_not, [cast(x, BOOL)], BOOL)


def _needs_bits(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        raise Unsupported(f"bits of {dtype}")


@lowers("bitwise_not")
def bitwise_not(x: Value) -> Value:
    _needs_bits(x.dtype)
    return logical_not(x) if x.dtype == BOOL else elementwise(dml.bit_not, [x], x.dtype)


# Arithmetic

_WIDER = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.int32,
          torch.uint16: torch.int32}


def arithmetic(function: Callable[..., Tensor], a: Operand, b: Operand, dtype: torch.dtype
               ) -> Value:
    """Integers of fewer than 32 bits, also numbers, are computed in INT32 and wrap around."""
    if dtype in _WIDER:
        narrow = [as_value(x, dtype) for x in (a, b)]
        return cast(elementwise(function, narrow, _WIDER[dtype]), dtype)
    return elementwise(function, [a, b], dtype)


def _scaled(b: Operand, alpha: Number, dtype: torch.dtype) -> Operand:
    if alpha == 1:
        return b
    return multiply(b, alpha) if isinstance(b, Value) else b * alpha


@lowers("add.Tensor", "add.Scalar")
def add(a: Operand, b: Operand, alpha: Number = 1) -> Value:
    dtype = result_type(a, b)
    if dtype == BOOL:
        return logical(dml.logical_or, a, b if alpha else False)
    return arithmetic(dml.add, a, _scaled(b, alpha, dtype), dtype)


@lowers("sub.Tensor", "sub.Scalar")
def subtract(a: Operand, b: Operand, alpha: Number = 1) -> Value:
    dtype = result_type(a, b)
    if any(isinstance(x, bool) or (isinstance(x, Value) and x.dtype == BOOL) for x in (a, b)):
        raise Unsupported("a difference of truth values")
    return arithmetic(dml.subtract, a, _scaled(b, alpha, dtype), dtype)


@lowers("rsub.Tensor", "rsub.Scalar")
def rsub(a: Operand, b: Operand, alpha: Number = 1) -> Value:
    return subtract(b, a, alpha)


@lowers("mul.Tensor", "mul.Scalar")
def multiply(a: Operand, b: Operand) -> Value:
    dtype = result_type(a, b)
    if dtype == BOOL:
        return logical(dml.logical_and, a, b)
    return arithmetic(dml.multiply, a, b, dtype)


@lowers("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def divide(a: Operand, b: Operand, rounding_mode: str | None = None) -> Value:
    dtype = result_type(a, b)
    if rounding_mode is None:
        return elementwise(dml.divide, [a, b], floating(dtype))
    if dtype == BOOL:
        raise Unsupported("a rounded quotient of truth values")
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if dtype.is_floating_point:
        return _truncated_quotient(as_value(a, dtype), as_value(b, dtype))
    return _truncated(a, b, dtype)


@rounded_once
def _truncated_quotient(a: Value, b: Value) -> Value:
    return call("trunc", divide(a, b))


def _truncated(a: Operand, b: Operand, dtype: torch.dtype) -> Value:
    """Integers: DIVIDE gives FLOAT32 for these. The rest has the sign of ``a``, so that what it
    leaves is divided without one."""
    return arithmetic(dml.floor_divide, subtract(as_value(a, dtype), fmod(a, b)), b, dtype)


@lowers("floor_divide")
def floor_divide(a: Operand, b: Operand) -> Value:
    dtype = result_type(a, b)
    if not dtype.is_floating_point:
        return arithmetic(dml.floor_divide, a, b, dtype)
    return _floor_quotient(as_value(a, dtype), as_value(b, dtype))


@rounded_once
def _floor_quotient(a: Value, b: Value) -> Value:
    """``(a - remainder(a, b)) / b``, as PyTorch computes it."""
    mod = fmod(a, b)
    quotient = divide(subtract(a, mod), b)
    negative = logical(dml.logical_xor, less(b, 0), less(mod, 0))
    apart = logical(dml.logical_and, not_equal(mod, 0), negative)
    quotient = where(apart, subtract(quotient, 1), quotient)
    floor = call("floor", quotient)
    above = greater(subtract(quotient, floor), 0.5)
    return where(equal(b, 0), divide(a, b), where(above, add(floor, 1), floor))


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(a: Operand, b: Operand) -> Value:
    dtype = result_type(a, b)
    if not dtype.is_floating_point:
        return arithmetic(dml.modulus_floor, a, b, dtype)
    return _floor_remainder(as_value(a, dtype), as_value(b, dtype))


@rounded_once
def _floor_remainder(a: Value, b: Value) -> Value:
    mod = fmod(a, b)
    apart = logical(dml.logical_and, not_equal(mod, 0),
                    logical(dml.logical_xor, less(b, 0), less(mod, 0)))
    return where(apart, add(mod, b), mod)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(a: Operand, b: Operand) -> Value:
    return arithmetic(dml.modulus_truncate, a, b, result_type(a, b))


@lowers("maximum")
def maximum(a: Operand, b: Operand) -> Value:
    return _extreme(dml.maximum, a, b)


@lowers("minimum")
def minimum(a: Operand, b: Operand) -> Value:
    return _extreme(dml.minimum, a, b)


def _extreme(function: Callable[..., Tensor], a: Operand, b: Operand) -> Value:
    """PyTorch's give NaN where an operand is."""
    dtype = result_type(a, b)
    if dtype == BOOL:
        return logical(dml.logical_or if function is dml.maximum else dml.logical_and, a, b)
    y = elementwise(function, [a, b], dtype)
    if not dtype.is_floating_point:
        return y
    for x in (a, b):
        if isinstance(x, Value):
            y = where(isnan(cast(x, dtype)), cast(x, dtype), y)
        elif math.isnan(x):
            return full(y.shape, x, dtype)
    return y


@lowers("fmax")
def fmax(a: Value, b: Value) -> Value:
    return _without_nan(a, b, maximum(a, b))


@lowers("fmin")
def fmin(a: Value, b: Value) -> Value:
    return _without_nan(a, b, minimum(a, b))


def _without_nan(a: Value, b: Value, y: Value) -> Value:
    """``y``, and the other operand where one is NaN."""
    dtype = result_type(a, b)
    if not dtype.is_floating_point:
        return y
    return where(isnan(a), cast(b, dtype), where(isnan(b), cast(a, dtype), y))


@lowers("atan2")
def atan2(a: Value, b: Value) -> Value:
    return elementwise(dml.atan_yx, [a, b], floating(result_type(a, b)))


@lowers("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(a: Operand, b: Operand) -> Value:
    dtype = result_type(a, b)
    if not isinstance(b, Value) and isinstance(a, Value):
        if dtype.is_floating_point:
            if b in (0, 1):
                return full(a.shape, 1, dtype) if b == 0 else cast(a, dtype)
            if b == 2:
                return multiply(cast(a, dtype), cast(a, dtype))
            if b == 0.5:
                return call("sqrt", cast(a, dtype))
            if b == -1:
                return call("reciprocal", cast(a, dtype))
            if b == int(b) and 2 < abs(b) <= 8:
                y = _integer_power(cast(a, dtype), int(abs(b)))
                return call("reciprocal", y) if b < 0 else y
            return elementwise(lambda x: dml.constant_pow(x, float(b)), [a], dtype)
        if b < 0:
            raise Unsupported("a negative power of integers")
        if b <= 64:
            return _integer_power(cast(a, dtype), int(b))
    if dtype == BOOL:
        return call("bitwise_or.Tensor", as_value(a, BOOL), call("logical_not", as_value(b, BOOL)))
    if not dtype.is_floating_point:
        return _power_of_integers(as_value(a, dtype), as_value(b, dtype))
    return elementwise(dml.pow, [a, b], dtype)


def _power_of_integers(x: Value, exponents: Value) -> Value:
    """By squaring, a step for each bit. Powers below 0 are 0 but for 1 and -1."""
    dtype = x.dtype
    size, square, y = call("abs", exponents), x, full((), 1, dtype)
    for bit in range(spec(dtype).bits - dtype.is_signed):
        set_ = not_equal(call("bitwise_and.Scalar", size, 1 << bit), 0)
        y = where(set_, multiply(y, square), y)
        square = multiply(square, square)
    if not dtype.is_signed:
        return y
    unit = equal(call("abs", x), 1)
    return where(logical(dml.logical_or, greater_equal(exponents, 0), unit), y, 0)


def _integer_power(x: Value, n: int) -> Value:
    """By squaring, so that integers wrap around and signs are right."""
    y: Value | None = None
    while n:
        if n & 1:
            y = x if y is None else multiply(y, x)
        n >>= 1
        x = multiply(x, x) if n else x
    return full(x.shape, 1, x.dtype) if y is None else y


# Comparisons and truth values


def compared(function: Callable[..., Tensor], a: Operand, b: Operand) -> Value:
    dtype = result_type(a, b)
    return elementwise(function, [as_value(a, dtype), as_value(b, dtype)] if dtype == BOOL
                       else [a, b], dtype, BOOL)


@lowers("eq.Tensor", "eq.Scalar")
def equal(a: Operand, b: Operand) -> Value:
    return compared(dml.logical_equals, a, b)


@lowers("ne.Tensor", "ne.Scalar")
def not_equal(a: Operand, b: Operand) -> Value:
    return logical_not(equal(a, b))


@lowers("lt.Tensor", "lt.Scalar")
def less(a: Operand, b: Operand) -> Value:
    return compared(dml.logical_less_than, a, b)


@lowers("gt.Tensor", "gt.Scalar")
def greater(a: Operand, b: Operand) -> Value:
    return compared(dml.logical_greater_than, a, b)


@lowers("le.Tensor", "le.Scalar")
def less_equal(a: Operand, b: Operand) -> Value:
    return compared(dml.logical_less_than_or_equal, a, b)


@lowers("ge.Tensor", "ge.Scalar")
def greater_equal(a: Operand, b: Operand) -> Value:
    return compared(dml.logical_greater_than_or_equal, a, b)


def logical(function: Callable[..., Tensor], a: Operand, b: Operand) -> Value:
    return elementwise(function, [as_value(a, BOOL), as_value(b, BOOL)], BOOL)


for _name, _function in {"logical_and": dml.logical_and, "logical_or": dml.logical_or,
                         "logical_xor": dml.logical_xor}.items():
    lowers(_name)(lambda a, b, _f=_function: logical(_f, a, b))


def _bits(function: Callable[..., Tensor], truths: Callable[..., Tensor], a: Operand, b: Operand
          ) -> Value:
    dtype = result_type(a, b)
    _needs_bits(dtype)
    return logical(truths, a, b) if dtype == BOOL else elementwise(function, [a, b], dtype)


for _name, _pair in {"bitwise_and": (dml.bit_and, dml.logical_and),
                     "bitwise_or": (dml.bit_or, dml.logical_or),
                     "bitwise_xor": (dml.bit_xor, dml.logical_xor)}.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor")(
        lambda a, b, _p=_pair: _bits(_p[0], _p[1], a, b))


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(condition: Value, a: Operand, b: Operand) -> Value:
    dtype, shape = result_type(a, b), broadcast(condition, a, b)
    if not math.prod(shape):
        return empty(shape, dtype)
    test = expanded(cast(condition, BOOL), shape).elements
    yes, no = (expanded(as_value(x, dtype), shape).elements for x in (a, b))
    return value(dml.if_(test, yes, no), shape, dtype)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: Value, mask: Value, fill: Operand) -> Value:
    return where(mask, as_value(fill, x.dtype), x)


@lowers("clamp", "clamp.Tensor")
def clamp(x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    dtype = result_type(x, *[b for b in (min, max) if b is not None])
    y = cast(x, dtype)
    y = y if min is None else maximum(y, as_value(min, dtype))
    return y if max is None else minimum(y, as_value(max, dtype))


@lowers("clamp_min", "clamp_min.Tensor")
def clamp_min(x: Value, low: Operand) -> Value:
    return clamp(x, low)


@lowers("clamp_max", "clamp_max.Tensor")
def clamp_max(x: Value, high: Operand) -> Value:
    return clamp(x, None, high)


# Shifts


@lowers("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar",
        "bitwise_left_shift.Scalar_Tensor", "__lshift__.Tensor", "__lshift__.Scalar")
def shift_left(a: Operand, b: Operand) -> Value:
    return _shifted(dml.bit_shift_left, a, b)


@lowers("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar",
        "bitwise_right_shift.Scalar_Tensor", "__rshift__.Tensor", "__rshift__.Scalar")
def shift_right(a: Operand, b: Operand) -> Value:
    """With copies of the sign: what is negative is shifted with its bits turned round."""
    dtype = result_type(a, b)
    if not dtype.is_signed:
        return _shifted(dml.bit_shift_right, a, b)
    x = as_value(a, dtype)
    negative, turned = less(x, 0), call("bitwise_not", x)
    y = _shifted(dml.bit_shift_right, where(negative, turned, x), b)
    return where(negative, call("bitwise_not", y), y)


def _shifted(function: Callable[..., Tensor], a: Operand, b: Operand) -> Value:
    """Bits that come in are 0. A shift by fewer than none, or by all bits, leaves 0."""
    dtype = result_type(a, b)
    if not is_integer(dtype):
        raise Unsupported(f"a shift of {dtype}")
    bits = spec(dtype).bits
    by, unsigned = as_value(b, dtype), data_type(getattr(torch, f"uint{bits}"))
    inside = logical(dml.logical_and, greater_equal(by, 0), less(by, bits))
    y = elementwise(
        lambda x, n: function(x.viewed_as(unsigned), n.viewed_as(unsigned)).viewed_as(
            data_type(dtype)), [as_value(a, dtype), where(inside, by, 0)], dtype)
    return where(inside, y, 0)


# Activations


@lowers("gelu")
def gelu(x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return elementwise(dml.activation_gelu, [x], x.dtype)
    return _gelu_by_tanh(x)


@rounded_once
def _gelu_by_tanh(x: Value) -> Value:
    inner = multiply(add(x, multiply(power(x, 3), 0.044715)), math.sqrt(2 / math.pi))
    return multiply(multiply(x, 0.5), add(call("tanh", inner), 1))


@lowers("leaky_relu")
def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    return where(greater(x, 0), x, multiply(x, negative_slope))


@lowers("hardshrink_backward", "softshrink_backward")
def shrink_backward(g: Value, x: Value, lambd: float) -> Value:
    return where(call("le.Scalar", call("abs", x), lambd), 0, g)


@lowers("silu")
def silu(x: Value) -> Value:
    return multiply(x, call("sigmoid", x))


@lowers("lerp.Scalar", "lerp.Tensor")
@rounded_once
def lerp(a: Value, b: Value, weight: Operand) -> Value:
    """PyTorch's form: exact at both ends."""
    apart = subtract(b, a)
    near = add(a, multiply(apart, weight))
    if not isinstance(weight, Value):
        return near if abs(weight) < 0.5 else subtract(b, multiply(apart, 1 - weight))
    far = subtract(b, multiply(apart, rsub(weight, 1)))
    return where(less(abs_(weight), 0.5), near, far)


@lowers("addcmul")
@rounded_once
def addcmul(x: Value, a: Value, b: Value, value: Number = 1) -> Value:
    return add(x, multiply(a, b), value)


@lowers("addcdiv")
@rounded_once
def addcdiv(x: Value, a: Value, b: Value, value: Number = 1) -> Value:
    return add(x, divide(a, b), value)


# Types


@lowers("_to_copy", "prims::convert_element_type")
def to_copy(x: Value, dtype: torch.dtype | None = None, **other: object) -> Value:
    return cast(x, dtype or x.dtype)


@lowers("view.dtype")
def view_dtype(x: Value, dtype: torch.dtype) -> Value:
    if x.dtype == dtype:
        return x
    if x.dtype == BOOL or dtype == BOOL or spec(x.dtype).bits != spec(dtype).bits:
        raise Unsupported("a view as a type of another width")
    viewed = None if x.data is None else x.data.viewed_as(data_type(dtype))
    return Value(viewed, x.shape, dtype)


