"""Rotary embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping
from .gather import gather, gather_elements
from .movement import joined


def plain(op: str, **attributes: Any) -> OnnxNode:
    return OnnxNode(op, "", 13, (), (), attributes)


def columns(x: Array, first: int, count: int) -> Array:
    """Elements of the last dimension."""
    return x.view((*x.shape[:-1], count), x.strides, first * x.strides[-1])


def rotated_by(builder: Builder, x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """``x`` is (batch, position, head, element); ``cos`` and ``sin`` (batch, position, pair)."""
    pairs = cos.shape[-1]
    if interleaved:
        shape, strides = (*x.shape[:3], pairs), (*x.strides[:3], 2 * x.strides[3])
        first, second = x.view(shape, strides), x.view(shape, strides, x.strides[3])
    else:
        first, second = columns(x, 0, pairs), columns(x, pairs, pairs)
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
        y = joined(builder, [y, columns(x, 2 * pairs, rest)], -1)
    return y


def at_positions(builder: Builder, cache: Array, ids: Array) -> Array:
    (rows,) = gather(builder, plain("Gather", axis=0), [cache, ids])
    return rows


def following(builder: Builder, first: Array, count: int) -> Array:
    """Positions from ``first`` ({batch, 1} or {1}) on, along a new last dimension."""
    more = builder.counted(count, first.dtype)
    return emit_elementwise(builder, "ELEMENT_WISE_ADD", [first, more], first.dtype, {})


def rotary(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
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
            ids = following(builder, ids, length).broadcast_to((batches, length))
        cos, sin = (at_positions(builder, t, ids) for t in (cos, sin))
    y = rotated_by(builder, by_token, cos, sin, bool(node.attributes.get("interleaved", 0)))
    return [y.transpose((0, 2, 1, 3)) if by_head else builder.reshape(y, x.shape)]


def rotary_of_places(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """MRotaryEmbedding: some angles follow a token's time, others its height or its width."""
    x, ids, cos, sin = (given(inputs, i) for i in range(4))
    sections, half = list(node.attributes["mrope_section"]), cos.shape[-1]
    if len(sections) != 3 or sum(sections) != half or ids.shape[0] != 3:
        raise ValidationError(f"expected three kinds of positions for {half} angles, but got "
                              f"mrope_section={sections} and positions {list(ids.shape)}")
    kinds = np.repeat(np.arange(3), sections)
    if node.attributes.get("mrope_layout", 0):
        kinds = np.zeros(half, np.int64)
        for kind in (1, 2):
            kinds[kind : 3 * sections[kind] : 3] = kind
    _, batches, length = ids.shape
    (places,) = gather(builder, plain("Gather", axis=0), [
        builder.pack(ids), builder.constant(kinds.astype(ids.dtype))])
    places = builder.reshape(places.transpose((1, 2, 0)), (batches * length, half))
    by_row = plain("GatherElements", axis=0)
    angles = [builder.reshape(gather_elements(builder, by_row, [t, places])[0],
                              (batches, length, half)) for t in (cos, sin)]
    return rotary(builder, replace(node, domain=""), [x, *angles])


def rotary_refusal(node: OnnxNode) -> str | None:
    """Why a rotary embedding is not supported, or None."""
    read = node.attributes
    if read.get("scale", 1.0) != 1.0:
        return "a scale"
    if read.get("is_packed_batching", 0):
        return "is_packed_batching=1"
    if any(v is None or v.shape is None for v in node.inputs[:3]):
        return "inputs of unknown rank"
    return None


ROWS: tuple[Mapping, ...] = (
    Mapping("RotaryEmbedding", (23,), "ELEMENT_WISE_MULTIPLY", rotary,
        fields=("ATensor", "ATensor", "ATensor", None),
        attributes=("interleaved", "num_heads", "rotary_embedding_dim"),
        refuses=rotary_refusal),
    Mapping("RotaryEmbedding", (1,), "ELEMENT_WISE_MULTIPLY", rotary, MICROSOFT,
        fields=("ATensor", None, "ATensor", "ATensor"),
        attributes=("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim",
                    "scale"),
        refuses=rotary_refusal),
    Mapping("MRotaryEmbedding", (1,), "ELEMENT_WISE_MULTIPLY", rotary_of_places,
        MICROSOFT, fields=("ATensor", None, "ATensor", "ATensor"),
        attributes=("interleaved", "is_packed_batching", "mrope_layout", "mrope_section",
                    "num_heads", "rotary_embedding_dim", "scale"),
        refuses=rotary_refusal),
)
