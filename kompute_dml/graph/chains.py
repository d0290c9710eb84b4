"""A pass over a graph's operators: chains of elementwise operators become one operator."""

from __future__ import annotations

from typing import Any

from ..desc import TensorDesc
from ..dtypes import DataType
from ..lowering.activation import Step
from ..operators import chain
from .draft import Draft, Drafts, seen_as
from .memory import Storage


def fuse_chains(g: Drafts) -> None:
    """Fuse chains. Each begins with its last operator and grows backwards."""
    for last in reversed(list(g)):
        if g.has(last) and chain.is_step(last.desc):
            _Chain(g, last).fuse()


class _Chain:
    """Elementwise operators that lead to one element of the last one's output."""

    def __init__(self, g: Drafts, last: Draft) -> None:
        self._g = g
        self.drafts = [last]
        """The operators, the last one first. Each comes after all of its readers."""
        self._seen = {last: last.tensor("output_tensor")}
        """The output of each operator, described in the order of the last operator's elements."""

    def fuse(self) -> None:
        if self._seen[self.drafts[0]].data_type not in (DataType.FLOAT32, DataType.FLOAT16):
            return
        while (more := self._next()) is not None:
            self.drafts.append(more)
        while len(self.drafts) > 1:
            made = self._made()
            if made is not None:
                self._g.replace(self.drafts, made)
                return
            del self._seen[self.drafts.pop()]

    def _next(self) -> Draft | None:
        """Another operator whose only readers are in the chain and read the same element."""
        if len(self.drafts) == chain.MOST_STEPS:
            return None
        for draft in self.drafts:
            for slot, _ in draft.slots("input"):
                maker = self._g.maker(draft, slot)
                if maker is not None and maker not in self._seen and self._fits(maker):
                    return maker
        return None

    def _fits(self, maker: Draft) -> bool:
        if not chain.is_step(maker.desc):
            return False
        if not self._g.is_whole(maker.storages["output_tensor"]):
            return False
        places = []
        for user, slot in self._g.users(maker):
            if user not in self._seen or user.storages[slot].begin:
                return False
            places.append(self._place(user, slot))
        first = places[0]
        if first is None or any(p != first for p in places):
            return False
        if any(seen_as(maker, "output_tensor", slot, first) is None
               for slot, _ in maker.slots("input")):
            return False
        self._seen[maker] = first
        return True

    def _place(self, draft: Draft, slot: str) -> TensorDesc | None:
        """An input, described in the order of the last operator's elements."""
        return seen_as(draft, "output_tensor", slot, self._seen[draft])

    def _made(self) -> Draft | None:
        """The chain as one operator. None where it exceeds the limits of that operator."""
        order = self.drafts[::-1]
        numbers: dict[Storage, int] = {}
        """The source that each result is for later steps."""
        tensors: list[tuple[Storage, TensorDesc]] = []
        steps: list[Step] = []
        for draft in order:
            sources: list[int | float] = []
            for slot, storage in draft.slots("input"):
                number = draft.number(slot)
                place = self._place(draft, slot)
                if storage.root in numbers:
                    sources.append(numbers[storage.root])
                elif number is not None:
                    sources.append(number)
                elif place is None or place.data_type is not self._seen[draft].data_type:
                    return None
                else:
                    same = [i for i, (s, t) in enumerate(tensors) if t == place and (
                        s.root, s.begin) == (storage.root, storage.begin)]
                    sources.append(same[0] if same else len(tensors))
                    tensors += [] if same else [(storage, place)]
            made = chain.steps_of(draft.desc, sources, chain.MOST_TENSORS + len(steps))
            if made is None:
                return None
            steps += made
            numbers[draft.storages["output_tensor"].root] = chain.MOST_TENSORS + len(steps) - 1
        if len(tensors) > chain.MOST_TENSORS or len(steps) > chain.MOST_STEPS or (
                sum(len(s.words) for s in steps) > chain.MOST_VALUES):
            return None
        last = self.drafts[0]
        fields: dict[str, Any] = dict.fromkeys(chain.SLOTS)
        storages = {"output_tensor": last.storages["output_tensor"]}
        for slot, (storage, place) in zip(chain.SLOTS, tensors):
            storages[slot], fields[slot] = storage, place
        desc = chain.ChainDesc(output_tensor=self._seen[last], steps=tuple(steps), **fields)
        return Draft(desc, storages, last.label)
