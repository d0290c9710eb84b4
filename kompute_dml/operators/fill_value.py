"""FILL_VALUE_CONSTANT and FILL_VALUE_SEQUENCE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..desc import TensorDesc
from ..dtypes import DataType, Scalar
from ..errors import integers
from .base import define, function
from .call import device_of, output, run
from .elementwise import check_attributes, scalar
from .frame import float_bits, frame
from .plan import Plan, Target

if TYPE_CHECKING:
    from ..tensor import Tensor

_SHADER = "fill_value"


def _lower(
    y: TensorDesc, target: Target, operation: str, *, first: int = 0, **words: tuple[int, int]
) -> Plan:
    numbers = TensorDesc(y.data_type, y.sizes)
    variant = target.library.get(_SHADER, operation)
    return frame(target, variant, [(None, numbers)], ("output_tensor", y), push=words, first=first)


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
    "FILL_VALUE_CONSTANT", _lower_constant, shaders=(_SHADER,), check=check_attributes,
    in_place=False)
FillValueSequenceOperatorDesc = define(
    "FILL_VALUE_SEQUENCE", _lower_sequence, shaders=(_SHADER,), check=check_attributes,
    in_place=False)


@function
def fill_value_constant(
    sizes: Sequence[int], *, value: Any, data_type: Any = "float32", out: Tensor | None = None
) -> Tensor:
    """Every element is ``value`` (DML_FILL_VALUE_CONSTANT_OPERATOR_DESC).

    ``value`` is taken bit for bit: a number that the type can hold, a NumPy scalar, or raw bytes.
    All eleven data types, 1 to 8 dimensions. Returns ``out`` or a new packed tensor. Raises
    ValidationError or UnsupportedError.
    """
    name, device = "fill_value_constant", device_of(out)
    y = output(device, out, name, integers(name, "sizes", sizes), DataType.of(data_type))
    run(FillValueConstantOperatorDesc, device, {"output_tensor": y},
        value_data_type=y.data_type, value=scalar(name, "value", value, y.data_type))
    return y


@function
def fill_value_sequence(
    sizes: Sequence[int], *, value_start: Any, value_delta: Any, data_type: Any = "float32",
    out: Tensor | None = None,
) -> Tensor:
    """Element k is ``start + k * delta`` (DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC).

    Elements count in row-major order. Integers wrap; floats are computed in float32, where each
    step is rounded. All data types but FLOAT64, 1 to 8 dimensions. Returns ``out`` or a new packed
    tensor. Raises ValidationError or UnsupportedError.
    """
    name, device = "fill_value_sequence", device_of(out)
    y = output(device, out, name, integers(name, "sizes", sizes), DataType.of(data_type))
    run(FillValueSequenceOperatorDesc, device, {"output_tensor": y}, value_data_type=y.data_type,
        value_start=scalar(name, "value_start", value_start, y.data_type),
        value_delta=scalar(name, "value_delta", value_delta, y.data_type))
    return y
