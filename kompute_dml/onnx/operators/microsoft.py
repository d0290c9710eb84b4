"""Lowerings of com.microsoft's operators that take several of DirectML's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import ReduceFunction
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, along_axis, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping, Refusal
from . import movement, normalization, reduction
from .gather import gather
from .recurrent import recurrent, recurrent_refusal

_FLOAT = np.dtype("float32")
_EMBEDDING_EPSILON = 1e-12


# Quantized tensors


def _real(builder: Builder, x: Array, scale: Array, zero: Array | None) -> Array:
    """The real numbers of a quantized tensor with one scale."""
    arrays = [x, *(builder.reshape(p, ()) for p in (scale, zero) if p is not None)]
    return emit_elementwise(builder, "ELEMENT_WISE_DEQUANTIZE_LINEAR", arrays, _FLOAT, {})


def _quantized(
    builder: Builder, y: Array, scale: Array, zero: Array | None, dtype: np.dtype[Any]
) -> Array:
    arrays = [y, *(builder.reshape(p, ()) for p in (scale, zero) if p is not None)]
    return emit_elementwise(builder, "ELEMENT_WISE_QUANTIZE_LINEAR", arrays, dtype, {})


def quantized_product(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """QLinearMul: A, its scale and zero point; the same of B; those of the result."""
    a, b = (_real(builder, given(inputs, i), given(inputs, i + 1), optional(inputs, i + 2))
            for i in (0, 3))
    y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [a, b], _FLOAT, {})
    return [_quantized(
        builder, y, given(inputs, 6), optional(inputs, 7), given(inputs, 0).dtype)]


def quantized(function: Build) -> Build:
    """A function of a quantized tensor: the tensor, its scale and zero point, those of the
    result."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        real = _real(builder, x, given(inputs, 1), optional(inputs, 2))
        (y,) = function(builder, node, [real])
        return [_quantized(builder, y, given(inputs, 3), optional(inputs, 4), x.dtype)]

    return build


def sigmoid(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    return [emit_elementwise(builder, "ACTIVATION_SIGMOID", [given(inputs, 0)], _FLOAT, {})]


def leaky_relu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    slope = float(node.attributes.get("alpha", 0.01))
    return [emit_elementwise(
        builder, "ACTIVATION_LEAKY_RELU", [given(inputs, 0)], _FLOAT, {"alpha": slope})]


def softmax(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """QLinearSoftmax. Before ``opset`` 13 it normalizes all dimensions from an axis on."""
    operator = "ACTIVATION_SOFTMAX1"
    build = (along_axis(operator) if node.attributes.get("opset", 13) >= 13
             else normalization.flattened(operator))
    return list(build(builder, node, inputs))


def quantized_concat(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """QLinearConcat: the result's scale and zero point, then each tensor with its own ones."""
    scale, zero = given(inputs, 0), given(inputs, 1)
    if (len(inputs) - 2) % 3:
        raise ValidationError("expected a scale and a zero point for each tensor")
    parts = [_real(builder, given(inputs, i), given(inputs, i + 1), given(inputs, i + 2))
             for i in range(2, len(inputs), 3)]
    (y,) = movement.concat(builder, node, parts)
    return [_quantized(builder, y, scale, zero, zero.dtype)]


def quantized_lstm(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """DynamicQuantizeLSTM: an LSTM with dequantized weights. ONNX Runtime also quantizes inputs and
    states to 8 bits. This does not."""

    def weights(i: int, scale: Array, zero: Array) -> Array:
        w = given(inputs, i)  # [directions, K, 4 units], a scale for each direction or column
        sizes = [w.shape[0], 1, scale.shape[1] if len(scale.shape) > 1 else 1]
        if scale.size == 1:
            sizes = [1, 1, 1]
        arrays = [w, *(builder.reshape(p, sizes) for p in (scale, zero))]
        y = emit_elementwise(builder, "ELEMENT_WISE_DEQUANTIZE_LINEAR", arrays, _FLOAT, {})
        return y.transpose((0, 2, 1))

    w = weights(1, given(inputs, 8), given(inputs, 9))
    r = weights(2, given(inputs, 10), given(inputs, 11))
    build = recurrent("LSTM")
    return list(build(builder, node, [given(inputs, 0), w, r, *inputs[3:8]]))


# Embeddings and biases


def embed_layers(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """EmbedLayerNormalization: the normalized sum of the embeddings of words, positions and
    segments; the number of elements that the mask keeps in each row; the sum."""
    ids = given(inputs, 0)
    batches, length = ids.shape
    total = gather(builder, _row(node), [given(inputs, 2), ids])[0]
    places, chosen = given(inputs, 3), optional(inputs, 8)
    if chosen is None:
        if length > places.shape[0]:
            raise ValidationError(f"expected at most {places.shape[0]} positions, but got {length}")
        added = [places.view((1, length, places.shape[1]), (0, *places.strides))]
    else:
        added = [gather(builder, _row(node), [places, chosen])[0]]
    segments, of_each = optional(inputs, 1), optional(inputs, 4)
    if segments is not None and of_each is not None:
        added += gather(builder, _row(node), [of_each, segments])
    for x in added:
        total = emit_elementwise(builder, "ELEMENT_WISE_ADD", [total, x], total.dtype, {})
    normal = replace(node, outputs=node.outputs[:1], attributes={
        "axis": -1, "epsilon": node.attributes.get("epsilon", _EMBEDDING_EPSILON)})
    (y,) = normalization.layers(True)(
        builder, normal, [total, given(inputs, 5), given(inputs, 6)])
    mask = optional(inputs, 7)
    if mask is None:
        counts = builder.constant(np.zeros(batches, np.int32))
    else:
        one_axis = replace(node, attributes={"axes": [1], "keepdims": 0})
        (counts,) = reduction.reduction(ReduceFunction.SUM)(builder, one_axis, [mask])
    return [y, counts, total]


def _row(node: OnnxNode) -> OnnxNode:
    return replace(node, attributes={"axis": 0})


def bias_add(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """BiasAdd: a tensor, its bias and a skip connection."""
    total = given(inputs, 0)
    for i in (1, 2):
        total = emit_elementwise(
            builder, "ELEMENT_WISE_ADD", [total, given(inputs, i)], total.dtype, {})
    return [total]


def bias_split_gelu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """BiasSplitGelu: one half of the columns times the GELU of the other."""
    x = emit_elementwise(builder, "ELEMENT_WISE_ADD", [given(inputs, 0), given(inputs, 1)],
                         given(inputs, 0).dtype, {})
    *front, columns = x.shape
    half = columns // 2
    left, right = (x.view((*front, half), x.strides, start=i * half * x.strides[-1])
                   for i in range(2))
    gelu = emit_elementwise(builder, "ACTIVATION_GELU", [right], x.dtype, {})
    return [emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [left, gelu], x.dtype, {})]


_DEQUANTIZED = (None,)
"""Quantized tensors. The composed operators check their types."""


def _one_scale(*indices: int) -> Refusal:
    """Refuse nodes with several scales or zero points."""

    def refuses(node: OnnxNode) -> str | None:
        for i in indices:
            if (p := node.input(i)) is not None and (p.shape is None or any(
                    n != 1 for n in p.shape)):
                return "a scale or zero point that may be more than one"
        return None

    return refuses


ROWS: tuple[Mapping, ...] = (
    *[Mapping(op, (1,), "ELEMENT_WISE_DEQUANTIZE_LINEAR", build, MICROSOFT, fields=_DEQUANTIZED,
              attributes=attributes, results=(None,), refuses=_one_scale(*scales))
      for op, build, attributes, scales in (
          ("QLinearMul", quantized_product, (), (1, 2, 4, 5, 6, 7)),
          ("QLinearSigmoid", quantized(sigmoid), (), (1, 2, 3, 4)),
          ("QLinearLeakyRelu", quantized(leaky_relu), ("alpha",),
           (1, 2, 3, 4)),
          ("QLinearSoftmax", quantized(softmax), ("axis", "opset"),
           (1, 2, 3, 4)),
          ("QLinearConcat", quantized_concat, ("axis",), ()))],
    Mapping("DynamicQuantizeLSTM", (1,), "LSTM", quantized_lstm, MICROSOFT,
            fields=("InputTensor", None, None, "BiasTensor", None, "HiddenInitTensor",
                    "CellMemInitTensor", "PeepholeTensor", None),
            attributes=("hidden_size", "direction", "activations", "activation_alpha",
                        "activation_beta", "clip", "input_forget"),
            refuses=recurrent_refusal, multiplies=True),
    Mapping("EmbedLayerNormalization", (1,), "MEAN_VARIANCE_NORMALIZATION2",
            embed_layers, MICROSOFT,
            fields=(None, None, "InputTensor", "InputTensor", "InputTensor", "ScaleTensor",
                    "BiasTensor", None, None),
            results=("OutputTensor", None, "OutputTensor"),
            attributes=("epsilon", "mask_index_type")),
    Mapping("BiasAdd", (1,), "ELEMENT_WISE_ADD", bias_add, MICROSOFT,
            fields=("ATensor", "BTensor")),
    Mapping("BiasSplitGelu", (1,), "ACTIVATION_GELU", bias_split_gelu, MICROSOFT,
            fields=("InputTensor",)),
)
