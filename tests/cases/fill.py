"""Operators that generate their output."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, SHIFTED, SLICED, STEPPED, TRANSPOSED

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def as_attribute(value: float, dtype: np.dtype) -> np.ndarray:
    """A FLOAT attribute in the output's type, computed with Python numbers."""
    try:
        number = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        number = math.copysign(math.inf, value)
    if dtype.kind == "f":
        return np.array(number, np.float64).astype(dtype)
    limits = np.iinfo(dtype)
    if math.isnan(number):
        return np.array(0, dtype)
    if math.isinf(number):
        return np.array(limits.max if number > 0 else limits.min, dtype)
    return np.array(min(max(math.trunc(number), limits.min), limits.max), dtype)


def _diagonal_matrix(x: Arrays, attributes: Mapping[str, Any], types: Types,
                     sizes: tuple[int, ...]) -> np.ndarray:
    dtype = types["output_tensor"].dtype
    rows, columns = np.indices(sizes[-2:])
    value = as_attribute(attributes["value"], dtype)
    matrix = np.where(rows + attributes["offset"] == columns, value, np.zeros((), dtype))
    return np.broadcast_to(matrix, sizes)


def fill(name: str, sizes: tuple[int, ...], offset: int, value: float, **more: Any) -> Case:
    return Case(
        "DIAGONAL_MATRIX",
        name,
        {"output_tensor": sizes},
        attributes={"offset": offset, "value": value},
        reference=partial(_diagonal_matrix, sizes=sizes),
        call=lambda x, attributes, types, out: dml.diagonal_matrix(
            sizes, **attributes, data_type=types["output_tensor"], out=out
        ),
        **more,
    )


def typed(value: Any, types: Types) -> np.ndarray:
    """DIAGONAL_MATRIX1's Value in the type of the output; bytes are taken as they are."""
    dtype = types["output_tensor"].dtype
    if isinstance(value, bytes):
        return np.frombuffer(value, dtype)[0]
    return np.array(value, dtype)


def _diagonal_matrix1(x: Arrays, attributes: Mapping[str, Any], types: Types,
                      sizes: tuple[int, ...]) -> np.ndarray:
    begin, end = attributes["diagonal_fill_begin"], attributes["diagonal_fill_end"]
    rows, columns = np.indices(sizes[-2:])
    top = columns - rows
    filled = (end >= begin) ^ (top >= begin) ^ (top < end)
    rest = x.get("input_tensor", np.zeros(sizes, types["output_tensor"].dtype))
    # Bits, so that NaN payloads are kept.
    bits = np.dtype(f"u{rest.itemsize}")
    value = np.ascontiguousarray(typed(attributes["value"], types)).view(bits)
    return np.where(filled, value, rest.view(bits)).view(rest.dtype)


def fill1(name: str, sizes: tuple[int, ...], begin: int, end: int, value: Any = 1,
           with_input: bool = True, **more: Any) -> Case:
    def call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any
             ) -> dml.Tensor:
        own = {k: v for k, v in attributes.items() if k != "value_data_type"}
        if with_input:
            return dml.diagonal_matrix1(x["input_tensor"], out=out, **own)
        return dml.diagonal_matrix1(
            sizes=sizes, data_type=types["output_tensor"], out=out, **own
        )

    return Case(
        "DIAGONAL_MATRIX1",
        name,
        {"input_tensor": sizes, "output_tensor": sizes} if with_input
        else {"output_tensor": sizes},
        attributes={
            "value_data_type": lambda types: types["output_tensor"],
            "value": value,
            "diagonal_fill_begin": begin,
            "diagonal_fill_end": end,
        },
        reference=partial(_diagonal_matrix1, sizes=sizes),
        call=call,
        **more,
    )


def _pattern(types: Types) -> bytes:
    """Bits that no arithmetic would keep: a signalling NaN with a payload, for the float types."""
    output = types["output_tensor"]
    return {
        "f16": struct.pack("<H", 0x7D23),
        "f32": struct.pack("<I", 0xFF812345),
        "f64": struct.pack("<Q", 0x7FF0123456789ABC),
    }.get(output.family, bytes(range(0xF1, 0xF9))[: output.itemsize])


def _lowest(types: Types) -> Any:
    dtype = types["output_tensor"].dtype
    return -0.0 if dtype.kind == "f" else int(np.iinfo(dtype).min)


CASES = [
    fill("one", (1, 1), 0, 1.0),
    fill("right", (2, 3, 5, 7), 2, 10.6),
    fill("left", (5, 11), -3, -10.6),
    fill("beyond", (3, 4, 2), -4, 5.0, layouts=FEW),
    fill("far-right", (3, 5), INT32_MAX, 5.0, layouts=[PACKED]),
    fill("far-left", (3, 5), INT32_MIN, 5.0, layouts=[PACKED]),
    fill("tall", (257, 3), -254, 300.5, layouts=FEW),
    fill("wide", (3, 259), 257, 1e20, layouts=FEW),
    fill("inexact", (3, 3), 0, 0.1, layouts=[SHIFTED]),
    fill("nan", (3, 3), 0, math.nan, layouts=[SHIFTED]),
    fill("infinite", (3, 3), 0, -math.inf, layouts=[SHIFTED]),
    fill("past-float32", (3, 3), 0, 1e300, layouts=[SHIFTED]),
    fill("past-float16", (3, 3), 0, 65520.0, layouts=[SHIFTED]),
    fill("past-int64", (3, 3), 0, 9.3e18, layouts=[SHIFTED]),
    fill("past-int32", (3, 3), 0, -2147483904.0, layouts=[SHIFTED]),
    fill("tiny", (3, 3), 0, 3e-8, layouts=[SHIFTED]),
    # Large enough for lavapipe to write zeros first.
    fill("large", (3, 300, 301), -4, 2.0, layouts=[PACKED, TRANSPOSED, SLICED]),
    fill("large-beyond", (513, 512), 512, 2.0, layouts=[PACKED]),
    fill1("large-on-zeros", (513, 512), 5, 6, _pattern, with_input=False,
          layouts=[PACKED, STEPPED]),
    fill1("band", (2, 3, 5, 7), -1, 3, _pattern),
    fill1("band-on-zeros", (3, 5, 11), -1, 3, _pattern, with_input=False),
    fill1("outside", (5, 7), 2, -1, _lowest, layouts=[*FEW, STEPPED]),
    fill1("outside-on-zeros", (5, 7), 2, -1, _lowest, with_input=False, layouts=FEW),
    fill1("nothing", (5, 7), 1, 1, layouts=[SHIFTED]),
    fill1("inside-out-by-one", (5, 7), 1, 0, layouts=[SLICED]),
    fill1("lower-triangle", (5, 7), INT32_MIN, 1, layouts=[SLICED]),
    fill1("upper-triangle", (5, 7), 0, INT32_MAX, layouts=[SLICED]),
    fill1("everything", (5, 7), INT32_MIN, INT32_MAX, layouts=[SHIFTED]),
    fill1("all-outside", (5, 7), INT32_MAX, INT32_MIN, layouts=[SHIFTED]),
    fill1("far-right", (5, 7), INT32_MAX, INT32_MAX, layouts=[SHIFTED]),
    fill1("far-left", (5, 7), INT32_MIN, INT32_MIN, layouts=[SHIFTED]),
    fill1("corner", (5, 7), 6, 7, layouts=[SHIFTED]),
    fill1("other-corner", (5, 7), -4, -3, layouts=[SHIFTED]),
    fill1("many-small", (70, 60, 2, 3), 0, 1, layouts=[PACKED, SHIFTED]),
    fill1("past-a-workgroup", (2, 131, 67), -60, 9, layouts=FEW),
    fill1("whole-vectors", (2, 3, 7, 48), -5, 19, layouts=FEW),
    fill1("whole-vectors-outside", (2, 7, 48), 19, -5, layouts=FEW),
    fill1("parts-of-rows", (3, 8240), 555, 8111, layouts=[PACKED, SHIFTED, SLICED]),
    fill1("parts-of-rows-outside", (3, 8240), 8111, 555, layouts=[PACKED, SHIFTED]),
    fill("parts-of-rows", (3, 8240), 8211, 7.0, layouts=[PACKED, SHIFTED]),
]


def _f32(*sizes: int, **more: Any) -> dml.TensorDesc:
    return dml.TensorDesc("float32", sizes, **more)


def _error(name: str, parts: list[str], **fields: Any) -> ErrorCase:
    return ErrorCase("DIAGONAL_MATRIX", name, dict(offset=0, value=1.0) | fields, parts)


def _error1(name: str, parts: list[str], **fields: Any) -> ErrorCase:
    usual = dict(
        output_tensor=_f32(3, 4), value_data_type=dml.DataType.FLOAT32, value=1.0,
        diagonal_fill_begin=0, diagonal_fill_end=1,
    )
    return ErrorCase("DIAGONAL_MATRIX1", name, usual | fields, parts)


_BYTES = dict(output_tensor=dml.TensorDesc("uint8", [3, 4]), value_data_type=dml.DataType.UINT8)

ERRORS = [
    _error("vector", ["OutputTensor.DimensionCount", "[2, 4]", "1"], output_tensor=_f32(4)),
    _error("five-dimensional", ["OutputTensor.DimensionCount", "[2, 4]", "5"],
           output_tensor=_f32(1, 1, 1, 2, 2)),
    _error("stride-0-output", ["OutputTensor.Strides", "address of its own", "[0, 1]"],
           output_tensor=_f32(3, 4, strides=[0, 1])),
    _error("overlapping-output", ["OutputTensor.Strides", "[3, 1]"],
           output_tensor=_f32(3, 4, strides=[3, 1])),
    _error("no-output", ["OutputTensor", "be given"], output_tensor=None),
    _error("offset-past-int", ["Offset", f"[{INT32_MIN}, {INT32_MAX}]", str(2**31)],
           output_tensor=_f32(3, 4), offset=2**31),
    _error("fractional-offset", ["Offset", "be an integer", "0.5"],
           output_tensor=_f32(3, 4), offset=0.5),
    _error("textual-value", ["Value", "be a number", "'one'"],
           output_tensor=_f32(3, 4), value="one"),
    _error1("vector", ["OutputTensor.DimensionCount", "[2, 4]", "1"], output_tensor=_f32(4)),
    _error1("types-differ", ["InputTensor.DataType", "OutputTensor.DataType", "FLOAT16", "FLOAT32"],
            input_tensor=dml.TensorDesc("float16", [3, 4])),
    _error1("ranks-differ", ["InputTensor.DimensionCount", "OutputTensor.DimensionCount", "3", "2"],
            input_tensor=_f32(1, 3, 4)),
    _error1("sizes-differ", ["InputTensor.Sizes", "OutputTensor.Sizes", "[4, 3]", "[3, 4]"],
            input_tensor=_f32(4, 3)),
    _error1("stride-0-output", ["OutputTensor.Strides", "[4, 0]"],
            output_tensor=_f32(3, 4, strides=[4, 0])),
    _error1("value-type-differs", ["ValueDataType", "OutputTensor.DataType", "INT32", "FLOAT32"],
            value_data_type=dml.DataType.INT32),
    _error1("value-type-missing", ["ValueDataType", "be a DataType", "None"], value_data_type=None),
    _error1("value-too-large", ["Value", "UINT8 can hold", "256"], **_BYTES, value=256),
    _error1("value-negative", ["Value", "UINT8 can hold", "-1"], **_BYTES, value=-1),
    _error1("value-fractional", ["Value", "UINT8 can hold", "1.5"], **_BYTES, value=1.5),
    _error1("value-nan", ["Value", "UINT8 can hold", "nan"], **_BYTES, value=math.nan),
    _error1("value-infinite", ["Value", "UINT8 can hold", "inf"], **_BYTES, value=math.inf),
    _error1("value-past-float32", ["Value", "FLOAT32 can hold", "1e+39"], value=1e39),
    _error1("value-past-float64", ["Value", "FLOAT32 can hold", "1000"], value=10**400),
    _error1("value-of-wrong-width", ["Value", "FLOAT32 can hold", "abc"], value=b"abc"),
    _error1("value-textual", ["Value", "FLOAT32 can hold", "'7'"], value="7"),
    _error1("value-array", ["Value", "FLOAT32 can hold", "[1.0]"], value=[1.0]),
    _error1("begin-past-int", ["DiagonalFillBegin", f"[{INT32_MIN}, {INT32_MAX}]", str(2**31)],
            diagonal_fill_begin=2**31),
    _error1("end-past-int", ["DiagonalFillEnd", f"[{INT32_MIN}, {INT32_MAX}]", str(-(2**31) - 1)],
            diagonal_fill_end=-(2**31) - 1),
]
