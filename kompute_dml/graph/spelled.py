"""Passes that recognize a layer normalization and a GELU by tanh, written as elementwise operators.
"""

from __future__ import annotations

from typing import Any

from ..attributes import ReduceFunction
from ..desc import TensorDesc
from ..layout import is_packed, packed_strides, pad_left
from .draft import (
    OTHER,
    SUMS,
    Draft,
    Drafts,
    alike,
    class_of,
    fused_by,
    has_scale_bias,
    moved,
    next_user,
    output_of,
)

# (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon), times a scale, and a bias


def layer_norms(g: Drafts) -> None:
    for root in g:
        if root.name == "ELEMENT_WISE_SQRT" and not has_scale_bias(root):
            _LayerNorm(g, root).replace()


class _LayerNorm:
    """A layer normalization around its square root."""

    def __init__(self, g: Drafts, root: Draft) -> None:
        self._g, self._root = g, root

    def replace(self) -> None:
        g, root = self._g, self._root
        plus, quotient = g.maker(root, "input_tensor"), g.only_user(root)
        if plus is None or quotient is None or quotient[1] != "b_tensor" or (
                quotient[0].name != "ELEMENT_WISE_DIVIDE" or plus.name not in SUMS
                or fused_by(plus) or g.only_user(plus) is None):
            return
        epsilon, variance = self._number_and_other(plus)
        averaged = self._mean_of(variance)
        square = averaged and g.maker(averaged, "input_tensor")
        diff = square and self._squared(square)
        if not (square and diff and averaged and variance) or epsilon is None or epsilon < 0:
            return
        made = self._made(diff)
        last = quotient[0]
        again = g.maker(last, "a_tensor")
        if made is None or again is None or not self._same(diff, again):
            return
        mean, axes = made
        parts = [mean, diff, square, averaged, plus, root, last]
        parts += [again] if again is not diff else []
        x = diff.tensor("a_tensor")
        packed = moved(x, x.sizes, packed_strides(x.sizes))
        straight = [output_of(diff), output_of(again), output_of(square), output_of(last),
                    last.tensor("a_tensor"), *(square.tensor(f) for f, s in square.slots("input")
                                               if s.root is diff.storages["output_tensor"].root)]
        if not all(alike(t, packed) for t in straight) or self._axes(averaged, packed) != axes or (
                not _repeats(last, axes) or not all(map(_is_packed, (averaged, plus, root)))
                or not self._private(diff, again, square, last, mean)):
            return
        storages = {"input_tensor": diff.storages["a_tensor"]}
        fields: dict[str, Any] = {"scale_tensor": None, "bias_tensor": None}
        for field, names in (("scale_tensor", ("ELEMENT_WISE_MULTIPLY",)), ("bias_tensor", SUMS)):
            user = next_user(g, last, names)
            if user is None or fused_by(last) or not self._along(user, axes):
                continue
            last = user[0]
            storages[field], fields[field] = last.storages[OTHER[user[1]]], last.tensor(
                OTHER[user[1]])
            parts.append(last)
        storages["output_tensor"] = last.storages["output_tensor"]
        norm = class_of("MEAN_VARIANCE_NORMALIZATION1")(
            input_tensor=x, output_tensor=output_of(last), axes=axes, axis_count=len(axes),
            normalize_variance=True, epsilon=epsilon, fused_activation=fused_by(last), **fields)
        g.replace(parts, Draft(norm, storages, root.label))

    def _number_and_other(self, plus: Draft) -> tuple[float | None, Draft | None]:
        for slot, other in OTHER.items():
            if (number := plus.number(slot)) is not None:
                return number, self._g.maker(plus, other)
        return None, None

    def _mean_of(self, mean: Draft | None) -> Draft | None:
        """``mean``, where it is one with one reader."""
        d: Any = mean and mean.desc
        if mean is None or mean.name != "REDUCE" or d.function != ReduceFunction.AVERAGE:
            return None
        return mean if self._g.only_user(mean) is not None else None

    def _squared(self, square: Draft) -> Draft | None:
        """What makes the values that are squared."""
        if square.name == "ELEMENT_WISE_MULTIPLY":
            a, b = (self._g.maker(square, slot) for slot in OTHER)
            return a if a is b and alike(square.tensor("a_tensor"), square.tensor("b_tensor")) \
                else None
        if square.name == "ELEMENT_WISE_POW" and not has_scale_bias(square) and (
                square.number("exponent_tensor") == 2):
            return self._g.maker(square, "input_tensor")
        return None

    def _made(self, diff: Draft) -> tuple[Draft, tuple[int, ...]] | None:
        """The mean that is subtracted, and its axes."""
        mean = self._g.maker(diff, "b_tensor") if diff.name == "ELEMENT_WISE_SUBTRACT" else None
        d: Any = mean and mean.desc
        if mean is None or mean.name != "REDUCE" or d.function != ReduceFunction.AVERAGE:
            return None
        x, seen = diff.tensor("a_tensor"), mean.storages["input_tensor"]
        own = diff.storages["a_tensor"]
        axes = self._axes(mean, x)
        if (seen.root, seen.begin) != (own.root, own.begin) or axes is None:
            return None
        return (mean, axes) if _repeats(diff, axes) else None

    def _axes(self, mean: Draft, x: TensorDesc) -> tuple[int, ...] | None:
        """The dimensions of ``x`` over which the mean is taken, if it reads what lies so."""
        d: Any = mean.desc
        t, more = mean.tensor("input_tensor"), len(x.sizes) - len(mean.tensor("input_tensor").sizes)
        if more < 0 or not alike(moved(t, pad_left(t.sizes, len(x.sizes), 1),
                                       pad_left(t.strides, len(x.sizes), 0)), x):
            return None
        return tuple(sorted(a + more for a in d.axes))

    def _same(self, diff: Draft, again: Draft) -> bool:
        """PyTorch subtracts the mean twice."""
        return again is diff or (again.name == diff.name and again.desc == diff.desc and all(
            (s.root, s.begin) == (again.storages[f].root, again.storages[f].begin)
            for f, s in diff.storages.items() if f != "output_tensor"))

    def _private(
        self, diff: Draft, again: Draft, square: Draft, quotient: Draft, mean: Draft
    ) -> bool:
        """Whether nothing else reads what lies between."""
        g = self._g
        for draft, readers in ((diff, {square, quotient} if again is diff else {square}),
                               (again, {square, quotient} if again is diff else {quotient}),
                               (mean, {diff, again})):
            if not g.is_whole(draft.storages["output_tensor"]) or (
                    {user for user, _ in g.users(draft)} != readers):
                return False
        return g.only_user(square) is not None or {u for u, _ in g.users(square)} == {square}

    def _along(self, user: tuple[Draft, str], axes: tuple[int, ...]) -> bool:
        """Whether the other operand is one for all normalized lines."""
        t = user[0].tensor(OTHER[user[1]])
        return not any(s for i, (s, n) in enumerate(zip(t.strides, t.sizes))
                       if i not in axes and n > 1) and (
            t.data_type is output_of(user[0]).data_type)


def _is_packed(draft: Draft) -> bool:
    """Whether it writes elements in the order of memory, and reads them so where they are many."""
    y = output_of(draft)
    read = [draft.tensor(f) for f, _ in draft.slots("input") if draft.name != "REDUCE"]
    return all(is_packed(t.sizes, t.strides) or not any(t.strides) for t in (y, *read))


def _repeats(draft: Draft, axes: tuple[int, ...]) -> bool:
    """Whether the second operand is packed but for these dimensions, along which it is repeated."""
    x, t = draft.tensor("a_tensor"), draft.tensor("b_tensor")
    kept = packed_strides([1 if i in axes else n for i, n in enumerate(x.sizes)])
    return alike(t, moved(t, x.sizes, tuple(0 if i in axes else s for i, s in enumerate(kept))))


# x (1 + tanh(u)) / 2 with u = a x + b x^3, which is x sigmoid(2 u)


def tanh_gelus(g: Drafts) -> None:
    for tanh in g:
        if tanh.name in ("ACTIVATION_TANH", "ELEMENT_WISE_TANH") and not has_scale_bias(tanh):
            _Gelu(g, tanh).replace()


class _Gelu:
    """A GELU around its tanh; ``parts`` are found on the way."""

    def __init__(self, g: Drafts, tanh: Draft) -> None:
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

    def _polynomial(self, draft: Draft, slot: str, depth: int = 0) -> dict[int, float] | None:
        """An input as factors of powers of x, which is the first value that is no such thing."""
        if (number := draft.number(slot)) is not None:
            return {0: number}
        maker = self._g.maker(draft, slot)
        if maker is not None and depth < 6 and not self._is_x(draft, slot) and alike(
                output_of(maker), draft.tensor(slot)) and not has_scale_bias(maker):
            known, found = self._x, list(self._parts)
            result = self._operands(maker, depth)
            if result is not None and max(result) <= 3 and self._g.is_whole(
                    maker.storages["output_tensor"]):
                self._parts.insert(0, maker)
                return result
            self._x, self._parts = known, found
        if self._x is None:
            self._x = draft.storages[slot], draft.tensor(slot)
        return {1: 1.0} if self._is_x(draft, slot) else None

    def _operands(self, maker: Draft, depth: int) -> dict[int, float] | None:
        if maker.name == "ELEMENT_WISE_POW":
            number = maker.number("exponent_tensor")
            base = self._polynomial(maker, "input_tensor", depth + 1)
            return {int(number): 1.0} if base == {1: 1.0} and number in (2, 3) else None
        if maker.name not in ("ELEMENT_WISE_MULTIPLY", *SUMS) or fused_by(maker):
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

    def _is_x(self, draft: Draft, slot: str) -> bool:
        if self._x is None:
            return False
        storage, tensor = draft.storages[slot], draft.tensor(slot)
        return (storage.root, storage.begin) == (self._x[0].root, self._x[0].begin) and alike(
            tensor, self._x[1])

    def _rewrite(self, a: float, b: float) -> None:
        """Five operators, which are one dispatch, in the places of the last ones."""
        g, parts = self._g, list(dict.fromkeys(self._parts))
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
            new.append(Draft(class_of(name)(**{s: y for s, (_, y) in seen.items()}, **fields),
                             {s: p for s, (p, _) in seen.items()}, self._tanh.label))
        for part in parts[:-5]:
            g.remove(part)
        for before, after in zip(old, new):
            g.replace([before], after)
