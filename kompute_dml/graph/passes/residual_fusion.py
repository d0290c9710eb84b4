"""A normalization adds what would be summed before it, and writes the sum where others read it."""

from __future__ import annotations

from ...operators.base import widened
from ...spec import Field
from ..node import OTHER, Node, Nodes, alike, seen_as
from ..rewrite import rewrite

_RESIDUAL = (Field("AddendTensor", "input", "TENSOR_DESC", True),
             Field("TotalTensor", "output", "TENSOR_DESC", True))


@rewrite("residual_fusion", "a normalization takes the sum before it", 140)
def residual_fusion(g: Nodes) -> None:
    for node in g:
        if not node.name.startswith("MEAN_VARIANCE_NORMALIZATION"):
            continue
        total = g.maker(node, "input_tensor")
        if total is None or total.name != "ELEMENT_WISE_ADD":
            continue
        x = node.tensor("input_tensor")
        operands = [seen_as(total, "output_tensor", slot, x) for slot in OTHER]
        if not all(t is not None and alike(t, x) for t in operands):
            continue
        alone = g.only_user(total) is not None
        others = [s for s, _ in node.slots("input") if s != "input_tensor"]
        if not alone and not all(g.is_given(node, s) for s in others):
            continue  # readers of the sum might come earlier
        values = {f.snake: getattr(node.desc, f.snake) for f in node.desc.operator.spec.fields}
        values |= {"input_tensor": operands[0], "addend_tensor": operands[1],
                   "total_tensor": None if alone else seen_as(
                       total, "output_tensor", "output_tensor", x)}
        storages = node.storages | {"input_tensor": total.storages["a_tensor"],
                                     "addend_tensor": total.storages["b_tensor"]}
        if not alone:
            storages["total_tensor"] = total.storages["output_tensor"]
        desc = widened(type(node.desc), *_RESIDUAL)(**values)
        g.replace([total, node], Node(desc, storages, node.label), first=not alone)
