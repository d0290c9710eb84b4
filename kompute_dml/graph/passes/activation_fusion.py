"""An operator applies the activation after it to its results (FusedActivation)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...operators.base import definitions
from ..node import Node, Nodes, changed, class_of, fused_by, has_scale_bias, output_of, seen_as
from ..rewrite import rewrite

_CLIPS = ("ELEMENT_WISE_CLIP", "ELEMENT_WISE_CLIP1")
_MORE = {f"DML_OPERATOR_ACTIVATION_{name}" for name in ("HARD_SWISH", "SWISH")}
"""Activations that shaders can fuse, but DirectML's operators cannot."""


@rewrite("activation_fusion",
         "an activation is fused into products, convolutions, sums and normalizations", 150)
def activation_fusion(g: Nodes) -> None:
    for node in g:
        if not _fusing(node).spec.fuses or fused_by(node) is not None:
            continue
        if (user := g.only_user(node)) is None:
            continue
        after = user[0]
        activation = _activation(node, after)
        if activation is None:
            continue
        y = seen_as(after, "input_tensor", "output_tensor", output_of(node))
        if y is None or y.data_type is not output_of(node).data_type:
            continue
        to = {"output_tensor": after.storages["output_tensor"]}
        if node.name == "ELEMENT_WISE_ADD":
            d = node.desc
            add1 = class_of("ELEMENT_WISE_ADD1")(
                a_tensor=d.a_tensor, b_tensor=d.b_tensor, output_tensor=y,
                fused_activation=activation)
            new = Node(add1, node.storages | to, node.label)
        else:
            new = changed(node, dict(to), output_tensor=y, fused_activation=activation)
        g.replace([node, after], new)


def _fusing(node: Node) -> Any:
    """The operator that ``node`` is with an activation."""
    if node.name == "ELEMENT_WISE_ADD":
        return definitions()["DML_OPERATOR_ELEMENT_WISE_ADD1"]
    return node.desc.operator


def _activation(node: Node, after: Node) -> Any:
    """The description of ``after`` without tensors, where ``node`` may fuse it; else None."""
    definition = _fusing(node)
    fused = definition.spec.fuses
    if "output_tensor" not in node.storages or not output_of(node).data_type.is_float:
        return None
    d = after.desc
    if after.name in _CLIPS:
        if "DML_OPERATOR_ELEMENT_WISE_CLIP" not in fused or has_scale_bias(after):
            return None
        low, high = (b if isinstance(b, (int, float)) else b.item() for b in (d.min, d.max))
        return class_of("ELEMENT_WISE_CLIP")(
            input_tensor=None, output_tensor=None, min=float(low), max=float(high))
    name = after.desc.operator.name
    more = () if definition.name.endswith("_ADD1") else _MORE
    if (name not in fused and name not in more) or "SOFTMAX" in name:
        return None
    absent = {f.snake: None for f in after.desc.operator.spec.tensors}
    return replace(after.desc, **absent)
