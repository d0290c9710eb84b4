"""A chain of elementwise operators in one dispatch. Graphs make it from several operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import elementwise_lowering, float_bits, parameters
from ..lowering.plan import Plan, Target
from ..spec import Field
from .base import widened
from .elementwise import ElementWiseAdd1OperatorDesc

SHADER = "elementwise_chain"
MOST_STEPS, MOST_TENSORS, MOST_VALUES = 8, 3, 8
_CODES = {name: code for code, name in enumerate((
    "ELEMENT_WISE_ADD", "ELEMENT_WISE_SUBTRACT", "ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_DIVIDE",
    "ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN", "ELEMENT_WISE_ABS", "ELEMENT_WISE_NEGATE",
    "ELEMENT_WISE_RECIP", "ELEMENT_WISE_SQRT", "ELEMENT_WISE_EXP", "ELEMENT_WISE_LOG",
    "ELEMENT_WISE_ERF", "ELEMENT_WISE_CONSTANT_POW", "ELEMENT_WISE_FLOOR", "ELEMENT_WISE_CEIL",
    "ELEMENT_WISE_SIGN", "ELEMENT_WISE_CLIP", "ELEMENT_WISE_CLIP1", "ACTIVATION_RELU",
    "ACTIVATION_LEAKY_RELU", "ACTIVATION_LINEAR", "ACTIVATION_HARD_SIGMOID", "ACTIVATION_ELU",
    "ACTIVATION_SIGMOID", "ACTIVATION_TANH", "ACTIVATION_SOFTPLUS", "ACTIVATION_SOFTSIGN",
    "ACTIVATION_GELU", "ACTIVATION_SWISH", "ACTIVATION_HARD_SWISH"), 1)}
"""The operators of a chain, and their codes in the shader."""
_NUMBER = 15
"""The source that stands for a number."""


class Step(NamedTuple):
    """An operator of a chain. A source is a tensor (0 to 2), an earlier step (from 3 on), or the
    only number."""

    code: int
    sources: tuple[int, ...]
    words: tuple[int, ...]
    """Attributes of the operator, or the number."""


def step_of(desc: Any, sources: Sequence[int | float]) -> Step | None:
    """``desc`` as a step of a chain, or None if it cannot be one. A float source is a number."""
    name = desc.operator.name.removeprefix("DML_OPERATOR_")
    if name not in _CODES or getattr(desc, "scale_bias", None) is not None:
        return None
    words = tuple(float_bits(s) for s in sources if isinstance(s, float))
    if name == "ELEMENT_WISE_CONSTANT_POW":
        if desc.exponent != 2:
            return None
    else:
        words += parameters(desc, desc.output_tensor.data_type)
    if len(words) > 1 and any(isinstance(s, float) for s in sources):
        return None
    return Step(_CODES[name], tuple(_NUMBER if isinstance(s, float) else s for s in sources),
                words)


def _lower(d: Any, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    words: list[int] = []
    spec: dict[str, int] = {}
    for i, step in enumerate(d.steps):
        left, right = (*step.sources, 0)[:2]
        spec[f"STEP_{i}"] = step.code | left << 8 | right << 12 | len(words) << 16
        words += step.words
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
