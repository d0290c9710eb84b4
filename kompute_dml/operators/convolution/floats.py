"""Convolutions of FLOAT32 in tiles that fill a core, tap by tap."""

from __future__ import annotations

from typing import Any

from ...dtypes import DataType
from ...layout import Ints
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Operand
from .problem import Problem

SHADER = "convolution_floats"
TILES = {"t192x128": (192, 128, 16)}
"""Rows and columns of a tile, and channels of a step."""
_MAX_TAPS = 32


def serves(p: PlanBuilder, c: Problem) -> bool:
    """Whether the kernel can compute the packed convolution, if channels of its output are
    vectors. It was faster with several taps; one was not timed."""
    kinds = {p.tensor(f"{slot}_tensor").data_type for slot in ("input", "output")}
    z, *axes = c.axes
    return (
        kinds == {DataType.FLOAT32} and z.in_size * z.out_size * z.filter_size == 1
        and 1 < c.first_taps <= _MAX_TAPS and c.taps_in_line
        and not any(a.transposed or a.filter_step != 1 for a in axes)
        and all(c.in_channels % depth == 0 for _, _, depth in TILES.values()))


def dispatch(
    p: PlanBuilder, c: Problem, variant: str, tile: Ints, y: Operand, y_strides: Ints,
    spec: dict[str, int], push: dict[str, int], params: Ints, operands: dict[str, Any],
) -> None:
    """``operands``: in the order of the shader's bindings."""
    rows, columns, depth = tile
    row_tiles, column_tiles = -(-c.rows // rows), -(-c.out_channels // columns)
    spec = dict(spec)
    del spec["TYPE"], spec["OUTPUT_TYPE"]
    p.dispatch(
        variant, row_tiles * column_tiles * c.groups, **operands, params=params or (0,),
        push={"chunks": c.in_channels // depth, "first": [first for first, _ in c.reaches],
              **c.image_push(4, y_strides), "activation_at": 0, **push},
        spec={**c.image_spec(steps=True), "ROW_TILES": row_tiles, "COLUMN_TILES": column_tiles,
              **spec})
