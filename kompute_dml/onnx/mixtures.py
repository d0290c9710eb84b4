"""Finds sums over experts, each of which computes every token and is weighed by a mask.

    y = sum over e of expert_e(x) * ReduceSum(weights * Cast(Equal(indices, e)))

Exporters write them for models whose tokens choose a few of many experts. The experts may have any
form, as long as they are alike: nodes of the same operators, with constants of the same sizes. One
node, Experts, takes the place of all. Its ``steps`` are the nodes of one expert.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .graph import OnnxNode, OnnxValue, Stack, makers, replacing, uses
from .operators.mixture import DOMAIN, LINE, MATRIX, ROWS, ExpertStep, kind_of
from .placement import as_key

_LEAST = 2
_SCALAR_BYTES = 16
"""Constants of at most so many bytes are one constant where their values are equal."""
_ELEMENTWISE = (
    "Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Neg", "Abs", "Exp", "Log", "Sqrt", "Erf",
    "Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Selu", "Softplus", "HardSigmoid", "HardSwish",
    "Gelu", "FastGelu", "QuickGelu", "Swish", "Mish", "Clip", "Identity", "Cast", "Where")


class _Share(NamedTuple):
    """The weight of an expert for each token: 0 where a token does not choose it."""

    indices: OnnxValue
    weights: OnnxValue
    expert: int
    parts: tuple[OnnxNode, ...]


def fuse_mixtures(
    nodes: Sequence[OnnxNode], outputs: Collection[OnnxValue], most: int
) -> list[OnnxNode]:
    """``nodes``, with an Experts in the place of each sum. ``outputs`` leave the graph. ``most`` is
    the most bytes of a buffer."""
    found = _MixtureFinder(nodes, outputs, most).found()
    replaced = {part: node for node, parts in found for part in parts}
    return replacing(nodes, replaced)


class _MixtureFinder:
    def __init__(
        self, nodes: Sequence[OnnxNode], outputs: Collection[OnnxValue], most: int
    ) -> None:
        self.nodes, self.most = nodes, most
        self.visible = set(outputs)
        self.users = uses(nodes)
        self.made_by = makers(nodes)

    def found(self) -> list[tuple[OnnxNode, list[OnnxNode]]]:
        """Each Experts, with the nodes that it replaces."""
        parts: dict[OnnxValue, tuple[_Share, OnnxValue, OnnxNode]] = {}
        for node in self.nodes:
            share = self._share(node) if node.label == "ReduceSum" else None
            if share is not None and (y := share.parts[-1].outputs[0]) is not None and (
                    product := self._only_user(y)) is not None and product.label == "Mul":
                left, right = product.inputs
                expert, part = right if left is y else left, product.outputs[0]
                if expert is not None and part is not None:
                    parts[part] = share, expert, product
        result = []
        for total in self._sums(parts):
            fused = self._fused(total, parts)
            if fused is not None:
                result.append(fused)
        return result

    def _only_user(self, value: OnnxValue) -> OnnxNode | None:
        users = self.users.get(value, ())
        return users[0] if len(users) == 1 and value not in self.visible else None

    def _maker(self, value: OnnxValue | None, *labels: str) -> OnnxNode | None:
        """What makes a value for one reader, if it is one of these operators."""
        maker = None if value is None else self.made_by.get(value)
        return maker if maker is not None and value is not None and maker.label in labels and (
            self._only_user(value) is not None) else None

    def _share(self, total: OnnxNode) -> _Share | None:
        product = self._maker(total.input(0), "Mul")
        if product is None or not _is_last(total):
            return None
        parts: tuple[OnnxNode, ...] = (product, total)
        if not total.attributes.get("keepdims", 1):
            y = total.outputs[0]
            wider = None if y is None else self._only_user(y)
            if wider is None or wider.label != "Unsqueeze" or not _is_last(wider):
                return None
            parts = (product, total, wider)
        for mask, weights in (product.inputs, product.inputs[::-1]):
            number = self._maker(mask, "Cast", "CastLike")
            match = None if number is None else self._maker(number.input(0), "Equal")
            if number is None or match is None or weights is None:
                continue
            for indices, expert in (match.inputs, match.inputs[::-1]):
                constant = None if expert is None else expert.constant
                if indices is not None and constant is not None and constant.size == 1 and (
                        indices.dtype is not None and indices.dtype.kind in "iu"):
                    return _Share(indices, weights, int(constant.reshape(())),
                                  (match, number, *parts))
        return None

    def _sums(
        self, parts: dict[OnnxValue, tuple[_Share, OnnxValue, OnnxNode]]
    ) -> list[tuple[OnnxValue, list[OnnxValue], list[OnnxValue], list[OnnxNode]]]:
        """Sums of parts of the same indices and weights: the sum, its parts, other values that it
        adds, and its nodes."""
        def key(part: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
            return parts[part][0].indices, parts[part][0].weights

        sums: dict[OnnxValue, tuple[OnnxValue, list[OnnxValue], list[OnnxValue],
                                    list[OnnxNode]]] = {
            part: (part, [part], [], []) for part in parts}
        for node in self.nodes:
            y = node.outputs[0] if node.outputs else None
            if node.label != "Add" or y is None:
                continue
            terms = [sums[v] for v in node.inputs if v in sums and self._only_user(v) is node]
            others = [v for v in node.inputs
                      if v is not None and not any(v is term[0] for term in terms)]
            if not terms or len({key(term[1][0]) for term in terms}) > 1:
                continue
            for term in terms:
                del sums[term[0]]
            sums[y] = (y, [p for t in terms for p in t[1]],
                       [*(v for t in terms for v in t[2]), *others],
                       [*(n for t in terms for n in t[3]), node])
        return [total for total in sums.values() if len(total[1]) >= _LEAST]

    def _fused(
        self, total: tuple[OnnxValue, list[OnnxValue], list[OnnxValue], list[OnnxNode]],
        parts: dict[OnnxValue, tuple[_Share, OnnxValue, OnnxNode]],
    ) -> tuple[OnnxNode, list[OnnxNode]] | None:
        y, terms, others, adds = total
        experts = sorted((parts[part] for part in terms), key=lambda part: part[0].expert)
        share = experts[0][0]
        if [part[0].expert for part in experts] != [*range(len(experts))]:
            return None
        alike = _Alike(self, [expert for _, expert, _ in experts])
        if not alike.serves(share.indices, [product for _, _, product in experts]):
            return None
        replaced = [*alike.nodes(), *(n for share, _, product in experts
                                      for n in (*share.parts, product)), *adds]
        node = OnnxNode(
            "Experts", DOMAIN, 1,
            (share.indices, share.weights, *alike.shared, *alike.stacks, *others), (y,),
            {"experts": len(experts), "kinds": alike.shared_kinds(), "stacks": len(alike.stacks),
             "steps": tuple(alike.steps),
             "certain": self._are_of(share.indices, len(experts))},
            adds[-1].name, tuple(original for n in replaced for original in n.originals))
        return node, replaced

    def _are_of(self, indices: OnnxValue, count: int) -> bool:
        """Whether indices are surely below ``count``."""
        maker = self.made_by.get(indices)
        x = maker.input(0) if maker is not None and maker.label == "TopK" else None
        return maker is not None and x is not None and x.shape is not None and (
            x.shape[-1:] == (count,) and maker.attributes.get("axis", -1) in (-1, len(x.shape) - 1))


class _Alike:
    """The same nodes of all experts, found from the results back."""

    def __init__(self, finder: _MixtureFinder, results: Sequence[OnnxValue]) -> None:
        self._finder = finder
        self.shared: list[OnnxValue] = []
        self.stacks: list[Stack] = []
        self.steps: list[ExpertStep] = []
        self._places: dict[tuple[OnnxValue, ...], tuple[str, int]] = {}
        self._kinds: dict[tuple[str, int], str] = {}
        self._raw: list[tuple[list[OnnxNode], list[tuple[str, int] | None]]] = []
        end = self._of(tuple(results))
        self._whole = end is not None and self._kinds[end] == ROWS and end == (
            "step", len(self._raw) - 1)
        if self._whole:
            first = {"shared": 0, "stack": len(self.shared),
                     "step": len(self.shared) + len(self.stacks)}
            for makers, places in self._raw:
                node = makers[0]
                self.steps.append(ExpertStep(
                    node.op, node.domain, node.since,
                    tuple(sorted(node.attributes.items())),
                    tuple(None if p is None else first[p[0]] + p[1] for p in places),
                    None if (y := node.outputs[0]) is None or y.dtype is None else y.dtype.str))

    def nodes(self) -> list[OnnxNode]:
        return [node for makers, _ in self._raw for node in makers]

    def shared_kinds(self) -> tuple[str, ...]:
        return tuple(self._kinds["shared", i] for i in range(len(self.shared)))

    def serves(self, indices: OnnxValue, products: Sequence[OnnxNode]) -> bool:
        """Whether nothing else reads what the nodes make, and the tokens are those of the
        indices."""
        if not self._whole or not self.stacks:
            return False
        own = {*self.nodes(), *products}
        if len({*self.nodes()}) != len(self.nodes()) or any(
                v in self._finder.visible or not own.issuperset(self._finder.users.get(v, ()))
                for node in self.nodes() for v in node.outputs if v is not None):
            return False
        tokens = None if indices.shape is None else indices.shape[:-1]
        return tokens is not None and all(
            v.constant is not None or (v.shape is not None and v.shape[:-1] == tokens)
            for v in self.shared) and all(s.nbytes <= self._finder.most for s in self.stacks)

    def _of(self, values: tuple[OnnxValue, ...]) -> tuple[str, int] | None:
        """The place of a value of each expert. None if they are not alike."""
        if values not in self._places:
            place = self._leaf(values) or self._step(values)
            if place is None:
                return None
            self._places[values] = place
        return self._places[values]

    def _leaf(self, values: tuple[OnnxValue, ...]) -> tuple[str, int] | None:
        first = values[0]
        if first.dtype is None or any(
                (v.dtype, v.shape) != (first.dtype, first.shape) for v in values):
            return None
        constants = [v.constant for v in values if v.constant is not None]
        few = len(constants) == len(values) and constants[0].nbytes <= _SCALAR_BYTES
        if all(v is first for v in values) or (few and len({c.tobytes() for c in constants}) == 1):
            self.shared.append(first)
            return self._add("shared", len(self.shared) - 1,
                             ROWS if first.constant is None else kind_of(first.shape or ()))
        if len(constants) < len(values) or first.shape is None:
            return None
        self.stacks.append(Stack(
            f"{first.name} and others", first.dtype, (len(values), *first.shape), None,
            first.is_bfloat16, values))
        return self._add("stack", len(self.stacks) - 1, kind_of(first.shape))

    def _add(self, group: str, number: int, kind: str) -> tuple[str, int]:
        self._kinds[group, number] = kind
        return group, number

    def _step(self, values: tuple[OnnxValue, ...]) -> tuple[str, int] | None:
        makers = [self._finder.made_by.get(v) for v in values]
        first = makers[0]
        if first is None or len(first.outputs) != 1:
            return None
        same: list[OnnxNode] = []
        for maker in makers:
            if maker is None or _form(maker) != _form(first):
                return None
            same.append(maker)
        places: list[tuple[str, int] | None] = []
        for operands in zip(*(maker.inputs for maker in same)):
            present = tuple(v for v in operands if v is not None)
            if len(present) not in (0, len(same)):
                return None
            place = self._of(present) if present else None
            if present and place is None:
                return None
            places.append(place)
        kind = self._result(first, places)
        if kind is None:
            return None
        self._raw.append((same, places))
        return self._add("step", len(self._raw) - 1, kind)

    def _result(self, node: OnnxNode, places: Sequence[tuple[str, int] | None]) -> str | None:
        """The kind of a node's result. None if experts cannot compute it side by side."""
        kinds = [None if p is None else self._kinds[p] for p in places]
        padded = [*kinds, *[None] * (6 - len(kinds))]
        read = node.attributes.get
        if node.label == "MatMul":
            return ROWS if kinds == [ROWS, MATRIX] else None
        if node.label == "Gemm":
            return ROWS if kinds[:2] == [ROWS, MATRIX] and padded[2] in (None, LINE) and (
                not read("transA", 0)) else None
        if node.label == "com.microsoft.MatMulNBits":
            of_stack = [p is None or p[0] == "stack" for p in places[1:]]
            return ROWS if kinds[0] == ROWS and all(of_stack) and padded[4] is None and (
                padded[5] in (None, LINE)) else None
        if node.label == "Transpose":
            return MATRIX if kinds == [MATRIX] and (
                [*read("perm", (1, 0))] == [1, 0]) else None
        if node.op == "Cast" and kinds == [MATRIX]:
            return MATRIX
        if node.op in _ELEMENTWISE and {*kinds} <= {None, ROWS, LINE}:
            return ROWS if ROWS in kinds else LINE
        return None


def _form(node: OnnxNode) -> tuple[Any, ...]:
    return (node.op, node.domain, node.since, len(node.inputs), len(node.outputs),
            sorted((name, as_key(x)) for name, x in node.attributes.items()))


def _is_last(node: OnnxNode) -> bool:
    """Whether a node is about the last dimension of its input alone, or adds one after it."""
    axes = node.attributes.get("axes")
    named = node.input(1)
    if axes is None and named is not None and named.constant is not None:
        axes = named.constant.reshape(-1)
    x = node.input(0)
    rank = None if x is None or x.shape is None else len(x.shape) + (node.op == "Unsqueeze")
    return axes is not None and len(axes) == 1 and int(np.asarray(axes)[0]) in (
        -1, -1 if rank is None else rank - 1)
