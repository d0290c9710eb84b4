"""Convolutions of images with few channels on matrix units: the first layers of networks."""

from __future__ import annotations

from dataclasses import replace

from ...lowering.activation import Fused
from ...lowering.builder import PlanBuilder
from . import matrix_units
from .problem import Problem

SHADER = "convolution_patches_coopmat"
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
_RESIDENT = 2
"""Workgroups that a core runs at a time."""
_SHARED = 24 << 10
"""The most bytes of shared memory with which it does. They also bound the pixels that invocations
have on their way in registers."""


def lower(p: PlanBuilder, c: Problem, fused: Fused) -> bool:
    """Lower the convolution if the kernel can compute it. Returns whether it can."""
    z, y_axis, x_axis = c.axes
    stride = x_axis.input_step
    # Rows of a fragment are whole vectors apart.
    lanes = 4 if stride % 2 == 0 else 8
    row_steps = -(-x_axis.filter_size * lanes // _FRAGMENT)
    if (not matrix_units.takes_halves(p)
            or c.groups > 1 or c.in_channels > _CHANNELS or c.out_channels % _FRAGMENT
            or z.in_size * z.out_size * z.filter_size != 1 or any(a.transposed for a in c.axes)
            or x_axis.tap_step != 1 or min(a.filter_step for a in c.axes) < 0
            or y_axis.filter_size * row_steps > _MAX_STEPS
            or not matrix_units.is_plain(p, c, p.write("output_tensor"), c.y_strides)):
        return False
    variant = p.library.find(SHADER)
    if variant is None:
        return False
    step = stride * lanes // 8
    fragments = -(-x_axis.out_size // _FRAGMENT)
    x_tiles = -(-fragments // _ACROSS)
    across = -(-fragments // x_tiles)
    pitch = (across * _FRAGMENT - 1) * step + 2 * row_steps
    reach = (y_axis.filter_size - 1) * y_axis.tap_step + 1
    row_bytes, room = 16 * pitch * y_axis.input_step, _SHARED - variant.shared_bytes
    down = min(_DOWN, (room - 16 * pitch * reach) // row_bytes + 1)
    if down < 1:
        return False
    patch_rows = (down - 1) * y_axis.input_step + reach
    column_tiles = -(-c.out_channels // _COLUMNS)
    bands = -(-y_axis.out_size // down)
    places, every = _RESIDENT * p.device.cores, c.batches * bands * x_tiles * column_tiles
    if every < places or not matrix_units.keeps_filter(p, c):
        return False
    own = -(-every // places)  # bands for which a workgroup reads the filter once
    y_tiles = -(-bands // own)
    own = -(-bands // y_tiles)
    pixels = _FRAGMENT // lanes
    filter_ = matrix_units.packed_filter(p, c, matrix_units.Packed(
        replace(c, in_channels=_FRAGMENT, axes=(z, y_axis, x_axis.together(pixels))), 8, pixels))
    bias = p.tensor("bias_tensor")
    p.dispatch(
        fused.variant(SHADER), c.batches * x_tiles * y_tiles * column_tiles,
        x=p.read("input_tensor"), w=filter_, y=p.write("output_tensor"),
        bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
        push={"column_tiles": column_tiles, "x_tiles": x_tiles, "y_tiles": y_tiles, "bands": own,
              "batches": c.batches, "out_channels": c.out_channels,
              "in_sizes": (y_axis.in_size, x_axis.in_size),
              "out_sizes": (y_axis.out_size, x_axis.out_size),
              "first": (y_axis.phases[0][2], x_axis.phases[0][2]),
              "x_strides": (*c.x_strides[:2], *c.x_strides[-2:]),
              "y_strides": (c.y_strides[0], *c.y_strides[-2:]),
              "bias_stride": bias.strides[1] if bias is not None and c.out_channels > 1 else 0,
              "activation_at": 0},
        spec={"HAS_BIAS": bias is not None, "FILTER_ROWS": y_axis.filter_size,
              "ROW_STEPS": row_steps, "LANES": lanes, "CHANNELS": c.in_channels, "PITCH": pitch,
              "PATCH_ROWS": patch_rows, "STEP": step, "ACROSS": across, "DOWN": down,
              "STRIDE_Y": y_axis.input_step, "DILATION_Y": y_axis.tap_step, "STRIDE_X": stride,
              "LOADS": -(-pitch * patch_rows // _INVOCATIONS),
              **fused.spec})
    return True
