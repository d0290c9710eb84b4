"""Caches of 8 or 4 bits (GroupQueryAttention's k_quant_type, v_quant_type and kv_cache_bit_width):
rounded numbers x / scale. Two of 4 bits are a byte, the first one low, with 8 added to each. Those
of 8 bits are INT8 or FLOAT8E4M3FN, as the caches' type says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import packed_strides
from ..graph import FLOAT8, OnnxNode
from ..lowerings import Inputs, converted, emit_elementwise, given
from . import float8
from .quantized import in_blocks

KEY_SCALE, VALUE_SCALE = 12, 13
"""Inputs of GroupQueryAttention."""
_REAL = np.dtype("float32")
_KINDS = ("NONE", "PER_TENSOR", "PER_CHANNEL")


class Form(NamedTuple):
    """How a cache holds a number."""

    bits: int
    dtype: np.dtype[Any]
    """The type of elements on the device."""
    floats: bool = False

    def row(self, size: int) -> int:
        """The elements of a row of so many numbers."""
        return size * self.bits // (8 * self.dtype.itemsize)


_FORMS = {(np.dtype("int8"), 8): Form(8, np.dtype("int8")),
          (np.dtype("uint8"), 4): Form(4, np.dtype("uint8")),
          (FLOAT8, 8): Form(8, float8.BYTE, floats=True)}
"""By the type of the caches, and kv_cache_bit_width."""


def _is_quantized(node: OnnxNode) -> bool:
    return node.attributes.get("k_quant_type", "NONE") != "NONE"


def _types(node: OnnxNode) -> set[np.dtype[Any] | None]:
    """Those of caches, past and present."""
    values = (*(node.input(i) for i in (3, 4)), *node.outputs[1:3])
    return {x.dtype for x in values if x is not None}


def form_of(node: OnnxNode) -> Form | None:
    """How caches hold numbers. None where these are not quantized."""
    if not _is_quantized(node):
        return None
    bits = int(node.attributes.get("kv_cache_bit_width", 8))
    return next((_FORMS[dtype, bits] for dtype in _types(node)
                 if dtype is not None and (dtype, bits) in _FORMS), None)


def refusal(node: OnnxNode) -> str | None:
    """Why GroupQueryAttention's caches are not supported, or None."""
    kinds = [node.attributes.get(f"{name}_quant_type", "NONE") for name in "kv"]
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        return f"caches quantized {unknown[0]}"
    have_scales = {kind != "NONE" for kind in kinds} | {
        node.input(i) is not None for i in (KEY_SCALE, VALUE_SCALE)}
    if len(have_scales) > 1:
        return "scales of one cache, or caches of numbers with scales"
    q, types = node.input(0), _types(node)
    if (form_of(node) is None or len(types) > 1 if _is_quantized(node)
            else types - {None if q is None else q.dtype}):
        return ("caches of another type than the queries, or than INT8 or FLOAT8E4M3FN (8 bits) or "
                "UINT8 (4 bits) where they have scales")
    return None


def scales_of(
    node: OnnxNode, inputs: Inputs, heads: int, sizes: tuple[int, int]
) -> list[Array]:
    """Of keys and values, which broadcast to [batch, head, row, element]. None where caches are
    numbers."""
    if not _is_quantized(node):
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


def bytes_of(past: Array | None, form: Form | None) -> Array | None:
    """A cache, with the type that the device has."""
    return past if past is None or form is None else replace(past, dtype=form.dtype)


def quantized(builder: Builder, x: Array, scale: Array, form: Form) -> Array:
    """[batch, head, row, element] as a cache holds it."""
    dtype, middle = form.dtype, 8 if form.bits == 4 else 0

    def of(operator: str, kind: np.dtype, *arrays: Array | float) -> Array:
        taken = [a if isinstance(a, Array) else builder.constant(np.full((), a, kind))
                 for a in arrays]
        return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", taken, kind, {})

    x = converted(builder, x, _REAL)
    if form.floats:
        return float8.encoded(builder, of("DIVIDE", _REAL, x, scale))
    if form.bits == 4:
        x = of("MAX", _REAL, of("MIN", _REAL, x, of("MULTIPLY", _REAL, scale, 7.0)),
               of("MULTIPLY", _REAL, scale, -8.0))
    zero = builder.constant(np.full((), middle, dtype))
    y = emit_elementwise(builder, "ELEMENT_WISE_QUANTIZE_LINEAR", [x, scale, zero], dtype, {})
    if form.bits == 8:
        return y
    y = builder.pack(y)
    half = (*y.shape[:3], y.shape[3] // 2)
    low, high = (y.view(half, (*y.strides[:3], 2), first) for first in (0, 1))
    return of("BIT_OR", dtype, low, of("BIT_SHIFT_LEFT", dtype, high, 4))


def numbers(
    builder: Builder, cache: Array, scale: Array, form: Form, dtype: np.dtype[Any]
) -> Array:
    """What a cache stands for: [batch, head, row, element]."""
    if form.floats:
        y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
            float8.decoded(builder, cache), scale], _REAL, {})
        return converted(builder, y, dtype)
    if form.bits == 8:
        zero = builder.constant(np.zeros((), form.dtype))
        y = emit_elementwise(
            builder, "ELEMENT_WISE_DEQUANTIZE_LINEAR", [cache, scale, zero], _REAL, {})
        return converted(builder, y, dtype)
    cache = builder.pack(cache)
    *outer, half = cache.shape
    rows = int(np.prod(outer))
    one = builder.constant(np.ones((), _REAL)).broadcast_to((rows,))
    flat = in_blocks(builder, _REAL, cache, one, None, (rows, 1, 2 * half), form.bits)
    y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        builder.reshape(flat, (*outer, 2 * half)), scale], _REAL, {})
    return converted(builder, y, dtype)
