"""Caches of 8 or 4 bits (GroupQueryAttention's k_quant_type, v_quant_type and kv_cache_bit_width):
rounded numbers x / scale. Two of 4 bits are a byte, the first one low, with 8 added to each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import packed_strides
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, emit_elementwise, given
from .quantized import in_blocks

KEY_SCALE, VALUE_SCALE = 12, 13
"""Inputs of GroupQueryAttention."""
_TYPES = {8: np.dtype("int8"), 4: np.dtype("uint8")}
_REAL = np.dtype("float32")


def bits_of(node: OnnxNode) -> int:
    """The bits of a number in a cache; 0 where caches are not quantized."""
    if node.attributes.get("k_quant_type", "NONE") == "NONE":
        return 0
    return int(node.attributes.get("kv_cache_bit_width", 8))


def refusal(node: OnnxNode) -> str | None:
    """Why GroupQueryAttention's caches are not supported, or None."""
    kinds = {node.attributes.get(f"{name}_quant_type", "NONE") != "NONE" for name in "kv"}
    given_scales = {node.input(i) is not None for i in (KEY_SCALE, VALUE_SCALE)}
    if len(kinds | given_scales) > 1:
        return "scales of one cache, or caches of numbers with scales"
    q, bits = node.input(0), bits_of(node)
    wanted = _TYPES.get(bits) if bits else None if q is None else q.dtype
    if any(x is not None and x.dtype != wanted for x in (node.input(i) for i in (3, 4))):
        return ("caches of another type than the queries, or than INT8 (8 bits) or UINT8 (4 bits) "
                "where they have scales")
    return None


def scales_of(
    node: OnnxNode, inputs: Inputs, heads: int, sizes: tuple[int, int]
) -> list[Array]:
    """Of keys and values, which broadcast to [batch, head, row, element]. None where caches are
    numbers."""
    if not bits_of(node):
        return []
    scales = []
    for index, size in zip((KEY_SCALE, VALUE_SCALE), sizes):
        scale = given(inputs, index)
        if scale.size not in (1, heads * size) or not scale.packed:
            raise ValidationError(f"expected a scale, or one for each of {heads} heads' {size} "
                                  f"elements, but got {list(scale.shape)}")
        of_elements = (1, 1, 1, 1) if scale.size == 1 else (1, heads, 1, size)
        scales.append(scale.view(of_elements, packed_strides(of_elements)))
    return scales


def quantized(builder: Builder, x: Array, scale: Array, bits: int) -> Array:
    """[batch, head, row, element] as a cache holds it."""
    dtype, middle = _TYPES[bits], 8 if bits == 4 else 0

    def of(operator: str, kind: Any, *arrays: Array | float) -> Array:
        taken = [a if isinstance(a, Array) else builder.constant(np.full((), a, kind))
                 for a in arrays]
        return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", taken, kind, {})

    x = converted(builder, x, _REAL)
    if bits == 4:
        x = of("MAX", _REAL, of("MIN", _REAL, x, of("MULTIPLY", _REAL, scale, 7.0)),
               of("MULTIPLY", _REAL, scale, -8.0))
    zero = builder.constant(np.full((), middle, dtype))
    y = emit_elementwise(builder, "ELEMENT_WISE_QUANTIZE_LINEAR", [x, scale, zero], dtype, {})
    if bits == 8:
        return y
    y = builder.pack(y)
    half = (*y.shape[:3], y.shape[3] // 2)
    low, high = (y.view(half, (*y.strides[:3], 2), first) for first in (0, 1))
    return of("BIT_OR", dtype, low, of("BIT_SHIFT_LEFT", dtype, high, 4))


def numbers(builder: Builder, cache: Array, scale: Array, bits: int, dtype: np.dtype[Any]) -> Array:
    """What a cache stands for: [batch, head, row, element]."""
    if bits == 8:
        zero = builder.constant(np.zeros((), _TYPES[bits]))
        y = emit_elementwise(
            builder, "ELEMENT_WISE_DEQUANTIZE_LINEAR", [cache, scale, zero], _REAL, {})
        return converted(builder, y, dtype)
    cache = builder.pack(cache)
    *outer, half = cache.shape
    rows = int(np.prod(outer))
    one = builder.constant(np.ones((), _REAL)).broadcast_to((rows,))
    flat = in_blocks(builder, _REAL, cache, one, None, (rows, 1, 2 * half), bits)
    y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        builder.reshape(flat, (*outer, 2 * half)), scale], _REAL, {})
    return converted(builder, y, dtype)
