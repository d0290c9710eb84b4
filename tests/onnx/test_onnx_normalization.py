"""Normalizations without ONNX node tests, against ONNX Runtime's CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="models are built with onnx")
pytest.importorskip("onnxruntime", reason="models are compared with its CPU")

import onnxruntime as ort
from onnx import TensorProto, helper

import kompute_dml.onnx_backend as backend

_MICROSOFT = "com.microsoft"
CASES: list[tuple[str, int, list[tuple[int, ...]], list[str], dict[str, Any]]] = [
    ("Softmax", 11, [(2, 3, 4)], ["y"], {"axis": 1}),
    ("LogSoftmax", 9, [(2, 3, 4)], ["y"], {"axis": 2}),
    ("Hardmax", 11, [(2, 3, 4)], ["y"], {"axis": -2}),
    ("LayerNormalization", 17, [(2, 5, 8), (8,), (8,)], ["y"], {}),
    ("LayerNormalization", 17, [(2, 5, 8), (5, 8)], ["y"], {"axis": 1}),
    ("LayerNormalization", 17, [(2, 5, 8), (5, 8)], ["y", "mean", "inverse"], {"axis": 1}),
    ("SkipLayerNormalization", 17, [(2, 5, 8), (2, 5, 8), (8,), (8,), (8,)],
     ["y", "", "", "s"], {"domain": _MICROSOFT}),
    ("SkipSimplifiedLayerNormalization", 17, [(2, 5, 8), (2, 5, 8), (8,)],
     ["y", "", "", "s"], {"domain": _MICROSOFT}),
    ("BatchNormalization", 9, [(2, 3, 4, 5), (3,), (3,), (3,), (3,)], ["y"], {}),
    ("BatchNormalization", 15, [(2, 3), (3,), (3,), (3,), (3,)], ["y"], {"epsilon": 0.1}),
    ("InstanceNormalization", 6, [(2, 3, 8), (3,), (3,)], ["y"], {}),
    ("GroupNormalization", 21, [(2, 6, 4, 5), (6,), (6,)], ["y"], {"num_groups": 2}),
    ("LRN", 13, [(2, 6, 4, 5)], ["y"], {"size": 3, "alpha": 0.5}),
    ("LpNormalization", 22, [(2, 6, 4)], ["y"], {"axis": 1, "p": 1}),
]


@pytest.mark.parametrize(("op", "opset", "shapes", "outputs", "attributes"), CASES,
                         ids=[f"{c[0]}-{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_normalization(
    op: str, opset: int, shapes: list[tuple[int, ...]], outputs: list[str],
    attributes: dict[str, Any], rng: np.random.Generator,
) -> None:
    names = [f"x{i}" for i in range(len(shapes))]
    feeds = {n: rng.uniform(0.1, 3, s).astype(np.float32) for n, s in zip(names, shapes)}
    node = helper.make_node(op, names, outputs, **attributes)
    graph = helper.make_graph(
        [node], "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[0]) for n in outputs if n])
    built = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid(_MICROSOFT, 1)])
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, wanted in zip(backend.run_model(built, list(feeds.values())),
                           session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
