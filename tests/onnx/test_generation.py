"""Decoders token by token: one plan serves every length, and nothing copies a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.bench import decoders, generator  # noqa: E402
from kompute_dml.onnxruntime import capture  # noqa: E402
from kompute_dml.runtime.transfer import Transfer  # noqa: E402
from onnx_graphs import FLOAT, INT64, RELEASE, cpu, model, needs_provider, node  # noqa: E402
from provider_tools import last_kernel, session  # noqa: E402

pytestmark = needs_provider

INT32 = 6

SMALL = replace(decoders.SHAPES["tiny-q4"], width=64, heads=4, key_heads=2, head=16, inner=96,
                words=100, layers=1, positions=400)
_PROMPT = np.arange(10).reshape(2, 5) * 7
_CAPACITY = 320
captures = pytest.mark.skipif(RELEASE < [1, capture.SINCE],
                              reason="this ONNX Runtime captures no graphs of providers")


@pytest.fixture(scope="module", params=["4 bits", "FLOAT16"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
            ) -> Iterator[tuple[Path, decoders.Shape]]:
    shape = replace(SMALL, bits=4 if request.param == "4 bits" else 16)
    path = decoders.write_onnx(shape, tmp_path_factory.mktemp("decoder")).path
    held = generator.ours(path, shape)  # the others share its pipelines
    for batches in (1, 2):
        held.begin(_CAPACITY, batches)
        held.step(held.bind(1), np.zeros((batches, 1)), 8, 9)
    held.step(held.bind(5), _PROMPT % shape.words, 0, 5)
    yield path, shape
    del held


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each copy on the device."""
    found: list[int] = []
    copy = Transfer.copy

    def counted(self: Transfer, *arguments: Any) -> None:
        found.append(arguments[-1])
        copy(self, *arguments)

    monkeypatch.setattr(Transfer, "copy", counted)
    return found


def _prompted(one: generator.TokenGenerator, capacity: int, ids: np.ndarray, **more: Any
              ) -> tuple[generator.TokenGeneratorBinding, np.ndarray]:
    """A binding for the tokens after a prompt, and the prompt's logits."""
    one.begin(capacity, len(ids))
    first = one.step(one.bind(ids.shape[1]), ids, 0, ids.shape[1]).copy()
    return one.bind(1, **more), first


def _close(ours: np.ndarray, theirs: np.ndarray) -> None:
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours / scale, theirs / scale, atol=4e-3)


ORDERS = {"up": range(8, 300, 9), "down": range(299, 8, -13), "random": None}


@pytest.mark.parametrize("order", ORDERS)
def test_one_plan_serves_every_length(
    written: tuple[Path, decoders.Shape], order: str, copies: list[int], rng: np.random.Generator
) -> None:
    path, shape = written
    ours, theirs = generator.ours(path, shape), generator.on_cpu(path, shape)
    lengths = ORDERS[order] or rng.permutation(np.arange(8, 300))[:24].tolist()
    bound = []
    for one in (ours, theirs):
        one.begin(_CAPACITY, seed=3)
        bound.append(one.bind(1))
    plans = last_kernel().region._plans
    for number, length in enumerate(lengths):
        ids = [[(7 * length) % shape.words]]
        _close(*(one.step(b, ids, length, length + 1) for one, b in zip((ours, theirs), bound)))
        if not number:
            (plan,) = plans.values()
            recording = plan._recording
            copies.clear()
    assert [*plans.values()] == [plan] and plan._recording is recording
    cache = ours.caches[0].numpy().nbytes
    assert not [n for n in copies if n >= cache]


def test_a_prompt_and_tokens_after_it(written: tuple[Path, decoders.Shape]) -> None:
    """Greedy generation of two texts of different lengths, on one plan for prompts and one for
    tokens."""
    path, shape = written
    ids = _PROMPT % shape.words
    logits: list[list[np.ndarray]] = []
    ours = generator.ours(path, shape)
    plans = last_kernel().region._plans
    for one in (ours, generator.on_cpu(path, shape)):
        one.begin(_CAPACITY, 2)
        found = [one.step(one.bind(5), ids, [0, -2], 5).copy()]  # the second is three tokens long
        bound = one.bind(1)
        for n in range(12):
            token = [[(5 * n) % shape.words], [(3 * n + 1) % shape.words]]
            found.append(one.step(bound, token, [5 + n, 3 + n], 6 + n).copy())
        logits.append(found)
    for number, pair in enumerate(zip(*logits)):
        _close(*(x[:1] if not number else x for x in pair))
    assert len(plans) == 2


@captures
def test_a_captured_graph_serves_every_length(
    written: tuple[Path, decoders.Shape], copies: list[int]
) -> None:
    path, shape = written
    theirs = generator.on_cpu(path, shape)
    ours = generator.ours(path, shape, enable_graph_capture=True)
    ids = _PROMPT % shape.words
    (bound, first), (other, expected) = (
        _prompted(ours, _CAPACITY, ids, graph=1, fixed=True), _prompted(theirs, _CAPACITY, ids))
    _close(first, expected)
    copies.clear()
    for n in range(20):
        token = [[(11 * n) % shape.words], [(3 * n) % shape.words]]
        _close(ours.step(bound, token, 5 + n), theirs.step(other, token, 5 + n, 6 + n))
    assert not [n for n in copies if n >= ours.caches[0].numpy().nbytes]


def test_caches_apart_are_not_overwritten(written: tuple[Path, decoders.Shape]) -> None:
    """Where past and present are two tensors, the past one keeps its values."""
    path, shape = written
    one = generator.ours(path, shape)
    one.begin(32, seed=5)
    before = [x.numpy().copy() for x in one.caches]
    past, one.caches = one.caches, [one.value(np.zeros_like(x)) for x in before]
    bound = one.bind(1)
    for i, x in enumerate(past):
        bound.binding.bind_ortvalue_input(f"past.{i // 2}.{('key', 'value')[i % 2]}", x)
    for _ in range(2):
        one.step(bound, [[3]], 10, 11)
        for x, values, present in zip(past, before, one.caches):
            np.testing.assert_array_equal(x.numpy(), values)
            np.testing.assert_array_equal(present.numpy()[:, :, :10], values[:, :, :10])
            assert (present.numpy()[:, :, 10] != values[:, :, 10]).any()


def test_caches_that_are_gone_are_given_back(written: tuple[Path, decoders.Shape]) -> None:
    path, shape = written
    one, used = generator.ours(path, shape), []
    for _ in range(8):
        one.begin(32)
        bound = one.bind(1)
        one.step(bound, [[3]], 4, 5)
        used.append(last_kernel().region.device.memory_used)
        del bound
    assert used[-1] <= max(used[:3])
    assert len([*last_kernel().region._plans.values()][-1]._recordings) <= 3


@pytest.mark.parametrize("length", [-1, 32, 10**6, 2**31 - 1])
def test_a_length_beyond_the_cache_is_an_error(
    written: tuple[Path, decoders.Shape], length: int
) -> None:
    path, shape = written
    one = generator.ours(path, shape)
    one.begin(32)
    bound = one.bind(1)
    bound.lengths.update_inplace(np.array([length], np.int32))
    bound.binding.bind_cpu_input("total_sequence_length", np.array(12, np.int32))
    with pytest.raises(Exception, match=r"seqlens_k to be in \[0, 32\), the caches' rows, but got"):
        one.session.run_with_iobinding(bound.binding, bound.options)


@pytest.mark.parametrize("rows", [31, 33])
def test_caches_of_two_sizes_are_an_error(
    written: tuple[Path, decoders.Shape], rows: int
) -> None:
    path, shape = written
    one = generator.ours(path, shape)
    one.begin(32)
    bound = one.bind(1)
    other = np.zeros((1, shape.key_heads, rows, shape.head), one.caches[1].numpy().dtype)
    bound.binding.bind_ortvalue_input("past.0.value", one.value(other))
    with pytest.raises(Exception, match=f"32.*{rows}"):
        one.step(bound, [[3]], 8, 9)


@pytest.mark.parametrize("word", [SMALL.words, -SMALL.words - 1, 2**40])
def test_a_token_that_is_none_is_an_error(
    written: tuple[Path, decoders.Shape], word: int
) -> None:
    path, shape = written
    one = generator.ours(path, shape)
    one.begin(32)
    with pytest.raises(Exception, match=rf"\[-{SMALL.words}, {SMALL.words}\).* but got {word}"):
        one.step(one.bind(1), [[word]], 8, 9)
    assert np.isfinite(one.step(one.bind(1), [[3]], 8, 9)).all()


# TensorScatter and ONNX's Attention

_ROWS, _HEADS, _KEY_HEADS, _SIZE = 24, 4, 2, 8


def _scattered(length: int, mask: bool, cap: float) -> bytes:
    """New keys and values go to caches that attention reads."""
    names = "past_k past_v k v places filled"
    caches = [2, _KEY_HEADS, _ROWS, _SIZE]
    fresh = [2, _KEY_HEADS, length, _SIZE]
    infos = [(n, FLOAT, caches if n.startswith("past") else fresh) for n in names.split()[:4]]
    infos += [("q", FLOAT, [2, _HEADS, length, _SIZE])]
    infos += [(n, INT64, [2]) for n in ("places", "filled")]
    if mask:
        infos.append(("mask", FLOAT, [1, 1, length, _ROWS]))
    nodes = [node("TensorScatter", f"past_{n} {n} places", f"present_{n}", axis=2) for n in "kv"]
    nodes.append(node("Attention", f"q present_k present_v {'mask' if mask else '-'} - - filled",
                      "y", is_causal=1, softcap=cap))
    outputs = [("y", FLOAT, infos[4][2]), *((f"present_{n}", FLOAT, caches) for n in "kv")]
    return model(nodes, infos, outputs, opset=24)


@pytest.mark.parametrize(("length", "mask", "cap"), [
    (1, False, 0.0), (3, True, 0.0), (1, False, 0.5), (3, True, 0.5)])
def test_a_scatter_and_attention_share_caches(
    length: int, mask: bool, cap: float, rng: np.random.Generator, copies: list[int]
) -> None:
    built = _scattered(length, mask, cap)
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    kernel = last_kernel()
    info = kompute.devices()[0].memory_info(ort.OrtDeviceMemoryType.DEFAULT)

    def on_device(x: np.ndarray) -> Any:
        value = ort.OrtValue.ortvalue_from_shape_and_type(x.shape, x.dtype, memory_info=info)
        value.update_inplace(x)
        return value

    sizes = (2, _KEY_HEADS, _ROWS, _SIZE)
    past = {f"past_{n}": rng.standard_normal(sizes, np.float32) for n in "kv"}
    caches = {n: on_device(x) for n, x in past.items()}
    for step in range(6):
        places = np.array([step * length, step * length + 2], np.int64)
        given = {n: rng.standard_normal((2, h, length, _SIZE), np.float32)
                 for n, h in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        given |= {"places": places, "filled": places + length}
        if mask:
            given["mask"] = rng.standard_normal((1, 1, length, _ROWS), np.float32)
        expected = theirs.run(None, {**given, **past})
        past = dict(zip(past, expected[1:]))
        bound = ours.io_binding()
        for name, x in given.items():
            bound.bind_cpu_input(name, x)
        for name, x in caches.items():
            bound.bind_ortvalue_input(name, x)
            bound.bind_ortvalue_output(name.replace("past", "present"), x)
        bound.bind_output("y")
        ours.run_with_iobinding(bound)
        np.testing.assert_allclose(bound.get_outputs()[-1].numpy(), expected[0], rtol=1e-4,
                                   atol=1e-5)
        for name, x in caches.items():
            np.testing.assert_array_equal(x.numpy(), past[name])
    (plan,) = kernel.region._plans.values()
    assert plan.operators[:2] == ["CAST", "APPEND"] and not set(plan.operators) & {
        "SCATTER", "GEMM"}
    assert not [n for n in copies if n >= past["past_k"].nbytes]


# Lengths and masks that nobody should give


@pytest.mark.parametrize(("tokens", "rotates"), [(2, False), (1, True)])
def test_ten_thousand_lengths_read_and_write_nothing_else(
    tokens: int, rotates: bool, rng: np.random.Generator
) -> None:
    """Lengths that only the device knows, of all kinds, each of a batch of its own. A row goes to
    its own cache or nowhere, and only a batch's own rows are read: the others are not numbers.
    Angles of 0 rotate nothing."""
    batches, capacity, size = 2500, 64, 16  # few rows, which a small kernel does
    turns = (capacity, size // 2)
    built = model(
        [node("Add", "given zero", "lengths"),
         node("GroupQueryAttention",
              "q k v past_k past_v lengths total" + " cos sin" * rotates, "y present_k present_v",
              "com.microsoft", num_heads=2, kv_num_heads=1, do_rotary=int(rotates))],
        [("given", INT32, [batches]), ("q", FLOAT, [batches, tokens, 2 * size]),
         *((n, FLOAT, [batches, tokens, size]) for n in "kv"),
         *((f"past_{n}", FLOAT, [batches, 1, capacity, size]) for n in "kv")],
        [("y", FLOAT, None), ("present_k", FLOAT, None), ("present_v", FLOAT, None)],
        {"zero": np.int32(0), "total": np.int32(capacity), **(
            {"cos": np.ones(turns, np.float32), "sin": np.zeros(turns, np.float32)}
            if rotates else {})})
    made = session(built, False, claim="all", strict=True)
    for _ in range(4):
        lengths = np.where(rng.random(batches) < 0.7, rng.integers(-3, capacity + 3, batches),
                           rng.integers(-2**31, 2**31, batches)).astype(np.int32)
        past = np.maximum(lengths.astype(np.int64) - tokens + 1, 0)
        fresh = {n: rng.standard_normal((batches, tokens, (n == "q" and 2 * size) or size),
                                        np.float32) for n in "qkv"}
        caches = {n: np.full((batches, 1, capacity, size), np.nan, np.float32) for n in "kv"}
        seen = np.arange(capacity)[None] < np.minimum(past, capacity)[:, None]
        for x in caches.values():
            x[seen[:, None]] = rng.standard_normal((int(seen.sum()), size))
        y, *present = made.run(None, {
            "given": lengths, **fresh, **{f"past_{n}": x for n, x in caches.items()}})
        for n, x in zip("kv", present):
            rows = past[:, None] + np.arange(tokens)
            batch, token = np.nonzero(rows < capacity)
            want = caches[n].copy()
            want[batch, 0, rows[batch, token]] = fresh[n][batch, token]
            known = np.arange(capacity)[None] < np.minimum(past + tokens, capacity)[:, None]
            np.testing.assert_array_equal(x[:, 0][known], want[:, 0][known])
        assert np.isfinite(y).all()


def test_ten_thousand_places_write_and_show_nothing_else(rng: np.random.Generator) -> None:
    """The same for TensorScatter and ONNX's Attention: places and lengths that only the device
    knows, each at odds with the other."""
    batches, capacity, size = 2500, 64, 16
    cache, fresh = [batches, 1, capacity, size], [batches, 1, 1, size]
    built = model(
        [node("Add", "given zero", "places"), node("Add", "counted zero", "filled"),
         *(node("TensorScatter", f"past_{n} {n} places", f"present_{n}", axis=2) for n in "kv"),
         node("Attention", "q present_k present_v - - - filled", "y", is_causal=1)],
        [*((n, INT64, [batches]) for n in ("given", "counted")),
         *((n, FLOAT, fresh) for n in "qkv"), *((f"past_{n}", FLOAT, cache) for n in "kv")],
        [("y", FLOAT, fresh), *((f"present_{n}", FLOAT, cache) for n in "kv")],
        {"zero": np.int64(0)}, opset=24)
    made = session(built, False, claim="all", strict=True)
    own = np.arange(batches)
    for _ in range(4):
        places, filled = (np.where(
            rng.random(batches) < 0.7, rng.integers(-3, capacity + 3, batches),
            rng.integers(-2**31, 2**31, batches)) for _ in range(2))
        new = {n: rng.standard_normal(fresh, np.float32) for n in "qkv"}
        caches = {n: np.full(cache, np.nan, np.float32) for n in "kv"}
        seen = np.arange(capacity) < np.clip(filled, 1, capacity)[:, None]
        for x in caches.values():
            x[seen[:, None]] = rng.standard_normal((int(seen.sum()), size))
        y, *present = made.run(None, {"given": places, "counted": filled, **new, **{
            f"past_{n}": x for n, x in caches.items()}})
        fits = (places >= 0) & (places < capacity)
        for n, x in zip("kv", present):
            want = caches[n].copy()
            want[own[fits], 0, places[fits]] = new[n][fits, 0, 0]
            kept = np.ones((batches, capacity), bool)
            kept[own[places < 0], 0] = False  # which row a negative place is, nobody says
            np.testing.assert_array_equal(x[:, 0][kept], want[:, 0][kept])
        assert np.isfinite(y).all()


def test_ten_thousand_masks_show_the_keys_that_are_there(rng: np.random.Generator) -> None:
    """Masks that say how many keys a text has, of all kinds: more than there are, or fewer than
    none. Each text is one of a batch, and sees none of another's."""
    texts, keys, size = 2500, 64, 16  # for the same kernel
    built = model(
        [node("Add", "given zero", "lengths"),
         node("MultiHeadAttention", "q k v - lengths", "y", "com.microsoft", num_heads=1)],
        [("given", INT32, [texts]), ("q", FLOAT, [texts, 1, size]),
         *((n, FLOAT, [texts, keys, size]) for n in "kv")], [("y", FLOAT, None)],
        {"zero": np.int32(0)})
    made = session(built, False, claim="all", strict=True)
    k, v = (rng.standard_normal((texts, keys, size), np.float32) for _ in "kv")
    for _ in range(4):
        lengths = np.where(rng.random(texts) < 0.7, rng.integers(-3, keys + 3, texts),
                           rng.integers(-2**31, 2**31, texts)).astype(np.int32)
        q = rng.standard_normal((texts, 1, size), np.float32)
        (y,) = made.run(None, {"given": lengths, "q": q, "k": k, "v": v})
        scores = np.einsum("bqe,bke->bk", q, k) * size**-0.5
        scores[np.arange(keys) >= lengths[:, None]] = -np.inf
        some = lengths > 0
        shares = np.exp(scores[some] - scores[some].max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        expected = np.einsum("bk,bke->be", shares, v[some])
        np.testing.assert_allclose(y[some, 0], expected, rtol=1e-3, atol=1e-4)
        assert np.isfinite(y).all()
