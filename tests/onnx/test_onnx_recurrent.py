"""Recurrent networks with constant weights, as in models."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models are compared with ONNX Runtime's")

import kompute_dml.onnx_backend as backend
from onnx_graphs import FLOAT, cpu, model, node


@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_weights_that_are_constants(op: str, gates: int, rng: np.random.Generator) -> None:
    """No input of a recurrent network may be OWNED_BY_DML, not even a large one."""
    units, inputs = 32, 40
    weights = {
        "w": rng.normal(0, 0.2, (1, gates * units, inputs)).astype(np.float32),
        "r": rng.normal(0, 0.2, (1, gates * units, units)).astype(np.float32),
    }
    built = model([node(op, "x w r", "y h", hidden_size=units)], [("x", FLOAT, [3, 2, inputs])],
                  [("y", FLOAT, [3, 1, 2, units]), ("h", FLOAT, [1, 2, units])], weights)
    x = {"x": rng.standard_normal((3, 2, inputs)).astype(np.float32)}
    for ours, theirs in zip(backend.run_model(built, x), cpu(built).run(None, x)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
