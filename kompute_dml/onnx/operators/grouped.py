"""Rows in tiles of one group each, and their products by the matrices of the groups, see
:mod:`kompute_dml.operators.matrix_multiply.grouped`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...graph.array import Array
from ...graph.builder import Builder
from ...operators.matrix_multiply.grouped import GroupedGemmDesc, GroupRowsDesc, RowTiles
from ..lowerings import Seen, seen
from .gather import taken
from .movement import joined
from .products import product_of
from .quantized import nibbles

_NUMBERS = np.dtype("uint32")


@dataclass(frozen=True)
class MatricesInBlocks:
    """Matrices in blocks along K, of 4 or 8 bits: [groups, columns, K]."""

    values: Array
    """Packed bytes."""
    scales: Array
    """[groups, columns, blocks]"""
    zeros: Array | None
    bits: int
    sizes: tuple[int, int, int, int]
    """Groups, columns, blocks and elements of a block."""
    part: tuple[int, int, int] | None = None
    """The first column of a part of these, the step to the next, and their count."""

    def seen(self) -> tuple[Seen, Seen, Seen | None]:
        """Elements as [groups, K, columns], scales and zero points."""
        groups, columns, blocks, block = self.sizes
        first, step, own = self.part or (0, 1, columns)
        width = blocks * block
        wide = -(-blocks * self.bits // 8) * 8 // self.bits

        def elements(x: Array, pitch: int) -> tuple[Array, tuple[int, int, int]]:
            """With the strides of groups, columns and elements."""
            begin = first * pitch * self.bits // 8
            x = x.view((x.size - begin,), (1,), begin)
            return nibbles(x) if self.bits == 4 else x, (
                columns * pitch, step * pitch, 1)

        b, (group, column, _) = elements(self.values, width)
        scales = self.scales.view(
            (groups, own, blocks), (columns * blocks, step * blocks, 1), first * blocks)
        zeros = None
        if self.zeros is not None:
            x, strides = elements(self.zeros, wide)
            zeros = x, (groups, own, blocks), strides
        return (b, (groups, width, own), (group, 1, column)), seen(scales), zeros


class TiledRows(RowTiles[Array]):
    """Rows of a graph that were sorted into tiles."""

    @property
    def count(self) -> int:
        return self.groups.shape[0] - 1

    def of_rows(self, builder: Builder, x: Array) -> Array:
        """[rows, columns] as [tiles, rows of a tile, columns]."""
        y = taken(builder, x, self.rows, 0)
        return builder.reshape(y, (self.count, self.each, x.shape[-1]))

    def of_groups(self, builder: Builder, x: Array) -> Array:
        """What each tile's group has, of [groups, ...]."""
        return builder.pack(taken(builder, x, self.groups.view((self.count,), (1,)), 0))

    def rows_back(self, builder: Builder, y: Array) -> Array:
        """[tiles, rows of a tile, columns] in the order of the rows."""
        x = builder.reshape(y, (self.count * self.each, y.shape[-1]))
        return taken(builder, x, self.places, 0)

    def product(self, builder: Builder, a: Array, b: Array | MatricesInBlocks) -> Array:
        """Each tile's rows by the matrix of its group, of [groups, K, columns]."""
        a = builder.pack(a)
        scales = zeros = None
        block = None
        if isinstance(b, MatricesInBlocks):
            matrices, scales, zeros = b.seen()
            array, (groups, _, columns), strides = matrices
            matrices, block = (array, (groups, a.shape[-1], columns), strides), b.sizes[-1]
        else:
            matrices = seen(b)
        y = builder.new((self.count, self.each, matrices[1][-1]), a.dtype)
        if y.storage is not None:
            builder.emit_own(GroupedGemmDesc, {
                "a_tensor": seen(a), "b_tensor": matrices, "b_scale_tensor": scales,
                "b_zero_point_tensor": zeros, "groups_tensor": seen(self.groups),
                "output_tensor": seen(y)}, block_size=block, trans_a=0, trans_b=0, alpha=1.0,
                beta=1.0)
        return y


def sum_of_groups(
    builder: Builder, indices: Array, weights: Array | None, rows: Sequence[Array], groups: int,
    widest: int, each: Callable[[TiledRows, Sequence[Array]], Array],
) -> Array:
    """The sum of what ``each`` makes of the tiles' ``rows``, for all of a row's [rows, k] groups
    and weights. Without weights k is 1. ``widest`` are the most columns that it makes. What a
    buffer does not hold is computed in parts."""
    count, k = indices.shape
    widest = max(widest, *(x.shape[-1] for x in rows))
    # Tiles have at most eight times as many places as rows.
    most = max(1, builder.device.runtime.engine.max_buffer // (
        8 * k * widest * rows[0].dtype.itemsize))
    if most < count:
        sums = []
        for begin in range(0, count, most):
            chosen, *parts = (_part(x, begin, min(begin + most, count)) for x in (indices, *rows))
            shares = weights and _part(weights, begin, min(begin + most, count))
            sums.append(sum_of_groups(builder, chosen, shares, parts, groups, widest, each))
        return joined(builder, sums, 0)
    tiles = _tiles(builder, indices, groups)
    y = tiles.rows_back(builder, each(tiles, [tiles.of_rows(builder, x) for x in rows]))
    if weights is None:
        return y
    return builder.reshape(product_of(
        builder, builder.reshape(weights, (count, 1, k)),
        builder.reshape(y, (count, k, y.shape[-1]))), (count, y.shape[-1]))


def _part(x: Array, begin: int, end: int) -> Array:
    return x.view((end - begin, *x.shape[1:]), x.strides, begin * x.strides[0])


def _tiles(builder: Builder, indices: Array, groups: int) -> TiledRows:
    """The rows of [rows, k] indices, each of which counts once for each of its groups."""
    rows, k = indices.shape
    tiles = TiledRows.of(builder.device.target.traits, rows * k, groups,
                         lambda count: builder.new((count,), _NUMBERS))
    if tiles.groups.storage is not None:
        listed = builder.reshape(indices, (rows * k,))
        builder.emit_own(
            GroupRowsDesc, {slot: seen(x) for slot, x in tiles.sorting(listed).items()},
            groups=groups, each=tiles.each, per=k, filler=0)
    return tiles


def part_of(columns: int, parts: int, part: int, *, turns: bool) -> tuple[int, int, int]:
    """The first column of a part, the step to the next, and their count. Columns of the parts take
    turns, or lie one part after the other."""
    own = columns // parts
    return (part, parts, own) if turns else (part * own, 1, own)


def parted(
    b: Array | MatricesInBlocks, part: tuple[int, int, int] | None
) -> Array | MatricesInBlocks:
    """Columns of [groups, columns, K], see :func:`part_of`, as a product reads them: [groups, K,
    columns]."""
    if isinstance(b, MatricesInBlocks):
        return replace(b, part=part)
    groups, columns, depth = b.shape
    first, step, own = part or (0, 1, columns)
    return b.view((groups, depth, own), (columns * depth, 1, step * depth), first * depth)
