"""com.microsoft MoE and QMoE: each token is the sum of its best experts, weighted by the router.

Where tokens choose fewer experts than there are, only these are gathered and computed. Else every
expert computes every token, in two products for all experts: what the router leaves out is
multiplied by 0. :func:`repetition` tells the cost model how much of that is in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, along_axis, converted, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping
from . import gather, reduction
from .activations import fast_gelu
from .products import product_of
from .quantized import in_blocks

_ACTIVATIONS = {"relu": "ACTIVATION_RELU", "identity": None, "silu": "ACTIVATION_SWISH",
                "gelu": None, "swiglu": None}


class _Places(NamedTuple):
    """Inputs by number: the weights of two products and their biases, and a third product."""

    first: int
    first_bias: int
    second: int
    second_bias: int
    third: int


_PLACES = {"MoE": _Places(2, 3, 4, 5, 6), "QMoE": _Places(2, 4, 5, 7, 8)}
_FIRST_ZEROS, _SECOND_ZEROS, _ROUTER_WEIGHTS = 11, 12, 14
"""Inputs of QMoE. Scales follow their weights."""


class _Matrices(NamedTuple):
    """The weights of a product: numbers, or elements of so many bits in blocks."""

    values: Array
    scales: Array | None
    zeros: Array | None
    bits: int
    sizes: tuple[int, int, int]
    """Experts, and each one's rows and columns."""

    def of(self, builder: Builder, dtype: np.dtype, take: Callable[[Array], Array]) -> Array:
        """Packed numbers of those experts that ``take`` takes of a tensor of all."""
        values = builder.pack(take(self.values))
        if self.scales is None:
            return values
        scales = builder.pack(take(self.scales))
        zeros = None if self.zeros is None else builder.pack(take(self.zeros))
        experts, (_, rows, columns) = values.shape[0], self.sizes
        blocks = scales.size // (experts * rows)
        y = in_blocks(builder, scales.dtype, values, scales, zeros,
                      (experts * rows, blocks, columns // blocks), self.bits)
        return builder.reshape(converted(builder, y, dtype), (experts, rows, columns))


def _matrices(node: OnnxNode, inputs: Inputs, index: int, zeros: int, name: str) -> _Matrices:
    values = given(inputs, index)
    if node.op == "MoE":
        experts, rows, columns = values.shape
        return _Matrices(values, None, None, 0, (experts, rows, columns))
    bits, scales = _bits(node, name), given(inputs, index + 1)
    experts, rows, columns = *values.shape[:2], values.shape[2] * 8 // bits
    blocks = scales.size // (experts * rows) if experts * rows else 0
    if not blocks or scales.size != experts * rows * blocks or columns % blocks:
        raise ValidationError(f"expected scales of blocks of {list(values.shape)}, but got "
                              f"{list(scales.shape)}")
    return _Matrices(values, scales, optional(inputs, zeros), bits, (experts, rows, columns))


def _bits(node: OnnxNode, name: str) -> int:
    bits: int = node.attributes.get(f"{name}_expert_weight_bits", 0)
    return bits or node.attributes.get("expert_weight_bits", 4)


def refusal(node: OnnxNode) -> str | None:
    """Why a node is not served, or None."""
    read, places = node.attributes.get, _PLACES[node.op]
    kind = read("activation_type", "relu")
    if kind not in _ACTIVATIONS:
        return f"activation_type={kind!r}"
    if kind == "swiglu" and read("swiglu_fusion", 0) != 1:
        return f"swiglu_fusion={read('swiglu_fusion', 0)}"
    if read("use_sparse_mixer", 0) or read("swiglu_limit_after_activation", 0):
        return "a sparse mixer, or a limit after the activation"
    if node.input(places.third) is not None:
        return "a third product, which ONNX Runtime's CPU provider does not have either"
    tensors = [node.input(i) for i in (0, places.first, places.second)]
    if any(t is None or t.shape is None or None in t.shape for t in tensors[1:]) or (
            tensors[0] is None or tensors[0].shape is None):
        return "tokens or experts of unknown sizes"
    return _quantized_refusal(node) if node.op == "QMoE" else None


def _quantized_refusal(node: OnnxNode) -> str | None:
    read = node.attributes.get
    if read("quant_type", "int") != "int" or {_bits(node, "fc1"), _bits(node, "fc2")} - {4, 8}:
        return "weights that are not of 4 or 8 bits"
    if read("weights_prepacked", 0) == 1:
        return "weights in the order of another provider"
    zeros = [z for i in (_FIRST_ZEROS, _SECOND_ZEROS) if (z := node.input(i)) is not None]
    if zeros and not read("block_size", 0):
        return "zero points without blocks"
    scales = [node.input(_PLACES["QMoE"].first + 1), node.input(_PLACES["QMoE"].second + 1)]
    return "no scales" if None in scales else None


def _sizes(node: OnnxNode) -> list[tuple[int, ...]]:
    """Experts, rows and columns of both products, as far as they are known."""
    sizes = []
    for name, index in (("fc1", _PLACES[node.op].first), ("fc2", _PLACES[node.op].second)):
        value = node.input(index)
        if value is not None and value.shape:
            *outer, last = (n or 1 for n in value.shape)
            sizes.append((*outer, last * 8 // _bits(node, name) if node.op == "QMoE" else last))
    return sizes


def multiplications(node: OnnxNode, tokens: float) -> float:
    """Those of the experts that the router chooses."""
    each = sum(float(np.prod(sizes[1:])) for sizes in _sizes(node))
    return tokens * node.attributes.get("k", 1) * each


def repetition(node: OnnxNode) -> float:
    """How many times as many experts are computed as the router chooses."""
    chosen, (experts, *_) = node.attributes.get("k", 1), _sizes(node)[0]
    router = node.input(1)
    tokens = router.shape[0] if router is not None and router.shape else None
    return 1.0 if tokens and tokens * chosen < experts else max(1.0, experts / chosen)


def mixture(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, router, places = given(inputs, 0), given(inputs, 1), _PLACES[node.op]
    first = _matrices(node, inputs, places.first, _FIRST_ZEROS, "fc1")
    second = _matrices(node, inputs, places.second, _SECOND_ZEROS, "fc2")
    experts, wide, size = first.sizes
    parts = 2 if node.attributes.get("activation_type", "relu") == "swiglu" else 1
    tokens = x.size // size if size else 0
    if not x.size or second.sizes != (experts, size, wide // parts) or (
            router.shape != (tokens, experts)):
        raise ValidationError(
            f"expected experts for tokens of sizes {list(x.shape)}, but got {list(first.sizes)} "
            f"and {list(second.sizes)}, and a router of {list(router.shape)}")
    rows = builder.reshape(x, (tokens, size))
    shares, best, indices = _routed(
        builder, node, router, None if node.op == "MoE" else optional(inputs, _ROUTER_WEIGHTS))
    biases = optional(inputs, places.first_bias), optional(inputs, places.second_bias)
    if tokens * indices.shape[1] < experts:
        y = _of_chosen(builder, node, rows, first, second, biases, best, indices)
    else:
        weights = _by_expert(builder, node, shares, best, indices)
        y = _of_all(builder, node, rows, first, second, biases, weights)
    return [builder.reshape(y, x.shape)]


_Biases = tuple["Array | None", "Array | None"]


def _of_chosen(
    builder: Builder, node: OnnxNode, rows: Array, first: _Matrices, second: _Matrices,
    biases: _Biases, best: Array, indices: Array,
) -> Array:
    """A product for each token and each of its experts, whose weights are gathered."""
    (_, wide, size), inner = first.sizes, second.sizes[2]
    tokens, k = indices.shape
    count, parts = tokens * k, wide // inner
    places = builder.reshape(indices, (count,))
    along = replace(node, attributes={"axis": 0})

    def take(x: Array) -> Array:
        return gather.gather(builder, along, [x, places])[0]

    x = builder.pack(rows).view((tokens, k, size), (size, 0, 1))
    x = builder.reshape(x, (count, 1, size))
    columns = first.of(builder, rows.dtype, take)
    bias, bias2 = (None if t is None else builder.pack(take(t)) for t in biases)
    products = [product_of(
        builder, x, columns.view((count, size, inner), (wide * size, 1, parts * size), part * size),
        None if bias is None else bias.view((count, 1, inner), (wide, 0, parts), part))
        for part in range(parts)]
    hidden = _activated(builder, node, products)
    back = second.of(builder, rows.dtype, take).transpose((0, 2, 1))
    each = product_of(builder, hidden, back, None if bias2 is None else builder.reshape(
        bias2, (count, 1, size)))
    return product_of(builder, builder.reshape(best, (tokens, 1, k)),
                      builder.reshape(each, (tokens, k, size)))


def _of_all(
    builder: Builder, node: OnnxNode, rows: Array, first: _Matrices, second: _Matrices,
    biases: _Biases, weights: Array,
) -> Array:
    """Two products for all experts, which are neighbouring columns of the first one. A gate and its
    value take turns."""
    (experts, wide, size), inner = first.sizes, second.sizes[2]
    tokens, parts = rows.shape[0], wide // inner
    columns = first.of(builder, rows.dtype, lambda x: x)
    bias, bias2 = biases
    products = []
    for part in range(parts):
        b = columns.view((size, experts * inner), (1, parts * size), part * size)
        c = None if bias is None else builder.pack(bias).view(
            (experts * inner,), (parts,), part)
        products.append(product_of(builder, rows, b, c))
    hidden = _activated(builder, node, products)
    hidden = builder.reshape(hidden, (tokens, experts, inner))
    hidden = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        hidden, builder.reshape(weights, (tokens, experts, 1))], rows.dtype, {})
    total = None if bias2 is None else product_of(builder, weights, bias2)
    back = second.of(builder, rows.dtype, lambda x: x).transpose((0, 2, 1))
    back = builder.reshape(back, (experts * inner, size))
    return product_of(
        builder, builder.reshape(hidden, (tokens, experts * inner)), back, total)


def _routed(
    builder: Builder, node: OnnxNode, router: Array, weights: Array | None
) -> tuple[Array, Array, Array]:
    """The share of each expert, and the weights and numbers of the k best for each token. The
    ``weights`` of all experts are in the place of their shares, if they are given."""
    last = replace(node, attributes={"axis": -1, "k": node.attributes.get("k", 1)})
    (shares,) = along_axis("ACTIVATION_SOFTMAX1")(builder, last, [router])
    best, indices = reduction.top_k(builder, last, [shares])
    if weights is not None:
        if weights.shape != router.shape:
            raise ValidationError(f"expected router_weights of {list(router.shape)}, but got "
                                  f"{list(weights.shape)}")
        (best,) = gather.gather_elements(builder, last, [weights, indices])
    if node.attributes.get("normalize_routing_weights", 0):
        ones = builder.constant(np.ones((best.shape[-1], 1), best.dtype))
        best = emit_elementwise(builder, "ELEMENT_WISE_DIVIDE", [
            best, product_of(builder, best, ones)], best.dtype, {})
    return shares, best, indices


def _by_expert(
    builder: Builder, node: OnnxNode, shares: Array, best: Array, indices: Array
) -> Array:
    """The weight of each expert for each token: 0 but for the k best."""
    last = replace(node, attributes={"axis": -1})
    zeros = builder.constant(np.zeros((), best.dtype)).broadcast_to(shares.shape)
    (weights,) = gather.scatter("SCATTER")(builder, last, [zeros, indices, best])
    return weights


def _activated(builder: Builder, node: OnnxNode, products: list[Array]) -> Array:
    kind = node.attributes.get("activation_type", "relu")
    x, dtype = products[0], products[0].dtype
    if kind == "gelu":
        return fast_gelu(builder, node, [x])[0]
    if kind != "swiglu":
        name = _ACTIVATIONS[kind]
        more = {"sigmoid_input_scale": 1.0} if kind == "silu" else {}
        return x if name is None else emit_elementwise(builder, name, [x], dtype, more)
    read, value = node.attributes.get, products[1]
    limit = float(read("swiglu_limit", np.inf))
    if np.isfinite(limit):
        x, value = (emit_elementwise(builder, "ELEMENT_WISE_CLIP", [t], dtype, {
            "min": low, "max": limit, "scale_bias": None})
            for t, low in ((x, -np.inf), (value, -limit)))
    gate = emit_elementwise(builder, "ACTIVATION_SWISH", [x], dtype, {
        "sigmoid_input_scale": float(read("activation_alpha", 1.0))})
    if beta := float(read("activation_beta", 0.0)):
        value = emit_elementwise(builder, "ELEMENT_WISE_ADD", [
            value, builder.constant(np.full((), beta, dtype))], dtype, {})
    return emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [gate, value], dtype, {})


ROWS: tuple[Mapping, ...] = (
    *[Mapping(op, (1,), "GEMM", mixture, MICROSOFT, fields=fields,
        attributes=("activation_alpha", "activation_beta", "activation_type", "k",
                    "normalize_routing_weights", "swiglu_fusion", "swiglu_limit",
                    "swiglu_limit_after_activation", "use_sparse_mixer", *more),
        refuses=refusal, multiplies=True, repetition=repetition)
      for op, fields, more in (("MoE", ("ATensor",), ()), ("QMoE", ("ATensor", None), (
          "accuracy_level", "block_size", "expert_weight_bits", "fc1_expert_weight_bits",
          "fc2_expert_weight_bits", "fc3_expert_weight_bits", "quant_type",
          "weights_prepacked")))],
)
