"""The operators of a graph before they are compiled: passes read and replace these nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..desc import TensorDesc, tensor_of
from ..layout import Ints, extent, rewalked
from ..lowering.plan import Target
from ..operators.base import OperatorDesc, definitions
from .array import described
from .memory import Storage


@dataclass(eq=False)
class Node:
    """An operator's description, and the storage of each of its tensors."""

    desc: OperatorDesc
    storages: dict[str, Storage]
    """Storages by slot. Absent tensors have none."""
    label: str = ""
    """Its name in errors."""

    def __post_init__(self) -> None:
        # Each pass asks for these, so they are found once.
        definition = self.desc.operator
        self.name = definition.short_name
        """The operator's name without DirectML's prefix."""
        self._slots: dict[str, list[tuple[str, Storage]]] = {"input": [], "output": []}
        for f in definition.slots(self.desc):
            if (storage := self.storages.get(f.snake)) is not None:
                self._slots[f.kind].append((f.snake, storage))

    def over(self, storages: dict[str, Storage], label: str) -> Node:
        """The same operator over other storages in its slots. It takes a fifth of the time that a
        new one does."""
        copy = object.__new__(Node)
        copy.desc, copy.name, copy.storages, copy.label = self.desc, self.name, storages, label
        copy._slots = {kind: [(slot, storages[slot]) for slot, _ in pairs]
                       for kind, pairs in self._slots.items()}
        return copy

    def slots(self, kind: str) -> Iterator[tuple[str, Storage]]:
        """The slots and storages of the present tensors. ``kind`` is ``input`` or ``output``."""
        return iter(self._slots[kind])

    def tensor(self, slot: str) -> TensorDesc:
        """The description of a present tensor."""
        t = tensor_of(self.desc, slot)
        assert t is not None
        return t

    def number(self, slot: str) -> float | None:
        """The number that all elements of a constant are known to be, or None."""
        t, storage = self.tensor(slot), self.storages[slot]
        values = storage.root.values
        if values is None or not t.data_type.is_float:
            return None
        nbytes = extent(t.sizes, t.strides) * t.data_type.itemsize
        elements = values[storage.begin : storage.begin + nbytes].view(t.data_type.dtype)
        return float(elements[0]) if (elements == elements[0]).all() else None


LITTLE = 1 << 20
"""Bytes of a constant that is computed from smaller ones, or from none."""
Reading = tuple[Node, str, Storage, "TensorDesc | None"]
"""An operator, one of its slots, the storage that it shall read there, and the tensor that it
shall see, or None for the one that it sees."""


class Nodes:
    """The operators of a graph in an order in which they can run."""

    def __init__(
        self, nodes: Sequence[Node], free: Collection[Storage], target: Target,
        make: Callable[[int], Storage] | None = None, room: int = 0, *, numbers: bool = False,
    ) -> None:
        """``free`` are the storages that are used only inside the graph. ``make`` makes more of
        them, of so many bytes, if operators of constants run when the plan is built. ``room`` are
        the bytes that dequantized constants may take then."""
        self.target, self.traits = target, target.traits
        self.folds = make is not None
        """Whether operators of constants run once."""
        self.room = room if self.folds else 0
        self.numbers = self.folds and numbers
        """Whether operators without inputs run once, too."""
        self._make = make
        self._at = {d: i for i, d in enumerate(nodes)}
        self._nodes = dict(enumerate(nodes))
        """Those that are left, by their places."""
        self._first, self._end = 0, len(nodes)
        """The range of the places."""
        self._free = {s.root for s in free}
        self._readers: _Uses = {}
        self._writers: _Uses = {}
        for node in nodes:
            self._note(node)

    def __iter__(self) -> Iterator[Node]:
        """The operators that are left. They may be replaced during the iteration."""
        for i in range(self._first, self._end):
            node = self._nodes.get(i)
            if node is not None:
                yield node

    def _note(self, node: Node) -> None:
        for kind, table in (("input", self._readers), ("output", self._writers)):
            for slot, storage in node.slots(kind):
                table.setdefault(storage.root, {}).setdefault(node, []).append(slot)

    def _forget(self, node: Node) -> None:
        for table in (self._readers, self._writers):
            for storage in {s.root for s in node.storages.values()}:
                table.get(storage, {}).pop(node, None)

    def make(self, nbytes: int) -> Storage:
        """A new storage, which is used only inside the graph. Only where the graph ``folds``."""
        assert self._make is not None
        storage = self._make(nbytes)
        self._free.add(storage)
        return storage

    def place(self, node: Node | None) -> int:
        """The position of an operator in the order. None comes before all."""
        return self._first - 1 if node is None else self._at[node]

    def has(self, node: Node) -> bool:
        return node in self._at

    def users(self, node: Node) -> list[tuple[Node, str]]:
        """The readers of the first output of ``node``, and their slots."""
        _, storage = next(node.slots("output"))
        return self.readers(storage)

    def readers(self, storage: Storage) -> list[tuple[Node, str]]:
        """The operators that read a storage, and their slots."""
        return _uses(self._readers, storage)

    def writers(self, storage: Storage) -> list[tuple[Node, str]]:
        """The operators that write a storage, and their slots."""
        return _uses(self._writers, storage)

    def only_user(self, node: Node) -> tuple[Node, str] | None:
        """The only reader of the only output of ``node``, if nothing outside the graph sees it."""
        (_, storage), *more = node.slots("output")
        if more or not self.is_whole(storage):
            return None
        return _only(self._readers, storage)

    def is_whole(self, storage: Storage) -> bool:
        """Whether one operator writes all of it, and nothing outside the graph sees it."""
        root = storage.root
        return root in self._free and (root is storage or storage.begin == 0) and (
            _only(self._writers, root) is not None)

    def maker(self, node: Node, slot: str) -> Node | None:
        """The operator that writes all of the input in a slot, or None."""
        storage = node.storages.get(slot)
        if storage is None or storage.begin:
            return None
        writer = _only(self._writers, storage)
        return None if writer is None else writer[0]

    def is_given(self, node: Node, slot: str) -> bool:
        """Whether no operator of the graph writes an input."""
        return not self._writers.get(node.storages[slot].root)

    def replace(self, old: Sequence[Node], new: Node, *, first: bool = False) -> None:
        """Put ``new`` in the place of the last of ``old``, or of the ``first``."""
        at = (min if first else max)(self._at[d] for d in old)
        for node in old:
            self.remove(node)
        self._nodes[at] = new
        self._at[new] = at
        self._note(new)

    def reread(self, readings: Iterable[Reading]) -> None:
        """Let operators read other storages, or see them in other ways.

        An operator may read in several slots. It is replaced once.
        """
        storages: dict[Node, dict[str, Storage | None]] = {}
        tensors: dict[Node, dict[str, TensorDesc]] = {}
        for user, slot, storage, seen in readings:
            storages.setdefault(user, {})[slot] = storage
            if seen is not None:
                tensors.setdefault(user, {})[slot] = seen
        for user, inputs in storages.items():
            self.replace([user], changed(user, inputs, **tensors.get(user, {})))

    def insert(self, node: Node) -> None:
        """Put ``node``, which does not read results of others, before all others."""
        self._first -= 1
        self._nodes[self._first] = node
        self._at[node] = self._first
        self._note(node)

    def remove(self, node: Node) -> None:
        """Remove ``node``, whose work others do."""
        self._forget(node)
        del self._nodes[self._at.pop(node)]

    def without_dead(self) -> list[Node]:
        """The operators that have an output which is read, or seen from outside."""
        kept: list[Node] = []
        for node in reversed(list(self)):
            outputs = [s.root for _, s in node.slots("output")]
            if all(s in self._free and not self._readers.get(s) for s in outputs):
                self._forget(node)
            else:
                kept.append(node)
        return kept[::-1]


_Uses = dict[Storage, dict[Node, list[str]]]
"""The operators that read or write each storage, and in which slots. A storage of constants may
have thousands of readers."""


def _uses(uses: _Uses, storage: Storage) -> list[tuple[Node, str]]:
    return [(d, slot) for d, slots in uses.get(storage.root, {}).items() for slot in slots]


def _only(uses: _Uses, storage: Storage) -> tuple[Node, str] | None:
    """The only use of a storage, or None."""
    users = uses.get(storage.root)
    if users is None or len(users) != 1:
        return None
    ((node, slots),) = users.items()
    return (node, slots[0]) if len(slots) == 1 else None


def seen_as(node: Node, slot: str, other: str, like: TensorDesc) -> TensorDesc | None:
    """The tensor in slot ``other``, walked in the order of ``like``; None if strides cannot do
    that.

    ``like`` describes the memory in ``slot`` of an elementwise operator, as its maker sees it.
    """
    seen, t = node.tensor(slot), node.tensor(other)
    if seen.data_type is not like.data_type:
        return None
    strides = rewalked(seen.sizes, seen.strides, t.strides, like.sizes, like.strides)
    return None if strides is None else moved(t, like.sizes, strides)


def moved(t: TensorDesc, sizes: Ints, strides: Ints) -> TensorDesc:
    """A tensor of the same memory under other sizes and strides."""
    return described(t.data_type, sizes, strides, t.guaranteed_base_offset_alignment)


def changed(node: Node, storages: dict[str, Storage | None], **fields: object) -> Node:
    """The operator with other fields, and with other storages in some slots."""
    kept = {s: x for s, x in (node.storages | storages).items() if x is not None}
    return Node(node.desc.changed(**fields), kept, node.label)


# Questions that several passes ask

SUMS = ("ELEMENT_WISE_ADD", "ELEMENT_WISE_ADD1")
OTHER = {"a_tensor": "b_tensor", "b_tensor": "a_tensor"}
"""The other operand's slot."""
COPIES = ("ELEMENT_WISE_IDENTITY", "ACTIVATION_IDENTITY")


def has_scale_bias(node: Node) -> bool:
    return getattr(node.desc, "scale_bias", None) is not None


def fused_by(node: Node) -> Any:
    return getattr(node.desc, "fused_activation", None)


def output_of(node: Node) -> TensorDesc:
    return node.tensor("output_tensor")


def class_of(name: str) -> Any:
    return definitions()["DML_OPERATOR_" + name].desc_class


def next_user(g: Nodes, node: Node, names: Collection[str]) -> tuple[Node, str] | None:
    """The only user, if it is one of ``names`` and reads the result in the layout it was
    written."""
    user = g.only_user(node)
    if user is None or user[0].name not in names:
        return None
    slot, _ = next(node.slots("output"))
    return user if alike(node.tensor(slot), user[0].tensor(user[1])) else None


def alike(x: TensorDesc, y: TensorDesc) -> bool:
    """Whether both walk memory in the same way."""
    return (x.data_type, x.sizes) == (y.data_type, y.sizes) and all(
        a == b for a, b, n in zip(x.strides, y.strides, x.sizes) if n > 1)


def factor_of(node: Node, slot: str) -> float | None:
    """The number that ``slot`` is multiplied by, or None. Of a division, the reciprocal."""
    if node.name not in ("ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_DIVIDE"):
        return None
    number = node.number(OTHER[slot])
    if number is None or node.name == "ELEMENT_WISE_MULTIPLY":
        return number
    return 1 / number if slot == "a_tensor" and number else None


def takes_strides(node: Node) -> bool:
    """Whether it has one output, which may have any strides."""
    outputs = [f for f in node.desc.operator.spec.outputs if not f.optional]
    return len(outputs) == 1 and not outputs[0].is_array and node.name not in COPIES


def is_transposed(x: TensorDesc, y: TensorDesc) -> bool:
    """Whether a contiguous dimension of ``x`` has gaps in ``y``, which is slow to write."""
    return any(a == 1 and b != 1 and n > 1 for a, b, n in zip(x.strides, y.strides, x.sizes))
