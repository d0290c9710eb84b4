"""Operators of a graph before they are compiled, for passes to read and replace."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..desc import TensorDesc, tensor_of
from ..layout import Ints, rewalked
from ..operators.base import OperatorDesc, definitions
from ..runtime.traits import DeviceTraits
from .array import described
from .memory import Storage


@dataclass(eq=False)
class Draft:
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

    def slots(self, kind: str) -> Iterator[tuple[str, Storage]]:
        """The slots and storages of the present tensors. ``kind`` is ``input`` or ``output``."""
        return iter(self._slots[kind])

    def tensor(self, slot: str) -> TensorDesc:
        """The description of a present tensor."""
        t = tensor_of(self.desc, slot)
        assert t is not None
        return t

    def number(self, slot: str) -> float | None:
        """The value of a constant that repeats one element, or None."""
        t, storage = self.tensor(slot), self.storages[slot]
        values = storage.root.values
        if values is None or any(s and n > 1 for n, s in zip(t.sizes, t.strides)):
            return None
        raw = values[storage.begin : storage.begin + t.data_type.itemsize]
        return float(raw.view(t.data_type.dtype)[0]) if t.data_type.is_float else None


class Drafts:
    """The operators of a graph in an order in which they can run."""

    def __init__(
        self, drafts: Sequence[Draft], free: Collection[Storage], traits: DeviceTraits,
        room: int = 0,
    ) -> None:
        """``free`` are the storages that are used only inside the graph. ``room`` are the bytes
        that dequantized constants may take."""
        self.traits, self.room = traits, room
        self._at = {d: i for i, d in enumerate(drafts)}
        self._list: list[Draft | None] = list(drafts)
        self._free = {s.root for s in free}
        self._readers: dict[Storage, list[tuple[Draft, str]]] = {}
        self._writers: dict[Storage, list[tuple[Draft, str]]] = {}
        for draft in drafts:
            self._note(draft)

    def __iter__(self) -> Iterator[Draft]:
        """The operators that are left. They may be replaced during the iteration."""
        for i in range(len(self._list)):
            draft = self._list[i]
            if draft is not None:
                yield draft

    def _note(self, draft: Draft) -> None:
        for kind, table in (("input", self._readers), ("output", self._writers)):
            for slot, storage in draft.slots(kind):
                table.setdefault(storage.root, []).append((draft, slot))

    def _forget(self, draft: Draft) -> None:
        for table in (self._readers, self._writers):
            for storage in {s.root for s in draft.storages.values()}:
                if storage in table:
                    table[storage] = [(d, slot) for d, slot in table[storage] if d is not draft]

    def free(self, storage: Storage) -> Storage:
        """Note that a new storage is used only inside the graph."""
        self._free.add(storage)
        return storage

    def place(self, draft: Draft | None) -> int:
        """The position of an operator in the order; -1 for none."""
        return -1 if draft is None else self._at[draft]

    def has(self, draft: Draft) -> bool:
        return draft in self._at

    def users(self, draft: Draft) -> list[tuple[Draft, str]]:
        """The readers of the first output of ``draft``, and their slots."""
        _, storage = next(draft.slots("output"))
        return self.readers(storage)

    def readers(self, storage: Storage) -> list[tuple[Draft, str]]:
        """The operators that read a storage, and their slots."""
        return self._readers.get(storage.root, [])

    def only_user(self, draft: Draft) -> tuple[Draft, str] | None:
        """The only reader of the only output of ``draft``, if nothing outside the graph sees it."""
        outputs = list(draft.slots("output"))
        readers = self.users(draft)
        if len(outputs) != 1 or len(readers) != 1 or not self.is_whole(outputs[0][1]):
            return None
        return readers[0]

    def is_whole(self, storage: Storage) -> bool:
        """Whether one operator writes all of it, and nothing outside the graph sees it."""
        return storage.root in self._free and storage.begin == 0 and (
            len(self._writers.get(storage.root, [])) == 1)

    def maker(self, draft: Draft, slot: str) -> Draft | None:
        """The operator that writes all of the input in a slot, or None."""
        storage = draft.storages.get(slot)
        if storage is None or storage.begin:
            return None
        writers = self._writers.get(storage.root, [])
        return writers[0][0] if len(writers) == 1 else None

    def is_given(self, draft: Draft, slot: str) -> bool:
        """Whether no operator of the graph writes an input."""
        return not self._writers.get(draft.storages[slot].root)

    def replace(self, old: Sequence[Draft], new: Draft, *, first: bool = False) -> None:
        """Put ``new`` in the place of the last of ``old``, or of the ``first``."""
        at = (min if first else max)(self._at[d] for d in old)
        for draft in old:
            self._forget(draft)
            self._list[self._at.pop(draft)] = None
        self._list[at] = new
        self._at[new] = at
        self._note(new)

    def insert(self, draft: Draft) -> None:
        """Put ``draft``, which does not read results of others, before all others."""
        self._list.insert(0, draft)
        self._at = {d: i for i, d in enumerate(self._list) if d is not None}
        self._note(draft)

    def remove(self, draft: Draft) -> None:
        """Remove ``draft``, whose work others do."""
        self._forget(draft)
        self._list[self._at.pop(draft)] = None

    def without_dead(self) -> list[Draft]:
        """The operators that have an output which is read, or seen from outside."""
        kept: list[Draft] = []
        for draft in reversed(self._list):
            if draft is None:
                continue
            outputs = [s.root for _, s in draft.slots("output")]
            if all(s in self._free and not self._readers.get(s) for s in outputs):
                self._forget(draft)
            else:
                kept.append(draft)
        return kept[::-1]


def seen_as(draft: Draft, slot: str, other: str, like: TensorDesc) -> TensorDesc | None:
    """The tensor in slot ``other``, walked in the order of ``like``; None if strides cannot do
    that.

    ``like`` describes the memory in ``slot`` of an elementwise operator, as its maker sees it.
    """
    seen, t = draft.tensor(slot), draft.tensor(other)
    if seen.data_type is not like.data_type:
        return None
    strides = rewalked(seen.sizes, seen.strides, t.strides, like.sizes, like.strides)
    return None if strides is None else moved(t, like.sizes, strides)


def moved(t: TensorDesc, sizes: Ints, strides: Ints) -> TensorDesc:
    """A tensor of the same memory under other sizes and strides."""
    return described(t.data_type, sizes, strides, t.guaranteed_base_offset_alignment)


def changed(draft: Draft, storages: dict[str, Storage | None], **fields: Any) -> Draft:
    """The draft with other fields, and with other storages in some slots."""
    kept = {s: x for s, x in (draft.storages | storages).items() if x is not None}
    return Draft(replace(draft.desc, **fields), kept, draft.label)


# Questions that several passes ask

SUMS = ("ELEMENT_WISE_ADD", "ELEMENT_WISE_ADD1")
OTHER = {"a_tensor": "b_tensor", "b_tensor": "a_tensor"}
"""The other operand's slot."""


def has_scale_bias(draft: Draft) -> bool:
    return getattr(draft.desc, "scale_bias", None) is not None


def fused_by(draft: Draft) -> Any:
    return getattr(draft.desc, "fused_activation", None)


def output_of(draft: Draft) -> TensorDesc:
    return draft.tensor("output_tensor")


def class_of(name: str) -> Any:
    return definitions()["DML_OPERATOR_" + name].desc_class


def next_user(g: Drafts, draft: Draft, names: Collection[str]) -> tuple[Draft, str] | None:
    """The only user, if it is one of ``names`` and reads the result in the layout it was
    written."""
    user = g.only_user(draft)
    if user is None or user[0].name not in names:
        return None
    slot, _ = next(draft.slots("output"))
    return user if alike(draft.tensor(slot), user[0].tensor(user[1])) else None


def alike(x: TensorDesc, y: TensorDesc) -> bool:
    """Whether both walk memory in the same way."""
    return (x.data_type, x.sizes) == (y.data_type, y.sizes) and all(
        a == b for a, b, n in zip(x.strides, y.strides, x.sizes) if n > 1)


def factor_of(draft: Draft, slot: str) -> float | None:
    """The number that ``slot`` is multiplied by, or None. Of a division, the reciprocal."""
    if draft.name not in ("ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_DIVIDE"):
        return None
    number = draft.number(OTHER[slot])
    if number is None or draft.name == "ELEMENT_WISE_MULTIPLY":
        return number
    return 1 / number if slot == "a_tensor" and number else None
