"""Quantization: ONNX Runtime's steps, one correctly rounded float32 operation after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import Arrays, Case, ErrorCase, Sizes, Types
from kompute_dml import DataType
from layouts import PACKED, REPEATED, SHIFTED, STEPPED, TRANSPOSED

_F32 = np.float32


def scales(rng: np.random.Generator, data_type: DataType, sizes: Sizes) -> np.ndarray:
    return rng.uniform(0.01, 0.1, sizes).astype(data_type.dtype)


def numbers(rng: np.random.Generator, data_type: DataType, sizes: Sizes) -> np.ndarray:
    return (rng.normal(size=sizes) * 4).astype(data_type.dtype)


def _clamped(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.clip(x, info.min, info.max).astype(dtype)


def _quantized(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    quotient = np.rint(x["input_tensor"].astype(_F32) / x["scale_tensor"].astype(_F32))
    zero = x.get("zero_point_tensor", np.int64(0))
    return _clamped(quotient + zero.astype(_F32), types["output_tensor"].dtype)


def _dequantized(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    zero = x.get("zero_point_tensor", np.int64(0))
    difference = (x["input_tensor"].astype(np.int64) - zero.astype(np.int64)).astype(_F32)
    product = difference * x["scale_tensor"].astype(_F32)
    return np.asarray(product.astype(types["output_tensor"].dtype))


def linear(name: str, label: str, sizes: Sizes, zero: bool, types: Any, layouts: Any) -> Case:
    quantize = name == "quantize"
    fields = ["input_tensor", "scale_tensor", *["zero_point_tensor"] * zero, "output_tensor"]

    def call(x: Mapping[str, Any], given: Any, types: Types, out: Any) -> dml.Tensor:
        more = {"data_type": types["output_tensor"]} if quantize else {}
        function = dml.quantize_linear if quantize else dml.dequantize_linear
        return function(x["input_tensor"], x["scale_tensor"], x.get("zero_point_tensor"), out=out,
                        **more)

    values = {"scale_tensor": scales} | ({"input_tensor": numbers} if quantize else {})
    return Case(
        f"ELEMENT_WISE_{name.upper()}_LINEAR", label, dict.fromkeys(fields, sizes),
        _quantized if quantize else _dequantized, call, values=values, types=types,
        layouts=layouts, levels=("descriptor", "function"), compare="stepwise",
    )


def _types(rows: str) -> list[Types]:
    fields = ("input_tensor", "scale_tensor", "zero_point_tensor", "output_tensor")
    return [dict(zip(fields, map(DataType.of, row.split()))) for row in rows.split(",")]


QUANTIZE = _types("float32 float32 uint8 uint8,float32 float32 int8 int8,"
                   "float16 float16 uint8 uint8,int32 float32 int8 int8")
DEQUANTIZE = _types(
    "int32 float32 int32 float32,uint32 float32 uint32 float32,int16 float16 int16 float16,"
    "uint16 float32 uint16 float32,int8 float32 int8 float32,uint8 float16 uint8 float16")


# -- sums

_ADD = {
    "a": "a_tensor", "a_scale": "a_scale_tensor", "a_zero_point": "a_zero_point_tensor",
    "b": "b_tensor", "b_scale": "b_scale_tensor", "b_zero_point": "b_zero_point_tensor",
    "output_scale": "output_scale_tensor", "output_zero_point": "output_zero_point_tensor",
}


def multiply_add(x: Any, y: Any, z: Any) -> np.ndarray:
    """x * y + z, rounded once: float64 holds such a product, and float80 the sum."""
    exact = np.asarray(x, np.longdouble) * np.longdouble(y) + np.asarray(z, np.longdouble)
    return np.asarray(exact.astype(_F32))


def _added(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    def one(name: str) -> Any:
        given = x.get(_ADD[name])
        return _F32(0 if given is None else given.ravel()[0])

    a_ratio, b_ratio = (one(n) / one("output_scale") for n in ("a_scale", "b_scale"))
    fixed = one("output_zero_point") - multiply_add(
        a_ratio, one("a_zero_point"), b_ratio * one("b_zero_point"))
    total = multiply_add(x["a_tensor"], a_ratio, multiply_add(x["b_tensor"], b_ratio, fixed))
    return _clamped(np.rint(total), types["output_tensor"].dtype)


def _sum(
    label: str, sizes: Sizes, types: Any, layouts: Any, zeros: bool = True, **given: float
) -> Case:
    one = (1,) * len(sizes)
    fields = [f for f in _ADD.values() if zeros or "zero" not in f]
    return Case(
        "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", label,
        {f: sizes if f in ("a_tensor", "b_tensor") else one for f in fields}
        | {"output_tensor": sizes},
        _added,
        lambda x, given, types, out: dml.quantized_linear_add(
            *(x.get(f) for f in _ADD.values()), out=out,
            data_type=types["output_tensor"]),
        values={f: np.full(one, given[f], _F32) if f in given else scales
                for f in fields if f.endswith("scale_tensor")},
        types=types, layouts=layouts, levels=("descriptor", "function"),
    )


_SUM_TYPES = [
    {**{f: DataType.FLOAT32 if "scale" in f else DataType.of(kind) for f in _ADD.values()},
     "output_tensor": DataType.of(kind)} for kind in ("uint8", "int8")
]

# -- ranges

_DYNAMIC = ("output_tensor", "output_scale_tensor", "output_zero_point_tensor")


def _dynamic(x: Arrays, given: Mapping[str, Any], types: Types) -> tuple[np.ndarray, ...]:
    numbers, info = x["input_tensor"].astype(_F32), np.iinfo(types["output_tensor"].dtype)
    ones = (1,) * numbers.ndim
    low, high = np.fmin.reduce(numbers, None, initial=0), np.fmax.reduce(numbers, None, initial=0)
    scale = (high - low) / _F32(255) if high > low else _F32(1)
    start = np.nan_to_num(_F32(info.min) - low / scale, nan=np.inf)
    zero = _clamped(np.rint(start), info.dtype)
    shifted = np.rint(numbers / scale) + _F32(zero)
    quantized = _clamped(np.nan_to_num(shifted, nan=-np.inf), info.dtype)
    return quantized, np.full(ones, scale, _F32), np.full(ones, zero)


def dynamic(label: str, sizes: Sizes, types: Any, layouts: Any, **more: Any) -> Case:
    return Case(
        "DYNAMIC_QUANTIZE_LINEAR", label,
        {"input_tensor": sizes, "output_tensor": sizes, **dict.fromkeys(_DYNAMIC[1:],
                                                                        (1,) * len(sizes))},
        _dynamic,
        lambda x, given, types, out: dml.dynamic_quantize_linear(
            x["input_tensor"], data_type=types["output_tensor"], out=out),
        values={"input_tensor": numbers, **more}, types=types, layouts=layouts, compare="stepwise",
    )


def _among(*special: float) -> Callable[..., np.ndarray]:
    """Special values in the middle, because the ends may be outside the tensor."""

    def make(rng: np.random.Generator, data_type: DataType, sizes: Sizes) -> np.ndarray:
        x = rng.normal(size=sizes)
        middle = x.size // 2
        x.reshape(-1)[middle : middle + len(special)] = special
        return x.astype(data_type.dtype)

    return make


def _between(low: float, high: float) -> Callable[..., np.ndarray]:
    return lambda rng, data_type, sizes: rng.uniform(low, high, sizes).astype(data_type.dtype)


CASES = [
    dynamic("line", (37,), None, (PACKED, SHIFTED)),
    dynamic("matrix", (5, 7), None, (PACKED, TRANSPOSED, STEPPED, REPEATED)),
    dynamic("deep", (2, 1, 3, 2, 1, 2, 1, 3), None, (PACKED, TRANSPOSED)),
    dynamic("many-workgroups", (257, 259), None, (PACKED, TRANSPOSED)),
    *(dynamic(name, (31,), None, (PACKED,), input_tensor=_between(*ends)) for name, ends in (
        ("positive", (1, 2)), ("negative", (-2, -1)), ("zeros", (0, 0)), ("tiny", (-1e-7, 1e-7)))),
    *(dynamic(name, (700,), None, (PACKED,), input_tensor=_among(*special)) for name, special in (
        ("nan", (np.nan, 2.0, np.nan)), ("infinity", (np.inf,)), ("negative-infinity", (-np.inf,)),
        ("infinities", (np.inf, -np.inf, np.nan)))),
    *(c for name, types in (("quantize", QUANTIZE), ("dequantize", DEQUANTIZE)) for c in (
        linear(name, "line", (37,), True, types, (PACKED,)),
        linear(name, "no-zero-point", (5, 7), False, [
            {k: v for k, v in types[0].items() if k != "zero_point_tensor"}], (PACKED, STEPPED)),
        linear(name, "deep", (2, 1, 3, 2, 1, 2, 1, 3), True, types[:1], (PACKED, REPEATED)),
    )),
    _sum("line", (37,), _SUM_TYPES, (PACKED,)),
    _sum("matrix", (5, 7), _SUM_TYPES[:1], (PACKED, STEPPED)),
    _sum("deep", (2, 1, 3, 2, 1, 2, 1, 3), _SUM_TYPES[:1], (PACKED,)),
    # Many sums are halves, so that double rounding would show.
    _sum("halves", (4001,), _SUM_TYPES, (PACKED,), a_scale_tensor=1 / 3, b_scale_tensor=1 / 6,
         output_scale_tensor=1.0),
    _sum("no-zero-points", (7,), _SUM_TYPES[:1], (PACKED,), zeros=False),
]


def _desc(data_type: str, *sizes: int) -> dml.TensorDesc:
    return dml.TensorDesc(data_type, sizes)


_U8, _ONE = _desc("uint8", 4), _desc("float32", 1)

ERRORS = [
    ErrorCase("ELEMENT_WISE_QUANTIZE_LINEAR", "scale-type", {
        "input_tensor": _desc("float16", 4), "scale_tensor": _desc("float32", 4),
        "output_tensor": _U8}, ["ScaleTensor.DataType", "FLOAT16", "FLOAT32"]),
    ErrorCase("ELEMENT_WISE_DEQUANTIZE_LINEAR", "sizes-differ", {
        "input_tensor": _U8, "scale_tensor": _desc("float32", 1),
        "output_tensor": _desc("float32", 4)}, ["ScaleTensor.Sizes", "[1]", "[4]"]),
    ErrorCase("ELEMENT_WISE_QUANTIZED_LINEAR_ADD", "many-scales", {
        "a_tensor": _U8, "a_scale_tensor": _desc("float32", 4), "b_tensor": _U8,
        "b_scale_tensor": _ONE, "output_scale_tensor": _ONE, "output_tensor": _U8},
        ["AScaleTensor.Sizes", "one element", "[4]"]),
    ErrorCase("DYNAMIC_QUANTIZE_LINEAR", "sizes-differ", {
        "input_tensor": _desc("float32", 5), "output_tensor": _U8, "output_scale_tensor": _ONE,
        "output_zero_point_tensor": _desc("uint8", 1)},
        ["InputTensor.Sizes", "equal OutputTensor.Sizes", "[5]", "[4]"]),
]
