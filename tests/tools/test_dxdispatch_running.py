"""Models in the JSON format, executed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import kompute_dml as dml
from dxdispatch_models import BUFFERS, COPY, MODELS, SUM, model_of, tensor
from kompute_dml import dxdispatch
from kompute_dml.bench.timing import Loop
from kompute_dml.dxdispatch.model import load, parse
from kompute_dml.operators import base


def lines_of(model, device, **options):
    lines: list[str] = []
    runner = dxdispatch.Runner(model, device, write=lines.append, **options)
    runner.run()
    return [line for line in lines if not line.startswith("Dispatch ")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("diagonal_matrix", ["Resource 'Out': 0, 2.5, 0, 0, 0, 0, 2.5, 0, 0, 0, 0, 2.5"]),
        ("diagonal_matrix1", [
            "Resource 'Out': -7, -3, -2, -1, -7, 1, 2, 3, -7",
            "Resource 'Out':", "[0] -7 (0xFFF9)", "[1] -3 (0xFFFD)", "[2] -2 (0xFFFE)",
            "[3] -1 (0xFFFF)", "[4] -7 (0xFFF9)", "[5] 1 (0x0001)", "[6] 2 (0x0002)",
            "[7] 3 (0x0003)", "[8] -7 (0xFFF9)",
        ]),
        ("matrix_multiply_integer_to_float", ["Resource 'Out': 105, 205, 138, 238"]),
        ("owned_by_dml", ["Resource 'Out': 105, 205, 138, 238"]),
    ],
)
def test_models_of_the_operators(device, name, expected):
    assert lines_of(load(MODELS / f"{name}.json"), device) == expected


def test_offsets_mixed_types_and_files(device, tmp_path):
    lines = lines_of(load(MODELS / "activation_identity.json"), device, output_folder=tmp_path)
    assert lines[:2] == [
        "Resource 'Out': 9, 9, 9, 9, 1.5, 2, -inf, 9",
        "Resource 'HalfOut': 65504, -65504, nan, inf, -inf",
    ]
    out = np.array([9, 9, 9, 9, 1.5, 2, -np.inf, 9], np.float32)
    np.testing.assert_array_equal(np.load(tmp_path / "out/values.npy"), out.reshape(2, 4))
    assert np.load(tmp_path / "halves.npy").dtype == np.float16
    assert (tmp_path / "values.dat").read_bytes() == out.tobytes()


@pytest.mark.parametrize(("data_type", "text"),
                         [("INT32", "-1234567, 0"), ("FLOAT32", "-1.23457e+06, 0")])
def test_only_floats_are_printed_with_six_digits(device, data_type, text):
    values = {"initialValuesDataType": data_type, "initialValues": [-1234567, 0]}
    model = model_of({"A": values}, {}, [{"type": "print", "resource": "A"}])
    assert lines_of(model, device) == [f"Resource 'A': {text}"]


def test_offsets_within_a_word(device, tmp_path):
    model = model_of({"A": {"initialValuesDataType": "UINT16", "initialValues": [258, 772, 1286],
                            "initialValuesOffsetInBytes": 3, "sizeInBytes": 12}}, {}, [
        {"type": "print", "resource": "A"},
        {"type": "writeFile", "resource": "A", "targetPath": "a.dat"},
    ])
    assert lines_of(model, device, output_folder=tmp_path)[0] == "Resource 'A': 0, 512, 1025"
    assert (tmp_path / "a.dat").read_bytes() == bytes([0, 0, 0, 2, 1, 4, 3, 6, 5, 0, 0, 0])


@pytest.mark.parametrize("fields", [
    {"sizeInBytes": 2**64 - 1}, {"initialValuesOffsetInBytes": 2**63, "sizeInBytes": 2**63 + 4},
])
def test_sizes_beyond_every_device(device, fields):
    model = model_of({"A": {"initialValuesDataType": "FLOAT32", "initialValues": [1], **fields}})
    with pytest.raises(dml.DmlError, match=r"^resource 'A': .* bytes was asked for"):
        dxdispatch.Runner(model, device)


def test_in_place_and_repeated(device):
    model = model_of(BUFFERS, COPY, [
        {"type": "dispatch", "dispatchable": "copy",
         "bindings": {"InputTensor": "A", "OutputTensor": "A"}},
        {"type": "print", "resource": "A"},
    ])
    loop = Loop(iterations=3, repeat=2)
    assert lines_of(model, device, loop=loop) == ["Resource 'A': 1, 2, 3"]


def test_verbose_timing_lines(device):
    lines: list[str] = []
    model = load(MODELS / "diagonal_matrix.json")
    loop = Loop(iterations=3)
    dxdispatch.Runner(model, device, loop=loop, verbosity=2, write=lines.append).run()
    assert lines[0].startswith("Initialize 'diagonal': ")
    assert lines[1] == "Dispatch 'diagonal': 3 iterations"
    assert lines[2].startswith("CPU Timings (Cold) : 1 samples, ")
    assert any(line.startswith("CPU Timings (Hot)  : 2 samples, ") for line in lines)
    assert lines[-2].startswith("iteration 2: ")


def test_a_missing_operator_is_named(device, monkeypatch):
    monkeypatch.delitem(base._definitions, "DML_OPERATOR_CUMULATIVE_SUMMATION")
    model = model_of(BUFFERS, {"sum": {"type": "CUMULATIVE_SUMMATION", "desc": {
        "InputTensor": tensor(3), "OutputTensor": tensor(3), "Axis": 0,
        "AxisDirection": "INCREASING", "HasExclusiveSum": False}}})
    with pytest.raises(dml.UnsupportedError, match="DML_OPERATOR_CUMULATIVE_SUMMATION is not"):
        dxdispatch.Runner(model, device)


def _dispatch(**bindings):
    return [{"type": "dispatch", "dispatchable": "copy", "bindings": bindings}]


@pytest.mark.parametrize(
    ("bindings", "words"),
    [
        ({"InputTensor": "A"}, "OutputTensor"),
        ({"InputTensor": {"name": "A", "elementOffset": 4}, "OutputTensor": "B"},
         "elementOffset inside its 12 bytes, but got 16"),
        ({"InputTensor": "A", "OutputTensor": {"name": "B", "elementOffset": 3}},
         "elementOffset inside its 12 bytes, but got 12"),
        ({"InputTensor": {"name": "A", "elementCount": 9}, "OutputTensor": "B"},
         "expected 9 elements of 4 bytes at offset 0 to lie in its 12 bytes"),
        ({"InputTensor": {"name": "A", "elementCount": 1}, "OutputTensor": "B"}, "InputTensor"),
    ],
)
def test_bindings_that_do_not_fit(device, bindings, words):
    with pytest.raises(dml.ValidationError, match=words):
        dxdispatch.Runner(model_of(BUFFERS, COPY, _dispatch(**bindings)), device).run()


def test_what_the_device_refuses_names_the_dispatchable(device):
    bad = {"copy": {"type": "ACTIVATION_IDENTITY", "desc": {
        "InputTensor": tensor(3, data_type="INT32"),
        "OutputTensor": tensor(3, data_type="INT32")}}}
    with pytest.raises(dml.ValidationError, match=r"^dispatchable 'copy': DML_OPERATOR_ACT"):
        dxdispatch.Runner(model_of(BUFFERS, bad), device)


def test_dimensions_beyond_the_resource(device, tmp_path):
    model = model_of(BUFFERS, {}, [{"type": "writeFile", "resource": "A", "targetPath": "a.npy",
                                    "dimensions": [2, 2]}])
    with pytest.raises(dml.ValidationError, match=r"at most 3 elements, but \[2, 2\] span 4"):
        lines_of(model, device, output_folder=tmp_path)


def test_names_in_capitals(device, tmp_path):
    np.save(tmp_path / "a.npy", np.float32([1, 2]))
    (tmp_path / "a.npy").rename(tmp_path / "A.NPY")
    text = json.dumps({
        "resources": {"A": {"initialValues": {"sourcePath": "A.NPY"}}}, "dispatchables": {},
        "commands": [{"type": "WRITEFILE", "resource": "A", "targetPath": "B.NPY"}]})
    lines_of(parse(text, folder=tmp_path), device, output_folder=tmp_path)
    assert (tmp_path / "B.NPY").read_bytes() == (tmp_path / "A.NPY").read_bytes()


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"dimensions": [1] * 70}, "writeFile of 'A': maximum supported dimension"),
     ({"targetPath": "\0.npy"}, r"cannot write .*\\x00.npy': embedded null byte")],
)
def test_files_that_cannot_be_written(device, tmp_path, fields, words):
    command = {"type": "writeFile", "resource": "A", "targetPath": "a.npy", **fields}
    with pytest.raises(dml.DmlError, match=words):
        lines_of(model_of(BUFFERS, {}, [command]), device, output_folder=tmp_path)


def test_models_are_found_beside_their_files(device, tmp_path, monkeypatch):
    shutil.copy(MODELS / "diagonal_matrix.json", tmp_path / "m.json")
    monkeypatch.chdir(tmp_path)
    assert lines_of(load("m.json"), device)


def _result(device, name, desc, inputs, initial=None):
    """The result of an operator with one output. ``inputs`` are data type and values by tensor."""
    owned = initial or {}
    resources = {n: {"initialValuesDataType": t, "initialValues": v}
                 for n, (t, v) in {**inputs, **owned}.items()}
    out = desc["OutputTensor"]
    resources["Out"] = {"initialValuesDataType": out["DataType"],
                        "initialValues": {"valueCount": out["Sizes"][0], "value": 99}}
    model = model_of(
        resources,
        {"op": {"type": name, "desc": desc, "bindings": {n: n for n in owned}}},
        [{"type": "dispatch", "dispatchable": "op",
          "bindings": {n: n for n in inputs} | {"OutputTensor": "Out"}}],
    )
    runner = dxdispatch.Runner(model, device, write=lambda line: None)
    runner.run()
    return runner.contents("Out").tolist()


def test_scale_bias(device):
    for data_type, expected in (("FLOAT32", [1.5, 0.5, 2.5]), ("INT8", [1, 0, 2])):
        desc = {n: tensor(3, data_type=data_type) for n in ("InputTensor", "OutputTensor")}
        desc["ScaleBias"] = {"Scale": 0.5, "Bias": 1}
        values = {"InputTensor": (data_type, [1, -3, -7])}
        assert _result(device, "ELEMENT_WISE_ABS", desc, values) == expected


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_fused_activations(device, data_type):
    desc = {n: tensor(3, data_type=data_type) for n in ("ATensor", "BTensor", "OutputTensor")}
    values = {"ATensor": (data_type, [1, -3, -7]), "BTensor": (data_type, [2, 1, 9])}
    for activation, expected in (
        (None, [3, -2, 2]),
        ({"Type": "ACTIVATION_RELU"}, [3, 0, 2]),
        ({"Type": "DML_OPERATOR_ACTIVATION_IDENTITY", "Desc": {}}, [3, -2, 2]),
        ({"type": "ACTIVATION_LINEAR", "desc": {"Alpha": 2, "Beta": -1}}, [5, -5, 3]),
    ):
        fused = {} if activation is None else {"FusedActivation": activation}
        assert _result(device, "ELEMENT_WISE_ADD1", {**desc, **fused}, values) == expected


def test_fused_activations_that_are_none(device):
    nested = {"Type": "ACTIVATION_RELU"}
    for _ in range(300):
        nested = {"Type": "ELEMENT_WISE_ADD1", "FusedActivation": nested}
    for activation in ({"Type": "ELEMENT_WISE_ABS"}, nested):
        desc = {**SUM, "FusedActivation": activation}
        with pytest.raises(dml.ValidationError,
                           match=r"^dispatchable 'op': .*FusedActivation .*fused"):
            _result(device, "ELEMENT_WISE_ADD1", desc, {})


def test_bindings_that_say_nothing(device):
    """The defaults are zeros, as in DxDispatch. An empty list binds no optional tensor."""
    desc = {"InputTensor": tensor(3), "ScaleTensor": tensor(3),
            "OutputTensor": tensor(3, data_type="INT8")}
    out = {"name": "Out", "elementCount": 0, "elementSizeInBytes": 0}
    model = model_of(
        {**BUFFERS, "Out": {"initialValuesDataType": "INT8", "initialValues": [9, 9, 9]}},
        {"op": {"type": "ELEMENT_WISE_QUANTIZE_LINEAR", "desc": desc}},
        [{"type": "dispatch", "dispatchable": "op", "bindings": {
            "InputTensor": "A", "ScaleTensor": "B", "ZeroPointTensor": [], "OutputTensor": out}},
         {"type": "print", "resource": "Out"}],
    )
    assert lines_of(model, device) == ["Resource 'Out': 1, 1, 1"]


def _owned(*sizes, **more):
    return tensor(*sizes, Flags="OWNED_BY_DML", **more)


def test_elementwise_inputs_that_are_owned_by_dml(device):
    a, b = ("FLOAT32", [1, -3, -7]), ("FLOAT32", [2, 1, 9])
    both = {"ATensor": a, "BTensor": b}
    for owned in (["BTensor"], ["ATensor"], ["ATensor", "BTensor"]):
        desc = {**SUM, **dict.fromkeys(owned, _owned(3))}
        assert _result(device, "ELEMENT_WISE_SUBTRACT", desc,
                       {n: v for n, v in both.items() if n not in owned},
                       {n: both[n] for n in owned}) == [-1, -4, -16]
    repeated = {**SUM, "BTensor": _owned(3, Strides=[0])}
    assert _result(device, "ELEMENT_WISE_MULTIPLY", repeated, {"ATensor": a},
                   {"BTensor": ("FLOAT32", [2])}) == [2, -6, -14]
    quantize = {
        "InputTensor": tensor(3), "ScaleTensor": _owned(3),
        "ZeroPointTensor": _owned(3, data_type="UINT8"),
        "OutputTensor": tensor(3, data_type="UINT8"),
    }
    assert _result(device, "ELEMENT_WISE_QUANTIZE_LINEAR", quantize, {"InputTensor": a},
                   {"ScaleTensor": ("FLOAT32", [0.5, 1, 2]),
                    "ZeroPointTensor": ("UINT8", [0, 10, 100])}) == [2, 7, 96]
    choose = {
        "ConditionTensor": _owned(3, data_type="UINT8"), "ATensor": tensor(3),
        "BTensor": _owned(3), "OutputTensor": tensor(3),
    }
    assert _result(device, "ELEMENT_WISE_IF", choose, {"ATensor": a},
                   {"ConditionTensor": ("UINT8", [0, 1, 0]), "BTensor": b}) == [2, -3, 9]


def test_a_graph_of_one_operator(device):
    """Its inputs and outputs are the present tensors, by their names in messages."""
    model = load(MODELS / "matrix_multiply_integer_to_float.json")
    compiled = dxdispatch.Runner(model, device).executables["product"]._compiled
    assert isinstance(compiled, dml.CompiledGraph)
    assert [need.path for need in compiled.needs[4:7]] == [
        "input 4 ('BZeroPointTensor')", "input 5 ('BiasTensor')", "output 0 ('OutputTensor')"]
    for kind, expected in (("DmlCompileGraph", dml.CompiledGraph),
                           ("DmlCompileOp", dml.CompiledOperator)):
        model = model_of(BUFFERS, {"copy": {**COPY["copy"], "dmlCompileType": kind}}, [
            {"type": "dispatch", "dispatchable": "copy",
             "bindings": {"InputTensor": "A", "OutputTensor": "B"}}])
        runner = dxdispatch.Runner(model, device)
        assert isinstance(runner.executables["copy"]._compiled, expected)
        runner.run()


def _floats(*sizes, start=1):
    """A tensor's sizes, and the values that count up in it."""
    count = int(np.prod(sizes))
    return sizes, np.arange(start, start + count, dtype=np.float32).reshape(sizes)


_A, _B = _floats(2, 3), _floats(3, 2, start=-2)
_STACK = _floats(1, 1, 3, 4)
_MATRICES = {n: ((1, 1, *sizes), values) for n, (sizes, values) in (("A", _A), ("B", _B))}


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "expected"),
    [
        ("GEMM", {"TransA": "NONE", "TransB": "NONE", "Alpha": 2, "Beta": 0},
         {"ATensor": _MATRICES["A"], "BTensor": _MATRICES["B"]}, 2 * (_A[1] @ _B[1])),
        ("REDUCE", {"Function": "SUM", "AxisCount": 1, "Axes": [3]},
         {"InputTensor": _STACK}, [[[[10], [26], [42]]]]),
        ("CUMULATIVE_PRODUCT",
         {"Axis": 3, "AxisDirection": "DECREASING", "HasExclusiveProduct": True},
         {"InputTensor": ((1, 1, 1, 4), np.float32([[[[2, 4, 8, 3]]]]))}, [[[[96, 24, 3, 1]]]]),
        ("SLICE", {"DimensionCount": 4, "Offsets": [0, 0, 1, 1], "Sizes": [1, 1, 2, 2],
                   "Strides": [1, 1, 1, 2]}, {"InputTensor": _STACK}, [[[[6, 8], [10, 12]]]]),
        ("GATHER", {"Axis": 3, "IndexDimensions": 1},
         {"InputTensor": _STACK, "IndicesTensor": ((1, 1, 1, 2), np.uint32([[[[3, 0]]]]))},
         [[[[4, 1], [8, 5], [12, 9]]]]),
        ("UPSAMPLE_2D", {"ScaleSize": {"Width": 2, "Height": 1},
                         "InterpolationMode": "NEAREST_NEIGHBOR"},
         {"InputTensor": _floats(1, 1, 1, 2)}, [[[[1, 1, 2, 2]]]]),
        # One step: Y = ELU of X W^T, ELU's alpha 1 (forward) and 2 (backward).
        ("RNN", {"ActivationDescCount": 2, "Direction": "BIDIRECTIONAL", "ActivationDescs": [
            {"Type": "ACTIVATION_ELU", "Alpha": 1}, {"Type": "ACTIVATION_ELU", "Alpha": 2}]},
         {"InputTensor": _floats(1, 1, 1, 2), "WeightTensor": _floats(1, 2, 1, 2, start=-2),
          "RecurrenceTensor": _floats(1, 2, 1, 1)},
         [[[[np.expm1(-4)]], [[2]]]]),
    ],
)
def test_operators_of_dxdispatchs_own_models(device, name, attributes, inputs, expected):
    expected = np.asarray(expected, np.float32)
    expected = expected.reshape((1,) * (4 - expected.ndim) + expected.shape)
    types = {n: values.dtype.name.upper() for n, (_, values) in inputs.items()}
    output = "OutputSingleTensor" if name == "RNN" else "OutputTensor"
    desc = {**attributes, output: tensor(*expected.shape),
            **{n: tensor(*sizes, data_type=types[n]) for n, (sizes, _) in inputs.items()}}
    resources = {n: {"initialValuesDataType": types[n],
                     "initialValues": values.reshape(-1).tolist()}
                 for n, (_, values) in inputs.items()}
    resources["Y"] = {"initialValuesDataType": "FLOAT32",
                      "initialValues": {"valueCount": expected.size, "value": 99}}
    runner = dxdispatch.Runner(model_of(resources, {"op": {"type": name, "desc": desc}}, [
        {"type": "dispatch", "dispatchable": "op",
         "bindings": {**{n: n for n in inputs}, output: "Y"}}]), device, write=lambda line: None)
    runner.run()
    np.testing.assert_allclose(runner.contents("Y").reshape(expected.shape), expected, 1e-6)


def test_parts_of_one_resource_are_joined_and_split(device):
    count = {"initialValuesDataType": "FLOAT32"}
    resources = {
        "A": {**count, "initialValues": {"valueCount": 7, "valueStart": 1, "valueDelta": 1}},
        "B": {**count, "initialValues": [50, 60]},
        **{n: {**count, "initialValues": {"valueCount": 6, "value": 0}} for n in "XYZ"}}
    parts = [{"name": "A", "elementCount": 1}, "B",
             {"name": "A", "elementCount": 3, "elementOffset": 4}]
    model = model_of(resources, {
        "join": {"type": "JOIN", "desc": {"Axis": 0, "InputTensors": [
            tensor(1), tensor(2), tensor(3)], "OutputTensor": tensor(6)}},
        "split": {"type": "SPLIT", "desc": {"Axis": 0, "InputTensor": tensor(6), "OutputTensors": [
            tensor(4), tensor(2)]}},
    }, [
        {"type": "dispatch", "dispatchable": "join",
         "bindings": {"InputTensors": parts, "OutputTensor": "X"}},
        {"type": "dispatch", "dispatchable": "split",
         "bindings": {"InputTensor": "X", "OutputTensors": ["Y", "Z"]}},
        *({"type": "print", "resource": name} for name in "XYZ")])
    assert lines_of(model, device) == [
        "Resource 'X': 1, 50, 60, 5, 6, 7", "Resource 'Y': 1, 50, 60, 5, 0, 0",
        "Resource 'Z': 6, 7, 0, 0, 0, 0"]
