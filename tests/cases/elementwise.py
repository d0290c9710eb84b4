"""Elementwise operators and activations: one reference each, in float64 or exact integers.

It is the ordinary case's, unless that does not hold for every type and special value.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import Arrays, Case, ErrorCase, Sizes, Types
from kompute_dml import spec
from kompute_dml.cases.elementwise import REFERENCES
from layouts import PACKED, STEPPED, TRANSPOSED

Reference = Callable[..., Any]

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 100.0, -30.0]
_erf, _erfc = np.vectorize(math.erf, [float]), np.vectorize(math.erfc, [float])


def values(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Ordinary numbers among special ones; integers of every size, 0 and the ends among them."""
    count = int(np.prod(sizes))
    if data_type.is_float:
        x = rng.normal(size=count) * 3
        x[: len(_SPECIAL)] = _SPECIAL[:count]
    else:
        info = np.iinfo(data_type.dtype)
        x = rng.integers(info.min, info.max, count, data_type.dtype, endpoint=True)
        x[::2] //= x.dtype.type(max(info.max // 9, 1))
        x[:4] = [0, info.max, info.min, 1][:count]
    rng.shuffle(x)
    return x.astype(data_type.dtype).reshape(sizes)


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def case(
    operator: str, own: Reference | None = None, compare: str = "stepwise",
    types: Sequence[Types] | None = None, raw: bool = False, label: str = "", **attributes: Any,
) -> list[Case]:
    """All types in one dimension, some in the most dimensions.

    The reference (``own``, or the ordinary case's) takes the inputs (floats in float64; unchanged
    if ``raw``) and the attributes.
    """
    reference = own or REFERENCES[operator].compute
    entry = spec.operator("DML_OPERATOR_" + operator)
    inputs = [f.snake for f in entry.inputs]
    output = entry.outputs[0]
    definition = operator.removeprefix("ELEMENT_WISE_").lower()
    name = {"add1": "add", "if": "if_"}.get(definition, definition)
    kinds = [f.snake for f in entry.fields if f.enum == "DML_TENSOR_DATA_TYPE"]
    parameters = inspect.signature(getattr(dml, name)).parameters
    chooses = "data_type" in parameters

    def compute(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
        arguments = {k: v for k, v in given.items() if k not in kinds}
        result = np.asarray(reference(*(x[i] if raw else _wide(x[i]) for i in inputs), **arguments))
        if types[output.snake] is dml.DataType.FLOAT16 and result.dtype == np.float64:
            result = result.astype(np.float32)  # the operator computes in float32
        return result.astype(types[output.snake].dtype)

    def call(x: Mapping[str, Any], given: Mapping[str, Any], types: Types, out: Any) -> Any:
        arguments = {k: v for k, v in given.items() if k not in kinds}
        if chooses:
            arguments["data_type"] = types[output.snake]
        # By name, since NumPy's function of some names gives other types.
        named = zip(parameters, (x[i] for i in inputs))
        return getattr(dml, name)(**dict(named), **arguments, out=out)

    given = {**attributes, **{k: lambda types: types[output.snake] for k in kinds}}

    def make(label: str, sizes: Sizes, types: Any, layouts: Any) -> Case:
        return Case(
            operator, label, dict.fromkeys([*inputs, output.snake], sizes), compute, call,
            attributes=given, values=dict.fromkeys(inputs, values), types=types, layouts=layouts,
            levels=("descriptor", "function"), compare=compare,
        )

    plain = make(label or "line", (37,), types, (PACKED,))
    if label:
        return [plain]
    some = plain.all_types()[:1]
    return [plain, make("strided", (5, 7), some, (PACKED, STEPPED)),
            make("deep", (2, 1, 3, 2, 1, 2, 1, 3), some, (PACKED, TRANSPOSED))]


def _wrapped(f: Reference) -> Reference:
    """An integer division with our choice for the divisor 0, or ``f`` in floating point."""

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "f":
            return np.asarray(f(a, b))
        bits = 8 * a.itemsize
        exact = [f(int(x), int(y)) & (2**bits - 1) for x, y in zip(a.flat, b.flat)]
        return np.array(exact, f"u{a.itemsize}").view(a.dtype).reshape(a.shape)

    return divide


def _quotient(x: Any, y: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x / y
    return -1 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)


def _floor_modulus(x: Any, y: Any) -> Any:
    if isinstance(x, np.ndarray):
        # float32 rounds the sum that gives a remainder the divisor's sign
        lifted = np.isinf(y) & np.isfinite(x) & (x != 0) & ((x < 0) != (y < 0))
        return np.where(lifted, y, np.mod(x, y))
    return x if y == 0 else x % y


def _modulus(x: Any, y: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np.fmod(x, y)
    return x if y == 0 else int(math.copysign(1, x)) * (abs(x) % abs(y))


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if "f" in (x.dtype.kind, y.dtype.kind):
        if x.dtype.kind == y.dtype.kind:
            return np.power(x, y)
        single = (v.astype(np.float32).astype(np.float64) for v in (x, y))
        return converted(np.power(*single).astype(np.float32), x.dtype)
    modulus = 2 ** (8 * x.itemsize)
    exact = [pow(int(a), int(b), modulus) if b >= 0 else
             int(a) ** (int(b) % 2) % modulus if abs(int(a)) == 1 else 0
             for a, b in zip(x.flat, y.flat)]
    return np.array(exact, f"u{x.itemsize}").view(x.dtype).reshape(x.shape)


def _mean(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x * 0.5 + y * 0.5
    exact = [int((int(a) + int(b)) / 2) for a, b in zip(x.flat, y.flat)]
    return np.array(exact, x.dtype).reshape(x.shape)


def _extreme(f: Reference, negative: bool) -> Reference:
    """NumPy may return either zero. The operators return the lower one as a minimum."""

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where((a == b) & (np.signbit(a) == negative), a, f(a, b)) \
            if a.dtype.kind == "f" else f(a, b)

    return compute


def _clip(x: np.ndarray, low: float, high: float, last_is_high: bool) -> np.ndarray:
    if x.dtype.kind != "f":
        info = np.iinfo(x.dtype)
        low, high = (min(max(math.trunc(v), info.min), info.max) for v in (low, high))
        low, high = x.dtype.type(low), x.dtype.type(high)
    return np.minimum(high, np.maximum(low, x)) if last_is_high \
        else np.maximum(low, np.minimum(x, high))


def _shift(f: Reference) -> Reference:
    return lambda a, b: np.where(b < 8 * a.itemsize, f(a, np.minimum(b, 8 * a.itemsize - 1)), 0)


def _count_bits(x: np.ndarray) -> np.ndarray:
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.itemsize)
    return np.unpackbits(raw, axis=-1).sum(-1)


def _on_bits(f: Reference) -> Reference:
    def compute(*x: np.ndarray) -> np.ndarray:
        bits = (np.ascontiguousarray(v).view(f"u{v.itemsize}") for v in x)
        return np.asarray(f(*bits)).view(x[0].dtype)

    return compute


def _relu(x: np.ndarray) -> np.ndarray:
    return np.where((x >= 0) | np.isnan(x), x, 0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _shrink(x: np.ndarray, bias: float, threshold: float) -> np.ndarray:
    if x.dtype.kind != "f":
        unsigned = x.dtype.kind == "u"
        bias, high = (x.dtype.type(math.trunc(v)) for v in (bias, threshold))
        low = x.dtype.type(0 if unsigned else -high)
    else:
        high, low = threshold, -threshold
    zero = x.dtype.type(0)
    return np.where(x > high, x - bias, np.where(x < low, x + bias, zero))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), np.maximum(x, 0), x * 0.5 * _erfc(-x / math.sqrt(2)))


def _safe(f: Reference) -> Reference:
    return lambda x: np.where(np.isnan(x), np.nan, f(np.where(np.isnan(x), 0, x)))


def converted(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Floats to integers are truncated and saturated, and NaN becomes 0. Others are as in NumPy."""
    if x.dtype.kind != "f" or dtype.kind == "f":
        return x.astype(dtype)
    info = np.iinfo(dtype)
    whole = [0 if math.isnan(v) else info.max if v >= float(info.max) else
             info.min if v <= float(info.min) else int(v) for v in x.ravel().tolist()]
    return np.array(whole, dtype).reshape(x.shape)


def _cast_case(label: str, sizes: Sizes, types: Sequence[Types], layouts: Any) -> Case:
    return Case(
        "CAST", label, dict.fromkeys(("input_tensor", "output_tensor"), sizes),
        lambda x, given, types: converted(x["input_tensor"], types["output_tensor"].dtype),
        lambda x, given, types, out: dml.cast(
            x["input_tensor"], data_type=types["output_tensor"], out=out),
        values={"input_tensor": values}, types=types, layouts=layouts,
        levels=("descriptor", "function"), compare="stepwise",
    )


_ALL_CASTS: list[Types] = [
    {"input_tensor": a, "output_tensor": b} for a in dml.DataType for b in dml.DataType
    if min(a.bits, b.bits) >= 8
]


_OWN: dict[str, Reference] = {
    "DIVIDE": _wrapped(_quotient), "MODULUS_TRUNCATE": _wrapped(_modulus), "MEAN": _mean,
    "MAX": _extreme(np.maximum, False), "MIN": _extreme(np.minimum, True),
    "BIT_SHIFT_LEFT": _shift(np.left_shift), "BIT_SHIFT_RIGHT": _shift(np.right_shift),
    "ERF": _safe(_erf), "MODULUS_FLOOR": _wrapped(_floor_modulus),
}
_EXACT = (
    "ABS CEIL FLOOR NEGATE SIGN SQRT RECIP ADD SUBTRACT MULTIPLY DIVIDE MODULUS_TRUNCATE MEAN MAX "
    "MIN BIT_SHIFT_LEFT BIT_SHIFT_RIGHT LOGICAL_AND LOGICAL_OR LOGICAL_XOR LOGICAL_NOT "
    "LOGICAL_EQUALS LOGICAL_GREATER_THAN LOGICAL_GREATER_THAN_OR_EQUAL LOGICAL_LESS_THAN "
    "LOGICAL_LESS_THAN_OR_EQUAL IS_NAN")
_FUNCTIONS = (
    "ACOS ACOSH ASIN ASINH ATAN ATANH COS COSH ERF EXP LOG SIN SINH TAN TANH ATAN_YX MODULUS_FLOOR "
    "DIFFERENCE_SQUARE")
_BITS = "BIT_AND BIT_OR BIT_XOR BIT_NOT"
_ROUNDINGS = {
    dml.RoundingMode.HALVES_TO_NEAREST_EVEN: np.rint,
    dml.RoundingMode.TOWARD_ZERO: np.trunc,
    dml.RoundingMode.TOWARD_INFINITY: lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}
_INFINITIES = {dml.IsInfinityMode.EITHER: np.isinf, dml.IsInfinityMode.POSITIVE: np.isposinf,
               dml.IsInfinityMode.NEGATIVE: np.isneginf}
_POW_TYPES = [
    {"input_tensor": a, "exponent_tensor": b, "output_tensor": a}
    for a, b in ((dml.DataType.of(x), dml.DataType.of(y)) for x, y in (
        ("float32", "float32"), ("float16", "float16"), ("float32", "float16"),
        ("float32", "int8"), ("int32", "float32"), ("uint8", "float16"),
        *((t, t) for t in ["int32", "int16", "int8", "uint32", "uint16", "uint8"])))
]

CASES = [
    *(c for n in _EXACT.split() for c in case("ELEMENT_WISE_" + n, _OWN.get(n))),
    *(c for n in _FUNCTIONS.split() for c in case("ELEMENT_WISE_" + n, _OWN.get(n), "function")),
    *(c for n in _BITS.split() for c in case(
        "ELEMENT_WISE_" + n, _on_bits(REFERENCES["ELEMENT_WISE_" + n].compute), "bits", raw=True)),
    *case("ELEMENT_WISE_BIT_COUNT", _count_bits, raw=True),
    *case("ELEMENT_WISE_IDENTITY", lambda x, scale_bias=None: x, "bits", raw=True),
    *case("ELEMENT_WISE_IF", lambda c, a, b: np.where(c != 0, a, b), "bits", raw=True),
    *case("ELEMENT_WISE_CLIP", lambda x, min, max: _clip(x, min, max, True), min=-1.5, max=2.5),
    *case("ELEMENT_WISE_CLIP1", lambda x, min, max: _clip(x, min, max, False), min=1, max=3),
    *case("ELEMENT_WISE_THRESHOLD", lambda x, min: _clip(x, min, np.inf if x.dtype.kind == "f"
                                                          else 2.0**70, True), min=0.5),
    *(c for label, exponent in {"": 2.5, "square": 2, "cube": 3, "whole": -3}.items() for c in case(
        "ELEMENT_WISE_CONSTANT_POW", lambda x, exponent: power(x, np.float64(exponent)),
        "function", exponent=exponent, label=label)),
    *(c for mode, f in _ROUNDINGS.items() for c in case(
        "ELEMENT_WISE_ROUND", lambda x, rounding_mode, f=f: f(x), rounding_mode=mode,
        label="" if mode == 0 else mode.name.lower())),
    *(c for mode, f in _INFINITIES.items() for c in case(
        "ELEMENT_WISE_IS_INFINITY", lambda x, infinity_mode, f=f: f(x), infinity_mode=mode,
        label="" if mode == 0 else mode.name.lower())),
    *case("ELEMENT_WISE_ADD1", lambda a, b, fused_activation=None: a + b),
    *case("ELEMENT_WISE_POW", power, "function", types=_POW_TYPES),
    *case("ACTIVATION_RELU", _relu),
    *case("ACTIVATION_LEAKY_RELU", compare="function", alpha=0.25),
    *case("ACTIVATION_PARAMETERIZED_RELU"),
    *case("ACTIVATION_THRESHOLDED_RELU", alpha=0.75),
    *case("ACTIVATION_LINEAR", compare="function", alpha=2.0, beta=1.0),
    *case("ACTIVATION_HARD_SIGMOID", compare="function", alpha=0.25, beta=0.5),
    *case("ACTIVATION_HARD_SWISH", compare="function", alpha=0.25, beta=0.5),
    *case("ACTIVATION_SHRINK", _shrink, bias=1.0, threshold=2.0),
    *case("ACTIVATION_ELU", compare="function", alpha=0.5),
    *case("ACTIVATION_CELU", compare="function", alpha=0.5),
    *case("ACTIVATION_SCALED_ELU", compare="function", alpha=1.5, gamma=1.25),
    *case("ACTIVATION_SIGMOID", compare="function"),
    *case("ACTIVATION_TANH", compare="function"),
    *case("ACTIVATION_SCALED_TANH", compare="function", alpha=1.5, beta=0.5),
    *case("ACTIVATION_SOFTPLUS", lambda x, steepness: _softplus(x * steepness) / steepness,
          "function", steepness=2.0),
    *case("ACTIVATION_PARAMETRIC_SOFTPLUS", lambda x, alpha, beta: alpha * _softplus(beta * x),
          "function", alpha=1.5, beta=0.5),
    *case("ACTIVATION_SOFTSIGN", compare="function"),
    *case("ACTIVATION_GELU", _safe(_gelu), "function"),
    *case("ACTIVATION_SWISH", lambda x, sigmoid_input_scale: np.where(
        np.isneginf(x), -0.0, x * _sigmoid(x * sigmoid_input_scale)), "function",
        sigmoid_input_scale=1.0),
]


def _scale_2d(label: str, layouts: Any) -> Case:
    def reference(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
        bias = np.array(given["bias"]).reshape(1, -1, 1, 1)
        wide = given["scale"] * x["input_tensor"].astype(np.float64) + bias
        return np.asarray(wide.astype(types["output_tensor"].dtype))

    return Case(
        "VALUE_SCALE_2D", label, dict.fromkeys(("input_tensor", "output_tensor"), (2, 3, 5, 4)),
        reference,
        lambda x, given, types, out: dml.value_scale_2d(
            x["input_tensor"], scale=given["scale"], bias=given["bias"], out=out),
        attributes={"scale": 2.0, "channel_count": 3, "bias": (1.0, -2.0, 0.5)},
        values={"input_tensor": values}, layouts=layouts, levels=("descriptor", "function"),
        compare="stepwise",
    )


CASES.append(_scale_2d("image", (PACKED, TRANSPOSED, STEPPED)))


def _sizes_differ(c: Case) -> ErrorCase:
    types = c.all_types()[0]
    rank = len(c.sizes[c.output])
    fields = {n: dml.TensorDesc(types[n], (1,) * (rank - 1) + (5 if n == c.output else 4,))
              for n in c.sizes}
    return ErrorCase(c.operator, "sizes-differ", {**fields, **c.attributes_for(types)},
                     [".Sizes", "equal OutputTensor.Sizes", "4]", "5]"])


CASES += [
    _cast_case("line", (37,), _ALL_CASTS[::7], (PACKED,)),
    _cast_case("strided", (5, 7), _ALL_CASTS[3:5], (PACKED, STEPPED)),
    _cast_case("deep", (2, 1, 3, 2, 1, 2, 1, 3), _ALL_CASTS[5:6], (PACKED, TRANSPOSED)),
]


_tested = {c.operator: c for c in reversed(CASES)}
ERRORS = [_sizes_differ(c) for c in _tested.values()]
