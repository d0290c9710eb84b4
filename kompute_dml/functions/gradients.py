"""Functions of gradients whose output sizes do not follow from the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..attributes import AxisDirection, InterpolationMode
from ..errors import expect, integers, numbers
from ..operators import gradients as _gradients
from ..operators import pooling_gradient as _pooling_gradient
from ..operators import resample_gradient as _resample_gradient
from .call import as_tensor, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..device import Device
    from ..tensors import Tensor
    from ..tensors.types import TensorLike


def _run(
    device: Device, desc: object, name: str, gradient: object, output_sizes: object,
    out: Tensor | None, **attributes: Any
) -> Tensor:
    dy = as_tensor(device, name, "input_gradient", gradient)
    expect(output_sizes is not None or out is not None, name, "output_sizes", "be given", None)
    sizes = out.sizes if output_sizes is None and out is not None else tuple(
        integers(name, "output_sizes", output_sizes))
    dx = output(device, out, name, sizes, dy.data_type)
    run(desc, device, {"input_gradient_tensor": dy, "output_gradient_tensor": dx}, **attributes)
    return dx


def _lists(name: str, **attributes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    return {field: tuple(integers(name, field, listed)) for field, listed in attributes.items()}


@function
def slice_grad(
    input_gradient: TensorLike, *, input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int], input_window_strides: Sequence[int],
    output_sizes: object = None, out: Tensor | None = None
) -> Tensor:
    """The gradient of ``slice1``'s input: the elements of ``input_gradient`` in the same window, 0
    elsewhere (DML_SLICE_GRAD_OPERATOR_DESC).

    ``output_sizes`` are those of ``slice1``'s input, by default those of ``out``. Any data type, 1
    to 8 dimensions, any strides. Returns ``out`` or a new packed tensor. Raises ValidationError or
    UnsupportedError.
    """
    name = "slice_grad"
    device = device_of(input_gradient, out)
    return _run(
        device, _gradients.SliceGradOperatorDesc, name, input_gradient, output_sizes, out,
        **_lists(name, input_window_offsets=input_window_offsets,
                 input_window_sizes=input_window_sizes,
                 input_window_strides=input_window_strides))


@function
def average_pooling_grad(
    input_gradient: TensorLike, *, strides: Sequence[int], window_size: Sequence[int],
    start_padding: Sequence[int], end_padding: Sequence[int], include_padding: int = 0,
    output_sizes: object = None, out: Tensor | None = None,
) -> Tensor:
    """The gradient of ``average_pooling``'s input (DML_AVERAGE_POOLING_GRAD_OPERATOR_DESC).

    ``output_sizes`` are that input's, by default those of ``out``. FLOAT32 or FLOAT16, 4 or 5
    dimensions, any strides. Returns ``out`` or a new packed tensor. Raises ValidationError or
    UnsupportedError.
    """
    name = "average_pooling_grad"
    device = device_of(input_gradient, out)
    return _run(
        device, _pooling_gradient.AveragePoolingGradOperatorDesc, name, input_gradient,
        output_sizes, out,
        **_lists(name, strides=strides, window_size=window_size, start_padding=start_padding,
                 end_padding=end_padding), include_padding=include_padding)


def _resample(
    desc: object, name: str, input_gradient: TensorLike, scales: Sequence[float],
    input_pixel_offsets: Sequence[float] | None, output_pixel_offsets: Sequence[float] | None,
    output_sizes: object, out: Tensor | None, **attributes: object,
) -> Tensor:
    device = device_of(input_gradient, out)
    scales = numbers(name, "scales", scales)
    rank = len(scales)
    return _run(
        device, desc, name, input_gradient, output_sizes, out, scales=scales,
        input_pixel_offsets=tuple(input_pixel_offsets or (-0.5,) * rank),
        output_pixel_offsets=tuple(output_pixel_offsets or (0.5,) * rank), **attributes)


@function
def resample_grad(
    input_gradient: TensorLike, *, interpolation_mode: int = InterpolationMode.LINEAR,
    scales: Sequence[float], input_pixel_offsets: Sequence[float] | None = None,
    output_pixel_offsets: Sequence[float] | None = None, output_sizes: object = None,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of ``resample1``'s input (DML_RESAMPLE_GRAD_OPERATOR_DESC).

    ``scales`` are those of ``resample1``. Its output pixel offsets are the input's here (by default
    -0.5), and its input pixel offsets the output's (0.5). ``output_sizes`` are those of
    ``resample1``'s input, by default those of ``out``. FLOAT32 or FLOAT16, 1 to 4 dimensions, any
    strides. Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    return _resample(
        _resample_gradient.ResampleGradOperatorDesc, "resample_grad", input_gradient, scales,
        input_pixel_offsets, output_pixel_offsets, output_sizes, out,
        interpolation_mode=interpolation_mode)


@function
def resample_grad1(
    input_gradient: TensorLike, *, interpolation_mode: int = InterpolationMode.LINEAR,
    rounding_direction: int = AxisDirection.DECREASING, scales: Sequence[float],
    input_pixel_offsets: Sequence[float] | None = None,
    output_pixel_offsets: Sequence[float] | None = None, output_sizes: object = None,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of ``resample2``'s input (DML_RESAMPLE_GRAD1_OPERATOR_DESC). The nearest
    element's coordinate is rounded in ``rounding_direction``.

    Otherwise as :func:`resample_grad`. Raises ValidationError or UnsupportedError.
    """
    return _resample(
        _resample_gradient.ResampleGrad1OperatorDesc, "resample_grad1", input_gradient, scales,
        input_pixel_offsets, output_pixel_offsets, output_sizes, out,
        interpolation_mode=interpolation_mode, rounding_direction=rounding_direction)
