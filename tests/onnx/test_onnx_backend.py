"""The package as an ONNX backend."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml

pytest.importorskip("onnx", reason="the backend reads models with onnx")
pytest.importorskip("onnxruntime", reason="models are built for both backends")

import onnx

import conformance
import kompute_dml.onnx_backend as backend
from kompute_dml.onnx.model import load
from onnx_graphs import BOOL, FLOAT, INT64, cpu, model, needs_provider, node

_CLAIMED = {"attention_3d": 14, "attention_4d": 25, "lstm": 5, "gru": 5, "rnn": 5,
            "rotary_embedding": 8, "training_mode": 2}
"""The least claimed tests of some operators in every version of onnx. Newer ones have more."""
_PARTS = 12
"""Parts of the node tests, which workers share."""
PAGE = " ".join((Path(__file__).parents[2] / "docs" / "onnxruntime.md").read_text().split())


def test_onnx_node_tests_of_the_first_operators(device: dml.Device) -> None:
    report = conformance.run(device, ("EyeLike", "Trilu", "Identity"))
    assert not report.failed
    claimed = " ".join(report.claimed)
    for operator, tests in (("eyelike", 3), ("tri", 18), ("identity", 1)):
        assert claimed.count(f"test_{operator}") >= tests, operator


def test_onnx_node_tests_of_convolutions(device: dml.Device) -> None:
    report = conformance.run(
        device, ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "Col2Im"))
    assert not report.failed
    assert report.passed == report.all >= 25


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_onnx_node_tests(part: int, device: dml.Device) -> None:
    report = conformance.run(device, part=slice(part, None, _PARTS))
    print(report)
    assert report.passed > 0 and not report.failed


def test_onnx_node_tests_that_are_claimed(device: dml.Device) -> None:
    report = conformance.run(device, computes=False)
    claimed = " ".join(report.claimed)
    for name, count in _CLAIMED.items():
        assert claimed.count(name) >= count, name
    assert not set(conformance.EXCLUDED) - set(report.excluded), "reasons without a test"
    told = re.search(r"onnx (\d[\d.]+) has (\d+) node tests. The backend claims (\d+) of them and "
                     r"passes (\d+)", PAGE)
    assert told is not None
    version, all_tests, claims, passed = told.groups()
    if version == onnx.__version__:
        # More where operators have come since.
        assert report.passed >= int(passed) and report.all == int(all_tests)
        assert int(passed) == int(claims) - len(conformance.EXCLUDED)


def test_prepare_and_run(rng: np.random.Generator) -> None:
    built = model([node("Trilu", "x k", "y"), node("EyeLike", "x", "e")],
                  [("x", FLOAT, ["a", "b"]), ("k", INT64, [])],
                  [("y", FLOAT, ["a", "b"]), ("e", FLOAT, ["a", "b"])])
    prepared = backend.prepare(built)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    for k in (0, 1):
        feed = {"x": x, "k": np.array(k)}
        outputs = prepared.run(feed)
        assert (outputs.y == np.triu(x, k)).all() and (outputs["e"] == np.eye(4, 6)).all()
    assert (backend.run_model(built, [x, np.array(0)])[0] == np.triu(x)).all()
    with pytest.raises(dml.ValidationError, match="expected the inputs"):
        prepared.run({"x": x})
    with pytest.raises(dml.ValidationError, match="expected input 'x' to be float32"):
        prepared.run([x.astype(np.float64), np.array(0)])
    with pytest.raises(dml.ValidationError, match=r"expected input 'k' to be int64 of sizes \(\)"):
        prepared.run([x, np.array([0])])


def test_the_name_of_onnx_own_domain(rng: np.random.Generator) -> None:
    built = onnx.load_model_from_string(
        model([node("Neg", "x", "y")], [("x", FLOAT, [3])], [("y", FLOAT, [3])]))
    x = rng.standard_normal(3).astype(np.float32)
    for item in (built.opset_import[0], built.graph.node[0]):
        item.domain = "ai.onnx"
        assert (backend.run_model(built, [x])[0] == -x).all()
    assert item.domain == built.opset_import[0].domain == "ai.onnx"


def test_the_name_of_onnx_own_domain_in_nested_graphs() -> None:
    y = onnx.helper.make_tensor_value_info("y", FLOAT, [3])
    branch = onnx.helper.make_graph([node("Neg", "x", "y", domain="ai.onnx")], "branch", [], [y])
    built = model([node("If", "c", "y", then_branch=branch, else_branch=branch)],
                  [("x", FLOAT, [3]), ("c", BOOL, [])], [("y", FLOAT, [3])])
    renamed = load(built).graph.node[0]
    assert [a.g.node[0].domain for a in renamed.attribute] == ["", ""]


def test_run_node(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 6)).astype(np.float32)
    (y,) = backend.run_node(node("Trilu", "x", "y", upper=0), [x])
    assert (y == np.tril(x)).all()


@needs_provider
def test_what_is_missing_is_named_all_at_once(rng: np.random.Generator) -> None:
    nodes = [node("Trilu", "x", "t"), node("Det", "t", "d"), node("Unique", "x", "v")]
    built = model(nodes, [("x", FLOAT, [3, 3])], [("d", FLOAT, []), ("v", FLOAT, ["n"])])
    with pytest.raises(dml.UnsupportedError, match=r"Det 'd' \(.*Unique 'v' \("):
        backend.prepare(built)
    assert not backend.is_compatible(built)
    x = rng.standard_normal((3, 3)).astype(np.float32)
    got = backend.prepare(built, fallback=True).run([x])
    for a, b in zip(got, cpu(built).run(None, {"x": x})):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_devices() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("VULKAN")
    assert backend.supports_device("VULKAN:0")
    assert not backend.supports_device("CUDA") and not backend.supports_device("VULKAN:99")


def test_what_is_no_model() -> None:
    with pytest.raises(dml.ValidationError, match="expected an ONNX model"):
        backend.prepare(b"no model")
    unknown = model([node("NoSuchOperator", "x", "y")], [("x", FLOAT, [1])], [("y", FLOAT, [1])])
    with pytest.raises(dml.ValidationError, match="NoSuchOperator"):
        backend.prepare(unknown)
