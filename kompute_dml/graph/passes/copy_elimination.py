"""Copies go: an operator writes directly to the output of the copy after it."""

from __future__ import annotations

from ..node import (
    COPIES,
    Nodes,
    changed,
    has_scale_bias,
    is_transposed,
    seen_as,
    takes_strides,
)
from ..rewrite import rewrite


@rewrite("copy_elimination", "an operator writes to where its result would be copied", 40)
def copy_elimination(g: Nodes) -> None:
    for node in g:
        while (user := g.only_user(node)) is not None:
            copy, _ = user
            if copy.name not in COPIES or has_scale_bias(copy) or not takes_strides(node):
                break
            slot, _ = next(node.slots("output"))
            y = seen_as(copy, "input_tensor", "output_tensor", node.tensor(slot))
            if y is None or y.data_type is not node.tensor(slot).data_type or (
                    is_transposed(node.tensor(slot), y)):
                break
            new = changed(node, {slot: copy.storages["output_tensor"]}, **{slot: y})
            g.replace([node, copy], new)
            node = new
