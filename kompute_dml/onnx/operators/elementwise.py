"""Elementwise operators: arithmetic, comparisons, logic, casts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import ScaleBias
from ...errors import ValidationError
from ...graph.array import BOOL, Array, device_type
from ...graph.builder import Builder, scalar
from .. import doubles, lowerings
from ..graph import DTYPES, OnnxNode, number_type
from ..lowerings import Build, Inputs, constants, converted, emit_elementwise, given, host
from ..row import COPY, FOLDED, TWO, Mapping, elementwise, only, same_types
from .views import identity

_ARITHMETIC = (7, 13, 14)
UNARY = (1, 6, 13)
_TRIGONOMETRIC = (7, 22)
_HYPERBOLIC = (9, 22)
_COMPARISON = (7, 9, 11, 13, 19)


def folded(operator: str) -> Build:
    """Any number of inputs, two at a time."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        result = given(inputs, 0)
        for i in range(1, len(inputs)):
            pair = [result, given(inputs, i)]
            result = emit_elementwise(builder, operator, pair, result.dtype, {})
        return [result]

    return build


def apply(builder: Builder, operator: str, *arrays: Array, **attributes: Any) -> Array:
    return emit_elementwise(builder, operator, arrays, arrays[0].dtype, attributes)


def clip_bounds(node: OnnxNode, inputs: Inputs) -> dict[str, Any]:
    dtype = given(inputs, 0).dtype
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    bounds: dict[str, Any] = {"min_max_data_type": device_type(dtype)}
    for i, (name, default) in enumerate((("min", limits.min), ("max", limits.max)), 1):
        bound = host(inputs, i)
        value = node.attributes.get(name, default) if bound is None else bound.reshape(())[()]
        bounds[name] = np.asarray(value).astype(dtype)[()]
    # If they cross, ONNX's result is the upper bound everywhere.
    bounds["min"] = min(bounds["min"], bounds["max"])
    return {**bounds, **{name: scalar(bounds[name], dtype) for name in ("min", "max")}}


def infinity_mode(node: OnnxNode, inputs: Inputs) -> dict[str, Any]:
    # DML_IS_INFINITY_MODE: EITHER, POSITIVE, NEGATIVE
    wanted = (node.attributes.get("detect_positive", 1), node.attributes.get("detect_negative", 1))
    return {"infinity_mode": {(1, 1): 0, (1, 0): 1, (0, 1): 2}[wanted]}


def cast(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = doubles.before_widening(builder, given(inputs, 0))
    dtype = number_type(node.attributes["to"])
    assert dtype is not None
    return [converted(builder, x, dtype)]


def truth(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Cast to bool: anything but 0 is true, also NaN."""
    x = given(inputs, 0)
    if x.dtype == BOOL:
        return [x]
    zero = builder.constant(np.zeros((), x.dtype))
    equal = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_EQUALS", [x, zero], BOOL, {})
    return [apply(builder, "ELEMENT_WISE_LOGICAL_NOT", equal)]


def of_unsigned(node: OnnxNode) -> str | None:
    x = node.input(0)
    return None if x is not None and x.dtype is not None and x.dtype.kind == "u" else (
        "numbers that may be negative")


def clip(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Clip between bounds that only the device knows. If they cross, the upper one wins."""
    y = given(inputs, 0)
    for operator, bound in zip(("ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN"), inputs[1:]):
        if bound is not None:
            y = apply(builder, operator, y, builder.reshape(bound, ()))
    return [y]


def clip_refusal(node: OnnxNode) -> str | None:
    """Why DirectML's operator, whose bounds are attributes, is not the one for a node, or None."""
    constant = all(v is None or v.constant is not None for v in node.inputs[1:])
    return None if constant else "a bound that is no constant"


def mean(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The mean of any number of inputs."""
    result = given(inputs, 0)
    for i in range(1, len(inputs)):
        result = apply(builder, "ELEMENT_WISE_ADD", result, given(inputs, i))
    share = ScaleBias(1 / len(inputs), 0.0)
    return [apply(builder, "ELEMENT_WISE_IDENTITY", result, scale_bias=share)]


def power(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Pow with an exponent of another type. The result has the base's type."""
    x, exponent = given(inputs, 0), given(inputs, 1)
    fractional = x.dtype.kind != "f" and exponent.dtype.kind == "f"
    exponent = converted(builder, exponent, np.dtype("float32") if fractional else x.dtype)
    return [apply(builder, "ELEMENT_WISE_POW", x, exponent)]


def bit_cast(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The same bits under another type."""
    x, dtype = given(inputs, 0), DTYPES[node.attributes["to"]]
    if x.dtype.itemsize != dtype.itemsize:
        raise ValidationError(f"expected a type of {x.dtype.itemsize} bytes, but got {dtype}")
    return [replace(x, dtype=dtype, host=None)]


def _two_inputs(node: OnnxNode) -> str | None:
    return None if len(node.inputs) == 2 else "the mean of more or fewer than two"


def _bit_cast(node: OnnxNode) -> str | None:
    return "bits of BFLOAT16" if any(
        v is not None and v.is_bfloat16 for v in (*node.inputs, *node.outputs)) else None


def _cast(node: OnnxNode) -> str | None:
    dtype = number_type(node.attributes.get("to", 0))
    if dtype is None or dtype == BOOL:
        return "a cast to this data type"
    return None


def _cast_to_bool(node: OnnxNode) -> str | None:
    return None if DTYPES.get(node.attributes.get("to", 0)) == BOOL else "a cast to this data type"


def either_infinity(node: OnnxNode) -> str | None:
    signs = [node.attributes.get(f"detect_{s}", 1) for s in ("positive", "negative")]
    return None if any(signs) else "nothing to detect"


def _cast_like(node: OnnxNode) -> str | None:
    like = node.input(1)
    return "a cast to this data type" if like is None or like.dtype in (None, BOOL) else None


COMPARISONS = (
    ("Equal", _COMPARISON, "EQUALS"), ("Greater", _COMPARISON, "GREATER_THAN"),
    ("Less", _COMPARISON, "LESS_THAN"),
    ("GreaterOrEqual", (12, 16), "GREATER_THAN_OR_EQUAL"),
    ("LessOrEqual", (12, 16), "LESS_THAN_OR_EQUAL"))

ROWS: tuple[Mapping, ...] = (
    # Arithmetic
    elementwise("Add", _ARITHMETIC, "ELEMENT_WISE_ADD"),
    elementwise("Sub", _ARITHMETIC, "ELEMENT_WISE_SUBTRACT"),
    elementwise("Mul", _ARITHMETIC, "ELEMENT_WISE_MULTIPLY"),
    elementwise("Div", _ARITHMETIC, "ELEMENT_WISE_DIVIDE"),
    elementwise("Pow", (7, 12, 13, 15), "ELEMENT_WISE_POW", refuses=same_types,
                 fields=("InputTensor", "ExponentTensor")),
    Mapping("Pow", (12, 13, 15), "ELEMENT_WISE_POW", power, fields=("InputTensor", None)),
    elementwise("Mod", (10, 13, 28), "ELEMENT_WISE_MODULUS_TRUNCATE", reads=("fmod",),
                 refuses=only("fmod", 1, 0)),
    elementwise("Mod", (10, 13, 28), "ELEMENT_WISE_MODULUS_FLOOR", reads=("fmod",),
                 refuses=only("fmod", 0, 0)),
    Mapping("Max", FOLDED, "ELEMENT_WISE_MAX", folded("ELEMENT_WISE_MAX"), fields=TWO),
    Mapping("Min", FOLDED, "ELEMENT_WISE_MIN", folded("ELEMENT_WISE_MIN"), fields=TWO),
    elementwise("Mean", FOLDED, "ELEMENT_WISE_MEAN", refuses=_two_inputs),
    Mapping("Mean", FOLDED, "ELEMENT_WISE_ADD", mean, fields=TWO),
    Mapping("Sum", FOLDED, "ELEMENT_WISE_ADD", folded("ELEMENT_WISE_ADD"), fields=TWO),
    # One input
    Mapping("Abs", UNARY, COPY, identity, refuses=of_unsigned),
    elementwise("Abs", UNARY, "ELEMENT_WISE_ABS"),
    elementwise("Neg", UNARY, "ELEMENT_WISE_NEGATE"),
    elementwise("Ceil", UNARY, "ELEMENT_WISE_CEIL"),
    elementwise("Floor", UNARY, "ELEMENT_WISE_FLOOR"),
    # DML_ROUNDING_MODE_HALVES_TO_NEAREST_EVEN
    elementwise("Round", (11, 22), "ELEMENT_WISE_ROUND", constants(rounding_mode=0)),
    elementwise("Sign", (9, 13), "ELEMENT_WISE_SIGN"),
    elementwise("Sqrt", UNARY, "ELEMENT_WISE_SQRT"),
    elementwise("Reciprocal", UNARY, "ELEMENT_WISE_RECIP"),
    elementwise("Exp", UNARY, "ELEMENT_WISE_EXP"),
    elementwise("Log", UNARY, "ELEMENT_WISE_LOG"),
    elementwise("Erf", (9, 13), "ELEMENT_WISE_ERF"),
    elementwise("Sin", _TRIGONOMETRIC, "ELEMENT_WISE_SIN"),
    elementwise("Cos", _TRIGONOMETRIC, "ELEMENT_WISE_COS"),
    elementwise("Tan", _TRIGONOMETRIC, "ELEMENT_WISE_TAN"),
    elementwise("Asin", _TRIGONOMETRIC, "ELEMENT_WISE_ASIN"),
    elementwise("Acos", _TRIGONOMETRIC, "ELEMENT_WISE_ACOS"),
    elementwise("Atan", _TRIGONOMETRIC, "ELEMENT_WISE_ATAN"),
    elementwise("Sinh", _HYPERBOLIC, "ELEMENT_WISE_SINH"),
    elementwise("Cosh", _HYPERBOLIC, "ELEMENT_WISE_COSH"),
    elementwise("Asinh", _HYPERBOLIC, "ELEMENT_WISE_ASINH"),
    elementwise("Acosh", _HYPERBOLIC, "ELEMENT_WISE_ACOSH"),
    elementwise("Atanh", _HYPERBOLIC, "ELEMENT_WISE_ATANH"),
    elementwise("IsNaN", (9, 13, 20), "ELEMENT_WISE_IS_NAN"),
    elementwise("IsInf", (10, 20), "ELEMENT_WISE_IS_INFINITY", infinity_mode,
                 reads=("detect_negative", "detect_positive"), refuses=either_infinity),
    Mapping("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "ELEMENT_WISE_LOGICAL_EQUALS",
        truth, attributes=("to", "saturate", "round_mode"), refuses=_cast_to_bool),
    Mapping("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "CAST", cast,
        attributes=("to", "saturate", "round_mode"), refuses=_cast, any_size=True),
    elementwise("CastLike", (15, 19, 21, 23, 24, 25, 28), "CAST", reads=("saturate", "round_mode"),
                 fields=("InputTensor", None), refuses=_cast_like, tensors=1),
    Mapping("BitCast", (26,), COPY, bit_cast, attributes=("to",), refuses=_bit_cast),
    Mapping("Clip", (1, 6, 11, 12, 13), "ELEMENT_WISE_CLIP1",
        lowerings.elementwise("ELEMENT_WISE_CLIP1", clip_bounds, tensors=1),
        attributes=("min", "max"), host=(1, 2), refuses=clip_refusal),
    Mapping("Clip", (11, 12, 13), "ELEMENT_WISE_MAX", clip, fields=TWO),
    # Logic
    elementwise("Not", (1,), "ELEMENT_WISE_LOGICAL_NOT"),
    elementwise("And", (7,), "ELEMENT_WISE_LOGICAL_AND"),
    elementwise("Or", (7,), "ELEMENT_WISE_LOGICAL_OR"),
    elementwise("Xor", (7,), "ELEMENT_WISE_LOGICAL_XOR"),
    *(elementwise(op, since, f"ELEMENT_WISE_LOGICAL_{name}") for op, since, name in COMPARISONS),
    elementwise("Where", (9, 16), "ELEMENT_WISE_IF"),
    elementwise("BitwiseAnd", (18,), "ELEMENT_WISE_BIT_AND"),
    elementwise("BitwiseOr", (18,), "ELEMENT_WISE_BIT_OR"),
    elementwise("BitwiseXor", (18,), "ELEMENT_WISE_BIT_XOR"),
    elementwise("BitwiseNot", (18,), "ELEMENT_WISE_BIT_NOT"),
    elementwise("BitShift", (11, 28), "ELEMENT_WISE_BIT_SHIFT_LEFT", reads=("direction",),
                 refuses=only("direction", "LEFT", None)),
    elementwise("BitShift", (11, 28), "ELEMENT_WISE_BIT_SHIFT_RIGHT", reads=("direction",),
                 refuses=only("direction", "RIGHT", None)),
)
