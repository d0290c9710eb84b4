"""Operators write their results directly to their parts of a joined tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...desc import MINIMUM_ALIGNMENT, TensorDesc
from ...layout import rewalked
from ..array import described
from ..memory import Storage
from ..node import (
    Node,
    Nodes,
    Reading,
    alike,
    changed,
    class_of,
    is_transposed,
    moved,
    output_of,
    takes_strides,
)
from ..rewrite import rewrite


@rewrite("concat_in_place",
         "parts of a joined tensor are written where they go in it. They may also be the "
         "beginning of other joined tensors", 170)
def concat_in_place(g: Nodes) -> None:
    # The longest of those that begin alike comes last.
    for join in reversed([node for node in g if node.name == "JOIN"]):
        if not g.has(join):
            continue
        parts = list(join.slots("input"))
        if g.folds and all(_is_made_once(g, join, slot) for slot, _ in parts):
            continue  # the whole is a constant, and a part of a tensor is none
        family = [*_beginnings(g, join), join]
        if not _join_in_place(g, family) and len(family) > 1:
            _join_in_place(g, [join])


def _beginnings(g: Nodes, join: Node) -> list[Node]:
    """The joined tensors before ``join`` with which it begins, the shortest first."""
    _, storage = next(join.slots("input"))
    found = {node for node, _ in g.readers(storage) if node.name == "JOIN" and node is not join
             and g.place(node) < g.place(join) and _begins_with(join, node)}
    return sorted(found, key=lambda node: (len(node.desc.input_tensors), g.place(node)))


def _begins_with(join: Node, other: Node) -> bool:
    parts, others = list(join.slots("input")), list(other.slots("input"))
    return join.desc.axis == other.desc.axis and len(others) < len(parts) and all(
        (a.root, a.begin) == (b.root, b.begin) and alike(join.tensor(slot), other.tensor(slot))
        for (slot, a), (_, b) in zip(parts, others))


def _join_in_place(g: Nodes, family: Sequence[Node]) -> bool:
    """Let makers write parts of the last one of a family, which begins with the others. Those that
    cannot are copied: one in the place of each node, and fewer than there were nodes. Returns
    whether that is possible."""
    *shorter, join = family
    slots = [slot for slot, _ in join.slots("input")]
    begins = _begins(join)
    left = [i for i, slot in enumerate(slots)
            if _in_place(g, join, slot, begins[i], family) is None]
    ends = [len(node.desc.input_tensors) for node in family]
    copied = {node: [i for i in left if begin <= i < end]
              for node, begin, end in zip(family, [0, *ends], ends)}
    views = [_seen_in(g, node, join) for node in shorter]
    most = len(family) if shorter else len(slots)
    if any(len(indices) > 1 for indices in copied.values()) or len(left) >= most or None in views:
        return False
    g.reread(reading for readings in views for reading in readings or ())
    for i, slot in enumerate(slots):
        maker = g.maker(join, slot)
        if i not in left and maker is not None:
            new = _in_place(g, join, slot, begins[i], family)
            assert new is not None
            g.replace([maker], new)
    for node, indices in copied.items():
        if indices:
            slot = slots[indices[0]]
            y, into = _part(join, slot, begins[indices[0]])
            copy = class_of("ELEMENT_WISE_IDENTITY")(
                input_tensor=join.tensor(slot), output_tensor=y, scale_bias=None)
            g.replace([node], Node(copy, {
                "input_tensor": join.storages[slot], "output_tensor": into}, node.label))
        else:
            g.remove(node)
    return True


def _seen_in(g: Nodes, node: Node, join: Node) -> list[Reading] | None:
    """The readers of a joined tensor, which shall read the beginning of a longer one; None where
    one of them cannot."""
    y, storage, whole = output_of(node), node.storages["output_tensor"], output_of(join)
    if not g.is_whole(storage) or y.data_type is not whole.data_type:
        return None
    readings: list[Reading] = []
    for user, slot in g.readers(storage):
        seen = user.tensor(slot)
        strides = rewalked(y.sizes, y.strides, whole.strides, seen.sizes, seen.strides)
        if strides is None or user.storages[slot].begin or "[" in slot:
            return None
        readings.append((user, slot, join.storages["output_tensor"],
                         moved(seen, seen.sizes, strides)))
    return readings


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


def _in_place(
    g: Nodes, join: Node, slot: str, begin: int, family: Collection[Node]
) -> Node | None:
    """The operator of a part, with its output inside the joined tensor; None where it cannot.
    Only the ``family`` may read the part, each in one slot."""
    maker = g.maker(join, slot)
    if maker is None or not takes_strides(maker) or not g.is_whole(join.storages[slot]):
        return None
    users = [user for user, _ in g.users(maker)]
    if len({*users}) < len(users) or not {*users} <= {*family}:
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
