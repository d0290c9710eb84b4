"""The JSON model format: parsing, and messages for invalid models."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kompute_dml as dml
from dxdispatch_models import BUFFERS, COPY, IDENTITY, SUM, model_of, operator, resource, tensor
from kompute_dml import spec
from kompute_dml.dxdispatch import jsonc
from kompute_dml.dxdispatch.model import load, parse
from kompute_dml.dxdispatch.operator import OperatorModel

# -- JSON


def test_comments_trailing_commas_and_what_follows_the_end():
    text = """// first
    { "a, // b": [1, 2,], /* , ] */ "c": { "d": "x,]", }, }
    anything here is not read"""
    assert jsonc.parse(text, "m") == {"a, // b": [1, 2], "c": {"d": "x,]"}}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "m.json:3:3"),
        ('{ /* two\nlines */ "a": tru }', "m.json:2:15"),
        ("[1, , 2]", "m.json:1:5"),
        ("[,]", "m.json:1:2"),
        ("", "m.json:1:1"),
    ],
)
def test_malformed_json_names_line_and_column(text, place):
    with pytest.raises(dml.ValidationError, match=f"^{place}: malformed JSON"):
        jsonc.parse(text, "m.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": NaN}', 'NaN is not JSON; write it as a string: "nan"'),
        ('{"a": -Infinity}', 'write it as a string: "-inf"'),
        ('{"b": 0, "a": 1, "a": 2}', "'a' stands twice"),
        ("[" * 100_000, "nested too deeply"),
        (r'["\ud83d\ude00", "\ud83d"]', "surrogates not allowed"),
    ],
)
def test_json_beyond_the_format(text, words):
    with pytest.raises(dml.ValidationError, match=words):
        jsonc.parse(text, "m.json")


def test_unreadable_files(tmp_path):
    with pytest.raises(dml.ValidationError, match="No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(dml.ValidationError, match="UTF-8"):
        load(tmp_path / "binary.json")


# -- resources


@pytest.mark.parametrize("data_type", [t.name for t in dml.DataType if t.bits >= 8])
def test_constant_array_and_sequence(data_type):
    dtype = dml.DataType[data_type].dtype
    for initial, expected in (
        ({"valueCount": 3, "value": 5}, [5, 5, 5]),
        ([1, 2, 3], [1, 2, 3]),
        ({"valueCount": 4, "valueStart": 1, "valueDelta": 2}, [1, 3, 5, 7]),
    ):
        r = resource(initialValues=initial, initialValuesDataType="DML_TENSOR_DATA_TYPE_"
                     + data_type)
        assert r.values.dtype == dtype
        assert r.values.tolist() == expected


def test_special_floats_and_64_bit_integers():
    halves = resource(initialValues=["nan", "INF", "-Inf", 65504], initialValuesDataType="FLOAT16")
    np.testing.assert_array_equal(halves.values, np.array([np.nan, np.inf, -np.inf, 65504], "f2"))
    wide = resource(initialValues=[2**64 - 1], initialValuesDataType="UINT64")
    assert wide.values.tolist() == [2**64 - 1]


def test_numbers_beyond_the_largest_float_are_no_infinities():
    with pytest.raises(dml.ValidationError, match=r"\[1\]: expected a number, .*got -Infinity"):
        parse("""{"resources": {"A": {"initialValuesDataType": "FLOAT64",
                                      "initialValues": [1e308, -1e309]}},
                  "dispatchables": {}, "commands": []}""")


def test_sequence_adds_up_in_its_own_type():
    values = resource(initialValues={"valueCount": 4, "valueStart": 2046, "valueDelta": 1},
                      initialValuesDataType="FLOAT16").values
    assert values.tolist() == [2046, 2047, 2048, 2048]
    assert resource(initialValues={"valueCount": 3, "valueStart": 254, "valueDelta": 1},
                    initialValuesDataType="UINT8").values.tolist() == [254, 255, 0]


def test_list_of_mixed_types_and_size():
    r = resource(
        initialValuesDataType="UNKNOWN",
        initialValues=[{"name": "n", "type": "UINT32", "value": 6},
                       {"type": "FLOAT16", "value": 1}],
        sizeInBytes=256,
    )
    assert r.values.tobytes() == b"\x06\0\0\0\x00\x3c"
    assert (r.size, r.data_type) == (256, None)


def test_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=">i4").reshape(2, 3))
    (tmp_path / "b.dat").write_bytes(np.arange(3, dtype="f8").tobytes())
    text = json.dumps({
        "resources": {
            "A": {"initialValues": {"sourcePath": "a.npy"}},
            "B": {"initialValues": {"sourcePath": "b.dat"}, "initialValuesDataType": "FLOAT64"},
        },
        "dispatchables": {}, "commands": [],
    })
    resources = parse(text, folder=tmp_path).resources
    assert resources["A"].data_type is dml.DataType.INT32
    assert resources["A"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert resources["B"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"initialValues": [1]}, r"resources.A.initialValues\[0\]: expected an object"),
        ({"initialValues": [1, 300], "initialValuesDataType": "UINT8"},
         r"resources.A.initialValues\[1\]: expected an integer in \[0, 255\], but got 300"),
        ({"initialValues": [1.5], "initialValuesDataType": "INT32"}, "expected an integer"),
        ({"initialValues": [True], "initialValuesDataType": "INT32"}, "expected an integer"),
        ({"initialValues": ["nan"], "initialValuesDataType": "INT8"}, "expected an integer"),
        ({"initialValues": [1, 70000], "initialValuesDataType": "FLOAT16"},
         r"\[1\]: expected a number that FLOAT16 can hold, but got 70000"),
        ({"initialValues": [10**400], "initialValuesDataType": "FLOAT64"}, "FLOAT64 can hold"),
        ({"initialValues": ["none"], "initialValuesDataType": "FLOAT32"}, "expected a number,"),
        ({"initialValues": [], "initialValuesDataType": "FLOAT32"}, "at least one value"),
        ({"initialValues": {"valueCount": 0, "value": 1}, "initialValuesDataType": "INT8"},
         "initialValues.valueCount: expected an integer in"),
        ({"initialValues": {"valueCount": 2, "value": 1}}, "'initialValuesDataType' is required"),
        ({"initialValues": {"valueCount": 2}, "initialValuesDataType": "INT8"},
         "one of the fields value, valueStart or sourcePath"),
        ({"initialValues": 5, "initialValuesDataType": "INT8"}, "expected an array"),
        ({"initialValues": [1], "initialValuesDataType": "FLOAT8"}, "data type among FLOAT32"),
        ({"initialValues": [1, 2], "initialValuesDataType": "FLOAT32", "sizeInBytes": 7},
         "expected at least 8 bytes .* but got 7"),
        ({"initialValues": {"sourcePath": "none.npy"}}, "no file 'none.npy'"),
        ({"initialValuesDataType": "UNKNOWN",
          "initialValues": [{"type": "INT8", "value": 1, "comment": 5}]},
         r"initialValues\[0\]: unknown field 'comment'"),
        ({"initialvalues": [1]},
         r"unknown field 'initialvalues' \(did you mean 'initialValues'\?\); known are type"),
        ({"initialValues": [1], "initialValuesDataType": "INT8", "type": "texture"}, '"buffer"'),
    ],
)
def test_bad_resources(fields, words):
    with pytest.raises(dml.ValidationError, match=words):
        resource(**fields)


def test_bad_files(tmp_path):
    np.save(tmp_path / "complex.npy", np.zeros(2, complex))
    np.save(tmp_path / "float.npy", np.zeros(2, "f4"))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "several", np.zeros(2, "f4"))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name, shape in (("half", "((("), ("far", f"({2**70},)")):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}".ljust(127) + "\n"
        (tmp_path / f"{name}.npy").write_bytes(b"\x93NUMPY\1\0\x80\0" + header.encode())
    (tmp_path / "odd.dat").write_bytes(b"12345")
    for path, data_type, words in (
        ("complex.npy", None, "no DirectML type"),
        ("float.npy", "INT32", "initialValuesDataType INT32, but got FLOAT32"),
        *((f"{name}.npy", None, f"{name}.npy is not a .npy file")
          for name in ("text", "empty", "several", "half", "far")),
        ("odd.dat", "FLOAT32", "whole FLOAT32 values, but got 5 bytes"),
        ("odd.dat", None, "needs initialValuesDataType"),
    ):
        fields = {"initialValues": {"sourcePath": path}}
        if data_type:
            fields["initialValuesDataType"] = data_type
        text = json.dumps({"resources": {"A": fields}, "dispatchables": {}, "commands": []})
        with pytest.raises(dml.ValidationError, match=words):
            parse(text, folder=tmp_path)


# -- operators


def _minimal(field: spec.Field, name: str):
    """Valid JSON for a field."""
    entry = spec.document()["enums"].get(field.enum or "", {})
    if field.enum == "DML_TENSOR_DATA_TYPE":
        return "FLOAT32"
    if field.enum:
        return next(v for v, number in entry.items() if "INVALID" not in v)
    activation = {"Type": "ACTIVATION_ELU", "Alpha": 0.5}
    if field.type == "UINT":
        return None if field.name.endswith("Count") else 1
    return {
        "TENSOR_DESC": tensor(1, 2), "TENSOR_DESC_ARRAY": [tensor(1, 2)], "INT": -1,
        "UINT64": 1, "FLOAT": "inf", "BOOL": True, "UINT_ARRAY": [1], "INT_ARRAY": [-1],
        "FLOAT_ARRAY": [1], "SIZE_2D": {"Width": 1, "Height": 2},
        "SCALE_BIAS": {"Scale": 1, "Bias": 2}, "SCALAR_UNION": 3,
        "OPERATOR_DESC": activation, "OPERATOR_DESC_ARRAY": [activation],
    }[field.type]


@pytest.mark.parametrize("name", spec.operator_names())
def test_every_operator_of_directml_is_read(name):
    entry = spec.operator(name)
    desc = {f.name: value for f in entry.fields if (value := _minimal(f, name)) is not None}
    counts = {f["count_field"] for f in spec.document()["operators"][name]["fields"]
              if "count_field" in f}
    for f in entry.fields:
        if f.name.endswith("Count") and f.name not in counts:
            desc[f.name] = 1
    parsed = operator(name, desc)
    assert parsed.name == name
    assert set(parsed.fields) == {f.snake for f in entry.fields}


def test_spellings_of_an_operator():
    reduce = {
        "InputTensor": tensor(1, 1, 3, 3), "OutputTensor": tensor(1, 1, 3, 1),
        "Function": "SUM", "AxisCount": 1, "Axes": [3],
    }
    full = operator("DML_OPERATOR_REDUCE", {**reduce, "Function": "DML_REDUCE_FUNCTION_SUM"})
    inline = model_of(dispatchables={"op": {"type": "REDUCE", **reduce}}).dispatchables["op"]
    assert operator("REDUCE", reduce) == full == inline.operator
    assert full.fields["axes"] == (3,)


def test_structures_inside_a_desc():
    add = operator("ELEMENT_WISE_ADD1", {
        "ATensor": tensor(3), "BTensor": tensor(3), "OutputTensor": tensor(3),
        "FusedActivation": {"Type": "ACTIVATION_ELU", "Desc": {"Alpha": 0.5}},
    })
    assert add.fields["fused_activation"] == OperatorModel(
        "DML_OPERATOR_ACTIVATION_ELU",
        {"input_tensor": None, "output_tensor": None, "alpha": 0.5},
    )
    clip = operator("ELEMENT_WISE_CLIP1", {
        "InputTensor": tensor(5, data_type="FLOAT16"),
        "OutputTensor": tensor(5, data_type="FLOAT16"),
        "MinMaxDataType": "FLOAT16", "Min": {"UInt16": 0x4000}, "Max": 4,
    })
    assert (clip.fields["min"], clip.fields["max"]) == (np.float16(2), np.float16(4))
    identity = operator("ELEMENT_WISE_IDENTITY", {
        "InputTensor": tensor(3), "OutputTensor": tensor(3),
        "ScaleBias": {"Scale": 2, "Bias": 10},
    })
    assert identity.fields["scale_bias"] == dml.ScaleBias(2, 10)
    upsample = operator("UPSAMPLE_2D", {
        "InputTensor": tensor(1, 1, 2, 2), "OutputTensor": tensor(1, 1, 4, 4),
        "ScaleSize": {"Width": 3, "Height": 2}, "InterpolationMode": "LINEAR",
    })
    assert upsample.fields["scale_size"] == dml.Size2d(3, 2)
    random = operator("RANDOM_GENERATOR", {
        "InputStateTensor": tensor(6, data_type="UINT32"),
        "OutputTensor": tensor(4, data_type="UINT32"), "Type": "PHILOX_4X32_10",
    })
    assert random.fields["output_state_tensor"] is None


@pytest.mark.parametrize(
    ("data_type", "member", "value"),
    [("INT8", "Int8", -128), ("UINT8", "UInt8", 255), ("INT16", "Int16", -(2**15)),
     ("UINT16", "UInt16", 2**16 - 1), ("INT32", "Int32", -(2**31)), ("UINT32", "UInt32", 2**32 - 1),
     ("INT64", "Int64", -(2**63)), ("UINT64", "UInt64", 2**64 - 1), ("FLOAT32", "Float32", 0.5),
     ("FLOAT64", "Float64", 0.1)],
)  # fmt: skip
def test_every_member_of_a_scalar_union(data_type, member, value):
    for given in (value, {member: value}):
        fill = operator("FILL_VALUE_CONSTANT", {
            "OutputTensor": tensor(2, data_type=data_type), "ValueDataType": data_type,
            "Value": given})
        assert fill.fields["value"] == value
        assert dml.DataType.of(fill.fields["value"].dtype).name == data_type


def test_tensor_defaults_and_flags():
    parsed = operator("ACTIVATION_IDENTITY", {
        "InputTensor": tensor(2, 3, Flags=["NONE", "OWNED_BY_DML"], TotalTensorSizeInBytes=0,
                              Strides=[]),
        "OutputTensor": tensor(2, 3, Strides=[4, 1], TotalTensorSizeInBytes=64,
                               GuaranteedBaseOffsetAlignment=256),
    })
    x, y = parsed.fields["input_tensor"], parsed.fields["output_tensor"]
    assert x == dml.TensorDesc("float32", (2, 3), flags=dml.TensorFlags.OWNED_BY_DML)
    assert y == dml.TensorDesc("float32", (2, 3), (4, 1), total_tensor_size_in_bytes=64,
                               guaranteed_base_offset_alignment=256)


@pytest.mark.parametrize(
    ("name", "desc", "words"),
    [
        ("ACTIVATION_IDENTITYY", IDENTITY, "did you mean 'DML_OPERATOR_ACTIVATION_IDENTITY'"),
        ("ACTIVATION_IDENTITY", {"InputTensor": tensor(3)},
         "dispatchables.op.desc: field 'OutputTensor' is required"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "Alpha": 1},
         "unknown field 'Alpha'; known are InputTensor, OutputTensor"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, Size=[3])},
         r"op.desc.InputTensor: unknown field 'Size' \(did you mean 'Sizes'"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, 0)},
         r"op.desc.InputTensor: TensorDesc: expected Sizes\[1\] to be at least 1"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, DimensionCount=2)},
         "expected 2 entries in Sizes, but got 1"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, data_type="BFLOAT16")},
         "expected a data type among"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, Flags=1)},
         r"^model: dispatchables.op.desc.InputTensor.Flags: expected a string or an array of str"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, Strides=[-1])},
         r"^model: dispatchables.op.desc.InputTensor.Strides\[0\]: expected an integer in"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, Type="INVALID")},
         "op.desc.InputTensor.Type: expected BUFFER"),
        ("ACTIVATION_IDENTITY", {**IDENTITY, "InputTensor": tensor(3, Flags="OWNED")},
         "DML_TENSOR_FLAGS to be one of NONE, OWNED_BY_DML, but got 'OWNED'"),
        ("DIAGONAL_MATRIX", {"OutputTensor": tensor(3, 3), "Offset": 2**31, "Value": 1},
         r"op.desc.Offset: expected an integer in \[-2147483648, 2147483647\]"),
        ("DIAGONAL_MATRIX1",
         {"OutputTensor": tensor(3, 3, data_type="INT8"), "ValueDataType": "INT8", "Value": 128,
          "DiagonalFillBegin": 0, "DiagonalFillEnd": 1},
         r"op.desc.Value: expected an integer in \[-128, 127\], but got 128"),
        ("DIAGONAL_MATRIX1",
         {"OutputTensor": tensor(3, 3), "ValueDataType": "FLOAT32", "Value": {"Int32": 1},
          "DiagonalFillBegin": 0, "DiagonalFillEnd": 1},
         "unknown field 'Int32'; known are Float32"),
        ("ELEMENT_WISE_ABS", {**IDENTITY, "ScaleBias": {"Scale": 2}},
         "op.desc.ScaleBias: field 'Bias' is required"),
        ("ELEMENT_WISE_ABS", {**IDENTITY, "ScaleBias": {"Scale": 2, "Bias": 1, "Shift": 0}},
         "op.desc.ScaleBias: unknown field 'Shift'"),
        ("ELEMENT_WISE_ABS", {**IDENTITY, "ScaleBias": {"Scale": "two", "Bias": 1}},
         "op.desc.ScaleBias.Scale: "),
        ("VALUE_SCALE_2D", {**IDENTITY, "Scale": 2, "ChannelCount": 1, "Bias": 5},
         "op.desc.Bias: expected an array, but got 5"),
        ("ELEMENT_WISE_ADD", {**SUM, "ScaleBias": {"Scale": 2, "Bias": 1}},
         "op.desc: unknown field 'ScaleBias'"),
        ("ELEMENT_WISE_ADD1", {**SUM, "FusedActivation": {"Type": "ACTIVATION_ELU"}},
         "op.desc.FusedActivation: field 'Alpha' is required by DML_OPERATOR_ACTIVATION_ELU"),
        ("ELEMENT_WISE_ADD1", {**SUM, "FusedActivation": {"Type": "ACTIVATION_ELUU"}},
         "op.desc.FusedActivation.Type: .*did you mean 'DML_OPERATOR_ACTIVATION_ELU'"),
        ("ELEMENT_WISE_ADD1", {**SUM, "FusedActivation": {"Desc": {}}},
         "op.desc.FusedActivation: field 'Type' is required"),
        ("REDUCE", {**IDENTITY, "Function": "SUM", "AxisCount": 2, "Axes": [0]},
         "AxisCount: expected 2 entries in Axes, but got 1"),
        ("REDUCE", {**IDENTITY, "Function": "TOTAL", "Axes": [0]},
         "DML_REDUCE_FUNCTION to be one of ARGMAX"),
    ],
)
def test_bad_operators(name, desc, words):
    with pytest.raises(dml.ValidationError, match=words):
        operator(name, desc)


def test_how_an_operator_is_compiled():
    fields = {"type": "DML_OPERATOR_ACTIVATION_IDENTITY", "desc": IDENTITY,
              "dmlCompileType": "DmlCompileGraph"}
    for flags, expected in (("DML_EXECUTION_FLAG_NONE", dml.ExecutionFlags.NONE),
                            (["NONE", "DESCRIPTORS_VOLATILE"],
                             dml.ExecutionFlags.DESCRIPTORS_VOLATILE)):
        made = model_of(dispatchables={"x": {**fields, "executionFlags": flags}})
        assert made.dispatchables["x"].flags == expected
    for fields, words in (
        ({"dmlCompileType": "Graph"}, "op.dmlCompileType: expected DmlCompileOp or DmlCompileGr"),
        ({"executionFlags": ["NONE", "FAST"]},
         r"op.executionFlags\[1\]: expected DML_EXECUTION_FLAGS to be one of NONE, ALLOW_HALF"),
    ):
        with pytest.raises(dml.ValidationError, match=words):
            operator("ACTIVATION_IDENTITY", IDENTITY, **fields)


def test_hlsl_is_read_and_named():
    hlsl = {"type": "hlsl", "sourcePath": "y", "compilerArgs": []}
    assert model_of(dispatchables={"x": hlsl}).dispatchables["x"].unsupported


@pytest.mark.parametrize("kind", ["onnx", "dmlSerializedGraph"])
def test_other_files_are_there(kind):
    with pytest.raises(dml.ValidationError, match=r"dispatchables\.x\.sourcePath: no file 'y' in"):
        model_of(dispatchables={"x": {"type": kind, "sourcePath": "y"}})


# -- commands

@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"type": "jump"}, r'commands\[0\].type: expected "dispatch", "print" or "writeFile"'),
        ({"type": "print", "resource": "C"}, "the model has no resource 'C'"),
        ({"type": "print", "resource": "A", "loud": 1}, "unknown field 'loud'"),
        ({"type": "print", "resource": "A", "verbose": 1}, "verbose: expected true or false"),
        ({"type": "dispatch", "dispatchable": "copy", "bindings": ["A"]},
         "bindings: expected an object"),
        ({"type": "writeFile", "resource": "A", "targetPath": ["out"] * 20},
         r'targetPath: expected a string, but got \[("out", ){8}.*\.\.\.$'),
        ({"type": "dispatch", "dispatchable": "Copy", "bindings": {}},
         r"no dispatchable 'Copy' \(did you mean 'copy'"),
        ({"type": "dispatch", "dispatchable": "copy"}, "field 'bindings' is required"),
        ({"type": "dispatch", "dispatchable": "copy", "bindings": {"Input": "A"}},
         "has no tensor 'Input' .*; it has InputTensor, OutputTensor"),
        ({"type": "dispatch", "dispatchable": "copy", "bindings": {"InputTensor": ["A", "B"]}},
         "expected 1 resources for InputTensor .* but got 2"),
        ({"type": "dispatch", "dispatchable": "copy",
          "bindings": {"InputTensor": {"name": "A", "offset": 4}}}, "unknown field 'offset'"),
    ],
)
def test_bad_commands(command, words):
    with pytest.raises(dml.ValidationError, match=words):
        model_of(BUFFERS, COPY, [command])


def test_values_without_one_type_are_not_printed():
    mixed = {"A": {"initialValuesDataType": "UNKNOWN",
                   "initialValues": [{"type": "INT8", "value": 1}]}}
    write = {"type": "writeFile", "resource": "A", "targetPath": "a.dat"}
    for command in ({"type": "print", "resource": "A"}, {**write, "targetPath": "a.NPY"}):
        with pytest.raises(dml.ValidationError, match=r"commands\[0\]: .* UNKNOWN"):
            model_of(mixed, {}, [command])
    model_of(mixed, {}, [write])
