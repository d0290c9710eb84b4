"""ONNX models built from nodes, for tests and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

FLOAT, UINT8, INT8, INT64, BOOL = (
    TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT64, TensorProto.BOOL
)
Info = tuple[str, int, Sequence[Any] | None]


def model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Info], outputs: Sequence[Info],
    constants: Mapping[str, np.ndarray] | None = None, opset: int = 17,
) -> bytes:
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()],
    )
    domains = {"": opset, **{n.domain: 1 for n in nodes if n.domain}}
    imports = [helper.make_opsetid(d, v) for d, v in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """``inputs`` and ``outputs`` are names separated by blanks; ``-`` is absent."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, name=names[1][0], domain=domain, **attributes)


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Seven-bit weights. On processors without VNNI, ONNX Runtime's CPU provider adds pairs of
    products in 16 bits with saturation, so larger weights would give inexact sums."""
    return rng.integers(-64, 64, shape, dtype=np.int8)


def options(optimize: bool = True) -> ort.SessionOptions:
    """Session options. Without optimization, ONNX Runtime fuses no nodes."""
    result = ort.SessionOptions()
    result.log_severity_level = 3
    result.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if not optimize:
        result.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return result


def cpu(model: bytes | str, optimize: bool = True) -> ort.InferenceSession:
    return ort.InferenceSession(model, options(optimize), providers=["CPUExecutionProvider"])


def quantized_dense(
    rng: np.random.Generator, x: str, y: str, depth: int, columns: int,
    constants: dict[str, np.ndarray], *, bias: bool = True,
) -> list[onnx.NodeProto]:
    """The nodes that quantize_dynamic makes from a dense layer, with a scale per column."""
    constants[f"{y}.w"] = weights(rng, depth, columns)
    constants[f"{y}.w_scale"] = (rng.random(columns) / 64 / depth**0.5).astype(np.float32)
    constants[f"{y}.w_zero"] = np.zeros(columns, np.int8)
    constants[f"{y}.b"] = rng.standard_normal(columns).astype(np.float32)
    product = f"{y}.product" if bias else y
    return [
        node("DynamicQuantizeLinear", x, f"{y}.q {y}.s {y}.z"),
        node("MatMulInteger", f"{y}.q {y}.w {y}.z {y}.w_zero", f"{y}.sums"),
        node("Cast", f"{y}.sums", f"{y}.floats", to=FLOAT),
        node("Mul", f"{y}.s {y}.w_scale", f"{y}.scales"),
        node("Mul", f"{y}.floats {y}.scales", product),
        *([node("Add", f"{product} {y}.b", y)] if bias else []),
    ]


def encoder(rng: np.random.Generator, *, layers: int = 2, width: int = 64, heads: int = 4,
            quantized: bool = True) -> bytes:
    """A transformer encoder with random int8 or float weights: x [batch, tokens, width] -> y."""
    constants: dict[str, np.ndarray] = {
        "heads": np.array([0, 0, heads, width // heads]), "joined": np.array([0, 0, width]),
        "root": np.array((width // heads) ** 0.5, np.float32),
        "one": np.array(1, np.float32), "half": np.array(0.5, np.float32),
        "sqrt2": np.array(2**0.5, np.float32),
        "gain": np.ones(width, np.float32), "shift": np.zeros(width, np.float32),
    }
    nodes: list[onnx.NodeProto] = []

    def dense(x: str, y: str, depth: int, columns: int) -> str:
        if quantized:
            nodes.extend(quantized_dense(rng, x, y, depth, columns, constants))
            return y
        w = rng.standard_normal((depth, columns)) / depth**0.5
        constants[f"{y}.w"] = w.astype(np.float32)
        constants[f"{y}.b"] = rng.standard_normal(columns).astype(np.float32)
        nodes.extend([node("MatMul", f"{x} {y}.w", f"{y}.product"),
                      node("Add", f"{y}.product {y}.b", y)])
        return y

    x = "x"
    for layer in range(layers):
        n = f"l{layer}."
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            made = dense(x, n + part, width, width)
            nodes.append(node("Reshape", f"{made} heads", f"{made}.split"))
            nodes.append(node("Transpose", f"{made}.split", f"{made}.t", perm=order))
        nodes += [
            node("MatMul", f"{n}q.t {n}k.t", f"{n}match"),
            node("Div", f"{n}match root", f"{n}scaled"),
            node("Softmax", f"{n}scaled", f"{n}weights", axis=-1),
            node("MatMul", f"{n}weights {n}v.t", f"{n}mixed"),
            node("Transpose", f"{n}mixed", f"{n}mixed.t", perm=[0, 2, 1, 3]),
            node("Reshape", f"{n}mixed.t joined", f"{n}context"),
        ]
        out = dense(f"{n}context", f"{n}out", width, width)
        nodes.append(node("Add", f"{x} {out}", f"{n}sum"))
        nodes.append(node("LayerNormalization", f"{n}sum gain shift", f"{n}normal", axis=-1))
        wide = dense(f"{n}normal", f"{n}up", width, 4 * width)
        nodes += [
            node("Div", f"{wide} sqrt2", f"{wide}.1"), node("Erf", f"{wide}.1", f"{wide}.2"),
            node("Add", f"{wide}.2 one", f"{wide}.3"), node("Mul", f"{wide} {wide}.3", f"{wide}.4"),
            node("Mul", f"{wide}.4 half", f"{wide}.gelu"),
        ]
        down = dense(f"{wide}.gelu", f"{n}down", 4 * width, width)
        nodes.append(node("Add", f"{n}normal {down}", f"{n}sum2"))
        x = f"{n}y"
        nodes.append(node("LayerNormalization", f"{n}sum2 gain shift", x, axis=-1))
    shape = ["batch", "tokens", width]
    return model(nodes, [("x", FLOAT, shape)], [(x, FLOAT, shape)], constants)
