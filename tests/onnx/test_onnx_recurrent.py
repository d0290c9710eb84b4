"""Recurrent networks with constant weights, as in models."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnx_backend as backend
from onnx_graphs import FLOAT, cpu, model, needs_provider, node
from provider_tools import session


@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("runs", ["backend", pytest.param("provider", marks=needs_provider)])
def test_weights_that_are_constants(
    op: str, gates: int, runs: str, rng: np.random.Generator
) -> None:
    """No input of a recurrent network may be OWNED_BY_DML, not even a large one. ONNX Runtime gives
    the provider an RNN with the default activations of two directions."""
    units, inputs = 32, 40
    weights = {
        "w": rng.normal(0, 0.2, (1, gates * units, inputs)).astype(np.float32),
        "r": rng.normal(0, 0.2, (1, gates * units, units)).astype(np.float32),
    }
    built = model([node(op, "x w r", "y h", hidden_size=units)], [("x", FLOAT, [3, 2, inputs])],
                  [("y", FLOAT, [3, 1, 2, units]), ("h", FLOAT, [1, 2, units])], weights)
    x = {"x": rng.standard_normal((3, 2, inputs)).astype(np.float32)}
    results = (backend.run_model(built, x) if runs == "backend"
               else session(built, False, claim="all", strict=True).run(None, x))
    for ours, theirs in zip(results, cpu(built).run(None, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@needs_provider
@pytest.mark.parametrize("first, second", [
    ("Affine", "HardSigmoid"), ("ScaledTanh", "Affine"), ("HardSigmoid", "ScaledTanh"),
    ("LeakyRelu", "Elu"), ("ThresholdedRelu", "Softsign"), ("Softplus", "Relu")])
def test_activations_take_their_attributes_in_order(
    first: str, second: str, rng: np.random.Generator
) -> None:
    """An activation that has no alpha or beta leaves those lists as they are."""
    lists = {"Affine": (0.3, 0.4), "HardSigmoid": (0.15, 0.6), "ScaledTanh": (0.7, 0.8),
             "LeakyRelu": (0.05,), "Elu": (0.5,), "ThresholdedRelu": (0.25,)}
    attributes = {f"activation_{n}": [lists[a][i] for a in (first, second)
                                      if len(lists.get(a, ())) > i]
                  for i, n in enumerate(("alpha", "beta"))}
    weights = {"w": rng.normal(0, 0.5, (2, 4, 3)).astype(np.float32),
               "r": rng.normal(0, 0.3, (2, 4, 4)).astype(np.float32)}
    built = model(
        [node("RNN", "x w r", "y", hidden_size=4, direction="bidirectional",
              activations=[first, second], **{k: v for k, v in attributes.items() if v})],
        [("x", FLOAT, [5, 2, 3])], [("y", FLOAT, [5, 2, 2, 4])], weights)
    x = {"x": rng.standard_normal((5, 2, 3)).astype(np.float32)}
    (ours,) = session(built, False, claim="all", strict=True).run(None, x)
    np.testing.assert_allclose(ours, cpu(built, False).run(None, x)[0], rtol=1e-5, atol=1e-5)
