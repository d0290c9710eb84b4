"""Lowerings of softmax and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import ReduceFunction, ScaleBias
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder, supported
from ...layout import pad_left, product
from ..graph import OnnxNode
from ..lowerings import (
    Build,
    Inputs,
    Seen,
    along_axis,
    dimension,
    emit_elementwise,
    given,
    optional,
)
from ..row import FLOAT, MICROSOFT, Mapping, same_types
from .reduction import reduced

_EPSILON = 1e-5
_SKIP_EPSILON = 1e-12
_SMALLEST = 2.0**-126
"""ONNX has no epsilon. With this one, rows of zeros stay zeros."""


def flattened(operator: str) -> Build:
    """Operators before opset 13, over all dimensions from ``axis`` on."""
    along_last = along_axis(operator)

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        axis = node.attributes.get("axis", 1)
        axis = axis + len(x.shape) if axis < 0 else axis
        matrix = builder.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
        (y,) = along_last(builder, _without_axis(node), [matrix])
        return [builder.reshape(y, x.shape)]

    return build


def _without_axis(node: OnnxNode) -> OnnxNode:
    return replace(node, attributes={k: v for k, v in node.attributes.items() if k != "axis"})


def _normalized(
    builder: Builder, operator: str, x: Array, shape: Sequence[int],
    parameters: dict[str, Array | None], axes: Sequence[int] | None = None, **attributes: Any,
) -> Array:
    """``operator`` over ``x`` with sizes ``shape``, to which its parameters are broadcast."""
    y = builder.like([x] if tuple(shape) == x.shape else [], x.shape, x.dtype)
    if y.storage is None:
        return y
    support = supported(builder.device, "DML_OPERATOR_" + operator, "InputTensor")
    rank = max(len(shape), support.dimension_counts[0] if support else 1)
    sizes = pad_left(shape, rank, 1)

    def seen(t: Array) -> Seen:
        return t, sizes, pad_left(t.strides, rank, 0)

    tensors: dict[str, Seen | None] = {
        f"{name}_tensor": None if t is None else seen(t.broadcast_to(shape))
        for name, t in parameters.items()}
    tensors |= {"input_tensor": seen(builder.reshape(x, shape)),
                "output_tensor": seen(builder.reshape(y, shape))}
    if axes is not None:
        attributes["axes"] = tuple(a + rank - len(shape) for a in axes)
    builder.emit(operator, tensors, **attributes)
    return y


def _epsilon(node: OnnxNode, default: float = _EPSILON) -> float:
    return float(node.attributes.get("epsilon", default))


def _layers(builder: Builder, node: OnnxNode, x: Array, scale: Array, bias: Array | None,
            use_mean: bool, epsilon: float = _EPSILON) -> Array:
    shape = x.shape or (1,)
    first = dimension(node.attributes.get("axis", -1), len(shape))
    return _normalized(
        builder, "MEAN_VARIANCE_NORMALIZATION2", x, shape, {"scale": scale, "bias": bias},
        range(first, len(shape)), use_mean=use_mean, use_variance=True,
        epsilon=_epsilon(node, epsilon))


def layers(use_mean: bool) -> Build:
    """Normalization over all dimensions from ``axis`` on; RMS normalization without the mean."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        y = _layers(builder, node, x, given(inputs, 1), optional(inputs, 2), use_mean)
        asked = any(value is not None for value in node.outputs[1:])
        return [y, *_statistics(builder, node, x)][: len(node.outputs)] if asked else [y]

    return build


def _statistics(builder: Builder, node: OnnxNode, x: Array) -> list[Array]:
    """LayerNormalization's Mean and InvStdDev, in float32."""
    axes = range(dimension(node.attributes.get("axis", -1), len(x.shape)), len(x.shape))
    real = np.dtype("float32")
    if x.dtype != real:
        x = emit_elementwise(builder, "CAST", [x], real, {})
    (mean,) = reduced(builder, "REDUCE", x, axes, True, real, function=ReduceFunction.AVERAGE)
    rest = emit_elementwise(builder, "ELEMENT_WISE_SUBTRACT", [x, mean], real, {})
    (squares,) = reduced(builder, "REDUCE", rest, axes, True, real,
                         function=ReduceFunction.SUM_SQUARE)
    to_variance = ScaleBias(1 / product([x.shape[a] for a in axes]), _epsilon(node))
    deviation = emit_elementwise(
        builder, "ELEMENT_WISE_SQRT", [squares], real, {"scale_bias": to_variance})
    inverse = emit_elementwise(
        builder, "ELEMENT_WISE_RECIP", [deviation], real, {"scale_bias": None})
    return [mean, inverse]


def skip_layers(use_mean: bool) -> Build:
    """The same for a sum, which is also an output: input, skip, gamma, beta (with a mean), bias."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        total, gamma = given(inputs, 0), given(inputs, 2)
        beta = optional(inputs, 3) if use_mean else None
        for t in (given(inputs, 1), optional(inputs, 4 if use_mean else 3)):
            if t is not None:
                total = emit_elementwise(builder, "ELEMENT_WISE_ADD", [total, t], total.dtype, {})
        y = _layers(builder, node, total, gamma, beta, use_mean, _SKIP_EPSILON)
        return [y, y, y, total][: len(node.outputs)]  # the middle ones are absent

    return build


def _per_channel(t: Array, rank: int, builder: Builder) -> Array:
    """One value for each channel (the second dimension)."""
    return builder.reshape(t, (1, *t.shape, *(1,) * (rank - 1 - len(t.shape))))


def instances(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    rank = len(x.shape)
    scale, bias = (_per_channel(given(inputs, i), rank, builder) for i in (1, 2))
    return [_normalized(
        builder, "MEAN_VARIANCE_NORMALIZATION1", x, x.shape, {"scale": scale, "bias": bias},
        range(2, rank), normalize_variance=True, epsilon=_epsilon(node))]


def groups(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, count = given(inputs, 0), node.attributes["num_groups"]
    n, channels, *plane = x.shape
    if count < 1 or channels % count:
        raise ValidationError(f"expected {channels} channels to make {count} groups")
    shape = (n, count, channels // count, product(plane))
    parameters: dict[str, Array | None] = {}
    for name, i in (("scale", 1), ("bias", 2)):
        t = given(inputs, i)  # for each group in version 18, later for each channel
        within = t.size // count
        parameters[name] = builder.reshape(t, (1, count, within, 1))
    return [_normalized(
        builder, "MEAN_VARIANCE_NORMALIZATION1", builder.pack(x), shape, parameters, (2, 3),
        normalize_variance=True, epsilon=_epsilon(node))]


def grouped(skips: bool) -> Build:
    """com.microsoft's GroupNorm and SkipGroupNorm: channels last unless told, SiLU if told."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x, read = given(inputs, 0), node.attributes.get
        rank = len(x.shape)
        last = bool(read("channels_last", 1))
        first = (0, rank - 1, *range(1, rank - 1)) if last else range(rank)
        back = (0, *range(2, rank), 1) if last else range(rank)
        for t in inputs[3:] if skips else ():
            if t is None:
                continue
            if len(t.shape) == 2:  # an element for each channel of each image
                ones = (1,) * (rank - 2)
                t = builder.reshape(t, (t.shape[0], *ones, t.shape[1]) if last else (
                    *t.shape, *ones))
            elif len(t.shape) == 1 and not last:
                t = builder.reshape(t, (t.size, *(1,) * (rank - 2)))
            x = emit_elementwise(builder, "ELEMENT_WISE_ADD", [x, t], x.dtype, {})
        total, dtype = x, x.dtype
        x, (scale, bias) = x.transpose(first), (given(inputs, i) for i in (1, 2))
        if scale.dtype != dtype:
            x = emit_elementwise(builder, "CAST", [x], scale.dtype, {})
        of_groups = replace(node, attributes={
            "num_groups": read("groups"), "epsilon": read("epsilon", _EPSILON)})
        (y,) = groups(builder, of_groups, [x, scale, bias])
        if read("activation", 0):
            y = emit_elementwise(builder, "ACTIVATION_SWISH", [y], y.dtype,
                                 {"sigmoid_input_scale": 1.0})
        if y.dtype != dtype:
            y = emit_elementwise(builder, "CAST", [y], dtype, {})
        return [y.transpose(back), total][: len(node.outputs)]

    return build


def mean_variance(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """ONNX adds 1e-9 to the deviation, which is then no more than that. Before version 9 two flags
    stand for the axes and the division."""
    x, read = given(inputs, 0), node.attributes.get
    usual = range(len(x.shape)) if read("across_channels", 0) else (0, 2, 3)
    axes = {dimension(a, len(x.shape)) for a in read("axes", usual)}
    return [_normalized(
        builder, "MEAN_VARIANCE_NORMALIZATION1", x, x.shape, {"scale": None, "bias": None},
        sorted(axes), normalize_variance=bool(read("normalize_variance", 1)), epsilon=1e-18)]


def batch_training(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Normalize by the input's own statistics, and update the running ones."""
    x, momentum = builder.pack(given(inputs, 0)), float(node.attributes.get("momentum", 0.9))
    scale, bias = (_per_channel(given(inputs, i), len(x.shape), builder) for i in (1, 2))
    channels = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    y = builder.new(x.shape, x.dtype)
    statistics = [builder.new(channels, x.dtype) for _ in range(2)]
    arrays = {"input_tensor": x, "scale_tensor": scale, "bias_tensor": bias, "output_tensor": y,
              "output_mean_tensor": statistics[0], "output_variance_tensor": statistics[1]}
    rank = max(len(x.shape), 4)
    if y.storage is not None:
        builder.emit("BATCH_NORMALIZATION_TRAINING", {
            name: (t, (*t.shape, *(1,) * (rank - len(t.shape))),
                   (*t.strides, *(1,) * (rank - len(t.shape)))) for name, t in arrays.items()},
            epsilon=_epsilon(node), fused_activation=None)
    running = []
    for i, statistic in enumerate(statistics, 3):
        parts = [emit_elementwise(builder, "ELEMENT_WISE_IDENTITY", [t], t.dtype,
                                  {"scale_bias": ScaleBias(share, 0.0)})
                 for t, share in ((given(inputs, i), momentum),
                                  (builder.reshape(statistic, x.shape[1:2]), 1 - momentum))]
        running.append(emit_elementwise(builder, "ELEMENT_WISE_ADD", parts, x.dtype, {}))
    return [y, *running]


def batch(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    names = ("scale", "bias", "mean", "variance")
    parameters: dict[str, Array | None] = {
        name: _per_channel(given(inputs, i), len(x.shape), builder)
        for i, name in enumerate(names, 1)}
    return [_normalized(builder, "BATCH_NORMALIZATION", x, x.shape, parameters,
                        spatial=bool(node.attributes.get("spatial", 1)), epsilon=_epsilon(node))]


def neighbours(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, of = given(inputs, 0), node.attributes
    n, channels, *plane = x.shape
    return [_normalized(
        builder, "LOCAL_RESPONSE_NORMALIZATION", builder.pack(x), (n, channels, 1, product(plane)),
        {}, cross_channel=True, local_size=of["size"], alpha=float(of.get("alpha", 1e-4)),
        beta=float(of.get("beta", 0.75)), bias=float(of.get("bias", 1.0)))]


def norms(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    axis = dimension(node.attributes.get("axis", -1), len(x.shape))
    x = builder.pack(x)
    shape = (1, product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :]))
    return [_normalized(builder, "LP_NORMALIZATION", x, shape, {}, axis=2,
                        p=node.attributes.get("p", 2), epsilon=_SMALLEST)]


_SOFTMAX = tuple((op, f"ACTIVATION_{name}1") for op, name in (
    ("Softmax", "SOFTMAX"), ("LogSoftmax", "LOG_SOFTMAX"), ("Hardmax", "HARDMAX")))


def _normalization(node: OnnxNode) -> str | None:
    """Statistics are computed in float32. Only LayerNormalization outputs them."""
    has_statistics = node.op == "LayerNormalization"
    if not has_statistics and any(value is not None for value in node.outputs[1:3]):
        return "mean and variance as outputs"
    if node.attributes.get("training_mode", 0):
        return "training_mode=1"
    if node.op == "BatchNormalization" and node.since < 7 and not node.attributes.get("is_test", 0):
        return "is_test=0"
    if node.attributes.get("stash_type", FLOAT) != FLOAT:
        return "statistics in another precision than float32"
    return same_types(node)


def _trained(node: OnnxNode) -> str | None:
    """Why a batch normalization by its input's statistics is refused, or None."""
    if not node.attributes.get("training_mode", 0):
        return "training_mode=0"
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) < 2:
        return "an input of unknown rank"
    return same_types(node)


ROWS: tuple[Mapping, ...] = (
    # Softmax and normalizations
    *[Mapping(op, (13,), operator, along_axis(operator), attributes=("axis",))
      for op, operator in _SOFTMAX],
    *[Mapping(op, (1, 11), operator, flattened(operator), attributes=("axis",))
      for op, operator in _SOFTMAX],
    *[Mapping("LayerNormalization", since, "MEAN_VARIANCE_NORMALIZATION2",
          layers(True), domain, attributes=("axis", "epsilon", "stash_type"),
          results=("OutputTensor", None), refuses=_normalization)
      for since, domain in (((1, 17), ""), ((1,), MICROSOFT))],
    *[Mapping(op, since, "MEAN_VARIANCE_NORMALIZATION2", layers(False), domain,
          attributes=("axis", "epsilon", "stash_type"), refuses=_normalization)
      for op, since, domain in (("RMSNormalization", (23,), ""),
                                ("SimplifiedLayerNormalization", (1,), ""),
                                ("SimplifiedLayerNormalization", (1,), MICROSOFT))],
    *[Mapping(op, (1,), "MEAN_VARIANCE_NORMALIZATION2", skip_layers(use_mean),
          MICROSOFT, fields=("InputTensor",), attributes=("epsilon",), refuses=_normalization)
      for op, use_mean in (("SkipLayerNormalization", True),
                           ("SkipSimplifiedLayerNormalization", False))],
    Mapping("InstanceNormalization", (1, 6, 22), "MEAN_VARIANCE_NORMALIZATION1",
        instances, attributes=("epsilon",), refuses=_normalization),
    Mapping("GroupNormalization", (18, 21), "MEAN_VARIANCE_NORMALIZATION1", groups,
        attributes=("epsilon", "num_groups", "stash_type"), refuses=_normalization),
    Mapping("MeanVarianceNormalization", (1, 9, 13), "MEAN_VARIANCE_NORMALIZATION1",
        mean_variance,
        attributes=("across_channels", "axes", "normalize_variance")),
    *[Mapping(op, (1,), "MEAN_VARIANCE_NORMALIZATION1", grouped(op != "GroupNorm"),
          MICROSOFT, fields=("InputTensor",), results=("OutputTensor",) * 2,
          attributes=("activation", "channels_last", "epsilon", "groups"))
      for op in ("GroupNorm", "SkipGroupNorm")],
    Mapping("BatchNormalization", (1, 6, 7, 9, 14, 15), "BATCH_NORMALIZATION",
        batch, fields=("InputTensor",),
        attributes=("epsilon", "is_test", "momentum", "spatial", "training_mode"),
        refuses=_normalization),
    Mapping("BatchNormalization", (14, 15), "BATCH_NORMALIZATION_TRAINING",
        batch_training, fields=("InputTensor",),
        attributes=("epsilon", "momentum", "training_mode"), refuses=_trained),
    Mapping("LRN", (1, 13), "LOCAL_RESPONSE_NORMALIZATION", neighbours,
        attributes=("alpha", "beta", "bias", "size")),
    Mapping("LpNormalization", (1, 22), "LP_NORMALIZATION", norms,
        attributes=("axis", "p")),
)
