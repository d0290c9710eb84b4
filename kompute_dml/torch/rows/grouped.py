"""Products of groups of rows with a matrix each: the experts of a mixture.

The ends of the groups are read on the device. Rows are sorted into tiles of one group each, see
:mod:`kompute_dml.operators.matrix_multiply.grouped`.

https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grouped_mm.html
"""

from __future__ import annotations

import torch

from ...dtypes import DataType
from ...functions.matrix_multiply import gemm_of_tiles, rows_in_tiles
from ...operators.matrix_multiply.grouped import RowTiles
from ...tensors import Tensor
from ..table import call, lowers
from ..values import F32, I32, I64, Unsupported, Value, cast, full, resized, value


def _group_of(ends: Value, rows: int) -> Value:
    """The first group that ends behind each row. Rows behind all groups have the number of
    groups."""
    numbers = call("arange", rows)
    behind = call("ge.Tensor", call("unsqueeze", numbers, 1),
                  call("unsqueeze", cast(ends, I64), 0))
    return cast(call("sum.dim_IntList", cast(behind, I64), [1]), I32)


def _tiles(ends: Value, rows: int, filler: int = 0) -> RowTiles[Tensor]:
    return rows_in_tiles(_group_of(ends, rows).elements, ends.shape[0], filler)


def _places(x: RowTiles[Tensor]) -> tuple[Value, Value]:
    """The row at each place, and the place of each row."""
    rows, places = (Value(t.viewed_as(DataType.INT32), t.sizes, I32) for t in (x.rows, x.places))
    return rows, places


@lowers("transformers::grouped_mm_fallback")
def _rows_by_group(x: Value, matrices: Value, ends: Value) -> Value:
    """Each row times the matrix of its group. Rows behind the last group are undefined.
    transformers calls it in compiled graphs."""
    _refuse_open(x, matrices)
    tiles = _tiles(ends, x.shape[0])
    rows, places = _places(tiles)
    count, columns = rows.shape[0] // tiles.each, matrices.shape[-1]
    gathered = resized(call("index_select", x, 0, rows), (count, tiles.each, x.shape[1]))

    def product(a: Value, b: Value) -> Value:
        y = gemm_of_tiles(a.elements, b.elements, tiles)
        if y is None:
            return cast(product(cast(a, F32), cast(b, F32)), a.dtype)
        return value(y, (count * tiles.each, columns), a.dtype)

    return call("index_select", product(gathered, matrices), 0, places)


def _sums_by_group(x: Value, y: Value, ends: Value) -> Value:
    """The sum of ``x[row] * y[row].T`` over the rows of each group."""
    _refuse_open(x, y)
    (rows, left), (_, right), groups = x.shape, y.shape, ends.shape[0]
    tiles = _tiles(ends, rows, rows)
    listed, _ = _places(tiles)
    count = listed.shape[0] // tiles.each
    # A place without a row has one of zeros.
    first, second = (resized(call("index_select", call(
        "cat", [t, full((1, t.shape[1]), 0, t.dtype)]), 0, listed),
        (count, tiles.each, t.shape[1])) for t in (x, y))
    products = call("bmm", call("transpose.int", first, 1, 2), second)
    zeros = call("expand", full((1, 1, 1), 0, products.dtype), (groups, left, right))
    of_tiles = Value(tiles.groups.viewed_as(DataType.INT32)[:count], (count,), I32)
    return call("index_add", zeros, 0, of_tiles, products)


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
