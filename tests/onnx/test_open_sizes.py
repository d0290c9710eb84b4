"""Plans for many sizes: each has the words, grids and ranges of a plan for its sizes alone."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")

import onnx
import onnx.helper as helper
from onnx import numpy_helper

import kompute_dml as dml
from at_once import AtOnce
from kompute_dml.graph import open_plan
from kompute_dml.graph.recorded import RecordedPlan
from kompute_dml.lowering import kernel
from kompute_dml.onnx import region as region_module
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.placement import place
from kompute_dml.onnx.region import Region
from plans import without_pipelines
from record_plans import targets
from test_new_sizes import CASES, CROP, IMAGE, Case, model_of, region_of, shapes_of

_SIZES = 12
_rng = np.random.default_rng(38)
_TURNS = [dict(zip("hwt", _rng.integers(9, 60, 3).tolist())) for _ in range(_SIZES)]
_FEW: dict[str, int] = {}
"""The most traces for all sizes, where these are more than six."""


_TAKEN = ("AffineGrid", "Col2Im")
"""Operators whose lowerings take the numbers of these sizes."""
_FOLDED = ("RotaryEmbedding", "GridSample", "Resize")
"""What is made once of constants, or is computed on the host, where the sizes are settled."""


def records(plan: RecordedPlan) -> list[Any]:
    """What a plan's steps do: shaders, constants, words, workgroups, and ranges of storages."""
    steps = []
    for step in plan._planned:
        compiled = step.compiled
        dispatches = []
        for dispatch in compiled.dispatches:
            words = dispatch.push
            for _, offsets, _ in dispatch.slots:
                for word, _, elements in offsets:
                    words[word] = elements  # the base is added where it runs
            dispatches.append((
                dispatch.variant.name, dispatch.groups, dispatch.spec, words.tolist(),
                [(at, sorted(offsets), sorted(touched)) for at, offsets, touched
                 in dispatch.slots]))
        steps.append((compiled.name, compiled.plan.params, compiled.plan.temporary_bytes,
                      [None if s is None else s.begin for s in step.storages[:-2]], dispatches))
    return [steps, plan.shapes, plan.dtypes, plan.kept]


def _in_order(kernels: Any, problem: Any, target: Any) -> tuple[list[Any], list[tuple[str, str]]]:
    """The kernels that serve, whatever time they take."""
    return [form for k in kernels if kernel.declined(k, problem, target) is None
            for form in k.forms(problem, target.traits)], []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_words_are_those_of_a_plan_for_the_sizes_alone(
    case: Case, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same kernels: a plan for many sizes has those that are fast for sizes about as
    large. So the first kernel that serves is taken here."""
    monkeypatch.setattr(kernel, "candidates", _in_order)
    monkeypatch.setattr(kernel.ChosenKernels, "made_again", lambda _: contextlib.nullcontext())
    without_pipelines(monkeypatch)
    monkeypatch.setattr(open_plan, "begin", lambda *_, **__: [])
    at_once = AtOnce(device, monkeypatch)
    region = region_of(case, device)
    planned = 0
    for turn, named in enumerate(_TURNS):
        shapes = shapes_of(case, named)
        inputs = [np.empty(shape, value.dtype) for shape, value in zip(shapes, region.inputs)]
        ours, alone = region.plan(inputs), region._build(shapes, {})
        if case.op not in _FOLDED:
            assert records(ours) == records(alone), named
        at_once.compare(ours)
        if ours.common is not None and not ours.common.sized:  # and the classes may be new
            assert ours.record_at_once is not None
        if shapes != shapes_of(case, _TURNS[turn - 1]):
            assert turn == 0 or ours.common is not None, region._open.declined
        planned = region.planned - turn - 1
    assert planned <= _FEW.get(case.op, 6), _settled(region)
    sized = any(plan.sized for plan in region._open.plans)
    assert at_once.compared or sized or case.op in _TAKEN


@pytest.mark.parametrize("target", ["h200", "no_matrix_units"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_operator_is_lowered_for_each_size(
    case: Case, target: str, own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on GPUs, which have the most kernels to choose from. They are only planned for."""
    without_pipelines(monkeypatch)
    monkeypatch.setattr(open_plan, "begin", lambda *_, **__: [])
    monkeypatch.setattr(own, "target", targets()[target])
    region = region_of(case, own)
    for named in _TURNS:
        region.plan([np.empty(shape, value.dtype)
                     for shape, value in zip(shapes_of(case, named), region.inputs)])
    assert not [why for opened in region._open.plans for why in opened.sized]


def test_kernels_are_chosen_for_sizes_that_are_about_as_large(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product and attention of 1 to 512 rows. Sizes of another magnitude have a class of their
    own only where other kernels are chosen there, or rows are no whole vectors."""
    without_pipelines(monkeypatch)
    monkeypatch.setattr(open_plan, "begin", lambda *_, **__: [])
    monkeypatch.setattr(own, "target", targets()["h200"])
    for case in (Case("MatMul", "f 1 t 384", np.ones((384, 384), np.float32)),
                 Case("Attention", "f 1 12 t 32", "f 1 12 t 32", "f 1 12 t 32", opset=23)):
        region = region_of(case, own)
        lengths = np.random.default_rng(3).permutation(np.arange(1, 513, 3)).tolist()
        for t in lengths:
            region.plan([np.empty(shape, value.dtype) for shape, value in zip(
                shapes_of(case, {"t": t}), region.inputs)])
        # Fewer than there are steps between powers of two up to 512: most have the same kernels.
        assert sum(opened.lowered for opened in region._open.plans) < 15


def _settled(region: Region) -> set[Any]:
    return {s for opened in region._open.plans for s in opened.settled}


def test_explain_says_which_node_keeps_a_plan_from_all_sizes(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_pipelines(monkeypatch)
    monkeypatch.setenv("KOMPUTE_DML_EXPLAIN", "1")
    resize, tokens = (region_of(c, device) for c in (CROP, Case("Softmax", IMAGE, axis=1)))
    for region in (resize, tokens):
        for n in (20, 21, 22):
            region.plan([np.empty((1, 8, n, n + 1), np.float32)])
    said = [line for line in capsys.readouterr().err.splitlines() if "many sizes" in line]
    assert len(said) == 1 and "Resize" in said[0]
    assert not resize._open.plans and len(tokens._open.plans) == 1


def test_a_guard_that_fails_makes_another_plan(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size of 1 is another graph than others: it repeats."""
    without_pipelines(monkeypatch)
    monkeypatch.setattr(open_plan, "begin", lambda *_, **__: [])
    region = region_of(Case("Add", "f h w", "f 1 w"), device)
    for h in (7, 8, 1, 9, 1, 5):
        inputs = [np.empty((h, 6), np.float32), np.empty((1, 6), np.float32)]
        assert records(region.plan(inputs)) == records(region._build([(h, 6), (1, 6)], {})), h
    assert len(region._open.plans) == 2


def test_sizes_that_come_often_get_a_plan_of_their_own(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no others come between."""
    without_pipelines(monkeypatch)
    monkeypatch.setattr(open_plan, "begin", lambda *_, **__: [])
    monkeypatch.setattr(region_module, "_SETTLES", 3)
    region = region_of(Case("Softmax", "f h w", axis=-1), device)

    def is_open(h: int) -> bool:
        return region.plan([np.empty((h, 6), np.float32)]).common is not None

    assert not is_open(7) and [is_open(h) for h in (8, 9, 8, 9, 8, 8)] == [True] * 6
    assert not is_open(8) and not is_open(8)
    assert is_open(9) and not is_open(8) and region.planned == 3


def test_memory_of_plans_is_laid_out_for_larger_sizes(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pipelines(monkeypatch)
    monkeypatch.setattr(open_plan, "begin", lambda *_, **__: [])
    region = region_of(Case("Softmax", "f h w", axis=-1), device)
    for h in range(1, 200):
        plan = region.plan([np.empty((h, 64), np.float32)])
        for end in (*plan._ends.inputs, *plan._ends.outputs):
            assert end.storage is not None and end.storage.allocation is not None
            assert h * 64 * 4 <= end.storage.nbytes <= end.storage.allocation.nbytes
            assert end.storage.nbytes <= (h * 3 // 2 + 17) * 64 * 4
    (opened,) = region._open.plans
    assert 3 <= opened.layouts <= 7, "memory that was outgrown grows faster"


def test_what_shapes_say_is_made_on_the_device_in_any_size(
    device: dml.Device, rng: np.random.Generator
) -> None:
    """Positions of tokens, as exporters write them, and a number that is computed of sizes."""
    table = rng.standard_normal((64, 8), np.float32)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["count"]),
        helper.make_node("Unsqueeze", ["count", "zero"], ["end"]),
        helper.make_node("Slice", ["places", "zero", "end", "axis"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["rows"]),
        helper.make_node("Range", ["first", "count", "one"], ["numbers"]),
        helper.make_node("Unsqueeze", ["numbers", "both"], ["line"]),
        helper.make_node("Cast", ["line"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["column"], perm=[0, 2, 1]),
        helper.make_node("Cast", ["count"], ["float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "rows"], ["sum"]),
        helper.make_node("Mul", ["sum", "column"], ["product"]),
        helper.make_node("Div", ["product", "float"], ["y"]),
    ]
    constants = {
        "zero": np.array([0]), "one": np.array(1), "axis": np.array([1]), "table": table,
        "places": np.arange(64)[None], "first": np.array(0), "both": np.array([0, 1])}
    graph = helper.make_graph(
        nodes, "positions",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, "tokens", 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    read_graph = read(onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)))
    chosen = fuse(read_graph)
    assert not place(chosen, device).reasons
    region = Region(device, chosen, read_graph.inputs, read_graph.outputs)
    for n in (3, 7, 20, 19, 7, 64, 33, 2, 5):
        x = rng.standard_normal((1, n, 8), np.float32)
        (y,) = region.run([x])
        expected = (x + table[:n]) * np.arange(n, dtype=np.float32)[:, None] / np.float32(n)
        np.testing.assert_allclose(y, expected, 1e-6, 1e-6, err_msg=str(n))
    assert region.planned == 2, region._open.reasons()


@pytest.mark.parametrize(("nodes", "expected"), [
    (["Neg part y"], lambda x, part: -part),
    (["Add x part y"], lambda x, part: x + part),
    (["MatMul x part y"], lambda x, part: x @ part),
    (["Add x part sum", "MatMul sum other y"], lambda x, part: (x + part) @ np.ones((8, 3))),
])
def test_a_part_of_a_constant_begins_where_sizes_say(
    nodes: list[str], expected: Any, device: dml.Device, rng: np.random.Generator
) -> None:
    """As positions of the tokens that follow others: eight rows after as many as x has."""
    table = rng.standard_normal((64, 8), np.float32)
    first = [helper.make_node("Shape", ["lengths"], ["begin"]),
             helper.make_node("Add", ["begin", "eight"], ["end"]),
             helper.make_node("Slice", ["table", "begin", "end", "zero"], ["part"])]
    constants = {"table": table, "eight": np.array([8]), "zero": np.array([0]),
                 "other": np.ones((8, 3), np.float32)}
    graph = helper.make_graph(
        [*first, *[helper.make_node(op, inputs, [y]) for op, *inputs, y in map(str.split, nodes)]],
        "part",
        [helper.make_tensor_value_info("lengths", onnx.TensorProto.FLOAT, ["n"]),
         helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()])
    read_graph = read(onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)))
    chosen = fuse(read_graph)
    region = Region(device, chosen, read_graph.inputs, read_graph.outputs)
    x = rng.standard_normal((8, 8), np.float32)
    arrays = {"lengths": None, "x": x}
    for n in (3, 7, 20, 19, 7, 56, 33, 2, 5):
        arrays["lengths"] = np.zeros(n, np.float32)
        (y,) = region.run([arrays[value.name] for value in region.inputs])
        np.testing.assert_allclose(
            y, expected(x, table[n : n + 8]), 1e-5, 1e-5, err_msg=str(n))
    assert region.planned == 2, region._open.reasons()


_TABLES = [
    *[Case("GridSample", IMAGE, "f 1 t 4 2", mode=mode, padding_mode=padding, align_corners=ends)
      for mode in ("linear", "nearest", "cubic") for padding in ("zeros", "border", "reflection")
      for ends in (0, 1)],
    *[Case("Resize", IMAGE, np.float32([]), np.float32([]), np.int64([1, 8, 24, 17]), mode=mode,
           coordinate_transformation_mode=coordinates)
      for mode in ("linear", "nearest", "cubic")
      for coordinates in ("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric",
                          "pytorch_half_pixel")],
    *[Case("Resize", IMAGE, np.float32([]), np.float32([1, 1, *scales]), mode="cubic", **more)
      for scales in ((2, 2), (1.5, 0.75), (0.5, 1)) for more in (
          {}, {"exclude_outside": 1}, {"cubic_coeff_a": -0.5},
          {"coordinate_transformation_mode": "half_pixel_symmetric"})],
    *[Case("Resize", IMAGE, np.float32([]), np.float32([1, 1, 0.5, 0.4]), mode=mode, antialias=1)
      for mode in ("linear", "cubic")],
    *[Case("Resize", IMAGE, np.float32([]), np.float32([]), np.int64([1, 8, 5, 90]), mode="nearest",
           nearest_mode=rounding)
      for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")],
]


@pytest.mark.parametrize("case", _TABLES, ids=lambda c: " ".join(
    [c.op, *map(str, c.attributes.values()), *[str(x) for x in c.inputs[-1:]]]))
def test_tables_that_sizes_tell_are_computed_on_the_device(
    case: Case, device: dml.Device, rng: np.random.Generator
) -> None:
    """Places and weights of elements equal ONNX Runtime's in any size, by few plans."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model_of(case).SerializeToString(), providers=["CPUExecutionProvider"])
    region = region_of(case, device)
    names = [x.name for x in session.get_inputs()]
    turns = [dict(zip("hwt", rng.integers(6, 40, 3).tolist())) for _ in range(5)]
    for named in turns:
        inputs = [rng.uniform(-1.5, 1.5, shape).astype(np.float32)
                  for shape in shapes_of(case, named)]
        (y,), (expected,) = region.run(inputs), session.run(None, dict(zip(names, inputs)))
        np.testing.assert_allclose(y, expected, 1e-4, 1e-4, err_msg=str(named))
    assert region.planned <= 4 and not region._open.declined, region._open.reasons()
