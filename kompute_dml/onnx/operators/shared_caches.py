"""com.microsoft's attention with caches that are as long as they may grow, of beams as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import MultiheadAttentionMaskType as MaskType
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...graph.recorded import Allowed
from ...layout import packed_strides
from ...operators.rotary_append import AppendedAttentionDesc
from ..bfloat16 import STORED, as_stored, numbers
from ..graph import OnnxNode
from ..lowerings import Inputs, emit_elementwise, expect, given, optional
from ..row import MICROSOFT, Mapping
from . import attention
from .gather import gather_elements, tensor_scatter

_INDEX = np.dtype("int32")
_MASK, _ADDED, _COUNT, _BEAMS = 3, 4, 7, 9
"""Inputs of DecoderMaskedMultiHeadAttention."""


def multi_head(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """MultiHeadAttention, with caches that are as long as they may grow or one longer each time."""
    if (count := optional(inputs, 8)) is None:
        return _grown(builder, node, inputs)
    q, k, v, past_k, past_v = (given(inputs, i) for i in (0, 1, 2, 6, 7))
    return _attended(builder, node, (q, k, v), optional(inputs, 3), (past_k, past_v), count,
                     optional(inputs, 9))


def masked(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """DecoderMaskedMultiHeadAttention: one token. Without shared caches it is MultiHeadAttention;
    so it is where keys and values are those of an encoder."""
    q, k, v = (given(inputs, i) for i in range(3))
    mask, added, past_k, past_v, count = (optional(inputs, i) for i in range(_MASK, _COUNT + 1))
    bias = optional(inputs, 10)
    if not _shares(node) or past_k is None or past_v is None or count is None:
        return _grown(builder, node, [q, k, v, bias, mask, added, past_k, past_v])
    return _attended(builder, node, (q, k, v), bias, (past_k, past_v), count,
                     optional(inputs, _BEAMS))


def _grown(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Without caches that are as long as they may grow. Those of BFLOAT16 stay as they are, beside
    separate queries, keys and values."""
    _, k, v, bias, mask, added, past_k, past_v = (optional(inputs, i) for i in range(8))
    if k is None or v is None or past_k is None or past_v is None or len(k.shape) != 3 or not (
            past_k.dtype == past_v.dtype == STORED) or (
            node.attributes.get("unidirectional", 0) and k.shape[1] > given(inputs, 0).shape[1]):
        return attention.multi_head_attention(
            builder, node, [None if x is None else numbers(builder, x) for x in inputs])
    fresh = given(inputs, 0), k, v
    if bias is not None:
        fresh = _biased(builder, fresh, bias)
    y, *present = attention.multi_head_attention(builder, node, [
        *(as_stored(builder, x) for x in fresh), None, mask,
        None if added is None else as_stored(builder, added), past_k, past_v])
    return [numbers(builder, y), *present]


def _attended(
    builder: Builder, node: OnnxNode, fresh: tuple[Array, Array, Array], bias: Array | None,
    past: tuple[Array, Array], count: Array, beams: Array | None,
) -> list[Array]:
    """The result, and caches with the fresh keys and values after the first ``count``. Caches of
    BFLOAT16 are read and written as they are."""
    heads = node.attributes["num_heads"]
    if bias is not None:
        fresh = _biased(builder, fresh, bias)
    if past[0].dtype == past[1].dtype == STORED:
        fresh = tuple(as_stored(builder, x) for x in fresh)  # type: ignore[assignment]
    q, k, v = (builder.pack(x) for x in fresh)
    batches, length, features = q.shape
    capacity = past[0].shape[2]
    attention.expect_caches(past[0].shape, past[1].shape, batches, heads,
                            (features // heads, v.shape[2] // heads))
    expect(builder, node, count,
           Allowed("past_sequence_length", 0, capacity - length + 1, ", the caches' rows"))
    before = builder.pack(builder.reshape(
        emit_elementwise(builder, "CAST", [count], _INDEX, {}), (1,)).broadcast_to((batches,)))

    def by_head(x: Array) -> Array:
        seen = builder.reshape(x, (batches, length, heads, x.shape[2] // heads))
        return seen.transpose((0, 2, 1, 3))

    present = [tensor_scatter(builder, replace(node, attributes={"axis": 2}), [
        cache, by_head(x), before])[0] for cache, x in zip(past, (k, v))]
    caches = present if beams is None else [_of_beams(builder, x, beams, before) for x in present]
    size, value_size = features // heads, v.shape[2] // heads
    y = builder.new((batches, length, heads * value_size), q.dtype)
    if y.storage is None:
        return [y, *present]

    def seen(x: Array) -> Any:
        return x, x.shape, packed_strides(x.shape)

    builder.emit_own(AppendedAttentionDesc, {
        "query_tensor": seen(q), "past_key_tensor": seen(caches[0]),
        "past_value_tensor": seen(caches[1]), "past_sequence_lengths_tensor": seen(before),
        "output_tensor": seen(y)}, appended=1,
        scale=float(node.attributes.get("scale", 0.0) or size ** -0.5), query_head_count=heads,
        key_value_head_count=heads, mask_type=MaskType.NONE, mask_filter_value=-np.inf)
    return [numbers(builder, y), *present]


def _biased(
    builder: Builder, fresh: tuple[Array, Array, Array], bias: Array
) -> tuple[Array, Array, Array]:
    """Queries, keys and values with their parts of a bias added."""
    sums, begin = [], 0
    for x in fresh:
        part = bias.view((x.shape[2],), (1,), begin)
        sums.append(emit_elementwise(builder, "ELEMENT_WISE_ADD", [x, part], x.dtype, {}))
        begin += x.shape[2]
    return sums[0], sums[1], sums[2]


def _of_beams(builder: Builder, cache: Array, beams: Array, before: Array) -> Array:
    """The cache that each beam has: its rows come from that beam of its text which ``beams`` [text,
    beam, row] names, the newest from itself. A number that no beam has is that of its nearest one.
    """
    texts, width, rows = beams.shape
    batches = cache.shape[0]
    if texts * width != batches or rows != cache.shape[2]:
        raise ValidationError(f"expected cache_indirection of {batches} beams and {cache.shape[2]} "
                              f"rows, but got {list(beams.shape)}")

    def of(operator: str, dtype: np.dtype, *arrays: Array) -> Array:
        return emit_elementwise(builder, operator, list(arrays), dtype, {})

    def constant(x: int | np.ndarray) -> Array:
        return builder.constant(np.asarray(x, _INDEX))

    own = constant(np.arange(batches)[:, None])
    named = of("CAST", _INDEX, builder.reshape(beams, (batches, rows)))
    named = of("ELEMENT_WISE_MIN", _INDEX, of(
        "ELEMENT_WISE_MAX", _INDEX, named, constant(0)), constant(width - 1))
    named = of("ELEMENT_WISE_ADD", _INDEX, named,
               constant((np.arange(batches) // width * width)[:, None]))
    old = of("ELEMENT_WISE_LOGICAL_LESS_THAN", BOOL, constant(np.arange(rows)[None]),
             builder.reshape(before, (batches, 1)))
    places = builder.reshape(of("ELEMENT_WISE_IF", _INDEX, old, named, own), (batches, 1, rows, 1))
    (taken,) = gather_elements(
        builder, OnnxNode("GatherElements", "", 13, (), (), {"axis": 0}),
        [cache, places.broadcast_to(cache.shape)])
    return builder.pack(taken)


def _shares(node: OnnxNode) -> bool:
    return bool(node.attributes.get("past_present_share_buffer", 0))


def multi_head_refusal(node: OnnxNode) -> str | None:
    """Why MultiHeadAttention is not served, or None."""
    if node.input(8) is None:
        return attention.attention_refusal(node)
    q = node.input(0)
    if q is None or q.shape is None or any(node.input(i) is None for i in (1, 2, 6, 7)):
        return "past_sequence_length without queries, keys, values and caches"
    if node.input(4) is not None or node.input(5) is not None:
        return "past_sequence_length, and a mask or a bias of scores"
    if not node.attributes.get("unidirectional", 0) and q.shape[1] != 1:
        return "past_sequence_length, and several queries that see later keys"
    if any(v is not None for v in node.outputs[3:]):
        return "the product of queries and keys as an output"
    return None


def masked_refusal(node: OnnxNode) -> str | None:
    """Why DecoderMaskedMultiHeadAttention is not served, or None."""
    if node.attributes.get("output_qk", 0) or any(v is not None for v in node.outputs[3:]):
        return "the product of queries and keys as an output"
    if any(v is None or v.shape is None for v in (node.input(i) for i in range(3))):
        return "queries, keys and values in one stack, or of unknown rank"
    shares = _shares(node) and node.input(5) is not None
    if shares and node.input(_COUNT) is None:
        return "shared caches without past_sequence_length"
    if shares and (node.input(_MASK) is not None or node.input(_ADDED) is not None):
        return "shared caches, and a mask or a bias of scores"
    if not shares and node.input(_BEAMS) is not None and node.input(5) is not None:
        return "cache_indirection without shared caches"
    return None


ROWS: tuple[Mapping, ...] = (
    *[Mapping("MultiHeadAttention", (1,), operator, multi_head, MICROSOFT,
          fields=("QueryTensor", "KeyTensor", "ValueTensor", "BiasTensor", "MaskTensor",
                  "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor", None, None),
          attributes=("num_heads", "mask_filter_value", "scale", "unidirectional"),
          stored=(6, 7), refuses=refuses, multiplies=True)
      for operator, refuses in (
          ("MULTIHEAD_ATTENTION", attention.both_ways_refusal),
          ("MULTIHEAD_ATTENTION1", multi_head_refusal))],
    Mapping("DecoderMaskedMultiHeadAttention", (1,), "MULTIHEAD_ATTENTION1", masked,
            MICROSOFT,
            fields=("QueryTensor", "KeyTensor", "ValueTensor", "MaskTensor",
                    "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor", None, None,
                    None, "BiasTensor"),
            attributes=("mask_filter_value", "num_heads", "output_qk", "past_present_share_buffer",
                        "scale"),
            stored=(5, 6), refuses=masked_refusal, multiplies=True),
)
