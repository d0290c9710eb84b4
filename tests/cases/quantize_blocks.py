"""Quantization by blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes

F32, F16, I8, U8 = (
    dml.DataType.FLOAT32, dml.DataType.FLOAT16, dml.DataType.INT8, dml.DataType.UINT8)
_SCALE, _ZERO = "quantization_tensors[0]", "quantization_tensors[1]"


def _spread(block: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The values of blocks repeated for each element, in float64."""
    for d, n in enumerate(sizes):
        block = np.repeat(block, n // block.shape[d], d)
    return block.astype(np.float64)


def _zero(x: Arrays, sizes: Sequence[int], kind: np.dtype) -> Any:
    if _ZERO in x:
        return _spread(x[_ZERO], sizes)
    return 0 if kind.kind == "i" else 2 ** (8 * kind.itemsize - 1)


def _dequantize(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"]
    y = given.astype(np.float64) - _zero(x, given.shape, given.dtype)
    return y * _spread(x[_SCALE], given.shape)


def _quantize(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given, kind = x["input_tensor"], types["output_tensor"].dtype
    y = np.rint(_quotients(x)) + _zero(x, given.shape, kind)
    return np.clip(y, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)


def _quotients(x: Arrays) -> np.ndarray:
    return x["input_tensor"].astype(np.float64) / _spread(x[_SCALE], x["input_tensor"].shape)


def _room_of_quotients(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """One step, where a rounded quotient may be a half."""
    exact = _quotients(x)
    return (abs(exact - np.floor(exact) - 0.5) <= abs(exact) * 2.0**-20).astype(np.float64)


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 30, sizes).astype(data_type.dtype)


def _scales(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.uniform(0.25, 2, sizes).astype(data_type.dtype)


def _cases(name: str, sizes: Sequence[int], blocks: Sequence[int], zero: bool = True,
           **more: Any) -> list[Case]:
    all_sizes: dict[str, Sequence[int]] = {"input_tensor": sizes, _SCALE: blocks}
    if zero:
        all_sizes[_ZERO] = blocks
    all_sizes["output_tensor"] = sizes
    attributes = {"quantization_type": 2 if zero else 1}
    result = []
    for operator, reference, room in (("QUANTIZE", _quantize, _room_of_quotients),
                                      ("DEQUANTIZE", _dequantize, lambda x, attributes: 0.0)):
        ends = ("input_tensor", "output_tensor")
        number, quantized = ends if operator == "QUANTIZE" else ends[::-1]
        types = [{number: f, _SCALE: f, quantized: q, _ZERO: q}
                 for f in (F32, F16) for q in (I8, U8)]
        types = [{n: t[n] for n in all_sizes} for t in types]
        values = {_SCALE: _scales} | ({"input_tensor": _numbers} if operator == "QUANTIZE" else {})
        result.append(Case(operator, name, all_sizes, reference, attributes=attributes, room=room,
                           values=values, types=types, **{"layouts": [PACKED], **more}))
    return result


_HALVES = np.arange(-32, 32, dtype=np.float32).reshape(4, 16) / 4
"""Every second number, divided by 1/2, is a half."""
_TIES = Case(
    "QUANTIZE", "ties", {"input_tensor": (4, 16), _SCALE: (4, 2), "output_tensor": (4, 16)},
    _quantize, attributes={"quantization_type": 1},
    values={"input_tensor": _HALVES, _SCALE: np.full((4, 2), 0.5, np.float32)},
    types=[{"input_tensor": f, _SCALE: f, "output_tensor": q} for f in (F32, F16)
           for q in (I8, U8)], layouts=[PACKED])

CASES = [
    _TIES,
    *_cases("vector", (37,), (1,)),
    *_cases("blocks", (4, 64), (4, 2), layouts=FEW),
    *_cases("without-zero-point", (3, 6, 8), (1, 3, 1), zero=False, layouts=FEW),
    *_cases("across", (6, 40), (3, 40)),  # neighbours in a vector have scales of their own
    *_cases("each", (5, 7), (5, 7)),
    *_cases("eight-dimensions", (1, 2, 3, 2, 1, 2, 4, 6), (1, 2, 1, 1, 1, 2, 2, 3)),
]

_X, _Q, _S = dml.TensorDesc(F32, [4, 6]), dml.TensorDesc(U8, [4, 6]), dml.TensorDesc(F32, [4, 2])


def _errors(operator: str) -> list[ErrorCase]:
    x, y = (_X, _Q) if operator == "QUANTIZE" else (_Q, _X)

    def error(name: str, parts: list[str], *tensors: dml.TensorDesc, kind: int = 1) -> ErrorCase:
        return ErrorCase(operator, name, dict(
            input_tensor=x, output_tensor=y, quantization_tensors=tensors, quantization_type=kind,
        ), parts)

    return [
        error("none", ["QuantizationType", "NONE"], _S, kind=0),
        error("count", ["QuantizationTensorCount", "2", "1"], _S, kind=2),
        error("uneven", ["QuantizationTensors[0].Sizes", "divide [4, 6]", "[4, 4]"],
              dml.TensorDesc(F32, [4, 4])),
        error("scale-type", ["QuantizationTensors[0].DataType", "FLOAT16"],
              dml.TensorDesc(F16, [4, 2])),
        error("zero-point-type", ["QuantizationTensors[1].DataType", "INT8"], _S,
              dml.TensorDesc(I8, [4, 2]), kind=2),
        error("zero-point-sizes", ["QuantizationTensors[1].Sizes", "[4, 2]", "[4, 1]"], _S,
              dml.TensorDesc(U8, [4, 1]), kind=2),
    ]


ERRORS = [*_errors("QUANTIZE"), *_errors("DEQUANTIZE")]
