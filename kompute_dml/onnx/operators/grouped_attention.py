"""com.microsoft's attention of grouped heads, with its caches and its rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import MultiheadAttentionMaskType as MaskType
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...graph.recorded import Allowed
from ...operators.rotary_append import AppendedAttentionDesc, RotaryAppendDesc, serves, takes
from ...operators.rotary_attention import RotaryAttentionDesc
from ..bfloat16 import STORED, as_stored, numbers, to_float
from ..graph import OnnxNode
from ..lowerings import (
    Inputs,
    Seen,
    emit_elementwise,
    expect,
    host,
    optional,
    seen,
)
from ..row import MICROSOFT, Mapping
from . import attention_parts, long_rope, quantized_caches, sliding_cache
from .attention import FILTER, expect_caches
from .gather import tensor_scatter
from .movement import joined
from .normalization import layers
from .rotary import at_positions, columns, following, rotated_by

_CACHE_RANK = 4


# Rotary embedding


# Attention with its projection

def grouped(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft GroupQueryAttention. The present outputs are as long as the past ones if these
    have room for all keys. Caches of BFLOAT16 stay so: attention reads and writes them."""
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
        q, k, v = (columns(q, 0, ends[0]), columns(q, ends[0], key_heads * size),
                   columns(q, ends[1], key_heads * size))
    size, value_size = q.shape[2] // heads, v.shape[2] // key_heads
    form = quantized_caches.form_of(node)
    past_k, past_v = (quantized_caches.bytes_of(x, form) for x in (past_k, past_v))
    if past_k is not None and past_v is not None:
        of_row = [n if form is None else form.row(n) for n in (size, value_size)]
        expect_caches(past_k.shape, past_v.shape, batches, key_heads, (of_row[0], of_row[1]))
    capacity = max(total_length, 0 if past_k is None else past_k.shape[2])
    for name, weight in (("q", optional(inputs, 14)), ("k", optional(inputs, 15))):
        if weight is not None:
            epsilon = read.get(f"{name}_norm_epsilon", read.get("qk_norm_epsilon", 1e-6))
            x = _by_head_norm(builder, q if name == "q" else k, weight, float(epsilon))
            q, k = (x, k) if name == "q" else (q, x)
    lengths = builder.reshape(lengths, (batches,))
    slides = bool(read.get("sliding_window_cache", 0))
    is_stored = not slides and form is None and past_k is not None and past_v is not None and (
        past_k.dtype == past_v.dtype == STORED)

    def as_cached(x: Array) -> Array:
        return as_stored(builder, x) if is_stored else x

    if not slides:
        expect(builder, node, lengths, Allowed("seqlens_k", 0, capacity, ", the caches' rows"))
    # Of a prompt nothing is past, though some rows may be shorter.
    one_less = builder.filled((), length - 1, np.int32)
    before = emit_elementwise(builder, "ELEMENT_WISE_MAX", [emit_elementwise(
        builder, "ELEMENT_WISE_SUBTRACT", [lengths, one_less], lengths.dtype, {}),
        builder.constant(np.zeros((), np.int32))], lengths.dtype, {})
    rotates = bool(read.get("do_rotary", 0))
    if rotates and (cos is None or sin is None):
        raise ValidationError("expected cos_cache and sin_cache to be given")
    softcap, window = read.get("softcap", 0.0), read.get("local_window_size", -1)
    sink = optional(inputs, 11)
    if sink is None and read.get("smooth_softmax", 0) == 1:
        sink = builder.constant(np.zeros(heads, q.dtype))
    added, sink = (None if x is None else as_cached(x) for x in (added, sink))
    scales = quantized_caches.scales_of(node, inputs, key_heads, (size, value_size))
    caches: list[Array] | None = None
    turning: dict[str, Seen | None] | None = None
    if rotates and cos is not None and sin is not None:
        interleaved = bool(read.get("rotary_interleaved", 0))
        if ids is None and read.get(long_rope.ATTRIBUTE, 0):
            ids = long_rope.places(builder, node, lengths, before, length)
        in_cache = None if scales or slides else _rotated_into(
            builder, (as_cached(q), as_cached(k), as_cached(v)), (past_k, past_v), before,
            as_cached(cos), as_cached(sin), ids, (heads, key_heads), capacity)
        if in_cache is not None:
            turning, caches = in_cache
            if added is not None:
                y = builder.new(q.shape, added.dtype)
                builder.emit_own(
                    RotaryAppendDesc, turning | {"output_tensor": seen(y)}, scale=1.0,
                    query_head_count=heads, key_value_head_count=key_heads,
                    mask_type=MaskType.NONE, mask_filter_value=FILTER,
                    interleaved=int(interleaved))
                q, turning = y, None
        else:
            if ids is None:
                ids = following(builder, builder.reshape(before, (batches, 1)), length)
            cos_at, sin_at = (at_positions(builder, t, ids) for t in (cos, sin))

            def rotated(x: Array, count: int) -> Array:
                by_head = builder.reshape(x, (batches, length, count, size))
                y = rotated_by(builder, by_head, cos_at, sin_at, interleaved)
                return builder.reshape(y, (batches, length, count * size))

            q, k = rotated(q, heads), rotated(k, key_heads)
    if turning is None and caches is None:
        q, k, v = as_cached(q), as_cached(k), as_cached(v)
    held: list[Array] = []
    if scales or slides:
        fresh = [builder.reshape(x, (batches, length, key_heads, n)).transpose((0, 2, 1, 3))
                 for x, n in ((k, size), (v, value_size))]
        if slides:
            if past_k is None or past_v is None or past_k.shape[2] < window:
                raise ValidationError(f"expected caches of at least {window} rows, the window")
            pasts = [numbers(builder, x) for x in (past_k, past_v)]
            slid = sliding_cache.slid(builder, pasts, fresh, before, window)
            near = sliding_cache.seen(builder, before, past_k.shape[2], length, window)
            (y,) = attention_parts.attention(builder, replace(node, outputs=(None,), attributes={
                "q_num_heads": heads, "scale": read.get("scale", 0.0), "softcap": softcap,
            }), [q, *(x.keys for x in slid), attention_parts.from_truth(builder, near, q.dtype)],
                sink)
            return [y, *(x.present for x in slid)]
        assert form is not None
        held = [_appended(
            builder, node, past, quantized_caches.quantized(builder, x, t, form), before, capacity)
            for past, x, t in zip((past_k, past_v), fresh, scales)]
        caches = [builder.pack(quantized_caches.numbers(builder, x, t, form, q.dtype))
                  for x, t in zip(held, scales)]
    y = builder.new((batches, length, heads * value_size), STORED if is_stored else q.dtype)
    present = caches or [builder.new((batches, key_heads, capacity, n), q.dtype)
                         for n in (size, value_size)]
    tensors: dict[str, Seen | None] = {
        "query_tensor": seen(q), "past_sequence_lengths_tensor": seen(before),
        "output_tensor": seen(y)}
    if caches:
        tensors |= {"past_key_tensor": seen(present[0]), "past_value_tensor": seen(present[1])}
    else:
        tensors |= {"key_tensor": seen(k), "value_tensor": seen(v),
                    "output_present_key_tensor": seen(present[0]),
                    "output_present_value_tensor": seen(present[1])}
        if past_k is not None and past_v is not None and past_k.storage is not None:
            tensors |= {"past_key_tensor": seen(past_k), "past_value_tensor": seen(past_v)}
    if added is not None:
        tensors["relative_position_bias_tensor"] = seen(
            added.broadcast_to((batches, heads, length, capacity)))
    more: dict[str, Any] = {
        "scale": float(read.get("scale", 0.0) or size ** -0.5), "query_head_count": heads,
        "key_value_head_count": key_heads, "mask_type": MaskType.NONE,
        "mask_filter_value": FILTER}
    own: dict[str, Any] = {}
    if turning:
        tensors = turning | {"output_tensor": seen(y)}
        own["interleaved"] = int(bool(read.get("rotary_interleaved", 0)))
    elif caches:
        own["appended"] = 1
    if 0 < window < capacity:
        own["window"] = window
    if softcap:
        own["soft_cap"] = float(softcap)
    if sink is not None:
        tensors["sink_tensor"] = seen(builder.pack(sink))
    if turning:
        builder.emit_own(RotaryAttentionDesc, tensors, **own, **more)
    elif own or sink is not None or is_stored:
        builder.emit_own(AppendedAttentionDesc, tensors, **own, **more)
    else:
        builder.emit("MULTIHEAD_ATTENTION1", tensors, **more)
    return [to_float(builder, y) if is_stored else y, *(held or present)]


def _by_head_norm(builder: Builder, x: Array, weight: Array, epsilon: float) -> Array:
    """[batch, token, all features], of which each head is divided by its root mean square."""
    size = weight.shape[0]
    heads = builder.reshape(x, (*x.shape[:2], x.shape[2] // size, size))
    (y,) = layers(False)(builder, OnnxNode("RMSNormalization", "", 23, (), (None,), {
        "axis": -1, "epsilon": epsilon}), [heads, weight])[:1]
    return builder.reshape(y, x.shape)


def _rotated_into(
    builder: Builder, fresh: tuple[Array, Array, Array], past: tuple[Array | None, Array | None],
    before: Array, cos: Array, sin: Array, ids: Array | None, heads: tuple[int, int],
    capacity: int,
) -> tuple[dict[str, Seen | None], list[Array]] | None:
    """The tensors of queries that are to be rotated, and of caches to which the new keys, rotated,
    and values are to be appended; and these caches. None where one dispatch cannot do that."""
    q, k, v = fresh
    batches, length, features = q.shape
    size, value_size = features // heads[0], v.shape[2] // heads[1]
    if q.storage is None or k.storage is None or v.storage is None or len(cos.shape) != 2 or (
            cos.shape != sin.shape or cos.dtype != q.dtype or not cos.shape[0]
            or 2 * cos.shape[1] > size or not serves(builder.device.target.traits)
            or not takes([x.desc(x.shape, x.strides) for x in fresh], size, value_size,
                         2 * cos.shape[1])):
        return None
    if ids is not None and ids.shape != (batches, length):
        return None
    present = [builder.new((batches, heads[1], capacity, n), q.dtype) for n in (size, value_size)]
    tensors: dict[str, Seen | None] = {
        "query_tensor": seen(q), "key_tensor": seen(k), "value_tensor": seen(v),
        "past_sequence_lengths_tensor": seen(before), "cos_tensor": seen(builder.pack(cos)),
        "sin_tensor": seen(builder.pack(sin)),
        "position_ids_tensor": None if ids is None else seen(builder.pack(ids)),
        "output_present_key_tensor": seen(present[0]),
        "output_present_value_tensor": seen(present[1])}
    if past[0] is not None and past[1] is not None and past[0].storage is not None:
        tensors |= {"past_key_tensor": seen(past[0]), "past_value_tensor": seen(past[1])}
    return tensors, present


def alike_totals(sizes: Sequence[Sequence[int | None] | None]) -> int | None:
    """The capacity of the caches: total lengths that they have room for have one plan."""
    past = sizes[3] if len(sizes) > 3 else None
    return past[2] if past is not None and len(past) == _CACHE_RANK else None


def _appended(builder: Builder, node: OnnxNode, past: Array | None, new: Array, before: Array,
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


def grouped_refusal(node: OnnxNode) -> str | None:
    """Why GroupQueryAttention is not supported, or None."""
    usual = {"qk_output": 0, "causal": 1}
    for name, value in usual.items():
        own = node.attributes.get(name, value)
        if own != value:
            return f"{name}={node.attributes[name]}"
    if node.input(16) is not None:
        return "lengths of queries"
    if node.attributes.get("sliding_window_cache", 0):
        if node.attributes.get("local_window_size", -1) < 1:
            return "sliding_window_cache without a window"
        if any(node.input(i) is not None for i in (10, quantized_caches.KEY_SCALE)):
            return "sliding_window_cache, and a bias or scales of caches"
    if (reason := quantized_caches.refusal(node)) is not None:
        return reason
    if (node.input(14) is None) != (node.input(15) is None):
        return "a norm of queries or of keys alone"
    if any(v is not None for v in node.outputs[3:]):
        return "the product of queries and keys as an output"
    if node.inputs[0] is None or node.inputs[0].shape is None:
        return "queries of unknown rank"
    return None


ROWS: tuple[Mapping, ...] = (
    Mapping("GroupQueryAttention", (1,), "MULTIHEAD_ATTENTION1", grouped, MICROSOFT,
        fields=("QueryTensor", "KeyTensor", "ValueTensor", None, None,
                "PastSequenceLengthsTensor", None, "QueryTensor", "QueryTensor", None,
                "RelativePositionBiasTensor", None, None, None, "QueryTensor", "QueryTensor", None),
        attributes=("causal", "do_rotary", "k_quant_type", "kv_cache_bit_width", "k_norm_epsilon",
                    "kv_num_heads", "local_window_size", long_rope.ATTRIBUTE, long_rope.TOGETHER,
                    "num_heads",
                    "q_norm_epsilon", "qk_norm_epsilon", "qk_output", "rotary_interleaved",
                    "scale", "sliding_window_cache", "smooth_softmax", "softcap",
                    "v_quant_type"),
        results=("OutputTensor", None), host=(6,), stored=(3, 4), alike=alike_totals,
        refuses=grouped_refusal, multiplies=True, of_float8=True),
)
