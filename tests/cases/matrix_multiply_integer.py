"""Exact products of quantized matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, SHIFTED

I8, U8 = dml.DataType.INT8, dml.DataType.UINT8


def sums(x: Arrays) -> np.ndarray:
    """The exact sums, in 64 bits."""
    a, b = (x[f"{side}_tensor"].astype(np.int64) for side in "ab")
    if "a_zero_point_tensor" in x:
        a = a - x["a_zero_point_tensor"].astype(np.int64).reshape(-1, 1)
    if "b_zero_point_tensor" in x:
        b = b - x["b_zero_point_tensor"].astype(np.int64).reshape(1, -1)
    return a @ b


def _reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    return sums(x).astype(np.int32)


def _call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any) -> Any:
    return dml.matrix_multiply_integer(
        **{name.removesuffix("_tensor"): value for name, value in x.items()}, out=out)


def _case(name: str, a: Sequence[int], b: Sequence[int], *, zeros: str = "", each: bool = False,
          rank: int = 0, **more: Any) -> Case:
    """``zeros``: the sides with a zero point. ``each``: one zero point for every row or column."""
    rank = rank or len(a)
    sizes: dict[str, Sequence[int]] = {"a_tensor": a, "b_tensor": b}
    for side, axis, count in (("a", -2, a[-2]), ("b", -1, b[-1])):
        if side in zeros:
            vector = [1] * rank
            vector[max(axis, -rank)] = count if each else 1
            sizes[f"{side}_zero_point_tensor"] = vector
    sizes["output_tensor"] = (*a[:-1], b[-1])
    return Case("MATRIX_MULTIPLY_INTEGER", name, sizes, _reference, call=_call,
                **{"layouts": [PACKED], **more})


def _all(value: int) -> Any:
    return lambda rng, data_type, sizes: np.full(sizes, value, data_type.dtype)


_SAME = [{"a_tensor": U8, "b_tensor": U8, "output_tensor": dml.DataType.INT32}]

CASES = [
    _case("plain", (5, 7), (7, 3), layouts=FEW),
    _case("zero-points", (2, 3, 5, 19), (2, 3, 19, 7), zeros="ab", each=True, layouts=FEW),
    _case("vectors", (5, 21), (21, 6), zeros="ab", rank=1),
    _case("of-rows", (5, 21), (21, 6), zeros="a", each=True, layouts=[SHIFTED]),
    _case("of-columns", (5, 21), (21, 6), zeros="b", each=True, rank=4, layouts=[SHIFTED]),
    _case("of-rows-4d", (5, 21), (21, 6), zeros="a", each=True, rank=4),
    _case("past-a-tile", (65, 65), (65, 67), zeros="ab", levels=["descriptor"]),
    _case("few-rows", (2, 128), (128, 256), zeros="ab", levels=["descriptor"]),
    # Beyond the longest K of one dispatch, and beyond 2^31.
    _case("wraps", (1, 70_000), (70_000, 2), types=_SAME, levels=["descriptor"],
          values={"a_tensor": _all(255), "b_tensor": _all(255)}),
]


def _error(name: str, parts: list[str], **fields: Any) -> ErrorCase:
    usual = dict(
        a_tensor=dml.TensorDesc(U8, [4, 5]), b_tensor=dml.TensorDesc(U8, [5, 3]),
        a_zero_point_tensor=None, b_zero_point_tensor=None,
        output_tensor=dml.TensorDesc("int32", [4, 3]))
    return ErrorCase("MATRIX_MULTIPLY_INTEGER", name, usual | fields, parts)


ERRORS = [
    _error("mismatched-k", ["BTensor.Sizes", "[5, 3]", "[6, 3]"],
           b_tensor=dml.TensorDesc(U8, [6, 3])),
    _error("output", ["OutputTensor.Sizes", "[4, 3]", "[3, 4]"],
           output_tensor=dml.TensorDesc("int32", [3, 4])),
    _error("zero-point", ["AZeroPointTensor.Sizes", "[4, 1]", "[5, 1]"],
           a_zero_point_tensor=dml.TensorDesc(U8, [5, 1])),
    _error("zero-point-type", ["DataType", "INT8"],
           a_zero_point_tensor=dml.TensorDesc(I8, [1, 1])),
]
