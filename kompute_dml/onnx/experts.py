"""com.microsoft MoE: each token is the sum of its best experts, weighted by the router.

Every expert computes every token, in two products for all experts: what the router leaves out is
multiplied by 0. :func:`repetition` tells the cost model how much of that is in vain.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import ValidationError
from ..graph.array import Array
from ..graph.builder import Builder
from . import composed, gather, reduction
from .graph import Node
from .lowerings import Inputs, along_axis, emit_elementwise, given, optional
from .products import product_of

_ACTIVATIONS = {"relu": "ACTIVATION_RELU", "identity": None, "silu": "ACTIVATION_SWISH",
                "gelu": None, "swiglu": None}


def refusal(node: Node) -> str | None:
    """Why a node is not served, or None."""
    read = node.attributes.get
    kind = read("activation_type", "relu")
    if kind not in _ACTIVATIONS:
        return f"activation_type={kind!r}"
    if kind == "swiglu" and read("swiglu_fusion", 0) != 1:
        return f"swiglu_fusion={read('swiglu_fusion', 0)}"
    if read("use_sparse_mixer", 0) or read("swiglu_limit_after_activation", 0):
        return "a sparse mixer, or a limit after the activation"
    if node.input(6) is not None:
        return "a third product, which ONNX Runtime's CPU provider does not have either"
    tensors = [node.input(i) for i in (0, 2, 4)]
    if any(t is None or t.shape is None or None in t.shape[-2:] for t in tensors[1:]) or (
            tensors[0] is None or tensors[0].shape is None):
        return "tokens or experts of unknown sizes"
    return None


def multiplications(node: Node, tokens: float) -> float:
    """Those of the experts that the router chooses."""
    sizes = [v.shape for i in (2, 4) if (v := node.input(i)) is not None and v.shape]
    each = sum(float(np.prod([n or 1 for n in shape[1:]])) for shape in sizes)
    return tokens * node.attributes.get("k", 1) * each


def repetition(node: Node) -> float:
    """How many times as many experts are computed as the router chooses."""
    weights = node.input(2)
    experts = (weights.shape or (1,))[0] if weights is not None else 1
    return max(1.0, (experts or 1) / node.attributes.get("k", 1))


def mixture(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, router, first, second = (given(inputs, i) for i in (0, 1, 2, 4))
    experts, wide, size = first.shape
    kind = node.attributes.get("activation_type", "relu")
    inner = wide // 2 if kind == "swiglu" else wide
    tokens = x.size // size if size else 0
    if not x.size or second.shape != (experts, size, inner) or router.shape != (tokens, experts):
        raise ValidationError(
            f"expected experts for tokens of sizes {list(x.shape)}, but got {list(first.shape)} "
            f"and {list(second.shape)}, and a router of {list(router.shape)}")
    rows = builder.reshape(x, (tokens, size))
    weights = _routed(builder, node, router)
    parts = 2 if kind == "swiglu" else 1
    # Experts are neighbouring columns of one product. A gate and its value take turns.
    columns = builder.pack(first)
    bias = optional(inputs, 3)
    made = []
    for part in range(parts):
        b = columns.view((size, experts * inner), (1, parts * size), part * size)
        c = None if bias is None else builder.pack(bias).view(
            (experts * inner,), (parts,), part)
        made.append(product_of(builder, rows, b, c))
    hidden = _activated(builder, node, kind, made)
    hidden = builder.reshape(hidden, (tokens, experts, inner))
    hidden = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        hidden, builder.reshape(weights, (tokens, experts, 1))], x.dtype, {})
    b2 = optional(inputs, 5)
    total = None if b2 is None else product_of(builder, weights, b2)
    back = builder.reshape(second.transpose((0, 2, 1)), (experts * inner, size))
    y = product_of(builder, builder.reshape(hidden, (tokens, experts * inner)), back, total)
    return [builder.reshape(y, x.shape)]


def _routed(builder: Builder, node: Node, router: Array) -> Array:
    """The weight of each expert for each token: 0 but for the k best."""
    last = replace(node, attributes={"axis": -1, "k": node.attributes.get("k", 1)})
    (shares,) = along_axis("ACTIVATION_SOFTMAX1")(builder, last, [router])
    best, indices = reduction.top_k(builder, last, [shares])
    if node.attributes.get("normalize_routing_weights", 0):
        ones = builder.constant(np.ones((best.shape[-1], 1), best.dtype))
        best = emit_elementwise(builder, "ELEMENT_WISE_DIVIDE", [
            best, product_of(builder, best, ones)], best.dtype, {})
    zeros = builder.constant(np.zeros((), best.dtype)).broadcast_to(shares.shape)
    (weights,) = gather.scatter("SCATTER")(builder, last, [zeros, indices, best])
    return weights


def _activated(builder: Builder, node: Node, kind: str, made: list[Array]) -> Array:
    x, dtype = made[0], made[0].dtype
    if kind == "gelu":
        return composed.fast_gelu(builder, node, [x])[0]
    if kind != "swiglu":
        name = _ACTIVATIONS[kind]
        more = {"sigmoid_input_scale": 1.0} if kind == "silu" else {}
        return x if name is None else emit_elementwise(builder, name, [x], dtype, more)
    read, value = node.attributes.get, made[1]
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
