"""FILL_VALUE_CONSTANT and FILL_VALUE_SEQUENCE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import Arrays, Case, ErrorCase, Sizes, Types
from layouts import PACKED, SHIFTED, STEPPED, TRANSPOSED


def _kind(types: Types) -> dml.DataType:
    return types["output_tensor"]


def _constant(label: str, sizes: Sizes, value: Any, layouts: Any) -> Case:
    def reference(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
        return np.full(sizes, given["value"], _kind(types).dtype)

    def call(x: Any, given: Mapping[str, Any], types: Types, out: Any) -> dml.Tensor:
        return dml.fill_value_constant(sizes, value=given["value"], data_type=_kind(types), out=out)

    return Case(
        "FILL_VALUE_CONSTANT", label, {"output_tensor": sizes}, reference, call,
        attributes={"value": value, "value_data_type": _kind}, layouts=layouts,
        levels=("descriptor", "function"),
    )


def _sequence(label: str, sizes: Sizes, start: Any, delta: Any, layouts: Any) -> Case:
    def reference(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
        numbers = np.arange(int(np.prod(sizes))).reshape(sizes)
        dtype = _kind(types).dtype
        wide = np.float32 if dtype.kind == "f" else np.int64
        return (wide(start) + numbers.astype(wide) * wide(delta)).astype(dtype)

    def call(x: Any, given: Mapping[str, Any], types: Types, out: Any) -> dml.Tensor:
        return dml.fill_value_sequence(sizes, value_start=start, value_delta=delta,
                                       data_type=_kind(types), out=out)

    return Case(
        "FILL_VALUE_SEQUENCE", label, {"output_tensor": sizes}, reference, call,
        attributes={"value_start": start, "value_delta": delta, "value_data_type": _kind},
        layouts=layouts, levels=("descriptor", "function"), compare="stepwise",
    )


CASES = [
    _constant("line", (37,), 7, (PACKED, SHIFTED)),
    _constant("matrix", (5, 7), 100, (PACKED, STEPPED)),
    _constant("deep", (2, 1, 3, 2, 1, 2, 3, 2), 1, (PACKED, TRANSPOSED)),
    _sequence("line", (37,), 120, 7, (PACKED, SHIFTED)),
    _sequence("matrix", (5, 7), 3, 2, (PACKED, STEPPED)),
    _sequence("deep", (2, 1, 3, 2, 1, 2, 3, 2), 5, 0, (PACKED, TRANSPOSED)),
]

_F32 = dml.TensorDesc("float32", [4])

ERRORS = [
    ErrorCase("FILL_VALUE_CONSTANT", "types-differ",
              {"output_tensor": _F32, "value_data_type": dml.DataType.INT32, "value": 1},
              ["ValueDataType", "equal OutputTensor.DataType", "INT32", "FLOAT32"]),
    ErrorCase("FILL_VALUE_SEQUENCE", "not-a-number",
              {"output_tensor": _F32, "value_data_type": dml.DataType.FLOAT32, "value_start": "1",
               "value_delta": 1},
              ["ValueStart", "FLOAT32 can hold", "'1'"]),
]
