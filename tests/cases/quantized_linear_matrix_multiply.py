"""Products of quantized matrices, with quantized results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from cases.matrix_multiply_integer import sums
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, SHIFTED, Sizes

I8, U8, F32 = dml.DataType.INT8, dml.DataType.UINT8, dml.DataType.FLOAT32


def _scales(x: Arrays) -> np.ndarray:
    """The exact factors of the sums."""
    a, b, y = (x[f"{n}_scale_tensor"].astype(np.float64) for n in ("a", "b", "output"))
    return a.reshape(-1, 1) * b.reshape(1, -1) / y.reshape(-1, 1)


def _reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    y = np.rint(sums(x) * _scales(x))
    if "output_zero_point_tensor" in x:
        y = y + x["output_zero_point_tensor"].astype(np.float64).reshape(-1, 1)
    kind = types["output_tensor"].dtype
    info = np.iinfo(kind)
    return np.clip(y, info.min, info.max).astype(kind)


def _room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """One step, where the rounded scale may carry a number past a half."""
    exact = sums(x) * _scales(x)
    off = abs(exact) * 2.0**-20
    return (abs(exact - np.floor(exact) - 0.5) <= off).astype(np.float64)


def _call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any) -> Any:
    return dml.quantized_linear_matrix_multiply(
        **{name.removesuffix("_tensor"): value for name, value in x.items()},
        data_type=types["output_tensor"], out=out)


def _of_scale(low: float, high: float) -> Any:
    def values(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
        return rng.uniform(low, high, sizes).astype(data_type.dtype)

    return values


_VALUES = {"a_scale_tensor": _of_scale(0.01, 0.1), "b_scale_tensor": _of_scale(0.01, 0.1),
           "output_scale_tensor": _of_scale(1, 3)}


def _case(name: str, a: Sequence[int], b: Sequence[int], *, zeros: bool = False,
          each: bool = False, rank: int = 0, **more: Any) -> Case:
    rank = rank or len(a)
    sizes: dict[str, Sequence[int]] = {"a_tensor": a, "b_tensor": b}
    for field, axis, count in (("a", -2, a[-2]), ("b", -1, b[-1]), ("output", -2, a[-2])):
        for suffix in ("scale", "zero_point") if zeros else ("scale",):
            vector = [1] * rank
            vector[max(axis, -rank)] = count if each else 1
            sizes[f"{field}_{suffix}_tensor"] = vector
    sizes["output_tensor"] = (*a[:-1], b[-1])
    return Case("QUANTIZED_LINEAR_MATRIX_MULTIPLY", name, sizes, _reference, call=_call,
                values=_VALUES, room=_room, **{"layouts": [PACKED], **more})


def _types(a: dml.DataType, b: dml.DataType, y: dml.DataType) -> Types:
    return {
        "a_tensor": a, "a_zero_point_tensor": a, "b_tensor": b, "b_zero_point_tensor": b,
        "output_tensor": y, "output_zero_point_tensor": y, "a_scale_tensor": F32,
        "b_scale_tensor": F32, "output_scale_tensor": F32}


_ONE = [_types(U8, I8, U8)]

CASES = [
    _case("plain", (5, 7), (7, 3), types=[_types(I8, U8, I8)], layouts=FEW),
    _case("everything", (2, 3, 5, 19), (2, 3, 19, 8), zeros=True, each=True, layouts=FEW,
          types=_ONE),
    _case("vectors", (5, 21), (21, 6), zeros=True, rank=1,
          types=[_types(U8, U8, U8), _types(I8, I8, I8)]),
    _case("of-rank-4", (5, 21), (21, 6), zeros=True, each=True, rank=4, types=_ONE,
          layouts=[SHIFTED]),
]

_usual = dict(
    a_tensor=dml.TensorDesc(U8, [4, 5]), b_tensor=dml.TensorDesc(U8, [5, 3]),
    a_scale_tensor=dml.TensorDesc(F32, [1, 1]), b_scale_tensor=dml.TensorDesc(F32, [1, 1]),
    output_scale_tensor=dml.TensorDesc(F32, [1, 1]), a_zero_point_tensor=None,
    b_zero_point_tensor=None, output_zero_point_tensor=None,
    output_tensor=dml.TensorDesc(U8, [4, 3]))


def _error(name: str, parts: list[str], **fields: Any) -> ErrorCase:
    return ErrorCase("QUANTIZED_LINEAR_MATRIX_MULTIPLY", name, _usual | fields, parts)


ERRORS = [
    _error("mismatched-k", ["BTensor.Sizes", "[5, 3]", "[6, 3]"],
           b_tensor=dml.TensorDesc(U8, [6, 3])),
    _error("output", ["OutputTensor.Sizes", "[4, 3]", "[3, 4]"],
           output_tensor=dml.TensorDesc(U8, [3, 4])),
    _error("scale", ["OutputScaleTensor.Sizes", "[4, 1]", "[1, 3]"],
           output_scale_tensor=dml.TensorDesc(F32, [1, 3])),
]
