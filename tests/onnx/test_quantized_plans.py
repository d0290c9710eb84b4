"""The dispatches of an encoder that ONNX Runtime has quantized, activations as they run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="results are compared with ONNX Runtime's")

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
from onnx_graphs import cpu, encoder, exact_cpu


@exact_cpu
def test_a_layer_of_an_encoder(device: dml.Device, rng: np.random.Generator) -> None:
    """Four ranges and quantizations, four products, attention, GELU and two normalizations."""
    built = encoder(rng, layers=1)
    prepared = backend.prepare(onnx.load_model_from_string(built), "VULKAN")
    x = rng.standard_normal((1, 8, 64)).astype(np.float32)
    plan = prepared._region.plan([x])
    assert len(plan.variants) == 4 * 2 + 4 + 1 + 1 + 2, plan.operators
    (got,), (wanted,) = prepared.run([x]), cpu(built, False).run(None, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2**-8 * np.abs(wanted).max())
