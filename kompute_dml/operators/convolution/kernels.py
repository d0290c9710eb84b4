"""The kernels of convolutions. A new one is an entry here."""

from __future__ import annotations

from ...lowering.kernel import Kernel
from . import (
    depthwise,
    halo,
    im2col,
    packed_filter,
    packing,
    pointwise,
    resident_filter,
    tap_by_tap,
    tiles,
)
from .layer import Layer

FLOATS: tuple[Kernel[Layer], ...] = (
    *depthwise.OF_FLOATS, *im2col.KERNELS, *pointwise.KERNELS, *resident_filter.KERNELS,
    *tiles.HALVES, *tiles.OF_LINES, *tiles.WIDE, *tiles.OF_BLOCKS, tiles.Core(),
    *packed_filter.KERNELS)
INTEGERS: tuple[Kernel[Layer], ...] = (
    *depthwise.OF_BYTES, *tiles.BYTES, *tiles.OF_DOTS, tiles.Core())
QUANTIZED: tuple[Kernel[Layer], ...] = (*INTEGERS, *tap_by_tap.KERNELS, *halo.KERNELS)
KERNELS = {"float": FLOATS, "sums": INTEGERS, "scaled": INTEGERS, "quantized": QUANTIZED}
"""By what becomes of the sums."""

OF_FLOATS = (
    tiles.CORE, depthwise.DIRECT, packing.SUM, tiles.UNITS, im2col.SHADER, resident_filter.SHADER,
    packed_filter.SHADER, pointwise.SHADER, tiles.LINES, tiles.FLOATS, tiles.BLOCKS, packing.PACK,
    packed_filter.PACK, depthwise.SHADER, depthwise.ROWS)
OF_BYTES = (tiles.CORE, packing.SUM, tiles.UNITS, tiles.DOTS, depthwise.BYTES, packing.PACK)
"""The shaders that they run."""
