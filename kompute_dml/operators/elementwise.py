"""Elementwise operators: a table.

A row names an operator and its operation in the shaders ``elementwise_*``; fields, types, checks
and formula come from the specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import spec
from ..attributes import IsInfinityMode, RoundingMode
from ..dtypes import DataType, Scalar
from ..errors import ValidationError, expect
from ..layout import Ints
from ..lowering.activation import fused_activation
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.elementwise import (
    elementwise_lowering,
    float_bits,
    is_transposition,
    parameters,
)
from ..spec import FeatureLevel
from .base import Check, Newer, OperatorDesc, operator

FLOAT, INTEGER, INTEGER64 = "elementwise_float", "elementwise_integer", "elementwise_integer64"
COMPARISON = "elementwise_comparison"
LONG = ("acosh", "constant_pow", "fractional_pow", "gelu")
TABLE = "elementwise_table"


# -- rows

Code = str | Callable[[Any], str]


def row(
    name: str,
    op: Code = "",
    *,
    shader: str = "",
    on_bits: bool = False,
    in_float: bool = False,
    by_order: bool = False,
    tabulated: bool = False,
    constants: Callable[[Any, DataType], Ints] = parameters,
    check: Check = lambda desc, strict: None,
    newer: Newer = lambda desc: (),
    in_place: bool | None = None,
    **defaults: Any,
) -> Any:
    """Define ``DML_OPERATOR_<name>`` by the name that its operation has in the shaders, or by a
    ``shader`` of its own.

    ``on_bits`` operators take any type as unsigned integers. ``in_float`` operators compute
    integers in float32. ``by_order`` operators only need the order of floats. ``tabulated``
    operators have tables of results for bytes. ``defaults`` are those of the function's keyword
    arguments. Returns the descriptor class.
    """
    entry = spec.operator("DML_OPERATOR_" + name)
    input_names = [f.snake for f in entry.inputs]
    output_name = entry.outputs[0].snake

    def lower(desc: OperatorDesc, p: PlanBuilder) -> None:
        inputs: list[Any] = [(n, getattr(desc, n)) for n in input_names]
        result = (output_name, getattr(desc, output_name))
        scale_bias = getattr(desc, "scale_bias", None)
        values: dict[str, int] = {}
        push: dict[str, int | Sequence[int]] = {}
        is_copy = name == "ELEMENT_WISE_IDENTITY" and scale_bias is None
        if is_copy and is_transposition(inputs[0][1], result[1], p.device):
            p.add(copied(p, result[1].sizes, *(CopyView.whole(*t) for t in (*inputs, result))))
            return
        bits = on_bits or is_copy
        types = [t.data_type.unsigned if bits else t.data_type for _, t in inputs]
        if not bits and (words := constants(desc, DataType.FLOAT32 if in_float else types[0])):
            push["attributes"] = words
        if scale_bias is not None:
            values["HAS_SCALE_BIAS"] = True
            push |= {"scale": float_bits(scale_bias.scale), "bias": float_bits(scale_bias.bias)}
        for letter, data_type in zip("ABC", types):
            values[f"{letter}_TYPE"] = data_type.code
        if bits and result[1].data_type is inputs[0][1].data_type:
            values["OUT_TYPE"] = types[0].code
        operation = op if isinstance(op, str) else op(desc)
        table = None
        if shader:
            variant = p.library.get(shader)
        else:
            inputs += [None] * (2 - len(inputs))
            family = FLOAT if in_float else _shader(types, by_order)
            variant = p.library.get(family, operation)
            if tabulated and all(t.itemsize == 1 for t in types):
                table = p.library.get(TABLE, operation)
        elementwise_lowering(p, variant, inputs, result, push=push, spec=values,
                             long=operation in LONG, table=table)

    def check_all(desc: OperatorDesc, strict: bool) -> None:
        check_attributes(desc, strict)
        check(desc, strict)

    own = shader or (FLOAT if in_float else "")
    shaders = (own,) if own else _shaders(entry, on_bits, by_order)
    return operator(name, shaders=shaders + (TABLE,) * tabulated, check=check_all, newer=newer,
                    in_place=in_place, broadcasts=True, any_size=True, **defaults)(lower)


def _shader(types: Sequence[DataType], by_order: bool = False) -> str:
    if DataType.FLOAT64 in types:
        return "elementwise_float64"
    if any(t.is_float for t in types):
        return COMPARISON if by_order else FLOAT
    return INTEGER64 if any(t.itemsize == 8 for t in types) else INTEGER


def _shaders(entry: spec.OperatorSpec, on_bits: bool, by_order: bool) -> tuple[str, ...]:
    """All shaders that :func:`_shader` may choose, at any feature level."""
    types = {t for row in entry.support for t in row.tensors[entry.inputs[0].name].data_types}
    if on_bits:
        types = {t.unsigned for t in types}
    return tuple(sorted({_shader([t], by_order) for t in types}))


def scalar(operator: str, field: str, value: object, data_type: DataType) -> Scalar:
    """``value`` as a SCALAR_UNION of ``data_type``, which must hold it."""
    try:
        return Scalar.of(value, data_type)
    except ValidationError:
        rule = f"be a scalar that {data_type} can hold"
        raise ValidationError(
            f"{operator}: expected {field} to {rule}, but got {value!r}") from None


def check_attributes(desc: OperatorDesc, strict: bool) -> None:
    """Raise if a scalar union does not have the output's type."""
    name, fields = desc.operator.name, desc.operator.spec.fields
    output = desc.operator.spec.outputs[0]
    data_type = getattr(desc, output.snake).data_type
    for f in fields:
        value = getattr(desc, f.snake)
        if f.enum == "DML_TENSOR_DATA_TYPE":
            expect(value is data_type, name, f.name, f"equal {output.name}.DataType", value,
                   data_type)
        elif f.type == "SCALAR_UNION":
            scalar(name, f.name, value, data_type)


# -- the table


def _newer_pow(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    if desc.exponent_tensor.data_type is not desc.input_tensor.data_type:
        yield (FeatureLevel.FL_3_0, "ExponentTensor.DataType", "equal InputTensor.DataType",
               desc.exponent_tensor.data_type)


def _constant_power(desc: OperatorDesc) -> str:
    """The operation of the shader. A whole exponent keeps whole numbers exact; other exponents of
    floats have a shorter shader."""
    exponent = float(np.float32(desc.exponent))
    is_short = exponent % 1 > 0 and desc.input_tensor.data_type.is_float
    general = "fractional_pow" if is_short else "constant_pow"
    return {2.0: "square", 3.0: "cube"}.get(exponent, general)


def _power_constants(desc: OperatorDesc, data_type: DataType) -> Ints:
    """The exponent. The shorter shader also takes the exponent times 2 / ln 2 as a pair, and the
    limit of k."""
    words = parameters(desc, data_type)
    if _constant_power(desc) == "fractional_pow":
        exponent = float(np.float32(desc.exponent))
        factor = exponent * 2 / math.log(2)
        limit = min(125.5, 125 / abs(exponent) - 0.5) * 2**23
        words += tuple(map(float_bits, (factor, factor - float(np.float32(factor)), limit)))
    return words


for _name in ("ABS", "ACOS", "ACOSH", "ASIN", "ASINH", "ATAN", "ATANH", "CEIL", "COS", "COSH",
              "ERF", "EXP", "FLOOR", "IDENTITY", "LOG", "NEGATE", "RECIP", "SIGN", "SIN", "SINH",
              "SQRT", "TAN", "TANH",
              "ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "MEAN", "DIFFERENCE_SQUARE",
              "MODULUS_FLOOR", "MODULUS_TRUNCATE", "ATAN_YX",
              "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGICAL_XOR",
              "BIT_SHIFT_LEFT", "BIT_SHIFT_RIGHT"):
    row(f"ELEMENT_WISE_{_name}", _name.lower())

for _name in ("MAX", "MIN"):
    row(f"ELEMENT_WISE_{_name}", _name.lower(), by_order=True)
for _name in ("EQUALS", "GREATER_THAN", "GREATER_THAN_OR_EQUAL", "LESS_THAN", "LESS_THAN_OR_EQUAL"):
    row(f"ELEMENT_WISE_LOGICAL_{_name}", f"logical_{_name.lower()}", by_order=True,
        data_type="uint8")

for _name in ("AND", "NOT", "OR", "XOR"):
    row(f"ELEMENT_WISE_BIT_{_name}", f"bit_{_name.lower()}", on_bits=True)
row("ELEMENT_WISE_BIT_COUNT", "bit_count", on_bits=True, data_type="uint8")

row("ELEMENT_WISE_IF", shader="elementwise_if")
row("CAST", shader="elementwise_cast")

row("ELEMENT_WISE_CLIP", "clip")
row("ELEMENT_WISE_CLIP1", "clip1")
row("ELEMENT_WISE_THRESHOLD", "threshold")
row("ELEMENT_WISE_CONSTANT_POW", _constant_power, in_float=True, tabulated=True,
    constants=_power_constants)
row("ELEMENT_WISE_POW", "pow", tabulated=True, newer=_newer_pow)
row("ELEMENT_WISE_IS_NAN", "is_nan", data_type="uint8")

_INFINITY = {IsInfinityMode.EITHER: "is_infinity", IsInfinityMode.POSITIVE: "is_positive_infinity",
             IsInfinityMode.NEGATIVE: "is_negative_infinity"}
row("ELEMENT_WISE_IS_INFINITY", lambda desc: _INFINITY[desc.infinity_mode],
    infinity_mode=IsInfinityMode.EITHER, data_type="uint8", in_place=False)

_ROUNDING = {RoundingMode.HALVES_TO_NEAREST_EVEN: "round_half_even",
             RoundingMode.TOWARD_ZERO: "truncate", RoundingMode.TOWARD_INFINITY: "round_half_away"}
row("ELEMENT_WISE_ROUND", lambda desc: _ROUNDING[desc.rounding_mode],
    rounding_mode=RoundingMode.HALVES_TO_NEAREST_EVEN)


# ADD1 is ADD with a fused activation. Both have one function.

_ADD1 = "elementwise_add1"


@operator("ELEMENT_WISE_ADD1", shaders=(FLOAT, _ADD1), check=check_attributes, broadcasts=True)
def ElementWiseAdd1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    fused = fused_activation(d)
    variant = p.library.get(_ADD1) if fused.code else p.library.get(FLOAT, "add")
    elementwise_lowering(
        p, variant, [("a_tensor", d.a_tensor), ("b_tensor", d.b_tensor)],
        ("output_tensor", d.output_tensor), push={"attributes": fused.words},
        spec={"FUSED_ACTIVATION": fused.code} if fused.code else {})


def _check_value_scale_2d(desc: OperatorDesc, strict: bool) -> None:
    name, channels = "DML_OPERATOR_VALUE_SCALE_2D", desc.input_tensor.sizes[1]
    expect(desc.channel_count in (1, 3), name, "ChannelCount", "be 1 or 3", desc.channel_count)
    expect(desc.channel_count == channels, name, "ChannelCount", "equal InputTensor.Sizes[1]",
           desc.channel_count, channels)
    expect(len(desc.bias) == channels, name, "Bias", f"have {channels} numbers", list(desc.bias))


@operator("VALUE_SCALE_2D", shaders=(FLOAT,), check=_check_value_scale_2d)
def ValueScale2dOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    """One dispatch per channel, each a linear activation with a bias of its own."""
    variant = p.library.get(FLOAT, "linear")
    for channel, bias in enumerate(d.bias):
        elementwise_lowering(
            p, variant, [("input_tensor", d.input_tensor), None],
            ("output_tensor", d.output_tensor),
            push={"attributes": (float_bits(d.scale), float_bits(bias))}, select=(1, channel))
