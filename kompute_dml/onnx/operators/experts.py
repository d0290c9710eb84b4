"""com.microsoft MoE and QMoE: each token is the sum of its best experts, weighted by the router.

An expert computes the tokens that choose it: these are rows of :mod:`.grouped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, along_axis, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping
from . import gather, reduction
from .activations import fast_gelu
from .grouped import MatricesInBlocks, TiledRows, parted, sum_of_groups
from .products import product_of

_ACTIVATIONS = {"relu": "ACTIVATION_RELU", "identity": None, "silu": "ACTIVATION_SWISH",
                "gelu": None, "swiglu": None}


class _WeightInputs(NamedTuple):
    """Inputs by number: the weights of two products and their biases, and a third product."""

    first: int
    first_bias: int
    second: int
    second_bias: int
    third: int


_PLACES = {"MoE": _WeightInputs(2, 3, 4, 5, 6), "QMoE": _WeightInputs(2, 4, 5, 7, 8)}
_FIRST_ZEROS, _SECOND_ZEROS, _ROUTER_WEIGHTS = 11, 12, 14
"""Inputs of QMoE. Scales follow their weights."""


def _matrices(node: OnnxNode, builder: Builder, inputs: Inputs, index: int, zeros: int, name: str
              ) -> tuple[Array | MatricesInBlocks, tuple[int, int, int]]:
    """The weights of a product, and how many experts, rows and columns there are."""
    values = builder.pack(given(inputs, index))
    if node.op == "MoE":
        experts, rows, columns = values.shape
        return values, (experts, rows, columns)
    bits, scales = _bits(node, name), builder.pack(given(inputs, index + 1))
    experts, rows, columns = *values.shape[:2], values.shape[2] * 8 // bits
    blocks = scales.size // (experts * rows) if experts * rows else 0
    if not blocks or scales.size != experts * rows * blocks or columns % blocks:
        raise ValidationError(f"expected scales of blocks of {list(values.shape)}, but got "
                              f"{list(scales.shape)}")
    points = optional(inputs, zeros)
    return MatricesInBlocks(values, scales, None if points is None else builder.pack(points), bits,
                  (experts, rows, blocks, columns // blocks)), (experts, rows, columns)


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


def mixture(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, router, places = given(inputs, 0), given(inputs, 1), _PLACES[node.op]
    first, (experts, wide, size) = _matrices(
        node, builder, inputs, places.first, _FIRST_ZEROS, "fc1")
    second, back = _matrices(node, builder, inputs, places.second, _SECOND_ZEROS, "fc2")
    parts = 2 if node.attributes.get("activation_type", "relu") == "swiglu" else 1
    tokens = x.size // size if size else 0
    if not x.size or back != (experts, size, wide // parts) or router.shape != (tokens, experts):
        raise ValidationError(
            f"expected experts for tokens of sizes {list(x.shape)}, but got "
            f"{[experts, wide, size]} and {[*back]}, and a router of {list(router.shape)}")
    best, indices = _routed(
        builder, node, router, None if node.op == "MoE" else optional(inputs, _ROUTER_WEIGHTS))

    def each(tiles: TiledRows, rows: Sequence[Array]) -> Array:
        def product(a: Array, b: Array | MatricesInBlocks, index: int, parts: int = 1, part: int = 0
                    ) -> Array:
            """With the bias of an input."""
            y = tiles.product(builder, a, parted(b, parts, part))
            if (bias := optional(inputs, index)) is None:
                return y
            own = tiles.of_groups(builder, builder.pack(bias)).view(
                (tiles.count, 1, y.shape[-1]), (parts * y.shape[-1], 0, parts), part)
            return emit_elementwise(builder, "ELEMENT_WISE_ADD", [y, own], y.dtype, {})

        hidden = _activated(builder, node, [
            product(rows[0], first, places.first_bias, parts, part) for part in range(parts)])
        return product(hidden, second, places.second_bias)

    rows = builder.reshape(x, (tokens, size))
    y = sum_of_groups(builder, indices, best, [rows], experts, wide // parts, each)
    return [builder.reshape(y, x.shape)]


def _routed(
    builder: Builder, node: OnnxNode, router: Array, weights: Array | None
) -> tuple[Array, Array]:
    """The weights and numbers of the k best experts for each token. The ``weights`` of all experts
    are in the place of their shares, if they are given."""
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
    return best, indices


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
        refuses=refusal, multiplies=True)
      for op, fields, more in (("MoE", ("ATensor",), ()), ("QMoE", ("ATensor", None), (
          "accuracy_level", "block_size", "expert_weight_bits", "fc1_expert_weight_bits",
          "fc2_expert_weight_bits", "fc3_expert_weight_bits", "quant_type",
          "weights_prepacked")))],
)
