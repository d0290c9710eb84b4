"""ROI_ALIGN_GRAD: gradients of the image and of the regions, in gather form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..attributes import ReduceFunction
from ..errors import UnsupportedError, expect
from ..layout import Ints
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.neighbours import Neighbours
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk
from .base import OperatorDesc, Output, operator
from .roi import MOST_SAMPLES, check_regions

_MOST_EACH = 4


def _image(d: OperatorDesc) -> Any:
    """The description of a tensor with the image's sizes."""
    return d.input_tensor if d.input_tensor is not None else d.output_gradient_tensor


def _infer(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    outputs: dict[str, Output | list[Output]] = {
        "output_roi_gradient_tensor": Output(d.roi_tensor.sizes, d.roi_tensor.data_type)}
    if (image := _image(d)) is not None:
        outputs["output_gradient_tensor"] = Output(image.sizes, d.input_gradient_tensor.data_type)
    return outputs


def _check(d: OperatorDesc, strict: bool) -> None:
    name, dy = d.operator.name, d.input_gradient_tensor
    expect(d.output_gradient_tensor is not None or d.output_roi_gradient_tensor is not None, name,
           "OutputGradientTensor or OutputROIGradientTensor", "be given", None)
    count = check_regions(d)
    wanted = d.reduction_function == ReduceFunction.MAX or d.output_roi_gradient_tensor is not None
    expect(d.input_tensor is not None or not wanted, name, "InputTensor",
           "be given for MAX and for OutputROIGradientTensor", None)
    image = _image(d)
    expect(dy.sizes[:2] == (count, image.sizes[1]), name, "InputGradientTensor.Sizes",
           f"begin with {count} regions and {image.sizes[1]} channels", list(dy.sizes))
    for i in (2, 3):
        expect(dy.sizes[i] < 1 << 15, name, f"InputGradientTensor.Sizes[{i}]", "be below 32768",
               dy.sizes[i])


@operator("ROI_ALIGN_GRAD", output=_infer, shaders=("roi_align_grad",), check=_check)
def RoiAlignGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    dy, image = d.input_gradient_tensor, _image(d)
    count, channels, *outputs = dy.sizes
    sizes, each = image.sizes[2:], channels * outputs[0] * outputs[1]
    high = min(d.maximum_samples_per_output, MOST_SAMPLES)
    longest = max(max(outputs) * (high + 1), count * (1 + outputs[0] * (1 + outputs[1])),
                  each if d.output_roi_gradient_tensor is not None else 0)
    if longest > (most := p.device.max_loop_passes):
        raise UnsupportedError(f"{d.operator.name}: sums of up to {longest} steps: more than "
                               f"{most} are not supported on this device")
    maximum, local_size = d.reduction_function == ReduceFunction.MAX, p.device.local_size
    strides = (*(d.input_tensor.strides if d.input_tensor is not None else (0,) * 4), *dy.strides)

    def step(name: str, items: int, stored: Operand, table: Operand = UNUSED,
             winners: Operand = UNUSED, walk: Ints = (0,), axis: int = 0, each: int = 1) -> None:
        p.dispatch(
            f"roi_align_grad.{name}", -(-items // local_size), x=p.read("input_tensor"),
            dy=p.read("input_gradient_tensor"), roi=p.read("roi_tensor"),
            batch=p.read("batch_indices_tensor"), table=table, winners=winners, made=stored,
            params=[*walk, *strides],
            push={"count": items, "regions": count, "in_sizes": image.sizes,
                  "roi_strides": d.roi_tensor.strides[-2:],
                  "batch_stride": d.batch_indices_tensor.strides[-1], "outputs": tuple(outputs),
                  "scales": (float_bits(d.spatial_scale_y), float_bits(d.spatial_scale_x)),
                  "in_offset": float_bits(d.input_pixel_offset),
                  "out_offset": float_bits(d.output_pixel_offset),
                  "samples": (d.minimum_samples_per_output, high), "axis": axis,
                  "strides_at": len(walk)},
            spec={"LOCAL_SIZE": local_size, "EACH": each, "TYPE": dy.data_type.code,
                  "MAXIMUM": maximum, "LINEAR": d.interpolation_mode == 1,
                  "IEEE_UNITS": p.device.ieee_units,
                  "CORNERS": bool(d.align_regions_to_corners)})

    winners = UNUSED
    if maximum:
        stored = p.temporary(4, count * each)
        step("winners", count * each, stored)
        winners = stored.reading()
    if (dx := d.output_gradient_tensor) is not None:
        table = p.temporary(4, count * sum(n * (o + 1) for n, o in zip(sizes, outputs)))
        for axis in range(2):
            step("weights", count * sizes[axis], table, axis=axis)
        near = Neighbours(dx, p.device, _MOST_EACH)
        if not near.along_width:
            near.each = 1
        walk = near.walk(dx.strides, *_units(4))
        step("sums", walk.count, p.write("output_gradient_tensor"), table.reading(), winners,
             walk.words, each=near.each)
    if (droi := d.output_roi_gradient_tensor) is not None:
        parts = p.temporary(4, 4 * count * each)
        step("slopes", count * each, parts, winners=winners)
        walk = Walk(droi.sizes[-2:], droi.strides[-2:], *_units(2))
        step("regions", walk.count, p.write("output_roi_gradient_tensor"), parts.reading(),
             walk=walk.words)


def _units(rank: int) -> list[Ints]:
    """Strides that make a walk return coordinates."""
    return [tuple(int(i == axis) for i in range(rank)) for axis in range(rank)]
