"""What the execution provider reads of a model, against ONNX Runtime's CPU provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx  # noqa: E402
from onnx import helper  # noqa: E402

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.onnx.graph import OnnxNode  # noqa: E402
from kompute_dml.onnx.mapping import TABLE  # noqa: E402
from kompute_dml.onnx.row import MICROSOFT, WITHOUT_EFFECT  # noqa: E402
from kompute_dml.onnxruntime import capi, provider  # noqa: E402
from kompute_dml.onnxruntime.graph import GraphReader  # noqa: E402
from onnx_graphs import (  # noqa: E402
    BOOL,
    FLOAT,
    INT8,
    INT64,
    RELEASE,
    UINT8,
    cpu,
    exact_cpu,
    model,
    needs_provider,
    node,
    options,
    placement,
    weights,
)
from provider_tools import NAME, K, N, session  # noqa: E402

pytestmark = needs_provider


@exact_cpu
def test_quantized_layer_is_claimed_and_exact(dense: bytes, rng: np.random.Generator) -> None:
    ours, theirs = session(dense, False, claim="MatMulInteger"), cpu(dense, False)
    assert placement(ours, NAME) == ["Add", "Cast", "MatMulInteger", "Mul"]
    for rows in (1, 5, 0, 67, 5):
        x = rng.standard_normal((rows, K)).astype(np.float32)
        got, expected = ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0]
        assert got.shape == expected.shape and (got == expected).all()


@pytest.mark.parametrize("chain", ["scale", "column", "row column", "scale column bias", "column2"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_fused_chains(chain: str, kind: Any, rng: np.random.Generator) -> None:
    """Each chain, before a node that must not be part of it."""
    constants = {
        "b": weights(rng, K, N), "scale": np.array([0.25], np.float32),
        "column": rng.random(N).astype(np.float32), "bias": rng.random(N).astype(np.float32),
        "row": rng.random((3, 1)).astype(np.float32),
        "column2": rng.random((1, N)).astype(np.float32), "last": np.float32(3).reshape(()),
    }
    nodes = [node("MatMulInteger", "a b", "sums"), node("Cast", "sums", "f0", to=FLOAT)]
    for i, factor in enumerate(chain.split()):
        nodes.append(node("Add" if factor == "bias" else "Mul", f"f{i} {factor}", f"f{i + 1}"))
    nodes.append(node("Sub", f"{nodes[-1].output[0]} last", "y"))
    onnx_kind = UINT8 if kind is np.uint8 else INT8
    built = model(nodes, [("a", onnx_kind, [3, K])], [("y", FLOAT, [3, N])], constants)
    ours = session(built, False, claim="MatMulInteger")
    assert placement(ours, NAME) == sorted(n.op_type for n in nodes[:-1])
    a = rng.integers(0, 127, (3, K)).astype(kind)
    assert (ours.run(None, {"a": a})[0] == cpu(built, False).run(None, {"a": a})[0]).all()


def test_what_breaks_a_chain_keeps_it_on_the_cpu(rng: np.random.Generator) -> None:
    """A sum that another node reads, and a factor that broadcasts the product."""
    constants = {"b": weights(rng, K, 1), "wide": np.ones((1, N), np.float32)}
    nodes = [node("MatMulInteger", "a b", "sums"), node("Cast", "sums", "f", to=FLOAT),
             node("Mul", "f wide", "y")]
    inputs = [("a", UINT8, [3, K])]
    built = model(nodes, inputs, [("y", FLOAT, [3, N])], constants)
    a = rng.integers(0, 255, (3, K), dtype=np.uint8)
    assert (session(built).run(None, {"a": a})[0] == cpu(built).run(None, {"a": a})[0]).all()
    built = model(nodes, inputs, [("y", FLOAT, [3, N]), ("sums", 6, [3, 1])], constants)
    for got, wanted in zip(session(built).run(None, {"a": a}), cpu(built).run(None, {"a": a})):
        assert (got == wanted).all()


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1,), (0, 2), (2, 0, 3)], ids=str)
def test_matmul_integer_to_float(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """com.microsoft's node, as in models that were saved after optimization."""
    constants = {"b": weights(rng, K, N), "bs": rng.random(N).astype(np.float32),
                 "bz": np.zeros(N, np.int8), "bias": rng.random(N).astype(np.float32)}
    nodes = [node("MatMulIntegerToFloat", "a b as bs az bz bias", "y", "com.microsoft")]
    leading = [f"d{i}" for i in range(len(shape))]
    built = model(nodes, [("a", UINT8, [*leading, K]), ("as", FLOAT, []), ("az", UINT8, [])],
                  [("y", FLOAT, [*leading, N])], constants)
    ours = session(built)
    assert placement(ours, NAME) == ["MatMulIntegerToFloat"]
    feed = {"a": rng.integers(0, 255, (*shape, K), dtype=np.uint8),
            "as": np.array(0.02, np.float32), "az": np.array(7, np.uint8)}
    got, expected = ours.run(None, feed)[0], cpu(built).run(None, feed)[0]
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_dynamic_quantize_matmul(rng: np.random.Generator) -> None:
    constants = {"b": weights(rng, K, N), "bs": rng.random(N).astype(np.float32),
                 "bias": rng.random(N).astype(np.float32)}
    nodes = [node("DynamicQuantizeMatMul", "x b bs - bias", "y", "com.microsoft")]
    built = model(nodes, [("x", FLOAT, ["n", K])], [("y", FLOAT, ["n", N])], constants)
    ours = session(built)
    assert placement(ours, NAME) == ["DynamicQuantizeMatMul"]
    for x in (rng.standard_normal((5, K)), np.zeros((2, K)), np.full((1, K), 3), np.zeros((0, K))):
        feed = {"x": x.astype(np.float32)}
        got, expected = ours.run(None, feed)[0], cpu(built).run(None, feed)[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (70, 3)], ids=str)
def test_identity_eyelike_trilu_dropout(shape: tuple[int, int], rng: np.random.Generator) -> None:
    nodes = [
        node("Identity", "x", "same"), node("Trilu", "same k", "lower", upper=0),
        node("Trilu", "same", "upper"), node("EyeLike", "x", "eye", k=1, dtype=INT64),
        node("Dropout", "x ratio training", "kept"),
    ]
    outputs = [("lower", FLOAT, ["a", "b"]), ("upper", FLOAT, ["a", "b"]),
               ("eye", INT64, ["a", "b"]), ("same", FLOAT, ["a", "b"]), ("kept", FLOAT, ["a", "b"])]
    built = model(nodes, [("x", FLOAT, ["a", "b"]), ("k", INT64, [])], outputs,
                  {"ratio": np.float32(0.5).reshape(()), "training": np.array(False)})
    ours = session(built, False, claim="all")
    assert placement(ours, NAME) == ["Dropout", "EyeLike", "Identity", "Trilu", "Trilu"]
    for k in (0, -1, 2, 2**40, -(2**40)):
        feed = {"x": rng.standard_normal(shape).astype(np.float32), "k": np.array(k)}
        for got, wanted in zip(ours.run(None, feed), cpu(built).run(None, feed)):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            assert (got == wanted).all()


def test_a_value_that_the_host_must_know_is_not_made_inside_a_region(
    rng: np.random.Generator
) -> None:
    nodes = [node("BitwiseNot", "k", "diagonal"), node("Trilu", "x diagonal", "y")]
    built = model(
        nodes, [("x", FLOAT, [4, 4]), ("k", INT64, [])], [("y", FLOAT, [4, 4])], opset=18)
    made = session(built, False, claim="all")
    assert placement(made, NAME) == ["Trilu"]
    x = rng.standard_normal((4, 4)).astype(np.float32)
    for k in (0, 2, -1):
        assert (made.run(None, {"x": x, "k": np.array(~k)})[0] == np.triu(x, k)).all()


def test_sizes_that_follow_from_inputs_are_known_to_the_host(rng: np.random.Generator) -> None:
    nodes = [node("Identity", "s", "sizes"), node("Reshape", "more sizes", "other"),
             node("Reshape", "x other", "y")]
    built = model(nodes, [("x", FLOAT, [6]), ("s", INT64, [1]), ("more", INT64, [1, 2])],
                  [("y", FLOAT, ["a", "b"])])
    made = session(built, False, claim="Identity,Reshape")
    assert placement(made, NAME) == ["Identity", "Reshape", "Reshape"]
    x = rng.standard_normal(6).astype(np.float32)
    for sizes in ([2, 3], [6, 1]):
        y = made.run(None, {"x": x, "s": np.array([2]), "more": np.array([sizes])})[0]
        np.testing.assert_array_equal(y, x.reshape(sizes))


def test_attributes_of_every_kind(rng: np.random.Generator) -> None:
    nodes = [
        node("Transpose", "x", "transposed", perm=[2, 0, 1]),
        node("Squeeze", "one", "squeezed", axes=[0, 2]),
        node("IsInf", "x", "high", detect_negative=0), node("LeakyRelu", "x", "leaky", alpha=0.25),
        node("BitShift", "bits bits", "left", direction="LEFT"),
        node("BitShift", "bits bits", "right", direction="RIGHT"),
    ]
    kinds = {"high": BOOL, "left": UINT8, "right": UINT8}
    outputs = [(n.output[0], kinds.get(n.output[0], FLOAT), None) for n in nodes]
    built = model(nodes, [("x", FLOAT, [2, 3, 4]), ("bits", UINT8, [5]), ("one", FLOAT, [1, 4, 1])],
                  outputs, opset=11)
    made = session(built, False, claim={n.op_type for n in nodes})
    assert placement(made, NAME) == sorted(n.op_type for n in nodes)
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    x[0, 0, :2] = np.inf, -np.inf
    feed = {"x": x, "bits": np.arange(1, 6, dtype=np.uint8), "one": x[0, :1, :, None]}
    for got, wanted in zip(made.run(None, feed), cpu(built, False).run(None, feed)):
        np.testing.assert_array_equal(got, wanted)


def test_long_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[OnnxNode] = []

    class Noted(GraphReader):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            read.extend(self.graph.nodes)

    monkeypatch.setattr(provider, "GraphReader", Noted)
    words = {"pool_int64s": list(range(1000)), "ngram_indexes": list(range(1000)),
             "weights": [i / 4 for i in range(1000)]}
    nodes = [node("TfIdfVectorizer", "x", "y", mode="IDF", min_gram_length=1, max_gram_length=1,
                  max_skip_count=0, ngram_counts=[0], **words)]
    with pytest.warns(UserWarning, match="TfIdfVectorizer"):
        session(model(nodes, [("x", INT64, [4])], [("y", FLOAT, [1000])]), False, claim="all")
    assert {name: read[0].attributes[name] for name in words} == words
    assert read[0].attributes["mode"] == "IDF"


def test_constants_of_types_that_are_not_read(rng: np.random.Generator) -> None:
    """Nothing here has numbers of 8 bits, so that node runs on the CPU, and the others do not."""
    graph = onnx.load_model_from_string(model(
        [node("Cast", "w", "f", to=FLOAT), node("Neg", "x", "n"), node("Sub", "n f", "y")],
        [("x", FLOAT, [2])], [("y", FLOAT, [2])], opset=19))
    graph.graph.initializer.append(
        helper.make_tensor("w", onnx.TensorProto.FLOAT8E5M2, [2], [1, 2]))
    built = graph.SerializeToString()
    made = session(built, False, claim="all")
    assert placement(made, NAME) == ["Neg", "Sub"]
    x = rng.standard_normal(2).astype(np.float32)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], -x - np.float32([1, 2]))


def test_values_that_are_no_tensors() -> None:
    nodes = [node("Neg", "x", "n"), node("SequenceConstruct", "n x", "both"),
             node("SequenceAt", "both first", "a"), node("Abs", "a", "y")]
    built = model(nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])], {"first": np.array(0)})
    made = session(built, False, claim="all")
    assert placement(made, NAME) == ["Abs", "Neg"]
    np.testing.assert_array_equal(made.run(None, {"x": np.float32([1, -2, 3])})[0], [1, 2, 3])


def test_an_initializer_that_a_run_may_replace_is_no_constant() -> None:
    built = model([node("Add", "x k", "y")], [("x", FLOAT, [2]), ("k", FLOAT, [2])],
                  [("y", FLOAT, [2])], {"k": np.float32([1, 2])})
    made, x = session(built, False, claim="all"), np.float32([10, 20])
    assert placement(made, NAME) == ["Add"]
    for feed, y in (({}, [11, 22]), ({"k": np.float32([5, 6])}, [15, 26]), ({}, [11, 22])):
        np.testing.assert_array_equal(made.run(None, {"x": x, **feed})[0], y)


WAYS = {
    "kompute.session": lambda built, given: kompute.session(
        built, session_options=given, claim="all"),
    "providers": lambda built, given: ort.InferenceSession(
        built, given, providers=[(NAME, {"claim": "all"}), "CPUExecutionProvider"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_initializers_that_a_session_replaces(way: str) -> None:
    """ONNX Runtime puts those of add_initializer in place after regions were compiled."""
    kompute.register()
    constants = {"k": np.float32([1, 2]), "i": np.int64([0, 1]), "same": np.float32([1, 1])}
    built = model([node("Gather", "x i", "g"), node("Add", "g k", "s"), node("Mul", "s same", "y")],
                  [("x", FLOAT, [3])], [("y", FLOAT, [2])], constants)
    x = {"x": np.float32([10, 20, 30])}
    values = {n: ort.OrtValue.ortvalue_from_numpy(np.array(v, constants[n].dtype))
              for n, v in {"k": [5, 6], "i": [2, 0]}.items()}
    given = options()
    for name, value in values.items():
        given.add_initializer(name, value)
    made = WAYS[way](built, given)
    assert placement(made, NAME) == ["Add", "Gather", "Mul"]
    for _ in range(2):
        assert made.run(None, x)[0].tolist() == [35, 16]
    assert WAYS[way](built, options()).run(None, x)[0].tolist() == [11, 22]


def test_initializers_that_a_session_replaces_in_nested_graphs() -> None:
    """They are looked for in each graph."""
    branches = {name: onnx.helper.make_graph(
        [node("Add", f"x {name}.k", f"{name}.y")], name, [],
        [onnx.helper.make_tensor_value_info(f"{name}.y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.float32([1, 2]), f"{name}.k")])
        for name in ("then_branch", "else_branch")}
    built = model([node("If", "b", "y", **branches)], [("x", FLOAT, [2]), ("b", BOOL, [])],
                  [("y", FLOAT, None)])
    other = ort.OrtValue.ortvalue_from_numpy(np.float32([5, 6]))
    given = options(False)
    given.add_initializer("else_branch.k", other)
    made = kompute.session(built, session_options=given, claim="all")
    for b, y in ((True, [1, 2]), (False, [5, 6])):
        got = made.run(None, {"x": np.zeros(2, np.float32), "b": np.array(b)})[0]
        assert got.tolist() == y


def test_what_shows_replaced_initializers_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session with the same options that is asked writes no profile and no model."""
    monkeypatch.chdir(tmp_path)
    built = model([node("Add", "x k", "y")], [("x", FLOAT, [2])], [("y", FLOAT, [2])],
                  {"k": np.float32([1, 2])})
    other = ort.OrtValue.ortvalue_from_numpy(np.float32([5, 6]))
    given = options()
    given.add_initializer("k", other)
    given.enable_profiling = True
    given.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    alive = set(capi.alive)
    made = kompute.session(built, session_options=given, claim="all", strict=True)
    assert made.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [5, 6]
    assert len([k for k in capi.alive if k not in alive
                and isinstance(capi.alive[k], provider.Provider)]) == 1
    made.end_profiling()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_replaced_initializer_of_other_sizes(capfd: pytest.CaptureFixture[str]) -> None:
    """The CPU does with it what it does."""
    built = model([node("Add", "x k", "y")], [("x", FLOAT, [2])], [("y", FLOAT, [2])],
                  {"k": np.float32([1, 2])})
    other = ort.OrtValue.ortvalue_from_numpy(np.float32([5, 6, 7]))
    strict, given = options(), options()
    for each in (strict, given):
        each.add_initializer("k", other)
    kompute.session(built, session_options=given, claim="all")
    words = "expected 'k' to be float32 of [2] as in the model, but got float32 of [3]"
    assert words in capfd.readouterr().err
    with pytest.raises(Exception, match=r"strict: all nodes are .*.*add_initializer"):
        kompute.session(built, session_options=strict, claim="all", strict=True)


@pytest.mark.parametrize("both", [False, True])
def test_initializers_from_outside_of_the_model(both: bool) -> None:
    """Beside them, those of add_initializer are not seen."""
    built = model([node("Mul", "x w", "p"), node("Add", "p k", "y")], [("x", FLOAT, [2])],
                  [("y", FLOAT, [2])], {"k": np.float32([1, 2]), "w": np.float32([1, 1])})
    outside = onnx.load_model_from_string(built)
    k = next(t for t in outside.graph.initializer if t.name == "k")
    k.ClearField("raw_data")
    k.data_location = onnx.TensorProto.EXTERNAL
    k.external_data.add(key="location", value="elsewhere")
    other = ort.OrtValue.ortvalue_from_numpy(np.float32([5, 6]))
    given = options()
    given.add_external_initializers(["k"], [other])
    if both:
        given.add_initializer("w", other)
    made = kompute.session(outside.SerializeToString(), session_options=given, claim="all")
    assert placement(made, NAME) == ["Add", "Mul"]
    np.testing.assert_array_equal(made.run(None, {"x": np.ones(2, np.float32)})[0], [6, 7])


def test_scalars(rng: np.random.Generator) -> None:
    built = model([node("Identity", "x", "i"), node("Identity", "i", "y")],
                  [("x", INT64, [])], [("y", INT64, [])])
    y = session(built, False, claim="Identity").run(None, {"x": np.array(2**40 + 1)})[0]
    assert y.shape == () and y == 2**40 + 1


def test_defaults_that_onnx_runtime_spells_out(rng: np.random.Generator) -> None:
    """Its nodes have every attribute, also those that the model leaves out."""
    infos = [("x", FLOAT, [4, 3])], [("y", UINT8, [4, 3])]
    x = {"x": rng.standard_normal((4, 3)).astype(np.float32)}
    for given, claimed in (({}, True), ({"precision": FLOAT}, True), ({"precision": 10}, False)):
        built = model([node("QuantizeLinear", "x scale", "y", **given)], *infos,
                      {"scale": np.float32(0.25)}, opset=23)
        made = session(built, claim="all")
        assert placement(made, NAME) == ["QuantizeLinear"] * claimed
        np.testing.assert_array_equal(made.run(None, x)[0], cpu(built).run(None, x)[0])


def test_every_default_that_onnx_runtime_spells_out_is_understood() -> None:
    """Else a node that says nothing of it would be refused."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native_module

    known: dict[tuple[str, str, int], set[str]] = {}
    for row in TABLE:
        for since in row.since:
            known.setdefault((row.domain, row.op, since), set()).update(row.attributes)
    seen = 0
    for schema in native_module.get_all_operator_schema():
        key = schema.domain.replace("ai.onnx", ""), schema.name, schema.since_version
        if key not in known:
            continue
        seen += 1
        for name, attribute in schema.attributes.items():
            if name not in known[key] and attribute._default_value:
                default = onnx.helper.get_attribute_value(
                    onnx.AttributeProto.FromString(attribute._default_value))
                assert WITHOUT_EFFECT.get(name) == default, (key, name, default)
    assert seen > 150


@pytest.mark.parametrize("op, more, kind, sizes", [
    ("QuantizeLinear", np.float32([0.5, 1, 2]), UINT8, [4, 3]),
    ("QuantizeLinear", np.float32([0.5]), UINT8, [4]),  # then the axis (1) does not matter
    ("Squeeze", np.array([0]), FLOAT, [1, 3]),
])
def test_an_axis_of_an_input_of_unknown_rank(
    op: str, more: np.ndarray, kind: int, sizes: list[int], rng: np.random.Generator
) -> None:
    x = {"x": rng.standard_normal(sizes).astype(np.float32)}
    built = model([node(op, "x more", "y")], [("x", FLOAT, None)], [("y", kind, None)],
                  {"more": more})
    made = session(built, claim=op)
    assert placement(made, NAME) == [op]
    np.testing.assert_array_equal(made.run(None, x)[0], cpu(built).run(None, x)[0])


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has no such attribute")
@pytest.mark.parametrize("order", [0, 1, 2])
def test_weights_in_the_order_of_other_kernels(order: int, rng: np.random.Generator) -> None:
    """ONNX Runtime's CPU provider computes something of them, without a word."""
    depth, columns, block = 32, 16, 16
    built = model(
        [node("MatMulNBits", "x b scales", "p", MICROSOFT, K=depth, N=columns, bits=4,
              block_size=block, weight_prepacked=order), node("Neg", "p", "y")],
        [("x", FLOAT, ["n", depth])], [("y", FLOAT, ["n", columns])],
        {"b": rng.integers(0, 256, (columns, depth // block, block // 2), np.uint8),
         "scales": np.full(columns * depth // block, 0.1, np.float32)})
    if not order:
        kompute.session(built, claim="all", strict=True)
        return
    with pytest.warns(UserWarning, match="1 nodes such as com.microsoft.MatMulNBits .*are wrong"):
        kompute.session(built, claim="all")
    with pytest.raises(Exception, match="order of CUDA's kernels"):
        kompute.session(built, claim="all", strict=True)
