"""If whose branches are constants, such as cosines for short and for long texts. Readers of models
give such a node the constants as inputs (:func:`with_constants`), those of the taken branch first.

Which branch is taken follows from sizes as a rule, so that a plan knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode, OnnxValue
from ..lowerings import Inputs, given, host
from ..row import COPY, Mapping
from .movement import joined

CONSTANTS = "constants"
"""The attribute of such a node."""
JOINED = "joined"
"""The attribute of one that gives both, those of the other branch first."""
NAMES = "then_branch", "else_branch"
"""Attributes: the branches, in their order."""


def with_constants(
    node: OnnxNode, then_values: Sequence[OnnxValue], else_values: Sequence[OnnxValue]
) -> OnnxNode:
    """An If with the constants of its branches."""
    others = {name: x for name, x in node.attributes.items() if name not in NAMES}
    return replace(node, inputs=(node.inputs[0], *then_values, *else_values),
                   attributes=others | {CONSTANTS: len(node.outputs)})


def _refusal(node: OnnxNode) -> str | None:
    return None if CONSTANTS in node.attributes else "branches that compute"


def chosen(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    condition, count = host(inputs, 0), len(node.outputs)
    if JOINED in node.attributes:
        return [joined(builder, [given(inputs, 1 + count + i), given(inputs, 1 + i)], 0)
                for i in range(count)]
    first = 1 if condition is not None and condition.reshape(-1)[0] else 1 + count
    return [given(inputs, first + i) for i in range(count)]


ROWS: tuple[Mapping, ...] = (
    Mapping("If", (1, 11, 13, 16, 19, 21, 23, 24, 25), COPY, chosen, host=(0,),
        attributes=(CONSTANTS, JOINED, *NAMES), refuses=_refusal, any_size=True),
)
