"""Quantization by one scale, by scales along an axis, or by one for each block."""

from __future__ import annotations

import numpy as np

from ... import spec
from ...attributes import QuantizationType
from ...errors import UnsupportedError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import broadcast_sizes, coalesce, packed_strides, product
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, Seen, dimension, emit_elementwise, given, optional
from ..row import FLOAT, MICROSOFT, Mapping

_FLOAT = np.dtype("float32")
_WORDS = (np.dtype("int16"), np.dtype("uint16"))
_QUANTIZED_SUM = "DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD"


def by_axis(operator: str) -> Build:
    """QuantizeLinear and DequantizeLinear, with one scale and zero point, or one for each index."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        arrays = [x, *[_spread(builder, node, p, x) for p in inputs[1:] if p is not None]]
        out = node.outputs[0]
        default = np.dtype("uint8") if operator.endswith("_QUANTIZE_LINEAR") else arrays[1].dtype
        dtype = default if out is None or out.dtype is None else out.dtype
        return [emit_elementwise(builder, operator, arrays, dtype, {})]

    return build


def _spread(builder: Builder, node: OnnxNode, p: Array, x: Array) -> Array:
    """A scale or zero point, or those of an axis of ``x``, with as many dimensions as it has."""
    rank = len(x.shape)
    if product(p.shape) == 1:
        return builder.reshape(p, (1,) * rank)
    at = dimension(node.attributes.get("axis", 1), rank)
    return builder.reshape(p, [p.shape[0] if d == at else 1 for d in range(rank)])


def quantize_to_words(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """QuantizeLinear to 16 bits, which DirectML's does not have. FLOAT32 holds the numbers."""
    x = given(inputs, 0)
    scale, zero = (None if p is None else _spread(builder, node, p, x)
                   for p in (given(inputs, 1), optional(inputs, 2)))
    out = node.outputs[0]
    dtype = out.dtype if zero is None and out is not None else None if zero is None else zero.dtype
    assert dtype is not None and scale is not None
    y = _real(builder, "DIVIDE", _float(builder, x), _float(builder, scale))
    y = emit_elementwise(builder, "ELEMENT_WISE_ROUND", [y], _FLOAT, {"rounding_mode": 0})
    if zero is not None:
        y = _real(builder, "ADD", y, _float(builder, zero))
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    y = emit_elementwise(builder, "ELEMENT_WISE_CLIP", [y], _FLOAT, {
        "min": float(least), "max": float(most)})
    return [emit_elementwise(builder, "CAST", [y], dtype, {})]


def dequantize_words(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """DequantizeLinear of 16 bits."""
    x, zero = given(inputs, 0), optional(inputs, 2)
    scale = _spread(builder, node, given(inputs, 1), x)
    y = _float(builder, x)
    if zero is not None:
        y = _real(builder, "SUBTRACT", y, _float(builder, _spread(builder, node, zero, x)))
    y = _real(builder, "MULTIPLY", y, _float(builder, scale))
    return [emit_elementwise(builder, "CAST", [y], scale.dtype, {})
            if scale.dtype != _FLOAT else y]


def _float(builder: Builder, x: Array) -> Array:
    return x if x.dtype == _FLOAT else emit_elementwise(builder, "CAST", [x], _FLOAT, {})


def _real(builder: Builder, operator: str, *arrays: Array) -> Array:
    return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", [*arrays], _FLOAT, {})


def words_refusal(node: OnnxNode) -> str | None:
    """Why it is none of 16 bits without blocks, or None."""
    quantized = node.outputs[0] if node.op == "QuantizeLinear" else node.input(0)
    if quantized is None or quantized.dtype not in _WORDS:
        return "numbers of other than 16 bits"
    return "blocks of 16 bits" if node.attributes.get("block_size", 0) else (
        quantization_refusal(node))


def dynamic_quantize(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    y = builder.like([x], x.shape, "uint8")
    if not y.is_channels_last:
        x = builder.pack(x)
    scale, zero = (builder.new((), t) for t in ("float32", "uint8"))
    if x.storage is None:
        one, nothing = np.ones((), "float32"), np.zeros((), "uint8")
        return [y, builder.constant(one), builder.constant(nothing)]
    line = (x.size,)
    builder.emit("DYNAMIC_QUANTIZE_LINEAR", {
        "input_tensor": (x, line, (1,)),
        "output_tensor": (y, line, (1,)),
        "output_scale_tensor": (scale, (1,), (1,)),
        "output_zero_point_tensor": (zero, (1,), (1,)),
    })
    return [y, scale, zero]


def quantized_sum(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft QLinearAdd: inputs in DirectML's order, scales of a single element."""
    terms = [given(inputs, 0), given(inputs, 3)]
    shape = broadcast_sizes(*(x.shape for x in terms))
    y = builder.like(terms, shape, terms[0].dtype)
    if y.storage is None:
        return [y]
    a, b = (given(inputs, i).broadcast_to(shape) for i in (0, 3))
    sizes, strides = coalesce(shape, a.strides, b.strides, y.strides)
    tensors: dict[str, Seen | None] = {}
    for i, field in enumerate(spec.operator(_QUANTIZED_SUM).inputs):
        x = inputs[i] if i < len(inputs) else None
        one = (1,) * len(sizes)
        tensors[field.snake] = None if x is None else (x, one, one)
    tensors["a_tensor"], tensors["b_tensor"], tensors["output_tensor"] = (
        (x, sizes, steps) for x, steps in zip((a, b, y), strides)
    )
    builder.emit(_QUANTIZED_SUM.removeprefix("DML_OPERATOR_"), tensors)
    return [y]


def quantization(operator: str) -> Build:
    """QuantizeLinear and DequantizeLinear, with one scale, scales along an axis, or for its
    blocks."""
    whole = by_axis(f"ELEMENT_WISE_{operator}_LINEAR")

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        block = node.attributes.get("block_size", 0)
        if not block:
            return [*whole(builder, node, inputs)]
        x, scale, zero = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        axis = dimension(node.attributes.get("axis", 1), len(x.shape))
        blocks = x.shape[axis] // block if len(scale.shape) == len(x.shape) else -1
        expected = (*x.shape[:axis], blocks, *x.shape[axis + 1:])
        if scale.shape != expected or x.shape[axis] % block:
            raise UnsupportedError(
                f"scales of sizes {list(scale.shape)} for {list(x.shape)} in blocks of {block}")
        out = node.outputs[0]
        default = (np.dtype("uint8") if zero is None else zero.dtype) if operator == "QUANTIZE" \
            else scale.dtype
        y = builder.new(x.shape, default if out is None or out.dtype is None else out.dtype)
        if y.storage is None:
            return [y]
        if zero is None:
            quantized = y if operator == "QUANTIZE" else x
            zero = builder.constant(np.zeros((1,) * len(x.shape), quantized.dtype))
            zero = zero.broadcast_to(scale.shape)
        builder.emit(operator, {
            "input_tensor": (x, x.shape, x.strides),
            "quantization_tensors[0]": (scale, scale.shape, scale.strides),
            "quantization_tensors[1]": (zero, zero.shape, zero.strides),
            "output_tensor": (y, y.shape, packed_strides(y.shape)),
        }, quantization_type=QuantizationType.SCALE_ZERO_POINT)
        return [y]

    return build


def quantization_refusal(node: OnnxNode) -> str | None:
    if node.attributes.get("precision", 0) not in (0, FLOAT):
        return "a quotient in another precision than float32"
    scale = node.input(1)
    if scale is None or scale.shape is None or (
            len(scale.shape) > 1 and not node.attributes.get("block_size", 0)):
        return "a scale that may have more than one dimension"
    out = node.outputs[0]
    if node.attributes.get("output_dtype", 0) and node.op == "DequantizeLinear" and (
            out is None or out.dtype != scale.dtype):
        return "an output type of its own"
    return None


_QUANTIZED = (10, 13, 19, 21, 23, 24, 25, 28)

ROWS: tuple[Mapping, ...] = (
    *[Mapping(f"{op}Linear", since, "CAST", build, domain,
              fields=("InputTensor",), results=("OutputTensor",),
              attributes=("axis", "block_size", "output_dtype", "precision", "saturate"),
              refuses=words_refusal)
      for op, build in (("Quantize", quantize_to_words), ("Dequantize", dequantize_words))
      for domain, since in (("", _QUANTIZED), (MICROSOFT, (1,)))],
    Mapping("DynamicQuantizeLinear", (11,), "DYNAMIC_QUANTIZE_LINEAR", dynamic_quantize),
    Mapping("QuantizeLinear", _QUANTIZED, "ELEMENT_WISE_QUANTIZE_LINEAR",
        quantization("QUANTIZE"),
        attributes=("axis", "block_size", "output_dtype", "precision", "saturate"),
        refuses=quantization_refusal),
    Mapping("DequantizeLinear", _QUANTIZED, "ELEMENT_WISE_DEQUANTIZE_LINEAR",
        quantization("DEQUANTIZE"),
        attributes=("axis", "block_size", "output_dtype"), refuses=quantization_refusal),
    Mapping("QLinearAdd", (1,), "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", quantized_sum, MICROSOFT),
    *[Mapping(f"{op}Linear", (1,), f"ELEMENT_WISE_{op.upper()}_LINEAR",
              by_axis(f"ELEMENT_WISE_{op.upper()}_LINEAR"), MICROSOFT,
              attributes=("axis", "block_size"), refuses=quantization_refusal)
      for op in ("Quantize", "Dequantize")],
)
