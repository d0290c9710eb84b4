"""ONNX's matrix products, against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models' helpers import it")

import kompute_dml.onnx_backend as backend
from onnx_graphs import FLOAT, model, node


def _turned(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


@pytest.mark.parametrize(("op", "shapes", "expected", "attributes"), [
    ("MatMul", [(4,), (4, 5)], np.matmul, {}),
    ("MatMul", [(2, 3, 4), (4,)], np.matmul, {}),
    ("MatMul", [(4,), (4,)], np.matmul, {}),
    ("MatMul", [(2, 7, 3, 4), (4, 6)], np.matmul, {}),
    ("MatMul", [(2, 1, 3, 4), (5, 4, 6)], np.matmul, {}),
    ("MatMul", [(2, 1, 3, 3, 4), (1, 5, 1, 4, 6)], np.matmul, {}),
    ("Gemm", [(3, 4), (4, 5)], np.matmul, {}),
    ("Gemm", [(3, 4), (4, 5), (5,)], lambda a, b, c: a @ b / 2 + 2 * c,
     {"alpha": 0.5, "beta": 2.0}),
    ("Gemm", [(4, 3), (5, 4), (3, 1)], lambda a, b, c: a.T @ b.T + c,
     {"transA": 1, "transB": 1}),
    ("com.microsoft.FusedMatMul", [(2, 4, 3), (2, 5, 4)],
     lambda a, b: _turned(a) @ _turned(b) / 2, {"transA": 1, "transB": 1, "alpha": 0.5}),
])
def test_product(
    op: str, shapes: list[tuple[int, ...]], expected: Callable[..., Any],
    attributes: dict[str, Any], rng: np.random.Generator,
) -> None:
    values = [rng.normal(0, 1, s).astype(np.float32) for s in shapes]
    y = expected(*values)
    domain, _, name = op.rpartition(".")
    names = [f"x{i}" for i in range(len(shapes))]
    built = model([node(name, " ".join(names), "y", domain, **attributes)],
                  [(n, FLOAT, s) for n, s in zip(names, shapes)], [("y", FLOAT, y.shape)])
    got = backend.prepare(built).run(values)[0]
    np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-5, strict=True)
