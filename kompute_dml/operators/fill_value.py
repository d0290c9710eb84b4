"""FILL_VALUE_CONSTANT and FILL_VALUE_SEQUENCE."""

from __future__ import annotations

from ..desc import TensorDesc
from ..dtypes import Scalar
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import elementwise_lowering, float_bits
from .base import OperatorDesc, operator
from .elementwise import check_attributes

SHADER = "fill_value"


def _fill(
    p: PlanBuilder, slot: str, y: TensorDesc, operation: str, *, first: int = 0,
    **words: tuple[int, int],
) -> None:
    numbers = TensorDesc(y.data_type, y.sizes)
    elementwise_lowering(p, p.library.get(SHADER, operation), [(None, numbers)], (slot, y),
                         push=words, first=first)


def fill(p: PlanBuilder, slot: str, y: TensorDesc, value: Scalar, first: int = 0) -> None:
    """Fill ``y``, which begins at element ``first`` of the slot, with ``value``."""
    _fill(p, slot, y, "constant", first=first, start=value.words)


@operator("FILL_VALUE_CONSTANT", shaders=(SHADER,), check=check_attributes, in_place=False)
def FillValueConstantOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    fill(p, "output_tensor", d.output_tensor, Scalar.of(d.value, d.value_data_type))


@operator("FILL_VALUE_SEQUENCE", shaders=(SHADER,), check=check_attributes, in_place=False)
def FillValueSequenceOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    y, kind = d.output_tensor, d.value_data_type
    start, delta = (Scalar.of(v, kind) for v in (d.value_start, d.value_delta))
    if kind.is_float:
        _fill(p, "output_tensor", y, "float_sequence", start=(float_bits(start.item()), 0),
              delta=(float_bits(delta.item()), 0))
    else:
        _fill(p, "output_tensor", y, "integer_sequence", start=start.words, delta=delta.words)
