"""A layer normalization that is spelled out: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon),
times a scale, and a bias."""

from __future__ import annotations

from typing import Any

from ...attributes import ReduceFunction
from ...desc import TensorDesc
from ...layout import is_packed, packed_strides, pad_left
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
from ..norm_parts import along, mean_square, repeated
from ..rewrite import rewrite


@rewrite("layer_norm_pattern",
         "a layer normalization that is spelled out is MEAN_VARIANCE_NORMALIZATION1", 50)
def layer_norm_pattern(g: Nodes) -> None:
    for root in g:
        if root.name == "ELEMENT_WISE_SQRT" and not has_scale_bias(root):
            _LayerNorm(g, root).replace()


class _LayerNorm:
    """A layer normalization around its square root."""

    def __init__(self, g: Nodes, root: Node) -> None:
        self._g, self._root = g, root

    def replace(self) -> None:
        g, root = self._g, self._root
        under, quotient = mean_square(g, root), g.only_user(root)
        if under is None or quotient is None or quotient[1] != "b_tensor" or (
                quotient[0].name != "ELEMENT_WISE_DIVIDE"):
            return
        square, averaged, plus = under.square, under.mean, under.plus
        diff = g.maker(square, under.slot)
        if diff is None:
            return
        mean_and_axes = self._made(diff)
        last = quotient[0]
        again = g.maker(last, "a_tensor")
        if mean_and_axes is None or again is None or not self._same(diff, again):
            return
        mean, axes = mean_and_axes
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
            if user is None or fused_by(last) or not along(user, axes):
                continue
            last = user[0]
            storages[field], fields[field] = last.storages[OTHER[user[1]]], last.tensor(
                OTHER[user[1]])
            parts.append(last)
        storages["output_tensor"] = last.storages["output_tensor"]
        norm = class_of("MEAN_VARIANCE_NORMALIZATION1")(
            input_tensor=x, output_tensor=output_of(last), axes=axes, axis_count=len(axes),
            normalize_variance=True, epsilon=under.epsilon, fused_activation=fused_by(last),
            **fields)
        g.replace(parts, Node(norm, storages, root.label))

    def _made(self, diff: Node) -> tuple[Node, tuple[int, ...]] | None:
        """The mean that is subtracted, and its axes."""
        mean = self._g.maker(diff, "b_tensor") if diff.name == "ELEMENT_WISE_SUBTRACT" else None
        d: Any = mean and mean.desc
        if mean is None or mean.name != "REDUCE" or d.function != ReduceFunction.AVERAGE:
            return None
        axes = self._axes(mean, diff.tensor("a_tensor"))
        if axes is None or not mean.storages["input_tensor"].begins_as(diff.storages["a_tensor"]):
            return None
        return (mean, axes) if _repeats(diff, axes) else None

    def _axes(self, mean: Node, x: TensorDesc) -> tuple[int, ...] | None:
        """The dimensions of ``x`` over which the mean is taken, if it reads what lies so."""
        d = mean.desc
        t, more = mean.tensor("input_tensor"), len(x.sizes) - len(mean.tensor("input_tensor").sizes)
        if more < 0 or not alike(moved(t, pad_left(t.sizes, len(x.sizes), 1),
                                       pad_left(t.strides, len(x.sizes), 0)), x):
            return None
        return tuple(sorted(a + more for a in d.axes))

    def _same(self, diff: Node, again: Node) -> bool:
        """PyTorch subtracts the mean twice."""
        return again is diff or (again.name == diff.name and again.desc == diff.desc and all(
            s.begins_as(again.storages[f]) for f, s in diff.storages.items()
            if f != "output_tensor"))

    def _private(
        self, diff: Node, again: Node, square: Node, quotient: Node, mean: Node
    ) -> bool:
        """Whether nothing else reads what lies between. The square's only reader is known."""
        g = self._g
        of_each = ((diff, {square, quotient} if again is diff else {square}),
                   (again, {square, quotient} if again is diff else {quotient}),
                   (mean, {diff, again}))
        return all(g.is_whole(node.storages["output_tensor"])
                   and {user for user, _ in g.users(node)} == readers for node, readers in of_each)


def _is_packed(node: Node) -> bool:
    """Whether it writes elements in the order of memory, and reads them so where they are many."""
    y = output_of(node)
    read = [node.tensor(f) for f, _ in node.slots("input") if node.name != "REDUCE"]
    return all(is_packed(t.sizes, t.strides) or not any(
        s and n > 1 for s, n in zip(t.strides, t.sizes)) for t in (y, *read))


def _repeats(node: Node, axes: tuple[int, ...]) -> bool:
    """Whether the second operand is packed but for these dimensions, along which it is repeated."""
    x, t = node.tensor("a_tensor"), node.tensor("b_tensor")
    return alike(t, repeated(moved(t, x.sizes, x.strides), axes))
