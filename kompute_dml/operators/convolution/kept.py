"""Convolutions with small filters, which matrix units keep in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...layout import Ints, coalesce, product
from ...lowering.activation import Fused
from ...lowering.builder import PlanBuilder
from . import matrix_units
from .problem import Problem

SHADER = "convolution_kept_coopmat"
_FRAGMENT = 16
"""Rows, columns and K of a product."""
_LOADS = 8
"""The most vectors of a tile for each invocation, which are on their way while it multiplies."""
_LEAST = 2
"""The least tiles of a workgroup: it reads the filter once."""


class Kernel(NamedTuple):
    name: str
    columns: int
    """Output channels of a workgroup."""
    subgroups: int
    fragments: int
    """Fragments of outputs that all subgroups compute at a time."""
    resident: int
    """Workgroups that a core runs at a time."""
    outputs: Ints
    """The most outputs of a tile."""
    steps: int
    """The most steps of K."""

    def tile(self, sizes: Sequence[int], taps: Sequence[int]) -> Tile:
        """A tile of an output of such sizes."""
        down, across = (-(-n // -(-n // most)) for n, most in zip(sizes, self.outputs))
        height, width = down + taps[0] - 1, across + taps[1] - 1
        # Outputs are counted along rows with their neighbours.
        fragments = -(-(down * width - taps[1] + 1) // (_FRAGMENT * self.fragments))
        reach = fragments * self.fragments * _FRAGMENT + (taps[0] - 1) * width + taps[1] - 1
        return Tile(down, across, height * width, reach)


class Tile(NamedTuple):
    down: int
    across: int
    pixels: int
    """Pixels that are read, ..."""
    reach: int
    """... and those that rows of fragments may reach."""


# As measured on an H200.
_POINTS = Kernel("c1f2", 64, 4, 2, 2, (1, 32), 16)
_WINDOWS = Kernel("c1f2s8", 64, 8, 4, 1, (4, 28), 36)


def _kernel(c: Problem) -> Kernel | None:
    """The kernel that can compute a convolution."""
    z, *axes = c.axes
    taps = [a.filter_size for a in axes]
    moves = {s for a in axes for s in (a.tap_step, a.input_step)}
    kernel = _POINTS if taps == [1, 1] else _WINDOWS
    if (c.groups > 1 or c.in_channels % _FRAGMENT or c.out_channels % _FRAGMENT
            or c.out_channels > kernel.columns or z.in_size * z.out_size * z.filter_size != 1
            or any(a.transposed or a.filter_step < 0 for a in c.axes)
            or (kernel is _WINDOWS and moves != {1})
            or product(taps) * c.in_channels > kernel.steps * _FRAGMENT):
        return None
    return kernel


def lower(p: PlanBuilder, c: Problem, fused: Fused) -> bool:
    """Lower the convolution if a kernel can compute it. Returns whether one can."""
    kernel = _kernel(c)
    if (kernel is None or not matrix_units.takes_halves(p)
            or not matrix_units.is_plain(p, c, p.write("output_tensor"), c.y_strides)):
        return False
    variant = p.library.find(SHADER, kernel.name)
    axes, vectors, places = c.axes[1:], c.in_channels // 8, kernel.resident * p.device.cores
    taps, sizes, outs = ([getattr(a, name) for a in axes]
                         for name in ("filter_size", "in_size", "out_size"))
    tile = kernel.tile(outs, taps)
    if (variant is None or c.rows < _LEAST * places * product(kernel.outputs)
            or tile.pixels * vectors > _LOADS * 32 * kernel.subgroups
            or 16 * tile.reach * (vectors + 1) + variant.shared_bytes > p.device.max_shared_memory
            or not matrix_units.keeps_filter(p, c)):
        return False
    made, operands = matrix_units.packed(p, c, matrix_units.planned(p, c))
    batches, x_strides, y_strides = c.batches, made.x_strides[-2:], c.y_strides[-2:]
    lines, (line_strides,) = coalesce((batches, *outs), (c.y_strides[0], *y_strides))
    pixel = _pixel_stride(made)
    if pixel and len(lines) == 1:  # one long line of pixels
        batches, sizes, outs = 1, [1, lines[0]], [1, lines[0]]
        x_strides, y_strides = (0, pixel), (0, line_strides[0])
        tile = kernel.tile(outs, taps)
    x_tiles, y_tiles = -(-outs[1] // tile.across), -(-outs[0] // tile.down)
    bias = p.tensor("bias_tensor")
    p.dispatch(
        fused.variant(f"{SHADER}.{kernel.name}"), min(places, batches * x_tiles * y_tiles),
        x=operands["x"], w=operands["w"], y=p.write("output_tensor"), bias=p.read("bias_tensor"),
        **p.read_tail(), params=fused.words or (0,),
        push={"x_tiles": x_tiles, "y_tiles": y_tiles, "batches": batches,
              "out_channels": c.out_channels, "in_sizes": sizes, "out_sizes": outs,
              "first": [a.phases[0][2] for a in axes], "steps": [a.input_step for a in axes],
              "x_strides": (made.x_strides[0], *x_strides),
              "y_strides": (c.y_strides[0], *y_strides),
              "bias_stride": bias.strides[1] if bias is not None and c.out_channels > 1 else 0,
              "activation_at": 0},
        spec={"HAS_BIAS": bias is not None, "TAPS_Y": taps[0], "TAPS_X": taps[1],
              "VECTORS": vectors, "TILE_Y": tile.down, "TILE_X": tile.across,
              "SHARED": tile.reach * (vectors + 1),
              "LOADS": -(-tile.pixels * vectors // (32 * kernel.subgroups)), **fused.spec})
    return True


def _pixel_stride(c: Problem) -> int:
    """The elements from pixel to pixel, if a filter has one tap and the outputs' positions are all
    pixels in the order of memory; else 0."""
    if any(a.filter_size > 1 or a.input_step != 1 or a.phases[0][2] != 0
           or a.out_size != a.in_size for a in c.axes):
        return 0
    sizes, (strides,) = coalesce((c.batches, *(a.in_size for a in c.axes)),
                                 (c.x_strides[0], *c.x_strides[2:]))
    return strides[0] if len(sizes) == 1 else 0
