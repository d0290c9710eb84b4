"""Shared by the tests of the execution provider."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml.onnxruntime as kompute
from kompute_dml.onnxruntime import capi
from kompute_dml.onnxruntime.kernel import RegionKernel
from onnx_graphs import FLOAT, model, options, quantized_dense

NAME = kompute.get_ep_name()
K, N = 40, 24
"""K and N of the dense layer."""


def session(model: Any, optimize: bool = True, **given: Any) -> Any:
    return kompute.session(model, session_options=options(optimize), **given)


def last_kernel() -> RegionKernel:
    """The kernel of the newest session."""
    return [k for k in capi.alive.values() if isinstance(k, RegionKernel)][-1]


def dense_layer(rng: np.random.Generator) -> bytes:
    """x [n, K] -> y [n, N], as quantize_dynamic writes it."""
    constants: dict[str, np.ndarray] = {}
    nodes = quantized_dense(rng, "x", "y", K, N, constants)
    return model(nodes, [("x", FLOAT, ["n", K])], [("y", FLOAT, ["n", N])], constants)
