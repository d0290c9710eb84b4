"""ONNX's attention and recurrent networks against ONNX Runtime's CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models are compared with ONNX Runtime's")

from onnx import TensorProto

import kompute_dml.onnx_backend as backend
from kompute_dml.onnx.row import MICROSOFT
from onnx_graphs import FLOAT, both, cpu, model, node

_B, _S, _L, _N, _H, _V, _P = 2, 3, 5, 2, 4, 4, 7
_SHAPES = {
    "q": (_B, _S, _N * _H), "k": (_B, _L, _N * _H), "v": (_B, _L, _N * _V),
    "k4": (_B, _N, _L, _H), "v4": (_B, _N, _L, _V), "bias": (_N * (2 * _H + _V),),
    "lengths": (_B,), "mask2": (_B, _L), "mask3": (_B, _S, _L), "relative": (1, _N, _S, _L),
    "relative_all": (1, _N, _S, _L + _P), "past_k": (_B, _N, _P, _H), "past_v": (_B, _N, _P, _V),
    "none_k": (_B, _N, 0, _H), "none_v": (_B, _N, 0, _V),
    "x": (4, _B, _H), "w": (2, 3 * _V, _H), "r": (2, 3 * _V, _V), "b": (2, 6 * _V),
}


def _same(rng: np.random.Generator, op: str, inputs: str, outputs: dict[str, int], opset: int = 21,
          **more: Any) -> None:
    """Compare a node with ONNX Runtime. ``outputs`` are the outputs' dimension counts by name."""
    names = [n for n in inputs.split() if n != "-"]
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


@pytest.mark.parametrize("op, inputs, more", [
    ("MultiHeadAttention", "q k v - - - none_k none_v", {"domain": MICROSOFT, "num_heads": _N}),
    ("Attention", "q k v - none_k none_v", {
        "opset": 23, "q_num_heads": _N, "kv_num_heads": _N, "is_causal": 1}),
])
def test_a_cache_that_is_still_empty(
    op: str, inputs: str, more: dict[str, Any], rng: np.random.Generator
) -> None:
    _same(rng, op, inputs, {"y": 3, "pk": 4, "pv": 4}, **more)


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
