"""Convolutions of bytes on matrix units, of small images that lie in shared memory for all taps."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...lowering.builder import PlanBuilder
from ...tuning import work_key
from . import matrix_units, slices
from .problem import Problem

SHADER = "convolution_grid_coopmat"
_CHUNK, _VECTOR, _ROWS, _COLUMNS = 128, 16, 128, 64
"""Channels in shared memory and of a vector, places of a tile, and its output channels."""
_MOST_BEYOND = 32
"""The most places from the first tap of a row to its last one."""
_START, _EXTRA, _STEP = 3.2, 2.4, 0.508
"""Microseconds of a dispatch, of a tile's beginning and end, and of a tap with one chunk. One
workgroup runs on a core. As measured on an H200."""


class Grid(NamedTuple):
    """Places of an image: its pixels, and the zeros after its rows and columns, which all taps
    outside of it share."""

    height: int
    width: int
    before: int
    """Places from the first tap of a row to the row's own."""
    row_tiles: int
    column_tiles: int

    def microseconds(self, c: Problem, cores: int) -> float:
        """The estimated time of the core with the most tiles."""
        rounds = -(-self.row_tiles * self.column_tiles * c.groups // cores)
        return _START + rounds * (_EXTRA + c.in_channels // _CHUNK * c.first_taps * _STEP)


def _grid(c: Problem) -> Grid | None:
    """The grid of a packed convolution, or None if the kernel cannot compute it."""
    sizes, firsts = [], []
    for a, (first, reach) in zip(c.axes[1:], c.reaches):
        if a.input_step > 1 or (a.tap_step > 1 and a.filter_size > 1):
            return None
        beyond = first + a.positions - 1 + reach - a.in_size
        sizes.append(max(a.in_size + max(-first, beyond), a.positions))
        firsts.append(first)
    (height, width), (_, x_axis) = sizes, c.axes[1:]
    over = (c.axes[1].filter_size - 1) * width + x_axis.filter_size - 1
    if over > _MOST_BEYOND or c.first_taps == 1 or c.in_channels % _CHUNK:
        return None
    return Grid(height, width, -firsts[0] * width - firsts[1],
                -(-c.batches * height * width // _ROWS), -(-c.out_channels // _COLUMNS))


def chosen(p: PlanBuilder, c: Problem) -> Grid | None:
    """The grid, or None if another kernel should compute the convolution."""
    variant, plan = p.library.find(SHADER), matrix_units.planned(p, c).problem
    if (variant is None or variant.shared_bytes > p.device.max_shared_memory
            or not slices.takes_bytes(p, c) or (grid := _grid(plan)) is None):
        return None
    time = grid.microseconds(plan, p.device.cores) + matrix_units.packing(p, c)
    work = work_key("grid", c.rows, c.in_channels, c.k, c.out_channels, c.groups)
    found = [grid, None] if time < slices.microseconds(p, c) else [None, grid]
    return p.choose(work, found, lambda each: "other" if each is None else "grid")


def lower(p: PlanBuilder, c: Problem, operands: dict[str, Any], strides: dict[str, int],
          spec: dict[str, int]) -> bool:
    """Lower QUANTIZED_LINEAR_CONVOLUTION if the kernel presumably is the fastest. Returns whether
    it is. ``operands`` are those after the output."""
    grid = chosen(p, c)
    if grid is None:
        return False
    c, bound = matrix_units.packed(p, c, matrix_units.planned(p, c))
    p.dispatch(
        SHADER, grid.row_tiles * grid.column_tiles * c.groups, **bound,
        y=p.write("output_tensor"), **operands,
        push={"chunks": c.in_channels // _CHUNK, **c.image_push(_VECTOR, c.y_strides), **strides},
        spec={**c.image_spec(steps=False), "GRID_Y": grid.height, "GRID_X": grid.width,
              "BEFORE": grid.before, "ROW_TILES": grid.row_tiles,
              "COLUMN_TILES": grid.column_tiles, **spec})
    return True
