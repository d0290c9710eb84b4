"""Chains of elementwise operators become one operator."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...lowering.activation import ActivationStep
from ...operators import chain
from ..memory import Storage
from ..node import Node, Nodes, seen_as
from ..rewrite import rewrite


@rewrite("elementwise_fusion",
         "elementwise operators, one after the other, are one dispatch", 160)
def elementwise_fusion(g: Nodes) -> None:
    """Fuse chains. Each begins with its last operator and grows backwards."""
    for last in reversed(list(g)):
        if g.has(last) and chain.is_step(last.desc):
            _Chain(g, last).fuse()


class _Chain:
    """Elementwise operators that lead to one element of the last one's output."""

    def __init__(self, g: Nodes, last: Node) -> None:
        self._g = g
        self.nodes = [last]
        """The operators, the last one first. Each comes after all of its readers."""
        self._seen = {last: last.tensor("output_tensor")}
        """The output of each operator, described in the order of the last operator's elements."""

    def fuse(self) -> None:
        if self._seen[self.nodes[0]].data_type not in (DataType.FLOAT32, DataType.FLOAT16):
            return
        while (more := self._next()) is not None:
            self.nodes.append(more)
        while len(self.nodes) > 1:
            fused = self._made()
            if fused is not None:
                self._g.replace(self.nodes, fused)
                return
            del self._seen[self.nodes.pop()]

    def _next(self) -> Node | None:
        """Another operator whose only readers are in the chain and read the same element."""
        if len(self.nodes) == chain.MOST_STEPS:
            return None
        for node in self.nodes:
            for slot, _ in node.slots("input"):
                maker = self._g.maker(node, slot)
                if maker is not None and maker not in self._seen and self._fits(maker):
                    return maker
        return None

    def _fits(self, maker: Node) -> bool:
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

    def _place(self, node: Node, slot: str) -> TensorDesc | None:
        """An input, described in the order of the last operator's elements."""
        return seen_as(node, "output_tensor", slot, self._seen[node])

    def _made(self) -> Node | None:
        """The chain as one operator. None where it exceeds the limits of that operator."""
        order = self.nodes[::-1]
        numbers: dict[Storage, int] = {}
        """The source that each result is for later steps."""
        tensors: list[tuple[Storage, TensorDesc]] = []
        steps: list[ActivationStep] = []
        for node in order:
            sources: list[int | float] = []
            for slot, storage in node.slots("input"):
                number = node.number(slot)
                place = self._place(node, slot)
                if storage.root in numbers:
                    sources.append(numbers[storage.root])
                elif number is not None:
                    sources.append(number)
                elif place is None or place.data_type is not self._seen[node].data_type:
                    return None
                else:
                    same = [i for i, (s, t) in enumerate(tensors)
                            if t == place and s.begins_as(storage)]
                    sources.append(same[0] if same else len(tensors))
                    tensors += [] if same else [(storage, place)]
            more = chain.steps_of(node.desc, sources, chain.MOST_TENSORS + len(steps))
            if more is None:
                return None
            steps += more
            numbers[node.storages["output_tensor"].root] = chain.MOST_TENSORS + len(steps) - 1
        if len(tensors) > chain.MOST_TENSORS or len(steps) > chain.MOST_STEPS or (
                sum(len(s.words) for s in steps) > chain.MOST_VALUES):
            return None
        last = self.nodes[0]
        fields: dict[str, Any] = dict.fromkeys(chain.SLOTS)
        storages = {"output_tensor": last.storages["output_tensor"]}
        for slot, (storage, place) in zip(chain.SLOTS, tensors):
            storages[slot], fields[slot] = storage, place
        desc = chain.ChainDesc(output_tensor=self._seen[last], steps=tuple(steps), **fields)
        return Node(desc, storages, last.label)
