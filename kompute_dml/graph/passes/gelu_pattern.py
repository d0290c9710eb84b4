"""A GELU that is spelled out: x / sqrt(2), erf, + 1, times x, times 1/2."""

from __future__ import annotations

import math

from ...desc import TensorDesc
from ..memory import Storage
from ..node import (
    OTHER,
    SUMS,
    Node,
    Nodes,
    alike,
    class_of,
    factor_of,
    fused_by,
    has_scale_bias,
    next_user,
    output_of,
)
from ..rewrite import rewrite

_CLOSE = 1e-3
"""The relative error of a constant that stands for a number, as FLOAT16 rounds it."""


@rewrite("gelu_pattern", "a GELU that is spelled out is ACTIVATION_GELU", 60)
def gelu_pattern(g: Nodes) -> None:
    for erf in g:
        if erf.name != "ELEMENT_WISE_ERF" or has_scale_bias(erf):
            continue
        scaled = g.maker(erf, "input_tensor")
        if scaled is None or g.only_user(scaled) != (erf, "input_tensor"):
            continue
        slot = _times(scaled, math.sqrt(0.5))
        parts, halves = [scaled, erf], False
        x = None if slot is None else (scaled.storages[slot], scaled.tensor(slot))
        plus = next_user(g, erf, SUMS)
        if x is None or plus is None or fused_by(plus[0]) or _constant(plus) != 1:
            continue
        parts.append(plus[0])
        times_x = False
        while not (times_x and halves) and (
                user := next_user(g, parts[-1], ("ELEMENT_WISE_MULTIPLY",))) is not None:
            node, at = user
            number = _constant(user)
            other = OTHER[at]
            if number == 0.5 and not halves:
                halves = True
            elif not times_x and _reads(node, other, x):
                times_x = True
            elif not (times_x or halves) and (half := _half(g, node, other, x)) is not None:
                times_x = halves = True
                parts.append(half)
            else:
                break
            parts.append(node)
        if times_x and halves:
            y = output_of(parts[-1])
            g.replace(parts, Node(
                class_of("ACTIVATION_GELU")(input_tensor=x[1], output_tensor=y),
                {"input_tensor": x[0], "output_tensor": parts[-1].storages["output_tensor"]},
                erf.label))


def _reads(node: Node, slot: str, x: tuple[Storage, TensorDesc]) -> bool:
    return node.storages[slot].begins_as(x[0]) and node.tensor(slot) == x[1]


def _half(g: Nodes, node: Node, slot: str, x: tuple[Storage, TensorDesc]) -> Node | None:
    """What makes half of x for this operator alone."""
    half = g.maker(node, slot)
    if half is None or g.only_user(half) != (node, slot) or not alike(
            output_of(half), node.tensor(slot)):
        return None
    of = _times(half, 0.5)
    return half if of is not None and _reads(half, of, x) else None


def _constant(user: tuple[Node, str]) -> float | None:
    """The other operand, if it is a number."""
    return user[0].number(OTHER[user[1]])


def _times(node: Node, factor: float) -> str | None:
    """The slot that an operator multiplies by ``factor``, or None."""
    for slot in OTHER:
        number = factor_of(node, slot)
        if number is not None and math.isclose(number, factor, rel_tol=_CLOSE):
            return slot
    return None
