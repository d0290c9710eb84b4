"""Convolutions with small filters, which matrix units keep in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...layout import Ints, coalesce, product
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import shared_bytes, sizes
from ...runtime.traits import DeviceTraits
from . import packing
from .layer import Layer
from .problem import Problem

SHADER = "convolution_resident_coopmat"
_FRAGMENT = 16
"""Rows, columns and K of a product."""
_LOADS = 8
"""The most vectors of a tile for each invocation, which are on their way while it multiplies."""


class Tile(NamedTuple):
    down: int
    across: int
    pixels: int
    """Pixels that are read, ..."""
    reach: int
    """... and those that rows of fragments may reach."""


@dataclass(frozen=True)
class ResidentFilter(Kernel[Layer]):
    """A workgroup reads the filter once, for several tiles."""

    variant: str
    columns: int
    """Output channels of a workgroup."""
    fragments: int
    """Fragments of outputs that all subgroups compute at a time."""
    resident: int
    """Workgroups that a core runs at a time."""
    outputs: Ints
    """The most outputs of a tile."""
    steps: int
    """The most steps of K."""
    points: bool
    """Whether it is for filters of one tap. Others move by single pixels."""
    cost = 0.5  # where it serves nothing else was measured to be faster

    @property
    def subgroups(self) -> int:
        return sizes(f"{SHADER}.{self.variant}")["subgroups"]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"resident-{self.variant}"

    def shader(self, layer: Layer) -> str:
        return layer.variant(f"{SHADER}.{self.variant}")

    def _tile(self, sizes: Sequence[int], taps: Sequence[int]) -> Tile:
        """A tile of an output of such sizes."""
        down, across = (-(-n // -(-n // most)) for n, most in zip(sizes, self.outputs))
        height, width = down + taps[0] - 1, across + taps[1] - 1
        # Outputs are counted along rows with their neighbours.
        fragments = -(-(down * width - taps[1] + 1) // (_FRAGMENT * self.fragments))
        reach = fragments * self.fragments * _FRAGMENT + (taps[0] - 1) * width + taps[1] - 1
        return Tile(down, across, height * width, reach)

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        c, axes = layer.c, layer.c.axes[1:]
        taps = [a.filter_size for a in axes]
        if (product(taps) == 1) != self.points:
            return f"{product(taps)} taps"
        if c.groups > 1 or c.in_channels % _FRAGMENT or c.out_channels % _FRAGMENT or (
                c.out_channels > self.columns):
            return (f"several groups, channels that are no multiples of {_FRAGMENT}, or more than "
                    f"{self.columns} output channels")
        if (reason := layer.lacks_halves(traits)) is not None:
            return reason
        if not layer.is_flat or any(a.transposed or a.filter_step < 0 for a in c.axes) or (
                not self.points and {s for a in axes for s in (a.tap_step, a.input_step)} != {1}):
            return "not two axes, or transposed, mirrored, dilated or strided"
        if product(taps) * c.in_channels > self.steps * _FRAGMENT:
            return "the filter exceeds the registers"
        if self._is_slower(layer, traits):
            return "with such a constant filter it was measured to be slower"
        tile, vectors = self._tile([a.out_size for a in axes], taps), c.in_channels // 8
        least = measured.count(traits, SHADER, "tiles")  # of a workgroup: it reads the filter once
        if c.rows < least * self.resident * traits.cores * product(self.outputs):
            return f"workgroups get fewer than {least} tiles"
        if tile.pixels * vectors > _LOADS * 32 * self.subgroups:
            return "a tile has too many pixels for the registers"
        shared = 16 * tile.reach * (vectors + 1) + shared_bytes(f"{SHADER}.{self.variant}")
        return None if shared <= traits.max_shared_memory else (
            f"a tile takes {shared} bytes of shared memory")

    def _is_slower(self, layer: Layer, traits: DeviceTraits) -> bool:
        """Whether reading the filter again and again, in the order of registers, is faster."""
        if not layer.w.owned_by_dml or not traits.fragments_alike:
            return False
        return self.points or (layer.c.out_channels == 64 and not layer.fused.has_tensor)

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c, fused, axes = layer.c, layer.fused, layer.c.axes[1:]
        vectors, places = c.in_channels // 8, self.resident * p.device.cores
        taps, sizes, outs = ([getattr(a, name) for a in axes]
                             for name in ("filter_size", "in_size", "out_size"))
        tile = self._tile(outs, taps)
        layer_in, operands = packing.packed(p, c, packing.planned(p, c))
        batches, x_strides, y_strides = c.batches, layer_in.x_strides[-2:], c.y_strides[-2:]
        lines, (line_strides,) = coalesce((batches, *outs), (c.y_strides[0], *y_strides))
        pixel = _pixel_stride(layer_in)
        if pixel and len(lines) == 1:  # one long line of pixels
            batches, sizes, outs = 1, [1, lines[0]], [1, lines[0]]
            x_strides, y_strides = (0, pixel), (0, line_strides[0])
            tile = self._tile(outs, taps)
        x_tiles, y_tiles = -(-outs[1] // tile.across), -(-outs[0] // tile.down)
        p.dispatch(
            self.shader(layer), min(places, batches * x_tiles * y_tiles),
            x=operands["x"], w=operands["w"], y=p.write("output_tensor"),
            bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
            push={"x_tiles": x_tiles, "y_tiles": y_tiles, "batches": batches,
                  "out_channels": c.out_channels, "in_sizes": sizes, "out_sizes": outs,
                  "first": [a.phases[0][2] for a in axes], "steps": [a.input_step for a in axes],
                  "x_strides": (layer_in.x_strides[0], *x_strides),
                  "y_strides": (c.y_strides[0], *y_strides), "bias_stride": layer.bias_stride,
                  "activation_at": 0},
            spec={"HAS_BIAS": layer.tensor("bias_tensor") is not None, "TAPS_Y": taps[0],
                  "TAPS_X": taps[1], "VECTORS": vectors, "TILE_Y": tile.down,
                  "TILE_X": tile.across, "SHARED": tile.reach * (vectors + 1),
                  "LOADS": -(-tile.pixels * vectors // (32 * self.subgroups)), **fused.spec})


def _pixel_stride(c: Problem) -> int:
    """The elements from pixel to pixel, if a filter has one tap and the outputs' positions are all
    pixels in the order of memory; else 0."""
    if any(a.filter_size > 1 or a.input_step != 1 or a.phases[0][2] != 0
           or a.out_size != a.in_size for a in c.axes):
        return 0
    sizes, (strides,) = coalesce((c.batches, *(a.in_size for a in c.axes)),
                                 (c.x_strides[0], *c.x_strides[2:]))
    return strides[0] if len(sizes) == 1 else 0


# As measured on an H200.
KERNELS: tuple[Kernel[Layer], ...] = (
    ResidentFilter("c1f2", 64, 2, 2, (1, 32), 16, True),
    ResidentFilter("c1f2s8", 64, 4, 1, (4, 28), 36, False))
