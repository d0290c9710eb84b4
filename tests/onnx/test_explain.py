"""What explain says, and what strict takes: of the nodes that there are in the end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx
from onnx import helper

import kompute_dml.onnxruntime as kompute
from kompute_dml.cli import cli
from onnx_graphs import BOOL, FLOAT, INT64, cpu, model, needs_provider, node
from provider_tools import session

pytestmark = needs_provider

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


def _operators(decisions: list[Any]) -> Counter[str]:
    return Counter(d.operator for d in decisions)


def _with_functions(*, nested: bool = False, branch: bool = False) -> bytes:
    """MatMul of a function's result. It may call another one, or be called in a branch."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    double = helper.make_function("mine", "Double", ["a"], ["b"], [
        node("Gelu", "a", "g"), node("Add", "g g", "b")], opsets)
    outer = helper.make_function("mine", "Outer", ["a"], ["b"], [
        helper.make_node("Double", ["a"], ["d"], domain="mine"), node("Neg", "d", "b")], opsets)
    call = helper.make_node("Outer" if nested else "Double", ["x"], ["t"], domain="mine")
    nodes = [call]
    if branch:
        shape = [helper.make_tensor_value_info("t", FLOAT, None)]
        other = helper.make_graph([node("Abs", "x", "t")], "other", [], shape)
        nodes = [node("If", "c", "t", then_branch=helper.make_graph([call], "one", [], shape),
                      else_branch=other)]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["n", 8])]
    inputs += [helper.make_tensor_value_info("c", BOOL, [])] if branch else []
    graph = helper.make_graph(
        [*nodes, node("MatMul", "t w", "y")], "g", inputs,
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones((8, 6), np.float32), "w")])
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=[double, outer],
                                   ir_version=10).SerializeToString())


@pytest.mark.parametrize("nested, operators", [
    (False, ["Gelu", "Add", "MatMul"]), (True, ["Gelu", "Add", "Neg", "MatMul"])])
def test_nodes_of_functions_count_once(nested: bool, operators: list[str]) -> None:
    built = _with_functions(nested=nested)
    decisions, error = kompute.decided(built, claim="all")
    assert error is None and _operators(decisions) == Counter(operators)
    assert {d.where for d in decisions} == {"region 0"}
    strict = session(built, claim="all", strict=True)
    np.testing.assert_allclose(strict.run(None, {"x": X})[0], cpu(built).run(None, {"x": X})[0],
                               rtol=1e-5, atol=1e-6)


def test_functions_in_branches_count_once() -> None:
    """Branches have regions of their own, which are numbered on."""
    decisions, _ = kompute.decided(_with_functions(branch=True), claim="all")
    assert _operators(decisions) == Counter(["Gelu", "Add", "Abs", "If", "MatMul"])
    where = {d.operator: d.where for d in decisions}
    assert where["If"] == "CPU" and len({where[op] for op in ("Gelu", "Abs", "MatMul")}) == 3


@pytest.mark.parametrize("op, opset, operators", [
    ("Mish", 18, ["Softplus", "Tanh", "Mul"]), ("Swish", 24, None)])
def test_functions_of_onnx_count_once(op: str, opset: int, operators: list[str] | None) -> None:
    """Those that are left to the CPU become their nodes there."""
    built = model([node(op, "x", "y")], [("x", FLOAT, ["n", 8])], [("y", FLOAT, None)], opset=opset)
    whole, _ = kompute.decided(built, claim="all")
    assert _operators(whole) == Counter([op])
    left, _ = kompute.decided(built)
    assert op not in _operators(left)
    assert operators is None or _operators(left) == Counter(operators)


@pytest.fixture
def impossible(tmp_path: Path) -> str:
    """A model with a node that neither the provider nor the CPU has."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model(
        [node("ComplexMul", "x x", "m", domain="com.microsoft"), node("Neg", "m", "f"),
         node("Sqrt", "f", "y")],
        [("x", FLOAT, [3, 2])], [("y", FLOAT, None)], opset=16))
    return str(path)


def test_explain_says_what_keeps_a_session_from_being_made(
    impossible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kompute.explain(impossible, claim="all")
    text = capsys.readouterr().out
    assert "ComplexMul  m: no mapping has this operator" in text
    assert "\n3 nodes:" in text and "No session can be made: " in text
    done = CliRunner().invoke(cli, ["explain", impossible, "--json"])
    assert [d["operator"] for d in json.loads(done.stdout)] == [
        "com.microsoft.ComplexMul", "Neg", "Sqrt"]
    assert "No session can be made: " in done.stderr


def test_no_level_is_named_where_none_would_help() -> None:
    built = model([node("Ceil", "x", "y")], [("x", onnx.TensorProto.DOUBLE, [3])],
                  [("y", onnx.TensorProto.DOUBLE, None)])
    (decision,), _ = kompute.decided(built, claim="all")
    assert decision.why == "input 0: InputTensor cannot be FLOAT64 at any feature level"
    (older,), _ = kompute.decided(model(
        [node("Sign", "x", "y")], [("x", INT64, [3])], [("y", INT64, None)]),
        claim="all", feature_level="3.0")
    assert older.why == "input 0: InputTensor cannot be INT64 at this feature level"


SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_integers_that_onnx_allows(dtype: str) -> None:
    kind, limits = np.dtype(dtype), np.iinfo(dtype)
    x = np.array([0, 1, 2, 100, limits.max, limits.min, limits.min // 2, 7], kind)
    expected = {"Abs": np.abs(x), "Sign": np.sign(x), "Clip": np.clip(x, 1, 90)}
    if dtype in SIGNED:
        expected |= {"Relu": np.maximum(x, 0), "Neg": -x}
    code = helper.np_dtype_to_tensor_dtype(kind)
    for op, y in expected.items():
        bounds = {"low": kind.type(1), "high": kind.type(90)} if op == "Clip" else {}
        built = model([node(op, " ".join(["x", *bounds]), op)], [("x", code, x.shape)],
                      [(op, code, None)], bounds, opset=14)
        strict = not (op == "Abs" and dtype in UNSIGNED)  # a view alone computes nothing
        got = session(built, False, claim="all", strict=strict).run(None, {"x": x})[0]
        np.testing.assert_array_equal(got, y, op, strict=True)
        if op in ("Relu", "Clip"):  # the CPU has not all of these, so they are claimed anyway
            got = session(built, False).run(None, {"x": x})[0]
            np.testing.assert_array_equal(got, y, op, strict=True)


def test_an_output_that_nobody_reads_is_no_value_that_the_host_wants() -> None:
    """Then the part that is read would be computed on the host, and the region be left out."""
    built = model([node("Split", "x", "s t", num_outputs=2), node("Mul", "s s", "y")],
                  [("x", FLOAT, [4])], [("y", FLOAT, None)], opset=18)
    decisions, _ = kompute.decided(built, claim="all")
    assert {d.where for d in decisions} == {"region 0"}
    assert "DML_OPERATOR_ELEMENT_WISE_MULTIPLY" in {d.why for d in decisions}
