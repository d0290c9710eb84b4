"""What a model in the JSON format takes from files: images, serialized graphs, ONNX models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml
from dxdispatch_models import resource
from kompute_dml import dxdispatch
from kompute_dml.dxdispatch.model import parse

Image = pytest.importorskip("PIL.Image", reason="images are read with Pillow")
pytest.importorskip("flatbuffers", reason="serialized graphs are read with flatbuffers")

from dxdispatch_graphs import Writer, activation, number, uint, union  # noqa: E402


def run(device, folder, resources, dispatchables=None, commands=(), **options):
    model = parse(json.dumps({"resources": resources, "dispatchables": dispatchables or {},
                              "commands": list(commands)}), folder=folder)
    runner = dxdispatch.Runner(model, device, write=lambda line: None, output_folder=folder,
                               **options)
    runner.run()
    return runner


def floats(*values):
    return {"initialValuesDataType": "FLOAT32", "initialValues": list(values)}


# -- images

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 14


def image_of(path: Path, data_type="FLOAT32", **fields):
    return resource(initialValuesDataType=data_type, initialValues={"sourcePath": str(path)},
                    **fields)


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_images_are_planes_of_red_green_and_blue(tmp_path, data_type):
    Image.fromarray(PIXELS).save(tmp_path / "A.PNG")
    expected = (PIXELS.transpose(2, 0, 1) / np.float32(255)).reshape(-1)
    for fields in ({}, {"resampleSize": [1, 3, 2, 3], "resampleMode": "scale"}):
        made = image_of(tmp_path / "A.PNG", data_type, **fields)
        assert made.values.dtype == data_type.lower()
        np.testing.assert_array_equal(made.values, expected.astype(data_type.lower()))


def test_images_take_the_size_and_channels_asked_for(tmp_path):
    Image.fromarray(np.full((8, 8, 3), 51, np.uint8)).save(tmp_path / "a.jpg", quality=100)
    assert image_of(tmp_path / "a.jpg", resampleSize=[1, 1, 4, 2]).values == pytest.approx(
        np.full(8, 0.2), abs=0.01)
    rgba = image_of(tmp_path / "a.jpg", resampleSize=[1, 4, 4, 2]).values.reshape(4, 8)
    assert rgba[3].tolist() == [1] * 8 and rgba[0] == pytest.approx(np.full(8, 0.2), abs=0.01)


@pytest.mark.parametrize(
    ("data_type", "fields", "words"),
    [("INT8", {}, "expected data type to be FLOAT32 or FLOAT16 for an image, but got INT8"),
     ("FLOAT32", {"resampleSize": [3, 2, 3]}, "expected dimensions to be 1, 1 or 3 or 4 channels"),
     ("FLOAT32", {"resampleSize": [2, 3, 2, 3]}, "expected dimensions to be 1, 1 or 3 or 4 chan"),
     ("FLOAT32", {"resampleMode": "crop"}, 'resampleMode: expected "scale"'),
     ("UNKNOWN", {}, "an image needs initialValuesDataType")],
)
def test_images_that_cannot_be_had(tmp_path, data_type, fields, words):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    with pytest.raises(dml.ValidationError, match=f"^model: resources.A.*{words}"):
        image_of(tmp_path / "a.png", data_type, **fields)


def test_files_that_are_no_images(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    with pytest.raises(dml.ValidationError, match=r"a\.png is no image that Pillow reads"):
        image_of(tmp_path / "a.png")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(dml.UnsupportedError, match="pip install pillow"):
        image_of(tmp_path / "a.png")


def test_tensors_are_written_as_images(device, tmp_path):
    values = floats(0, 0.5, 1, 2, -1, "nan", 0.25, 0.75, 0.1, 0.2, 0.3, 1)
    write = {"type": "writeFile", "resource": "A"}
    run(device, tmp_path, {"A": values}, commands=[
        {**write, "targetPath": "grey.png", "dimensions": [1, 1, 3, 4]},
        {**write, "targetPath": "rgb.PNG", "dimensions": [1, 3, 2, 2]},
        {**write, "targetPath": "rgb.jpg", "dimensions": [1, 3, 2, 2]}])
    grey = np.asarray(Image.open(tmp_path / "grey.png"))
    levels = [0, 127, 255, 255, 0, 0, 63, 191, 25, 51, 76, 255]
    assert grey.reshape(-1).tolist() == levels and grey.shape == (3, 4)
    rgb = np.asarray(Image.open(tmp_path / "rgb.PNG"))
    assert rgb.transpose(2, 0, 1).reshape(-1).tolist() == levels
    assert Image.open(tmp_path / "rgb.jpg").format == "JPEG"


@pytest.mark.parametrize(
    ("path", "sizes", "words"),
    [("a.png", [1, 2, 1, 2], "expected dimensions to be 1, 1 or 3 or 4 channels"),
     ("a.png", [], "expected dimensions to be 1, 1 or 3 or 4 channels"),
     ("a.jpg", [1, 4, 1, 1], "expected dimensions to have no alpha in a JPEG")],
)
def test_tensors_that_are_no_image(device, tmp_path, path, sizes, words):
    with pytest.raises(dml.ValidationError, match=f"^writeFile of 'A': {words}"):
        run(device, tmp_path, {"A": floats(0, 0, 0, 0)}, commands=[
            {"type": "writeFile", "resource": "A", "targetPath": path, "dimensions": sizes}])
    assert list(tmp_path.iterdir()) == []


# -- serialized graphs


def _graph(folder: Path) -> bytes:
    """clip(elu(x w + 1) * [1, 2, -1]); w is a file, [1, 2, -1] inside of the graph."""
    np.array([[1, -2, 0], [3, 1, -1]], "<f4").tofile(folder / "weights.bin")
    writer = Writer()
    writer.constant("w", name="weights")
    writer.constant("factors", data=np.array([1, 2, -1], "<f4").tobytes())
    row = ("FLOAT32", [1, 1, 1, 3])
    writer.operator(
        "DML_OPERATOR_GEMM", {"x": ("FLOAT32", [1, 1, 1, 2]), "w": ("FLOAT32", [1, 1, 2, 3]),
                              "": row}, {"sum": row},
        [uint(0), uint(0), number(0.5), number(0),
         activation("DML_OPERATOR_ACTIVATION_ELU", number(0.5))])
    writer.operator("DML_OPERATOR_ELEMENT_WISE_MULTIPLY", {"sum": row, "factors": row},
                    {"scaled": row}, [])
    writer.operator("DML_OPERATOR_ELEMENT_WISE_CLIP1", {"scaled": row}, {"y": row},
                    [None, uint(1), union(np.float32(-0.25).tobytes()),
                     union(np.float32(2).tobytes())])
    return writer.done(["x"], ["y"])


def test_serialized_graphs_run(device, tmp_path):
    (tmp_path / "g.bin").write_bytes(_graph(tmp_path))
    x = np.array([1, 2], np.float32)
    runner = run(device, tmp_path, {"X": floats(*x.tolist()), "Y": floats(9, 9, 9)},
                 {"g": {"type": "dmlSerializedGraph", "sourcePath": "g.bin"}},
                 [{"type": "dispatch", "dispatchable": "g", "bindings": {"x": "X", "y": "Y"}}])
    assert isinstance(runner.executables["g"]._compiled, dml.CompiledGraph)
    sums = 0.5 * (x @ np.array([[1, -2, 0], [3, 1, -1]]))
    elu = np.where(sums > 0, sums, 0.5 * np.expm1(sums))
    np.testing.assert_allclose(runner.contents("Y"), np.clip(elu * [1, 2, -1], -0.25, 2), 1e-6)
    assert runner.contents("Y")[0] == 2


@pytest.mark.parametrize(
    ("bindings", "words"),
    [({"x": "X"}, "field 'y' is required"), ({"x": "X", "y": "Y", "z": "X"}, "no tensor 'z'")],
)
def test_bindings_of_a_serialized_graph(device, tmp_path, bindings, words):
    (tmp_path / "g.bin").write_bytes(_graph(tmp_path))
    with pytest.raises(dml.ValidationError, match=words):
        run(device, tmp_path, {"X": floats(1, 2), "Y": floats(9, 9, 9)},
            {"g": {"type": "dmlSerializedGraph", "sourcePath": "g.bin"}},
            [{"type": "dispatch", "dispatchable": "g", "bindings": bindings}])


def test_graphs_that_cannot_be_read(tmp_path):
    whole = _graph(tmp_path)
    path = tmp_path / "g.bin"
    for end in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:end])
        with pytest.raises(dml.ValidationError, match=r"g\.bin is no serialized graph"):
            dxdispatch.serialized.load(path)
    path.write_bytes(whole.replace(b"DML_OPERATOR_GEMM", b"DML_OPERATOR_GERM"))
    with pytest.raises(dml.ValidationError, match="'DML_OPERATOR_GERM' is none of DirectML's"):
        dxdispatch.serialized.load(path)
    path.write_bytes(whole)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(dml.ValidationError, match=r"cannot read its constant .*weights\.bin"):
        dxdispatch.serialized.load(path)


# -- ONNX models


@pytest.fixture
def add(tmp_path):
    """sum = a + 2 b, of [n, 2]; and the same as INT64."""
    pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
    pytest.importorskip("cffi", reason="the provider needs cffi")
    helper = pytest.importorskip("onnx").helper
    one, seven = 1, 7
    nodes = [helper.make_node("Mul", ["b", "two"], ["double"]),
             helper.make_node("Add", ["a", "double"], ["sum"]),
             helper.make_node("Cast", ["sum"], ["whole"], to=seven)]
    graph = helper.make_graph(
        nodes, "add", [helper.make_tensor_value_info(n, one, ["n", 2]) for n in "ab"],
        [helper.make_tensor_value_info("sum", one, ["n", 2]),
         helper.make_tensor_value_info("whole", seven, ["n", 2])],
        [helper.make_tensor("two", one, [1], [2.0])])
    model = helper.make_model(graph, ir_version=8,
                              opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "add.onnx").write_bytes(model.SerializeToString())
    return {"add": {"type": "onnx", "sourcePath": "add.onnx"}}


def _bound(**bindings):
    return {"type": "dispatch", "dispatchable": "add", "bindings": bindings}


@pytest.mark.filterwarnings("error::UserWarning")  # that no node is claimed
def test_onnx_models_run_on_the_device(device, tmp_path, add):
    import kompute_dml.onnxruntime as kompute

    deferred = {"initialValuesDataType": "INT64", "initialValues": "deferred"}
    resources = {"A": floats(1, 2, 3, 4), "B": floats(10, 20, 30, 40), "S": floats(*[9] * 5),
                 "W": deferred}
    shape = {"shape": [2, 2]}
    runner = run(device, tmp_path, resources, add, [
        _bound(a={"name": "A", **shape}, b={"name": "B", **shape},
               sum={"name": "S", **shape}, whole="W"),
        {"type": "print", "resource": "W"},
        {"type": "writeFile", "resource": "W", "targetPath": "w.npy", "dimensions": [2, 2]}])
    assert runner.contents("S").tolist() == [21, 42, 63, 84, 9]
    assert runner.contents("W").tolist() == [21, 42, 63, 84]
    assert np.load(tmp_path / "w.npy").tolist() == [[21, 42], [63, 84]]
    session = runner.executables["add"]._session._session
    assert session.get_providers()[0] == kompute.get_ep_name()
    run(device, tmp_path, resources, add, [_bound()])  # zeros in, and nothing out


def test_free_dimensions_are_one_or_what_the_model_file_says(device, tmp_path, add):
    resources = {"A": floats(1, 2, 3, 4), "S": floats(0, 0, 0, 0)}
    for overrides, expected in (({}, [1, 2, 0, 0]), ({"n": 2}, [1, 2, 3, 4])):
        add["add"]["freeDimensionNameOverrides"] = overrides
        runner = run(device, tmp_path, resources, add, [_bound(a="A", sum="S")])
        assert runner.contents("S").tolist() == expected


@pytest.mark.parametrize(
    ("bindings", "words"),
    [({"c": "A"}, "c: expected one of a, b, sum, whole, bound to one resource"),
     ({"a": ["A", "A"]}, "a: expected one of"),
     ({"a": {"name": "A", "elementOffset": 1}}, "a: expected one of"),
     ({"a": {"name": "A", "shape": [3, 2]}}, r"expected 24 bytes for a \[3, 2\], but .* has 16"),
     ({"a": {"name": "A", "shape": [1, 2, 2]}}, "ONNX Runtime: .*a"),
     ({"sum": {"name": "A", "shape": [2, 2]}}, r"sum: expected shape \[2, 2\], but got \[1, 2\]"),
     ({"whole": "B"}, "resource 'B': expected 16 bytes"),
     ({"a": "D"}, "resource 'D' is deferred: only an output of an ONNX model can size it")],
)
def test_bindings_of_an_onnx_model(device, tmp_path, add, bindings, words):
    deferred = {"initialValuesDataType": "FLOAT32", "initialValues": "deferred"}
    resources = {"A": floats(1, 2, 3, 4), "B": floats(1), "D": deferred}
    with pytest.raises(dml.ValidationError, match=f"^dispatch of 'add': {words}"):
        run(device, tmp_path, resources, add, [_bound(**bindings)])


def test_onnx_files_that_are_none(device, tmp_path, add):
    (tmp_path / "add.onnx").write_bytes(b"no model")
    with pytest.raises(dml.ValidationError, match=r"^dispatchable 'add': .*add\.onnx: "):
        run(device, tmp_path, {}, add)
    add["add"]["sourcePath"] = "none.onnx"
    with pytest.raises(dml.ValidationError, match=r"dispatchables\.add\.sourcePath: no file"):
        run(device, tmp_path, {}, add)


def test_nothing_fills_a_deferred_resource(device, tmp_path):
    deferred = {"D": {"initialValuesDataType": "FLOAT32", "initialValues": "deferred"}}
    with pytest.raises(dml.ValidationError, match="'D' is deferred, and nothing filled it"):
        run(device, tmp_path, deferred, commands=[{"type": "print", "resource": "D"}])


def test_hlsl_is_refused_with_the_reason(device, tmp_path):
    with pytest.raises(dml.UnsupportedError, match="'x' is an HLSL shader, which is not supported: "
                                                   "it would take Microsoft's compiler"):
        run(device, tmp_path, {}, {"x": {"type": "hlsl", "sourcePath": "y"}})
