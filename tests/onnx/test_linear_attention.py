"""LinearAttention takes as many dispatches for any number of tokens."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the models are built beside ONNX Runtime's")

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
from kompute_dml.onnx.row import MICROSOFT
from kompute_dml.runtime import traits
from kompute_dml.validation_cache import ValidationCache
from onnx_graphs import FLOAT, model, node

_BATCHES, _HEADS, _GROUPS, _SIZE, _WIDTH = 2, 2, 2, 8, 20


def _given(tokens: int, rule: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    def numbers(*sizes: int) -> np.ndarray:
        return rng.standard_normal((_BATCHES, tokens, *sizes)).astype(np.float32)

    keys = numbers(_HEADS, _SIZE)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    given = {"q": numbers(_HEADS * _GROUPS * _SIZE), "k": keys.reshape(_BATCHES, tokens, -1),
             "v": numbers(_HEADS * _WIDTH), "s": rng.standard_normal(
                 (_BATCHES, _HEADS, _SIZE, _WIDTH)).astype(np.float32)}
    if "gated" in rule:
        given["d"] = -0.1 * np.abs(numbers(_HEADS))
    if "delta" in rule:
        given["b"] = 1 / (1 + np.exp(-numbers(_HEADS)))
    return given


def _wanted(given: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One token after the other, in float64."""
    tokens = given["q"].shape[1]
    q, k, v = (given[n].astype(np.float64).reshape(_BATCHES, tokens, heads, -1) for n, heads in (
        ("q", _HEADS * _GROUPS), ("k", _HEADS), ("v", _HEADS)))
    state, results = given["s"].astype(np.float64), []
    for t in range(tokens):
        if "d" in given:
            state = state * np.exp(given["d"][:, t, :, None, None].astype(np.float64))
        update = v[:, t]
        if "b" in given:
            old = np.einsum("bhk,bhkv->bhv", k[:, t], state)
            update = given["b"][:, t, :, None] * (update - old)
        state = state + k[:, t, :, :, None] * update[:, :, None]
        results.append(np.einsum("bhk,bhkv->bhv", q[:, t], state.repeat(_GROUPS, 1)))
    return np.stack(results, 1).reshape(_BATCHES, tokens, -1) * _SIZE ** -0.5, state


def _run(device: dml.Device, rule: str, given: dict[str, np.ndarray]) -> tuple[int, list]:
    names = f"q k v s {'d' if 'd' in given else '-'}{' b' if 'b' in given else ''}"
    built = model(
        [node("LinearAttention", names, "y left", domain=MICROSOFT, update_rule=rule,
              q_num_heads=_HEADS * _GROUPS, kv_num_heads=_HEADS)],
        [(n, FLOAT, x.shape) for n, x in given.items()],
        [("y", FLOAT, ["a", "b", "c"]), ("left", FLOAT, ["d", "e", "f", "g"])])
    prepared = backend.prepare(onnx.load_model_from_string(built), "VULKAN")
    plan = prepared._region.plan([given[n] for n in given])
    return len(plan.variants), list(prepared.run(given))


@pytest.mark.parametrize("rule", ["linear", "gated_delta"])
def test_dispatches_do_not_grow_with_tokens(
    rule: str, device: dml.Device, rng: np.random.Generator
) -> None:
    counts = []  # of a chunk and a part, and of ten chunks and a part
    for tokens in (40, 350):
        given = _given(tokens, rule, rng)
        count, results = _run(device, rule, given)
        counts.append(count)
        for got, wanted in zip(results, _wanted(given)):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert counts[0] == counts[1]


def test_long_sequences_on_a_cpu(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lavapipe ends long loops, so that a dispatch goes on with the state of the one before."""
    if not device.target.traits.is_cpu:
        pytest.skip("only CPUs count passes")
    given = _given(100, "gated_delta", rng)
    before, _ = _run(device, "gated_delta", given)
    monkeypatch.setattr(traits, "LEAST_LOOP_PASSES", 64)
    monkeypatch.setattr(device, "validation_cache", ValidationCache())  # else it is a known plan
    count, results = _run(device, "gated_delta", given)
    assert count == before + 3
    for got, wanted in zip(results, _wanted(given)):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
