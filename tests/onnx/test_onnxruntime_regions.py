"""Which nodes the execution provider tries, and which of them run together."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import helper

from kompute_dml import validation_cache
from kompute_dml.device import shared_device
from kompute_dml.onnx import mapping
from kompute_dml.onnx.graph import OnnxNode, OnnxValue
from kompute_dml.onnx.partition import joined, regions
from kompute_dml.onnx.region import Region
from kompute_dml.onnxruntime import provider
from kompute_dml.onnxruntime.graph import GraphReader
from kompute_dml.operators import base
from kompute_dml.validation_cache import ValidationCache
from onnx_graphs import (
    BOOL,
    FLOAT,
    INT64,
    cpu,
    model,
    needs_provider,
    node,
    placement,
    quantized_dense,
)
from provider_tools import NAME, K, N, session

pytestmark = needs_provider


def test_equal_operators_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    create = dml.Device.create_operator

    def noted(self: dml.Device, desc: Any) -> Any:
        checked.append(base.bits(desc))
        return create(self, desc)

    device = shared_device()
    monkeypatch.setattr(dml.Device, "create_operator", noted)
    monkeypatch.setattr(device, "validation_cache", ValidationCache())
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
    monkeypatch.setattr(validation_cache, "MAX_CHECKED", 2)
    device, checked = shared_device(), ValidationCache()
    for size in (1, 2, 3, 1):
        x = dml.TensorDesc("float32", [size])
        checked.operator(device, dml.ElementWiseSqrtOperatorDesc(input_tensor=x, output_tensor=x))
        assert 1 <= len(checked._valid) <= 2
    wrong = dml.ElementWiseSqrtOperatorDesc(
        input_tensor=x, output_tensor=dml.TensorDesc("float32", [2]))
    for _ in range(2):
        with pytest.raises(dml.ValidationError, match="OutputTensor"):
            checked.operator(device, wrong)


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


def test_what_counts_for_a_node_of_onnx_runtime_is_left_to_it(rng: np.random.Generator) -> None:
    """Places that only a run tells, as those of images: numbers of the graph's inputs say which.
    Whole numbers that the device computes of floats stay on it."""
    nodes = [
        node("Mul", "sizes sizes", "squares"), node("Greater", "squares four", "which"),
        node("Compress", "three which", "places"), node("Neg", "x", "a"),
        node("Gather", "a places", "rows"), node("Abs", "x", "b"),
        node("ArgMax", "b", "best", axis=1, keepdims=0), node("Mul", "best best", "far"),
        node("NonZero", "far", "there"),
    ]
    built = model(nodes, [("x", FLOAT, [3, 3]), ("sizes", INT64, [3])],
                  [("rows", FLOAT, None), ("there", INT64, None)],
                  {"four": np.array(4), "three": np.arange(3)})
    ours = session(built, False, claim="all")
    assert placement(ours, "CPUExecutionProvider") == ["Compress", "Greater", "Mul", "NonZero"]
    assert placement(ours, NAME) == ["Abs", "ArgMax", "Gather", "Mul", "Neg"]
    for sizes in ([1, 5, 3], [9, 2, 0], [3, 3, 3]):
        feed = {"x": rng.standard_normal((3, 3)).astype(np.float32), "sizes": np.array(sizes)}
        for got, wanted in zip(ours.run(None, feed), cpu(built).run(None, feed)):
            np.testing.assert_array_equal(got, wanted)


def test_values_stay_on_the_device_inside_a_region(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Trilu", "x", "a"), node("Trilu", "a", "b", upper=0), node("Trilu", "b", "c")]
    built = model(nodes, [("x", FLOAT, [6, 6])], [("c", FLOAT, [6, 6])])
    calls = []
    launch = Region.launch
    monkeypatch.setattr(
        Region, "launch", lambda self, *x: calls.append(self.label) or launch(self, *x))
    x = rng.standard_normal((6, 6)).astype(np.float32)
    got = session(built, False, claim="all").run(None, {"x": x})[0]
    assert calls == ["Trilu Trilu Trilu"]
    assert (got == np.diag(np.diag(x))).all()


def test_regions_do_not_enclose_what_is_not_theirs() -> None:
    """a -> b -> c with b unclaimed, and a -> c: a and c cannot be one region."""
    v = {name: OnnxValue(name) for name in "xabcde"}

    def make(op: str, inputs: str, output: str) -> OnnxNode:
        return OnnxNode(op, "", 1, tuple(v[i] for i in inputs), (v[output],))

    nodes = [make("A", "x", "a"), make("B", "a", "b"), make("A", "ab", "c"), make("A", "c", "d"),
             make("A", "a", "e")]
    found = regions(nodes, lambda n: n.op == "A")
    names = [[n.outputs[0].name for n in region if n.outputs[0]] for region in found]
    assert names == [["a", "e"], ["c", "d"]]


def test_absent_values_join_nothing() -> None:
    nodes = [OnnxNode("A", "", 1, (None,), (OnnxValue("a"), None)),
             OnnxNode("A", "", 1, (None, OnnxValue("x")), (OnnxValue("b"), None))]
    assert regions(nodes, lambda n: True) == [[n] for n in nodes]


@pytest.mark.parametrize("seed", range(40))
def test_regions_can_run_one_after_the_other_and_none_could_be_larger(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, nodes = [OnnxValue("x")], []
    # Long models whose values are read late have paths between regions that others lie between.
    count, reach, reads, kinds = (80, 20, 2, "AB") if seed % 2 else (30, 6, 3, "AAB")
    for i in range(count):
        read = rng.integers(max(0, len(values) - reach), len(values), reads)
        values.append(OnnxValue(str(i)))
        nodes.append(OnnxNode(rng.choice(list(kinds)), "", 1,
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


def _can_run(nodes: list[OnnxNode], region_of: dict[OnnxNode, int]) -> bool:
    """Whether regions, and nodes outside regions, have an order in which they can run."""
    waiting: dict[Any, list[OnnxNode]] = {}
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
