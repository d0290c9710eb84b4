"""Lowerings of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ... import spec
from ...attributes import ConvolutionDirection, ConvolutionMode
from ...errors import UnsupportedError, ValidationError
from ...graph.array import Array
from ...graph.builder import Builder, supported
from ...layout import product
from ...operators import base
from ..graph import OnnxNode
from ..lowerings import Inputs, Seen, emit_elementwise, given, host, optional
from ..row import MICROSOFT, Mapping
from . import movement, products

_ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "Relu": ("ACTIVATION_RELU", {}),
    "Tanh": ("ACTIVATION_TANH", {}),
    "Sigmoid": ("ACTIVATION_SIGMOID", {}),
    "LeakyRelu": ("ACTIVATION_LEAKY_RELU", {"alpha": 0.01}),
    "HardSigmoid": ("ACTIVATION_HARD_SIGMOID", {"alpha": 0.2, "beta": 0.5}),
    "Clip": ("ELEMENT_WISE_CLIP", {"min": float(np.finfo(np.float32).min),
                                   "max": float(np.finfo(np.float32).max)}),
}
"""The activations of com.microsoft's FusedConv: the operator, and its fields with defaults, in the
order of activation_params."""


def refuses_activation(node: OnnxNode) -> str | None:
    if node.input(3) is not None:
        return "a sum before the activation"
    name = node.attributes.get("activation", "")
    return None if name in _ACTIVATIONS or not name else f"activation={name!r}"


def _activation(node: OnnxNode) -> Any:
    if not (name := node.attributes.get("activation", "")):
        return None
    operator, defaults = _ACTIVATIONS[name]
    definition = base.definitions()["DML_OPERATOR_" + operator]
    values = defaults | dict(zip(defaults, node.attributes.get("activation_params", ())))
    absent = {f.snake: None for f in definition.spec.tensors}
    return definition.desc_class(**absent, **values)


def _window(node: OnnxNode, x: Array, w: Array) -> dict[str, list[int]]:
    """The attributes along the spatial dimensions, except those that auto_pad decides."""
    axes = len(x.shape) - 2
    if axes < 1 or len(w.shape) != len(x.shape):
        raise ValidationError(
            f"expected an input and a filter of equal rank from 3 on, but got {list(x.shape)} "
            f"and {list(w.shape)}")
    kernel = list(node.attributes.get("kernel_shape", w.shape[2:]))
    if kernel != list(w.shape[2:]):
        raise ValidationError(f"expected a filter of {kernel}, but got {list(w.shape)}")
    pads = list(node.attributes.get("pads", [0] * 2 * axes))
    window = {"strides": list(node.attributes.get("strides", [1] * axes)),
              "dilations": list(node.attributes.get("dilations", [1] * axes)),
              "start_padding": pads[:axes], "end_padding": pads[axes:]}
    if any(len(v) != axes for v in window.values()):
        raise ValidationError(f"expected attributes of {axes} dimensions, but got {window}")
    if any(n < 0 for n in pads):
        raise UnsupportedError("negative pads")
    return window


def _split(total: int, upper: bool) -> tuple[int, int]:
    """The two ends of a padding. An odd element goes to the end if ``upper``."""
    less = total // 2
    return (less, total - less) if upper else (total - less, less)


def _auto_pad(node: OnnxNode, x: Array, w: Array) -> dict[str, list[int]]:
    """The window of a forward convolution."""
    window, mode = _window(node, x, w), node.attributes.get("auto_pad", "NOTSET")
    if mode == "VALID":
        window["start_padding"] = window["end_padding"] = [0] * (len(x.shape) - 2)
    elif mode != "NOTSET":
        ends = []
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], window["strides"], window["dilations"]):
            total = (-(-n // s) - 1) * s + d * (k - 1) + 1 - n
            ends.append(_split(max(total, 0), mode == "SAME_UPPER"))
        window["start_padding"], window["end_padding"] = (list(e) for e in zip(*ends))
    return window


def _emit(
    builder: Builder, operator: str, tensors: dict[str, Array | None], sizes: Sequence[int],
    dtype: np.dtype, attributes: dict[str, Any],
) -> list[Array]:
    """Add a convolution. Vectors are seen along the channels, and rows as planes if the device
    needs planes."""
    name = "DML_OPERATOR_" + operator
    support = supported(builder.device, name, "InputTensor")
    least, most = support.dimension_counts if support else (0, len(sizes))
    if len(sizes) > most:
        raise UnsupportedError(f"{name} of {len(sizes)} dimensions, not {least} to {most}")
    y = builder.for_channels(sizes, dtype)
    if y.storage is None:
        return [y]
    rank = max(len(sizes), least)
    more = rank - len(sizes)

    def seen(x: Array | None) -> Seen | None:
        if x is None:
            return None
        if x.storage is None:
            raise UnsupportedError("a convolution of nothing")
        if len(x.shape) < 3:
            return x, (1, x.size, *[1] * (rank - 2)), (0, *(x.strides or (0,)), *[0] * (rank - 2))
        return (x, (*x.shape[:2], *[1] * more, *x.shape[2:]),
                (*x.strides[:2], *[0] * more, *x.strides[2:]))

    padded = {field: [1 if field in ("strides", "dilations") else 0] * more + list(values)
              if isinstance(values, list) else values for field, values in attributes.items()}
    names = [f.snake for f in spec.operator(name).tensors]
    everything = {**dict.fromkeys(names), **tensors, "output_tensor": y}
    builder.emit(operator, {f: seen(t) for f, t in everything.items()}, **padded)
    return [y]


def _forward_sizes(x: Array, w: Array, window: dict[str, list[int]]) -> list[int]:
    spatial = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, k, s, d, a, b in zip(x.shape[2:], w.shape[2:], window["strides"],
                                    window["dilations"], window["start_padding"],
                                    window["end_padding"])]
    if min(spatial, default=0) < 0:
        raise ValidationError(
            f"expected a filter that fits the padded input, but got {list(w.shape)} for "
            f"{list(x.shape)}")
    return [x.shape[0], w.shape[0], *spatial]


def convolution(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Conv, and FusedConv."""
    x, w, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    window = _auto_pad(node, x, w)
    return _emit(
        builder, "CONVOLUTION",
        {"input_tensor": x, "filter_tensor": w, "bias_tensor": bias},
        _forward_sizes(x, w, window), x.dtype,
        {**window, "output_padding": [0] * len(window["strides"]),
         "group_count": node.attributes.get("group", 1), "fused_activation": _activation(node),
         "mode": ConvolutionMode.CROSS_CORRELATION, "direction": ConvolutionDirection.FORWARD})


def channels_last(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """NhwcConv: the channels of the input, the filter and the result come last."""
    order = (0, 3, 1, 2)
    if any(len(given(inputs, i).shape) != len(order) for i in range(2)):
        raise ValidationError("expected an input and a filter of four dimensions")
    x, w = (given(inputs, i).transpose(order) for i in range(2))
    (y,) = convolution(builder, node, [x, w, *inputs[2:]])
    return [y.transpose((0, 2, 3, 1))]


CAUSAL_USUAL = {
    "channels_last": 0, "dilation": 1, "input_channel_offset": 0, "input_channels": 0, "ndim": 1,
    "state_channels_last": -1, "state_length": 0, "state_update_capacity": 0, "state_window": 0,
}
"""com.microsoft's attributes, and their defaults: ONNX Runtime spells these out."""
_CAUSAL = ("channels_last", "dilation")


def causal(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """CausalConvWithState: each channel by itself, after what the last run left; and what this one
    leaves."""
    x, w, past = given(inputs, 0), given(inputs, 1), optional(inputs, 3)
    last = node.attributes.get("channels_last", 0)
    if last:
        x, past = x.transpose((0, 2, 1)), past and past.transpose((0, 2, 1))
    step = node.attributes.get("dilation", 1)
    before = (w.shape[-1] - 1) * step
    if past is None:
        past = builder.constant(np.zeros((), x.dtype)).broadcast_to((*x.shape[:2], before))
    join = OnnxNode("Concat", "", 13, (), (), {"axis": 2})
    (whole,) = movement.concat(builder, join, [past, x]) if before else (x,)
    alone = replace(node, attributes={"group": x.shape[1], "dilations": [step]})
    (y,) = convolution(builder, alone, [whole, w, optional(inputs, 2)])
    if node.attributes.get("activation", "none") != "none":
        y = emit_elementwise(builder, "ACTIVATION_SWISH", [y], y.dtype,
                             {"sigmoid_input_scale": 1.0})
    left = movement.part(whole, (0, 0, x.shape[2]), (*x.shape[:2], before), (1, 1, 1))
    return [t.transpose((0, 2, 1)) if last else t for t in (y, left)][: len(node.outputs)]


def causal_refusal(node: OnnxNode) -> str | None:
    name = node.attributes.get("activation", "none")
    if name not in ("none", "silu", "swish"):
        return f"activation={name!r}"
    for name, usual in CAUSAL_USUAL.items():
        if name not in _CAUSAL and (value := node.attributes.get(name, usual)) != usual:
            return f"{name}={value}"
    x = node.input(0)
    if node.domain and (x is None or x.shape is None or len(x.shape) != 3):
        return "an input that may have more than three dimensions"
    return None


def transposed_by_pads(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """ConvTransposeWithDynamicPads: the pads are an input."""
    pads = host(inputs, 2)
    attributes = node.attributes if pads is None else {
        **node.attributes, "pads": [int(n) for n in pads.reshape(-1)]}
    return transposed(builder, replace(node, attributes=attributes), [*inputs[:2], *inputs[3:]])


def transposed(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """ConvTranspose. output_shape or auto_pad decides how much of the result is cut off."""
    x, w, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    window, mode = _window(node, x, w), node.attributes.get("auto_pad", "NOTSET")
    axes = len(x.shape) - 2
    more = list(node.attributes.get("output_padding", [0] * axes))
    whole = [(n - 1) * s + d * (k - 1) + 1 + m for n, k, s, d, m in zip(
        x.shape[2:], w.shape[2:], window["strides"], window["dilations"], more)]
    wanted = node.attributes.get("output_shape")
    if wanted is None and mode.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], window["strides"])]
    if mode == "VALID":
        window["start_padding"] = window["end_padding"] = [0] * axes
    if wanted is None:
        spatial = [n - a - b for n, a, b in zip(
            whole, window["start_padding"], window["end_padding"])]
    else:
        spatial = list(wanted)[-axes:]
        ends = [_split(max(n - m, 0), mode == "SAME_UPPER") for n, m in zip(whole, spatial)]
        window["start_padding"], window["end_padding"] = (list(e) for e in zip(*ends))
    groups = node.attributes.get("group", 1)
    return _emit(
        builder, "CONVOLUTION",
        {"input_tensor": x, "filter_tensor": w, "bias_tensor": bias},
        [x.shape[0], w.shape[1] * groups, *[max(n, 0) for n in spatial]], x.dtype,
        {**window, "output_padding": more, "group_count": groups, "fused_activation": None,
         "mode": ConvolutionMode.CROSS_CORRELATION, "direction": ConvolutionDirection.BACKWARD})


def integer(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """ConvInteger."""
    x, w = given(inputs, 0), given(inputs, 1)
    window = _auto_pad(node, x, w)
    zeros = {"input_zero_point_tensor": products.unless_zero(optional(inputs, 2)),
             "filter_zero_point_tensor": products.unless_zero(optional(inputs, 3))}
    return _emit(
        builder, "CONVOLUTION_INTEGER", {"input_tensor": x, "filter_tensor": w, **zeros},
        _forward_sizes(x, w, window), np.dtype("int32"),
        {**window, "group_count": node.attributes.get("group", 1)})


QUANTIZED_FIELDS = ("InputTensor", "InputScaleTensor", "InputZeroPointTensor", "FilterTensor",
                    "FilterScaleTensor", "FilterZeroPointTensor", "OutputScaleTensor",
                    "OutputZeroPointTensor", "BiasTensor")


def quantized(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """QLinearConv."""
    tensors = {spec.snake_case(f): optional(inputs, i) for i, f in enumerate(QUANTIZED_FIELDS)}
    x, w = given(inputs, 0), given(inputs, 3)
    window = _auto_pad(node, x, w)
    return _emit(
        builder, "QUANTIZED_LINEAR_CONVOLUTION", tensors, _forward_sizes(x, w, window),
        given(inputs, 7).dtype, {**window, "group_count": node.attributes.get("group", 1)})


def columns_to_image(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Col2Im."""
    x, image, block = given(inputs, 0), host(inputs, 1), host(inputs, 2)
    if image is None or block is None:
        raise ValidationError("expected an image_shape and a block_shape")
    spatial, window, axes = image.tolist(), block.tolist(), image.size
    pads = list(node.attributes.get("pads", [0] * 2 * axes))
    if len(x.shape) != 3 or len(window) != axes or x.shape[1] % max(product(window), 1):
        raise ValidationError(f"expected columns of blocks {window}, but got {list(x.shape)}")
    y = builder.new((x.shape[0], x.shape[1] // product(window), *spatial), x.dtype)
    if y.storage is not None:
        builder.emit(
            "FOLD", {name: (t, t.shape, t.strides) for name, t in (
                ("input_tensor", x), ("output_tensor", y))},
            window_sizes=window, strides=list(node.attributes.get("strides", [1] * axes)),
            dilations=list(node.attributes.get("dilations", [1] * axes)),
            start_padding=pads[:axes], end_padding=pads[axes:])
    return [y]


_CONVOLUTION = (1, 11, 22)
_CONVOLVED = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

ROWS: tuple[Mapping, ...] = (
    Mapping("Conv", _CONVOLUTION, "CONVOLUTION", convolution,
        attributes=_CONVOLVED, multiplies=True, any_size=True),
    Mapping("FusedConv", (1,), "CONVOLUTION", convolution, MICROSOFT,
        attributes=(*_CONVOLVED, "activation", "activation_params"),
        refuses=refuses_activation, multiplies=True, any_size=True),
    Mapping("NhwcConv", (1,), "CONVOLUTION", channels_last, MICROSOFT,
        attributes=_CONVOLVED, multiplies=True),
    *[Mapping("CausalConvWithState", since, "CONVOLUTION", causal, domain,
          fields=("InputTensor", "FilterTensor", "BiasTensor", "InputTensor"),
          results=("OutputTensor",) * 2, attributes=("activation", *attributes),
          refuses=causal_refusal, multiplies=True)
      for since, domain, attributes in (
          ((27,), "", ()), ((1,), MICROSOFT, tuple(CAUSAL_USUAL)))],
    Mapping("ConvTransposeWithDynamicPads", (1,), "CONVOLUTION",
        transposed_by_pads, MICROSOFT,
        fields=("InputTensor", "FilterTensor", None, "BiasTensor"), host=(2,),
        attributes=(*(a for a in _CONVOLVED if a != "pads"), "output_padding"), multiplies=True),
    Mapping("ConvTranspose", _CONVOLUTION, "CONVOLUTION", transposed,
        attributes=(*_CONVOLVED, "output_padding", "output_shape"), multiplies=True),
    Mapping("ConvInteger", (10,), "CONVOLUTION_INTEGER", integer,
        fields=("InputTensor", "FilterTensor", "InputZeroPointTensor", "FilterZeroPointTensor"),
        attributes=_CONVOLVED, multiplies=True),
    Mapping("QLinearConv", (10,), "QUANTIZED_LINEAR_CONVOLUTION", quantized,
        fields=QUANTIZED_FIELDS, attributes=_CONVOLVED, multiplies=True),
    Mapping("Col2Im", (18,), "FOLD", columns_to_image,
        fields=("InputTensor", None, None), attributes=("dilations", "pads", "strides"),
        host=(1, 2)),
)
