"""Random nodes of com.microsoft, ONNX Runtime's own operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_draw import F32, Draw, Maker, RandomNode

_MICROSOFT = "com.microsoft"


def _node(op: str, inputs: list[np.ndarray | None], attributes: dict[str, Any] | None = None,
          outputs: int = 1, host: tuple[int, ...] = ()) -> RandomNode:
    return RandomNode(op, inputs, attributes or {}, outputs, _MICROSOFT, host=host)


# Products


def fused_matmul(d: Draw) -> RandomNode:
    m, k, n = d.wholes(3, 1, 40)
    batch, a, b = d.sizes(0, 2, 3), d.of(0, 1), d.of(0, 1)
    return _node("FusedMatMul", [d.floats(*batch, *((k, m) if a else (m, k))),
                                 d.floats(*batch, *((n, k) if b else (k, n)))],
                 {"transA": a, "transB": b, "alpha": d.of(1.0, 0.5)})


def blocks_of_4_bits(d: Draw) -> RandomNode:
    k, n, block = 32 * d.whole(1, 4), d.whole(1, 40), d.of(16, 32, 64)
    blocks = -(-k // block)
    zero = [d.integers([n * -(-blocks // 2)], np.uint8, 0, 255)] if d.chance() else []
    return _node("MatMulNBits", [
        d.floats(d.whole(1, 5), k), d.integers([n, blocks, block // 2], np.uint8, 0, 255),
        d.rng.random([n * blocks]).astype(F32), *zero],
        {"K": k, "N": n, "bits": 4, "block_size": block}, host=(1, 2, 3))


def quantized_as_it_runs(d: Draw) -> RandomNode:
    m, k, n = d.wholes(3, 1, 40)
    columns = d.of([], [n])
    scale = np.asarray(d.rng.random(columns) * 0.1 + 0.01).astype(F32)
    zero = d.integers(columns, np.int8) if d.chance() else None
    bias = d.floats(n) if d.chance() else None
    b = d.integers([k, n], np.int8, -99, 99)
    if d.chance():
        return _node("DynamicQuantizeMatMul", [d.floats(m, k), b, scale, zero, bias], host=(1,))
    return _node("MatMulIntegerToFloat", [
        d.integers([m, k], np.uint8, 0, 255), b, F32(0.03), scale, d.integers([], np.uint8), zero,
        bias], host=(1,))


# Normalizations and activations


def skipped(d: Draw) -> RandomNode:
    sizes = [2, d.whole(1, 5), d.whole(1, 70)]
    op = d.of("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    lines = d.whole(2, 3) if op == "SkipLayerNormalization" else d.whole(1, 2)
    return _node(op, [d.floats(*sizes), d.floats(*sizes),
                      *(d.floats(sizes[-1]) for _ in range(lines))], {"epsilon": 1e-3})


def embedded(d: Draw) -> RandomNode:
    batch, tokens, width, words = d.whole(1, 3), d.whole(1, 6), d.whole(1, 40), d.whole(2, 9)
    segments = d.chance()
    return _node("EmbedLayerNormalization", [
        d.integers([batch, tokens], np.int32, 0, words - 1),
        d.integers([batch, tokens], np.int32, 0, 1) if segments else None,
        d.floats(words, width), d.floats(tokens + 2, width),
        d.floats(2, width) if segments else None, d.floats(width), d.floats(width)],
        {"epsilon": 1e-3}, 2, host=(2, 3, 4, 5, 6))


def gelu(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 4, 20)
    op = d.of("BiasGelu", "FastGelu", "FastGelu", "QuickGelu")
    bias = [d.floats(sizes[-1])] if op == "BiasGelu" or (op == "FastGelu" and d.chance()) else []
    return _node(op, [d.floats(*sizes), *bias], d.some(alpha=1.5) if op == "QuickGelu" else {})


# Numbers of 8 bits


def _quantized(d: Draw, sizes: list[int], t: Any) -> list[np.ndarray]:
    return [d.integers(sizes, t, -128, 127), F32(d.of(0.01, 0.02, 0.05)), d.integers([], t)]


def of_bytes(d: Draw) -> RandomNode:
    t, sizes = d.of(np.uint8, np.int8), d.sizes(2, 4)
    to = [F32(0.04), d.integers([], t)]
    x = _quantized(d, sizes, t)
    op = d.of("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax",
              "QLinearConcat")
    if op in ("QLinearAdd", "QLinearMul"):
        small = [d.of(n, 1) for n in sizes][d.whole(0, len(sizes)):]
        return _node(op, [*x, *_quantized(d, small, t), *to])
    if op == "QLinearConcat":
        axis = d.axis(sizes)
        parts = []
        for _ in range(d.whole(1, 3)):
            sizes[axis] = d.whole(1, 5)
            parts += _quantized(d, sizes, t)
        return _node(op, [*to, *parts], {"axis": axis})
    attributes = {"QLinearSoftmax": {"axis": d.axis(sizes), "opset": 13},
                  "QLinearLeakyRelu": d.some(alpha=0.2)}.get(op, {})
    # A table of all 256 results is made of constants.
    return _node(op, [*x, *to], attributes, host=(1, 2, 3, 4))


def pooled_bytes(d: Draw) -> RandomNode:
    t = d.of(np.uint8, np.int8)
    x = [*_quantized(d, [2, d.whole(1, 4), d.whole(4, 9), d.whole(4, 9)], t), F32(0.04),
         d.integers([], t)]
    if d.chance(0.3):
        return _node("QLinearGlobalAveragePool", x)
    return _node("QLinearAveragePool", x, {
        "kernel_shape": d.wholes(2, 2, 4), "strides": d.wholes(2, 1, 3),
        "pads": d.wholes(4, 0, 1), "count_include_pad": d.of(0, 1)})


# Attention


def multi_head(d: Draw) -> RandomNode:
    batch, heads, size, queries, keys = d.whole(1, 3), d.of(2, 4), d.of(4, 8), *d.wholes(2, 1, 6)
    width = heads * size
    inputs: list[np.ndarray | None] = [
        d.floats(batch, queries, width), d.floats(batch, keys, width), d.floats(batch, keys, width),
        d.floats(3 * width) if d.chance() else None]
    if d.chance(0.3):
        kept = np.maximum(d.integers([batch, keys], np.int32, 0, 1), np.arange(keys) == 0)
        inputs.append(kept.astype(np.int32))
    elif d.chance():
        inputs += [None, d.floats(d.of(1, batch), heads, queries, keys)]
    return _node("MultiHeadAttention", inputs, {
        "num_heads": heads, **d.some(scale=0.4, unidirectional=1)})


def projected(d: Draw) -> RandomNode:
    batch, tokens, heads, size, width = (
        d.whole(1, 3), d.whole(1, 6), d.of(2, 4), d.of(4, 8), d.whole(4, 20))
    inner = heads * size
    mask = d.of(None, np.array(d.wholes(batch, 1, tokens), np.int32),
                np.maximum(d.integers([batch, tokens], np.int32, 0, 1),
                           np.arange(tokens) == 0).astype(np.int32))
    has_past = mask is None and d.chance(0.3)
    past = d.floats(2, batch, heads, d.whole(1, 3), size) if has_past else None
    return _node("Attention", [
        d.floats(batch, tokens, width), d.floats(width, 3 * inner) * F32(0.3), d.floats(3 * inner),
        mask, past], {"num_heads": heads, **d.some(scale=0.3, unidirectional=1)},
        1 if past is None else 2)


def grouped(d: Draw) -> RandomNode:
    batch, heads, size = d.whole(1, 3), d.of(2, 4), d.of(16, 32)
    key_heads, past = d.of(heads, heads // 2), d.of(0, d.whole(1, 5))
    tokens = 1 if past else d.whole(1, 5)
    total = past + tokens
    rotates = d.chance()
    angles = d.rng.random([total + 2, size // 2])
    tables = [np.cos(angles).astype(F32), np.sin(angles).astype(F32)] if rotates else []
    return _node("GroupQueryAttention", [
        d.floats(batch, tokens, heads * size), d.floats(batch, tokens, key_heads * size),
        d.floats(batch, tokens, key_heads * size), d.floats(batch, key_heads, past, size),
        d.floats(batch, key_heads, past, size), np.full([batch], total - 1, np.int32),
        np.array(total, np.int32), *tables],
        {"num_heads": heads, "kv_num_heads": key_heads, "do_rotary": int(rotates),
         **d.some(scale=0.3, softcap=2.0, local_window_size=2, rotary_interleaved=d.of(0, 1))}, 3)


def rotary(d: Draw) -> RandomNode:
    batch, tokens, heads, size = d.whole(1, 3), d.whole(1, 5), d.of(1, 2, 4), d.of(4, 8)
    angles = d.rng.random([tokens + 3, size // 2])
    first = np.array([d.whole(0, 3)]) if d.chance() else d.integers(
        [batch, tokens], np.int64, 0, tokens + 2)
    x = (d.floats(batch, heads, tokens, size) if d.chance()
         else d.floats(batch, tokens, heads * size))
    return _node("RotaryEmbedding", [x, first, np.cos(angles).astype(F32),
                                     np.sin(angles).astype(F32)], d.some(interleaved=1))


MICROSOFTS: tuple[Maker, ...] = (
    fused_matmul, blocks_of_4_bits, quantized_as_it_runs, skipped, embedded, gelu, of_bytes,
    pooled_bytes, multi_head, projected, grouped, rotary,
)
