"""Convolutions of bytes on matrix units, of small images that lie in shared memory for all taps."""

from __future__ import annotations

from typing import NamedTuple

from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.traits import DeviceTraits
from . import ends, packing
from .layer import Layer
from .problem import Problem
from .tap_by_tap import lacks_bytes

SHADER = "convolution_halo_coopmat"
_CHUNK, _VECTOR, _ROWS, _COLUMNS = 128, 16, 128, 64
"""Channels in shared memory and of a vector, places of a tile, and its output channels."""
_MOST_BEYOND = 32
"""The most places from the first tap of a row to its last one."""


class Grid(NamedTuple):
    """Places of an image: its pixels, and the zeros after its rows and columns, which all taps
    outside of it share."""

    height: int
    width: int
    before: int
    """Places from the first tap of a row to the row's own."""
    row_tiles: int
    column_tiles: int


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


class Halo(Kernel[Layer]):
    """Each tile of an image reads its pixels once."""

    name = "halo"

    def shader(self, layer: Layer) -> str:
        return SHADER

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if (reason := lacks_bytes(layer, traits)) is not None:
            return reason
        return None if _grid(layer.packed) is not None else (
            f"strides or dilations, one tap, rows of taps that reach over {_MOST_BEYOND} places, "
            f"or channels that are no multiple of {_CHUNK}")

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """Microseconds of the core with the most tiles. Measured are those of a dispatch, of a
        tile's beginning and end, and of a tap with one chunk. One workgroup runs on a core."""
        c, grid = layer.packed, _grid(layer.packed)
        known = measured.figures(traits.device_class, SHADER)
        assert grid is not None
        rounds = -(-grid.row_tiles * grid.column_tiles * c.groups // traits.cores)
        steps = c.in_channels // _CHUNK * c.first_taps
        time = known["start"] + rounds * (known["extra"] + steps * known["step"])
        return time + layer.packing(traits)

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        grid, end = _grid(layer.packed), ends.End(p, layer)
        assert grid is not None
        c, bound = packing.packed(p, layer.c, packing.planned(p, layer.c))
        p.dispatch(
            SHADER, grid.row_tiles * grid.column_tiles * c.groups, **bound,
            y=p.write("output_tensor"), **end.operands,
            push={"chunks": c.in_channels // _CHUNK, **c.image_push(_VECTOR, c.y_strides),
                  **end.strides},
            spec={**c.image_spec(steps=False), "GRID_Y": grid.height, "GRID_X": grid.width,
                  "BEFORE": grid.before, "ROW_TILES": grid.row_tiles,
                  "COLUMN_TILES": grid.column_tiles, **end.spec,
                  "OUTPUT_TYPE": layer.output_code})


KERNELS: tuple[Kernel[Layer], ...] = (Halo(),)
