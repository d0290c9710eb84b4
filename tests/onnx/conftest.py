"""Shared by the tests of ONNX."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def dense(rng: np.random.Generator) -> bytes:
    """A quantized dense layer, x [n, K] -> y [n, N]."""
    from provider_tools import dense_layer  # needs ONNX Runtime

    return dense_layer(rng)
