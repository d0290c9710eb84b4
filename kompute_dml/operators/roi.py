"""Regions of interest, pooled or aligned, and MAX_UNPOOLING."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..attributes import ReduceFunction
from ..desc import TensorDesc
from ..errors import UnsupportedError, expect
from ..layout import Ints, begin_with_vectors, pad_left
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.plan import Operand
from ..lowering.walk import Walk
from ..runtime.traits import LEAST_LOOP_PASSES
from .base import OperatorDesc, Output, operator

MOST_SAMPLES = math.isqrt(LEAST_LOOP_PASSES)
"""The most samples along an axis of ROI_ALIGN."""
_EACH = 8
"""Elements of a row that a pass of ROI_POOLING reads."""
_CHANNELS = (8, 4, 2, 1)
"""The most channels first that an invocation of ROI_ALIGN computes."""


def _walk(y: TensorDesc, channels: int = 1) -> Walk:
    """A walk of y in the order of its memory, and its coordinates: region, channel, height, width.
    It visits each ``channels``-th channel."""
    steps = (1, channels, 1, 1)
    order = sorted(range(4), key=lambda i: (y.sizes[i] > steps[i], -y.strides[i] * steps[i]))

    def ordered(values: Sequence[int]) -> Ints:
        return tuple(values[i] for i in order)

    units = [ordered([n * (i == axis) for i, n in enumerate(steps)]) for axis in range(4)]
    return Walk(ordered([n // m for n, m in zip(y.sizes, steps)]),
                ordered([n * m for n, m in zip(y.strides, steps)]), *units)


def _regions(desc: OperatorDesc, fields: int) -> int:
    """The number of regions."""
    name, roi = desc.operator.name, desc.roi_tensor
    expect(roi.sizes[-1] == fields and set(roi.sizes[:-2]) <= {1}, name, "ROITensor.Sizes",
           f"be {{.., NumROIs, {fields}}} behind sizes of 1", list(roi.sizes))
    return int(roi.sizes[-2])


def _check_scales(desc: OperatorDesc, *fields: str) -> None:
    for field in fields:
        value = getattr(desc, {"SpatialScale": "spatial_scale", "SpatialScaleX": "spatial_scale_x",
                               "SpatialScaleY": "spatial_scale_y"}[field])
        expect(abs(value) <= 3.4e38, desc.operator.name, field, "be finite", value)


def _pooling_output(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    x, size, name = desc.input_tensor, desc.pooled_size, desc.operator.name
    expect(min(size.width, size.height) >= 1 and max(size.width, size.height) < 1 << 15, name,
           "PooledSize", "be in [1, 32768)", size)
    sizes = (_regions(desc, 5), x.sizes[1], size.height, size.width)
    return {"output_tensor": Output(sizes, x.data_type)}


def _check_pooling(desc: OperatorDesc, strict: bool) -> None:
    _check_scales(desc, "SpatialScale")


def _groups(count: int, p: PlanBuilder) -> int:
    return -(-count // p.device.local_size)


@operator("ROI_POOLING", output=_pooling_output, shaders=("roi_pooling",), check=_check_pooling,
          spatial_scale=1.0)
def RoiPoolingOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, roi, walk = d.input_tensor, d.roi_tensor, _walk(d.output_tensor)
    passes = x.sizes[2] * (1 + -(-x.sizes[3] // _EACH))
    if passes > (most := p.device.max_loop_passes):
        raise UnsupportedError(f"{d.operator.name}: planes of {list(x.sizes[2:])}: {passes} steps: "
                               f"more than {most} are not supported on this device")
    p.dispatch(
        "roi_pooling", _groups(walk.count, p), x=p.read("input_tensor"),
        roi=p.read("roi_tensor"), y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count, "in_sizes": x.sizes, "x_strides": x.strides,
              "roi_strides": roi.strides[-2:], "scale": float_bits(d.spatial_scale),
              "pooled": (d.pooled_size.height, d.pooled_size.width)},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": x.data_type.code},
    )


def _align_output(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    """The output. Height and width are the output tensor's own."""
    x, y = desc.input_tensor, desc.output_tensor
    if y is None:
        return {}
    return {"output_tensor": Output((_regions(desc, 4), x.sizes[1], *y.sizes[2:]), x.data_type)}


def check_regions(desc: OperatorDesc) -> int:
    """Check the regions of ROI_ALIGN and its gradient. Returns their number."""
    name, batch = desc.operator.name, desc.batch_indices_tensor
    count = _regions(desc, 4)
    expect(batch.sizes == pad_left((count,), batch.dimension_count, 1), name,
           "BatchIndicesTensor.Sizes", f"be {{.., {count}}} behind sizes of 1", list(batch.sizes))
    expect(desc.reduction_function in (ReduceFunction.AVERAGE, ReduceFunction.MAX), name,
           "ReductionFunction", "be AVERAGE or MAX", ReduceFunction(desc.reduction_function).name)
    low, high = desc.minimum_samples_per_output, desc.maximum_samples_per_output
    expect(1 <= low <= MOST_SAMPLES, name, "MinimumSamplesPerOutput",
           f"be in [1, {MOST_SAMPLES}]", low)
    expect(low <= high, name, "MaximumSamplesPerOutput",
           "be at least MinimumSamplesPerOutput", high, low)
    _check_scales(desc, "SpatialScaleX", "SpatialScaleY")
    return count


def _check_align(desc: OperatorDesc, strict: bool) -> None:
    check_regions(desc)
    for i in (2, 3):
        expect(desc.output_tensor.sizes[i] < 1 << 15, desc.operator.name,
               f"OutputTensor.Sizes[{i}]", "be below 32768", desc.output_tensor.sizes[i])


def _align(d: OperatorDesc, p: PlanBuilder) -> None:
    x, y = d.input_tensor, d.output_tensor
    vector = 16 // x.data_type.itemsize
    vectors = all(t.is_aligned and t.sizes[1] % vector == 0
                  and begin_with_vectors(vector, t.strides, 1) for t in (x, y))
    each = vector if vectors else next(n for n in _CHANNELS if y.sizes[1] % n == 0)
    walk = _walk(y, each)
    high = min(d.maximum_samples_per_output, MOST_SAMPLES)
    p.dispatch(
        "roi_align", _groups(walk.count, p), x=p.read("input_tensor"),
        roi=p.read("roi_tensor"), batch=p.read("batch_indices_tensor"),
        y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count, "in_sizes": x.sizes, "x_strides": x.strides,
              "roi_strides": d.roi_tensor.strides[-2:],
              "batch_stride": d.batch_indices_tensor.strides[-1], "outputs": y.sizes[2:],
              "scales": (float_bits(d.spatial_scale_y), float_bits(d.spatial_scale_x)),
              "in_offset": float_bits(getattr(d, "input_pixel_offset", 0.5)),
              "out_offset": float_bits(getattr(d, "output_pixel_offset", -0.5)),
              "outside": float_bits(d.out_of_bounds_input_value),
              "samples": (d.minimum_samples_per_output, high), "y_channel": y.strides[1]},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": x.data_type.code,
              "BATCH_TYPE": d.batch_indices_tensor.data_type.code,
              "EACH": each, "VECTORS": vectors,
              "MAXIMUM": d.reduction_function == ReduceFunction.MAX,
              "LINEAR": d.interpolation_mode == 1, "IEEE_UNITS": p.device.ieee_units,
              "CORNERS": bool(getattr(d, "align_regions_to_corners", 0))},
    )


RoiAlignOperatorDesc = operator(
    "ROI_ALIGN", output=_align_output, shaders=("roi_align",), check=_check_align)(_align)
RoiAlign1OperatorDesc = operator(
    "ROI_ALIGN1", output=_align_output, shaders=("roi_align",), check=_check_align)(_align)


@operator("MAX_UNPOOLING", shaders=("max_unpooling",))
def MaxUnpoolingOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, y, indices = d.input_tensor, d.output_tensor, d.indices_tensor
    source, index, target = Walk(x.sizes, x.strides), Walk(x.sizes, indices.strides), Walk(
        y.sizes, y.strides)
    sources = p.temporary(4, target.count)

    def step(name: str, count: int, marks: Operand, *words: tuple[int, ...]) -> None:
        p.dispatch(
            f"max_unpooling.{name}", _groups(count, p), x=p.read("input_tensor"),
            indices=p.read("indices_tensor"), sources=marks, y=p.write("output_tensor"),
            params=[w for part in words for w in part],
            push={"count": count, "limit": target.count, "x_walk": len(words[0])},
            spec={"LOCAL_SIZE": p.device.local_size, "TYPE": x.data_type.code,
                  "INDEX_TYPE": indices.data_type.code})

    step("clear", target.count, sources, target.words)
    step("mark", index.count, sources, index.words)
    step("gather", target.count, sources.reading(), target.words, source.words)
