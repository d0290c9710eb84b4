"""ONNX models for the tests, and their placement by ONNX Runtime."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import kompute_dml.onnx_backend as backend
from kompute_dml.errors import UnsupportedError
from kompute_dml.toolchain import native
from made_models import (
    BOOL,
    FLOAT,
    INT8,
    INT64,
    UINT8,
    Info,
    cpu,
    encoder,
    model,
    node,
    options,
    quantized_dense,
    weights,
)

__all__ = [
    "BOOL", "FLOAT", "INT8", "INT64", "NO_PROVIDER", "RELEASE", "UINT8", "Info", "both", "cpu",
    "encoder", "exact_cpu", "installed", "model", "needs_provider", "node", "options", "placement",
    "provider_works", "quantized_dense", "weights",
]

RELEASE = [int(number) for number in ort.__version__.split(".")[:2]]
exact_cpu = pytest.mark.skipif(
    RELEASE < [1, 25], reason="ONNX Runtime 1.24's CPU makes some quantized products wrong")
provider_works = (
    RELEASE >= [1, 24] and importlib.util.find_spec("cffi") is not None
    and (native.library().is_file() or native.compiler() is not None))
NO_PROVIDER = "the provider needs onnxruntime >= 1.24, cffi, and its library or a C compiler"
needs_provider = pytest.mark.skipif(not provider_works, reason=NO_PROVIDER)


def placement(session: ort.InferenceSession, provider: str) -> list[str]:
    """The operators that a provider runs, sorted."""
    return sorted(
        n.op_type for part in session.get_provider_graph_assignment_info()
        if part.ep_name == provider for n in part.get_nodes()
    )


def both(built: Any, given: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    """The results of a model by the backend, and by the provider where it works, where ONNX Runtime
    spells out attributes that a model leaves out."""
    results = [list(backend.run_model(built, given))]
    if provider_works:
        from provider_tools import session

        results.append(session(built, claim="all", strict=True).run(None, given))
    return results


def installed(model: Callable[[], Any]) -> Any:
    """The model. Skips the test if the package with the model is missing."""
    try:
        return model()
    except UnsupportedError as error:
        pytest.skip(str(error))


class ModelInLines:
    """Nodes and constants of a model, one to a line."""

    def __init__(self, seed: int) -> None:
        self.rng, self.nodes = np.random.default_rng(seed), list[Any]()
        self.constants: dict[str, np.ndarray] = {}

    def of(self, op: str, inputs: str, outputs: str = "", domain: str = "",
           **attributes: Any) -> str:
        """Add a node. Returns the name of its first output."""
        y = outputs or f"{op}.{len(self.nodes)}"
        self.nodes.append(node(op, inputs, y, domain, **attributes))
        return y.split()[0]

    def exactly(self, values: Any) -> str:
        """Add a constant. Returns its name."""
        name = f"c.{len(self.constants)}"
        self.constants[name] = np.asarray(values)
        return name

    def random(self, *sizes: int) -> str:
        """Add a constant of small numbers. Returns its name."""
        return self.exactly(0.3 * self.rng.standard_normal(sizes, np.float32))
