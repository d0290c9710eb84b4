"""MAX_UNPOOLING, ROI_ALIGN and its gradient, whose output sizes are an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..attributes import InterpolationMode, ReduceFunction
from ..dtypes import DataType
from ..errors import expect
from ..operators import roi as _roi
from ..operators import roi_gradient as _roi_gradient
from .call import as_tensor, chosen, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..operators.base import OperatorDesc
    from ..tensors import Tensor
    from ..tensors.types import TensorLike

_UINT32_MAX = 2**32 - 1


@function
def max_unpooling(
    input: TensorLike, indices: TensorLike, *, output_sizes: object = None,
    out: Tensor | None = None
) -> Tensor:
    """Each element of ``input`` at the place that ``indices`` names, 0 elsewhere
    (DML_MAX_UNPOOLING_OPERATOR_DESC). An index counts the elements of the whole output. Elements
    with an index beyond it are dropped. Of equal indices the last one counts.

    ``output_sizes`` are the result's four sizes, by default those of ``out``. Returns ``out`` or a
    new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "max_unpooling"
    device = device_of(input, indices, out)
    x = as_tensor(device, name, "input", input)
    index = as_tensor(device, name, "indices", indices)
    sizes = chosen(name, "output_sizes", output_sizes, None if out is None else out.sizes)
    y = output(device, out, name, sizes, x.data_type)
    run(_roi.MaxUnpoolingOperatorDesc, device,
        {"input_tensor": x, "indices_tensor": index, "output_tensor": y})
    return y


def _align(
    name: str, desc: type[OperatorDesc], input: TensorLike, roi: TensorLike,
    batch_indices: TensorLike, output_size: object, out: Tensor | None, attributes: dict[str, Any]
) -> Tensor:
    device = device_of(input, roi, batch_indices, out)
    x = as_tensor(device, name, "input", input)
    regions = as_tensor(device, name, "roi", roi, x.data_type)
    batch = as_tensor(device, name, "batch_indices", batch_indices, DataType.UINT32)
    sizes = chosen(name, "output_size", output_size, None if out is None else out.sizes[2:])
    expect(x.ndim == 4 and regions.ndim >= 2 and len(sizes) == 2, name, "input, roi, output_size",
           "have 4 dimensions, at least 2, and 2 elements",
           [list(x.sizes), list(regions.sizes), list(sizes)])
    y = output(device, out, name, (regions.sizes[-2], x.sizes[1], *sizes), x.data_type)
    run(desc, device, {"input_tensor": x, "roi_tensor": regions, "batch_indices_tensor": batch,
                       "output_tensor": y}, **attributes)
    return y


@function
def roi_align(
    input: TensorLike, roi: TensorLike, batch_indices: TensorLike, *, output_size: object = None,
    reduction_function: int = ReduceFunction.AVERAGE,
    interpolation_mode: int = InterpolationMode.LINEAR,
    spatial_scale_x: float = 1.0, spatial_scale_y: float = 1.0,
    out_of_bounds_input_value: float = 0.0, minimum_samples_per_output: int = 1,
    maximum_samples_per_output: int = _UINT32_MAX, out: Tensor | None = None,
) -> Tensor:
    """The average or the maximum of samples in each cell of each region
    (DML_ROI_ALIGN_OPERATOR_DESC).

    ``roi`` {.., NumROIs, 4} holds x1, y1, x2, y2, ``batch_indices`` {.., NumROIs} unsigned numbers.
    ``output_size`` is height and width, by default those of ``out``. Returns ``out`` or a new
    packed tensor. Raises ValidationError or UnsupportedError.
    """
    return _align("roi_align", _roi.RoiAlignOperatorDesc, input, roi, batch_indices, output_size,
                  out, dict(
        reduction_function=reduction_function, interpolation_mode=interpolation_mode,
        spatial_scale_x=spatial_scale_x, spatial_scale_y=spatial_scale_y,
        out_of_bounds_input_value=out_of_bounds_input_value,
        minimum_samples_per_output=minimum_samples_per_output,
        maximum_samples_per_output=maximum_samples_per_output))


@function
def roi_align1(
    input: TensorLike, roi: TensorLike, batch_indices: TensorLike, *, output_size: object = None,
    reduction_function: int = ReduceFunction.AVERAGE,
    interpolation_mode: int = InterpolationMode.LINEAR,
    spatial_scale_x: float = 1.0, spatial_scale_y: float = 1.0,
    input_pixel_offset: float = 0.5, output_pixel_offset: float = -0.5,
    out_of_bounds_input_value: float = 0.0, minimum_samples_per_output: int = 1,
    maximum_samples_per_output: int = _UINT32_MAX, align_regions_to_corners: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """ROI_ALIGN with pixel offsets (DML_ROI_ALIGN1_OPERATOR_DESC). With
    ``align_regions_to_corners`` the first and the last samples are the region's corners.

    Otherwise as :func:`roi_align`. Raises ValidationError or UnsupportedError.
    """
    return _align("roi_align1", _roi.RoiAlign1OperatorDesc, input, roi, batch_indices, output_size,
                  out, dict(
        reduction_function=reduction_function, interpolation_mode=interpolation_mode,
        spatial_scale_x=spatial_scale_x, spatial_scale_y=spatial_scale_y,
        input_pixel_offset=input_pixel_offset, output_pixel_offset=output_pixel_offset,
        out_of_bounds_input_value=out_of_bounds_input_value,
        minimum_samples_per_output=minimum_samples_per_output,
        maximum_samples_per_output=maximum_samples_per_output,
        align_regions_to_corners=align_regions_to_corners))


@function
def roi_align_grad(
    input_gradient: TensorLike, roi: TensorLike, batch_indices: TensorLike,
    input: TensorLike | None = None, *, reduction_function: int = ReduceFunction.AVERAGE,
    interpolation_mode: int = InterpolationMode.LINEAR, spatial_scale_x: float = 1.0,
    spatial_scale_y: float = 1.0, input_pixel_offset: float = 0.5,
    output_pixel_offset: float = -0.5, minimum_samples_per_output: int = 1,
    maximum_samples_per_output: int = _UINT32_MAX, align_regions_to_corners: int = 0,
    output_gradient: bool = True, output_roi_gradient: bool = False, output_sizes: object = None,
    out: Tensor | None = None
) -> Any:
    """The gradients of ``roi_align1``'s input and regions (DML_ROI_ALIGN_GRAD_OPERATOR_DESC).

    ``output_gradient`` and ``output_roi_gradient`` choose the results: one tensor, or a tuple of
    both. ``output_sizes`` are those of ``roi_align1``'s input, by default those of ``input`` or
    ``out``. ``input`` itself is needed for MAX and for the regions' gradient. FLOAT32 or FLOAT16,
    any strides. Returns ``out`` or new packed tensors. Raises ValidationError or UnsupportedError.
    """
    name = "roi_align_grad"
    both = output_gradient and output_roi_gradient
    expect(output_gradient or output_roi_gradient, name, "output_gradient or output_roi_gradient",
           "be true", False)
    expect(not both or out is None or (isinstance(out, (tuple, list)) and len(out) == 2), name,
           "out", "be a tuple of 2 tensors", out)
    to, to_roi = ((None, None) if out is None else out if both
                  else (out, None) if output_gradient else (None, out))
    device = device_of(input_gradient, roi, batch_indices, input, to, to_roi)
    dy = as_tensor(device, name, "input_gradient", input_gradient)
    regions = as_tensor(device, name, "roi", roi, dy.data_type)
    batch = as_tensor(device, name, "batch_indices", batch_indices, DataType.UINT32)
    x = None if input is None else as_tensor(device, name, "input", input, dy.data_type)
    dx = droi = None
    if output_gradient:
        like = to if x is None else x
        sizes = chosen(name, "output_sizes", output_sizes, None if like is None else like.sizes)
        dx = output(device, to, name, sizes, dy.data_type)
    if output_roi_gradient:
        droi = output(device, to_roi, name, regions.sizes, dy.data_type)
    run(_roi_gradient.RoiAlignGradOperatorDesc, device,
        {"input_tensor": x, "input_gradient_tensor": dy, "roi_tensor": regions,
         "batch_indices_tensor": batch, "output_gradient_tensor": dx,
         "output_roi_gradient_tensor": droi},
        reduction_function=reduction_function, interpolation_mode=interpolation_mode,
        spatial_scale_x=spatial_scale_x, spatial_scale_y=spatial_scale_y,
        input_pixel_offset=input_pixel_offset, output_pixel_offset=output_pixel_offset,
        minimum_samples_per_output=minimum_samples_per_output,
        maximum_samples_per_output=maximum_samples_per_output,
        align_regions_to_corners=align_regions_to_corners)
    return (dx, droi) if both else dx if output_gradient else droi
