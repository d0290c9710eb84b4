"""Products and convolutions between DequantizeLinear and QuantizeLinear use 8-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import pytest

import onnx_graphs as graphs
from kompute_dml import onnx_backend
from kompute_dml.graph.array import Array
from kompute_dml.graph.builder import Builder
from kompute_dml.runtime.traits import DeviceTraits
from onnx_graphs import node

RNG = np.random.default_rng(5)
X_SCALE, W_SCALE, Y_SCALE = np.float32(0.02), np.float32(0.01), np.float32(0.05)
ZEROS = {"xs": X_SCALE, "xz": np.uint8(120), "ys": Y_SCALE, "yz": np.uint8(0)}


def _bytes(*shape: int) -> np.ndarray:
    return RNG.integers(-60, 60, shape).astype(np.int8)


def _linear(name: str, op: str = "DequantizeLinear", **attributes: Any) -> onnx.NodeProto:
    return node(op, f"{name} {name}s {name}z", name + "_", **attributes)


CONV = {**ZEROS, "w": _bytes(4, 3, 3, 3), "ws": W_SCALE * np.arange(1, 5, dtype=np.float32),
        "wz": np.zeros(4, np.int8), "b": RNG.integers(-900, 900, 4).astype(np.int32)}
CONV |= {"bs": X_SCALE * CONV["ws"], "bz": np.zeros(4, np.int32)}
MATMUL = {**ZEROS, "w": _bytes(3, 8), "ws": np.array(W_SCALE), "wz": np.array(np.int8(3)),
          "c": RNG.normal(0, 1, 8).astype(np.float32)}
REST = {"r": RNG.integers(0, 256, (5, 3)).astype(np.uint8), "rs": np.float32(0.03),
        "rz": np.uint8(99)}
INPUTS = [_linear("x"), _linear("w", axis=0), _linear("b", axis=0)]
TO_BYTES = node("QuantizeLinear", "v ys yz", "y")
GRAPHS: dict[str, tuple[list[Any], dict[str, np.ndarray], list[str]]] = {
    "a convolution": ([*INPUTS, node("Conv", "x_ w_ b_", "v"), TO_BYTES], CONV,
                      ["QUANTIZED_LINEAR_CONVOLUTION"]),
    "with Relu": ([*INPUTS, node("Conv", "x_ w_ b_", "u"), node("Relu", "u", "v"), TO_BYTES], CONV,
                  ["QUANTIZED_LINEAR_CONVOLUTION"]),
    "with Relu above the lowest byte": (
        [*INPUTS, node("Conv", "x_ w_ b_", "u"), node("Relu", "u", "v"), TO_BYTES],
        {**CONV, "yz": np.uint8(9)},
        ["ELEMENT_WISE_DEQUANTIZE_LINEAR", "CONVOLUTION", "ELEMENT_WISE_QUANTIZE_LINEAR"]),
    "a product": ([*INPUTS[:1], _linear("w"), node("MatMul", "x_ w_", "v"), TO_BYTES], MATMUL,
                  ["QUANTIZED_LINEAR_MATRIX_MULTIPLY"]),
    "a Gemm": ([*INPUTS[:1], _linear("w"), node("Gemm", "x_ w_", "v"), TO_BYTES], MATMUL,
               ["QUANTIZED_LINEAR_MATRIX_MULTIPLY"]),
    "a Gemm of a transposed B, with C": (
        [*INPUTS[:1], _linear("t", axis=0), node("Gemm", "x_ t_ c", "v", transB=1), TO_BYTES],
        {**MATMUL, "t": np.ascontiguousarray(MATMUL["w"].T), "tz": np.zeros(8, np.int8),
         "ts": W_SCALE * np.arange(1, 9, dtype=np.float32)},
        ["MATRIX_MULTIPLY_INTEGER_TO_FLOAT", "ELEMENT_WISE_QUANTIZE_LINEAR"]),
    "a Gemm of a transposed A": (
        [*INPUTS[:1], _linear("a"), node("Gemm", "x_ a_", "v", transA=1), TO_BYTES],
        {**MATMUL, "a": _bytes(5, 8), "as": np.array(W_SCALE), "az": np.array(np.int8(3))},
        ["ELEMENT_WISE_DEQUANTIZE_LINEAR", "GEMM", "ELEMENT_WISE_QUANTIZE_LINEAR"]),
    "a sum": (
        [_linear("x"), _linear("r"), node("Add", "x_ r_", "v"), TO_BYTES],
        {**ZEROS, **REST}, ["ELEMENT_WISE_QUANTIZED_LINEAR_ADD"]),
    "a sum with Relu": (
        [_linear("r"), _linear("x"), node("Add", "r_ x_", "u"), node("Relu", "u", "v"), TO_BYTES],
        {**ZEROS, **REST}, ["ELEMENT_WISE_QUANTIZED_LINEAR_ADD"]),
    "a sum with a float": (
        [_linear("x"), node("Add", "x_ ys", "v"), TO_BYTES], ZEROS,
        ["ELEMENT_WISE_DEQUANTIZE_LINEAR", "ELEMENT_WISE_ADD", "ELEMENT_WISE_QUANTIZE_LINEAR"]),
    "a product that stays a float one": (
        [*INPUTS[:1], _linear("w"), node("MatMul", "x_ w_", "v"), node("Add", "v c", "y")], MATMUL,
        ["MATRIX_MULTIPLY_INTEGER_TO_FLOAT"]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_quantized(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are within one step of those of the separate nodes, and of ONNX Runtime."""
    nodes, constants, expected = GRAPHS[name]
    given = rng.integers(0, 255, (2, 3, 7, 6) if "b" in constants else (5, 3)).astype(np.uint8)
    is_float = nodes[-1].op_type == "Add"
    kind = onnx.TensorProto.FLOAT if is_float else onnx.TensorProto.UINT8
    used = {n: np.asarray(v) for n, v in constants.items()
            if any(n in made.input for made in nodes)}
    text = graphs.model(nodes, [("x", graphs.UINT8, given.shape)], [("y", kind, None)], used)
    model = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(text))
    region = onnx_backend.prepare(model)._region
    # A last IDENTITY turns channels that matrix units wrote side by side.
    made = region.plan([given]).operators
    assert made[:len(expected)] == expected
    assert made[len(expected):] in ([], ["ELEMENT_WISE_IDENTITY"] if "b" in constants else [])
    (result,) = region.run([given])
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "qdq")
    (plain,) = onnx_backend.prepare(model)._region.run([given])
    (wanted,) = graphs.cpu(model.SerializeToString(), optimize=False).run(None, {"x": given})
    step = np.abs(wanted).max() * 2.0**-20 if is_float else 1
    for other in (plain, wanted):
        assert np.abs(result.astype(np.float64) - other).max() <= step
    assert np.ptp(wanted.astype(np.float64)) > 10 * step


def test_convolutions_of_bytes_hand_on_channels_side_by_side(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of floats, where matrix units read that. A sum of two takes their layout."""
    monkeypatch.setattr(DeviceTraits, "multiplies", lambda *shape: True)
    nodes = [node("QLinearConv", "x xs xz w ws wz ys yz b", "p", pads=[1] * 4),
             node("QLinearConv", "x xs xz w ws wz ys yz", "q", pads=[1] * 4),
             node("DequantizeLinear", "p ys yz", "p_"), node("DequantizeLinear", "q ys yz", "q_"),
             node("Add", "p_ q_", "s"), node("QuantizeLinear", "s ys yz", "t"),
             node("QLinearConv", "t ys yz v ws wz ys yz", "y")]
    constants = {n: np.asarray(CONV[n]) for n in ("xs", "xz", "ys", "yz", "w", "ws", "wz", "b")}
    constants["v"] = _bytes(4, 4, 3, 3)
    given = {"x": rng.integers(0, 255, (2, 3, 7, 6)).astype(np.uint8)}
    built = onnx.load_model_from_string(graphs.model(
        nodes, [("x", graphs.UINT8, given["x"].shape)],
        [("y", graphs.UINT8, ["n", "c", "h", "w"])], constants))
    layouts: list[bool] = []
    like = Builder.like

    def noted(builder: Builder, arrays: list[Array], *more: Any) -> Array:
        layouts.append(arrays[0].is_channels_last)
        return like(builder, arrays, *more)

    monkeypatch.setattr(Builder, "like", noted)
    results, last = [], []
    for name in ("", "channels_last"):
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", name)
        results.append(onnx_backend.run_model(built, given)[0])
        last.append(any(layouts))
        layouts.clear()
    assert last == [True, False]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("kind", "op", "block", "has_zero"), [
    ("int4", "MatMul", 32, False), ("uint4", "MatMul", 16, True), ("uint4", "Gemm", 16, False),
    ("int8", "Gemm", 32, True)])
def test_weights_in_blocks(
    kind: str, op: str, block: int, has_zero: bool, rng: np.random.Generator
) -> None:
    """One product that reads the integers. ONNX Runtime dequantizes them."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy has no types of 4 bits")
    dtype, k, n = np.dtype(getattr(ml_dtypes, kind, kind)), 5 * block, 11
    low = -8 if kind[0] == "i" else 0
    sizes, axis = ((n, k), 1) if op == "Gemm" else ((k, n), 0)
    blocks = tuple(5 if d == axis else size for d, size in enumerate(sizes))
    held: dict[str, Any] = {
        "w": rng.integers(low, low + 16, sizes).astype(dtype),
        "s": rng.uniform(0.01, 0.1, blocks).astype(np.float32)}
    if has_zero:
        held["z"] = rng.integers(low, low + 16, blocks).astype(dtype)
    more = {"transB": 1} if op == "Gemm" else {}
    if op == "Gemm":
        held["c"] = rng.normal(0, 1, n).astype(np.float32)
    nodes = [node("DequantizeLinear", " ".join(n for n in held if n != "c"), "r", axis=axis,
                  block_size=block),
             node(op, "x r c" if op == "Gemm" else "x r", "y", **more)]
    text = graphs.model(nodes, [("x", graphs.FLOAT, (3, k))], [("y", graphs.FLOAT, (3, n))], held,
                        opset=21)
    given = rng.normal(0, 1, (3, k)).astype(np.float32)
    region = onnx_backend.prepare(onnx.load_model_from_string(text))._region
    assert region.plan([given]).operators == ["GEMM"]
    (wanted,) = graphs.cpu(text, optimize=False).run(None, {"x": given})
    np.testing.assert_allclose(region.run([given])[0], wanted, rtol=0, atol=1e-4)
