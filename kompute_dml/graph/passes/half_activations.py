"""Activations in FLOAT32 between CASTs of FLOAT16, as PyTorch writes a softmax of FLOAT16."""

from __future__ import annotations

from ...dtypes import DataType
from ..node import Node, Nodes, changed, has_scale_bias, output_of, seen_as
from ..rewrite import rewrite


@rewrite("half_activations",
         "an activation or a softmax in FLOAT32 between CASTs of FLOAT16 is one of FLOAT16. It "
         "computes in FLOAT32 all the same", 34)
def half_activations(g: Nodes) -> None:
    for node in g:
        if not node.name.startswith("ACTIVATION_") or node.storages.keys() != {
                "input_tensor", "output_tensor"} or has_scale_bias(node):
            continue
        x, y = node.tensor("input_tensor"), output_of(node)
        before, after = g.maker(node, "input_tensor"), g.only_user(node)
        if before is None or after is None or not _widens(before) or not _narrows(after[0]):
            continue
        half_x = seen_as(before, "output_tensor", "input_tensor", x)
        half_y = seen_as(after[0], "input_tensor", "output_tensor", y)
        if half_x is not None and half_y is not None:
            alone = g.only_user(before) == (node, "input_tensor")
            old = [before, node, after[0]] if alone else [node, after[0]]
            g.replace(old, changed(node, {
                "input_tensor": before.storages["input_tensor"],
                "output_tensor": after[0].storages["output_tensor"],
            }, input_tensor=half_x, output_tensor=half_y))


def _widens(node: Node) -> bool:
    return node.name == "CAST" and (
        node.tensor("input_tensor").data_type is DataType.FLOAT16
        and output_of(node).data_type is DataType.FLOAT32)


def _narrows(node: Node) -> bool:
    return node.name == "CAST" and (
        node.tensor("input_tensor").data_type is DataType.FLOAT32
        and output_of(node).data_type is DataType.FLOAT16)
