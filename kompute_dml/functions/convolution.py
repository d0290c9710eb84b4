"""Functions of convolutions, whose attributes have defaults that depend on the dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..attributes import ConvolutionDirection, ConvolutionMode
from ..dtypes import DataType
from ..errors import expect, integers
from ..operators.base import OperatorDesc, Output
from ..operators.convolution import (
    ConvolutionIntegerOperatorDesc,
    ConvolutionOperatorDesc,
    QuantizedLinearConvolutionOperatorDesc,
)
from .call import as_tensor, device_of, output, run, whole_numbers
from .registry import function

if TYPE_CHECKING:
    from ..device import Device
    from ..tensors import Tensor
    from ..tensors.types import DataTypeLike, TensorLike

Window = Sequence[int] | int | None


def _window(name: str, x: Tensor, **windows: Window) -> dict[str, Any]:
    """Attributes along the spatial dimensions. One number counts for all of them. By default
    paddings are 0, others 1."""
    axes = x.ndim - 2
    expect(axes > 0, name, "x.sizes", "have at least 3 dimensions", list(x.sizes))
    result: dict[str, Any] = {"dimension_count": axes}
    for field, value in windows.items():
        values = (int("padding" not in field),) * axes if value is None else (
            (value,) * axes if isinstance(value, int) else integers(name, field, value))
        expect(len(values) == axes, name, field, f"have {axes} elements", list(values))
        result[field] = values
    return result


def _made(
    desc_class: type[OperatorDesc], name: str, tensors: Mapping[str, Tensor | None],
    out: Tensor | None, data_type: DataType | None, attributes: Mapping[str, object]
) -> Tensor:
    """Infer the output, and run the operator."""
    device = device_of(*tensors.values(), out)
    descs = {field: None if t is None else t.desc for field, t in tensors.items()}
    partial = desc_class(**descs, **attributes, output_tensor=None)
    definition = partial.operator
    definition.check_fields(partial, ("input", "attribute"))
    assert definition.infer is not None
    described = definition.infer(partial)["output_tensor"]
    assert isinstance(described, Output)
    kind = described.data_type or data_type
    assert kind is not None
    y = output(device, out, name, described.sizes, kind)
    run(desc_class, device, {**tensors, "output_tensor": y}, **attributes)
    return y


def _per_channel(t: Tensor, x: Tensor) -> Tensor:
    """A vector seen along the channels; any other tensor as it is."""
    return t.reshape(1, t.size, *[1] * (x.ndim - 2)) if t.ndim == 1 else t


@function
def convolution(
    x: TensorLike, filter: TensorLike, bias: TensorLike | None = None, *,
    strides: Window = None, dilations: Window = None, start_padding: Window = None,
    end_padding: Window = None, output_padding: Window = None, group_count: int = 1,
    mode: int = ConvolutionMode.CROSS_CORRELATION, direction: int = ConvolutionDirection.FORWARD,
    fused_activation: OperatorDesc | None = None, out: Tensor | None = None
) -> Tensor:
    """The convolution of ``x`` {N, C, ..} with ``filter`` plus ``bias``
    (DML_CONVOLUTION_OPERATOR_DESC).

    FLOAT32 or FLOAT16 of 3 to 5 dimensions, any strides. ``filter`` is {output channels, C /
    group_count, ..}, for a BACKWARD (transposed) convolution {C, output channels / group_count,
    ..}. ``bias`` is a vector, or {1, output channels, 1, ..}. Attributes along the spatial
    dimensions are one number or one for each: strides and dilations 1 by default, paddings 0.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name, device = "convolution", device_of(x, filter, bias, out)
    x = as_tensor(device, name, "x", x)
    filter = as_tensor(device, name, "filter", filter, x.data_type)
    if bias is not None:
        bias = _per_channel(as_tensor(device, name, "bias", bias, x.data_type), x)
    attributes = _window(name, x, strides=strides, dilations=dilations, start_padding=start_padding,
                         end_padding=end_padding, output_padding=output_padding)
    return _made(
        ConvolutionOperatorDesc, name,
        {"input_tensor": x, "filter_tensor": filter, "bias_tensor": bias}, out, None,
        {"mode": mode, "direction": direction, **attributes, "group_count": group_count,
         "fused_activation": fused_activation})


@function
def convolution_integer(
    x: TensorLike, filter: TensorLike, *, x_zero_point: TensorLike | None = None,
    filter_zero_point: TensorLike | None = None, strides: Window = None, dilations: Window = None,
    start_padding: Window = None, end_padding: Window = None, group_count: int = 1,
    out: Tensor | None = None
) -> Tensor:
    """The convolution of integers, less their zero points, as INT32
    (DML_CONVOLUTION_INTEGER_OPERATOR_DESC).

    ``x`` {N, C, ..} and ``filter`` {output channels, C / group_count, ..} are INT8 or UINT8 of 3 or
    4 dimensions; ``filter_zero_point`` has one element or one for each output channel. Attributes
    are as in ``convolution``. Raises ValidationError or UnsupportedError.
    """
    name = "convolution_integer"
    device = device_of(x, filter, x_zero_point, filter_zero_point, out)
    x, filter = as_tensor(device, name, "x", x), as_tensor(device, name, "filter", filter)
    tensors = {
        "input_tensor": x, "filter_tensor": filter,
        **_zeros(device, name, x, input=(x_zero_point, x), filter=(filter_zero_point, filter))}
    attributes = _window(name, x, strides=strides, dilations=dilations, start_padding=start_padding,
                         end_padding=end_padding)
    return _made(ConvolutionIntegerOperatorDesc, name, tensors, out, None,
                 {**attributes, "group_count": group_count})


@function
def quantized_linear_convolution(
    x: TensorLike, x_scale: TensorLike, x_zero_point: TensorLike, filter: TensorLike,
    filter_scale: TensorLike, filter_zero_point: TensorLike, output_scale: TensorLike,
    output_zero_point: TensorLike | None = None, bias: TensorLike | None = None, *,
    strides: Window = None, dilations: Window = None, start_padding: Window = None,
    end_padding: Window = None, group_count: int = 1, data_type: DataTypeLike | None = None,
    out: Tensor | None = None
) -> Tensor:
    """A convolution of quantized tensors (DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC).

    ``x`` {N, C, ..} and ``filter`` {output channels, C / group_count, ..} are INT8 or UINT8 of 3 or
    4 dimensions, ``bias`` INT32. The filter's scale and zero point have one element, or one for
    each output channel; the others have one. A zero point of None is 0. The result has the type of
    ``output_zero_point``, else ``data_type``, else the type of ``x``. Halves round to even.
    Attributes are as in ``convolution``. Raises ValidationError or UnsupportedError.
    """
    name = "quantized_linear_convolution"
    device = device_of(x, x_scale, x_zero_point, filter, filter_scale, filter_zero_point,
                       output_scale, output_zero_point, bias, out)
    x, filter = as_tensor(device, name, "x", x), as_tensor(device, name, "filter", filter)
    kind = DataType.of(data_type or getattr(output_zero_point, "dtype", x.data_type))
    scales = {
        field: _spread(as_tensor(device, name, field, value, DataType.FLOAT32), x)
        for field, value in (("x_scale", x_scale), ("filter_scale", filter_scale),
                             ("output_scale", output_scale))}
    if bias is not None:
        bias = _per_channel(whole_numbers(device, name, "bias", bias, DataType.INT32), x)
    zeros = _zeros(device, name, x, input=(x_zero_point, x), filter=(filter_zero_point, filter))
    y_zero = None if output_zero_point is None else _spread(
        whole_numbers(device, name, "output_zero_point", output_zero_point, kind), x)
    tensors = {
        "input_tensor": x, "input_scale_tensor": scales["x_scale"],
        "filter_tensor": filter, "filter_scale_tensor": scales["filter_scale"], **zeros,
        "bias_tensor": bias, "output_scale_tensor": scales["output_scale"],
        "output_zero_point_tensor": y_zero}
    attributes = _window(name, x, strides=strides, dilations=dilations, start_padding=start_padding,
                         end_padding=end_padding)
    return _made(QuantizedLinearConvolutionOperatorDesc, name, tensors, out, kind,
                 {**attributes, "group_count": group_count})


def _spread(t: Tensor, x: Tensor) -> Tensor:
    """A number or a vector, seen along the channels."""
    return _per_channel(t.reshape(t.size) if t.ndim < 1 else t, x)


def _zeros(device: Device, name: str, x: Tensor, **given: tuple[Any, Tensor]) -> dict[str, Any]:
    """Zero points of one rank, each of its tensor's type."""
    return {
        f"{field}_zero_point_tensor": None if value is None else _spread(
            whole_numbers(device, name, f"{field}_zero_point", value, of.data_type), x)
        for field, (value, of) in given.items()}
