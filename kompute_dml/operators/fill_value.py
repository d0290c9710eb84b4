"""FILL_VALUE_CONSTANT and FILL_VALUE_SEQUENCE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..desc import TensorDesc
from ..dtypes import Scalar
from ..lowering.elementwise import elementwise_lowering, float_bits
from ..lowering.plan import Plan, Target
from .base import define
from .elementwise import check_attributes

if TYPE_CHECKING:
    pass

SHADER = "fill_value"


def _lower(
    y: TensorDesc, target: Target, operation: str, *, first: int = 0, **words: tuple[int, int]
) -> Plan:
    numbers = TensorDesc(y.data_type, y.sizes)
    variant = target.library.get(SHADER, operation)
    return elementwise_lowering(target, variant, [(None, numbers)], ("output_tensor", y),
                                push=words, first=first)


def filled(y: TensorDesc, target: Target, value: Scalar, first: int = 0) -> Plan:
    """The plan that makes all of ``y`` be ``value``, which begins at element ``first`` of the
    output."""
    return _lower(y, target, "constant", first=first, start=value.words)


def _lower_constant(desc: Any, target: Target) -> Plan:
    return filled(desc.output_tensor, target, Scalar.of(desc.value, desc.value_data_type))


def _lower_sequence(desc: Any, target: Target) -> Plan:
    y, kind = desc.output_tensor, desc.value_data_type
    start, delta = (Scalar.of(v, kind) for v in (desc.value_start, desc.value_delta))
    if kind.is_float:
        return _lower(y, target, "float_sequence", start=(float_bits(start.item()), 0),
                      delta=(float_bits(delta.item()), 0))
    return _lower(y, target, "integer_sequence", start=start.words, delta=delta.words)


FillValueConstantOperatorDesc = define(
    "FILL_VALUE_CONSTANT", _lower_constant, shaders=(SHADER,), check=check_attributes,
    in_place=False)
FillValueSequenceOperatorDesc = define(
    "FILL_VALUE_SEQUENCE", _lower_sequence, shaders=(SHADER,), check=check_attributes,
    in_place=False)
