"""Data types and typed scalars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kompute_dml as dml
from kompute_dml.dtypes import Scalar, saturate

DataType = dml.DataType
_WHOLE = [t for t in DataType if t.bits >= 8]
"""The data types that NumPy has."""


def test_values_are_directmls() -> None:
    assert {t.name: t.value for t in DataType} == {
        "FLOAT32": 1, "FLOAT16": 2, "UINT32": 3, "UINT16": 4, "UINT8": 5, "INT32": 6, "INT16": 7,
        "INT8": 8, "FLOAT64": 9, "UINT64": 10, "INT64": 11, "UINT4": 12, "INT4": 13,
    }


@pytest.mark.parametrize("data_type", _WHOLE, ids=str)
def test_every_name_of_a_type(data_type: dml.DataType) -> None:
    name = data_type.name
    for spelling in (name, name.lower(), "DML_TENSOR_DATA_TYPE_" + name, np.dtype(name.lower()),
                     np.dtype(name.lower()).type, data_type):
        assert DataType.of(spelling) is data_type
    assert data_type.itemsize == np.dtype(name.lower()).itemsize
    assert data_type.is_float == name.startswith("FLOAT")
    assert data_type.is_signed == (not name.startswith("U"))
    assert data_type.family == name[0].lower() + str(8 * data_type.itemsize)
    assert data_type.width == "b" + str(8 * data_type.itemsize)


@pytest.mark.parametrize("wrong", ["float8", "bool", "complex64", "", object, 3.5, [], ">U4"])
def test_what_is_no_type(wrong: Any) -> None:
    with pytest.raises(dml.ValidationError, match="FLOAT64"):
        DataType.of(wrong)


@pytest.mark.parametrize("data_type", _WHOLE, ids=str)
def test_scalars_keep_their_bits(data_type: dml.DataType) -> None:
    raw = bytes(range(0xF9, 0xF9 - data_type.itemsize, -1))
    scalar = Scalar.of(raw, data_type)
    assert scalar.bits == int.from_bytes(raw, "little")
    low, high = scalar.words
    assert low + (high << 32) == scalar.bits
    typed = np.frombuffer(raw, data_type.dtype)[0]
    assert Scalar.of(typed, data_type) == scalar
    assert Scalar.of(scalar, data_type) is scalar


@pytest.mark.parametrize("value, data_type, bits", [
    (1, "float32", 0x3F800000), (-0.0, "float32", 0x80000000), (0.1, "float32", 0x3DCCCCCD),
    (0.1, "float64", 0x3FB999999999999A), (65504, "float16", 0x7BFF), (2**-24, "float16", 1),
    (math.inf, "float16", 0x7C00), (-1, "int8", 0xFF), (255, "uint8", 255), (3.0, "int16", 3),
    (2**64 - 1, "uint64", 2**64 - 1), (-(2**63), "int64", 2**63), (True, "int32", 1),
    (np.float32(2.5), "float64", 0x4004000000000000), (np.int64(7), "uint8", 7),
])
def test_scalars_that_fit(value: Any, data_type: str, bits: int) -> None:
    assert Scalar.of(value, DataType.of(data_type)).bits == bits


@pytest.mark.parametrize("value, data_type", [
    (256, "uint8"), (-1, "uint64"), (2**63, "int64"), (2**64, "uint64"), (0.5, "int32"),
    (math.nan, "int32"), (math.inf, "uint8"), (65520, "float16"), (1e39, "float32"),
    (10**400, "float64"), ("1", "int8"), (None, "int8"), (b"\0", "int16"), ([1], "int8"),
    (1j, "float32"),
])
def test_scalars_that_do_not_fit(value: Any, data_type: str) -> None:
    with pytest.raises(dml.ValidationError, match=rf"{data_type.upper()} can hold"):
        Scalar.of(value, DataType.of(data_type))


@given(st.floats(width=32), st.sampled_from([t for t in _WHOLE if not t.is_float]))
@example(math.inf, DataType.INT8)
@example(-math.inf, DataType.INT8)
@example(math.nan, DataType.INT8)
def test_float_attributes_saturate(value: float, data_type: dml.DataType) -> None:
    limits = np.iinfo(data_type.dtype)
    result = saturate(value, data_type).item()
    if math.isnan(value):
        assert result == 0
    elif value >= limits.max:
        assert result == limits.max
    elif value <= limits.min:
        assert result == limits.min
    else:
        assert result == math.trunc(value)


@given(st.floats(width=32), st.sampled_from([t for t in _WHOLE if t.is_float]))
def test_float_attributes_in_float_types(value: float, data_type: dml.DataType) -> None:
    with np.errstate(all="ignore"):
        expected = np.float32(value).astype(data_type.dtype)
    result = data_type.dtype.type(saturate(value, data_type).item())
    assert result == expected or (np.isnan(result) and np.isnan(expected))


@pytest.mark.parametrize("value", [Scalar.of(1, "int8"), np.complex64(1), np.datetime64(1, "s")])
def test_scalars_of_other_kinds_are_refused(value: Any) -> None:
    with pytest.raises(dml.ValidationError, match="a scalar that FLOAT32 can hold"):
        Scalar.of(value, "float32")  # type: ignore[arg-type]
