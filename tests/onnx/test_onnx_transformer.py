"""ONNX's attention with projections, caches and rotary embeddings, and its random numbers."""

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

_B, _S, _P, _N, _G, _H, _D = 2, 3, 5, 4, 2, 16, 24
_TYPES = {"float32": FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
          "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float16": TensorProto.FLOAT16}


def _same(op: str, inputs: str, given: dict[str, np.ndarray], outputs: dict[str, int],
          rows: int | None = None, constants: tuple[str, ...] = (), **more: Any) -> None:
    """Only the first ``rows`` of caches are compared. The others are undefined."""
    fed = {n: v for n, v in given.items() if n not in constants}
    built = model(
        [node(op, inputs, " ".join(outputs), domain=MICROSOFT, **more)],
        [(n, _TYPES[v.dtype.name], v.shape) for n, v in fed.items()],
        [(n, FLOAT, [f"{n}{d}" for d in range(rank)]) for n, rank in outputs.items()],
        {n: given[n] for n in constants})
    expected = cpu(built).run(None, fed)
    for result in both(built, fed):
        for ours, theirs in zip(result, expected):
            assert ours.shape == theirs.shape
            if ours.ndim == 4 and rows is not None:
                ours, theirs = ours[:, :, :rows], theirs[:, :, :rows]
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0, 1, shape).astype(np.float32)


@pytest.mark.parametrize(("inputs", "more"), [
    ("x w b", {}),
    ("x w b - past", {"unidirectional": 1}),
    ("x w b - none", {"unidirectional": 1}),
    ("x w b ends", {"mask_filter_value": -3.0}),
    ("x w b ends_starts", {}),
    ("x w b mask past", {"scale": 0.3}),
    ("x w b - - added", {}),
    ("x w b", {"qkv_hidden_sizes": [32, 32, 64]}),
])
def test_attention(inputs: str, more: dict[str, Any], rng: np.random.Generator) -> None:
    before = _P if "past" in inputs else 0
    width = sum(more.get("qkv_hidden_sizes", [_N * _H] * 3))
    every = {
        "x": _numbers(rng, _B, _S, _D), "w": _numbers(rng, _D, width) / 5,
        "b": _numbers(rng, width), "past": _numbers(rng, 2, _B, _N, _P, _H),
        "none": _numbers(rng, 2, _B, _N, 0, _H),
        "ends": np.array([2, 3], np.int32), "ends_starts": np.array([2, 3, 1, 0], np.int32),
        "mask": rng.integers(0, 2, (_B, before + _S)).astype(np.int32),
        "added": _numbers(rng, 1, _N, _S, before + _S)}
    outputs = {"y": 3} if "qkv_hidden_sizes" in more else {"y": 3, "present": 5}
    _same("Attention", inputs, {n: every[n] for n in inputs.split() if n != "-"}, outputs,
          num_heads=_N, **more)


@pytest.mark.parametrize("causal", [0, 1])
def test_quantized_attention(causal: int, rng: np.random.Generator) -> None:
    width = 3 * _N * _H
    given = {
        "x": rng.integers(0, 256, (_B, _S, _D)).astype(np.uint8),
        "w": rng.integers(-64, 64, (_D, width)).astype(np.int8), "b": _numbers(rng, width),
        "xs": np.float32(0.02), "ws": np.full(width, 0.01, np.float32),
        "xz": np.uint8(120), "wz": np.zeros(width, np.int8)}
    _same("QAttention", "x w b xs ws - xz wz", {n: np.asarray(v) for n, v in given.items()},
          {"y": 3}, num_heads=_N, unidirectional=causal, constants=("w", "b", "ws", "wz"))


@pytest.mark.parametrize(("length", "packed", "rotary", "more"), [
    (1, False, 1, {}), (_S, False, 0, {}), (_S, True, 1, {}),
    (1, False, 1, {"local_window_size": 2}), (_S, False, 0, {"local_window_size": 2}),
    (1, True, 1, {"softcap": 2.0}),
    (_S, False, 0, {"softcap": 2.0, "local_window_size": 2}),
])
def test_grouped_attention(length: int, packed: bool, rotary: int, more: dict[str, Any],
                           rng: np.random.Generator) -> None:
    """One token, or several at the beginning, with caches of a larger capacity. A window counts
    the query's own key."""
    before = _P if length == 1 else 0
    capacity = before + length + 4
    q, kv = _N * _H, _G * _H
    given = {"q": _numbers(rng, _B, length, q + 2 * kv if packed else q)}
    if not packed:
        given |= {n: _numbers(rng, _B, length, kv) for n in ("k", "v")}
    given |= {"pk": _numbers(rng, _B, _G, capacity, _H), "pv": _numbers(rng, _B, _G, capacity, _H),
              "ends": np.full(_B, before + length - 1, np.int32),
              "total": np.array(before + length, np.int32)}
    names = f"q {'- -' if packed else 'k v'} pk pv ends total"
    if rotary:
        angles = rng.uniform(0, 6, (capacity, _H // 2)).astype(np.float32)
        given |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        names += " cos sin"
    _same("GroupQueryAttention", names, given, {"y": 3, "k2": 4, "v2": 4}, before + length,
          ("total",), num_heads=_N, kv_num_heads=_G, do_rotary=rotary, rotary_interleaved=0, **more)


@pytest.mark.parametrize(("interleaved", "size", "ids"), [
    (1, 16, False), (0, 32, False), (0, 16, True)])
@pytest.mark.parametrize("length", [1, _S])
def test_grouped_attention_turns_keys_where_they_go(
    length: int, interleaved: int, size: int, ids: bool, rng: np.random.Generator
) -> None:
    """Pairs of neighbours, 16 elements of each head of 32, and positions that are given."""
    before, capacity = (_P if length == 1 else 0), 12
    angles = rng.uniform(0, 6, (capacity, 8)).astype(np.float32)
    given = {"q": _numbers(rng, _B, length, _N * size),
             **{n: _numbers(rng, _B, length, _G * size) for n in ("k", "v")},
             **{n: _numbers(rng, _B, _G, capacity, size) for n in ("pk", "pv")},
             "ends": np.full(_B, before + length - 1, np.int32),
             "total": np.array(before + length, np.int32),
             "cos": np.cos(angles), "sin": np.sin(angles)}
    names = "q k v pk pv ends total cos sin"
    if ids:  # of a prompt, ONNX Runtime's CPU only reads the first one
        given["ids"] = np.tile(np.arange(3, 3 + length), (_B, 1))
        names += " ids"
    _same("GroupQueryAttention", names, given, {"y": 3, "k2": 4, "v2": 4}, before + length,
          ("total",), num_heads=_N, kv_num_heads=_G, do_rotary=1, rotary_interleaved=interleaved)


@pytest.mark.parametrize(("interleaved", "first"), [(0, True), (1, False)])
def test_rotary_embedding(interleaved: int, first: bool, rng: np.random.Generator) -> None:
    angles = rng.uniform(0, 6, (9, _H // 2)).astype(np.float32)
    ids = np.array([4]) if first else rng.integers(0, 9, (_B, _S))
    given = {"x": _numbers(rng, _B, _S, _N * _H), "ids": ids.astype(np.int64),
             "cos": np.cos(angles), "sin": np.sin(angles)}
    _same("RotaryEmbedding", "x ids cos sin", given, {"y": 3}, interleaved=interleaved)


@pytest.mark.parametrize(("op", "more", "mean", "deviation"), [
    ("RandomUniform", {"low": -1.0, "high": 3.0}, 1.0, 4 / 12**0.5),
    ("RandomNormal", {"mean": 2.0, "scale": 0.5}, 2.0, 0.5),
])
@pytest.mark.parametrize("like", [False, True])
def test_random_numbers(op: str, more: dict[str, float], mean: float, deviation: float, like: bool
                        ) -> None:
    """Moments are within 6 deviations of their estimates. Equal seeds give equal numbers."""
    shape, x = (40, 500), np.zeros((40, 500), np.float32)

    def run(seed: float) -> np.ndarray:
        made = node(op + "Like" * like, "x" if like else "", "y", seed=seed, **more,
                    **({} if like else {"shape": shape}))
        keep = [] if like else [node("Identity", "x", "z")]
        built = model([made, *keep], [("x", FLOAT, shape)], [
            ("y", FLOAT, shape), *([] if like else [("z", FLOAT, shape)])])
        return np.asarray(backend.run_model(built, {"x": x})[0])

    y = run(7.0)
    assert y.shape == shape
    assert abs(y.mean() - mean) < 6 * deviation / y.size**0.5
    assert abs(y.std() - deviation) < 6 * deviation / y.size**0.5
    if op == "RandomUniform":
        assert more["low"] <= y.min() and y.max() < more["high"]
    np.testing.assert_array_equal(run(7.0), y)
    assert (run(8.0) != y).mean() > 0.9
