"""A chain of elementwise operators in one dispatch. Graphs make it from several operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..lowering.activation import ActivationStep, encoded, fused_activation
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import elementwise_lowering, float_bits, parameters
from ..lowering.plan import Plan, Target
from ..runtime.shader_library import codes
from ..spec import Field
from .base import OperatorDesc, widened
from .elementwise import ElementWiseAdd1OperatorDesc

SHADER = "elementwise_chain"
MOST_STEPS, MOST_TENSORS, MOST_VALUES = 8, 3, 8
_NUMBER = 15
"""The source that stands for a number."""


def is_step(desc: OperatorDesc) -> bool:
    """Whether an operator can be one of a chain."""
    return _name(desc) in codes() and getattr(desc, "scale_bias", None) is None


def steps_of(
    desc: OperatorDesc, sources: Sequence[int | float], number: int
) -> list[ActivationStep] | None:
    """An operator as steps of a chain, or None if it cannot be part of one. A float source is a
    number. ``number``: the source that the first of the steps is for others."""
    words = tuple(float_bits(s) for s in sources if isinstance(s, float))
    name, fused = _name(desc), fused_activation(desc)
    if name not in ("square", "add"):
        words += parameters(desc, desc.output_tensor.data_type)
    if not is_step(desc) or (len(words) > 1 and any(isinstance(s, float) for s in sources)):
        return None
    steps = [ActivationStep(codes()[name],
                  tuple(_NUMBER if isinstance(s, float) else s for s in sources), words)]
    return [*steps, ActivationStep(fused.code, (number,), fused.words)] if fused.code else steps


def _name(desc: OperatorDesc) -> str:
    """The name of an operator among :func:`codes`, or another one."""
    name = desc.operator.short_name
    if name == "ELEMENT_WISE_CONSTANT_POW":
        return "square" if desc.exponent == 2 else ""
    if name == "ELEMENT_WISE_ADD1":
        return "add"
    return name.removeprefix("ELEMENT_WISE_").removeprefix("ACTIVATION_").lower()


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    codes, words = encoded(d.steps)
    spec = {f"STEP_{i}": code for i, code in enumerate(codes)}
    spec |= {f"VALUE_{i}": word for i, word in enumerate(words)}
    tensors = [(slot, getattr(d, slot)) for slot in SLOTS]
    elementwise_lowering(
        p, p.library.get(SHADER), [None if t is None else (slot, t) for slot, t in tensors],
        ("output_tensor", d.output_tensor), spec=spec, long=len(d.steps) > 3)
    return p.build()


SLOTS = ("a_tensor", "b_tensor", "c_tensor")
ChainDesc: Any = widened(
    ElementWiseAdd1OperatorDesc, Field("CTensor", "input", "TENSOR_DESC", True),
    Field("Steps", "attribute", "STEPS", True), name="ELEMENT_WISE_CHAIN", lower=_lower)
"""Input tensors are :data:`SLOTS`, None if absent. ``steps`` is a tuple of :class:`Step`."""
