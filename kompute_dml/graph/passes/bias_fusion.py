"""Sums become GEMM's C and a convolution's bias, scales GEMM's Alpha."""

from __future__ import annotations

import math
from typing import Any

from ..node import (
    OTHER,
    SUMS,
    Node,
    Nodes,
    changed,
    factor_of,
    fused_by,
    moved,
    output_of,
    seen_as,
)
from ..rewrite import rewrite

_SUMMED = ("GEMM", "CONVOLUTION", "CONVOLUTION_INTEGER_TO_FLOAT")


@rewrite("bias_fusion",
         "a sum is GEMM's C or a convolution's bias; a power of 2 is GEMM's scale", 120)
def bias_fusion(g: Nodes) -> None:
    for node in g:
        current: Node | None = node
        while current is not None and current.name in _SUMMED and not fused_by(current):
            user = g.only_user(current)
            current = user and (_with_sum(g, current, *user) or _with_scale(g, current, *user))


def _with_sum(g: Nodes, node: Node, total: Node, slot: str) -> Node | None:
    if total.name not in SUMS:
        return None
    y = seen_as(total, slot, "output_tensor", output_of(node))
    other = seen_as(total, slot, OTHER[slot], output_of(node))
    if y is None or other is None or y.data_type is not other.data_type:
        return None
    more: dict[str, Any] = {"output_tensor": y, "fused_activation": fused_by(total)}
    d = node.desc
    if node.name == "GEMM":
        if "c_tensor" in node.storages or not _is_power_of_two(d.alpha):
            return None
        field, more["c_tensor"], more["beta"] = "c_tensor", other, 1.0
    else:
        if "bias_tensor" in node.storages or any(
                s for i, (s, n) in enumerate(zip(other.strides, other.sizes))
                if i != 1 and n > 1):
            return None
        field = "bias_tensor"
        sizes = (1, other.sizes[1], *[1] * (len(other.sizes) - 2))
        more[field] = moved(other, sizes, (0, other.strides[1], *[0] * (len(sizes) - 2)))
    new = changed(node, {field: total.storages[OTHER[slot]],
                          "output_tensor": total.storages["output_tensor"]}, **more)
    g.replace([node, total], new)
    return new


def _with_scale(g: Nodes, node: Node, scaled: Node, slot: str) -> Node | None:
    number = factor_of(scaled, slot) if slot in OTHER else None
    if number is None or node.name != "GEMM" or not _is_power_of_two(number):
        return None
    y = seen_as(scaled, slot, "output_tensor", output_of(node))
    if y is None or y.data_type is not output_of(node).data_type:
        return None
    d = node.desc
    new = changed(node, {"output_tensor": scaled.storages["output_tensor"]}, output_tensor=y,
                  alpha=d.alpha * number, beta=d.beta * number)
    g.replace([node, scaled], new)
    return new


def _is_power_of_two(scale: float) -> bool:
    """Whether scaling is exact, so that it does not change how a sum is rounded."""
    return math.frexp(scale)[0] == 0.5
