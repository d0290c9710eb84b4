"""Products of groups of rows with a matrix each: the experts of a mixture.

The ends of the groups are read on the device. Rows are gathered into tiles of one group each, and
so is the group's matrix for each tile: a product of tiles does as much work as there are rows, but
for the last tile of a group. There are as many tiles as any ends may need.

https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grouped_mm.html
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..table import call, lowers
from ..values import I64, Unsupported, Value, cast, full, resized

_MOST_ROWS = 128
"""Of a tile."""


class _Tiles(NamedTuple):
    """Which rows of a group each tile has."""

    groups: Value
    """The group of each tile. Those behind the last one have the last group, and no rows."""
    rows: Value
    """The row of each of a tile's places."""
    filled: Value
    """Whether there is a row, by tile and place."""
    places: Value
    """Where each row lies among the places of all tiles."""
    each: int
    """The rows of a tile."""


def _tiles(ends: Value, rows: int) -> _Tiles:
    """Those of so many rows."""
    groups = ends.shape[0]
    each = 1
    while each < min(_MOST_ROWS, rows // groups):
        each *= 2
    # A group wastes less than a tile.
    count = rows if each == 1 else rows // each + groups
    ends = cast(ends, I64)
    begins = call("cat", [full((1,), 0, I64), call("slice.Tensor", ends, 0, 0, groups - 1)])
    tiles = call("div.Tensor_mode", call("add.Tensor", call("sub.Tensor", ends, begins), each - 1),
                 each, rounding_mode="floor")
    tile_ends = call("cumsum", tiles, 0)
    tile_begins = call("sub.Tensor", tile_ends, tiles)
    numbers = call("arange", count)
    group = _group_of(numbers, tile_ends)
    first = call("add.Tensor", call("index_select", begins, 0, group), call(
        "mul.Tensor", call("sub.Tensor", numbers, call("index_select", tile_begins, 0, group)),
        each))
    row = call("add.Tensor", call("unsqueeze", first, 1), call("arange", each))
    filled = call("lt.Tensor", row, call(
        "unsqueeze", call("index_select", ends, 0, group), 1))
    all_rows = call("arange", rows)
    own = _group_of(all_rows, ends)
    places = call("add.Tensor", call("mul.Tensor", call(
        "index_select", tile_begins, 0, own), each), call(
            "sub.Tensor", all_rows, call("index_select", begins, 0, own)))
    return _Tiles(group, resized(call("clamp", row, 0, rows - 1), (count * each,)), filled,
                  call("clamp", places, 0, count * each - 1), each)


def _group_of(numbers: Value, ends: Value) -> Value:
    """The first group that ends behind each number, or the last one."""
    behind = call("ge.Tensor", call("unsqueeze", numbers, 1), call("unsqueeze", ends, 0))
    return call("clamp", call("sum.dim_IntList", cast(behind, I64), [1]), 0, ends.shape[0] - 1)


@lowers("transformers::grouped_mm_fallback")
def _rows_by_group(x: Value, matrices: Value, ends: Value) -> Value:
    """Each row times the matrix of its group. Rows behind the last group are undefined.
    transformers calls it in compiled graphs."""
    _refuse_open(x, matrices)
    (rows, inner), (_, _, columns) = x.shape, matrices.shape
    tiles = _tiles(ends, rows)
    count = tiles.groups.shape[0]
    gathered = resized(call("index_select", x, 0, tiles.rows), (count, tiles.each, inner))
    products = call("bmm", gathered, call("index_select", matrices, 0, tiles.groups))
    return call("index_select", resized(products, (count * tiles.each, columns)), 0, tiles.places)


def _sums_by_group(x: Value, y: Value, ends: Value) -> Value:
    """The sum of ``x[row] * y[row].T`` over the rows of each group."""
    _refuse_open(x, y)
    (rows, left), (_, right), groups = x.shape, y.shape, ends.shape[0]
    tiles = _tiles(ends, rows)
    count = tiles.groups.shape[0]
    filled = call("unsqueeze", tiles.filled, 2)
    first, second = (
        call("where.self", filled, resized(
            call("index_select", t, 0, tiles.rows), (count, tiles.each, t.shape[1])),
             full((), 0, t.dtype)) for t in (x, y))
    products = call("bmm", call("transpose.int", first, 1, 2), second)
    zeros = call("expand", full((1, 1, 1), 0, products.dtype), (groups, left, right))
    return call("index_add", zeros, 0, tiles.groups, products)


@lowers("_grouped_mm")
def grouped_mm(a: Value, b: Value, offs: Value | None = None, bias: Value | None = None,
               out_dtype: torch.dtype | None = None) -> Value:
    """Rows of ``a`` by groups, with a matrix of ``b`` each; or sums over the rows of a group, where
    both have two dimensions; or a product for each group, where both have three."""
    if bias is not None or out_dtype not in (None, a.dtype) or not a.numel or not b.numel:
        raise Unsupported("grouped products with a bias, of another type, or of no elements")
    if offs is None and (a.ndim, b.ndim) == (3, 3):
        return call("bmm", a, b)
    if offs is None or a.ndim != 2:
        raise Unsupported("grouped products whose columns are in groups")
    if b.ndim == 3:
        return _rows_by_group(a, b, offs)
    return _sums_by_group(call("transpose.int", a, 0, 1), b, offs)


@lowers("transformers::grouped_mm_fallback_backward")
def rows_by_group_backward(x: Value, matrices: Value, ends: Value, gradient: Value) -> list[Value]:
    """The gradients of the rows and of the matrices."""
    return [_rows_by_group(gradient, call("transpose.int", matrices, 1, 2), ends),
            _sums_by_group(x, gradient, ends)]


def _refuse_open(*values: Value) -> None:
    if not all(type(n) is int for x in values for n in x.shape):
        raise Unsupported("grouped products of open sizes")
