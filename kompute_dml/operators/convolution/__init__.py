"""Convolutions, forward and transposed, of floats and of quantized numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...attributes import ConvolutionDirection, ConvolutionMode
from ...desc import TensorDesc
from ...dtypes import DataType
from ...errors import expect, refuse
from ...layout import Ints, product
from ...lowering.activation import fused_activation
from ...lowering.builder import PlanBuilder
from ...lowering.copy import SHADERS as COPIES
from ...lowering.kernel import choose
from ...lowering.plan import Plan, Target
from ...spec import Field
from .. import halves
from ..base import OperatorDesc, Output, operator, widened
from ..quantize import RANGE, RANGE_FIELDS
from . import quantized_pointwise
from .geometry import Axis, Window
from .halo import SHADER as HALO
from .kernels import KERNELS, OF_BYTES, OF_FLOATS
from .layer import FEW, Layer
from .problem import problem_of
from .tap_by_tap import SHADER as TAPS

_MAX_EXTENT = (1 << 31) - 1
"""Coordinates, also those in the padding, are signed numbers of 32 bits."""


def _windows(d: OperatorDesc) -> list[Window]:
    """The filter's window along each axis. Raises if attributes are not valid."""
    name, x, w = d.operator.name, d.input_tensor, d.filter_tensor
    axes = x.dimension_count - 2
    expect(d.dimension_count == axes, name, "DimensionCount",
           f"be {axes} (InputTensor has {x.dimension_count} dimensions)", d.dimension_count)
    expect(w.dimension_count == x.dimension_count, name, "FilterTensor.DimensionCount",
           "equal InputTensor.DimensionCount", w.dimension_count, x.dimension_count)
    for field, values in (("Strides", d.strides), ("Dilations", d.dilations)):
        for i, value in enumerate(values):
            expect(value > 0, name, f"{field}[{i}]", "be above 0", value)
    return [Window(*each) for each in zip(w.sizes[2:], d.strides, d.dilations, d.start_padding,
                                          d.end_padding)]


def _check_extent(name: str, axis: int, size: int, padding: int) -> None:
    expect(size + padding <= _MAX_EXTENT, name, f"the padded size of axis {axis}",
           f"be at most {_MAX_EXTENT}", size + padding)


def _forward(d: OperatorDesc) -> Ints:
    """The output's spatial sizes."""
    name, x, sizes = d.operator.name, d.input_tensor, []
    for i, (n, window) in enumerate(zip(x.sizes[2:], _windows(d))):
        _check_extent(name, i, n, window.start + window.end)
        blocks = window.blocks(n)
        if blocks <= 0:
            refuse(name, f"FilterTensor.Sizes[{i + 2}]", "reach no further than the padded input "
                   f"of {n + window.start + window.end}", window.reach)
        sizes.append(blocks)
    return tuple(sizes)


def _backward(d: OperatorDesc) -> Ints:
    name, x, sizes = d.operator.name, d.input_tensor, []
    for i, (n, window, more) in enumerate(zip(x.sizes[2:], _windows(d), d.output_padding)):
        whole = (n - 1) * window.stride + window.reach + more
        _check_extent(name, i, whole, window.start + window.end)
        size = whole - window.start - window.end
        if d.output_tensor is not None:  # any size that a FORWARD one reduces to the input
            wanted = d.output_tensor.sizes[i + 2]
            size = wanted if size <= wanted < size + window.stride else size
        if size <= 0:
            refuse(name, f"StartPadding[{i}] and EndPadding[{i}]", f"be below {whole} together",
                   window.start, window.end)
        sizes.append(size)
    return tuple(sizes)


def _check_groups(d: OperatorDesc, transposed: bool) -> None:
    """Raise if channels of input, filter and groups do not fit together."""
    name, channels, w = d.operator.name, d.input_tensor.sizes[1], d.filter_tensor.sizes
    groups = d.group_count
    expect(groups > 0 and channels % groups == 0, name, "GroupCount",
           f"divide the {channels} channels of InputTensor", groups)
    if transposed:
        expect(w[0] == channels, name, "FilterTensor.Sizes[0]",
               f"be {channels}, the input's channels", w[0])
    else:
        expect(w[1] == channels // groups, name, "FilterTensor.Sizes[1]",
               f"be {channels // groups}, the input's channels of a group", w[1])
        expect(w[0] % groups == 0, name, "FilterTensor.Sizes[0]",
               f"be a multiple of GroupCount {groups}", w[0])


def _output(d: OperatorDesc, transposed: bool, data_type: DataType | None) -> dict[str, Output]:
    sizes = _backward(d) if transposed else _forward(d)
    _check_groups(d, transposed)
    w = d.filter_tensor.sizes
    channels = w[1] * d.group_count if transposed else w[0]
    return {"output_tensor": Output((d.input_tensor.sizes[0], channels, *sizes), data_type)}


def _vector(name: str, field: str, t: TensorDesc | None, channels: int) -> None:
    """Raise unless a tensor has one element, or one for each output channel."""
    if t is not None:
        expect([n for n in t.sizes if n > 1] in ([], [channels]), name, f"{field}.Sizes",
               "have one element" + (f", or {channels} (the output channels) along one dimension"
                                     if channels > 1 else ""), list(t.sizes))


def _axes(d: OperatorDesc, transposed: bool = False, mirrored: bool = False) -> list[Axis]:
    return [Axis(n, m, window, transposed, mirrored) for n, m, window in zip(
        d.input_tensor.sizes[2:], d.output_tensor.sizes[2:], _windows(d))]


def _is_backward(d: OperatorDesc) -> bool:
    return bool(d.direction == ConvolutionDirection.BACKWARD)


def _infer(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    return {**_output(d, _is_backward(d), d.input_tensor.data_type)}


def _check_bias(d: OperatorDesc) -> None:
    if d.bias_tensor is not None:
        y = d.output_tensor.sizes
        sizes = (1, y[1], *[1] * len(y[2:]))
        expect(d.bias_tensor.sizes == sizes, d.operator.name, "BiasTensor.Sizes",
               f"be {list(sizes)}", list(d.bias_tensor.sizes))


def _check(d: OperatorDesc, strict: bool) -> None:
    _check_bias(d)
    if not _is_backward(d):
        expect(not any(d.output_padding), d.operator.name, "OutputPadding",
               "be 0 for a FORWARD convolution", list(d.output_padding))


@operator("CONVOLUTION", output=_infer, check=_check, any_size=True,
          shaders=(*OF_FLOATS, *COPIES))
def ConvolutionOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    transposed = _is_backward(d)
    axes = _axes(d, transposed, d.mode == ConvolutionMode.CONVOLUTION)
    c = problem_of(d, axes, transposed)
    layer = Layer(d, c, fused=fused_activation(d))
    if c.out_channels > FEW and halves.pay_off(
            p, d.input_tensor, product([c.rows, c.k, c.out_channels, c.groups, c.phases])):
        halves.lower(p, d, ("input_tensor", "filter_tensor"))
        return
    _lower(p, layer)


def _lower(p: PlanBuilder, layer: Layer) -> None:
    choose(KERNELS[layer.ends], layer, p).lower(layer, p)


def _infer_integer(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    return {**_output(d, False, DataType.INT32)}


def _check_zeros(d: OperatorDesc) -> None:
    name, channels = d.operator.name, d.filter_tensor.sizes[0]
    _vector(name, "InputZeroPointTensor", d.input_zero_point_tensor, 1)
    _vector(name, "FilterZeroPointTensor", d.filter_zero_point_tensor, channels)


def _check_integer(d: OperatorDesc, strict: bool) -> None:
    _check_zeros(d)


@operator("CONVOLUTION_INTEGER", output=_infer_integer,
          shaders=(*OF_BYTES, RANGE, quantized_pointwise.SHADER, *COPIES),
          check=_check_integer)
def ConvolutionIntegerOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, Layer(d, problem_of(d, _axes(d), False), "sums"))


def _lower_scaled(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    _lower(p, Layer(d, problem_of(d, _axes(d), False), "scaled", fused_activation(d)))
    return p.build()


ConvolutionIntegerToFloatDesc: Any = widened(
    ConvolutionIntegerOperatorDesc, Field("InputScaleTensor", "input", "TENSOR_DESC", True),
    Field("FilterScaleTensor", "input", "TENSOR_DESC", True),
    Field("BiasTensor", "input", "TENSOR_DESC", True),
    Field("FusedActivation", "attribute", "OPERATOR_DESC", True), *RANGE_FIELDS,
    name="CONVOLUTION_INTEGER_TO_FLOAT", lower=_lower_scaled, in_place=False,
    fuses=ConvolutionOperatorDesc)
"""CONVOLUTION_INTEGER with FLOAT32 outputs: sums times the input's scale, one number if there is
one, times the filter's, by channel or not; then a bias by channel. The scale and the zero point of
the outputs' quantization may be outputs, too. Graphs make it."""


def _lower_dynamic(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    quantized_pointwise.lower(d, p)
    return p.build()


DynamicConvolutionDesc: Any = widened(
    ConvolutionIntegerToFloatDesc, Field("QuantizedType", "attribute", "UINT", True),
    name="DYNAMIC_CONVOLUTION", lower=_lower_dynamic, in_place=False)
"""CONVOLUTION_INTEGER_TO_FLOAT of an input of FLOAT32, which DYNAMIC_QUANTIZE_LINEAR would make one
of the data type with this code. Graphs make it where :func:`quantized_pointwise.serves`."""


def _infer_quantized(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    return {**_output(d, False, None)}


def _check_quantized(d: OperatorDesc, strict: bool) -> None:
    name, channels = d.operator.name, d.filter_tensor.sizes[0]
    _check_zeros(d)
    _check_bias(d)
    _vector(name, "InputScaleTensor", d.input_scale_tensor, 1)
    _vector(name, "FilterScaleTensor", d.filter_scale_tensor, channels)
    _vector(name, "OutputScaleTensor", d.output_scale_tensor, 1)
    _vector(name, "OutputZeroPointTensor", d.output_zero_point_tensor, 1)


@operator("QUANTIZED_LINEAR_CONVOLUTION", output=_infer_quantized,
          shaders=(*OF_BYTES, TAPS, HALO, *COPIES), check=_check_quantized)
def QuantizedLinearConvolutionOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, Layer(d, problem_of(d, _axes(d), False), "quantized"))
