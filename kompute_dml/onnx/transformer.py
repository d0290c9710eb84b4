"""Lowerings of transformers' nodes that take several operators: attention with projection or rotary
embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..errors import ValidationError
from ..graph.array import BOOL, Array
from ..graph.builder import Builder
from ..layout import product
from . import attention_parts
from .attention import mask_of
from .gather import gather, tensor_scatter
from .graph import Node
from .lowerings import Inputs, Seen, emit_elementwise, given, host, optional
from .movement import joined
from .products import gemm, matmul_integer_to_float

_FILTER = -10000.0


def _seen(x: Array | None) -> Seen | None:
    return None if x is None else (x, x.shape, x.strides)


def _plain(op: str, **attributes: Any) -> Node:
    return Node(op, "", 13, (), (), attributes)


def _part(x: Array, first: int, count: int) -> Array:
    """Elements of the last dimension."""
    return x.view((*x.shape[:-1], count), x.strides, first * x.strides[-1])


# Rotary embedding


def _rotated(builder: Builder, x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """``x`` is (batch, position, head, element); ``cos`` and ``sin`` (batch, position, pair)."""
    pairs = cos.shape[-1]
    if interleaved:
        shape, strides = (*x.shape[:3], pairs), (*x.strides[:3], 2 * x.strides[3])
        first, second = x.view(shape, strides), x.view(shape, strides, x.strides[3])
    else:
        first, second = _part(x, 0, pairs), _part(x, pairs, pairs)
    cos, sin = (builder.reshape(t, (*t.shape[:2], 1, pairs)) for t in (cos, sin))

    def combined(operator: str, a: Array, b: Array) -> Array:
        terms = [emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", pair, x.dtype, {})
                 for pair in ((first, a), (second, b))]
        return emit_elementwise(builder, operator, terms, x.dtype, {})

    rotated = [combined("ELEMENT_WISE_SUBTRACT", cos, sin), combined("ELEMENT_WISE_ADD", sin, cos)]
    if interleaved:
        rotated = [builder.reshape(t, (*t.shape, 1)) for t in rotated]
    y = joined(builder, rotated, -1)
    y = builder.reshape(y, (*x.shape[:3], 2 * pairs))
    rest = x.shape[3] - 2 * pairs
    if rest:
        y = joined(builder, [y, _part(x, 2 * pairs, rest)], -1)
    return y


def _at_positions(builder: Builder, cache: Array, ids: Array) -> Array:
    (found,) = gather(builder, _plain("Gather", axis=0), [cache, ids])
    return found


def _following(builder: Builder, first: Array, count: int) -> Array:
    """Positions from ``first`` ({batch, 1} or {1}) on, along a new last dimension."""
    more = builder.constant(np.arange(count, dtype=first.dtype))
    return emit_elementwise(builder, "ELEMENT_WISE_ADD", [first, more], first.dtype, {})


def rotary(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """RotaryEmbedding of ONNX, and of com.microsoft, whose positions come before the caches."""
    x = given(inputs, 0)
    if node.domain:
        ids, cos, sin = (given(inputs, i) for i in (1, 2, 3))
    else:
        cos, sin = given(inputs, 1), given(inputs, 2)
        ids = optional(inputs, 3)  # type: ignore[assignment]
    by_head = len(x.shape) == 4
    if by_head:
        by_token = x.transpose((0, 2, 1, 3))
    else:
        heads = node.attributes.get("num_heads", 0)
        size = x.shape[2] // heads if heads else 2 * cos.shape[-1]
        if not size or x.shape[2] % size:
            raise ValidationError(f"expected heads of {size} elements in {list(x.shape)}")
        by_token = builder.reshape(x, (*x.shape[:2], x.shape[2] // size, size))
    batches, length, _, size = by_token.shape
    rotated = node.attributes.get("rotary_embedding_dim", 0) or size
    if cos.shape != sin.shape or rotated > size or 2 * cos.shape[-1] != rotated:
        raise ValidationError(
            f"expected cosines and sines of half the {rotated} elements that are rotated, of "
            f"{size} in a head, but got {list(cos.shape)} and {list(sin.shape)}")
    if ids is not None:
        if ids.shape != (batches, length):
            ids = _following(builder, ids, length).broadcast_to((batches, length))
        cos, sin = (_at_positions(builder, t, ids) for t in (cos, sin))
    y = _rotated(builder, by_token, cos, sin, bool(node.attributes.get("interleaved", 0)))
    return [y.transpose((0, 2, 1, 3)) if by_head else builder.reshape(y, x.shape)]


def rotary_refusal(node: Node) -> str | None:
    """Why a rotary embedding is not supported, or None."""
    read = node.attributes
    if read.get("scale", 1.0) != 1.0:
        return "a scale"
    if read.get("is_packed_batching", 0):
        return "is_packed_batching=1"
    if any(v is None or v.shape is None for v in node.inputs[:3]):
        return "inputs of unknown rank"
    return None


# Attention with its projection


def projected(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """com.microsoft Attention."""
    x, weights, bias, mask, past, added = (optional(inputs, i) for i in range(6))
    (y,) = gemm(builder, _plain("Gemm"), [x, weights, bias])
    return _attend(builder, node, y, mask, past, added)


def quantized(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """com.microsoft QAttention, whose projection is a product of integers."""
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (
        optional(inputs, i) for i in range(9))
    (y,) = matmul_integer_to_float(
        builder, node, [x, weights, x_scale, w_scale, x_zero, w_zero, bias])
    return _attend(builder, node, y, mask, past, None)


def _attend(builder: Builder, node: Node, projection: Array, mask: Array | None,
            past: Array | None, added: Array | None) -> list[Array]:
    """``projection`` holds queries, keys and values, one after the other in each row."""
    read, heads = node.attributes, node.attributes["num_heads"]
    batches, length, features = projection.shape
    widths = list(read.get("qkv_hidden_sizes", ())) or [features // 3] * 3
    if len(widths) != 3 or sum(widths) != features or any(n % heads for n in widths):
        raise ValidationError(f"expected {heads} heads of queries, keys and values in {features} "
                              f"features, but got {widths}")
    q, k, v = (_part(projection, sum(widths[:i]), widths[i]) for i in range(3))
    size, value_size = widths[0] // heads, widths[2] // heads
    before = 0 if past is None else past.shape[3]
    keys = before + length
    y = builder.new((batches, length, widths[2]), projection.dtype)
    present = builder.new((2, batches, heads, keys, size), projection.dtype)
    tensors: dict[str, Seen | None] = {
        "query_tensor": _seen(q), "key_tensor": _seen(k), "value_tensor": _seen(v),
        "output_tensor": _seen(y)}
    if before and past is not None:
        tensors |= {f"past_{n}_tensor": _seen(_half(past, i))
                    for i, n in enumerate(("key", "value"))}
    causal = bool(read.get("unidirectional", 0))
    if causal:
        tensors["past_sequence_lengths_tensor"] = _seen(
            builder.constant(np.full(batches, before, np.int32)))
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        if size != value_size:
            raise ValidationError("expected keys and values of one size where they are an output")
        made = [_half(present, i) for i in range(2)]
    else:
        made = [builder.new((batches, heads, keys, n), y.dtype) for n in (size, value_size)]
    if causal or (len(node.outputs) > 1 and node.outputs[1] is not None):
        tensors |= {f"output_present_{n}_tensor": _seen(t)
                    for n, t in zip(("key", "value"), made)}
    sizes = (batches, heads, length, keys)
    kind = MaskType.NONE
    if mask is not None and mask.shape == (2 * batches,):
        kind = MaskType.KEY_SEQUENCE_END_START
        tensors["mask_tensor"] = (mask, (2, batches), (batches, 1))
    elif mask is not None:
        kind, tensors["mask_tensor"] = mask_of(mask, sizes)
    if added is not None:
        tensors["relative_position_bias_tensor"] = _seen(added.broadcast_to(sizes))
    builder.emit(
        "MULTIHEAD_ATTENTION1", tensors, scale=float(read.get("scale", 0.0) or size ** -0.5),
        query_head_count=heads, key_value_head_count=heads, mask_type=kind,
        mask_filter_value=float(read.get("mask_filter_value", _FILTER)))
    return [y, present]


def _half(stack: Array, i: int) -> Array:
    """Keys or values of a stack of both."""
    return stack.view(stack.shape[1:], stack.strides[1:], i * product(stack.shape[1:]))


def projected_refusal(node: Node) -> str | None:
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


# Grouped heads


def grouped(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """com.microsoft GroupQueryAttention. The present outputs are as long as the past ones if these
    have room for all keys."""
    read = node.attributes
    heads, key_heads = read["num_heads"], read["kv_num_heads"]
    q, k, v, past_k, past_v, lengths = (optional(inputs, i) for i in range(6))
    cos, sin, ids, added = (optional(inputs, i) for i in (7, 8, 9, 10))
    total = host(inputs, 6)
    if q is None or lengths is None or total is None:
        raise ValidationError("expected queries, seqlens_k and total_sequence_length to be given")
    total_length = int(total.reshape(-1)[0])
    batches, length, features = q.shape
    if k is None or v is None:
        size = features // (heads + 2 * key_heads)
        ends = (heads * size, (heads + key_heads) * size)
        q, k, v = (_part(q, 0, ends[0]), _part(q, ends[0], key_heads * size),
                   _part(q, ends[1], key_heads * size))
    size, value_size = q.shape[2] // heads, v.shape[2] // key_heads
    capacity = max(total_length, 0 if past_k is None else past_k.shape[2])
    lengths = builder.reshape(lengths, (batches,))
    if length == total_length:  # nothing is past
        before = builder.constant(np.zeros(batches, np.int32))
    else:
        one_less = builder.constant(np.full((), length - 1, np.int32))
        before = emit_elementwise(
            builder, "ELEMENT_WISE_SUBTRACT", [lengths, one_less], lengths.dtype, {})
    if read.get("do_rotary", 0):
        if cos is None or sin is None:
            raise ValidationError("expected cos_cache and sin_cache to be given")
        if ids is None:
            ids = _following(builder, builder.reshape(before, (batches, 1)), length)
        cos_at, sin_at = (_at_positions(builder, t, ids) for t in (cos, sin))
        interleaved = bool(read.get("rotary_interleaved", 0))

        def rotated(x: Array, count: int) -> Array:
            by_head = builder.reshape(x, (batches, length, count, size))
            y = _rotated(builder, by_head, cos_at, sin_at, interleaved)
            return builder.reshape(y, (batches, length, count * size))

        q, k = rotated(q, heads), rotated(k, key_heads)
    window = read.get("local_window_size", -1)
    if read.get("softcap", 0.0):
        caches = [_appended(builder, node, past, builder.reshape(x, (
            batches, length, key_heads, n)).transpose((0, 2, 1, 3)), before, capacity)
            for past, x, n in ((past_k, k, size), (past_v, v, value_size))]
        so_far = emit_elementwise(builder, "ELEMENT_WISE_ADD", [
            before, builder.constant(np.full((), length, before.dtype))], before.dtype, {})
        (y,) = attention_parts.attention(builder, replace(node, outputs=(None,), attributes={
            "q_num_heads": heads, "is_causal": 1, "scale": read.get("scale", 0.0),
            "softcap": read["softcap"], "left_window_size": max(window, 0) - 1,
        }), [q, *caches, added, None, None, so_far])
        return [y, *caches]
    y = builder.new((batches, length, heads * value_size), q.dtype)
    present = [builder.new((batches, key_heads, capacity, n), q.dtype)
               for n in (size, value_size)]
    tensors: dict[str, Seen | None] = {
        "query_tensor": _seen(q), "key_tensor": _seen(k), "value_tensor": _seen(v),
        "past_sequence_lengths_tensor": _seen(before), "output_tensor": _seen(y),
        "output_present_key_tensor": _seen(present[0]),
        "output_present_value_tensor": _seen(present[1])}
    if past_k is not None and past_v is not None and past_k.storage is not None:
        tensors |= {"past_key_tensor": _seen(past_k), "past_value_tensor": _seen(past_v)}
    if 0 < window < total_length:
        hidden = _beyond(builder, before, length, capacity, window, q.dtype)
        added = hidden if added is None else emit_elementwise(
            builder, "ELEMENT_WISE_ADD", [added, hidden], q.dtype, {})
    if added is not None:
        tensors["relative_position_bias_tensor"] = _seen(
            added.broadcast_to((batches, heads, length, capacity)))
    builder.emit(
        "MULTIHEAD_ATTENTION1", tensors, scale=float(read.get("scale", 0.0) or size ** -0.5),
        query_head_count=heads, key_value_head_count=key_heads, mask_type=MaskType.NONE,
        mask_filter_value=_FILTER)
    return [y, *present]


def _appended(builder: Builder, node: Node, past: Array | None, new: Array, before: Array,
              capacity: int) -> Array:
    """A cache of ``capacity`` positions: past keys (or values), and new ones from ``before`` on, by
    batch."""
    batches, heads, _, size = new.shape
    kept = 0 if past is None else past.shape[2]
    parts = [past] if past is not None and kept else []
    if kept < capacity:
        zeros = builder.constant(np.zeros((), new.dtype))
        parts.append(zeros.broadcast_to((batches, heads, capacity - kept, size)))
    cache = parts[0] if len(parts) == 1 else joined(builder, parts, 2)
    return tensor_scatter(builder, replace(node, attributes={"axis": 2}), [cache, new, before])[0]


def _beyond(builder: Builder, before: Array, length: int, keys: int, window: int, dtype: Any
            ) -> Array:
    """-infinity for keys before the last ``window`` ones that a query may see, by batch: 0 for
    others. ``before``: the number of past keys of each batch."""
    ahead = np.arange(keys)[None, :] - np.arange(length)[:, None] + window - 1
    near = emit_elementwise(
        builder, "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL",
        [builder.constant(ahead.astype(before.dtype)),
         builder.reshape(before, (before.shape[0], 1, 1, 1))], BOOL, {})
    return attention_parts.from_truth(builder, near, dtype)


def grouped_refusal(node: Node) -> str | None:
    """Why GroupQueryAttention is not supported, or None."""
    usual = {"smooth_softmax": 0, "qk_output": 0,
             "causal": 1, "k_quant_type": "NONE", "v_quant_type": "NONE", "kv_cache_bit_width": 0,
             "sliding_window_cache": 0}
    for name, value in usual.items():
        found = node.attributes.get(name, value)
        if found != value and not (name == "smooth_softmax" and found == -1):
            return f"{name}={node.attributes[name]}"
    if any(v is not None for v in node.inputs[11:]):
        return "a sink, scales or norms"
    if any(v is not None for v in node.outputs[3:]):
        return "the product of queries and keys as an output"
    if node.inputs[0] is None or node.inputs[0].shape is None:
        return "queries of unknown rank"
    return None
