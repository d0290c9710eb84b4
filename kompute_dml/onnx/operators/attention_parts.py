"""ONNX's Attention in its parts, for what DirectML's has no field: a soft cap, windows, lengths of
keys without padding, and the product of queries and keys as an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attributes import ReduceFunction, ScaleBias
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...layout import Ints
from ..graph import DTYPES, OnnxNode
from ..lowerings import Inputs, along_axis, emit_elementwise, given
from ..row import Mapping
from . import movement, products
from .reduction import reduced

_INDEX = np.dtype("int32")
_WITH_BIAS, _SHARES = 2, 3
"""qk_matmul_output_mode: after the mask, and after the softmax; before both otherwise."""


def attention(
    builder: Builder, node: OnnxNode, inputs: Inputs, sink: Array | None = None
) -> list[Array]:
    """``sink``: for each head a score of no key, which takes its share."""
    read, q = node.attributes.get, given(inputs, 0)
    by_head, dtype = len(q.shape) == 4, q.dtype
    mask, past_k, past_v, lengths = (
        inputs[i] if i < len(inputs) else None for i in range(3, 7))
    q = _heads(builder, q, read("q_num_heads"))
    k, v = (_heads(builder, given(inputs, i), read("kv_num_heads")) for i in (1, 2))
    past = 0 if past_k is None else past_k.shape[2]
    if past_k is not None and past_v is not None:
        k, v = movement.joined(builder, [past_k, k], 2), movement.joined(builder, [past_v, v], 2)
    sizes = (*q.shape[:3], k.shape[2])

    scale = float(read("scale") or q.shape[3] ** -0.5)
    scores = _product(builder, q, _repeated(builder, k, sizes[1]), alpha=scale, transB=1)
    if cap := float(read("softcap", 0.0)):
        scores = _of(builder, "ELEMENT_WISE_TANH", dtype, scores, scale_bias=ScaleBias(1 / cap))
        scores = _of(builder, "ELEMENT_WISE_IDENTITY", dtype, scores, scale_bias=ScaleBias(cap))
    biases = _biases(builder, node, sizes, mask, lengths, past, dtype)
    biased = scores
    for bias in biases:
        biased = _of(builder, "ELEMENT_WISE_ADD", dtype, biased, bias)
    precision = DTYPES.get(read("softmax_precision", 0), dtype)
    wide = precision.itemsize > dtype.itemsize
    shares = _of(builder, "CAST", np.dtype("float32"), biased) if wide else biased
    if sink is not None:
        seen = builder.reshape(_of(builder, "CAST", shares.dtype, sink), (1, sizes[1], 1, 1))
        shares = movement.joined(builder, [shares, seen.broadcast_to((*sizes[:3], 1))], 3)
    (shares,) = along_axis("ACTIVATION_SOFTMAX1")(
        builder, OnnxNode("Softmax", "", 13, (), ()), [shares])
    if sink is not None:
        shares = builder.pack(shares.view(sizes, shares.strides))
    elif biases:
        shares = _without_masked_rows(builder, shares, biases, sizes)
    if wide:
        shares = _of(builder, "CAST", dtype, shares)

    y = _product(builder, shares, _repeated(builder, v, sizes[1]))
    if not by_head:
        y = builder.reshape(y.transpose((0, 2, 1, 3)),
                            (sizes[0], sizes[2], sizes[1] * v.shape[3]))
    modes = {_WITH_BIAS: biased, _SHARES: shares}
    return [y, k, v, modes.get(read("qk_matmul_output_mode", 0), scores)][: len(node.outputs)]


def refusal(node: OnnxNode) -> str | None:
    """Why ONNX's Attention is not served, or None."""
    if any(v is None or v.shape is None for v in node.inputs[:3]):
        return "inputs of unknown rank"
    return None


def _of(
    builder: Builder, operator: str, dtype: np.dtype, *arrays: Array, **attributes: Any
) -> Array:
    return emit_elementwise(builder, operator, list(arrays), dtype, attributes)


def _product(builder: Builder, a: Array, b: Array, **attributes: float) -> Array:
    (y,) = products.matmul(builder, OnnxNode("MatMul", "", 13, (), (), dict(attributes)), [a, b])
    return y


def _heads(builder: Builder, x: Array, count: int | None) -> Array:
    """[batch, head, position, feature] of that, or of [batch, position, all features]."""
    if len(x.shape) == 4:
        return x
    if not count or x.shape[2] % count:
        raise ValidationError(f"expected {count} heads in {list(x.shape)}")
    return builder.reshape(x, (*x.shape[:2], count, x.shape[2] // count)).transpose((0, 2, 1, 3))


def _repeated(builder: Builder, x: Array, heads: int) -> Array:
    """Keys or values of a group for each of its queries' heads."""
    batches, own, length, size = x.shape
    if own == heads:
        return x
    if not own or heads % own:
        raise ValidationError(f"expected {heads} heads of queries to share {own}")
    a, b, c, d = x.strides
    seen = x.view((batches, own, heads // own, length, size), (a, b, 0, c, d))
    return builder.reshape(seen, (batches, heads, length, size))


def _biases(
    builder: Builder, node: OnnxNode, sizes: Ints, mask: Array | None,
    lengths: Array | None, past: int, dtype: np.dtype[Any],
) -> list[Array]:
    """What is added to the product: the mask, and -infinity where a query sees no key."""
    read, (batches, _, queries, keys) = node.attributes.get, sizes
    left, right = read("left_window_size", -1), read("right_window_size", -1)
    right = 0 if read("is_causal", 0) else right  # no key after the query's own place
    biases = []
    if mask is not None:
        if mask.dtype not in (BOOL, dtype):  # integers are added, too
            mask = _of(builder, "CAST", dtype, mask)
        if (short := keys - mask.shape[-1]) > 0:
            filling = np.zeros((), bool) if mask.dtype == BOOL else np.full((), -np.inf, mask.dtype)
            rest = builder.constant(filling).broadcast_to((*mask.shape[:-1], short))
            mask = movement.joined(builder, [mask, rest], -1)
        biases.append(from_truth(builder, mask, dtype) if mask.dtype == BOOL else mask)
    # A key's place less the query's, if the first query comes after no key.
    ahead = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    if lengths is None:
        seen = np.ones((queries, keys), bool)
        if right >= 0:
            seen &= ahead <= past + right
        if left >= 0:
            seen &= ahead >= past - left
        if not seen.all():
            hidden = np.where(seen, 0, -np.inf).astype(dtype)
            biases.append(builder.constant(hidden))
        return biases
    own = _of(builder, "CAST", _INDEX, lengths)
    own = builder.reshape(own, (batches, 1, 1, 1))

    def compared(operator: str, places: np.ndarray) -> Array:
        constant = builder.constant(places.astype(_INDEX))
        return _of(builder, f"ELEMENT_WISE_LOGICAL_{operator}", BOOL, constant, own)

    # The last query comes after all keys but the padding.
    tests = [compared("LESS_THAN", np.arange(keys)[None, :])]
    if right >= 0:
        tests.append(compared("LESS_THAN_OR_EQUAL", ahead + queries - right))
    if left >= 0:
        tests.append(compared("GREATER_THAN_OR_EQUAL", ahead + queries + left))
    return [*biases, *(from_truth(builder, t, dtype) for t in tests)]


def filled(builder: Builder, cache: Array, counts: Array) -> Array:
    """A cache whose rows beyond the first ``counts`` of each batch are 0, whatever they hold."""
    rows = builder.constant(np.arange(cache.shape[2]).astype(counts.dtype)[:, None])
    there = _of(builder, "ELEMENT_WISE_LOGICAL_LESS_THAN", BOOL, rows,
                builder.reshape(counts, (counts.shape[0], 1, 1, 1)))
    zero = builder.constant(np.zeros((), cache.dtype))
    return _of(builder, "ELEMENT_WISE_IF", cache.dtype, there, cache, zero)


def from_truth(builder: Builder, seen: Array, dtype: np.dtype[Any]) -> Array:
    """What is added to scores: 0 where a key is seen, else -infinity."""
    zero, hidden = (builder.constant(np.full((), n, dtype)) for n in (0, -np.inf))
    return _of(builder, "ELEMENT_WISE_IF", dtype, seen, zero, hidden)


def _without_masked_rows(
    builder: Builder, shares: Array, biases: Sequence[Array], sizes: Ints
) -> Array:
    """A query that sees no key has no shares: the softmax of -infinities is none."""
    total = biases[0]
    for bias in biases[1:]:
        total = _of(builder, "ELEMENT_WISE_ADD", bias.dtype, total, bias)
    if not total.size or not shares.size:
        return shares
    (most,) = reduced(builder, "REDUCE", total, [len(total.shape) - 1], True, total.dtype,
                      function=ReduceFunction.MAX)
    hidden = builder.constant(np.full((), -np.inf, total.dtype))
    nothing = _of(builder, "ELEMENT_WISE_LOGICAL_EQUALS", BOOL, most, hidden)
    zero = builder.constant(np.zeros((), shares.dtype))
    return _of(builder, "ELEMENT_WISE_IF", shares.dtype, nothing, zero, shares)


ROWS: tuple[Mapping, ...] = (
    Mapping("Attention", (23, 24, 25), "GEMM", attention,
        fields=("ATensor", "ATensor", "ATensor", None, "ATensor", "ATensor", None),
        attributes=("is_causal", "kv_num_heads", "left_window_size", "q_num_heads",
                    "qk_matmul_output_mode", "right_window_size", "scale", "softcap",
                    "softmax_precision"),
        refuses=refusal, multiplies=True),
)
