"""Experts: a sum over experts that a model spells out, see :mod:`..mixtures`.

Where tokens choose fewer experts than there are, the constants of these are gathered, and each
choice is a group of one row. Else each expert is a group of all rows, and what a token does not
choose is multiplied by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...layout import packed_strides, product
from ..graph import OnnxNode, OnnxValue
from ..lowerings import Inputs, converted, emit_elementwise, given
from ..row import Mapping
from .gather import taken
from .products import product_of, transposed
from .quantized import in_blocks

if TYPE_CHECKING:
    from ...device import Device

DOMAIN = "kompute_dml"
ROWS, LINE, MATRIX, BLOCKS = "rows", "line", "matrix", "blocks"
"""What a value of an expert is: a row for each token, one row for all, a matrix, or what only
MatMulNBits reads."""
_MOST = 1 << 26
"""The most elements of a value of several experts and all tokens. Where there are more, experts are
computed in parts."""
Find = Callable[[OnnxNode, "Device"], Mapping]


class ExpertStep(NamedTuple):
    """A node of an expert."""

    op: str
    domain: str
    since: int
    attributes: tuple[tuple[str, Any], ...]
    inputs: tuple[int | None, ...]
    """Places: shared values, then stacks, then the results of steps."""
    dtype: str | None
    """The data type of the result, if it is known."""

    def node(self, inputs: Inputs) -> OnnxNode:
        """It with these inputs."""
        values = [None if x is None else OnnxValue("", x.dtype, x.shape) for x in inputs]
        y = None if self.dtype is None else OnnxValue("", np.dtype(self.dtype))
        return OnnxNode(self.op, self.domain, self.since, tuple(values), (y,),
                        dict(self.attributes))


def kind_of(shape: Sequence[int | None]) -> str:
    """The kind of a constant, by its sizes."""
    sizes = [*shape]
    while len(sizes) > 1 and sizes[0] == 1:
        sizes.pop(0)
    return (LINE, LINE, MATRIX)[len(sizes)] if len(sizes) < 3 else BLOCKS


@dataclass
class _Groups:
    """Groups of rows, each of which has constants of its own."""

    count: int
    rows: Callable[[Array], Array]
    """[tokens, columns] as [count or 1, rows of a group, columns]."""
    constants: Callable[[Array], Array]
    """Those of the groups, of those of all experts."""


def _lowering(find: Find) -> Callable[[Builder, OnnxNode, Inputs], list[Array]]:

    def experts(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        indices, weights, read = given(inputs, 0), given(inputs, 1), node.attributes
        *leading, k = indices.shape
        tokens, count = product(leading), read["experts"]
        shared = [given(inputs, 2 + i) for i in range(len(read["kinds"]))]
        first = 2 + len(shared)
        stacks = [given(inputs, first + i) for i in range(read["stacks"])]
        for x, kind in zip(shared, read["kinds"]):
            if not tokens or (kind == ROWS and x.shape[:-1] != tuple(leading)):
                raise ValidationError(f"expected rows for {leading} tokens, but got "
                                      f"{list(x.shape)}")
        rows = [builder.reshape(x, (tokens, x.shape[-1])) if kind == ROWS else x
                for x, kind in zip(shared, read["kinds"])]
        indices, weights = (builder.reshape(x, (tokens, k)) for x in (indices, weights))
        few = tokens * k < count
        if few:
            groups = _of_choices(builder, node, indices, weights)
        else:
            widest = max(n for s in stacks for n in s.shape[1:] or (1,))
            groups = _of_all(builder, node, indices, weights, widest)
        y: Array | None = None
        for group, factors in groups:
            each = _run(builder, find, read["steps"], group, [
                *zip(rows, read["kinds"])], stacks)
            each = builder.reshape(each, (tokens, k, each.shape[-1])) if few else (
                each.transpose((1, 0, 2)))
            y = product_of(builder, factors, each, y)
        assert y is not None
        y = builder.reshape(y, (*leading, y.shape[-1]))
        for other in inputs[first + len(stacks):]:
            if other is not None:
                y = emit_elementwise(builder, "ELEMENT_WISE_ADD", [y, other], y.dtype, {})
        return [y]

    return experts


def _of_choices(
    builder: Builder, node: OnnxNode, indices: Array, weights: Array
) -> Iterator[tuple[_Groups, Array]]:
    """A group for each token and each of its experts, and the weights of these."""
    tokens, k = indices.shape
    if not node.attributes["certain"]:
        last = builder.constant(np.array(node.attributes["experts"] - 1, indices.dtype))
        least = builder.constant(np.array(0, indices.dtype))
        inside = emit_elementwise(
            builder, "ELEMENT_WISE_MIN", [indices, last], indices.dtype, {})
        inside = emit_elementwise(
            builder, "ELEMENT_WISE_MAX", [inside, least], indices.dtype, {})
        weights = _where_equal(builder, inside, indices, weights)
        indices = inside
    places = builder.reshape(indices, (tokens * k,))

    def rows(x: Array) -> Array:
        n = x.shape[-1]
        x = builder.pack(x).view((tokens, k, n), (n, 0, 1))
        return builder.reshape(x, (tokens * k, 1, n))

    yield (_Groups(tokens * k, rows, lambda x: builder.pack(taken(builder, x, places, 0))),
           builder.reshape(weights, (tokens, 1, k)))


def _of_all(
    builder: Builder, node: OnnxNode, indices: Array, weights: Array, widest: int
) -> Iterator[tuple[_Groups, Array]]:
    """Groups of all tokens, one for each expert, and each token's weights of these."""
    (tokens, k), count = indices.shape, node.attributes["experts"]
    numbers = builder.constant(np.arange(count, dtype=indices.dtype))
    ones = builder.constant(np.ones((), weights.dtype)).broadcast_to((tokens, k, count))
    hot = _where_equal(builder, builder.reshape(indices, (tokens, k, 1)), numbers, ones)
    factors = product_of(builder, builder.reshape(weights, (tokens, 1, k)), hot)
    each = max(1, min(count, _MOST // (tokens * widest)))
    if any(step.op == "MatMulNBits" for step in node.attributes["steps"]):
        each = 1  # its product reads the blocks as they are
    for begin in range(0, count, each):
        size = min(each, count - begin)

        def constants(x: Array, begin: int = begin, size: int = size) -> Array:
            sizes = (size, *x.shape[1:])
            return x.view(sizes, packed_strides(sizes), begin * product(x.shape[1:]))

        yield (_Groups(size, lambda x: builder.reshape(x, (1, *x.shape)), constants),
               factors.view((tokens, 1, size), (count, count, 1), begin))


def _where_equal(builder: Builder, a: Array, b: Array, factors: Array) -> Array:
    """Factors, or 0 where two arrays differ."""
    equal = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_EQUALS", [a, b], BOOL, {})
    return emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        factors, converted(builder, equal, factors.dtype)], factors.dtype, {})


def _run(
    builder: Builder, find: Find, steps: Sequence[ExpertStep], groups: _Groups,
    shared: Sequence[tuple[Array, str]], stacks: Sequence[Array],
) -> Array:
    """[count, rows of a group, columns]: what the experts make of the rows."""
    places = [_shared(builder, groups, x, kind) for x, kind in shared]
    places += [groups.constants(x) for x in stacks]
    of_stacks = range(len(shared), len(places))
    for step in steps:
        raw = [None if i is None else places[i] for i in step.inputs]
        arrays = [x if x is None or i not in of_stacks else _spread(builder, x)
                  for i, x in zip(step.inputs, raw)]
        if step.op == "Transpose":
            y = transposed(given(arrays, 0), 1)
        elif step.op == "MatMulNBits" and groups.count > 1:
            y = _by_blocks(builder, step, arrays, raw)
        else:
            if step.op == "MatMulNBits":
                arrays = [arrays[0], *(None if x is None else builder.reshape(x, x.shape[1:])
                                       for x in raw[1:5]), *arrays[5:]]
            node = step.node(arrays)
            (y,) = find(node, builder.device).build(builder, node, arrays)
        places.append(y)
    return places[-1]


def _shared(builder: Builder, groups: _Groups, x: Array, kind: str) -> Array:
    if kind == ROWS:
        return groups.rows(x)
    if kind == LINE and len(x.shape) > 1:
        return replace(builder.reshape(x, x.shape[-1:]),
                       host=None if x.host is None else x.host.reshape(-1))
    return x


def _spread(builder: Builder, x: Array) -> Array:
    """Constants of groups, as they meet rows: [group, 1, columns], or a matrix for each."""
    sizes = x.shape[1:]
    if kind_of(sizes) == LINE:
        return builder.reshape(x, (x.shape[0], 1, product(sizes)))
    return builder.reshape(x, (x.shape[0], *sizes[-2:])) if kind_of(sizes) == MATRIX else x


def _by_blocks(
    builder: Builder, step: ExpertStep, arrays: Inputs, raw: Inputs
) -> Array:
    """MatMulNBits of several groups."""
    read, a = dict(step.attributes), given(arrays, 0)
    block, columns, depth = read["block_size"], read["N"], read["K"]
    b, scales = given(raw, 1), given(raw, 2)
    count = b.shape[0]
    weights = in_blocks(
        builder, a.dtype, b, scales, raw[3] if len(raw) > 3 else None,
        (count * columns, -(-depth // block), block), read.get("bits", 4))
    width = weights.shape[1]
    return product_of(builder, a, weights.view((count, depth, columns), (
        columns * width, 1, width)), arrays[5] if len(arrays) > 5 else None)


def multiplications(node: OnnxNode, tokens: float) -> float:
    """Those of all experts for so many tokens."""
    first, read = 2 + len(node.attributes["kinds"]), node.attributes
    stacks = [node.input(first + i) for i in range(read["stacks"])]
    return tokens * sum(float(product([n or 1 for n in s.shape])) for s in stacks
                        if s is not None and s.shape and kind_of(s.shape[1:]) != LINE)


def _repetition(node: OnnxNode) -> float:
    """The part of the experts that is computed."""
    indices, count = node.input(0), node.attributes["experts"]
    if indices is None or not indices.shape or None in indices.shape:
        return 1.0
    return min(1.0, product([n or 1 for n in indices.shape]) / count)


def rows(find: Find) -> tuple[Mapping, ...]:
    """The row of Experts. ``find`` takes a node of an expert to its row."""
    return (
        Mapping("Experts", (1,), "GEMM", _lowering(find), DOMAIN, fields=(None,),
                attributes=("certain", "experts", "kinds", "stacks", "steps"), multiplies=True,
                repetition=_repetition),
    )
