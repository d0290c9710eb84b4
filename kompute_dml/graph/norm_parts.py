"""Parts of normalizations that are spelled out, for the passes that make one operator of them."""

from __future__ import annotations

from typing import NamedTuple

from ..attributes import ReduceFunction
from ..desc import TensorDesc
from ..layout import packed_strides
from .node import OTHER, SUMS, Node, Nodes, alike, fused_by, has_scale_bias, moved, output_of


class MeanSquare(NamedTuple):
    """The root's operand mean(x^2) + epsilon. Only the next operator reads each of these."""

    square: Node
    slot: str
    """The square's slot of x."""
    mean: Node
    plus: Node
    epsilon: float


def mean_square(g: Nodes, root: Node) -> MeanSquare | None:
    """What is under ``root``, if it is a mean of squares and an epsilon of at least 0."""
    plus = g.maker(root, "input_tensor")
    if plus is None or plus.name not in SUMS or fused_by(plus) or g.only_user(plus) is None:
        return None
    side = next((s for s in OTHER if plus.number(OTHER[s]) is not None), "")
    epsilon = plus.number(OTHER[side]) if side else None
    mean = g.maker(plus, side) if side else None
    if mean is None or epsilon is None or epsilon < 0 or mean.name != "REDUCE" or (
            mean.desc.function != ReduceFunction.AVERAGE or g.only_user(mean) is None):
        return None
    square = g.maker(mean, "input_tensor")
    slot = "" if square is None else _squared(square)
    if square is None or not slot or g.only_user(square) is None:
        return None
    return MeanSquare(square, slot, mean, plus, epsilon)


def _squared(node: Node) -> str:
    """The slot of what is squared, or ""."""
    if node.name == "ELEMENT_WISE_POW":
        squares = not has_scale_bias(node) and node.number("exponent_tensor") == 2
        return "input_tensor" if squares else ""
    if node.name != "ELEMENT_WISE_MULTIPLY":
        return ""
    a, b = (node.storages[s] for s in OTHER)
    same = a.begins_as(b) and alike(*map(node.tensor, OTHER))
    return "a_tensor" if same else ""


def repeated(x: TensorDesc, axes: tuple[int, ...]) -> TensorDesc:
    """``x`` packed but for these dimensions, along which it is repeated."""
    kept = packed_strides([1 if i in axes else n for i, n in enumerate(x.sizes)])
    return moved(x, x.sizes, tuple(0 if i in axes else s for i, s in enumerate(kept)))


def along(user: tuple[Node, str], axes: tuple[int, ...]) -> bool:
    """Whether the other operand is one for all normalized lines."""
    t = user[0].tensor(OTHER[user[1]])
    return t.data_type is output_of(user[0]).data_type and not any(
        s for i, (s, n) in enumerate(zip(t.strides, t.sizes)) if i not in axes and n > 1)
