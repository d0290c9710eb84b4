"""Several operators of a graph become one, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import pytest

import kompute_dml as dml
import onnx_graphs as graphs
from kompute_dml import onnx_backend
from kompute_dml.graph import switches
from kompute_dml.graph.array import Array
from kompute_dml.graph.builder import Builder
from kompute_dml.runtime.traits import DeviceTraits
from onnx_graphs import node

ULP = 2.0**-23
Run = tuple[list[str], list[np.ndarray]]


def _run(nodes: list[Any], inputs: dict[str, np.ndarray], constants: dict[str, Any],
         outputs: list[str], dtype: Any = np.float32) -> Run:
    """The operators after fusion, and the results."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = {n: x.astype(dtype) for n, x in inputs.items()}
    model = graphs.model(
        nodes, [(n, kind, x.shape) for n, x in inputs.items()], [(n, kind, None) for n in outputs],
        {n: np.asarray(c, dtype) for n, c in constants.items()}, opset=20)
    inferred = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(model))
    region = onnx_backend.prepare(inferred)._region
    plan = region.plan(list(inputs.values()))
    return plan.operators, plan.run(list(inputs.values()))


def _both(monkeypatch: pytest.MonkeyPatch, *graph: Any) -> tuple[Run, Run]:
    fused = _run(*graph)
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "all")
    return fused, _run(*graph)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, 1, shape).astype(np.float32)


X, W = {"x": _numbers(2, 5, 24)}, {"w": _numbers(24, 16)}
IMAGE, FILTER = {"x": _numbers(2, 3, 9, 9)}, {"w": _numbers(4, 3, 3, 3)}
EXACT: dict[str, tuple[list[Any], dict[str, np.ndarray], dict[str, Any], list[str]]] = {
    "a bias is a product's C": (
        [node("MatMul", "x w", "p"), node("Add", "b p", "y")],
        X, {**W, "b": _numbers(16)}, ["GEMM"]),
    "and a sum is, then an activation": (
        [node("MatMul", "x w", "p"), node("Add", "p z", "s"), node("Tanh", "s", "y")],
        {**X, "z": _numbers(2, 5, 16)}, W, ["GEMM"]),
    "a chain that reads the product twice": (
        [node("MatMul", "x w", "p"), node("Relu", "p", "r"), node("Mul", "p r", "y")],
        X, W, ["GEMM"]),
    "a bias of rows is none of a convolution": (
        [node("Conv", "x w", "p"), node("Add", "p b", "y")],
        IMAGE, {**FILTER, "b": _numbers(7, 1)}, ["CONVOLUTION", "ELEMENT_WISE_ADD"]),
    "one of channels is": (
        [node("Conv", "x w", "p"), node("Add", "p b", "s"), node("Sigmoid", "s", "y")],
        IMAGE, {**FILTER, "b": _numbers(4, 1, 1)}, ["CONVOLUTION"]),
    "a clip": (
        [node("Conv", "x w", "p"), node("Clip", "p low high", "y")],
        IMAGE, {**FILTER, "low": 0, "high": 1.5}, ["CONVOLUTION"]),
    "a residual sum and its activation": (
        [node("Conv", "x w", "p"), node("Conv", "x v", "q"), node("Add", "p q", "s"),
         node("Relu", "s", "y")],
        IMAGE, {**FILTER, "v": _numbers(4, 3, 3, 3)},
        ["CONVOLUTION", "CONVOLUTION"]),
    "a normalization": (
        [node("LayerNormalization", "x w", "n"), node("Elu", "n", "y", alpha=0.5)],
        X, {"w": _numbers(24)}, ["MEAN_VARIANCE_NORMALIZATION2"]),
    "a sum and its normalization": (
        [node("Add", "x z", "s"), node("LayerNormalization", "s w", "y")],
        {**X, "z": _numbers(2, 5, 24)}, {"w": _numbers(24)}, ["MEAN_VARIANCE_NORMALIZATION2"]),
    "also where the sum is read again": (
        [node("Add", "x z", "s"), node("Sigmoid", "s", "t"),
         node("LayerNormalization", "s w", "n"), node("Mul", "n t", "y")],
        {"x": _numbers(3, 7), "z": _numbers(3, 7) + 1}, {"w": _numbers(7)},
        ["MEAN_VARIANCE_NORMALIZATION2", "ELEMENT_WISE_CHAIN"]),
    "not where one of both is repeated": (
        [node("Add", "x z", "s"), node("LayerNormalization", "s w", "y")],
        {**X, "z": _numbers(24)}, {"w": _numbers(24)},
        ["ELEMENT_WISE_ADD", "MEAN_VARIANCE_NORMALIZATION2"]),
    "a power of 2 is a product's scale, before or after its sum": (
        [node("MatMul", "x w", "p"), node("Mul", "eighth p", "h"), node("Add", "h b", "s"),
         node("Div", "s four", "t"), node("Relu", "t", "y")],
        X, {**W, "b": _numbers(16), "eighth": 0.125, "four": 4}, ["GEMM"]),
    "another number is its tail": (
        [node("MatMul", "x w", "p"), node("Mul", "third p", "y")],
        X, {**W, "third": 1 / 3}, ["GEMM"]),
    "only where nothing else reads the product": (
        [node("MatMul", "x w", "p"), node("Softmax", "p", "s"), node("Div", "p s", "y")],
        X, W, ["GEMM", "ACTIVATION_SOFTMAX1"]),
    "parts of a joined tensor": (
        [node("Conv", "x w", "p"), node("Relu", "p", "r"), node("Conv", "x v", "q"),
         node("Concat", "r q", "y", axis=1)],
        IMAGE, {**FILTER, "v": _numbers(4, 3, 3, 3) + 1}, ["CONVOLUTION"] * 2),
    "all but one that is there": (
        [node("Neg", "x", "p"), node("Exp", "x", "q"), node("Concat", "p x q", "c", axis=2),
         node("Softmax", "c", "y")],
        X, {}, ["ELEMENT_WISE_NEGATE", "ELEMENT_WISE_EXP", "ELEMENT_WISE_IDENTITY",
                "ACTIVATION_SOFTMAX1"]),
    "no parts that are read elsewhere": (
        [node("Neg", "x", "p"), node("Concat", "p p", "c", axis=0), node("Softmax", "c", "y")],
        X, {}, ["ELEMENT_WISE_NEGATE", "JOIN", "ACTIVATION_SOFTMAX1"]),
    "parts of several joined tensors that begin alike": (
        [node("Neg", "x", "p"), node("Exp", "x", "q"), node("Concat", "p q", "c", axis=2),
         node("Tanh", "c", "r"), node("Concat", "p q r", "d", axis=2), node("Softmax", "d", "y")],
        X, {}, ["ELEMENT_WISE_NEGATE", "ELEMENT_WISE_EXP", "ACTIVATION_TANH",
                "ACTIVATION_SOFTMAX1"]),
    "a part that is there is copied once for all of them": (
        [node("Exp", "x", "q"), node("Concat", "x q", "c", axis=2), node("Tanh", "c", "r"),
         node("Concat", "x q r", "d", axis=2), node("Softmax", "d", "y")],
        X, {}, ["ELEMENT_WISE_EXP", "ELEMENT_WISE_IDENTITY", "ACTIVATION_TANH",
                "ACTIVATION_SOFTMAX1"]),
    "no copies for two that begin alike": (
        [node("Concat", "x x", "c", axis=2), node("Tanh", "c", "r"),
         node("Concat", "x x r", "d", axis=2), node("Softmax", "d", "y")],
        X, {}, ["JOIN", "ACTIVATION_TANH", "JOIN", "ACTIVATION_SOFTMAX1"]),
    "what only graphs fuse": (
        [node("Conv", "x w", "p"), node("HardSwish", "p", "y")], IMAGE, FILTER, ["CONVOLUTION"]),
    "a product writes to where it would be copied": (
        [node("MatMul", "x w", "p"), node("Transpose", "p", "t", perm=[0, 2, 1, 3]),
         node("Reshape", "t rows", "r"), node("Relu", "r", "y")],
        {"x": _numbers(2, 3, 5, 8)}, {"w": _numbers(2, 3, 8, 4)}, ["GEMM"]),
}
ROWS = node("Constant", "", "rows", value_ints=[10, 12])


@pytest.mark.parametrize("name", EXACT)
def test_one_operator_of_several(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are identical, because sums are rounded in the same way."""
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "channels_last")  # no copies on a GPU
    nodes, inputs, constants, expected = EXACT[name]
    fused, plain = _both(monkeypatch, [ROWS, *nodes], inputs, constants, ["y"])
    assert fused[0] == expected
    assert len(plain[0]) > len(expected) or len(plain[0]) == len(nodes)
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


@pytest.mark.parametrize(
    "name", ["a sum and its normalization", "also where the sum is read again"])
def test_a_sum_is_rounded_before_its_normalization(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "channels_last")  # no copies on a GPU
    nodes, inputs, constants, expected = EXACT[name]
    fused, plain = _both(monkeypatch, nodes, inputs, constants, ["y"], np.float16)
    assert fused[0] == expected
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


def _chained(count: int) -> list[Any]:
    """``count`` operators over x, z and two numbers."""
    made = [node("Sub", "x z", "v0"), node("Sigmoid", "v0", "v1"), node("Mul", "z v1", "v2"),
            node("Div", "three v2", "v3"), node("Clip", "v3 low high", "v4"),
            node("Max", "v4 x", "v5"), node("LeakyRelu", "v5", "v6", alpha=0.3),
            node("Exp", "v6", "v7"), node("Abs", "v7", "v8"), node("Erf", "v8", "v9")]
    return [*made[:count - 1], node("Add", f"v{count - 2} quarter", "y")]


@pytest.mark.parametrize("count, left", [(3, 1), (5, 1), (8, 1), (11, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_chain_is_one_dispatch(
    count: int, left: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains of any length become dispatches of eight. Each step is rounded like the operator."""
    inputs = {"x": _numbers(3, 5, 40), "z": _numbers(5, 1)}
    constants = {"three": 3, "quarter": 0.25, "low": -2, "high": 2}
    fused, plain = _both(monkeypatch, _chained(count), inputs, constants, ["y"], dtype)
    assert fused[0] == ["ELEMENT_WISE_CHAIN"] * left
    assert len(plain[0]) == count
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


def test_steps_are_rounded_as_halves_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step, also for denormals and infinities."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    inputs = {"x": np.stack([every, every])}
    factors = np.array([[0.3], [1.5]], np.float16)
    nodes = [node("Mul", "x f", "v"), node("Neg", "v", "y")]
    fused, plain = _both(monkeypatch, nodes, inputs, {"f": factors}, ["y"], np.float16)
    assert fused[0] == ["ELEMENT_WISE_CHAIN"]
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


@pytest.mark.parametrize("name, nodes, left", [
    ("a value that is read outside", [
        node("Neg", "x", "a"), node("Exp", "a", "b"), node("Softmax", "a", "c"),
        node("Sub", "b c", "y")],
     ["ELEMENT_WISE_NEGATE", "ACTIVATION_SOFTMAX1"]),
    ("a value that is repeated", [
        node("Neg", "r", "a"), node("Abs", "a", "b"), node("Add", "b x", "y")],
     ["ELEMENT_WISE_CHAIN", "ELEMENT_WISE_ADD"]),
    ("a fourth tensor", [
        node("Sub", "x r", "a"), node("Mul", "a s", "b"), node("Sub", "b t", "y")],
     ["ELEMENT_WISE_SUBTRACT", "ELEMENT_WISE_CHAIN"]),
    ("values that are transposed", [
        node("Neg", "x", "a"), node("Transpose", "a", "b", perm=[1, 0]),
        node("Exp", "b", "c"), node("Sub", "c t", "y")],
     ["ELEMENT_WISE_CHAIN"]),
])
def test_where_chains_end(
    name: str, nodes: list[Any], left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, row, column = (_numbers(*shape) for shape in ((6, 6), (1, 6), (6, 1)))
    inputs = {"x": x, "r": row, "s": column, "t": 2 * x}
    used = {n: x for n, x in inputs.items() if any(n in v.input for v in nodes)}
    fused, plain = _both(monkeypatch, nodes, used, {}, ["y"])
    assert fused[0] == left
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


GELU = [node("Div", "s root", "d"), node("Erf", "d", "e"), node("Add", "e one", "p")]
GELUS = {
    "as PyTorch writes it": [node("Mul", "s p", "m"), node("Mul", "m half", "y")],
    "with the half first": [node("Mul", "s half", "m"), node("Mul", "m p", "y")],
    "with the half in between": [node("Mul", "p half", "m"), node("Mul", "m s", "y")],
}


@pytest.mark.parametrize("name, left", [*zip(GELUS, (1, 1, 1))])
def test_gelu_spelled_out(name: str, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("MatMul", "x w", "s"), *GELU, *GELUS[name]]
    constants = {**W, "root": 2**0.5, "one": 1, "half": 0.5}
    fused, plain = _both(monkeypatch, nodes, X, constants, ["y"])
    assert len(fused[0]) == left, fused[0]
    assert len(plain[0]) == 6
    size = np.abs(plain[1][0]).max()
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=8 * ULP * size)


CUBES = {
    "pow": [node("Pow", "s three", "c")],
    "products": [node("Mul", "s s", "q"), node("Mul", "q s", "c")],
}
TANHS = {
    "x(1 + tanh)/2": [node("Mul", "s p", "m"), node("Mul", "m half", "y")],
    "half x first": [node("Mul", "s half", "m"), node("Mul", "m p", "y")],
}


@pytest.mark.parametrize("cube, end", [("pow", "x(1 + tanh)/2"), ("products", "half x first")])
def test_gelu_by_tanh_spelled_out(
    cube: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dispatch of five steps: x sigmoid(2 u) is x (1 + tanh(u)) / 2."""
    nodes = [*CUBES[cube], node("Mul", "c cube", "d"), node("Add", "s d", "u"),
             node("Mul", "u slope", "v"), node("Tanh", "v", "t"), node("Add", "t one", "p"),
             *TANHS[end]]
    constants = {"three": 3, "cube": 0.044715, "slope": (2 / np.pi) ** 0.5, "one": 1, "half": 0.5}
    fused, plain = _both(monkeypatch, nodes, {"s": 3 * _numbers(4, 5, 24)}, constants, ["y"])
    assert fused[0] == ["ELEMENT_WISE_CHAIN"]
    assert len(plain[0]) == len(nodes)
    # 1 + tanh(u) has few digits left where tanh(u) is near -1; times x of at most 16.
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=4 * ULP, atol=16 * ULP)


def _layer_norm(*, twice: bool, squared: bool, affine: bool) -> list[Any]:
    return [
        node("ReduceMean", "x axes", "m"), node("Sub", "x m", "d"),
        *([node("Sub", "x m", "e")] if twice else []),
        node("Mul", "d d", "q") if squared else node("Pow", "d two", "q"),
        node("ReduceMean", "q axes", "v"), node("Add", "v epsilon", "w"), node("Sqrt", "w", "r"),
        node("Div", f"{'e' if twice else 'd'} r", "n" if affine else "y"),
        *([node("Mul", "n scale", "s"), node("Add", "s bias", "y")] if affine else [])]


@pytest.mark.parametrize("twice, squared, affine", [
    (False, False, True), (True, False, True), (False, True, False)])
@pytest.mark.parametrize("axes", [[-1], [1, 2]], ids=str)
def test_layer_normalization_spelled_out(
    axes: list[int], twice: bool, squared: bool, affine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node("Constant", "", "axes", value_ints=axes)
    constants = {"epsilon": 1e-3, **({} if squared else {"two": 2})}
    if affine:
        constants |= {"scale": _numbers(24), "bias": _numbers(24) + 1}
    nodes = [made, *_layer_norm(twice=twice, squared=squared, affine=affine)]
    fused, plain = _both(monkeypatch, nodes, X, constants, ["y"])
    assert fused[0] == ["MEAN_VARIANCE_NORMALIZATION1"]
    assert len(plain[0]) == len(nodes) - 1
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=32 * ULP)


@pytest.mark.parametrize("more", [
    node("Mul", "d d", "z"), node("Neg", "r", "z"), node("Neg", "v", "z"), node("Neg", "m", "z"),
], ids=lambda n: n.input[0])
def test_layer_normalizations_whose_values_are_read_are_left(
    more: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node("Constant", "", "axes", value_ints=[-1])
    nodes = [made, *_layer_norm(twice=False, squared=False, affine=False), more]
    fused, plain = _both(monkeypatch, nodes, X, {"epsilon": 1e-3, "two": 2}, ["y", "z"])
    assert "MEAN_VARIANCE_NORMALIZATION1" not in fused[0]
    for a, b in zip(fused[1], plain[1]):
        np.testing.assert_allclose(a, b, rtol=0, atol=32 * ULP)  # d / r is an RMS normalization


def test_joined_constants_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Exp", "first", "a"), node("Exp", "second", "b"), node("Exp", "b", "c"),
             node("Concat", "a c", "j", axis=0), node("Add", "x j", "y")]
    constants = {"first": _numbers(2, 24), "second": _numbers(3, 24)}
    fused, plain = _both(monkeypatch, nodes, X, constants, ["y"])
    assert len(fused[0]) == 1, fused[0]
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=4 * ULP)


@pytest.mark.parametrize("end", [
    [node("Div", "x r", "n")], [node("Div", "one r", "i"), node("Mul", "x i", "n")],
    [node("Reciprocal", "r", "i"), node("Mul", "i x", "n")]], ids=["x/r", "x(1/r)", "recip"])
def test_rms_normalization_spelled_out(end: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Constant", "", "axes", value_ints=[-1]), node("Pow", "x two", "q"),
             node("ReduceMean", "q axes", "v"), node("Add", "v epsilon", "w"),
             node("Sqrt", "w", "r"), *end, node("Mul", "scale n", "y")]
    constants = {"epsilon": 1e-3, "two": 2, "one": 1, "scale": _numbers(24)}
    fused, plain = _both(monkeypatch, nodes, X, constants, ["y"])
    assert fused[0] == ["MEAN_VARIANCE_NORMALIZATION2"]
    assert len(plain[0]) == len(nodes) - 1
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=32 * ULP)
    with_sum = [*nodes, node("Neg", "r", "z")]
    fused, _ = _both(monkeypatch, with_sum, X, constants, ["y", "z"])
    assert "MEAN_VARIANCE_NORMALIZATION2" not in fused[0]


@pytest.mark.parametrize("transposed", ["d", "q", "w"])
def test_layer_normalizations_of_transposed_values_are_left(
    transposed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes stay the same, and the elements are others."""
    made = node("Constant", "", "axes", value_ints=[0, 1])
    nodes = [made]
    for step in _layer_norm(twice=False, squared=True, affine=False):
        names = [f"{n}t" if n == transposed and n in step.input else n for n in step.input]
        nodes.append(node(step.op_type, " ".join(names), step.output[0]))
        if step.output[0] == transposed:
            nodes.append(node("Transpose", transposed, f"{transposed}t", perm=[1, 0, 2]))
    fused, plain = _both(monkeypatch, nodes, {"x": _numbers(3, 3, 4)}, {"epsilon": 1e-3}, ["y"])
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=8 * ULP)


@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_a_value_times_its_sigmoid(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "channels_last")
    nodes = [node("Conv", "x w", "p"), node(gate, "p", "g"), node("Mul", "p g", "y")]
    fused, plain = _both(monkeypatch, nodes, IMAGE, FILTER, ["y"])
    assert fused[0] == ["CONVOLUTION"]
    assert len(plain[0]) == 3
    size = np.abs(plain[1][0]).max()
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=4 * ULP * size)


def _attention(mask: str, scaled: str = "") -> list[Any]:
    """``scaled``: the operands of the scores that are scaled. Else these are."""
    operands = " ".join(f"{x}s" if x in scaled else x for x in "qk")
    return [
        *[node("MatMul", f"x {w}", f"{w}p") for w in ("wq", "wk", "wv")],
        *[node("Reshape", f"{w}p heads", f"{w}h") for w in ("wq", "wk", "wv")],
        *[node("Transpose", f"{w}h", w[1], perm=order)
          for w, order in (("wq", [0, 2, 1, 3]), ("wk", [0, 2, 3, 1]), ("wv", [0, 2, 1, 3]))],
        *[node("Mul", f"{x} scale", f"{x}s") for x in scaled],
        *([node("MatMul", operands, "scaled")] if scaled else
          [node("MatMul", operands, "qk"), node("Mul", "qk scale", "scaled")]),
        *([node("Add", f"scaled {mask}", "masked")] if mask else []),
        node("Softmax", "masked" if mask else "scaled", "shares", axis=-1),
        node("MatMul", "shares v", "h"), node("Transpose", "h", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t whole", "y"),
    ]


@pytest.mark.parametrize("batches, heads", [(2, 3), (2, 1), (1, 3), (1, 1)])
@pytest.mark.parametrize("mask, scaled", [
    ("", ""), ("mask", ""), ("", "q"), ("", "k"), ("mask", "qk")])
def test_attention_spelled_out(
    mask: str, scaled: str, batches: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"x": _numbers(batches, 7, 24)}
    if mask:
        inputs["mask"] = np.where(
            _numbers(batches, 1, 1, 7) > 0.5, np.float32(-1e4), np.float32(0))
    constants = {w: _numbers(24, 24) / 4 for w in ("wq", "wk", "wv")} | {"scale": 8**-0.5}
    shapes = [node("Constant", "", n, value_ints=list(s)) for n, s in (
        ("heads", (batches, 7, heads, 24 // heads)), ("whole", (batches, 7, 24)))]
    nodes = [*shapes, *_attention(mask, scaled)]
    fused, plain = _both(monkeypatch, nodes, inputs, constants, ["y"])
    assert fused[0] == ["GEMM", "MULTIHEAD_ATTENTION"]
    assert "ACTIVATION_SOFTMAX1" in plain[0]
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("constant", [True, False])
def test_attention_with_two_masks(constant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias by head and a mask by batch, which is added to other sizes, are one mask."""
    sizes = {"heads": (4, 7, 3, 8), "whole": (4, 7, 24), "apart": (1, 4, 3, 7, 7),
             "scores": (4, 3, 7, 7)}
    mask = np.where(_numbers(1, 4, 1, 7, 7) > 0.5, np.float32(-100), np.float32(0))
    constants = {w: _numbers(24, 24) / 4 for w in ("wq", "wk", "wv")} | {
        "scale": 8**-0.5, "bias": _numbers(1, 3, 7, 7)}
    inputs = {"x": _numbers(4, 7, 24)}
    (constants if constant else inputs)["mask"] = mask
    nodes = _attention("bias")
    at = next(i for i, n in enumerate(nodes) if n.op_type == "Softmax")
    nodes[at:at + 1] = [
        node("Reshape", "masked apart", "five"), node("Add", "five mask", "both"),
        node("Reshape", "both scores", "four"), node("Softmax", "four", "shares", axis=-1)]
    shapes = [node("Constant", "", n, value_ints=list(s)) for n, s in sizes.items()]
    fused, plain = _both(monkeypatch, [*shapes, *nodes], inputs, constants, ["y"])
    sums = [] if constant else ["ELEMENT_WISE_ADD"]
    assert sorted(fused[0]) == [*sums, "GEMM", "MULTIHEAD_ATTENTION"]
    assert "ACTIVATION_SOFTMAX1" in plain[0]
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=1e-5)


def test_attention_to_nothing_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all scores of a query are -infinity, whose softmax is none. All others are the same."""
    inputs = {"x": _numbers(2, 7, 24), "mask": np.zeros((2, 1, 1, 7), np.float32)}
    inputs["mask"][1] = -np.inf
    constants = {w: _numbers(24, 24) / 4 for w in ("wq", "wk", "wv")} | {"scale": 8**-0.5}
    shapes = [node("Constant", "", n, value_ints=list(s))
              for n, s in (("heads", (2, 7, 3, 8)), ("whole", (2, 7, 24)))]
    fused, plain = _both(monkeypatch, [*shapes, *_attention("mask")], inputs, constants, ["y"])
    assert fused[0] == ["GEMM", "MULTIHEAD_ATTENTION"]
    np.testing.assert_allclose(fused[1][0][0], plain[1][0][0], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(fused[1][0][1], 0)
    assert np.isnan(plain[1][0][1]).all()


def test_attention_of_many_keys_stays_products_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {w: _numbers(8, 8) / 4 for w in ("wq", "wk", "wv")} | {"scale": 8**-0.5}
    shapes = [node("Constant", "", n, value_ints=list(s))
              for n, s in (("heads", (1, 300, 2, 4)), ("whole", (1, 300, 8)))]
    fused, plain = _both(
        monkeypatch, [*shapes, *_attention("")], {"x": _numbers(1, 300, 8)}, constants, ["y"])
    on_cpu = dml.default_device().target.traits.is_cpu
    assert ("ACTIVATION_SOFTMAX1" in fused[0]) == on_cpu
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=1e-5)


def test_products_of_one_matrix_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are the same, because each column is summed as before."""
    nodes = [
        *[made for i in (1, 2, 3) for made in (node("MatMul", f"x w{i}", f"p{i}"),
                                               node("Add", f"p{i} b{i}", f"q{i}"))],
        node("Mul", "q1 q2", "m"), node("Sub", "m q3", "y")]
    constants = {f"w{i}": _numbers(24, 16) * i for i in (1, 2, 3)} | {
        f"b{i}": _numbers(16) - i for i in (1, 2, 3)}
    fused, plain = _both(monkeypatch, nodes, X, constants, ["y"])
    assert fused[0] == ["GEMM", "ELEMENT_WISE_CHAIN"]
    assert len(plain[0]) == len(nodes)
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


@pytest.mark.parametrize("bias", ["", " c"])
def test_a_batch_normalization_goes_into_its_convolution(
    bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Conv", f"x w{bias}", "p"), node("BatchNormalization", "p s b m v", "n"),
             node("Relu", "n", "y")]
    constants = {**FILTER, "c": _numbers(4), "s": _numbers(4) + 2, "b": _numbers(4) * 3,
                 "m": _numbers(4) - 1, "v": np.abs(_numbers(4)) + 0.5}
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "channels_last")  # no copies on a GPU
    fused, plain = _both(monkeypatch, nodes, IMAGE, constants, ["y"])
    assert fused[0] == ["CONVOLUTION"]
    assert len(plain[0]) == 3
    size = np.abs(plain[1][0]).max()
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=32 * ULP * size)


def test_what_constants_make_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Tanh", "c", "e"), node("Softmax", "e", "s"), node("Mul", "x s", "y")]
    model_constants = {"c": _numbers(24)}
    fused, plain = _both(monkeypatch, nodes, X, model_constants, ["y"])
    assert (fused[0], len(plain[0])) == (["ELEMENT_WISE_MULTIPLY"], 3)
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


def test_a_cast_of_truth_to_truth_is_none() -> None:
    truth = onnx.TensorProto.BOOL
    cast = node("Cast", "x", "t", to=truth)
    x = np.array([True, False, True, True])
    for nodes, expected, wanted in (([cast], ["ELEMENT_WISE_IDENTITY"], x),
                                    ([cast, node("Not", "t", "y")],
                                     ["ELEMENT_WISE_LOGICAL_NOT"], ~x)):
        model = graphs.model(
            nodes, [("x", truth, x.shape)], [(nodes[-1].output[0], truth, x.shape)])
        region = onnx_backend.prepare(onnx.load_model_from_string(model))._region
        plan = region.plan([x])
        assert plan.operators == expected
        np.testing.assert_array_equal(plan.run([x])[0], wanted)


@pytest.mark.parametrize(("rows", "expected"), [
    (1, ["GEMM", "CONVOLUTION"]), (2, ["CONVOLUTION", "GEMM", "ELEMENT_WISE_ADD"])])
def test_a_product_of_one_row_takes_the_bias_of_a_convolution(
    rows: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is added to each channel, as a diffusion model adds a time. A row for each image
    is no bias."""
    nodes = [node("Conv", "x w b", "p"), node("Gemm", "t v c", "q"),
             node("Constant", "", "plane", value_ints=[2, 3]), node("Unsqueeze", "q plane", "r"),
             node("Add", "p r", "y")]
    rng = np.random.default_rng(1)
    x, w, b, t, v, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (
        (2, 3, 9, 9), (5, 3, 3, 3), 5, (rows, 7), (7, 5), 5))
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "channels_last")
    fused, plain = _both(
        monkeypatch, nodes, {"x": x, "t": t}, {"w": w, "b": b, "v": v, "c": c}, ["y"])
    assert sorted(fused[0]) == sorted(expected)
    assert len(plain[0]) == 3
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


@pytest.mark.parametrize(("size", "left"), [(512, 0), (513, 1)])
def test_a_mask_of_a_megabyte_is_computed_once(
    size: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of positions, which take much less. A larger one is computed in each run."""
    nodes = [node("Tanh", "rows", "t"), node("Sub", "t columns", "m"), node("MatMul", "x m", "y")]
    positions = np.arange(size, dtype=np.float32)
    fused, plain = _both(monkeypatch, nodes, {"x": _numbers(1, size)},
                         {"rows": positions[:, None], "columns": positions}, ["y"])
    assert fused[0] == ["ELEMENT_WISE_SUBTRACT"] * left + ["GEMM"]
    assert plain[0] == ["ACTIVATION_TANH", "ELEMENT_WISE_SUBTRACT", "GEMM"]
    np.testing.assert_array_equal(fused[1][0], plain[1][0])


def test_convolutions_hand_on_channels_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to an operator that needs another layout. The results are the same."""
    monkeypatch.setattr(DeviceTraits, "multiplies", lambda *shape: True)
    nodes = [node("Conv", "x w", "p", pads=[1] * 4), node("Relu", "p", "r"),
             node("MaxPool", "r", "m", kernel_shape=[2, 2], strides=[2, 2]),
             node("Conv", "m v", "q", pads=[1] * 4), node("Conv", "m u", "s", pads=[1] * 4),
             node("Add", "q s", "t"), node("Softmax", "t", "y", axis=1)]
    layouts: list[bool] = []
    copied = Builder.copy

    def copy(builder: Builder, x: Array) -> Array:
        layouts.append(x.is_channels_last)
        return copied(builder, x)

    monkeypatch.setattr(Builder, "copy", copy)
    fused, plain = _both(monkeypatch, nodes, IMAGE, {
        **FILTER, "v": _numbers(4, 4, 3, 3), "u": _numbers(4, 4, 3, 3)}, ["y"], np.float16)
    assert layouts == [True]
    assert fused[0] == ["CONVOLUTION", "MAX_POOLING", "CONVOLUTION", "CONVOLUTION",
                        "ELEMENT_WISE_IDENTITY", "ACTIVATION_SOFTMAX1"]
    assert len(plain[0]) == len(nodes)
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=2e-3)


_GROUPED = [
    node("Reshape", "p grouped", "g"), node("InstanceNormalization", "g ones zeros", "i"),
    node("Shape", "p", "size"), node("Reshape", "i size", "k"), node("Mul", "k scale", "m"),
    node("Add", "m bias", "n")]


@pytest.mark.parametrize("images", [1, 2])
def test_a_group_normalization_reads_and_writes_channels_side_by_side(
    images: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between convolutions it is one operator, and nothing is copied. What reads the image before
    it finds that as it was."""
    monkeypatch.setattr(DeviceTraits, "multiplies", lambda *shape: True)
    nodes = [node("Constant", "", "grouped", value_ints=[0, 3, -1]),
             node("Conv", "x w", "p", pads=[1] * 4), *_GROUPED, node("Sigmoid", "n", "g2"),
             node("Mul", "n g2", "h"), node("Conv", "h v", "q", pads=[1] * 4),
             node("Add", "p q", "t"), node("Softmax", "t", "y", axis=1)]
    constants = {"w": _numbers(12, 3, 3, 3), "v": _numbers(12, 12, 3, 3) / 8, "ones": np.ones(3),
                 "zeros": np.zeros(3), "scale": _numbers(12, 1, 1) + 2, "bias": _numbers(12, 1, 1)}
    fused, plain = _both(monkeypatch, nodes, {"x": _numbers(images, 3, 5, 6)}, constants, ["y"],
                         np.float16)
    assert fused[0] == ["CONVOLUTION", "MEAN_VARIANCE_NORMALIZATION1", "CONVOLUTION",
                        "ELEMENT_WISE_IDENTITY", "ACTIVATION_SOFTMAX1"]
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=4e-3)


def test_a_group_normalization_keeps_its_own_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is not 1, or its bias is not 0, both scales count."""
    nodes = [node("Constant", "", "grouped", value_ints=[0, 3, -1]), node("Shape", "x", "size"),
             node("Reshape", "x grouped", "g"), node("InstanceNormalization", "g s b", "i"),
             node("Reshape", "i size", "k"), node("Mul", "k scale", "m"),
             node("Add", "m bias", "y")]
    for changed in ("s", "b"):
        monkeypatch.delenv("KOMPUTE_DML_DISABLE_PASSES", raising=False)
        constants = {"s": np.ones(3), "b": np.zeros(3), "scale": _numbers(6, 1, 1) + 2,
                     "bias": _numbers(6, 1, 1)}
        constants[changed] = constants[changed] + [0, 0, 1]
        fused, plain = _both(
            monkeypatch, nodes, {"x": _numbers(2, 6, 5, 7)}, constants, ["y"])
        assert len(fused[0]) == 2
        np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("indices", "taken"), [
    (-1, True), ([1], True), ([0, 2, 4], True), ([1, 0], False), ([0, 1, 3], False),
    ([[0, 1]], False)])
def test_known_indices_at_even_distances_are_a_view(
    indices: Any, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = np.array(indices, np.int64)
    nodes = [node("Constant", "", "at", value=onnx.numpy_helper.from_array(at)),
             node("Gather", "x at", "p", axis=1), node("Neg", "p", "y")]
    fused, plain = _both(monkeypatch, nodes, X, {}, ["y"])
    assert fused[0] == [*["GATHER"] * (not taken), "ELEMENT_WISE_NEGATE"]
    for results in (fused[1], plain[1]):
        np.testing.assert_array_equal(results[0], -np.take(X["x"], at, 1))


@pytest.mark.parametrize("images", [1, 2])
def test_parts_of_channels_stay_side_by_side(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is split, joined and resized between convolutions is not turned, and so not copied."""
    monkeypatch.setattr(DeviceTraits, "multiplies", lambda *shape: True)
    nodes = [node("Constant", "", "scales", value_floats=[1.0, 1.0, 2.0, 2.0]),
             node("Conv", "x w", "a", pads=[1] * 4),
             node("Split", "a", "b c", axis=1, num_outputs=2),
             node("Sigmoid", "c", "g"), node("Mul", "c g", "d"), node("Conv", "d u", "e"),
             node("Concat", "b c d", "f", axis=1), node("Conv", "f v", "h"),
             node("Resize", "h - scales", "i", mode="nearest"), node("Conv", "i u", "y")]
    constants = {"w": _numbers(8, 3, 3, 3) / 4, "u": _numbers(4, 4, 1, 1),
                 "v": _numbers(4, 12, 1, 1)}
    emit, strides = Builder.emit, {}

    def noted(builder: Builder, name: str, tensors: Any, **more: Any) -> None:
        slot = "input_tensor" if name == "RESAMPLE2" else "output_tensor"
        strides[name] = tuple(tensors[slot][2])
        emit(builder, name, tensors, **more)

    model = nodes, {"x": _numbers(images, 3, 5, 6)}, constants, ["y"], np.float16
    with monkeypatch.context() as patched:
        patched.setattr(Builder, "emit", noted)
        _run(*model)
    assert strides["JOIN"][1] == strides["RESAMPLE2"][-1] == 1
    fused, plain = _both(monkeypatch, *model)
    *inside, last = fused[0]
    assert {*inside} == {"CONVOLUTION", "ELEMENT_WISE_CHAIN", "JOIN", "RESAMPLE2"}
    assert last == "ELEMENT_WISE_IDENTITY"  # a model's results are packed
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dense_blocks_join_nothing(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution reads all results before it where they were written, and writes its own beside
    them. Only what is read elsewhere, too, is copied there, once."""
    monkeypatch.setattr(DeviceTraits, "multiplies", lambda *shape: True)
    nodes = [node("Conv", "x w", "a", pads=[1] * 4), node("Conv", "a w0", "b", pads=[1] * 4),
             node("Concat", "a b", "c", axis=1), node("Conv", "c w1", "d", pads=[1] * 4),
             node("Concat", "a b d", "e", axis=1), node("Conv", "e w2", "f", pads=[1] * 4),
             node("Concat", "a b d f", "h", axis=1), node("Conv", "h w3", "i", pads=[1] * 4),
             node("Sub", "i a", "y")]
    constants = {"w": _numbers(8, 3, 3, 3) / 4, "w3": _numbers(8, 20, 3, 3) / 8, **{
        f"w{i}": _numbers(4, 8 + 4 * i, 3, 3) / 8 for i in range(3)}}
    fused, plain = _both(monkeypatch, nodes, IMAGE, constants, ["y"], dtype)
    assert fused[0].count("CONVOLUTION") == 5 and "JOIN" not in fused[0]
    assert fused[0].count("ELEMENT_WISE_IDENTITY") == 1 + (dtype == np.float16)
    np.testing.assert_allclose(fused[1][0], plain[1][0], rtol=0,
                               atol=2e-2 if dtype == np.float16 else 1e-5)


def test_convolutions_along_a_line_hand_on_channels_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sound is [batch, channel, time], and what follows reads [batch, time, channel]."""
    monkeypatch.setattr(DeviceTraits, "multiplies", lambda *shape: True)
    nodes = [node("Conv", "x w", "p", pads=[1, 1]), node("Mul", "p p", "s"),
             node("Conv", "s v", "q", pads=[1, 1], strides=[2]), node("Relu", "q", "r"),
             node("Transpose", "r", "t", perm=[0, 2, 1]), node("Softmax", "t", "y", axis=2)]
    strides: list[tuple[int, ...]] = []
    emit = Builder.emit

    def noted(builder: Builder, name: str, tensors: Any, **more: Any) -> None:
        if name in ("CONVOLUTION", "ELEMENT_WISE_MULTIPLY"):
            strides.append(tuple(tensors["output_tensor"][2])[-2:])
        assert name != "ELEMENT_WISE_IDENTITY", "a copy"
        emit(builder, name, tensors, **more)

    monkeypatch.setattr(Builder, "emit", noted)
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "")
    half = onnx.TensorProto.FLOAT16
    built = graphs.model(nodes, [("x", half, [2, 3, 12])], [("y", half, [2, 6, 5])], {
        "w": _numbers(4, 3, 3).astype(np.float16), "v": _numbers(5, 4, 3).astype(np.float16)})
    given = {"x": _numbers(2, 3, 12).astype(np.float16)}
    (got,) = onnx_backend.run_model(onnx.load_model_from_string(built), given)
    assert strides[-3:] == [(1, 4), (1, 4), (1, 5)]  # before them are those of trials
    monkeypatch.setattr(Builder, "emit", emit)
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "channels_last")
    (wanted,) = onnx_backend.run_model(onnx.load_model_from_string(built), given)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-3)


_AXES = node("Constant", "", "axes", value_ints=[-1])
_SHAPES = [node("Constant", "", n, value_ints=list(s))
           for n, s in (("heads", (2, 5, 3, 8)), ("whole", (2, 5, 24)))]
ALONE: dict[str, tuple[list[Any], dict[str, np.ndarray], dict[str, Any]]] = {
    "copy_elimination": EXACT["a product writes to where it would be copied"][:3],
    "layer_norm_pattern": ([_AXES, *_layer_norm(twice=False, squared=False, affine=False)], X,
                    {"epsilon": 1e-3, "two": 2}),
    "gelu_pattern": ([node("MatMul", "x w", "s"), *GELU, *GELUS["as PyTorch writes it"]], X,
             {**W, "root": 2**0.5, "one": 1, "half": 0.5}),
    "tanh_gelu_pattern": ([*CUBES["pow"], node("Mul", "c cube", "d"), node("Add", "s d", "u"),
                    node("Mul", "u slope", "v"), node("Tanh", "v", "t"), node("Add", "t one", "p"),
                    *TANHS["half x first"]], {"s": _numbers(4, 5, 24)},
                   {"three": 3, "cube": 0.044715, "slope": (2 / np.pi) ** 0.5, "one": 1,
                    "half": 0.5}),
    "swish_pattern": (
        [node("Conv", "x w", "p"), node("Sigmoid", "p", "g"), node("Mul", "p g", "y")], IMAGE,
        FILTER),
    "attention_pattern": ([*_SHAPES, *_attention("")], X,
                  {w: _numbers(24, 24) / 4 for w in ("wq", "wk", "wv")} | {"scale": 8**-0.5}),
    "bias_fusion": EXACT["a bias is a product's C"][:3],
    "residual_fusion": EXACT["a sum and its normalization"][:3],
    "activation_fusion": EXACT["a normalization"][:3],
    "elementwise_fusion": (_chained(5), {"x": _numbers(3, 5, 40), "z": _numbers(5, 1)},
               {"three": 3, "quarter": 0.25, "low": -2, "high": 2}),
    "concat_in_place": EXACT["parts of a joined tensor"][:3],
}


@pytest.mark.parametrize("name", ALONE)
def test_a_pass_is_left_out_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take its place is left out on both sides."""
    nodes, inputs, constants = ALONE[name]
    runs = []
    base = ["epilogue", *(["elementwise_fusion"] if name in (
        "activation_fusion", "swish_pattern", "bias_fusion") else [])]
    for left in (base, [*base, name]):
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", ",".join(left))
        runs.append(_run([ROWS, *nodes], inputs, constants, ["y"]))
    (fused, first), (plain, second) = runs
    assert len(fused) < len(plain)
    np.testing.assert_allclose(first[0], second[0], rtol=0, atol=1e-5 * np.abs(second[0]).max())


def test_an_unknown_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "bias_fusion, gemms")
    with pytest.raises(Exception, match="gemms"):
        _run(*EXACT["a clip"][:1], *EXACT["a clip"][1:3], ["y"])


def test_old_names_of_passes_are_read_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    switches._named.cache_clear()
    monkeypatch.setenv(switches.SWITCH, "tails, memory")
    with pytest.warns(FutureWarning, match="tails is called epilogue now"):
        assert switches.disabled() == {"epilogue", "memory"}
    monkeypatch.delenv(switches.SWITCH)
    monkeypatch.setenv(switches.OLD_SWITCH, "epilogue")
    with pytest.warns(FutureWarning, match=f"UNFUSED is called {switches.SWITCH} now"):
        assert switches.disabled() == {"epilogue"}
    assert set(switches.RENAMED.values()) <= switches.summaries().keys()
