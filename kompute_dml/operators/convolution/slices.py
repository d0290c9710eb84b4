"""Convolutions of bytes on matrix units, with one tap of 64 channels at a time in shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...dtypes import DataType
from ...lowering.builder import PlanBuilder
from ...tuning import work_key
from . import matrix_units
from .problem import Problem

SHADER = "convolution_bytes_coopmat"
_CHUNK, _VECTOR = 64, 16
"""Channels of a step, and of a vector."""
_MAX_TAPS = 32
_START, _ALONE = 3.2, 1.8
"""Microseconds of a dispatch, and how many workgroups take the time that one takes alone."""


class Tile(NamedTuple):
    name: str
    rows: int
    columns: int
    resident: int
    """Workgroups that a core runs at a time."""
    step: float
    """Microseconds of a core for a step of one workgroup, ..."""
    extra: float
    """... and for its beginning and end."""

    def microseconds(self, c: Problem, cores: int) -> float:
        """The estimated time of the core with the most workgroups."""
        groups = -(-c.tiles(self.rows, self.columns) // cores)
        rest = groups % self.resident
        busy = groups - rest + (max(rest, _ALONE) if rest else 0)
        steps = -(-c.in_channels // _CHUNK) * c.first_taps
        return _START + groups * self.extra + busy * steps * self.step


# As measured on an H200.
TILES = (Tile("t128x64", 128, 64, 3, 0.283, 0.62), Tile("t96x128", 96, 128, 2, 0.336, 1.1),
         Tile("t64x128", 64, 128, 3, 0.29, 0.5), Tile("t96x64", 96, 64, 3, 0.265, 0.35))


def takes_bytes(p: PlanBuilder, c: Problem) -> bool:
    """Whether the convolution is one of signed bytes without zero points of input and filter, along
    two axes, whose outputs are vectors of channels, on matrix units whose order is known."""
    x, w, (z, *_) = p.tensor("input_tensor"), p.tensor("filter_tensor"), c.axes
    return (
        x.data_type is DataType.INT8 and w.data_type is DataType.INT8
        and p.tensor("input_zero_point_tensor") is None
        and p.tensor("filter_zero_point_tensor") is None
        and p.device.fragments_alike and p.device.multiplies(16, 16, 32, "i8", "i32")
        and z.in_size * z.out_size * z.filter_size == 1
        and c.taps_in_line and matrix_units.is_plain(p, c, p.write("output_tensor"), c.y_strides))


def _timed(p: PlanBuilder, c: Problem) -> list[tuple[float, Tile]]:
    """Tiles that can compute the convolution, after their estimated times, the presumably fastest
    first."""
    if c.first_taps > _MAX_TAPS or not takes_bytes(p, c):
        return []
    packing = matrix_units.packing(p, c)
    return sorted((tile.microseconds(c, p.device.cores) + packing, tile) for tile in TILES
                  if (v := p.library.find(SHADER, tile.name)) is not None
                  and v.shared_bytes <= p.device.max_shared_memory)


def microseconds(p: PlanBuilder, c: Problem) -> float:
    """The estimated time of this kernel, or of others if they are faster."""
    others = matrix_units.estimate(p, matrix_units.planned(p, c).problem)
    return min([others, *(time for time, _ in _timed(p, c))])


def chosen(p: PlanBuilder, c: Problem) -> Tile | None:
    """The tile, or None if another kernel should compute the convolution."""
    timed = _timed(p, c)
    if not timed:
        return None
    able = [tile for _, tile in timed]
    wins = timed[0][0] < matrix_units.estimate(p, matrix_units.planned(p, c).problem)
    work = work_key("slices", c.rows, c.in_channels, c.k, c.out_channels, c.groups)
    found = [*able, None] if wins else [None, *able]
    return p.choose(work, found, lambda tile: "other" if tile is None else f"slices-{tile.name}")


def lower(p: PlanBuilder, c: Problem, operands: dict[str, Any], strides: dict[str, int],
          spec: dict[str, int]) -> bool:
    """Lower QUANTIZED_LINEAR_CONVOLUTION if the kernel presumably is the fastest. Returns whether
    it is. ``operands`` are those after the output."""
    tile = chosen(p, c)
    if tile is None:
        return False
    c, bound = matrix_units.packed(p, c, matrix_units.planned(p, c))
    y_axis, x_axis = c.axes[1:]
    row_tiles, column_tiles = -(-c.rows // tile.rows), -(-c.out_channels // tile.columns)
    line = c.y_strides[-1]
    p.dispatch(
        f"{SHADER}.{tile.name}", row_tiles * column_tiles * c.groups, **bound,
        y=p.write("output_tensor"), **operands,
        push={"chunks": -(-c.in_channels // _CHUNK), "first": [first for first, _ in c.reaches],
              **c.image_push(_VECTOR, c.y_strides), **strides},
        spec={**c.image_spec(steps=True), "ROW_TILES": row_tiles, "COLUMN_TILES": column_tiles,
              "LINEAR": (c.y_strides[0], c.y_strides[-2]) == (
                  y_axis.positions * x_axis.positions * line, x_axis.positions * line),
              "WHOLE": c.in_channels % _CHUNK == 0,
              "EVEN": not (c.rows % tile.rows or c.out_channels % tile.columns), **spec})
    return True
