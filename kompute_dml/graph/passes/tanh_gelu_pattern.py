"""A GELU by tanh that is spelled out: x (1 + tanh(u)) / 2 with u = a x + b x^3.

It is x sigmoid(2 u)."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...layout import packed_strides
from ..node import (
    OTHER,
    SUMS,
    Node,
    Nodes,
    alike,
    class_of,
    fused_by,
    has_scale_bias,
    moved,
    next_user,
    output_of,
)
from ..rewrite import rewrite

_FACTORS = ("ELEMENT_WISE_POW", "ELEMENT_WISE_MULTIPLY", *SUMS)
"""Operators of which a polynomial is made."""


@rewrite("tanh_gelu_pattern",
         "a GELU by tanh that is spelled out is x sigmoid(2 u), one dispatch", 70)
def tanh_gelu_pattern(g: Nodes) -> None:
    for tanh in g:
        if tanh.name in ("ACTIVATION_TANH", "ELEMENT_WISE_TANH") and not has_scale_bias(tanh):
            _Gelu(g, tanh).replace()


class _Gelu:
    """A GELU around its tanh; ``parts`` are found on the way."""

    def __init__(self, g: Nodes, tanh: Node) -> None:
        self._g, self._tanh, self._parts = g, tanh, [tanh]

    def replace(self) -> None:
        g, tanh = self._g, self._tanh
        powers = self._polynomial(tanh, "input_tensor")
        plus = next_user(g, tanh, SUMS)
        if powers is None or plus is None or fused_by(plus[0]) or self._x is None or (
                plus[0].number(OTHER[plus[1]]) != 1):
            return
        if powers.keys() != {1, 3}:
            return
        self._parts.append(plus[0])
        factor, times = 1.0, 0
        while (factor, times) != (0.5, 1):
            user = next_user(g, self._parts[-1], ("ELEMENT_WISE_MULTIPLY",))
            other = user and self._polynomial(user[0], OTHER[user[1]])
            if user is None or not other or len(other) != 1 or times + max(other) > 1:
                return
            ((power, number),) = other.items()
            factor, times = factor * number, times + power
            self._parts.append(user[0])
        self._rewrite(powers[1], powers[3])

    _x: tuple[Any, TensorDesc] | None = None

    def _polynomial(self, node: Node, slot: str, depth: int = 0) -> dict[int, float] | None:
        """An input as factors of powers of x, which is the first value that is no such thing."""
        if (number := node.number(slot)) is not None:
            return {0: number}
        maker = self._g.maker(node, slot)
        if maker is not None and maker.name in _FACTORS and depth < 6 and not self._is_x(
                node, slot) and alike(output_of(maker), node.tensor(slot)) and (
                not has_scale_bias(maker)):
            known, parts = self._x, list(self._parts)
            result = self._operands(maker, depth)
            if result is not None and max(result) <= 3 and self._g.is_whole(
                    maker.storages["output_tensor"]):
                self._parts.insert(0, maker)
                return result
            self._x, self._parts = known, parts
        if self._x is None:
            self._x = node.storages[slot], node.tensor(slot)
        return {1: 1.0} if self._is_x(node, slot) else None

    def _operands(self, maker: Node, depth: int) -> dict[int, float] | None:
        if maker.name == "ELEMENT_WISE_POW":
            number = maker.number("exponent_tensor")
            base = self._polynomial(maker, "input_tensor", depth + 1)
            return {int(number): 1.0} if base == {1: 1.0} and number in (2, 3) else None
        if fused_by(maker):
            return None
        a, b = (self._polynomial(maker, slot, depth + 1) for slot in OTHER)
        if a is None or b is None or a.keys() == b.keys() == {0}:
            return None
        result: dict[int, float] = {}
        pairs = [*a.items(), *b.items()] if maker.name in SUMS else [
            (i + j, f * h) for i, f in a.items() for j, h in b.items()]
        for power, f in pairs:
            result[power] = result.get(power, 0.0) + f
        return result

    def _is_x(self, node: Node, slot: str) -> bool:
        if self._x is None:
            return False
        storage, tensor = node.storages[slot], node.tensor(slot)
        return storage.begins_as(self._x[0]) and alike(tensor, self._x[1])

    def _rewrite(self, a: float, b: float) -> None:
        """Five operators, which are one dispatch, in the places of the last ones."""
        g = self._g
        parts = sorted(dict.fromkeys(self._parts), key=g.place)
        inside = set(parts)
        if self._x is None or len(parts) < 5 or any(
                user not in inside for part in parts[:-1] for user, _ in g.users(part)):
            return
        (x, t), old, last = self._x, parts[-5:], parts[-1]
        like = [moved(output_of(last), t.sizes, packed_strides(t.sizes)) for _ in range(4)]
        if not alike(output_of(last), moved(output_of(last), t.sizes, output_of(last).strides)):
            return
        places = [(x, t), *((p.storages["output_tensor"], y) for p, y in zip(old, like)),
                  (last.storages["output_tensor"], output_of(last))]
        if any(s.begin or not alike(output_of(p), y)
               for p, (s, y) in zip(old[:-1], places[1:-1])):
            return
        new = []
        for name, at, operands, fields in (
                ("ELEMENT_WISE_MULTIPLY", 1, (0, 0), {}),
                ("ACTIVATION_LINEAR", 2, (1,), {"alpha": 2 * b, "beta": 2 * a}),
                ("ELEMENT_WISE_MULTIPLY", 3, (0, 2), {}),
                ("ACTIVATION_SIGMOID", 4, (3,), {}), ("ELEMENT_WISE_MULTIPLY", 5, (0, 4), {})):
            slots = ("input_tensor",) if len(operands) == 1 else tuple(OTHER)
            seen = {s: places[i] for s, i in zip(slots, operands)} | {"output_tensor": places[at]}
            new.append(Node(class_of(name)(**{s: y for s, (_, y) in seen.items()}, **fields),
                             {s: p for s, (p, _) in seen.items()}, self._tanh.label))
        for part in parts[:-5]:
            g.remove(part)
        for before, after in zip(old, new):
            g.replace([before], after)
