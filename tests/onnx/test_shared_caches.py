"""com.microsoft's attention with caches that are as long as they may grow, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx.row import MICROSOFT
from onnx_graphs import FLOAT, model, needs_provider, node
from provider_tools import last_kernel, session

pytestmark = needs_provider
_INT32 = 6
_HEADS, _SIZE, _ROWS, _TEXTS, _BEAMS = 2, 8, 12, 2, 3
_WIDTH = _HEADS * _SIZE


def attended(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, past: int
) -> np.ndarray:
    """Queries [batch, token, all], caches [batch, head, row, element]."""
    batches, tokens, _ = q.shape
    q = q.reshape(batches, tokens, _HEADS, _SIZE).transpose(0, 2, 1, 3)
    scores = q @ keys.transpose(0, 1, 3, 2) * _SIZE**-0.5
    later = np.arange(keys.shape[2]) > past + np.arange(tokens)[:, None]
    scores = np.where(later, -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ values).transpose(0, 2, 1, 3).reshape(batches, tokens, -1)


def appended(cache: np.ndarray, x: np.ndarray, past: int) -> np.ndarray:
    made, tokens = cache.copy(), x.shape[1]
    made[:, :, past : past + tokens] = x.reshape(
        len(x), tokens, _HEADS, _SIZE).transpose(0, 2, 1, 3)
    return made


def built(op: str, batches: int, tokens: int, *, beams: bool, bias: bool,
          kind: int = FLOAT) -> bytes:
    """Of ``kind``: the data type of queries, keys, values and caches."""
    fresh, cache = [batches, tokens, _WIDTH], [batches, _HEADS, _ROWS, _SIZE]
    infos: list[Any] = [*((n, kind, fresh) for n in "qkv"),
                        *((f"past_{n}", kind, cache) for n in "kv"), ("past", _INT32, [1])]
    if beams:
        infos.append(("beams", _INT32, [_TEXTS, _BEAMS, _ROWS]))
    if bias:
        infos.append(("bias", kind, [3 * _WIDTH]))
    b, c = ("bias" if bias else "-"), ("beams" if beams else "-")
    if op == "MultiHeadAttention":
        names, more = f"q k v {b} - - past_k past_v past {c}", {"unidirectional": 1}
    else:
        names, more = f"q k v - - past_k past_v past - {c} {b}", {"past_present_share_buffer": 1}
    return model([node(op, names, "y present_k present_v", MICROSOFT, num_heads=_HEADS, **more)],
                 infos, [("y", kind, fresh), *((f"present_{n}", kind, cache) for n in "kv")])


@pytest.mark.parametrize(("op", "tokens", "beams", "bias"), [
    ("MultiHeadAttention", 3, False, True), ("MultiHeadAttention", 1, True, False),
    ("DecoderMaskedMultiHeadAttention", 1, False, False),
    ("DecoderMaskedMultiHeadAttention", 1, True, True),
])
def test_caches_with_room(
    op: str, tokens: int, beams: bool, bias: bool, rng: np.random.Generator
) -> None:
    """Rows of other beams than a text has, and rows that nobody wrote, are never read."""
    batches = _TEXTS * _BEAMS
    made = session(built(op, batches, tokens, beams=beams, bias=bias), False, claim="all",
                   strict=True)
    kernel = last_kernel()
    caches = {n: np.full((batches, _HEADS, _ROWS, _SIZE), np.nan, np.float32) for n in "kv"}
    for past in range(0, _ROWS, tokens):
        feed = {n: rng.standard_normal((batches, tokens, _WIDTH), np.float32) for n in "qkv"}
        own = np.arange(batches)[:, None].repeat(_ROWS, axis=1)
        fresh = dict(feed)
        if bias:
            feed["bias"] = rng.standard_normal(3 * _WIDTH, np.float32)
            fresh = {n: x + part for (n, x), part in zip(fresh.items(), np.split(feed["bias"], 3))}
        if beams:
            feed["beams"] = rng.integers(-2, _BEAMS + 2, (_TEXTS, _BEAMS, _ROWS)).astype(np.int32)
            old = np.clip(feed["beams"], 0, _BEAMS - 1) + _BEAMS * np.arange(_TEXTS)[:, None, None]
            own = np.where(np.arange(_ROWS) < past, old.reshape(batches, _ROWS), own)
        feed |= {f"past_{n}": x for n, x in caches.items()} | {"past": np.int32([past])}
        y, *present = made.run(None, feed)
        caches = {n: appended(x, fresh[n], past) for n, x in caches.items()}
        for n, x in zip("kv", present):
            np.testing.assert_array_equal(x, caches[n])
        seen = [np.nan_to_num(x[own, :, np.arange(_ROWS)].transpose(0, 2, 1, 3))
                for x in caches.values()]
        np.testing.assert_allclose(y, attended(fresh["q"], *seen, past), rtol=1e-4, atol=1e-5)
    assert len(kernel.region._plans) == 1


def test_a_length_beyond_the_cache_is_an_error(rng: np.random.Generator) -> None:
    made = session(built("MultiHeadAttention", 1, 3, beams=False, bias=False), False, claim="all",
                   strict=True)
    feed = {n: np.zeros((1, 3, _WIDTH), np.float32) for n in "qkv"}
    feed |= {f"past_{n}": np.zeros((1, _HEADS, _ROWS, _SIZE), np.float32) for n in "kv"}
    for past in (-1, _ROWS - 2, 2**31 - 1):
        with pytest.raises(Exception, match=r"past_sequence_length to be in \[0, 10\), the caches"):
            made.run(None, {**feed, "past": np.int32([past])})
