"""com.microsoft's attention with its projection: Attention and QAttention."""

from __future__ import annotations

import numpy as np

from ...attributes import MultiheadAttentionMaskType as MaskType
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import product
from ..graph import OnnxNode
from ..lowerings import Inputs, Seen, optional, seen
from ..row import MICROSOFT, Mapping
from .attention import FILTER, mask_of
from .products import gemm, matmul_integer_to_float
from .rotary import columns, plain


def projected(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft Attention."""
    x, weights, bias, mask, past, added = (optional(inputs, i) for i in range(6))
    (y,) = gemm(builder, plain("Gemm"), [x, weights, bias])
    return _attend(builder, node, y, mask, past, added)


def quantized(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft QAttention, whose projection is a product of integers."""
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (
        optional(inputs, i) for i in range(9))
    (y,) = matmul_integer_to_float(
        builder, node, [x, weights, x_scale, w_scale, x_zero, w_zero, bias])
    return _attend(builder, node, y, mask, past, None)


def _attend(builder: Builder, node: OnnxNode, projection: Array, mask: Array | None,
            past: Array | None, added: Array | None) -> list[Array]:
    """``projection`` holds queries, keys and values, one after the other in each row."""
    read, heads = node.attributes, node.attributes["num_heads"]
    batches, length, features = projection.shape
    widths = list(read.get("qkv_hidden_sizes", ())) or [features // 3] * 3
    if len(widths) != 3 or sum(widths) != features or any(n % heads for n in widths):
        raise ValidationError(f"expected {heads} heads of queries, keys and values in {features} "
                              f"features, but got {widths}")
    q, k, v = (columns(projection, sum(widths[:i]), widths[i]) for i in range(3))
    size, value_size = widths[0] // heads, widths[2] // heads
    before = 0 if past is None else past.shape[3]
    keys = before + length
    y = builder.new((batches, length, widths[2]), projection.dtype)
    present = builder.new((2, batches, heads, keys, size), projection.dtype)
    tensors: dict[str, Seen | None] = {
        "query_tensor": seen(q), "key_tensor": seen(k), "value_tensor": seen(v),
        "output_tensor": seen(y)}
    if before and past is not None:
        tensors |= {f"past_{n}_tensor": seen(_half(past, i))
                    for i, n in enumerate(("key", "value"))}
    causal = bool(read.get("unidirectional", 0))
    if causal:
        tensors["past_sequence_lengths_tensor"] = seen(
            builder.filled((batches,), before, np.int32))
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        if size != value_size:
            raise ValidationError("expected keys and values of one size where they are an output")
        present_parts = [_half(present, i) for i in range(2)]
    else:
        present_parts = [
            builder.new((batches, heads, keys, n), y.dtype) for n in (size, value_size)]
    if causal or (len(node.outputs) > 1 and node.outputs[1] is not None):
        tensors |= {f"output_present_{n}_tensor": seen(t)
                    for n, t in zip(("key", "value"), present_parts)}
    sizes = (batches, heads, length, keys)
    kind = MaskType.NONE
    if mask is not None and mask.shape == (2 * batches,):
        kind = MaskType.KEY_SEQUENCE_END_START
        tensors["mask_tensor"] = (mask, (2, batches), (batches, 1))
    elif mask is not None:
        kind, tensors["mask_tensor"] = mask_of(mask, sizes)
    if added is not None:
        tensors["relative_position_bias_tensor"] = seen(added.broadcast_to(sizes))
    builder.emit(
        "MULTIHEAD_ATTENTION1", tensors, scale=float(read.get("scale", 0.0) or size ** -0.5),
        query_head_count=heads, key_value_head_count=heads, mask_type=kind,
        mask_filter_value=float(read.get("mask_filter_value", FILTER)))
    return [y, present]


def _half(stack: Array, i: int) -> Array:
    """Keys or values of a stack of both."""
    return stack.view(stack.shape[1:], stack.strides[1:], i * product(stack.shape[1:]))


def projected_refusal(node: OnnxNode) -> str | None:
    """Why com.microsoft's Attention or QAttention is not supported, or None."""
    read = node.attributes
    if read.get("do_rotary", 0):
        return "do_rotary=1"
    if read.get("past_present_share_buffer", 0):
        return "past_present_share_buffer=1"
    if any(v is None or v.shape is None for v in node.inputs[:2]):
        return "inputs of unknown rank"
    mask = node.input(5 if node.op == "QAttention" else 3)
    if mask is not None and (mask.shape is None or len(mask.shape) > 3):
        return "a mask of unknown rank, or of rank 4"
    if node.op == "Attention" and node.input(6) is not None:
        return "past_sequence_length"
    return None


ROWS: tuple[Mapping, ...] = (
    Mapping("Attention", (1,), "MULTIHEAD_ATTENTION1", projected, MICROSOFT,
        fields=("QueryTensor", "QueryTensor", "QueryTensor", "MaskTensor", "PastKeyTensor",
                "RelativePositionBiasTensor", None),
        attributes=("do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer",
                    "qkv_hidden_sizes", "rotary_embedding_dim", "scale", "unidirectional"),
        refuses=projected_refusal, multiplies=True),
    Mapping("QAttention", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT", quantized,
        MICROSOFT,
        fields=("ATensor", "BTensor", "BiasTensor", "AScaleTensor", "BScaleTensor", None,
                "AZeroPointTensor", "BZeroPointTensor", "OutputTensor"),
        attributes=("do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer",
                    "scale", "unidirectional"),
        refuses=projected_refusal, multiplies=True),
)
