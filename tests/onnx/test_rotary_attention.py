"""One token of GroupQueryAttention with its rotary embedding: in one dispatch, or apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml as dml
import kompute_dml.genai as genai
from kompute_dml import tuning
from kompute_dml.onnx.row import MICROSOFT
from kompute_dml.onnxruntime import identity
from kompute_dml.operators import rotary_attention
from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node
from provider_tools import session
from test_convolution import EveryWork

pytestmark = needs_provider
_INT32, _FLOAT16 = 6, 10
_PAST = (150, 40)
"""Rows that are past, by text."""


class _Work(NamedTuple):
    """Heads, and what GroupQueryAttention is told of them."""

    heads: int = 4
    key_heads: int = 2
    size: int = 64
    rows: int = 200
    pairs: int = 32
    """Of a head's first elements, which are rotated."""
    past: tuple[int, ...] = _PAST
    tokens: int = 1
    interleaved: bool = False
    ids: bool = False
    packed: bool = False
    """Whether queries, keys and values are one input."""
    window: int = 0
    cap: float = 0.0
    sink: bool = False
    bias: bool = False

    def built(self, kind: int, constants: dict[str, np.ndarray]) -> bytes:
        """The model of it."""
        batches, keys = len(self.past), self.key_heads * self.size
        widths = {"q": self.heads * self.size, "k": keys, "v": keys}
        if self.packed:
            widths = {"q": sum(widths.values())}
        names = [n if n in widths else "-" for n in "qkv"]
        more = ["ids" * self.ids, "bias" * self.bias, "sink" * self.sink]
        read = [*names, "past_k", "past_v", "lengths", "total", "cos", "sin",
                *(n or "-" for n in more)]
        attributes: dict[str, Any] = {"softcap": self.cap, "rotary_interleaved": self.interleaved}
        if self.window:
            attributes["local_window_size"] = self.window
        infos = [*((n, kind, [batches, "n", width]) for n, width in widths.items()),
                 *((f"past_{n}", kind, [batches, self.key_heads, self.rows, self.size])
                   for n in "kv"),
                 ("lengths", _INT32, [batches]), ("total", _INT32, [1]),
                 *([("ids", INT64, [batches, "n"])] if self.ids else []),
                 *([("bias", kind, [1, self.heads, "n", self.rows])] if self.bias else [])]
        return model([node(
            "GroupQueryAttention", " ".join(read).rstrip(" -"), "y present_k present_v", MICROSOFT,
            num_heads=self.heads, kv_num_heads=self.key_heads, do_rotary=1, **attributes)], infos,
            [(n, kind, None) for n in ("y", "present_k", "present_v")], constants)


_TOGETHER = {
    "usual": _Work(), "one of eight heads": _Work(8, 1, 32, 70, 16, past=(69, 0, 35)),
    "no group": _Work(3, 3, 96, pairs=48), "neighbours": _Work(interleaved=True),
    "some elements": _Work(pairs=8), "neighbours of some": _Work(pairs=6, interleaved=True),
    "positions": _Work(ids=True), "one tensor": _Work(packed=True),
    "a window": _Work(window=20), "a soft cap": _Work(cap=3.0), "a sink": _Work(sink=True),
    "all of it": _Work(6, 1, ids=True, packed=True, window=45, cap=2.0, sink=True),
    "a full cache": _Work(past=(199, 198)), "many parts": _Work(1, 1, rows=2000, past=(1700,)),
}
_APART = {
    "two tokens": _Work(tokens=2), "a short cache": _Work(rows=60, past=(40, 3)),
    "many rows": _Work(9, 1), "a bias": _Work(bias=True),
    "pairs that are no fours": _Work(pairs=14),
}


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """[head, token, element], by [token, pair]."""
    y, pairs = x.copy(), cos.shape[1]
    a, b = ((slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved
            else (slice(pairs), slice(pairs, 2 * pairs)))
    y[..., a], y[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
    return y


def _attended(w: _Work, q: np.ndarray, k: np.ndarray, v: np.ndarray, past: int,
              sink: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
    """Of one text: [token, all heads]."""
    k, v = (x.repeat(w.heads // w.key_heads, 0) for x in (k, v))
    scores = q @ k.swapaxes(1, 2) * w.size**-0.5
    if w.cap:
        scores = w.cap * np.tanh(scores / w.cap)
    if bias is not None:
        scores = scores + bias[..., : k.shape[1]]
    ahead = np.arange(k.shape[1]) - past - np.arange(w.tokens)[:, None]
    scores = np.where((ahead > 0) | (ahead <= -w.window if w.window else False), -np.inf, scores)
    if sink is not None:
        scores = np.concatenate([scores, sink[:, None, None].repeat(w.tokens, 1)], 2)
    shares = np.exp(scores - scores.max(2, keepdims=True))
    shares /= shares.sum(2, keepdims=True)
    return (shares[:, :, : k.shape[1]] @ v).swapaxes(0, 1).reshape(w.tokens, -1)


class _Expected(NamedTuple):
    built: bytes
    inputs: dict[str, np.ndarray]
    y: np.ndarray
    caches: dict[str, np.ndarray]
    """Rows that nobody wrote are not numbers."""


def _of(w: _Work, kind: Any, rng: np.random.Generator) -> _Expected:
    counts = {"q": w.heads, "k": w.key_heads, "v": w.key_heads}
    batches = len(w.past)
    fresh = {n: rng.normal(0, 2, (batches, w.tokens, count * w.size)).astype(kind)
             for n, count in counts.items()}
    caches = {n: rng.normal(0, 2, (batches, w.key_heads, w.rows, w.size)).astype(kind)
              for n in "kv"}
    for x in caches.values():
        for text, past in enumerate(w.past):
            x[text, :, past:] = np.nan
    angles = rng.uniform(-3, 3, (w.rows, w.pairs))
    cos, sin = (f(angles).astype(kind) for f in (np.cos, np.sin))
    sink = rng.normal(0, 2, w.heads).astype(kind)
    bias = rng.normal(0, 2, (1, w.heads, w.tokens, w.rows)).astype(kind)
    ids = rng.integers(0, w.rows, (batches, w.tokens))
    constants = {"cos": cos, "sin": sin, **({"sink": sink} if w.sink else {})}
    inputs = {**fresh, **{f"past_{n}": x for n, x in caches.items()},
              "lengths": np.int32([n + w.tokens - 1 for n in w.past]),
              "total": np.int32([max(w.past) + w.tokens])}
    if w.packed:
        inputs["q"] = np.concatenate([inputs.pop(n) for n in "qkv"], 2)
    if w.ids:
        inputs["ids"] = ids
    if w.bias:
        inputs["bias"] = bias
    present = {n: x.astype(float) for n, x in caches.items()}
    outputs = []
    for text, past in enumerate(w.past):
        places = ids[text] if w.ids else past + np.arange(w.tokens)
        q, k, v = (fresh[n][text].astype(float).reshape(w.tokens, -1, w.size).swapaxes(0, 1)
                   for n in "qkv")
        q, k = (_rotated(x, cos[places].astype(float), sin[places].astype(float), w.interleaved)
                for x in (q, k))
        for n, x in (("k", k), ("v", v)):
            present[n][text, :, past : past + w.tokens] = x
        end = past + w.tokens
        outputs.append(_attended(
            w, q, present["k"][text, :, :end], present["v"][text, :, :end], past,
            sink.astype(float) if w.sink else None, bias[0].astype(float) if w.bias else None))
    number = FLOAT if kind == np.float32 else _FLOAT16
    return _Expected(w.built(number, constants), inputs, np.stack(outputs), present)


def _compare(e: _Expected, kind: Any, name: str) -> None:
    """The results by one of the ways, which must be there."""
    with tuning.trial(EveryWork(name)) as tried:
        y, *caches = session(e.built, False, claim="all", strict=True).run(None, e.inputs)
    assert any(name in names for names in tried.asked.values())
    room = 2e-5 if kind == np.float32 else 2e-2
    np.testing.assert_allclose(y, e.y, rtol=room, atol=room)
    for x, n in zip(caches, "kv"):
        wrote = np.isfinite(e.caches[n])
        np.testing.assert_allclose(x[wrote], e.caches[n][wrote], rtol=room, atol=room)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("case", _TOGETHER)
def test_one_token(case: str, kind: Any, rng: np.random.Generator) -> None:
    """Rows that no query sees hold no numbers."""
    e = _of(_TOGETHER[case], kind, rng)
    _compare(e, kind, "together")
    if kind == np.float32:
        _compare(e, kind, "apart")


@pytest.mark.parametrize("past", [1700, 900, 130, 60, 0])
def test_parts_are_combined_in_two_steps(
    past: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotary_attention, "FAN_IN", 2)
    _compare(_of(_Work(2, 1, rows=2000, past=(past, 1999 - past)), np.float32, rng), np.float32,
             "together")


@pytest.mark.parametrize("case", _APART)
def test_what_one_dispatch_does_not_serve(case: str, rng: np.random.Generator) -> None:
    w = _APART[case]
    e = _of(w, np.float32, rng)
    with tuning.trial(EveryWork("together")) as tried:
        y = session(e.built, False, claim="all", strict=True).run(["y"], e.inputs)[0]
    assert not any("together" in names for names in tried.asked.values())
    np.testing.assert_allclose(y, e.y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("tokens", "past"), [(1, (4, 5)), (7, (-2, 0)), (2, (3,)), (2, (4,))])
def test_angles_of_short_and_of_long_texts_in_one_tensor(
    tokens: int, past: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Texts of at most five tokens have the angles of the first five rows."""
    w, offset = _Work(size=32, rows=12, pairs=16, past=past, tokens=tokens), 5
    short, long = ({name: rng.uniform(-1, 1, (w.rows, w.pairs)).astype(np.float32)
                    for name in ("cos", "sin")} for _ in range(2))
    both = {name: np.concatenate([short[name][:offset], long[name]]) for name in short}
    feed = {name: rng.standard_normal((len(past), tokens, heads * w.size), np.float32)
            for name, heads in (("q", w.heads), ("k", w.key_heads), ("v", w.key_heads))}
    for name in ("past_k", "past_v"):
        feed[name] = rng.standard_normal((len(past), w.key_heads, w.rows, w.size), np.float32)
    totals = np.int32(past) + tokens
    feed |= {"lengths": totals - 1, "total": totals.max(keepdims=True)}
    ours = session(w.built(FLOAT, both), False, claim="all", strict=True,
                   multi_rotary_cache_concat_offset=offset).run(None, feed)
    for text, total in enumerate(totals):
        angles = short if total <= offset else long
        theirs = cpu(w.built(FLOAT, angles), False).run(None, feed)
        count = min(tokens, total)
        np.testing.assert_allclose(ours[0][text, :count], theirs[0][text, :count], rtol=1e-4,
                                   atol=1e-5)
        np.testing.assert_allclose(ours[1][text, :, :total], theirs[1][text, :, :total], rtol=1e-4,
                                   atol=1e-5)


def test_a_folder_says_where_the_angles_of_long_texts_begin(tmp_path: Path) -> None:
    """As onnxruntime-genai's builder writes it."""
    assert genai.folder_options(tmp_path) == {}
    options = {"webgpu": {"enableGraphCapture": "1", "multiRotaryCacheConcatOffset": "4096"}}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": {
        "session_options": {"provider_options": [options]}}}}))
    assert genai.folder_options(tmp_path) == {"multi_rotary_cache_concat_offset": "4096"}


def test_webgpus_name_of_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_current", identity.WEBGPU)
    assert identity.own_options({"multiRotaryCacheConcatOffset": "4096", "enableInt64": "1"}) == {
        "claim": "all", "multi_rotary_cache_concat_offset": "4096"}


def test_a_wrong_place_of_angles() -> None:
    with pytest.raises(dml.ValidationError, match="to be a number of rows, but got '-3'"):
        session(_Work().built(FLOAT, {}), multi_rotary_cache_concat_offset=-3)
