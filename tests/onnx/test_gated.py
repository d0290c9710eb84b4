"""Gates of hybrid models and positions of pictures, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the models' helpers import it")

import kompute_dml.onnx_backend as backend
from kompute_dml.onnx.row import MICROSOFT
from onnx_graphs import model, node

types = pytest.mark.parametrize("dtype", [np.float32, np.float16])


def _run(op: str, outputs: int, fed: dict[str, np.ndarray], **attributes: Any) -> Any:
    first = next(iter(fed.values()))
    kind = onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
    names = [f"y{i}" for i in range(outputs)]
    built = model(
        [node(op, " ".join(fed), " ".join(names), MICROSOFT, **attributes)],
        [(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in fed.items()],
        [(n, kind, first.shape) for n in names])
    return backend.run_model(onnx.load_model_from_string(built), fed)


def _close(ours: np.ndarray, expected: np.ndarray) -> None:
    some = 1e-5 if ours.dtype == np.float32 else 2e-3
    np.testing.assert_allclose(ours, expected, rtol=some, atol=some)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.float32)))


@types
def test_a_sum_with_a_gate(dtype: Any, rng: np.random.Generator) -> None:
    x, y, gate = (rng.standard_normal((2, 3, n)).astype(dtype) for n in (8, 8, 1))
    (got,) = _run("GatedAdd", 1, {"x": x, "y": y, "gate": gate})
    _close(got, x + y * gate)


@types
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_a_norm_with_a_gate(dtype: Any, activation: str, rng: np.random.Generator) -> None:
    x, gate = (rng.standard_normal((2, 3, 24)).astype(dtype) for _ in range(2))
    scale = rng.standard_normal(8).astype(dtype)
    (got,) = _run("GatedRMSNorm", 1, {"x": x, "scale": scale, "gate": gate},
                  activation=activation, epsilon=0.01)
    groups = x.astype(np.float32).reshape(2, 3, 3, 8)
    normal = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + 0.01) * scale
    factor = _sigmoid(gate) * (gate if activation == "silu" else 1)
    _close(got, normal.reshape(x.shape) * factor)


@types
@pytest.mark.parametrize("learns", [False, True])
def test_gates_of_linear_attention(dtype: Any, learns: bool, rng: np.random.Generator) -> None:
    fed = {n: rng.standard_normal((2, 5, 4)).astype(dtype) for n in ("a", "b")}
    bias, scale = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
    given = {"a": fed["a"], "bias": bias, "scale": scale, **({"b": fed["b"]} if learns else {})}
    got = _run("LinearAttentionGate", 1 + learns, given)
    _close(got[0], np.log1p(np.exp(fed["a"].astype(np.float32) + bias)) * scale)
    if learns:
        _close(got[1], _sigmoid(fed["b"]))


@pytest.mark.parametrize(("layout", "kinds"), [
    (0, [0, 0, 0, 0, 1, 1, 2, 2]), (1, [0, 1, 2, 0, 1, 2, 0, 0])])
@pytest.mark.parametrize("by_head", [False, True])
def test_positions_of_pictures(
    layout: int, kinds: list[int], by_head: bool, rng: np.random.Generator
) -> None:
    """Each angle follows the time, the height or the width."""
    batches, length, heads, half = 2, 3, 2, 8
    x = rng.standard_normal((batches, length, heads, 2 * half)).astype(np.float32)
    ids = rng.integers(0, 20, (3, batches, length))
    angles = rng.uniform(-3, 3, (20, half)).astype(np.float32)
    fed = x.transpose(0, 2, 1, 3).copy() if by_head else x.reshape(batches, length, -1)
    (got,) = _run("MRotaryEmbedding", 1, {
        "x": fed, "ids": ids, "cos": np.cos(angles), "sin": np.sin(angles)},
        mrope_section=[4, 2, 2], mrope_layout=layout, num_heads=heads)
    at = np.stack([angles[ids[kind], i] for i, kind in enumerate(kinds)], -1)[:, :, None]
    low, high = x[..., :half], x[..., half:]
    turned = np.concatenate([low * np.cos(at) - high * np.sin(at),
                             high * np.cos(at) + low * np.sin(at)], -1)
    _close(got.transpose(0, 2, 1, 3) if by_head else got.reshape(x.shape), turned)
