"""What only moves elements becomes strides of its readers."""

from __future__ import annotations

from ...desc import MINIMUM_ALIGNMENT, TensorDesc
from ...layout import Ints, rewalked
from ..node import Node, Nodes, Reading
from ..rewrite import rewrite


@rewrite("view_propagation",
         "slices, splits, tiles and transposes become strides of their readers, also in ONNX "
         "models", 30)
def view_propagation(g: Nodes) -> None:
    """Let readers of slices, splits and tiles of one element read the input."""
    for node in g:
        views = _views(node)
        if views is None or node.storages["input_tensor"].root.constant:
            continue
        readers = [_readers(g, node, slot, *view) for slot, view in views.items()]
        if all(r is not None for r in readers):
            g.reread(r for readings in readers for r in readings or ())


def _views(node: Node) -> dict[str, tuple[int, Ints]] | None:
    """The outputs of an operator that only moves elements: where each begins in the input, in
    elements, and the input's strides in the output's dimensions. None for other operators."""
    d = node.desc
    if node.name == "SPLIT":
        begin, views = 0, {}
        for slot, _ in node.slots("output"):
            views[slot] = begin * d.input_tensor.strides[d.axis], d.input_tensor.strides
            begin += node.tensor(slot).sizes[d.axis]
        return views
    if node.name in ("SLICE", "SLICE1"):
        first = node.name == "SLICE"
        begins = d.offsets if first else d.input_window_offsets
        steps = d.strides if first else d.input_window_strides
        if any(s < 1 for s in steps):
            return None
        strides = d.input_tensor.strides
        return {"output_tensor": (sum(b * s for b, s in zip(begins, strides)),
                                  tuple(a * b for a, b in zip(strides, steps)))}
    if node.name == "TILE" and all(n == 1 or m == 1 for n, m in zip(
            d.input_tensor.sizes, d.repeats)):
        return {"output_tensor": (0, tuple(s if m == 1 else 0 for s, m in zip(
            d.input_tensor.strides, d.repeats)))}
    return None


def _readers(
    g: Nodes, node: Node, slot: str, begin: int, strides: Ints
) -> list[Reading] | None:
    """The readers of an output with the storage and the tensor that they read instead. None where
    one of them cannot, or would read with gaps what was contiguous."""
    y, x = node.tensor(slot), node.storages["input_tensor"]
    at = begin * y.data_type.itemsize
    if at % 4 or not g.is_whole(node.storages[slot]):
        return None
    if any(a == 1 and b != 1 and n > 1 for a, b, n in zip(y.strides, strides, y.sizes)):
        return None
    aligned = (x.begin + at) % MINIMUM_ALIGNMENT
    readings: list[Reading] = []
    for user, field in g.readers(node.storages[slot]):
        seen = user.tensor(field)
        to = rewalked(y.sizes, y.strides, strides, seen.sizes, seen.strides)
        if to is None or user.storages[field].begin or "[" in field or (
                seen.data_type is not y.data_type):
            return None
        readings.append((user, field, x.part(at) if at else x, TensorDesc(
            y.data_type, seen.sizes, to, guaranteed_base_offset_alignment=aligned & -aligned)))
    return readings
