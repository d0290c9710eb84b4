"""What PyTorch's own layers of transformers call where no gradient is wanted."""

from __future__ import annotations

import math

from ..table import call, lowers
from ..values import Value, full, resized, window


@lowers("_native_multi_head_attention")
def attention(
    query: Value, key: Value, x: Value, size: int, heads: int, weight: Value, bias: Value,
    last_weight: Value, last_bias: Value, mask: Value | None = None, need_weights: bool = True,
    average: bool = True, mask_type: int | None = None,
) -> list[Value | None]:
    n, width = query.shape[0], size // heads

    def part(source: Value, i: int) -> Value:
        ends = 0, i * size, (i + 1) * size
        y = call("linear", source, window(weight, *ends), window(bias, *ends))
        return call("permute", resized(y, (n, source.shape[1], heads, width)), [0, 2, 1, 3])

    scores = call("matmul", call("mul.Tensor", part(query, 0), 1 / math.sqrt(width)),
                  call("transpose.int", part(key, 1), -2, -1))
    if mask is not None:
        padding = (n, 1, 1, mask.shape[-1])
        hidden = call("ne.Scalar", resized(mask, padding) if mask_type == 1 else mask, 0)
        scores = call("where.self", hidden, full((), -math.inf, scores.dtype), scores)
    shares = call("_safe_softmax", scores, -1)
    y = call("permute", call("matmul", shares, part(x, 2)), [0, 2, 1, 3])
    y = call("linear", resized(y, (n, query.shape[1], size)), last_weight, last_bias)
    if not need_weights:
        return [y, None]
    return [y, call("mean.dim", shares, [1]) if average else shares]


@lowers("_transformer_encoder_layer_fwd")
def encoder_layer(
    x: Value, size: int, heads: int, weight: Value, bias: Value, last_weight: Value,
    last_bias: Value, use_gelu: bool, norm_first: bool, eps: float, scale1: Value, shift1: Value,
    scale2: Value, shift2: Value, wide_weight: Value, wide_bias: Value, narrow_weight: Value,
    narrow_bias: Value, mask: Value | None = None, mask_type: int | None = None,
) -> Value:
    def norm(y: Value, scale: Value, shift: Value) -> Value:
        y, *_ = call("native_layer_norm", y, [size], scale, shift, eps)
        return y

    def attended(y: Value) -> Value:
        z = attention(y, y, y, size, heads, weight, bias, last_weight, last_bias, mask, False,
                      False, mask_type)[0]
        return call("add.Tensor", x, z)

    def fed(y: Value, z: Value) -> Value:
        wide = call("gelu" if use_gelu else "relu", call("linear", z, wide_weight, wide_bias))
        return call("add.Tensor", y, call("linear", wide, narrow_weight, narrow_bias))

    if norm_first:
        y = attended(norm(x, scale1, shift1))
        return fed(y, norm(y, scale2, shift2))
    y = norm(attended(x), scale1, shift1)
    return norm(fed(y, y), scale2, shift2)
