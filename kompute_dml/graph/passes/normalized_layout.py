"""A normalization reads an image in the layout that it finds, and writes it in this layout."""

from __future__ import annotations

from ...desc import TensorDesc
from ...layout import extent, is_packed, rewalked
from ..node import (
    COPIES,
    Node,
    Nodes,
    Reading,
    alike,
    changed,
    has_scale_bias,
    moved,
    output_of,
    seen_as,
)
from ..rewrite import rewrite

_NORMS = ("MEAN_VARIANCE_NORMALIZATION1", "MEAN_VARIANCE_NORMALIZATION2")
_READERS = (*COPIES, "CONVOLUTION")


@rewrite("normalized_layout",
         "a normalization reads an image whose channels lie side by side as it is. It writes it "
         "in the same order for convolutions", 155)
def normalized_layout(g: Nodes) -> None:
    for node in g:
        if node.name in _NORMS and "addend_tensor" not in node.storages:
            _hand_on(g, _read(g, node))


def _read(g: Nodes, node: Node) -> Node:
    """Let a normalization read what is copied for it."""
    copy, x = g.maker(node, "input_tensor"), node.tensor("input_tensor")
    if copy is None or copy.name not in COPIES or has_scale_bias(copy) or (
            g.only_user(copy) != (node, "input_tensor")):
        return node
    seen = seen_as(copy, "output_tensor", "input_tensor", x)
    if seen is None or not _is_turned(seen):
        return node
    new = _in_order(
        changed(node, {"input_tensor": copy.storages["input_tensor"]}, input_tensor=seen))
    g.replace([copy, node], new)
    return new


def _in_order(node: Node) -> Node:
    """The same with its axes in the order in which they lie in the input's memory."""
    axes = sorted(node.desc.axes)
    x = node.tensor("input_tensor")
    order = [*range(x.dimension_count)]
    for axis, other in zip(axes, sorted(axes, key=lambda a: -x.strides[a])):
        order[axis] = other
    return changed(node, {}, **{slot: moved(
        t := node.tensor(slot), tuple(t.sizes[i] for i in order),
        tuple(t.strides[i] for i in order)) for slot in node.storages})


def _is_turned(x: TensorDesc) -> bool:
    """Whether it fills its memory in another order than that of its dimensions."""
    return extent(x.sizes, x.strides) == x.element_count and not is_packed(x.sizes, x.strides)


def _hand_on(g: Nodes, node: Node) -> None:
    """Let a normalization write the layout that it reads, if convolutions read the result."""
    x, y, storage = node.tensor("input_tensor"), output_of(node), node.storages["output_tensor"]
    if not g.is_whole(storage) or alike(x, y) or extent(x.sizes, x.strides) != x.element_count:
        return
    readings: list[Reading] = []
    for user, slot in g.readers(storage):
        seen = user.tensor(slot)
        strides = rewalked(y.sizes, y.strides, x.strides, seen.sizes, seen.strides)
        if strides is None or user.name not in _READERS or user.storages[slot].begin:
            return
        readings.append((user, slot, storage, moved(seen, seen.sizes, strides)))
    g.reread(readings)
    g.replace([node], changed(node, {}, output_tensor=moved(y, y.sizes, x.strides)))
