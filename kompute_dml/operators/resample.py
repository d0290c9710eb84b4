"""Resampling: the input at other coordinates, by its nearest element or a blend of neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..attributes import AxisDirection, InterpolationMode
from ..errors import UnsupportedError, expect
from ..layout import Ints
from ..lowering.builder import PlanBuilder
from ..lowering.walk import Walk
from .base import Output, operator

_HALVES_UP, _UP, _DOWN = range(3)
_MOST_SAMPLES = 1 << 15
"""Of an antialiased element: lavapipe ends loops after 65,535 passes."""
_MOST_SPAN = 6


class _Axis(NamedTuple):
    """How a dimension is resampled."""

    dimension: int
    scale: float
    in_offset: float
    out_offset: float
    sample_bits: int = 0


def check_scales(desc: Any, rank: int) -> None:
    """Scales and offsets are numbers that coordinates can be made with, one for each dimension."""
    name = desc.operator.name
    for field, values in (("Scales", desc.scales),
                          ("InputPixelOffsets", getattr(desc, "input_pixel_offsets", None)),
                          ("OutputPixelOffsets", getattr(desc, "output_pixel_offsets", None))):
        if values is None:
            continue
        expect(len(values) == rank, name, field, f"have {rank} elements, one for each dimension",
               list(values))
        for i, value in enumerate(values):
            rounded = float(np.float32(value)) if abs(value) < 3.5e38 else math.inf
            expect(math.isfinite(rounded), name, f"{field}[{i}]", "be finite", value)
            if field == "Scales":
                expect(rounded > 0, name, f"{field}[{i}]", "be above 0", value)


def _check(desc: Any, strict: bool) -> None:
    for n in (*desc.input_tensor.sizes, *desc.output_tensor.sizes):
        expect(n < 1 << 24, desc.operator.name, "InputTensor.Sizes and OutputTensor.Sizes",
               "be below 2^24 (coordinates are FLOAT32)", n)
    axes = _axes(desc)
    if sum(a.sample_bits for a in axes) > math.log2(_MOST_SAMPLES):
        raise UnsupportedError(f"{desc.operator.name}: antialiasing with scales "
                               f"{[a.scale for a in axes]}: more than {_MOST_SAMPLES} samples for "
                               "an element are not served")


def _output(desc: Any) -> Mapping[str, Output | list[Output]]:
    """The output tensor's own sizes; without one, what the scales make, rounded down."""
    x, y = desc.input_tensor, desc.output_tensor
    check_scales(desc, x.dimension_count)
    sizes = y.sizes if y is not None else tuple(
        int(min(max(float(np.float32(n * s)), 1.0), 2.0**32 - 1))
        for n, s in zip(x.sizes, desc.scales))
    return {"output_tensor": Output(sizes, x.data_type)}


def _upsampled(desc: Any) -> Mapping[str, Output | list[Output]]:
    x, scale = desc.input_tensor, desc.scale_size
    expect(min(scale.width, scale.height) >= 1 and max(scale.width, scale.height) < 1 << 24,
           desc.operator.name, "ScaleSize", "be in [1, 2^24)", scale)
    *outer, height, width = x.sizes
    return {"output_tensor": Output((*outer, height * scale.height, width * scale.width),
                                    x.data_type)}


def _sample_bits(scale: float) -> int:
    """Of the smallest power of two times which the scale is 1/2 at least."""
    return max(math.ceil(math.log2(0.5 / scale)), 0)


def _axes(d: Any) -> list[_Axis]:
    """The dimensions whose coordinates change."""
    x, y = d.input_tensor, d.output_tensor
    rank = x.dimension_count
    if hasattr(d, "scale_size"):
        scales = (1.0,) * (rank - 2) + (float(d.scale_size.height), float(d.scale_size.width))
    else:
        scales = d.scales
    in_offsets = getattr(d, "input_pixel_offsets", (0.5,) * rank)
    out_offsets = getattr(d, "output_pixel_offsets", (-0.5,) * rank)
    antialiased = getattr(d, "antialiased", 0) and d.interpolation_mode == InterpolationMode.LINEAR
    result = []
    for i in range(rank):
        scale = float(np.float32(scales[i]))
        same = scale == 1.0 and in_offsets[i] == -out_offsets[i] and x.sizes[i] == y.sizes[i]
        if not same:
            bits = _sample_bits(scale) if antialiased and scale < 0.5 else 0
            result.append(_Axis(i, scale, in_offsets[i], out_offsets[i], bits))
    return result


def rounding_of(d: Any) -> int:
    """How the nearest neighbour's coordinate becomes whole."""
    if not hasattr(d, "rounding_direction"):
        return _HALVES_UP
    return _UP if d.rounding_direction == AxisDirection.INCREASING else _DOWN


def _resample(d: Any, p: PlanBuilder) -> None:
    x, y, axes = d.input_tensor, d.output_tensor, _axes(d)
    linear = d.interpolation_mode == InterpolationMode.LINEAR
    rank = y.dimension_count
    order = sorted(range(rank), key=lambda i: (y.sizes[i] > 1, -y.strides[i]))
    inner = order[-1]
    resampled = [a.dimension for a in axes]
    along = inner in resampled
    if along:  # the last one of the axes
        axes = [a for a in axes if a.dimension != inner] + [
            a for a in axes if a.dimension == inner]
    each, itemsize = 1, x.data_type.itemsize
    if y.strides[inner] == 1 and (along or x.strides[inner] == 1):
        each = min(16 // itemsize, 8)
        while y.sizes[inner] % each:
            each //= 2
    span = 0
    if along and linear and each > 1:
        # One more than they reach over, for the second tap; another for rounding.
        reach = math.floor((each - 1) / axes[-1].scale + 1e-3) + 3
        span = reach if reach <= _MOST_SPAN and reach < 2 * each else 0
    columns: list[Ints] = [y.strides, tuple(0 if i in resampled else s
                                            for i, s in enumerate(x.strides))]
    for k in range(4):
        columns.append(tuple(int(k < len(axes) and axes[k].dimension == i) for i in range(rank)))
    walk = Walk([y.sizes[i] // (each if i == inner else 1) for i in order],
                *([c[i] * (each if i == inner else 1) for i in order] for c in columns))

    def four(values: list[Any]) -> Ints:
        return (*values, *(0,) * (4 - len(values)))

    def floats(values: list[float]) -> Ints:
        return four([int(np.float32(v).view(np.uint32)) for v in values])

    p.dispatch(
        f"resample.{'linear' if linear else 'nearest'}", -(-walk.count // p.device.local_size),
        x=p.read("input_tensor"), y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count,
              "in_sizes": four([x.sizes[a.dimension] for a in axes]),
              "x_strides": four([x.strides[a.dimension] for a in axes]),
              "scales": floats([a.scale for a in axes]),
              "in_offsets": floats([a.in_offset for a in axes]),
              "out_offsets": floats([a.out_offset for a in axes]),
              "sample_bits": four([a.sample_bits for a in axes])},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": x.data_type.code, "AXES": len(axes),
              "EACH": each, "ALONG": along, "ROUNDING": rounding_of(d), "SPAN": span,
              "VECTORS": not along and each * itemsize == 16
              and not any(s % each for i, s in enumerate(x.strides) if i != inner),
              "IEEE_UNITS": p.device.ieee_units},
    )


_SHADERS = ("resample",)
_LINEAR = InterpolationMode.LINEAR

Upsample2dOperatorDesc = operator(
    "UPSAMPLE_2D", output=_upsampled, shaders=_SHADERS, check=_check,
    interpolation_mode=InterpolationMode.NEAREST_NEIGHBOR)(_resample)
ResampleOperatorDesc = operator(
    "RESAMPLE", output=_output, shaders=_SHADERS, check=_check,
    interpolation_mode=_LINEAR)(_resample)
Resample1OperatorDesc = operator(
    "RESAMPLE1", output=_output, shaders=_SHADERS, check=_check,
    interpolation_mode=_LINEAR)(_resample)
Resample2OperatorDesc = operator(
    "RESAMPLE2", output=_output, shaders=_SHADERS, check=_check, interpolation_mode=_LINEAR,
    rounding_direction=AxisDirection.DECREASING)(_resample)
Resample3OperatorDesc = operator(
    "RESAMPLE3", output=_output, shaders=_SHADERS, check=_check, interpolation_mode=_LINEAR,
    rounding_direction=AxisDirection.DECREASING, antialiased=0)(_resample)
