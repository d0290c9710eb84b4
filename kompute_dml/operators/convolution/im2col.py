"""Convolutions of images with few channels on matrix units: the first layers of networks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import shared_bytes
from ...runtime.traits import DeviceTraits
from . import packing
from .layer import Layer
from .problem import Problem

SHADER = "convolution_im2col_coopmat"
_FRAGMENT = 16
"""Rows, columns and K of a product."""
_CHANNELS = 4
"""The most channels of an image."""
_COLUMNS = 64
"""Output channels of a workgroup."""
_MAX_STEPS = 14
"""The most steps of K, for a subgroup keeps the filter in registers."""
_INVOCATIONS = 128
_ACROSS, _DOWN = 8, 2
"""Fragments of outputs along a row, and rows, of which a workgroup keeps the pixels: at most."""


class _Bands(NamedTuple):
    """How workgroups divide the images."""

    lanes: int
    row_steps: int
    step: int
    across: int
    """Fragments along a row, ..."""
    down: int
    """... and rows of a workgroup."""
    pitch: int
    patch_rows: int
    x_tiles: int
    y_tiles: int
    bands: int
    """For which a workgroup reads the filter once."""
    column_tiles: int

    def patches(self, c: Problem) -> int:
        """The patches of all images, for all output channels."""
        rows = -(-c.axes[1].out_size // self.down)
        return c.batches * rows * self.x_tiles * self.column_tiles


class Im2col(Kernel[Layer]):
    """A workgroup keeps the pixels of a few rows, and the filter. Where it serves nothing else was
    measured to be faster."""

    name = "im2col"

    def shader(self, layer: Layer) -> str:
        return layer.variant(SHADER)

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        c = layer.c
        if c.groups > 1 or c.in_channels > _CHANNELS or c.out_channels % _FRAGMENT:
            return (f"several groups, more than {_CHANNELS} input channels, or output channels "
                    f"that are no multiple of {_FRAGMENT}")
        if (reason := layer.lacks_halves(traits)) is not None:
            return reason
        if not layer.is_flat or any(a.transposed for a in c.axes) or c.axes[2].tap_step != 1 or min(
                a.filter_step for a in c.axes) < 0:
            return "not two axes, or transposed, mirrored or dilated along rows"
        return None if self._bands(layer, traits) is not None else (
            "the filter exceeds the registers, a patch the shared memory, or images do not fill "
            "the device")

    def _bands(self, layer: Layer, traits: DeviceTraits) -> _Bands | None:
        """The largest patches of which each core has as many as it runs at a time; of small images
        the smallest, if each core has one."""
        fragments = -(-layer.c.axes[2].out_size // _FRAGMENT)
        least = -(-fragments // _ACROSS)
        resident = measured.count(traits, SHADER, "resident")
        for x_tiles, most, places in ((least, _DOWN, resident), (least, 1, resident),
                                      (min(2 * least, fragments), 1, 1)):
            bands = self._divided(layer, traits, x_tiles, most)
            if bands is not None and bands.patches(layer.c) >= places * traits.cores:
                return bands
        return None

    @staticmethod
    def _divided(layer: Layer, traits: DeviceTraits, x_tiles: int, most: int) -> _Bands | None:
        """Images in so many parts along a row, and up to ``most`` rows at a time."""
        c, (_, y_axis, x_axis) = layer.c, layer.c.axes
        stride = x_axis.input_step
        # Rows of a fragment are whole vectors apart.
        lanes = 4 if stride % 2 == 0 else 8
        row_steps = -(-x_axis.filter_size * lanes // _FRAGMENT)
        if y_axis.filter_size * row_steps > _MAX_STEPS:
            return None
        step = stride * lanes // 8
        across = -(-x_axis.out_size // (_FRAGMENT * x_tiles))
        pitch = (across * _FRAGMENT - 1) * step + 2 * row_steps
        reach = (y_axis.filter_size - 1) * y_axis.tap_step + 1
        # Bytes with which a core runs as many workgroups as it does. They also bound the pixels
        # that invocations have on their way in registers.
        room = measured.count(traits, SHADER, "shared_bytes") - shared_bytes(SHADER)
        row_bytes = 16 * pitch * y_axis.input_step
        down = min(most, (room - 16 * pitch * reach) // row_bytes + 1)
        if down < 1:
            return None
        column_tiles, rows = -(-c.out_channels // _COLUMNS), -(-y_axis.out_size // down)
        every = c.batches * rows * x_tiles * column_tiles
        places = measured.count(traits, SHADER, "resident") * traits.cores
        y_tiles = -(-rows // -(-every // places))
        return _Bands(lanes, row_steps, step, across, down, pitch,
                      (down - 1) * y_axis.input_step + reach, x_tiles, y_tiles,
                      -(-rows // y_tiles), column_tiles)

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c, (z, y_axis, x_axis), fused = layer.c, layer.c.axes, layer.fused
        b, bias = self._bands(layer, p.device), p.tensor("bias_tensor")
        assert b is not None
        pixels = _FRAGMENT // b.lanes
        filter_ = packing.packed_filter(p, c, packing.PackedSides(
            replace(c, in_channels=_FRAGMENT, axes=(z, y_axis, x_axis.together(pixels))), 8,
            pixels))
        p.dispatch(
            fused.variant(SHADER), c.batches * b.x_tiles * b.y_tiles * b.column_tiles,
            x=p.read("input_tensor"), w=filter_, y=p.write("output_tensor"),
            bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
            push={"column_tiles": b.column_tiles, "x_tiles": b.x_tiles, "y_tiles": b.y_tiles,
                  "bands": b.bands, "batches": c.batches, "out_channels": c.out_channels,
                  "in_sizes": (y_axis.in_size, x_axis.in_size),
                  "out_sizes": (y_axis.out_size, x_axis.out_size),
                  "first": (y_axis.phases[0][2], x_axis.phases[0][2]),
                  "x_strides": (*c.x_strides[:2], *c.x_strides[-2:]),
                  "y_strides": (c.y_strides[0], *c.y_strides[-2:]),
                  "bias_stride": layer.bias_stride, "activation_at": 0},
            spec={"HAS_BIAS": bias is not None, "FILTER_ROWS": y_axis.filter_size,
                  "ROW_STEPS": b.row_steps, "LANES": b.lanes, "CHANNELS": c.in_channels,
                  "PITCH": b.pitch, "PATCH_ROWS": b.patch_rows, "STEP": b.step,
                  "ACROSS": b.across, "DOWN": b.down, "STRIDE_Y": y_axis.input_step,
                  "DILATION_Y": y_axis.tap_step, "STRIDE_X": x_axis.input_step,
                  "LOADS": -(-b.pitch * b.patch_rows // _INVOCATIONS), **fused.spec})


KERNELS: tuple[Kernel[Layer], ...] = (Im2col(),)
