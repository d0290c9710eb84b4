"""com.microsoft MoE and QMoE: each token is the sum of its best experts, weighted by the router.

An expert computes the tokens that choose it: these are rows of :mod:`.grouped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...attributes import ReduceFunction
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, along_axis, converted, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping
from . import gather, reduction
from .activations import fast_gelu
from .grouped import MatricesInBlocks, TiledRows, part_of, parted, sum_of_groups
from .movement import joined
from .products import product_of

_MIXED, _ABOUT = 2, 0.02
"""Experts that a sparse mixer takes, and how far from the best one counts as about as good."""
_ACTIVATIONS = "relu", "relu2", "identity", "silu", "gelu", "swiglu", "geglu"
_GATED = "swiglu", "geglu"
"""Activations of two products."""
_APART, _TURNS, _SIDE_BY_SIDE = 0, 1, 2
"""swiglu_fusion: the two are of two inputs, or columns of one input, in turns or side by side."""


class _WeightInputs(NamedTuple):
    """Inputs by number: the weights of three products and their biases."""

    first: int
    first_bias: int
    second: int
    second_bias: int
    third: int
    third_bias: int


_PLACES = {"MoE": _WeightInputs(2, 3, 4, 5, 6, 7), "QMoE": _WeightInputs(2, 4, 5, 7, 8, 10)}
_FIRST_ZEROS, _SECOND_ZEROS, _THIRD_ZEROS, _ROUTER_WEIGHTS = 11, 12, 13, 14
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
    fusion, third = read("swiglu_fusion", _APART), node.input(places.third)
    if fusion not in (_APART, _TURNS, _SIDE_BY_SIDE) or (
            kind in _GATED and (fusion == _APART) is (third is None)) or (
            kind == "geglu" and fusion == _APART):
        return f"activation_type={kind!r} with swiglu_fusion={fusion}"
    if read("use_sparse_mixer", 0) and (read("k", 1) != _MIXED or (
            node.op == "QMoE" and node.input(_ROUTER_WEIGHTS) is not None)):
        return f"a sparse mixer of other than {_MIXED} experts, or with router_weights"
    tensors = [node.input(i) for i in (0, places.first, places.second)]
    if third is not None:
        tensors.append(third)
    if any(t is None or t.shape is None or None in t.shape for t in tensors[1:]) or (
            tensors[0] is None or tensors[0].shape is None):
        return "tokens or experts of unknown sizes"
    return _quantized_refusal(node) if node.op == "QMoE" else None


def _names(op: str) -> dict[str, int]:
    """The inputs of weights, as attributes call them."""
    places = _PLACES[op]
    return {"fc1": places.first, "fc2": places.second, "fc3": places.third}


def _quantized_refusal(node: OnnxNode) -> str | None:
    read = node.attributes.get
    names = [n for n, i in _names("QMoE").items() if node.input(i) is not None]
    if read("quant_type", "int") != "int" or {_bits(node, name) for name in names} - {4, 8}:
        return "weights that are not of 4 or 8 bits"
    if read("weights_prepacked", 0) == 1:
        return "weights in the order of another provider"
    zeros = [z for i in (_FIRST_ZEROS, _SECOND_ZEROS, _THIRD_ZEROS)
             if (z := node.input(i)) is not None]
    if zeros and not read("block_size", 0):
        return "zero points without blocks"
    scales = [node.input(_names("QMoE")[name] + 1) for name in names]
    return "no scales" if None in scales else None


def _sizes(node: OnnxNode) -> list[tuple[int, ...]]:
    """Experts, rows and columns of the products, as far as they are known."""
    sizes = []
    for name, index in _names(node.op).items():
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
    third = None
    if optional(inputs, places.third) is not None:
        third, of_third = _matrices(node, builder, inputs, places.third, _THIRD_ZEROS, "fc3")
        if of_third != (experts, wide, size):
            raise ValidationError(f"expected fc3 to have the sizes {[experts, wide, size]} of fc1, "
                                  f"but got {[*of_third]}")
    read = node.attributes.get
    fusion = read("swiglu_fusion", _APART) if read("activation_type", "relu") in _GATED else _APART
    parts = 1 if fusion == _APART else 2
    tokens = x.size // size if size else 0
    if not x.size or back != (experts, size, wide // parts) or router.shape != (tokens, experts):
        raise ValidationError(
            f"expected experts for tokens of sizes {list(x.shape)}, but got "
            f"{[experts, wide, size]} and {[*back]}, and a router of {list(router.shape)}")
    best, indices = _routed(
        builder, node, router, None if node.op == "MoE" else optional(inputs, _ROUTER_WEIGHTS))
    columns = [part_of(wide, parts, part, turns=fusion == _TURNS) for part in range(parts)]

    def each(tiles: TiledRows, rows: Sequence[Array]) -> Array:
        def product(a: Array, b: Array | MatricesInBlocks, index: int,
                    part: tuple[int, int, int] | None = None) -> Array:
            """With the bias of an input."""
            y = tiles.product(builder, a, parted(b, part))
            if (bias := optional(inputs, index)) is None:
                return y
            first, step, count = part or (0, 1, bias.shape[1])
            own = tiles.of_groups(builder, builder.pack(bias)).view(
                (tiles.count, 1, count), (bias.shape[1], 0, step), first)
            return emit_elementwise(builder, "ELEMENT_WISE_ADD", [y, own], y.dtype, {})

        products = [product(rows[0], first, places.first_bias, part) for part in columns]
        if third is not None:
            products.append(product(rows[0], third, places.third_bias))
        hidden = _activated(builder, node, products)
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
    if node.attributes.get("use_sparse_mixer", 0):
        best, indices = _mixed(builder, last, router)
        return _normalized(builder, node, best), indices
    (shares,) = along_axis("ACTIVATION_SOFTMAX1")(builder, last, [router])
    best, indices = reduction.top_k(builder, last, [shares])
    if weights is not None:
        if weights.shape != router.shape:
            raise ValidationError(f"expected router_weights of {list(router.shape)}, but got "
                                  f"{list(weights.shape)}")
        (best,) = gather.gather_elements(builder, last, [weights, indices])
    return _normalized(builder, node, best), indices


def _normalized(builder: Builder, node: OnnxNode, best: Array) -> Array:
    if not node.attributes.get("normalize_routing_weights", 0):
        return best
    ones = builder.constant(np.ones((best.shape[-1], 1), best.dtype))
    return emit_elementwise(builder, "ELEMENT_WISE_DIVIDE", [
        best, product_of(builder, best, ones)], best.dtype, {})


def _mixed(builder: Builder, last: OnnxNode, router: Array) -> tuple[Array, Array]:
    """The weights and numbers of the two best experts, as SparseMixer of Phi-3.5-MoE has them: each
    one's share of those that are about as good, without the better one.

    https://arxiv.org/abs/2409.12136
    """
    best, indices = reduction.top_k(builder, last, [router])
    real, shares = np.dtype("float32"), []
    scores, best = (converted(builder, x, real) for x in (router, best))

    def of(operator: str, *arrays: Array, dtype: np.dtype[Any] = real, **more: Any) -> Array:
        return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", arrays, dtype, more)

    def column(x: Array, place: int) -> Array:
        return x.view((x.shape[0], 1), x.strides, place * x.strides[1])

    for place in range(_MIXED):
        most = column(best, place)
        apart = of("SUBTRACT", most, scores)
        factor = of("MULTIPLY", of("MAX", of("ABS", scores, scale_bias=None), most),
                    builder.constant(np.array(_ABOUT, real)))
        near = of("LOGICAL_LESS_THAN_OR_EQUAL", apart, factor, dtype=BOOL)
        if place:
            taken = of("LOGICAL_EQUALS", builder.counted(scores.shape[1], indices.dtype),
                       column(indices, 0), dtype=BOOL)
            near = of("LOGICAL_GREATER_THAN", near, taken, dtype=BOOL)
        terms = of("IF", near, of("EXP", of("NEGATE", apart), scale_bias=None),
                   builder.constant(np.zeros((), real)))
        (total,) = reduction.reduced(builder, "REDUCE", terms, [1], True, real,
                                     function=ReduceFunction.SUM)
        shares.append(of("RECIP", total, scale_bias=None))
    return converted(builder, joined(builder, shares, 1), router.dtype), indices


def _activated(builder: Builder, node: OnnxNode, products: list[Array]) -> Array:
    """What two products make of a row: the first one is activated, and multiplies the other."""
    read, x, dtype = node.attributes.get, products[0], products[0].dtype

    def of(operator: str, *arrays: Array, **more: Any) -> Array:
        return emit_elementwise(builder, operator, arrays, dtype, more)

    kind, limit = read("activation_type", "relu"), np.inf
    scale = 1.0
    if kind == "swiglu":
        limit, scale = float(read("swiglu_limit", np.inf)), float(read("activation_alpha", 1.0))
    after = bool(read("swiglu_limit_after_activation", 0))
    if np.isfinite(limit) and not after:
        x = of("ELEMENT_WISE_CLIP", x, min=-np.inf, max=limit, scale_bias=None)
    if kind in ("gelu", "geglu"):
        (x,) = fast_gelu(builder, node, [x])
    elif kind in ("silu", "swiglu"):
        x = of("ACTIVATION_SWISH", x, sigmoid_input_scale=scale)
    elif kind in ("relu", "relu2"):
        x = of("ACTIVATION_RELU", x)
        x = of("ELEMENT_WISE_MULTIPLY", x, x) if kind == "relu2" else x
    if len(products) == 1:
        return x
    value = products[1]
    if np.isfinite(limit):
        if after:
            x = of("ELEMENT_WISE_CLIP", x, min=-np.inf, max=limit, scale_bias=None)
        value = of("ELEMENT_WISE_CLIP", value, min=-limit, max=limit, scale_bias=None)
    if kind == "swiglu" and (beta := float(read("activation_beta", 0.0))):
        value = of("ELEMENT_WISE_ADD", value, builder.constant(np.full((), beta, dtype)))
    return of("ELEMENT_WISE_MULTIPLY", x, value)


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
