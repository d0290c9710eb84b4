"""Sums become GEMM's C and a convolution's bias, scales GEMM's Alpha."""

from __future__ import annotations

import math
from typing import Any

from ...desc import TensorDesc
from ..node import (
    OTHER,
    SUMS,
    Node,
    Nodes,
    changed,
    class_of,
    factor_of,
    fused_by,
    moved,
    output_of,
    seen_as,
)
from ..rewrite import rewrite

_SUMMED = ("GEMM", "CONVOLUTION", "CONVOLUTION_INTEGER_TO_FLOAT")


@rewrite("bias_fusion",
         "a sum is GEMM's C or a convolution's bias. A power of 2 is GEMM's scale", 120)
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
        if any(s for i, (s, n) in enumerate(zip(other.strides, other.sizes))
               if i != 1 and n > 1):
            return None
        if "bias_tensor" in node.storages and not _take_bias(g, node, total, OTHER[slot], other):
            return None
        field = "bias_tensor"
        sizes = (1, other.sizes[1], *[1] * (len(other.sizes) - 2))
        more[field] = moved(other, sizes, (0, other.strides[1], *[0] * (len(sizes) - 2)))
    new = changed(node, {field: total.storages[OTHER[slot]],
                          "output_tensor": total.storages["output_tensor"]}, **more)
    g.replace([node, total], new)
    return new


def _take_bias(g: Nodes, node: Node, total: Node, slot: str, other: TensorDesc) -> bool:
    """Let the product of one row that makes ``other``, one element for each channel, add a
    convolution's constant bias to its own C, so that its result is the only bias. Returns whether
    it can."""
    product, bias = g.maker(total, slot), node.storages["bias_tensor"]
    if product is None or product.name != "GEMM" or g.only_user(product) != (total, slot) or not (
            g.folds and bias.root.constant) or fused_by(product):
        return False
    c, d, y = product.storages.get("c_tensor"), product.desc, output_of(product)
    channels = other.sizes[1]
    if c is None or not c.root.constant or d.beta != 1 or (
            y.element_count != channels or y.sizes[-1] != channels
            or y.strides[-1] != other.strides[1]):
        return False
    sizes = (1, 1, 1, channels)
    parts = [moved(t, sizes, (0, 0, 0, step)) for t, step in (
        (d.c_tensor, d.c_tensor.strides[-1]),
        (node.tensor("bias_tensor"), node.tensor("bias_tensor").strides[1]))]
    if any(t.data_type is not y.data_type for t in parts):
        return False
    both = TensorDesc(y.data_type, sizes)
    storage = g.make(both.total_tensor_size_in_bytes)
    g.insert(Node(class_of("ELEMENT_WISE_ADD")(
        a_tensor=parts[0], b_tensor=parts[1], output_tensor=both),
        {"a_tensor": c, "b_tensor": bias, "output_tensor": storage}, node.label))
    g.replace([product], changed(product, {"c_tensor": storage}, c_tensor=moved(
        both, y.sizes, (*[0] * (len(y.sizes) - 1), 1))))
    return True


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
