"""Operators write their results directly to their parts of a joined tensor."""

from __future__ import annotations

from ...desc import MINIMUM_ALIGNMENT, TensorDesc
from ...layout import rewalked
from ..array import described
from ..memory import Storage
from ..node import Node, Nodes, changed, class_of, is_transposed, moved, output_of, takes_strides
from ..rewrite import rewrite


@rewrite("concat_in_place", "parts of a joined tensor are written in place", 170)
def concat_in_place(g: Nodes) -> None:
    for join in g:
        if join.name != "JOIN":
            continue
        parts = list(join.slots("input"))
        if g.folds and all(_is_made_once(g, join, slot) for slot, _ in parts):
            continue  # the whole is a constant, and a part of a tensor is none
        replaced = [_in_place(g, join, slot, at) for (slot, _), at in zip(parts, _begins(join))]
        left = [i for i, new in enumerate(replaced) if new is None]
        if len(left) > 1 or len(left) == len(parts):
            continue
        for (slot, _), new in zip(parts, replaced):
            if new is not None and (maker := g.maker(join, slot)) is not None:
                g.replace([maker], new)
        if left:
            slot, storage = parts[left[0]]
            y, into = _part(join, slot, _begins(join)[left[0]])
            copy = class_of("ELEMENT_WISE_IDENTITY")(
                input_tensor=join.tensor(slot), output_tensor=y, scale_bias=None)
            g.replace([join], Node(copy, {"input_tensor": storage, "output_tensor": into},
                                    join.label))
        else:
            g.remove(join)


def _is_made_once(g: Nodes, node: Node, slot: str) -> bool:
    """Whether an input follows from constants that are not much smaller."""
    storage, maker = node.storages[slot], g.maker(node, slot)
    if storage.root.constant or maker is None:
        return storage.root.constant
    inputs = list(maker.slots("input"))
    return storage.nbytes <= 2 * sum(s.nbytes for _, s in inputs) and all(
        _is_made_once(g, maker, s) for s, _ in inputs)


def _begins(join: Node) -> list[int]:
    """The first byte of each part in the joined tensor."""
    d = join.desc
    y = d.output_tensor
    lengths = [t.sizes[d.axis] for t in d.input_tensors]
    return [sum(lengths[:i]) * y.strides[d.axis] * y.data_type.itemsize
            for i in range(len(lengths))]


def _part(join: Node, slot: str, begin: int) -> tuple[TensorDesc, Storage]:
    """The description of a part inside the joined tensor, and its storage."""
    y, storage = output_of(join), join.storages["output_tensor"]
    at = (storage.begin + begin) % MINIMUM_ALIGNMENT
    return described(y.data_type, join.tensor(slot).sizes, y.strides, at & -at), (
        storage.part(begin) if begin else storage)


def _in_place(g: Nodes, join: Node, slot: str, begin: int) -> Node | None:
    """The operator of a part, with its output inside the joined tensor; None where it cannot."""
    maker = g.maker(join, slot)
    if maker is None or g.only_user(maker) != (join, slot) or not takes_strides(maker):
        return None
    field, _ = next(maker.slots("output"))
    target, seen = maker.tensor(field), join.tensor(slot)
    part, storage = _part(join, slot, begin)
    strides = rewalked(seen.sizes, seen.strides, part.strides, target.sizes, target.strides)
    if strides is None or target.data_type is not part.data_type or begin % 4:
        return None
    y = moved(part, target.sizes, strides)
    if is_transposed(target, y):
        return None
    return changed(maker, {field: storage}, **{field: y})
