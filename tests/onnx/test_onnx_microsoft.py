"""com.microsoft's operators against ONNX Runtime's CPU, in its sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx
from onnx import helper

from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node, placement
from provider_tools import NAME, session

pytestmark = needs_provider
MICROSOFT = "com.microsoft"
SCALES = {"s": np.float32(0.05), "t": np.float32(0.125), "u": np.float32(0.02)}


def _pair(
    op: str, inputs: str, given: dict[str, np.ndarray], constants: dict[str, np.ndarray],
    outputs: str = "y", domain: str = MICROSOFT, **attributes: Any,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of each output here and on the CPU."""
    infos = [(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()]
    proto = onnx.load_model_from_string(model(
        [node(op, inputs, outputs, domain, **attributes)], infos,
        [(n, FLOAT, None) for n in outputs.split()],
        {n: np.asarray(x) for n, x in constants.items()}, opset=21))
    for info in proto.graph.output:
        info.ClearField("type")  # ONNX Runtime infers it
    built = proto.SerializeToString()
    ours = session(built, False, claim="all")
    assert placement(ours, NAME) == [op]
    return list(zip(ours.run(None, given), cpu(built, False).run(None, given)))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op, inputs, attributes", [
    ("QLinearMul", "a s z b t z u z", {}), ("QLinearSigmoid", "a s z u z", {}),
    ("QLinearLeakyRelu", "a s z u z", {"alpha": 0.25}),
    ("QLinearSoftmax", "a s z u z", {"axis": 1, "opset": 13}),
    ("QLinearSoftmax", "a s z u z", {"axis": 1, "opset": 11}),
    ("QLinearConcat", "u z a s z b t z", {"axis": 1}),
])
def test_quantized(
    op: str, inputs: str, attributes: dict[str, Any], kind: Any, rng: np.random.Generator
) -> None:
    info = np.iinfo(kind)
    given = {n: rng.integers(info.min, info.max, (2, 5, 3)).astype(kind)
             for n in ("a", "b") if n in inputs.split()}
    used = {n: x for n, x in {**SCALES, "z": kind(7)}.items() if n in inputs.split()}
    for got, wanted in _pair(op, inputs, given, used, **attributes):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        # ONNX Runtime multiplies scales first, so ties may be rounded differently.
        assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("inputs", ["x w", "x w b p"])
@pytest.mark.parametrize("attributes", [
    {}, {"activation": "silu"}, {"dilation": 3, "channels_last": 1}])
def test_causal_convolution(
    inputs: str, attributes: dict[str, Any], rng: np.random.Generator
) -> None:
    before = 2 * attributes.get("dilation", 1)
    order = (0, 2, 1) if "channels_last" in attributes else (0, 1, 2)
    every = {n: rng.standard_normal(sizes).astype(np.float32) for n, sizes in (
        ("x", (2, 5, 4)), ("p", (2, 5, before)), ("w", (5, 1, 3)), ("b", (5,)))}
    given = {n: every[n].transpose(order) for n in "xp" if n in inputs}
    constants = {n: every[n] for n in "wb" if n in inputs}
    pairs = _pair("CausalConvWithState", inputs, given, constants, "y left", **attributes)
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rule, tokens, by_feature, alike, queries", [
    ("linear", 5, False, False, 4), ("gated", 40, True, False, 4), ("delta", 1, False, False, 4),
    ("gated_delta", 70, False, False, 1), ("gated_delta", 33, True, True, 4)])
def test_linear_attention(
    rule: str, tokens: int, by_feature: bool, alike: bool, queries: int,
    rng: np.random.Generator,
) -> None:
    """Of one chunk and of several, with more heads of queries than of values, or fewer of queries
    and keys. ``alike``: keys that are equal, so that each token's update depends on all before it.
    """
    heads, size, width = 2, 8, 6

    def numbers(*sizes: int) -> np.ndarray:
        return rng.standard_normal((1, tokens, *sizes)).astype(np.float32)

    keys = numbers(min(heads, queries), size)
    if alike:
        keys[:] = keys[:, :1]
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    given = {"q": numbers(queries * size), "k": keys.reshape(1, tokens, -1),
             "v": numbers(heads * width),
             "s": rng.standard_normal((1, heads, size, width)).astype(np.float32)}
    names = "q k v s"
    if "gated" in rule:
        given["d"] = -0.1 * np.abs(numbers(heads * size if by_feature else heads))
    names += " d" if "gated" in rule else " -"
    if "delta" in rule:
        given["b"] = 1 / (1 + np.exp(-numbers(heads)))
        names += " b"
    for got, wanted in _pair("LinearAttention", names, given, {}, "y left", update_rule=rule,
                             q_num_heads=queries, kv_num_heads=heads):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)


def test_outputs_that_nothing_reads(rng: np.random.Generator) -> None:
    """The mean and the variance are no outputs that DirectML has."""
    given = {n: rng.standard_normal((2, 3, 8)).astype(np.float32) for n in "xs"}
    built = model(
        [node("SkipLayerNormalization", "x s g", "y mean variance sum", MICROSOFT)],
        [(n, FLOAT, x.shape) for n, x in given.items()],
        [("y", FLOAT, ["a", "b", "c"]), ("sum", FLOAT, ["a", "b", "c"])],
        {"g": rng.standard_normal(8).astype(np.float32)})
    ours = session(built, False, claim="all", strict=True)
    for got, wanted in zip(ours.run(None, given), cpu(built, False).run(None, given)):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_dequantize_and_quantize(rng: np.random.Generator) -> None:
    given = {"a": rng.integers(0, 255, (2, 5)).astype(np.uint8)}
    constants = {"s": rng.random(5).astype(np.float32), "z": np.arange(5, dtype=np.uint8)}
    for got, wanted in _pair("DequantizeLinear", "a s z", given, constants, axis=1):
        np.testing.assert_array_equal(got, wanted)
    real = {"x": rng.standard_normal((2, 5)).astype(np.float32)}
    for got, wanted in _pair("QuantizeLinear", "x s z", real, constants, axis=1):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("inputs", [
    "ids seg words places segs g b mask", "ids - words places - g b",
    "ids seg words places segs g b mask chosen"])
def test_embed_layer_normalization(inputs: str, rng: np.random.Generator) -> None:
    names = inputs.split()
    given = {n: rng.integers(0, 2, (2, 4)).astype(np.int32)
             for n in ("ids", "seg", "mask", "chosen") if n in names}
    constants = {n: rng.standard_normal(sizes).astype(np.float32) for n, sizes in (
        ("words", (9, 8)), ("places", (6, 8)), ("segs", (2, 8)), ("g", (8,)), ("b", (8,)))
        if n in names}
    pairs = _pair("EmbedLayerNormalization", inputs, given, constants, "y counts total")
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert pairs[1][0].dtype == np.int32


def test_biases(rng: np.random.Generator) -> None:
    given = {"x": rng.standard_normal((2, 3, 8)).astype(np.float32),
             "w": rng.standard_normal((2, 3, 8)).astype(np.float32)}
    bias = {"b": rng.standard_normal(8).astype(np.float32)}
    made = session(model(
        [node("BiasAdd", "x b w", "sum", MICROSOFT), node("BiasSplitGelu", "x b", "y", MICROSOFT)],
        [(n, FLOAT, x.shape) for n, x in given.items()],
        [("sum", FLOAT, None), ("y", FLOAT, None)], bias), False, claim="all")
    total, y = made.run(None, given)  # ONNX Runtime's CPU has neither operator
    np.testing.assert_allclose(total, given["x"] + bias["b"] + given["w"], rtol=1e-6)
    left, right = np.split((given["x"] + bias["b"]).astype(np.float64), 2, -1)
    erf = np.vectorize(__import__("math").erf)
    np.testing.assert_allclose(y, left * right / 2 * (1 + erf(right / 2**0.5)), atol=1e-5)


@pytest.mark.parametrize("scales", [(1,), (1, 16)], ids=["tensor", "column"])
def test_dynamic_quantize_lstm(scales: tuple[int, ...], rng: np.random.Generator) -> None:
    """ONNX Runtime also quantizes inputs and states to 8 bits. Weights take 7 bits: on CPUs without
    VNNI, it adds pairs of products in 16 bits, and larger ones saturate."""
    constants = {
        "w": rng.integers(-63, 63, (1, 6, 16)).astype(np.int8),
        "r": rng.integers(-63, 63, (1, 4, 16)).astype(np.int8),
        "ws": np.full(scales, 0.01, np.float32), "wz": np.zeros(scales, np.int8),
        "rs": np.full(scales, 0.008, np.float32), "rz": np.zeros(scales, np.int8),
        "b": rng.standard_normal((1, 32)).astype(np.float32) / 4,
    }
    given = {"x": rng.standard_normal((5, 2, 6)).astype(np.float32)}
    pairs = _pair("DynamicQuantizeLSTM", "x w r b - - - - ws wz rs rz", given, constants,
                  "y h c", hidden_size=4)
    for got, wanted in pairs:
        assert np.abs(got - wanted).max() < 0.02


@pytest.mark.parametrize("op, values, attributes", [
    ("ConstantOfShape", [np.array([1200, 1000])],
     {"value": helper.make_tensor("v", FLOAT, [1], [2.5])}),
    ("Range", [np.array(3.0, np.float32), np.array(2e6, np.float32), np.array(1.5, np.float32)],
     {}),
])
def test_large_filled_values(op: str, values: list[np.ndarray], attributes: Any) -> None:
    """Only a run knows sizes and steps. The device writes so many elements."""
    feed = dict(zip("abc", values))
    built = model(
        [node(op, " ".join(feed), "filled", **attributes), node("Relu", "filled", "y")],
        [(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feed.items()],
        [("y", FLOAT, ["n", "m"] if op == "ConstantOfShape" else ["n"])])
    ours = session(built, False, claim="all")
    assert placement(ours, NAME) == sorted([op, "Relu"])
    got, wanted = ours.run(None, feed)[0], cpu(built, False).run(None, feed)[0]
    np.testing.assert_array_equal(got, wanted)


def test_cast_like(rng: np.random.Generator) -> None:
    given = {"x": np.float32([1.5, -2.5]), "like": np.arange(3)}
    built = model([node("CastLike", "x like", "y")], [("x", FLOAT, [2]), ("like", INT64, [3])],
                  [("y", INT64, [2])], opset=21)
    assert session(built, False, claim="all").run(None, given)[0].tolist() == [1, -2]
