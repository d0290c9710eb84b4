"""The kernels of convolutions. A new one is an entry here."""

from __future__ import annotations

from ...lowering.kernel import Kernel
from . import depthwise, ends, grids, kept, packed, packing, patches, points, slices, tiles
from .layer import Layer

FLOATS: tuple[Kernel[Layer], ...] = (
    *depthwise.OF_FLOATS, *patches.KERNELS, *points.KERNELS, *kept.KERNELS, *tiles.HALVES,
    *tiles.OF_LINES, *tiles.WIDE, *tiles.OF_BLOCKS, tiles.Core(), *packed.KERNELS)
INTEGERS: tuple[Kernel[Layer], ...] = (
    *depthwise.OF_BYTES, *tiles.BYTES, *tiles.OF_DOTS, tiles.Core())
QUANTIZED: tuple[Kernel[Layer], ...] = (*INTEGERS, *slices.KERNELS, *grids.KERNELS)
KERNELS = {"float": FLOATS, "sums": INTEGERS, "scaled": INTEGERS, "quantized": QUANTIZED}
"""By what becomes of the sums."""

OF_FLOATS = (
    tiles.CORE, depthwise.DIRECT, ends.SUM, tiles.UNITS, patches.SHADER, kept.SHADER,
    packed.SHADER, points.SHADER, tiles.LINES, tiles.FLOATS, tiles.BLOCKS, packing.PACK,
    packed.PACK, depthwise.SHADER, depthwise.ROWS)
OF_BYTES = (tiles.CORE, ends.SUM, tiles.UNITS, tiles.DOTS, depthwise.BYTES, packing.PACK)
"""The shaders that they run."""
