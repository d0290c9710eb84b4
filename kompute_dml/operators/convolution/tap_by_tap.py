"""Convolutions of bytes on matrix units, with one tap of 64 channels at a time in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...dtypes import DataType
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import sizes
from ...runtime.traits import DeviceTraits
from . import ends, packing
from .layer import Layer

SHADER = "convolution_bytes_coopmat"
_CHUNK, _VECTOR = 64, 16
"""Channels of a step, and of a vector."""
_MAX_TAPS = 32


def lacks_bytes(layer: Layer, traits: DeviceTraits) -> str | None:
    """Why a layer is none of signed bytes without zero points of input and filter, along two axes,
    whose outputs are vectors of channels, on matrix units whose order is known. None if it is."""
    if not layer.type is layer.w.data_type is DataType.INT8:
        return "input and filter are not INT8"
    if layer.tensor("input_zero_point_tensor") or layer.tensor("filter_zero_point_tensor"):
        return "there are zero points"
    if not (traits.fragments_alike and traits.multiplies(16, 16, 32, "i8", "i32")):
        return "no matrix units for bytes, or nobody knows where elements of fragments lie"
    if not (layer.is_flat and layer.c.taps_in_line):
        return "not two axes, or taps at different distances"
    return None if layer.stores_vectors else "the output's channels are no vectors"


@dataclass(frozen=True)
class TapByTap(Kernel[Layer]):
    """A tile of rows and columns."""

    tile: str

    @property
    def rows(self) -> int:
        return sizes(f"{SHADER}.{self.tile}")["rows"]

    @property
    def columns(self) -> int:
        return sizes(f"{SHADER}.{self.tile}")["columns"]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"taps-{self.tile}"

    def shader(self, layer: Layer) -> str:
        return f"{SHADER}.{self.tile}"

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if layer.packed.first_taps > _MAX_TAPS:
            return f"more than {_MAX_TAPS} taps"
        return lacks_bytes(layer, traits)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """Microseconds of the core with the most workgroups, and of packing. Measured are the
        workgroups that a core runs at a time, what it takes for a step of one, and what for the
        beginning and end of one; and of all variants a dispatch, and how many workgroups take the
        time that one takes alone."""
        c, known = layer.packed, measured.figures(traits.device_class, self.shader(layer))
        start, alone = (measured.figure(traits, SHADER, name) for name in ("start", "alone"))
        resident, step, extra = (known[name] for name in ("resident", "step", "extra"))
        groups = -(-c.tiles(self.rows, self.columns) // traits.cores)
        rest = groups % resident
        busy = groups - rest + (max(rest, alone) if rest else 0)
        steps = -(-c.in_channels // _CHUNK) * c.first_taps
        return start + groups * extra + busy * steps * step + layer.packing(traits)

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        end = ends.End(p, layer)
        c, bound = packing.packed(p, layer.c, packing.planned(p, layer.c))
        y_axis, x_axis = c.axes[1:]
        row_tiles, column_tiles = -(-c.rows // self.rows), -(-c.out_channels // self.columns)
        line = c.y_strides[-1]
        p.dispatch(
            self.shader(layer), row_tiles * column_tiles * c.groups, **bound,
            y=p.write("output_tensor"), **end.operands,
            push={"chunks": -(-c.in_channels // _CHUNK),
                  "first": [first for first, _ in c.reaches],
                  **c.image_push(_VECTOR, c.y_strides), **end.strides},
            spec={**c.image_spec(steps=True), "ROW_TILES": row_tiles,
                  "COLUMN_TILES": column_tiles,
                  "LINEAR": (c.y_strides[0], c.y_strides[-2]) == (
                      y_axis.positions * x_axis.positions * line, x_axis.positions * line),
                  "WHOLE": c.in_channels % _CHUNK == 0,
                  "EVEN": not (c.rows % self.rows or c.out_channels % self.columns), **end.spec,
                  "OUTPUT_TYPE": layer.output_code})


KERNELS: tuple[Kernel[Layer], ...] = (
    TapByTap("t128x64"), TapByTap("t96x128"), TapByTap("t64x128"), TapByTap("t96x64"))
