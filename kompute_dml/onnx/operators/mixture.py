"""Experts: a sum over experts that a model spells out, see :mod:`..mixtures`. And GroupedMatMul:
rows that a model has sorted by their experts, see :mod:`..sorted_rows`.

An expert computes the tokens that choose it: these are rows of :mod:`.grouped`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...attributes import ReduceFunction
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...layout import product
from ..graph import OnnxNode, OnnxValue
from ..lowerings import Inputs, converted, emit_elementwise, given, optional
from ..row import Mapping
from .grouped import MatricesInBlocks, TiledRows, sum_of_groups
from .products import transposed
from .quantized import in_blocks
from .reduction import reduced

if TYPE_CHECKING:
    from ...device import Device

DOMAIN = "kompute_dml"
ROWS, LINE, MATRIX, BLOCKS = "rows", "line", "matrix", "blocks"
"""What a value of an expert is: a row for each token, one row for all, a matrix, or what only
MatMulNBits reads."""
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


def _lowering(find: Find) -> Callable[[Builder, OnnxNode, Inputs], list[Array]]:

    def experts(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        indices, weights, read = given(inputs, 0), given(inputs, 1), node.attributes
        *leading, k = indices.shape
        tokens = product(leading)
        shared = [given(inputs, 2 + i) for i in range(len(read["kinds"]))]
        first = 2 + len(shared)
        stacks = [given(inputs, first + i) for i in range(read["stacks"])]
        for x, kind in zip(shared, read["kinds"]):
            if not tokens or (kind == ROWS and x.shape[:-1] != tuple(leading)):
                raise ValidationError(f"expected rows for {leading} tokens, but got "
                                      f"{list(x.shape)}")
        indices, weights = (builder.reshape(x, (tokens, k)) for x in (indices, weights))
        if not read["certain"]:
            indices, weights = _inside(builder, read["experts"], indices, weights)
        by_token = [builder.reshape(x, (tokens, x.shape[-1]))
                    for x, kind in zip(shared, read["kinds"]) if kind == ROWS]
        others = [_one_row(builder, x, kind)
                  for x, kind in zip(shared, read["kinds"]) if kind != ROWS]

        def each(tiles: TiledRows, rows: Sequence[Array]) -> Array:
            of_rows, of_all = iter(rows), iter(others)
            return _run(builder, find, read["steps"], tiles, [
                next(of_rows if kind == ROWS else of_all) for kind in read["kinds"]], stacks)

        widest = max(n for s in stacks for n in s.shape[1:] or (1,))
        y = sum_of_groups(builder, indices, weights, by_token, read["experts"], widest, each)
        y = builder.reshape(y, (*leading, y.shape[-1]))
        for other in inputs[first + len(stacks):]:
            if other is not None:
                y = emit_elementwise(builder, "ELEMENT_WISE_ADD", [y, other], y.dtype, {})
        return [y]

    return experts


def _inside(
    builder: Builder, count: int, indices: Array, weights: Array
) -> tuple[Array, Array]:
    """Indices that some expert has. Those that none has weigh nothing."""
    last = builder.constant(np.array(count - 1, indices.dtype))
    least = builder.constant(np.array(0, indices.dtype))
    inside = emit_elementwise(builder, "ELEMENT_WISE_MIN", [indices, last], indices.dtype, {})
    inside = emit_elementwise(builder, "ELEMENT_WISE_MAX", [inside, least], indices.dtype, {})
    equal = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_EQUALS", [inside, indices], BOOL, {})
    return inside, emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        weights, converted(builder, equal, weights.dtype)], weights.dtype, {})


def _run(
    builder: Builder, find: Find, steps: Sequence[ExpertStep], tiles: TiledRows,
    shared: Sequence[Array], stacks: Sequence[Array],
) -> Array:
    """[tiles, rows of a tile, columns]: what the experts make of the rows."""
    places = [*shared, *stacks]
    stacked = {*range(len(shared), len(places))}
    """What all experts have. A product takes its part itself."""

    @functools.cache
    def met(place: int) -> Array:
        """What meets the rows of a tile."""
        x = places[place]
        is_line = place in stacked and kind_of(x.shape[1:]) == LINE
        return _line(builder, tiles, x) if is_line else x

    for step in steps:
        as_is = (1, 2, 3) if step.op == "MatMulNBits" else ()
        arrays = [None if i is None else places[i] if n in as_is else met(i)
                  for n, i in enumerate(step.inputs)]
        of_all = [i in stacked for i in step.inputs]
        if step.op == "Transpose":
            y = transposed(given(arrays, 0), 1)
        elif step.op == "MatMulNBits":
            y = _by_blocks(builder, step, tiles, arrays)
        elif step.op in ("MatMul", "Gemm") and of_all[1]:
            y = _by_matrices(builder, step, tiles, arrays)
        else:
            node = step.node(arrays)
            (y,) = find(node, builder.device).build(builder, node, arrays)
        if step.op in ("Transpose", "Cast") and of_all[0]:
            stacked.add(len(places))
        places.append(y)
    return places[-1]


def _one_row(builder: Builder, x: Array, kind: str) -> Array:
    """A constant of all experts, without dimensions in front of its row."""
    if kind == LINE and len(x.shape) > 1:
        return replace(builder.reshape(x, x.shape[-1:]),
                       host=None if x.host is None else x.host.reshape(-1))
    return x


def _line(builder: Builder, tiles: TiledRows, x: Array) -> Array:
    """Each expert's row, as it meets the rows of a tile."""
    return tiles.of_groups(builder, builder.reshape(
        x, (x.shape[0], 1, product(x.shape[1:]))))


def _by_matrices(builder: Builder, step: ExpertStep, tiles: TiledRows, arrays: Inputs) -> Array:
    """MatMul, or Gemm."""
    read = dict(step.attributes).get
    b = given(arrays, 1)
    b = builder.reshape(b, (b.shape[0], *b.shape[-2:]))
    y = tiles.product(builder, given(arrays, 0), transposed(b, read("transB", 0)))
    c = optional(arrays, 2)
    for x, factor in ((y, read("alpha", 1.0)), (c, read("beta", 1.0))):
        if x is None or factor == 1:
            continue
        scaled = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
            x, builder.constant(np.array(factor, x.dtype))], x.dtype, {})
        y, c = (scaled, c) if x is y else (y, scaled)
    return y if c is None else emit_elementwise(
        builder, "ELEMENT_WISE_ADD", [y, c], y.dtype, {})


def _by_blocks(builder: Builder, step: ExpertStep, tiles: TiledRows, arrays: Inputs) -> Array:
    """MatMulNBits."""
    read, a = dict(step.attributes), given(arrays, 0)
    block, columns, depth = read["block_size"], read["N"], read["K"]
    b, scales, zeros = given(arrays, 1), given(arrays, 2), optional(arrays, 3)
    count, blocks, bits = b.shape[0], -(-depth // block), read.get("bits", 4)
    if zeros is None or zeros.dtype == np.uint8:
        y = tiles.product(builder, a, MatricesInBlocks(
            builder.pack(b), builder.pack(scales), None if zeros is None else builder.pack(zeros),
            bits, (count, columns, blocks, block)))
    else:
        weights = in_blocks(
            builder, a.dtype, b, scales, zeros, (count * columns, blocks, block), bits)
        width = weights.shape[1]
        y = tiles.product(builder, a, weights.view(
            (count, depth, columns), (columns * width, 1, width)))
    bias = optional(arrays, 5)
    return y if bias is None else emit_elementwise(
        builder, "ELEMENT_WISE_ADD", [y, bias], y.dtype, {})


def sorted_rows(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """GroupedMatMul: rows that come in the order of their experts, by a matrix of each. The experts
    end behind these rows, and count these indices."""
    x, ends, counted, matrices = (given(inputs, i) for i in range(4))
    bias, (groups, _, columns), rows = optional(inputs, 4), matrices.shape, counted.size
    if x.shape[0] < rows:
        raise ValidationError(f"expected {rows} rows, but got {x.shape[0]}")
    dtype = np.dtype("int32")
    behind = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL", [
        builder.reshape(builder.counted(rows, dtype), (rows, 1)), converted(builder, ends, dtype)],
        BOOL, {})
    (group,) = reduced(builder, "REDUCE", converted(builder, behind, dtype), [1], True, dtype,
                       function=ReduceFunction.SUM)

    def each(tiles: TiledRows, of_tiles: Sequence[Array]) -> Array:
        y = tiles.product(builder, of_tiles[0], matrices)
        return y if bias is None else emit_elementwise(
            builder, "ELEMENT_WISE_ADD", [y, _line(builder, tiles, bias)], y.dtype, {})

    x = x.view((rows, *x.shape[1:]), x.strides)
    return [sum_of_groups(builder, group, None, [x], groups, columns, each)]


def row_multiplications(node: OnnxNode, rows: float) -> float:
    """GroupedMatMul's, for so many rows."""
    matrices = node.input(3)
    sizes = () if matrices is None else matrices.shape or ()
    return rows * float(product([n or 1 for n in sizes[1:]]))


def multiplications(node: OnnxNode, tokens: float) -> float:
    """Those of all experts for so many tokens."""
    first, read = 2 + len(node.attributes["kinds"]), node.attributes
    stacks = [node.input(first + i) for i in range(read["stacks"])]
    return tokens * sum(float(product([n or 1 for n in s.shape])) for s in stacks
                        if s is not None and s.shape and kind_of(s.shape[1:]) != LINE)


def _repetition(node: OnnxNode) -> float:
    """The part of the experts that a token chooses."""
    indices = node.input(0)
    chosen = None if indices is None or not indices.shape else indices.shape[-1]
    return 1.0 if chosen is None else min(1.0, chosen / node.attributes["experts"])


def rows(find: Find) -> tuple[Mapping, ...]:
    """The rows of Experts and of GroupedMatMul. ``find`` takes a node of an expert to its row."""
    return (
        Mapping("Experts", (1,), "GEMM", _lowering(find), DOMAIN, fields=(None,),
                attributes=("certain", "experts", "kinds", "stacks", "steps"), multiplies=True,
                repetition=_repetition),
        Mapping("GroupedMatMul", (1,), "GEMM", sorted_rows, DOMAIN,
                fields=("ATensor", None, None, "BTensor", "CTensor"), multiplies=True),
    )
