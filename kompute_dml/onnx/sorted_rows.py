"""Finds products of rows that were sorted by their experts.

    ends = CumSum(ScatterElements(zeros, indices, ones, reduction="add"))
    y = Concat over e of MatMul(Gather(x, Range(ends[e - 1], ends[e])), matrix_e)

Exporters write them for PyTorch's grouped products. Only a run tells how many rows an expert has.
So ONNX Runtime would have to run each Range, between two regions. One node, GroupedMatMul, takes
the place of such a product. Several products may share their Ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .graph import OnnxNode, OnnxValue, Stack, makers, replacing, uses
from .operators.mixture import DOMAIN

_LEAST = 2
_SCATTER_REDUCTION = "add"
_PLAIN = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
"""Attributes of a Gemm that is a product and a sum."""


class _Group(NamedTuple):
    """The product of an expert."""

    rows: OnnxValue
    begin: OnnxValue
    end: OnnxValue
    matrix: OnnxValue
    bias: OnnxValue | None
    own: tuple[OnnxNode, ...]
    range: OnnxNode


class _Product(NamedTuple):
    node: OnnxNode
    own: tuple[OnnxNode, ...]
    shared: tuple[OnnxNode, ...]
    """Nodes that other products may read: those that tell where each expert's rows are."""


def fuse_sorted_rows(
    nodes: Sequence[OnnxNode], outputs: Collection[OnnxValue], most: int
) -> list[OnnxNode]:
    """``nodes``, with a GroupedMatMul in the place of each product. ``outputs`` leave the graph.
    ``most`` is the most bytes of a buffer."""
    products = _SortedRowsFinder(nodes, outputs, most).found()
    replaced: dict[OnnxNode, OnnxNode] = {}
    for product in products:
        parts = [n for n in (*product.own, *product.shared) if n not in replaced]
        product.node.parts = tuple(original for n in parts for original in n.originals)
        replaced.update(dict.fromkeys(parts, product.node))
    return replacing(nodes, replaced)


class _SortedRowsFinder:
    def __init__(
        self, nodes: Sequence[OnnxNode], outputs: Collection[OnnxValue], most: int
    ) -> None:
        self.nodes, self.most = nodes, most
        self.visible = set(outputs)
        self.users = uses(nodes)
        self.made_by = makers(nodes)

    def found(self) -> list[_Product]:
        """The products of which nothing but products reads a node that they replace."""
        products = [p for node in self.nodes if node.label == "Concat"
                    and len(node.inputs) >= _LEAST and (p := self._product(node)) is not None]
        while True:
            inside = {n for p in products for n in (*p.own, *p.shared)}
            left = [p for p in products if all(self._hidden(n, inside)
                                               for n in (*p.own[1:], *p.shared))]
            if len(left) == len(products):
                return left
            products = left

    def _hidden(self, node: OnnxNode, inside: Collection[OnnxNode]) -> bool:
        """Whether only nodes of ``inside`` read what a node makes."""
        return all(v is None or (v not in self.visible
                                 and all(user in inside for user in self.users.get(v, ())))
                   for v in node.outputs)

    def _maker(self, value: OnnxValue | None, *labels: str) -> OnnxNode | None:
        maker = None if value is None else self.made_by.get(value)
        return maker if maker is not None and maker.label in labels else None

    def _product(self, joined: OnnxNode) -> _Product | None:
        y = joined.outputs[0]
        if joined.attributes.get("axis") != 0 or y is None:
            return None
        groups: list[_Group] = []
        for value in joined.inputs:
            group = self._group(value)
            if group is None or group.rows is not (groups or [group])[0].rows or (
                    (group.bias is None) is not ((groups or [group])[0].bias is None)):
                return None
            groups.append(group)
        first = groups[0]
        if _number(first.begin) != 0 or any(
                self._squeezed(group.begin) is not self._squeezed(before.end)
                for before, group in pairwise(groups)):
            return None
        ends, of_ends = self._parts([group.end for group in groups], certain=True)
        matrices, of_matrices = self._parts([group.matrix for group in groups])
        biases, of_biases = ((None, ()) if first.bias is None else self._parts(
            [group.bias for group in groups if group.bias is not None]))
        counted = None if ends is None else self._counted(ends, len(groups))
        if ends is None or matrices is None or counted is None or (
                first.bias is not None and biases is None) or (
                matrices.shape is None or len(matrices.shape) != 3 or None in matrices.shape
                or (isinstance(matrices, Stack) and matrices.nbytes > self.most)):
            return None
        own = (joined, *(n for group in groups for n in group.own), *of_matrices, *of_biases)
        begins = [m for group in groups[1:] if (m := self._maker(group.begin, "Squeeze"))]
        shared = tuple(dict.fromkeys((*(group.range for group in groups), *begins, *of_ends)))
        node = OnnxNode("GroupedMatMul", DOMAIN, 1, (first.rows, ends, counted, matrices, biases),
                        (y,), {}, joined.name)
        return _Product(node, own, shared)

    def _group(self, value: OnnxValue | None) -> _Group | None:
        total = self._maker(value, "Add")
        bias = None
        own: tuple[OnnxNode, ...] = ()
        if total is not None:
            own = (total,)
            value, bias = next(((a, b) for a, b in (total.inputs, total.inputs[::-1])
                                if self._maker(a, "MatMul") is not None), (None, None))
            if bias is None:
                return None
        product = self._maker(value, "MatMul", "Gemm")
        if product is not None and product.op == "Gemm":
            bias = product.input(2)  # ONNX Runtime's optimization makes it of the two
            if any(product.attributes.get(name, usual) != usual for name, usual in _PLAIN.items()):
                return None
        gather = None if product is None else self._maker(product.input(0), "Gather")
        listed = None if gather is None else self._maker(gather.input(1), "Range")
        if product is None or gather is None or listed is None or (
                gather.attributes.get("axis", 0) != 0 or _number(listed.input(2)) != 1):
            return None
        rows, matrix, (begin, end, _) = gather.input(0), product.input(1), listed.inputs
        if rows is None or matrix is None or begin is None or end is None or (
                rows.shape is None or len(rows.shape) != 2):
            return None
        return _Group(rows, begin, end, matrix, bias, (*own, product, gather), listed)

    def _squeezed(self, value: OnnxValue) -> OnnxValue | None:
        """The value before a Squeeze."""
        squeeze = self._maker(value, "Squeeze")
        return value if squeeze is None else squeeze.input(0)

    def _parts(
        self, values: Sequence[OnnxValue], *, certain: bool = False
    ) -> tuple[OnnxValue | None, tuple[OnnxNode, ...]]:
        """What these are the rows of, in their order, and the nodes that take it apart. Constants
        become a stack, unless they are to be the parts of one value for ``certain``."""
        squeezed = [self._maker(v, "Squeeze") for v in values]
        split = self._maker(squeezed[0].input(0) if squeezed[0] else None, "Split")
        if split is None:
            first = values[0]
            if certain or first.shape is None or any(
                    v.constant is None or (v.dtype, v.shape) != (first.dtype, first.shape)
                    for v in values):
                return None, ()
            return Stack(f"{first.name} and others", first.dtype, (len(values), *first.shape),
                         None, first.is_bfloat16, tuple(values)), ()
        whole, makers = split.input(0), [n for n in squeezed if n is not None]
        if split.attributes.get("axis", 0) != 0 or whole is None or not whole.shape or (
                whole.shape[0] != len(values)) or [
                n.input(0) for n in makers] != [*split.outputs] or not all(map(_first, makers)):
            return None, ()
        return whole, (split, *makers)

    def _counted(self, ends: OnnxValue, groups: int) -> OnnxValue | None:
        """Indices below ``groups`` that ``ends`` count, or None. All rows belong to a group then:
        the last end is the number of the indices."""
        total = self._maker(self._number_of(ends), "CumSum")
        if total is None or _number(total.input(1)) != 0 or any(
                total.attributes.get(name, 0) for name in ("exclusive", "reverse")):
            return None
        counts = self._maker(self._number_of(total.input(0)), "ScatterElements")
        if counts is None or counts.attributes.get("axis", 0) != 0 or (
                counts.attributes.get("reduction") != _SCATTER_REDUCTION):
            return None
        zeros, indices, ones = (counts.input(i) for i in range(3))
        spread = self._maker(ones, "Expand")
        one = ones if spread is None else spread.input(0)
        known = zeros is not None and zeros.constant is not None and (
            zeros.shape == (groups,) and not zeros.constant.any())
        return indices if known and one is not None and one.constant is not None and (
            (one.constant == 1).all()) else None

    def _number_of(self, value: OnnxValue | None) -> OnnxValue | None:
        """The number that was converted to another type."""
        while (cast := self._maker(value, "Cast")) is not None:
            value = cast.input(0)
        return value


def _number(value: OnnxValue | None) -> int | None:
    """The number that a constant of one element has."""
    x = None if value is None else value.constant
    return None if x is None or x.size != 1 else int(x.reshape(()))


def _first(node: OnnxNode) -> bool:
    """Whether a Squeeze removes the first dimension."""
    named = node.input(1)
    axes = node.attributes.get("axes") if named is None else named.constant
    return axes is not None and np.asarray(axes).reshape(-1).tolist() == [0]
