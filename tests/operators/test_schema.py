"""Every field of all of DirectML's operators is checked, implemented or not."""

from __future__ import annotations

from typing import Any

import pytest

import kompute_dml as dml
from kompute_dml import spec
from kompute_dml.attributes import ENUMS
from kompute_dml.operators.base import check_field
from kompute_dml.spec import Field

_RELU = dml.ActivationReluOperatorDesc()
_GOOD: dict[str, Any] = {
    "TENSOR_DESC": dml.TensorDesc("float32", [1]), "OPERATOR_DESC": _RELU,
    "SCALE_BIAS": dml.ScaleBias(1, 2), "SIZE_2D": dml.Size2d(1, 2), "UINT": 3, "UINT64": 3,
    "INT": -3, "BOOL": True, "FLOAT": 0.5,
}
_BAD: dict[str, tuple[Any, ...]] = {
    "TENSOR_DESC": ("hello", 1, [1]), "OPERATOR_DESC": ("relu", 1),
    "SCALE_BIAS": ((1, 2), "ab", dml.ScaleBias("x", 0)),  # type: ignore[arg-type]
    "SIZE_2D": ((1, 2), 3, dml.Size2d(-1, 2), dml.Size2d(1, 2.5)),  # type: ignore[arg-type]
    "UINT": (-1, 2**32, 1.5, "ab"), "UINT64": (-1, 2**64, "ab"), "INT": (2**31, -(2**31) - 1, 0.5),
    "BOOL": (2, -1, "yes", 0.5), "FLOAT": ("ab", 10**400, [1.0]),
}
_UNCHECKED = {"SCALAR_UNION": "which numbers it may be depends on a data type: operators check it"}
_FIELDS = [(name, f) for name in spec.operator_names() for f in spec.operator(name).fields]


def _values(f: Field) -> tuple[list[Any], list[Any]]:
    """Values that the field takes, and values that it must refuse."""
    if f.enum == "DML_TENSOR_DATA_TYPE":
        return [dml.DataType.INT8], ["int8", 77, 0]
    if f.enum is not None:
        members = list(ENUMS[f.enum])
        return [*members, int(members[0])], [77, -1, "NONE", 0.5]
    kind = f.type.removesuffix("_ARRAY")
    if f.is_array:
        good = _GOOD[kind]
        return [(good,), (good, good)], ["hello", 7, good, *[(bad,) for bad in _BAD[kind]]]
    return [_GOOD[kind]], list(_BAD[kind])


@pytest.mark.parametrize(("name", "f"), _FIELDS, ids=lambda v: getattr(v, "name", v))
def test_every_field_is_checked(name: str, f: Field) -> None:
    if f.type in _UNCHECKED:
        return
    good, bad = _values(f)
    for value in good:
        check_field(name, f, value)
    for value in [*bad, *([] if f.optional else [None])]:
        with pytest.raises(dml.ValidationError, match=f.name.replace("[", r"\[")):
            check_field(name, f, value)


def test_every_enumeration_is_here_with_its_values() -> None:
    used = {f.enum for _, f in _FIELDS if f.enum} - {"DML_TENSOR_DATA_TYPE"}
    assert used == set(ENUMS)
    for name in used:
        table = {key.removeprefix(name + "_"): value
                 for key, value in spec.document()["enums"][name].items()}
        assert {m.name: m.value for m in ENUMS[name]} == table


def test_every_array_names_its_count() -> None:
    arrays = [(name, f) for name, f in _FIELDS if f.is_array]
    assert all(f.count_field for _, f in arrays)
    for name, f in arrays:
        assert f.count_field in {g.name for g in spec.operator(name).fields}


def test_reduce_has_a_row_for_each_function() -> None:
    reduce = spec.operator("DML_OPERATOR_REDUCE")
    newest = dml.FeatureLevel.FL_6_4

    def types(function: str) -> set[str]:
        table = reduce.support_at(newest, f"DML_REDUCE_FUNCTION_{function}")
        assert table is not None
        return {str(d) for d in table["OutputTensor"].data_types}

    assert types("ARGMAX") == {"INT64", "INT32", "UINT64", "UINT32"}
    assert types("L2") == {"FLOAT32", "FLOAT16"}
    table = reduce.support_at(newest)
    assert table is not None  # of all functions
    assert set(map(str, table["OutputTensor"].data_types)) >= types("ARGMAX") | types("L2")


def test_clip_and_softmax_are_fused_by_few() -> None:
    assert "DML_OPERATOR_ELEMENT_WISE_CLIP" in spec.operator("DML_OPERATOR_CONVOLUTION").fuses
    assert "DML_OPERATOR_ACTIVATION_SOFTMAX1" in spec.operator("DML_OPERATOR_GEMM").fuses
    assert "DML_OPERATOR_ELEMENT_WISE_CLIP" not in spec.operator(
        "DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1").fuses
    assert spec.operator("DML_OPERATOR_JOIN").fuses == {}
