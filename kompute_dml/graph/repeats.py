"""A pass over a graph's operators: what is computed twice of the same values is computed once."""

from __future__ import annotations

from typing import Any

from ..operators.base import bits
from .draft import Draft, Drafts, changed
from .memory import Storage


def repeats(g: Drafts) -> None:
    """Let the readers of an operator's results read those of an equal one, which came before."""
    known: dict[Any, Draft] = {}
    for draft in g:
        outputs = list(draft.slots("output"))
        if not all(g.is_whole(storage) for _, storage in outputs):
            continue
        key = bits(draft.desc), *((slot, *_value(s)) for slot, s in draft.slots("input"))
        first = known.setdefault(key, draft)
        if first is draft:
            continue
        for slot, storage in outputs:
            _move_readers(g, storage, first.storages[slot])
        g.remove(draft)


def _value(storage: Storage) -> tuple[Any, int]:
    """Equal for storages of equal values: the same one, or small constants."""
    root = storage.root
    return (root if root.values is None else root.values.tobytes()), storage.begin


def _move_readers(g: Drafts, old: Storage, new: Storage) -> None:
    slots: dict[Draft, dict[str, Storage | None]] = {}
    for user, slot in g.readers(old):
        begin = user.storages[slot].begin
        slots.setdefault(user, {})[slot] = new.part(begin) if begin else new
    for user, storages in slots.items():
        g.replace([user], changed(user, storages))
