"""Shape arithmetic on the host: equal to ONNX Runtime's CPU, and inside regions."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx
import onnxruntime as ort
from click.testing import CliRunner
from onnx import helper

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
import kompute_dml.onnxruntime as kompute
import onnx_cpu
from kompute_dml.cli import cli
from kompute_dml.device import shared_device
from kompute_dml.onnx import shapes
from kompute_dml.onnx.graph import OnnxNode, OnnxValue
from kompute_dml.onnxruntime import capi, provider
from onnx_graphs import (
    FLOAT,
    INT64,
    cpu,
    installed,
    model,
    needs_provider,
    node,
    options,
    placement,
)
from provider_tools import NAME, session
from real_models import Magika, TextRecognizer, package_file

X = np.arange(24).reshape(2, 3, 4) - 7
V = np.array([3, -7, 0, 5])
B = np.array([True, False, True, False])
I = np.array  # noqa: E741

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Shape", [X], {}), ("Shape", [X], {"start": -2, "end": 9}), ("Size", [X], {}),
    ("Identity", [V], {}), ("Cast", [V], {"to": FLOAT}), ("Cast", [V], {"to": 9}),
    ("Cast", [np.float32([-2.7, 2.7])], {"to": INT64}),
    ("Reshape", [X, I([0, -1])], {}), ("Reshape", [X[:0], I([0, 7])], {"allowzero": 1}),
    ("Flatten", [X], {"axis": 2}), ("Flatten", [X], {"axis": 0}),
    ("Squeeze", [X[None, :, :1]], {}), ("Squeeze", [X[None, :, :1], I([-2])], {}),
    ("Unsqueeze", [V, I([0, -1])], {}), ("Transpose", [X], {}),
    ("Transpose", [X], {"perm": [1, 0, 2]}), ("Expand", [V, I([2, 1])], {}),
    ("Gather", [V, I(-1)], {}), ("Gather", [X, I([[1, -3]])], {"axis": 1}),
    ("OneHot", [I([0, 2, -1, 7]), I(3), I([5, 9])], {}),
    ("OneHot", [I([[0, 2], [-3, -4]]), I([3]), I([5, 9])], {"axis": 1}),
    ("Concat", [V, V[:1]], {"axis": 0}), ("Concat", [X, X], {"axis": -1}),
    ("Slice", [V, I([1]), I([2**62])], {}), ("Slice", [V, I([-1]), I([-(2**62)]), I([0]), I([-2])],
                                              {}),
    ("Slice", [X, I([1, -3]), I([2, -1]), I([1, -1])], {}),
    ("Slice", [V, I([2]), I([2**63 - 1]), I([0]), I([-1])], {}),
    ("Slice", [V, I([-9]), I([-9]), I([0]), I([-1])], {}),
    ("Split", [V, I([3, 1])], {"axis": 0}), ("Split", [X], {"axis": 2, "num_outputs": 2}),
    ("Tile", [V, I([3])], {}), ("Range", [I(9), I(-2), I(-4)], {}),
    ("Range", [np.float32(1), np.float32(2), np.float32(0.25)], {}),
    ("ConstantOfShape", [I([2, 3])], {}), ("ConstantOfShape", [I([], np.int64)], {}),
    ("ConstantOfShape", [I([2, 0])], {"value": helper.make_tensor("v", INT64, [1], [5])}),
    ("NonZero", [V], {}), ("NonZero", [X], {}),
    ("Add", [V, I(2)], {}), ("Sub", [V, X[0]], {}), ("Mul", [V, V], {}),
    ("Div", [V, I([2, 2, 2, -2])], {}), ("Div", [np.float32([1]), np.float32([3])], {}),
    ("Mod", [V, I(4)], {}), ("Mod", [V, I(4)], {"fmod": 1}), ("Pow", [V, I(2)], {}),
    ("Pow", [I([9, 2, 17]), np.float32(0.5)], {}), ("Pow", [I([1, -1, 3]), I(-3)], {}),
    ("Min", [V, I(2), V[::-1]], {}), ("Max", [V, I(2)], {}), ("Sum", [np.float32(V)] * 3, {}),
    ("Neg", [V], {}), ("Abs", [V], {}), ("Sign", [V], {}),
    *((op, [np.float32([2.5, 0.3, 3.5])], {})
      for op in ("Floor", "Ceil", "Round", "Sqrt", "Reciprocal")),
    ("Exp", [np.float32([0, -np.inf])], {}), ("Log", [np.float32([1, 0, -1])], {}),
    ("Clip", [V, I(-1), I(3)], {}), ("Clip", [V, I(4), I(2)], {}), ("Clip", [V, I(1)], {}),
    *((op, [V, I([3, -8, 1, 5])], {})
      for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")),
    ("Not", [B], {}), *((op, [B, B[::-1]], {}) for op in ("And", "Or", "Xor")),
    ("And", [B, B[:1]], {}), ("Where", [B, V, I(9)], {}),
    *((op, [X], {}) for op in ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")),
    ("ReduceSum", [X, I([0, -1])], {"keepdims": 0}),
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}), ("ReduceMax", [X, I([1])], {}),
]


@pytest.mark.parametrize("op, inputs, attributes", CASES, ids=lambda c: c if type(c) is str else "")
def test_an_evaluation_is_the_cpu_s(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    outputs = 2 if op == "Split" else 1
    wanted = onnx_cpu.results(op, *inputs, outputs=outputs, **attributes)
    if "value" in attributes:
        attributes = {"value": np.array([5])}
    arrays = [np.asarray(x) for x in inputs]
    values = [OnnxValue(str(i), x.dtype, x.shape) for i, x in enumerate(arrays)]
    described = OnnxNode(op, "", 1, tuple(values), (None,) * outputs, attributes)
    assert shapes.can(described)
    for got, y in zip(shapes.evaluate(described, arrays), wanted, strict=True):
        assert got.dtype == y.dtype and got.shape == y.shape
        np.testing.assert_array_equal(got, y)


def test_every_evaluator_has_a_case() -> None:
    assert {op for op, _, _ in CASES} == set(shapes._EVALUATORS)


@needs_provider
def test_levels_of_a_pyramid_cut_no_region(rng: np.random.Generator) -> None:
    """How many there are follows from a size by a logarithm, and has bounds."""
    built = model(
        [node("Shape", "x", "n", start=1), node("Cast", "n", "f", to=FLOAT), node("Log", "f", "l"),
         node("Ceil", "l", "c"), node("Cast", "c", "i", to=INT64), node("Clip", "i  most", "k"),
         node("Concat", "one k", "r", axis=0), node("Tile", "x r", "t"),
         node("Softmax", "t", "y")],
        [("x", FLOAT, [3, "n"])], [("y", FLOAT, [3, "m"])],
        {"most": np.array(3), "one": np.array([1])}, opset=15)
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    for n in (4, 9, 30, 5):
        x = rng.standard_normal((3, n)).astype(np.float32)
        (got,), (wanted,) = ours.run(None, {"x": x}), theirs.run(None, {"x": x})
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2**-18)


def test_division_by_zero() -> None:
    x = OnnxValue("x", np.dtype("int64"), ())
    for op, inputs in (("Div", 2), ("Mod", 2), ("Range", 3)):
        with pytest.raises(dml.ValidationError, match="divided by 0"):
            shapes.evaluate(OnnxNode(op, "", 1, (x,) * inputs, (None,)), [I(0)] * inputs)


def test_one_hot_of_no_depth() -> None:
    built = model([node("OneHot", "x depth values", "y")],
                  [("x", INT64, ["n"]), ("depth", INT64, []), ("values", FLOAT, [2])],
                  [("y", FLOAT, ["n", "m"])])
    prepared = backend.prepare(built)
    given = np.array([1]), np.float32([0, 1])
    assert prepared.run([given[0], np.array(2), given[1]])[0].tolist() == [[0, 1]]
    for depth in (0, -1):
        with pytest.raises(dml.ValidationError, match=f"at least 1, but got {depth}"):
            prepared.run([given[0], np.array(depth), given[1]])
    values = [OnnxValue(str(i), np.dtype("int64"), ()) for i in range(3)]
    with pytest.raises(dml.ValidationError, match="at least 1, but got -1"):
        one_hot = OnnxNode("OneHot", "", 11, tuple(values), (None,))
        shapes.evaluate(one_hot, [I([1]), I(-1), I([0, 1])])


def attention() -> bytes:
    """As PyTorch exports it: heads split and joined by sizes computed from x's, a scale computed
    from a size, a causal mask, and positions."""
    constants = {
        "0": I(0), "1": I(1), "axis0": I([0]), "heads": I([4]), "minus": I([-1]),
        "last": I([2**62]), "one": I(1), "low": np.float32(-1e4), "zero": np.float32(0),
    }
    nodes = [
        node("Shape", "x", "shape"), node("Gather", "shape 0", "b"), node("Gather", "shape 1", "t"),
        node("Unsqueeze", "b axis0", "b1"), node("Unsqueeze", "t axis0", "t1"),
        node("Slice", "shape minus last axis0", "w1"), node("Div", "w1 heads", "each"),
        node("Concat", "b1 t1 heads each", "split", axis=0), node("Reshape", "x split", "apart"),
        node("Transpose", "apart", "transposed", perm=[0, 2, 1, 3]),
        node("Cast", "each", "width", to=FLOAT), node("Sqrt", "width", "scale"),
        node("Div", "transposed scale", "scaled"),
        node("Range", "0 t one", "positions"), node("Cast", "positions", "offsets", to=FLOAT),
        node("Unsqueeze", "offsets minus", "column"), node("Add", "scaled column", "moved"),
        node("Concat", "t1 each", "square", axis=0),
        node("ConstantOfShape", "square", "ones", value=helper.make_tensor("v", FLOAT, [1], [1])),
        node("Trilu", "ones", "triangle", upper=0), node("Equal", "triangle zero", "hidden"),
        node("Where", "hidden low moved", "masked"), node("Softmax", "masked", "shares", axis=-1),
        node("Transpose", "shares", "back", perm=[0, 2, 1, 3]),
        node("Concat", "b1 t1 w1", "joined", axis=0), node("Reshape", "back joined", "y"),
    ]
    shape = ["b", "t", 16]
    return model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], constants)


@needs_provider
def test_shape_arithmetic_cuts_no_region(rng: np.random.Generator) -> None:
    built = attention()
    with provider.decisions() as decisions:
        ours = session(built, False, claim="all", strict=True)
    assert {d.where for d in decisions} == {"region 0"}
    assert placement(ours, "CPUExecutionProvider") == []
    prepared, theirs = backend.prepare(built), cpu(built, False)
    for sizes in ((1, 4), (3, 7), (1, 4)):
        x = rng.standard_normal((*sizes, 16)).astype(np.float32)
        (expected,) = theirs.run(None, {"x": x})
        for got in (ours.run(None, {"x": x})[0], prepared.run([x])[0]):
            # Softmax's bound, 2**-18 of probabilities of at most 1.
            np.testing.assert_allclose(got, expected, rtol=0, atol=2**-18)


@needs_provider
def test_a_large_result_is_the_device_s(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model([node("Add", "k k", "a"), node("Mul", "x a", "y")], [("x", FLOAT, [64])],
                  [("y", FLOAT, [64])], {"k": np.arange(64, dtype=np.float32)})
    evaluated, evaluate = [], shapes.evaluate
    monkeypatch.setattr(shapes, "evaluate", lambda n, x: evaluated.append(n.op) or evaluate(n, x))
    for large in (shapes.LARGE, 63):
        monkeypatch.setattr(shapes, "LARGE", large)
        (y,) = backend.prepare(built).run([np.ones(64, np.float32)])
        np.testing.assert_array_equal(y, 2 * np.arange(64))
    assert evaluated == ["Add"] * 2


@needs_provider
def test_strict() -> None:
    built = model([node("Neg", "x", "n"), node("Det", "n", "y")], [("x", FLOAT, [2, 2])],
                  [("y", FLOAT, [])])
    words = "strict: 1 of 2 nodes .* Det 'y' .no mapping has this operator"
    with pytest.raises(dml.UnsupportedError, match=words):
        session(built, False, claim="all", strict=True)
    with pytest.raises(dml.UnsupportedError, match=r"2 of 2 nodes .*\(the claim leaves it out"):
        session(built, False, claim="Abs", strict=True)
    given = options(False)
    given.add_provider_for_devices(kompute.devices()[:1], {"strict": "1", "claim": "all"})
    with pytest.raises(Exception, match=words):
        ort.InferenceSession(built, given)
    assert placement(session(built, False, claim="all", strict=False), NAME) == ["Neg"]
    with pytest.raises(dml.ValidationError, match="expected strict to be True or False"):
        session(built, strict="maybe")


@needs_provider
@pytest.mark.parametrize("newest", [True, False], ids=["this ONNX Runtime", "an older one"])
def test_strict_where_no_node_is_claimed(newest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled then. An older ONNX Runtime does not tell when a session is made."""
    built = model([node("Det", "x", "y")], [("x", FLOAT, [2, 2])], [("y", FLOAT, [])])
    if not newest:
        monkeypatch.setattr(provider, "_on_session_initialization_end", capi.ffi.NULL)

    def run() -> None:
        made = ort.InferenceSession(
            built, providers=[(NAME, {"strict": "1", "claim": "all"})], enable_fallback=False)
        assert not newest
        made.run(None, {"x": np.eye(2, dtype=np.float32)})

    kompute.register()
    with pytest.warns(UserWarning, match="runs 0 of 1"), pytest.raises(
            Exception, match=r"strict: 1 of 1 nodes .* Det 'y'"):
        run()
    monkeypatch.setattr(provider.Provider, "wanted_regions", lambda self, reader: 1 // 0)
    with pytest.raises(Exception, match=r"strict: all nodes .*: ZeroDivisionError"):
        run()


@needs_provider
def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = model([node("Shape", "x", "s"), node("Reshape", "x s", "r"), node("Neg", "r", "n"),
                   node("Det", "n", "y")], [("x", FLOAT, ["n", "n"])], [("y", FLOAT, [])])
    kompute.explain(built, claim="all")
    lines = capsys.readouterr().out.splitlines()
    assert any("region 0" in line and "DML_OPERATOR_ELEMENT_WISE_NEGATE" in line for line in lines)
    assert any(line.startswith("CPU") and "Det" in line and "no mapping" in line for line in lines)
    assert "1 region," in lines[-1] and "1 on the CPU" in lines[-1]
    path = tmp_path / "model.onnx"
    path.write_bytes(built)
    told = CliRunner().invoke(cli, ["explain", str(path), "--claim", "all"])
    assert told.output.splitlines() == lines


@needs_provider
def test_regions_that_compute_nothing_are_not_made() -> None:
    built = model([node("Shape", "x", "s"), node("Transpose", "x", "t"),
                   node("Reshape", "t s", "y")], [("x", FLOAT, ["a", "b"])],
                  [("y", FLOAT, ["a", "b"])])
    assert placement(session(built, False, claim="all"), NAME) == []


@needs_provider
@pytest.mark.parametrize("operators, claimed", [(2, 0), (20, 20)])
def test_by_default_many_bytes_are_worth_their_transfers(operators: int, claimed: int) -> None:
    shape = [256, 1024]
    names = ["x", *(f"y{i}" for i in range(operators))]
    nodes = [node("Neg", a, b) for a, b in itertools.pairwise(names)]
    built = model(nodes, [("x", FLOAT, shape)], [(names[-1], FLOAT, shape)])
    assert placement(session(built, False), NAME) == ["Neg"] * claimed


@needs_provider
def test_an_attribute_of_pooling_is_not_lost_to_convolution(rng: np.random.Generator) -> None:
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    built = model([node("MaxPool", "x", "m", **window), node("Relu", "m", "y")],
                  [("x", FLOAT, [1, 1, 5, 5])], [("y", FLOAT, [1, 1, 3, 3])])
    x = rng.standard_normal((1, 1, 5, 5)).astype(np.float32)
    got = session(built, False, claim="all", strict=True).run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, cpu(built).run(None, {"x": x})[0])


@needs_provider
@pytest.mark.parametrize("opset", [18, 19])
@pytest.mark.parametrize("op, size, more", [
    ("MaxPool", 1, {}), ("LpPool", 1, {}), ("MaxPool", 2, {"dilations": [2, 1]}),
    ("AveragePool", 1, {}), ("AveragePool", 1, {"pads": [0, 1, 0, 1], "count_include_pad": 1}),
], ids=str)
def test_a_window_larger_than_the_input(
    op: str, size: int, more: dict[str, Any], opset: int, rng: np.random.Generator
) -> None:
    """By less than a stride: ONNX's quotient of a negative number is 0, so that there is one."""
    built = model([node(op, "x", "y", kernel_shape=[2, 2], strides=[2, 2], **more)],
                  [("x", FLOAT, [1, 2, "n", 4])], [("y", FLOAT, [1, 2, "m", "k"])], opset=opset)
    x = rng.standard_normal((1, 2, size, 4)).astype(np.float32)
    got = session(built, False, claim="all", strict=True).run(None, {"x": x})[0]
    wanted = cpu(built).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-6, strict=True)
    assert got.shape[2] == 1


@pytest.mark.slow
@needs_provider
def test_real_models_run_in_one_region() -> None:
    """Their probabilities equal the CPU's within 2**-14: sums of 1024 products in another order may
    differ by 1024 roundings of 2**-24."""
    magika, reader = installed(Magika), installed(TextRecognizer)
    line = reader.image("Vulkan")[..., :96]
    pixels = np.pad(line, [(0, 0), (0, 0), (24, 24), (16, 16)], constant_values=1)
    sample = b"import numpy as np\n" * 60
    for path, given in (
        (magika.path, magika.features(sample)[None]), (reader.path, reader.image("Vulkan")),
        (package_file("rapidocr", "models/*det_small.onnx"), pixels),
        (package_file("rapidocr", "models/*cls*.onnx"), pixels),
    ):
        with provider.decisions() as decisions:
            ours = session(path, strict=True)
        assert {d.where for d in decisions} == {"region 0"}, path.name
        theirs = cpu(str(path))
        feed = {theirs.get_inputs()[0].name: given}
        for got, y in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_allclose(got, y, rtol=0, atol=2**-14)


@needs_provider
def test_what_one_buffer_cannot_hold_is_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model([node("Neg", "x", "n"), node("Add", "n k", "y")], [("x", FLOAT, [1])],
                  [("y", FLOAT, [64])], {"k": np.arange(64, dtype=np.float32)})
    engine = shared_device(None).runtime.engine
    monkeypatch.setattr(engine, "max_buffer", 255)
    with provider.decisions() as decisions:
        made = session(built, False, claim="all")
    assert placement(made, NAME) == ["Neg"]
    assert any("takes 256 bytes, of 255 in a buffer" in d.why for d in decisions)
    got = made.run(None, {"x": np.ones(1, np.float32)})[0]
    np.testing.assert_array_equal(got, np.arange(64) - 1)


def test_what_the_memory_cannot_hold_is_left_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    w = rng.standard_normal((64, 64)).astype(np.float32)
    nodes = [node("MatMul", "x w", "a"), node("Det", "a", "d"), node("Add", "a d", "b"),
             node("MatMul", "b v", "y")]
    built = model(nodes, [("x", FLOAT, [64, 64])], [("y", FLOAT, [64, 64])], {"w": w, "v": -w})
    device = shared_device(None)
    gc.collect()  # what earlier tests left would come back later
    device.synchronize()
    # Room for one of the two values.
    room = device.memory_used + w.nbytes + 16
    monkeypatch.setattr(
        device, "adapter", dataclasses.replace(device.adapter, device_memory=room))
    with provider.decisions() as decisions:
        made = session(built, False, claim="all")
    assert placement(made, NAME) == ["MatMul"]
    assert any(f"constants take {w.nbytes} bytes, of 16 that the device has left" in d.why
               for d in decisions)
    x = {"x": (rng.standard_normal((64, 64)) / 64).astype(np.float32)}
    np.testing.assert_allclose(
        made.run(None, x)[0], cpu(built).run(None, x)[0], rtol=1e-4, atol=1e-4)


def test_a_size_of_minus_one_is_unknown() -> None:
    built = onnx.load_model_from_string(
        model([node("Neg", "x", "y")], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])]))
    built.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    (got,) = backend.run_model(built, [np.float32([1, 2, 3])])
    np.testing.assert_array_equal(got, [-1, -2, -3])
