"""The execution provider inside ONNX Runtime, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx  # noqa: E402
from onnx import helper  # noqa: E402

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.device import shared_device  # noqa: E402
from kompute_dml.graph import builder  # noqa: E402
from kompute_dml.graph import checked as checked_module  # noqa: E402
from kompute_dml.graph.checked import Checked  # noqa: E402
from kompute_dml.lowering.plan import (  # noqa: E402
    PERSISTENT,
    Dispatch,
    Operand,
    Plan,
    Target,
)
from kompute_dml.onnx import mapping  # noqa: E402
from kompute_dml.onnx.graph import Node, Value  # noqa: E402
from kompute_dml.onnx.partition import joined, regions  # noqa: E402
from kompute_dml.onnx.region import MAX_PLANS, Region  # noqa: E402
from kompute_dml.onnx.row import WITHOUT_EFFECT  # noqa: E402
from kompute_dml.onnx.rows import TABLE  # noqa: E402
from kompute_dml.onnxruntime import capi, provider  # noqa: E402
from kompute_dml.onnxruntime.graph import GraphReader  # noqa: E402
from kompute_dml.operators import base  # noqa: E402
from kompute_dml.runtime import recorder as recorder_module  # noqa: E402
from kompute_dml.runtime import windows  # noqa: E402
from kompute_dml.runtime.kp_engine import CommandList, Engine  # noqa: E402
from kompute_dml.runtime.transfer import Transfer  # noqa: E402
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
    quantized_dense,
    weights,
)
from provider_tools import (  # noqa: E402
    NAME,
    K,
    N,
    last_kernel,
    session,
)

pytestmark = needs_provider


def test_registration() -> None:
    kompute.register()
    kompute.register()
    assert kompute.is_registered()
    found = kompute.devices()
    assert [d.ep_name for d in found] == [NAME] * len(dml.list_devices())
    names = {d.ep_metadata["adapter_name"] for d in found}
    assert names == {a.name for a in dml.list_devices()}
    assert Path(kompute.get_library_path()).is_file()


def test_as_onnx_runtime_documents_it(dense: bytes, rng: np.random.Generator) -> None:
    kompute.register()
    given = ort.SessionOptions()
    given.add_provider_for_devices(kompute.devices()[:1], {})
    made = ort.InferenceSession(dense, given)
    assert made.get_providers()[0] == NAME
    x = rng.standard_normal((3, K)).astype(np.float32)
    assert made.run(None, {"x": x})[0].shape == (3, N)


def test_the_providers_name_serves_as_well(dense: bytes) -> None:
    kompute.register()
    made = ort.InferenceSession(dense, providers=[(NAME, {"claim": "all"}), "CPUExecutionProvider"])
    assert made.get_providers()[0] == NAME
    assert made.get_provider_options()[NAME]["claim"] == "all"


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
    assert placement(made, NAME) == ["BitwiseNot"]
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
    read: list[Node] = []

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


def test_equal_operators_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    create = dml.Device.create_operator

    def noted(self: dml.Device, desc: Any) -> Any:
        checked.append(base.bits(desc))
        return create(self, desc)

    device = shared_device()
    monkeypatch.setattr(dml.Device, "create_operator", noted)
    monkeypatch.setattr(device, "_checked", Checked())
    nodes = [node("Sqrt" if i % 2 else "Erf", *names) for i, names in enumerate(
        itertools.pairwise("xabcdy"))]
    made = session(model(nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])]), False, claim="all")
    assert len(checked) == len({*checked}) == 2
    x = np.float32([0, 1, 4])
    expected = x
    for n in nodes:
        expected = np.sqrt(expected) if n.op_type == "Sqrt" else np.vectorize(math.erf)(expected)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], expected, rtol=1e-5)


def test_a_model_is_looked_at_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are read once, and layers that differ in their constants alone are tried once;
    products in large ones."""
    read, tried = [], []
    new, trial = GraphReader._new_node, mapping.trial
    monkeypatch.setattr(GraphReader, "_new_node", lambda self, handle: (
        read.append(handle), new(self, handle))[1])
    monkeypatch.setattr(mapping, "trial", lambda row, n, device: (
        tried.append(n.op), trial(row, n, device))[1])
    nodes = [node("MatMul", "x w0", "a"), node("MatMul", "a w1", "b"), node("Add", "b two", "c"),
             node("Add", "c one", "d"), node("MatMul", "d e0", "e"), node("MatMul", "e e1", "y")]
    layers = {f"w{i}": rng.standard_normal((40, 40)).astype(np.float32) for i in range(2)}
    small = {"e0": np.ones((40, 2), np.float32), "e1": np.full((2, 2), 2, np.float32)}
    built = model(nodes, [("x", FLOAT, [3, 40])], [("y", FLOAT, [3, 2])],
                  {**layers, "one": np.float32(1), "two": np.float32(2), **small})
    made = session(built, False, claim="all")
    assert (len(read), sorted(tried)) == (len(nodes), ["Add", "MatMul", "MatMul", "MatMul"])
    x = {"x": rng.standard_normal((3, 40)).astype(np.float32)}
    np.testing.assert_allclose(made.run(None, x)[0], cpu(built).run(None, x)[0], atol=1e-3)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_module, "MAX_CHECKED", 2)
    device, checked = shared_device(), Checked()
    for size in (1, 2, 3, 1):
        x = dml.TensorDesc("float32", [size])
        checked.operator(device, dml.ElementWiseSqrtOperatorDesc(input_tensor=x, output_tensor=x))
        assert 1 <= len(checked._valid) <= 2
    wrong = dml.ElementWiseSqrtOperatorDesc(
        input_tensor=x, output_tensor=dml.TensorDesc("float32", [2]))
    for _ in range(2):
        with pytest.raises(dml.ValidationError, match="OutputTensor"):
            checked.operator(device, wrong)


@pytest.mark.parametrize("usual", [True, False], ids=["on", "off"])
def test_no_garbage_is_collected_while_a_session_is_made(
    usual: bool, dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fails(*_: Any) -> Any:
        seen.append(gc.isenabled())
        raise ValueError("afterwards")

    was = gc.isenabled()
    try:
        (gc.enable if usual else gc.disable)()
        session(dense)
        assert gc.isenabled() == usual
        monkeypatch.setattr(provider, "Kernel", fails)
        with pytest.raises(Exception, match="afterwards"):
            session(dense)
        assert (seen, gc.isenabled()) == ([False], usual)
    finally:
        (gc.enable if was else gc.disable)()


def test_what_a_nested_graph_reads(rng: np.random.Generator) -> None:
    """a -> If -> b and a -> y cannot be one region: the If reads a from outside."""
    branches = {
        name: helper.make_graph(
            [node(op, "a", f"{op}.b")], name, [],
            [helper.make_tensor_value_info(f"{op}.b", FLOAT, None)])
        for name, op in (("then_branch", "Abs"), ("else_branch", "Relu"))
    }
    nodes = [node("Neg", "x", "a"), node("If", "which", "b", **branches), node("Add", "a b", "y")]
    built = model(nodes, [("x", FLOAT, [3]), ("which", BOOL, [])], [("y", FLOAT, [3])])
    made = session(built, False, claim="all")
    assert placement(made, NAME) == ["Abs", "Add", "Neg", "Relu"]
    for which in (True, False):
        feed = {"x": rng.standard_normal(3).astype(np.float32), "which": np.array(which)}
        assert (made.run(None, feed)[0] == cpu(built).run(None, feed)[0]).all()


def test_constants_of_types_that_are_not_read(rng: np.random.Generator) -> None:
    """NumPy has no bfloat16, so that node runs on the CPU, and the others do not."""
    graph = onnx.load_model_from_string(model(
        [node("Cast", "w", "f", to=FLOAT), node("Neg", "x", "n"), node("Sub", "n f", "y")],
        [("x", FLOAT, [2])], [("y", FLOAT, [2])]))
    graph.graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [2], [1, 2]))
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


def test_initializers_that_a_session_replaces() -> None:
    """ONNX Runtime shows providers those of add_external_initializers. Those of add_initializer it
    puts in place after regions were compiled, and tells no one: the model's own are used."""
    x, own = np.zeros(2, np.float32), np.float32([1, 2])
    built = model([node("Add", "x k", "y")], [("x", FLOAT, [2])], [("y", FLOAT, [2])], {"k": own})
    other = ort.OrtValue.ortvalue_from_numpy(np.float32([5, 6]))
    given = options()
    given.add_initializer("k", other)
    assert cpu(built).run(None, {"x": x})[0].tolist() == [1, 2]
    made = kompute.session(built, session_options=given, claim="all")
    assert placement(made, NAME) == ["Add"]
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], own)

    outside = onnx.load_model_from_string(built)
    (k,) = outside.graph.initializer
    k.ClearField("raw_data")
    k.data_location = onnx.TensorProto.EXTERNAL
    k.external_data.add(key="location", value="elsewhere")
    given = options()
    given.add_external_initializers(["k"], [other])
    made = kompute.session(outside.SerializeToString(), session_options=given, claim="all")
    assert placement(made, NAME) == ["Add"]
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], [5, 6])


@pytest.mark.parametrize("op, ahead", [("Relu", 1), ("Trilu", 0)])
def test_regions_of_known_sizes_are_planned_when_they_are_made(op: str, ahead: int) -> None:
    """But not if they also depend on values, such as the diagonal."""
    nodes = [node(op, "x k" if op == "Trilu" else "x", "y")]
    built = model(nodes, [("x", FLOAT, [3, 3]), ("k", INT64, [])], [("y", FLOAT, [3, 3])])
    made = session(built, False, claim="all")
    plans = last_kernel().region._plans
    assert len(plans) == ahead
    y = made.run(None, {"x": np.ones((3, 3), np.float32), "k": np.array(1)})[0]
    np.testing.assert_array_equal(y, np.triu(np.ones((3, 3)), 1) if op == "Trilu" else 1)
    assert len(plans) == 1


def test_a_constant_is_uploaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded, upload = [], builder.upload
    monkeypatch.setattr(
        builder, "upload", lambda device, x: uploaded.append(x.tolist()) or upload(device, x))
    built = model([node("Add", "x k", "a"), node("Mul", "a k", "y")], [("x", FLOAT, [2])],
                  [("y", FLOAT, [2])], {"k": np.float32([3, 4])})
    made = session(built, False, claim="all")
    np.testing.assert_array_equal(made.run(None, {"x": np.float32([1, 1])})[0], [12, 20])
    assert uploaded == [[3, 4]]


def test_small_constants_are_uploaded_together(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded, upload = [], builder.upload
    monkeypatch.setattr(
        builder, "upload", lambda device, x: uploaded.append(x.shape) or upload(device, x))
    constants = {
        "w": rng.standard_normal((130, 130)).astype(np.float32),
        "none": np.empty((0, 130), np.float32),
        "k": rng.standard_normal(130).astype(np.float32), "one": np.float32([2]),
        "mask": rng.integers(0, 2, (3, 130)).astype(bool)}
    built = model(
        [node("MatMul", "x w", "a"), node("Add", "a k", "b"), node("Mul", "b one", "c"),
         node("Where", "mask c x", "d"), node("Concat", "d none", "y", axis=0)],
        [("x", FLOAT, [3, 130])], [("y", FLOAT, [3, 130])],
        constants)
    made = session(built, False, claim="all")
    assert len(uploaded) == 2 and (130, 130) in uploaded
    x = {"x": rng.standard_normal((3, 130)).astype(np.float32)}
    np.testing.assert_allclose(
        made.run(None, x)[0], cpu(built).run(None, x)[0], rtol=1e-4, atol=1e-4)


def test_a_constant_of_two_regions_is_uploaded_and_prepared_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded, upload = [], builder.upload
    monkeypatch.setattr(
        builder, "upload", lambda device, x: uploaded.append(x.shape) or upload(device, x))
    w = rng.standard_normal((64, 64)).astype(np.float32)
    nodes = [node("MatMul", "x w", "a"), node("Det", "a", "d"), node("Add", "a d", "b"),
             node("MatMul", "b w", "y")]
    built = model(nodes, [("x", FLOAT, [64, 64])], [("y", FLOAT, [64, 64])], {"w": w})
    made = session(built, False, claim="all")
    kernels = [k for k in capi.alive.values() if isinstance(k, provider.Kernel)][-2:]
    assert uploaded == [w.shape] and kernels[0].region._prepared is kernels[1].region._prepared
    x = {"x": (rng.standard_normal((64, 64)) / 64).astype(np.float32)}
    np.testing.assert_allclose(
        made.run(None, x)[0], cpu(built).run(None, x)[0], rtol=1e-4, atol=1e-4)


def test_scalars(rng: np.random.Generator) -> None:
    built = model([node("Identity", "x", "i"), node("Identity", "i", "y")],
                  [("x", INT64, [])], [("y", INT64, [])])
    y = session(built, False, claim="Identity").run(None, {"x": np.array(2**40 + 1)})[0]
    assert y.shape == () and y == 2**40 + 1


def test_claim_option(dense: bytes) -> None:
    nodes = [node("Trilu", "x", "t"), node("EyeLike", "x", "e")]
    built = model(nodes, [("x", FLOAT, [3, 3])], [("t", FLOAT, [3, 3]), ("e", FLOAT, [3, 3])])
    assert placement(session(built), NAME) == []
    assert placement(session(built, claim="all"), NAME) == ["EyeLike", "Trilu"]
    assert placement(session(built, claim="Trilu"), NAME) == ["Trilu"]
    assert placement(session(built, claim=["Trilu", "Abs"]), NAME) == ["Trilu"]
    # A chain may be claimed by the name of any of its nodes, and of the fused node.
    product = "MatMulIntegerToFloat"
    for claim in ("Cast", product, f"com.microsoft.{product}", f" {product} , Abs"):
        assert "MatMulInteger" in placement(session(dense, False, claim=claim), NAME)


def test_by_default_only_regions_with_a_product_are_claimed(rng: np.random.Generator) -> None:
    """Separate nodes without a product would cost two transfers and save nothing."""
    constants: dict[str, np.ndarray] = {}
    nodes = [
        *quantized_dense(rng, "x", "dense", K, N, constants), node("Relu", "dense", "beside"),
        node("Det", "square", "d"), node("Neg", "d", "apart"),
    ]
    built = model(nodes, [("x", FLOAT, [3, K]), ("square", FLOAT, [3, 3])],
                  [("beside", FLOAT, [3, N]), ("apart", FLOAT, [])], constants)
    usual, everything = session(built, False), session(built, False, claim="all")
    assert {"MatMulInteger", "Relu"} <= {*placement(usual, NAME)}
    assert placement(usual, "CPUExecutionProvider") == ["Det", "Neg"]
    assert placement(everything, "CPUExecutionProvider") == ["Det"]


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


def test_adapter_option(dense: bytes) -> None:
    x = {"x": np.ones((2, K), np.float32)}
    for adapter in dml.list_devices():
        for chosen in (adapter.index, str(adapter.index), adapter.name):
            made = session(dense, adapter=chosen)
            assert made.run(None, x)[0].shape == (2, N)
            device = last_kernel().region.device
            assert device.adapter.name == adapter.name


def test_feature_level_option(dense: bytes) -> None:
    """Trilu needs DIAGONAL_MATRIX1, of feature level 5.1; the products came with 6.2."""
    built = model([node("Trilu", "x", "t")], [("x", FLOAT, [3, 3])], [("t", FLOAT, [3, 3])])
    assert placement(session(built, claim="all", feature_level="4.1"), NAME) == []
    assert "MatMulInteger" not in placement(session(dense, feature_level="5.2"), NAME)
    # The first operators took at least four dimensions.
    added = model([node("Add", "x x", "y")], [("x", FLOAT, [3])], [("y", FLOAT, [3])])
    made = session(added, claim="all", feature_level="1.0")
    assert placement(made, NAME) == ["Add"]
    assert (made.run(None, {"x": np.float32([1, 2, 3])})[0] == [2, 4, 6]).all()
    # A view needs a copy, which 64-bit types have since 4.1.
    x = np.arange(6).reshape(2, 3)
    view = model([node("Transpose", "x", "y")], [("x", INT64, [2, 3])], [("y", INT64, [3, 2])])
    for level, names in (("4.0", []), ("4.1", ["Transpose"])):
        made = session(view, False, claim="Transpose", feature_level=level)
        assert placement(made, NAME) == names
        assert (made.run(None, {"x": x})[0] == x.T).all()
    built = model([node("Transpose", "x", "y")], [("x", FLOAT, [2, 3])], [("y", FLOAT, [3, 2])])
    made, x = session(built, False, claim="Transpose", feature_level="1.0"), x.astype(np.float32)
    assert placement(made, NAME) == ["Transpose"]
    assert (made.run(None, {"x": x})[0] == x.T).all()


def test_values_stay_on_the_device_inside_a_region(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Trilu", "x", "a"), node("Trilu", "a", "b", upper=0), node("Trilu", "b", "c")]
    built = model(nodes, [("x", FLOAT, [6, 6])], [("c", FLOAT, [6, 6])])
    calls = []
    launch = Region.launch
    monkeypatch.setattr(
        Region, "launch", lambda self, x: calls.append(self.label) or launch(self, x))
    x = rng.standard_normal((6, 6)).astype(np.float32)
    got = session(built, False, claim="all").run(None, {"x": x})[0]
    assert calls == ["Trilu Trilu Trilu"]
    assert (got == np.diag(np.diag(x))).all()


def test_a_plan_is_recorded_once(
    dense: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, theirs = session(dense), cpu(dense)
    for rows in (3, 5):
        for _ in range(2):
            x = {"x": rng.standard_normal((rows, K)).astype(np.float32)}
            np.testing.assert_allclose(
                made.run(None, x)[0], theirs.run(None, x)[0], rtol=1e-5, atol=1e-5
            )
    region = last_kernel().region
    recordings = [plan._recording for plan in region._plans.values()]
    recorder = region.device._runtime.recorder
    before = recorder.submits
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "record", None)
        if recorder.engine.records_barriers:  # all transfers use windows
            patch.setattr(Transfer, "upload", None)
            patch.setattr(Transfer, "download", None)
        for rows in (3, 5):
            made.run(None, {"x": np.ones((rows, K), np.float32)})
    if recorder.engine.records_barriers:
        assert recorder.submits - before == 2
    for plan in region._plans.values():
        if recorder.engine.host_reads_storage:  # no transfers, only the operators
            steps = [len(compiled.plan.execute) for compiled, _ in plan._steps]
            assert len(plan._recording) == sum(steps)
        plan.run([np.ones(plan._small[0][1].shape, np.float32)], anew=True)
    assert [plan._recording for plan in region._plans.values()] == recordings
    assert None not in recordings


def _plan_of(dense: bytes) -> tuple[Any, Any, Any]:
    """A plan that has run, its input, and its runtime."""
    kept = session(dense)
    region, x = last_kernel().region, [np.ones((3, K), np.float32)]
    kept.run(None, {"x": x[0]})
    return region.plan(x), x, region.device._runtime


def test_all_submits_of_a_plan_are_waited_for(
    dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_KEPT_BATCH", 2)
    plan, x, _ = _plan_of(dense)
    for _ in range(2):
        plan.run(x)
        assert len(plan._recording.batches) > 1
        assert all(batch.done for batch in plan._recording.batches)


def test_what_an_interrupted_run_reads_is_not_written_before_it_is_done(
    dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(batch: Any) -> None:
        raise KeyboardInterrupt

    plan, x, runtime = _plan_of(dense)
    with monkeypatch.context() as patch:
        patch.setattr(runtime.recorder, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            plan.run(x)
    with runtime.lock:
        plan._write(x)
    assert all(batch.done for batch in plan._recording.batches)


def test_what_was_dropped_comes_back_when_a_region_runs(dense: bytes) -> None:
    plan, x, runtime = _plan_of(dense)
    dropped = plan._device.empty([99])
    used = runtime.heap.used
    del dropped
    plan.run(x)
    assert runtime.heap.used < used


@exact_cpu
@pytest.mark.parametrize("reaches", [False, True])
def test_windows_and_what_is_too_large_for_them(
    reaches: bool, dense: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the host cannot access device memory, all plans share the windows."""
    make = Engine.__init__

    def discrete(self: Engine, adapter: Any) -> None:
        make(self, adapter)
        self.host_writes_storage &= reaches
        self.host_reads_storage &= reaches

    shown, show_host = [], CommandList.show_host
    monkeypatch.setattr(
        CommandList, "show_host", lambda self, x: shown.extend(map(id, x)) or show_host(self, x))
    monkeypatch.setattr(Engine, "__init__", discrete)
    monkeypatch.setattr("kompute_dml.device._shared", {})
    monkeypatch.setattr(windows, "SIZE", 4096)
    monkeypatch.setattr(builder, "WINDOW", 4096)
    first, second, theirs = session(dense), session(dense, claim="MatMulInteger"), cpu(dense)
    large = 1 + 4096 // (4 * N)
    for rows in (3, 5, large, 3):
        x = {"x": rng.standard_normal((rows, K)).astype(np.float32)}
        for made in (first, second, first):
            np.testing.assert_allclose(
                made.run(None, x)[0], theirs.run(None, x)[0], rtol=1e-5, atol=1e-5
            )
    region = last_kernel().region
    engine = region.device._runtime.engine
    *small, too_large = (
        plan._download for plan in sorted(region._plans.values(), key=lambda p: p._outgoing_bytes))
    assert all(map(bool, small)) == engine.records_barriers
    assert bool(too_large) == engine.host_reads_storage
    if engine.records_barriers and not engine.host_reads_storage:
        (shared,) = {window._host for window in small}
        assert id(shared.block.buffer) in shown


def test_plans_are_bounded(dense: bytes, rng: np.random.Generator) -> None:
    made = session(dense)
    region = last_kernel().region
    for rows in [*range(1, MAX_PLANS + 1), 1, MAX_PLANS + 1]:
        made.run(None, {"x": np.ones((rows, K), np.float32)})
    assert len(region._plans) == MAX_PLANS
    assert ((1, K),) in region._plans and ((2, K),) not in region._plans, "the oldest use goes"


def test_constants_are_prepared_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator repacks a constant when the session is created, and all plans share it."""
    constants: dict[str, np.ndarray] = {}
    nodes = quantized_dense(rng, "x", "y", 128, 64, constants)
    built = model(nodes, [("x", FLOAT, ["n", 128])], [("y", FLOAT, ["n", 64])], constants)
    name = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    preparing = dataclasses.replace(base._definitions[name], lower=_prepared_b)
    monkeypatch.setitem(base._definitions, name, preparing)
    monkeypatch.setitem(base._by_class, preparing.desc_class, preparing)
    ours, theirs = session(built, False, claim="MatMulInteger"), cpu(built, False)
    region = last_kernel().region
    assert (len(region._plans), len(region._prepared)) == (0, 1)
    assert len(region._prepared.pending) == 1, "the first run begins with it"
    held = [v.constant for n in region.nodes for v in n.inputs if v and v.constant is not None]
    assert held and all(values.flags.owndata for values in held), "memory of ONNX Runtime's"
    assert all(values.nbytes < 128 * 64 for values in held), "the device has B"
    for rows in (1, 67, 300):
        x = rng.standard_normal((rows, 128)).astype(np.float32)
        assert (ours.run(None, {"x": x})[0] == theirs.run(None, {"x": x})[0]).all()
    assert (len(region._plans), len(region._prepared)) == (3, 1) and not region._prepared.pending
    assert [len(p.dispatches) for p in region._prepared] == [1]


def test_views_are_strides_of_their_readers(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch makes each view a copy."""
    bounds = {"begin": np.array([1], np.int64), "end": np.array([4], np.int64)}
    built = model([node("Transpose", "x", "t"), node("Slice", "t begin end", "s"),
                   node("Relu", "s", "y")], [("x", FLOAT, [3, 5])], [("y", FLOAT, [3, 3])], bounds)
    x = rng.standard_normal((3, 5)).astype(np.float32)
    for left_out, dispatches in (("", 1), ("views", 3)):
        monkeypatch.setenv("KOMPUTE_DML_UNFUSED", left_out)
        made = session(built, False, claim="all")
        (y,) = made.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x.T[1:4], 0))
        (plan,) = last_kernel().region._plans.values()
        assert len(plan._steps) == dispatches


def test_constants_are_prepared_for_each_operator_that_would_do_so_differently(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With known sizes. The bias is as large as B, and is not repacked."""
    def differing(desc: Any, target: Target) -> Plan:
        plan = _prepared_b(desc, target)
        more = tuple(dataclasses.replace(d, groups=d.groups + desc.a_tensor.data_type.is_signed)
                     for d in plan.initialize)
        return dataclasses.replace(plan, initialize=more)

    name = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    preparing = dataclasses.replace(base._definitions[name], lower=differing)
    monkeypatch.setitem(base._definitions, name, preparing)
    monkeypatch.setitem(base._by_class, preparing.desc_class, preparing)
    kinds = {"a": np.int8, "b": np.uint8, "c": np.int8}
    constants = {"w": weights(rng, 16, 1088), "s": np.float32(1),
                 "bias": rng.integers(-9, 9, 1088).astype(np.float32)}
    products = [node("MatMulIntegerToFloat", f"{x} w s s - - bias", f"{x}.y", "com.microsoft")
                for x in kinds]
    built = model(
        [*products, node("Add", "a.y b.y", "two"), node("Add", "two c.y", "y")],
        [(x, INT8 if kind is np.int8 else UINT8, [67, 16]) for x, kind in kinds.items()],
        [("y", FLOAT, [67, 1088])], constants)
    made = session(built, False, claim="all")
    region = last_kernel().region
    (plan,) = region._plans.values()
    assert [len(p.dispatches) for p in region._prepared] == [1, 1]
    descs = [compiled.operator.desc for compiled, _ in plan._steps]
    owned = [d.bias_tensor.owned_by_dml for d in descs if hasattr(d, "bias_tensor")]
    assert owned == [False] * 3
    feed = {x: rng.integers(0, 127, (67, 16)).astype(kind) for x, kind in kinds.items()}
    sums = sum(x.astype(np.int64) for x in feed.values()) @ constants["w"]
    np.testing.assert_array_equal(made.run(None, feed)[0], sums + 3 * constants["bias"])


_PLAIN = base.definitions()["DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"].lower


def _prepared_b(desc: Any, target: Target) -> Plan:
    """The usual lowering. For many rows, it uses a copy of B that initialization makes."""
    b = desc.b_tensor
    plain = _PLAIN(dataclasses.replace(desc, b_tensor=b.replace(flags=0)), target)
    if not b.owned_by_dml or desc.a_tensor.sizes[-2] < 64:
        return plain
    words = b.total_tensor_size_in_bytes // 4
    source, result = Operand("b_tensor", "in_offset", 4, words), Operand(
        PERSISTENT, "out_offset", 4, words, writes=True
    )
    copy = Dispatch(
        target.library.get("activation_identity", "b32"), words // 256 + 1,
        (source, result),
        {"count": 1, "sizes": words, "in_strides": 1, "out_strides": 1},
        {"LOCAL_SIZE": 256, "WHOLE": 1},
    )
    execute = tuple(
        dataclasses.replace(d, operands=tuple(
            o._replace(slot=PERSISTENT) if o.slot == "b_tensor" else o
            for o in d.operands
        ))
        for d in plain.execute
    )
    return Plan(execute, (copy,), plain.temporary_bytes, 4 * words, frozenset({"b_tensor"}))


def test_regions_do_not_enclose_what_is_not_theirs() -> None:
    """a -> b -> c with b unclaimed, and a -> c: a and c cannot be one region."""
    v = {name: Value(name) for name in "xabcde"}

    def make(op: str, inputs: str, output: str) -> Node:
        return Node(op, "", 1, tuple(v[i] for i in inputs), (v[output],))

    nodes = [make("A", "x", "a"), make("B", "a", "b"), make("A", "ab", "c"), make("A", "c", "d"),
             make("A", "a", "e")]
    found = regions(nodes, lambda n: n.op == "A")
    names = [[n.outputs[0].name for n in region if n.outputs[0]] for region in found]
    assert names == [["a", "e"], ["c", "d"]]


def test_absent_values_join_nothing() -> None:
    nodes = [Node("A", "", 1, (None,), (Value("a"), None)),
             Node("A", "", 1, (None, Value("x")), (Value("b"), None))]
    assert regions(nodes, lambda n: True) == [[n] for n in nodes]


@pytest.mark.parametrize("seed", range(40))
def test_regions_can_run_one_after_the_other_and_none_could_be_larger(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, nodes = [Value("x")], []
    # Long models whose values are read late have paths between regions that others lie between.
    count, reach, reads, kinds = (80, 20, 2, "AB") if seed % 2 else (30, 6, 3, "AAB")
    for i in range(count):
        read = rng.integers(max(0, len(values) - reach), len(values), reads)
        values.append(Value(str(i)))
        nodes.append(Node(rng.choice(list(kinds)), "", 1,
                          tuple(values[j] for j in read), (values[-1],)))
    found = regions(nodes, lambda n: n.op == "A")
    region_of = {n: i for i, region in enumerate(found) for n in region}
    claimed = [n for region in found for n in region]
    assert sorted(claimed, key=nodes.index) == [n for n in nodes if n.op == "A"]
    assert all(region == sorted(region, key=nodes.index) for region in found)
    assert _can_run(nodes, region_of)
    for node_, region in region_of.items():
        for maker, other in region_of.items():
            if other != region and maker.outputs[0] in node_.inputs:
                merged = {n: other if r == region else r for n, r in region_of.items()}
                assert not _can_run(nodes, merged)
    together = joined(nodes, found)
    region_of = {n: i for i, region in enumerate(together) for n in region}
    assert sorted(region_of, key=nodes.index) == [n for n in nodes if n.op == "A"]
    assert all(region == sorted(region, key=nodes.index) for region in together)
    assert _can_run(nodes, region_of)
    for a, b in itertools.combinations(range(len(together)), 2):
        assert not _can_run(nodes, {n: a if r == b else r for n, r in region_of.items()})


def test_parts_of_a_model_that_nothing_connects_are_one_region() -> None:
    built = model([node("Relu", "a", "b"), node("Neg", "c", "d")],
                  [("a", FLOAT, [2]), ("c", FLOAT, [3])], [("b", FLOAT, [2]), ("d", FLOAT, [3])])
    with provider.decisions() as decisions:
        made = session(built, claim="all")
    assert {d.where for d in decisions} == {"region 0"}
    b, d = made.run(None, {"a": np.float32([-1, 2]), "c": np.float32([3, 0, -4])})
    assert b.tolist() == [0, 2] and d.tolist() == [-3, 0, 4]


def _can_run(nodes: list[Node], region_of: dict[Node, int]) -> bool:
    """Whether regions, and nodes outside regions, have an order in which they can run."""
    waiting: dict[Any, list[Node]] = {}
    for n in nodes:
        waiting.setdefault(region_of.get(n, n), []).append(n)
    missing = {v for n in nodes for v in n.outputs}
    while waiting:
        ready = [
            key for key, inside in waiting.items()
            if missing.isdisjoint({v for n in inside for v in n.inputs}
                                  - {v for n in inside for v in n.outputs})
        ]
        if not ready:
            return False
        missing -= {v for key in ready for n in waiting.pop(key) for v in n.outputs}
    return True


def test_onnx_runtimes_own_profile(dense: bytes, tmp_path: Path) -> None:
    if RELEASE < [1, capi.EP_VERSION]:
        pytest.skip("this ONNX Runtime asks providers for no events")
    given = options()
    given.enable_profiling, given.profile_file_prefix = True, str(tmp_path / "profile")
    made, x = kompute.session(dense, session_options=given), {"x": np.ones((2, K), np.float32)}
    for _ in range(2):
        made.run(None, x)
    events = json.loads(Path(made.end_profiling()).read_text())
    runs = [e for e in events if e["name"] == "model_run"]
    regions = [e for e in events if e["cat"] == "Api" and "MatMulInteger" in e["name"]]
    kernels = [e for e in events if e["cat"] == "Kernel"]
    assert len(runs) == len(regions) == 2 and len(kernels) >= 2
    for run, region in zip(runs, regions):
        assert run["ts"] <= region["ts"] <= region["ts"] + region["dur"] <= run["ts"] + run["dur"]
    assert made.run(None, x)[0].shape == (2, N)


@pytest.mark.parametrize("way", ["session", "compiler"])
def test_models_compiled_ahead_stay_as_they_are(way: str, dense: bytes, tmp_path: Path) -> None:
    """A model cannot contain regions, so its nodes are written."""
    path, made = tmp_path / "dense.onnx", tmp_path / "made.onnx"
    path.write_bytes(dense)
    given = options()
    x = {"x": np.ones((2, K), np.float32)}
    with pytest.warns(UserWarning, match="ep.context_enable"):
        if way == "session":
            given.add_session_config_entry("ep.context_enable", "1")
            assert kompute.session(str(path), session_options=given).run(None, x)[0].shape == (2, N)
            return
        given.add_provider_for_devices(kompute.devices()[:1], {})
        ort.ModelCompiler(given, str(path)).compile_to_file(str(made))
    assert "MatMulInteger" in placement(session(str(made)), NAME)


def test_names_that_plug_ins_give() -> None:
    assert kompute.get_ep_names() == [kompute.get_ep_name()] == [NAME]


def test_profile(dense: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    made = session(dense, profile=path)
    for _ in range(3):
        made.run(None, {"x": np.ones((2, K), np.float32)})
    has_times = last_kernel().region.device._runtime.engine.timestamps_valid
    del made
    gc.collect()
    events = json.loads(path.read_text())["traceEvents"]
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    named = [e for e in events if e.get("cat") == "region"]
    assert len(named) == 3 and "MatMulIntegerToFloat" in named[0]["name"]
    products = [e for e in events if e.get("cat") == "dispatch" and "matrix" in e["name"]]
    assert len(products) == (3 if has_times else 0)
    assert all(e["args"]["gpu_us"] > 0 for e in named) == has_times


def test_the_provider_under_its_ecosystems_name(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "packages" / "onnxruntime-ep-kompute"
    monkeypatch.syspath_prepend(str(folder))
    import onnxruntime_ep_kompute as ep

    assert ep.get_ep_names() == [ep.get_ep_name()] == ["KomputeDmlExecutionProvider"]
    assert Path(ep.get_library_path()).is_file()
