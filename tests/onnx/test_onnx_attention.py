"""ONNX's attention and recurrent networks against ONNX Runtime's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models are compared with ONNX Runtime's")

import onnx
from onnx import TensorProto, helper

import kompute_dml.onnx_backend as backend
from kompute_dml import tuning
from kompute_dml.onnx.row import MICROSOFT
from onnx_graphs import FLOAT, both, cpu, model, node, provider_works
from test_convolution import EveryWork

_B, _S, _L, _N, _H, _V, _P = 2, 3, 5, 2, 4, 4, 7
_MASKS, _FILTER = ("lengths", "bounds", "mask2", "mask3"), -2.0
_SHAPES = {
    "q": (_B, _S, _N * _H), "one": (_B, 1, _N * _H), "k": (_B, _L, _N * _H), "v": (_B, _L, _N * _V),
    "k4": (_B, _N, _L, _H), "v4": (_B, _N, _L, _V), "bias": (_N * (2 * _H + _V),),
    "lengths": (_B,), "mask2": (_B, _L), "mask3": (_B, _S, _L), "relative": (1, _N, _S, _L),
    "relative_all": (1, _N, _S, _L + _P), "past_k": (_B, _N, _P, _H), "past_v": (_B, _N, _P, _V),
    "none_k": (_B, _N, 0, _H), "none_v": (_B, _N, 0, _V),
    "x": (4, _B, _H), "w": (2, 3 * _V, _H), "r": (2, 3 * _V, _V), "b": (2, 6 * _V),
}


def _same(rng: np.random.Generator, op: str, inputs: str, outputs: dict[str, int], opset: int = 21,
          **more: Any) -> None:
    """Compare a node with ONNX Runtime. ``outputs`` are the outputs' dimension counts by name."""
    names = [n for n in dict.fromkeys(inputs.split()) if n != "-"]
    whole = ("lengths", "mask2", "mask3")
    given = {n: rng.integers(0, 4, _SHAPES[n]).astype(np.int32) if n in whole
             else rng.normal(0, 1, _SHAPES[n]).astype(np.float32) for n in names}
    built = model(
        [node(op, inputs, " ".join(outputs), **more)],
        [(n, TensorProto.INT32 if n in whole else FLOAT, _SHAPES[n]) for n in names],
        [(n, FLOAT, [f"{n}{d}" for d in range(rank)]) for n, rank in outputs.items()],
        opset=opset)
    expected = cpu(built).run(None, given)
    for result in both(built, given):
        for ours, theirs in zip(result, expected):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [
    "q k v", "q k v bias", "q k v - lengths", "q k v - mask2 relative", "q k v bias mask3",
    "q k4 v4",
])
def test_multi_head_attention(inputs: str, rng: np.random.Generator) -> None:
    _same(rng, "MultiHeadAttention", inputs, {"y": 3}, domain=MICROSOFT, num_heads=_N,
          mask_filter_value=-2.0)


def test_multi_head_attention_with_past(rng: np.random.Generator) -> None:
    _same(rng, "MultiHeadAttention", "q k v bias - relative_all past_k past_v",
          {"y": 3, "pk": 4, "pv": 4}, domain=MICROSOFT, num_heads=_N, scale=0.3)


@pytest.mark.parametrize("inputs, outputs", [
    ("q k v", {"y": 3}), ("q k v - lengths", {"y": 3}), ("q k v bias mask3 relative", {"y": 3}),
    ("k q q", {"y": 3}), ("k k k bias", {"y": 3, "pk": 4, "pv": 4}), ("k k k - mask2", {"y": 3}),
    ("k q q - - - past_k past_v", {"y": 3, "pk": 4, "pv": 4}),
    ("k k k bias - - past_k past_v", {"y": 3, "pk": 4, "pv": 4}),
    ("q k v - - relative_all past_k past_v", {"y": 3, "pk": 4, "pv": 4}),
    ("one k v", {"y": 3}), ("q k4 v4", {"y": 3}), ("one k4 v4", {"y": 3}),
    ("q k4 v4 - - relative", {"y": 3}),
    ("q k4 v4 bias - - past_k past_v", {"y": 3, "pk": 4, "pv": 4}),
])
def test_queries_that_see_earlier_keys(
    inputs: str, outputs: dict[str, int], rng: np.random.Generator
) -> None:
    """As many keys as queries, more, and fewer."""
    _same(rng, "MultiHeadAttention", inputs, outputs, domain=MICROSOFT, num_heads=_N,
          mask_filter_value=-2.0, unidirectional=1)


def test_keys_by_head_after_past_ones(rng: np.random.Generator) -> None:
    _same(rng, "MultiHeadAttention", "q k4 v4 bias - relative_all past_k past_v",
          {"y": 3, "pk": 4, "pv": 4}, domain=MICROSOFT, num_heads=_N)


# Stacks of queries, keys and values, which ONNX Runtime's CPU provider refuses


def _exact(given: dict[str, np.ndarray], causal: int) -> list[np.ndarray]:
    """MultiHeadAttention in float64, with queries, keys and values by token."""
    x = {n: t if t.dtype == np.int32 else t.astype(float) for n, t in given.items()}
    biases = np.split(x.get("bias", np.zeros(3 * _N * _H)), 3)
    q, k, v = ((x[n] + b).reshape(*x[n].shape[:2], _N, _H).transpose(0, 2, 1, 3)
               for n, b in zip("qkv", biases))
    before = x["past_k"].shape[2] if "past_k" in x else 0
    if before:
        k, v = (np.concatenate([x[f"past_{n}"], t], 2) for n, t in (("k", k), ("v", v)))
    keys = np.arange(k.shape[2])
    scores = q @ k.swapaxes(2, 3) / np.sqrt(_H) + x.get("relative", 0.0)
    for mask in (x[n] for n in _MASKS if n in x):
        seen = keys < mask[:len(q), None] if mask.ndim == 1 else mask
        scores += np.where(seen.reshape(len(q), 1, -1, len(keys)), 0, _FILTER)
    if causal:  # the last query sees all
        scores[:, :, :-1][:, :, keys > before + np.arange(q.shape[2] - 1)[:, None]] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    y = powers / powers.sum(-1, keepdims=True) @ v
    return [y.transpose(0, 2, 1, 3).reshape(*given["q"].shape), k, v]


def _node_of(inputs: str, kind: int, causal: int) -> Any:
    """A model of one node. All sizes are unknown to it."""
    ranks = {"bias": 1, "lengths": 1, "bounds": 1, "mask2": 2, "relative": 4, "past_k": 4,
             "past_v": 4, "qkv": 5, "kv": 5}
    outputs = {"y": 3, "pk": 4, "pv": 4} if "past" in inputs else {"y": 3}
    return model(
        [node("MultiHeadAttention", inputs, " ".join(outputs), MICROSOFT, num_heads=_N,
              mask_filter_value=_FILTER, unidirectional=causal)],
        [(n, TensorProto.INT32 if n in _MASKS else kind,
          [f"{n}{i}" for i in range(ranks.get(n, 3))]) for n in inputs.split() if n != "-"],
        [(n, kind, [f"{n}{i}" for i in range(rank)]) for n, rank in outputs.items()])


def _inputs_of(
    rng: np.random.Generator, names: str, dtype: type, batches: int, queries: int, new: int
) -> dict[str, np.ndarray]:
    """Queries, keys and values by token, and what ``names`` has besides."""
    total = new + _P * ("past" in names)
    starts = [np.arange(batches + 1) * n for n in (queries, total)]
    lengths = rng.integers(1, total + 1, batches)
    whole = {"lengths": lengths, "bounds": np.concatenate([lengths, *starts]),
             "mask2": rng.integers(0, 2, (batches, total)),
             "mask3": rng.integers(0, 2, (batches, queries, total))}
    shapes = {"q": (batches, queries, _N * _H), "k": (batches, new, _N * _H),
              "v": (batches, new, _N * _H), "bias": (3 * _N * _H,),
              "relative": (1, _N, queries, total), "past_k": (batches, _N, _P, _H),
              "past_v": (batches, _N, _P, _H)}
    return {n: (whole[n].astype(np.int32) if n in whole
                else rng.normal(0, 1, shapes[n]).astype(dtype))
            for n in ["q", "k", "v", *names.split()] if n != "-"}


@pytest.mark.parametrize("causal", [0, 1], ids=["all", "causal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("more", [
    "", "bias", "- lengths", "bias bounds", "- mask2", "bias mask3 relative",
    "bias mask2 relative past_k past_v", "- - - past_k past_v"])
@pytest.mark.parametrize("stack", ["qkv", "kv"])
def test_stacks(stack: str, more: str, dtype: type, causal: int, rng: np.random.Generator) -> None:
    """Against float64, and against the CPU provider with the parts of the stack. One session takes
    two sets of sizes."""
    kind = FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    built = _node_of(f"{'qkv - -' if stack == 'qkv' else 'q kv -'} {more}", kind, causal)
    runs: list[Callable[[dict[str, np.ndarray]], Any]] = [lambda x: backend.run_model(built, x)]
    if provider_works:
        from provider_tools import session

        ours = session(built, claim="all", strict=True)
        runs.append(lambda x: ours.run(None, x))
    for batches, queries, new in ((_B, _S, _L), (1, 6, 4)):
        given = _inputs_of(rng, more, dtype, batches, new if stack == "qkv" else queries, new)
        expected = _exact(given, causal)
        parts = [given[n].reshape(batches, new, _N, _H) for n in "qkv" if n in stack]
        fed = {n: x for n, x in given.items() if n not in "qkv" or n not in stack}
        fed[stack] = np.stack(parts, 3)
        results = [(run(fed), 1e-5 if dtype is np.float32 else 4e-3) for run in runs]
        wide = {n: x if n in _MASKS else x.astype(np.float32) for n, x in given.items()}
        apart = cpu(_node_of(f"q k v {more}", FLOAT, causal))
        results.append((apart.run(None, wide), 1e-5))
        for result, bound in results:
            for got, wanted in zip(result, expected):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("op, inputs, more", [
    ("MultiHeadAttention", "q k v - - - none_k none_v", {"domain": MICROSOFT, "num_heads": _N}),
    ("Attention", "q k v - none_k none_v", {
        "opset": 23, "q_num_heads": _N, "kv_num_heads": _N, "is_causal": 1}),
])
def test_a_cache_that_is_still_empty(
    op: str, inputs: str, more: dict[str, Any], rng: np.random.Generator
) -> None:
    _same(rng, op, inputs, {"y": 3, "pk": 4, "pv": 4}, **more)


@pytest.mark.parametrize("queries, dtype", [
    (1, np.float32), (4, np.float32),
    pytest.param(70, np.float16, marks=pytest.mark.slow)])
def test_caches_with_fewer_rows_than_queries(
    queries: int, dtype: type, rng: np.random.Generator
) -> None:
    """The last query sees all rows, each before it one less: so the first ones see none, and are 0
    with every kernel."""
    filled = np.array([0, 1, 3, 9, 90])
    q = rng.standard_normal((len(filled), 2, queries, 64)).astype(dtype)
    k, v = rng.standard_normal((2, len(filled), 2, 96, 64)).astype(dtype)
    given = {"q": q, "k": k, "v": v, "filled": filled}
    built = onnx.load_model_from_string(model(
        [node("Attention", "q k v - - - filled", "y", is_causal=1)],
        [(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
        [("y", helper.np_dtype_to_tensor_dtype(q.dtype), q.shape)], opset=24))
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2) / 8
    last = filled[:, None, None] - queries + np.arange(queries)[:, None]
    powers = np.where((np.arange(96) <= last)[:, None], np.exp(scores), 0)
    sums = powers.sum(-1, keepdims=True)
    expected = powers / np.where(sums, sums, 1) @ v.astype(np.float64)
    names = {""}  # what the device would choose, then each other kernel
    tried: set[str] = set()
    while names - tried:
        tried.add(name := (names - tried).pop())
        with tuning.trial(EveryWork(name)) as trial:
            (y,) = backend.prepare(built).run(given)
        names |= {n for key, asked in trial.asked.items() if "attention" in key for n in asked}
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 if dtype is np.float32 else 4e-3,
                                   err_msg=name)
    assert len(tried) > 1


@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}])
def test_a_mask_of_integers_is_added(more: dict[str, float], rng: np.random.Generator) -> None:
    given = {n: rng.normal(0, 1, _SHAPES["k"]).astype(np.float32) for n in "qkv"}
    given["mask"] = rng.integers(-2, 3, (_L, _L))
    built = model(
        [node("Attention", "q k v mask", "y", q_num_heads=_N, kv_num_heads=_N, **more)],
        [(n, TensorProto.INT64 if n == "mask" else FLOAT, x.shape) for n, x in given.items()],
        [("y", FLOAT, ["b", "s", "f"])], opset=23)
    (ours,), (theirs,) = backend.run_model(built, given), cpu(built).run(None, given)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_recurrent_activations(rng: np.random.Generator) -> None:
    _same(rng, "GRU", "x w r b", {"y": 4, "h": 3}, hidden_size=_V, direction="bidirectional",
          activations=["HardSigmoid", "LeakyRelu", "Sigmoid", "Tanh"],
          activation_alpha=[0.3, 0.1], activation_beta=[0.4])
