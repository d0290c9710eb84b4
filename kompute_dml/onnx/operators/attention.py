"""Attention of ONNX, and com.microsoft's of several heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attributes import MultiheadAttentionMaskType as MaskType
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...layout import packed_strides
from ...operators.rotary_append import AppendedAttentionDesc
from ..bfloat16 import STORED, as_stored, numbers
from ..graph import OnnxNode
from ..lowerings import Inputs, Seen, converted, emit_elementwise, given, optional, packed
from ..row import Mapping
from . import movement

FILTER = -10000.0
"""What is added to the scores of keys that a mask hides, unless a node of com.microsoft's says."""


def past(
    inputs: Inputs, first: int, batches: int, heads: int
) -> tuple[Array | None, Array | None]:
    """Keys and values of earlier tokens. A cache without tokens counts as absent."""
    caches = optional(inputs, first), optional(inputs, first + 1)
    for t in caches:
        if t is not None and t.shape[:2] != (batches, heads):
            raise ValidationError(f"expected past keys and values of {batches} batches and {heads} "
                                  f"heads, but got {list(t.shape)}")
    key, value = (None if t is None or not t.size else t for t in caches)
    return key, value


def expect_caches(
    keys: Sequence[int], values: Sequence[int], batches: int, heads: int, sizes: tuple[int, int]
) -> None:
    """Raise unless caches of keys and values [batch, head, row, element] have as many rows."""
    for shown, size in zip((keys, values), sizes):
        wanted = [batches, heads, keys[2], size]
        if [*shown] != wanted:
            raise ValidationError(f"expected a cache of sizes {wanted}, but got {[*shown]}")


def multi_head_attention(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft MultiHeadAttention. Queries, keys and values are separate, or lie in one stack,
    or keys and values do. Separate keys and values may be by head already. All may be of BFLOAT16
    as it is stored, and then the results are, too."""
    read, heads = node.attributes, node.attributes["num_heads"]
    q = builder.pack(given(inputs, 0))
    batches, queries = q.shape[:2]
    k, v, bias, mask, relative, past_k, past_v = (
        None if t is None else builder.pack(t)
        for t in (*[optional(inputs, i) for i in range(1, 6)], *past(inputs, 6, batches, heads)))
    size = value_size = q.shape[4] if len(q.shape) == 5 else q.shape[2] // heads
    by_head = k is not None and len(k.shape) == 4
    new = queries if k is None else k.shape[2 if by_head else 1]
    tensors: dict[str, Seen | None]
    if k is None:
        tensors = {"stacked_query_key_value_tensor": packed(q)}
    elif v is None:
        tensors = {"query_tensor": packed(q), "stacked_key_value_tensor": packed(k)}
    elif by_head:
        value_size = v.shape[3]
        tensors = {"query_tensor": packed(q)}
    else:
        value_size = v.shape[2] // heads
        tensors = {"query_tensor": packed(q), "key_tensor": packed(k), "value_tensor": packed(v)}
    before = past_k.shape[2] if past_k is not None else 0
    keys = before + new
    if by_head:
        past_k, past_v = (x if t is None or x is None else movement.joined(builder, [t, x], 2)
                          for t, x in ((past_k, k), (past_v, v)))
    y = builder.new((batches, queries, heads * value_size), q.dtype)
    present = [builder.new((batches, heads, keys, n), q.dtype) for n in (size, value_size)]
    if y.storage is None:
        return [y, *present]
    causal = bool(read.get("unidirectional", 0))
    counted = causal and not by_head and new <= queries
    if counted:
        tensors["past_sequence_lengths_tensor"] = packed(
            builder.filled((batches,), before, np.int32))
    elif causal:
        relative = _only_earlier(builder, relative, before, (queries, keys), q.dtype)
    tensors |= {"bias_tensor": packed(bias), "past_key_tensor": packed(past_k),
                "past_value_tensor": packed(past_v), "output_tensor": packed(y)}
    if counted or any(node.outputs[1:]):
        tensors |= {"output_present_key_tensor": packed(present[0]),
                    "output_present_value_tensor": packed(present[1])}
    sizes = (batches, heads, queries, keys)
    if relative is not None:
        seen = relative.broadcast_to(sizes)
        tensors["relative_position_bias_tensor"] = (seen, sizes, seen.strides)
    kind = MaskType.NONE
    if mask is not None:
        kind, tensors["mask_tensor"] = mask_of(mask, sizes)
    counts = {"query_head_count": heads, "key_value_head_count": heads}
    more: dict[str, Any] = {
        "scale": float(read.get("scale", 0.0) or size ** -0.5), "mask_type": kind,
        "mask_filter_value": float(read.get("mask_filter_value", FILTER))}
    if q.dtype == STORED:
        builder.emit_own(AppendedAttentionDesc, tensors, **more, **counts)
    else:
        builder.emit("MULTIHEAD_ATTENTION1" if causal else "MULTIHEAD_ATTENTION", tensors, **more,
                     **(counts if causal else {"head_count": heads}))
    return [y, *present]


def _only_earlier(
    builder: Builder, added: Array | None, before: int, sizes: tuple[int, int],
    dtype: np.dtype[Any],
) -> Array | None:
    """What is added to scores, with -infinity for keys after a query's own place. The last query
    sees all keys, even if there are more new ones than queries: so does ONNX Runtime's CPU."""
    queries, keys = sizes
    later = np.arange(keys)[None, :] > before + np.arange(queries)[:, None]
    later[-1] = False
    if not later.any():
        return added
    hidden = builder.constant(np.where(later, -np.inf, 0).astype(dtype))
    return hidden if added is None else emit_elementwise(
        builder, "ELEMENT_WISE_ADD", [added, hidden], dtype, {})


def mask_of(mask: Array, sizes: tuple[int, int, int, int]) -> tuple[MaskType, Seen]:
    """com.microsoft's masks: lengths of keys, or elements by key, query and head."""
    batches = sizes[0]
    if mask.shape == (batches,):
        return MaskType.KEY_SEQUENCE_LENGTH, (mask, (1, batches), (0, 1))
    if mask.shape == (3 * batches + 2,):
        return MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END, (mask, mask.shape, (1,))
    if len(mask.shape) < 2:
        raise ValidationError(f"expected a mask of {batches} lengths, or by key, but got one of "
                              f"{list(mask.shape)}")
    *outer, keys = mask.shape
    by_head = {1: (outer[0], 1, 1, keys), 2: (outer[0], 1, *outer[1:], keys)}.get(
        len(outer), mask.shape)
    seen = mask.view(by_head, packed_strides(by_head)).broadcast_to(sizes)
    return MaskType.BOOLEAN, (seen, sizes, seen.strides)


_FORMS = ((3, 3, 3), (3, 4, 4), (3, 5, None), (5, None, None))
"""Ranks of queries, keys and values: by token, by head, and stacks."""


def attention_refusal(node: OnnxNode) -> str | None:
    """Why com.microsoft's MultiHeadAttention is not supported, or None."""
    values = [node.input(i) for i in range(3)]
    if any(v is not None and v.shape is None for v in values):
        return "inputs of unknown rank"
    ranks = tuple(None if v is None or v.shape is None else len(v.shape) for v in values)
    if ranks not in _FORMS:
        return f"queries, keys and values of ranks {', '.join(map(str, ranks))}"
    if any(v is not None for v in node.inputs[8:]):
        return "past_sequence_length or cache_indirection"
    if any(v is not None for v in node.outputs[3:]):
        return "the product of queries and keys as an output"
    return None


def both_ways_refusal(node: OnnxNode) -> str | None:
    """The same for the operator without a causal mask."""
    return "unidirectional" if node.attributes.get("unidirectional", 0) else (
        attention_refusal(node))


def attention(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """ONNX's Attention. Inputs by head are seen by token. Caches of BFLOAT16 stay as they are."""
    read = node.attributes
    if (filled := optional(inputs, 6)) is not None:
        return [_of_caches(builder, node, inputs, filled)]
    held = [x for x in (optional(inputs, 4), optional(inputs, 5)) if x is not None]
    is_stored = [x.dtype for x in held] == [STORED] * 2
    as_cached = as_stored if is_stored else numbers
    fresh = (given(inputs, i) for i in range(3))
    inputs = [*(as_cached(builder, x) for x in fresh), optional(inputs, 3),
              *(numbers(builder, x) if not is_stored else x for x in held)]
    q = given(inputs, 0)
    by_head = len(q.shape) == 4
    heads = q.shape[1] if by_head else read["q_num_heads"]
    key_heads = given(inputs, 1).shape[1] if by_head else read["kv_num_heads"]
    q, k, v = (_by_token(builder, given(inputs, i)) for i in range(3))
    mask, past_k, past_v = (None if t is None else builder.pack(t)
                            for t in (optional(inputs, 3), *past(inputs, 4, q.shape[0], key_heads)))
    batches, queries, features = q.shape
    size, value_size = features // heads, v.shape[2] // key_heads
    before = past_k.shape[2] if past_k is not None else 0
    keys = before + k.shape[1]
    y = builder.new((batches, queries, heads * value_size), q.dtype)
    present = [builder.new((batches, key_heads, keys, n), q.dtype) for n in (size, value_size)]
    tensors: dict[str, Seen | None] = {
        "query_tensor": packed(q), "key_tensor": packed(k), "value_tensor": packed(v),
        "past_key_tensor": packed(past_k), "past_value_tensor": packed(past_v),
        "output_tensor": packed(y)}
    causal = bool(read.get("is_causal", 0))
    if causal:
        lengths = builder.filled((batches,), before, np.int32)
        tensors["past_sequence_lengths_tensor"] = packed(lengths)
    if causal or any(node.outputs[1:]):
        tensors |= {"output_present_key_tensor": packed(present[0]),
                    "output_present_value_tensor": packed(present[1])}
    if mask is not None and is_stored and mask.dtype != BOOL:
        mask = as_stored(builder, converted(builder, mask, np.dtype(np.float32)))
    kind = _masked(builder, tensors, mask, (batches, heads, queries, keys), q.dtype)
    more: dict[str, Any] = {
        "scale": float(read.get("scale") or size ** -0.5), "query_head_count": heads,
        "key_value_head_count": key_heads, "mask_type": kind, "mask_filter_value": -np.inf}
    cap = float(read.get("softcap", 0.0)) or None
    if cap or is_stored:
        builder.emit_own(AppendedAttentionDesc, tensors, soft_cap=cap, **more)
    else:
        builder.emit("MULTIHEAD_ATTENTION1", tensors, **more)
    y = numbers(builder, y)
    if by_head:
        y = builder.reshape(y, (batches, queries, heads, value_size)).transpose((0, 2, 1, 3))
    return [y, *present]


def _of_caches(builder: Builder, node: OnnxNode, inputs: Inputs, filled: Array) -> Array:
    """Attention to caches of which each batch has filled a number of rows, the queries' own ones
    last. Caches of BFLOAT16 are read as they are."""
    read, q = node.attributes, given(inputs, 0)
    by_head = len(q.shape) == 4
    heads = q.shape[1] if by_head else read["q_num_heads"]
    k, v, mask = given(inputs, 1), given(inputs, 2), optional(inputs, 3)
    is_stored = k.dtype == v.dtype == STORED
    if is_stored:
        q = as_stored(builder, q)
        if mask is not None and mask.dtype != BOOL:
            mask = as_stored(builder, converted(builder, mask, np.dtype(np.float32)))
    else:
        k, v = numbers(builder, k), numbers(builder, v)
    key_heads = k.shape[1] if by_head else read["kv_num_heads"]
    q = _by_token(builder, q)
    batches, queries, features = q.shape

    def cache(x: Array) -> Seen:
        """[batch, head, row, element]"""
        x = builder.pack(x)
        if by_head:
            return x, x.shape, x.strides
        rows, size = x.shape[1], x.shape[2] // key_heads
        return x, (batches, key_heads, rows, size), (rows * x.shape[2], size, x.shape[2], 1)

    keys, values = cache(k), cache(v)
    size, value_size, capacity = features // heads, values[1][3], keys[1][2]
    expect_caches(keys[1], values[1], batches, key_heads, (size, value_size))
    y = builder.new((batches, queries, heads * value_size), q.dtype)
    if y.storage is not None:
        kind = np.dtype("int32")
        past = emit_elementwise(builder, "ELEMENT_WISE_SUBTRACT", [
            emit_elementwise(builder, "CAST", [filled], kind, {}),
            builder.filled((), queries, kind)], kind, {})
        tensors: dict[str, Seen | None] = {
            "query_tensor": packed(q), "past_key_tensor": keys, "past_value_tensor": values,
            "past_sequence_lengths_tensor": packed(past), "output_tensor": packed(y)}
        sizes = (batches, heads, queries, capacity)
        builder.emit_own(
            AppendedAttentionDesc, tensors, appended=1,
            soft_cap=float(read.get("softcap", 0.0)) or None,
            scale=float(read.get("scale") or size ** -0.5), query_head_count=heads,
            key_value_head_count=key_heads, mask_filter_value=-np.inf,
            mask_type=_masked(builder, tensors, mask, sizes, q.dtype))
    y = numbers(builder, y)
    if by_head:
        y = builder.reshape(y, (batches, queries, heads, value_size)).transpose((0, 2, 1, 3))
    return y


def _masked(
    builder: Builder, tensors: dict[str, Seen | None], mask: Array | None,
    sizes: tuple[int, int, int, int], dtype: np.dtype[Any],
) -> MaskType:
    """Add ONNX's mask, of truths or numbers, to tensors. Returns the type of the first kind."""
    if mask is None:
        return MaskType.NONE
    mask = builder.pack(mask)
    if mask.dtype == BOOL:
        numbers = builder.new(mask.shape, "int32")
        builder.emit("CAST", {"input_tensor": packed(mask), "output_tensor": packed(numbers)})
        seen = numbers.broadcast_to(sizes)
        tensors["mask_tensor"] = (seen, sizes, seen.strides)
        return MaskType.BOOLEAN
    if mask.dtype != dtype:  # integers are added, too
        mask = emit_elementwise(builder, "CAST", [mask], dtype, {})
    seen = mask.broadcast_to(sizes)
    tensors["relative_position_bias_tensor"] = (seen, sizes, seen.strides)
    return MaskType.NONE


def _by_token(builder: Builder, x: Array) -> Array:
    if len(x.shape) == 3:
        return builder.pack(x)
    batches, heads, length, size = x.shape
    return builder.reshape(builder.pack(x.transpose((0, 2, 1, 3))),
                           (batches, length, heads * size))


def onnx_attention_refusal(node: OnnxNode) -> str | None:
    """Why ONNX's Attention is not supported, or None."""
    if len(node.outputs) > 3 and node.outputs[3] is not None:
        return "the product of queries and keys as an output"
    if node.input(6) is not None:
        if not node.attributes.get("is_causal", 0):
            return "lengths of keys without padding, and queries that see all"
        if any(node.outputs[1:]) or node.input(4) is not None:
            return "lengths of keys without padding, and past or present ones"
        mask, keys = node.input(3), node.input(1)
        if mask is not None and (mask.shape is None or keys is None or keys.shape is None
                                 or mask.shape[-1] != keys.shape[-2] or mask.shape[-1] is None):
            return "a mask that may be shorter than the keys"
    if any(v is None or v.shape is None for v in node.inputs[:3]):
        return "inputs of unknown rank"
    return None


ROWS: tuple[Mapping, ...] = (
    Mapping("Attention", (23, 24, 25), "MULTIHEAD_ATTENTION1", attention,
        fields=("QueryTensor", "KeyTensor", "ValueTensor", None, "PastKeyTensor",
                "PastValueTensor", None),
        attributes=("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale",
                    "softcap", "softmax_precision"),
        stored=(1, 2, 4, 5), refuses=onnx_attention_refusal, multiplies=True),
)
