"""Resampling in all its forms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, REVERSED, SHIFTED, Sizes

_NEAREST, _LINEAR = 0, 1


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    if data_type.is_float:
        return rng.normal(0, 4, sizes).astype(data_type.dtype)
    limits = np.iinfo(data_type.dtype)
    return rng.integers(limits.min, limits.max, sizes, data_type.dtype, endpoint=True)


def _places(o: np.ndarray, scale: float, in_offset: float, out_offset: float) -> np.ndarray:
    """Coordinates in the input."""
    return (o - out_offset) / scale - in_offset


def _nearest(made: int, scale: float, in_offset: float, out_offset: float,
             direction: int | None) -> list[int]:
    """The elements nearest to the outputs, by exact fractions. The cases' scales and offsets are
    fractions with small denominators, or FLOAT32 numbers."""
    def exact(value: float) -> Fraction:
        near = Fraction(value).limit_denominator(100)
        return near if abs(near - Fraction(value)) < 1e-12 else Fraction(float(np.float32(value)))

    places = [(o - exact(out_offset)) / exact(scale) - exact(in_offset) for o in range(made)]
    if direction is None:
        return [math.floor(p + Fraction(1, 2)) for p in places]
    return [math.ceil(p) if direction == 0 else math.floor(p) for p in places]


def resampled(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    """The operators' results for float64 or integers."""
    given, sizes = x["input_tensor"], a["_sizes"]
    rank = given.ndim
    if "scale_size" in a:
        scales: Sequence[float] = (1,) * (rank - 2) + (a["scale_size"].height,
                                                       a["scale_size"].width)
    else:
        scales = a["scales"]
    in_offsets = a.get("input_pixel_offsets", (0.5,) * rank)
    out_offsets = a.get("output_pixel_offsets", (-0.5,) * rank)
    result = given
    exact = given.dtype
    if a["interpolation_mode"] == _LINEAR:
        result = given.astype(np.float64)
    for axis in range(rank):
        o = np.arange(sizes[axis])
        last = given.shape[axis] - 1
        if a["interpolation_mode"] == _NEAREST:
            whole = _nearest(sizes[axis], scales[axis], in_offsets[axis], out_offsets[axis],
                             a.get("rounding_direction"))
            index = np.clip(whole, 0, last).astype(int)
            result = np.take(result, index, axis)
            continue
        n = 1
        while a.get("antialiased") and n * scales[axis] < 0.5:
            n *= 2
        total: Any = 0
        for j in range(n):
            place = _places(o + ((j + 0.5) / n - 0.5), scales[axis], in_offsets[axis],
                            out_offsets[axis]).astype(np.float64)
            low = np.floor(np.clip(place, -1, last + 1))
            second = (np.clip(place, -1, last + 1) - low).reshape(
                [-1 if d == axis else 1 for d in range(rank)])
            taps = [np.take(result, np.clip(low + k, 0, last).astype(int), axis) for k in (0, 1)]
            total = total + taps[0] * (1 - second) + taps[1] * second
        result = total / n
    if exact.kind in "iu":
        return np.trunc(result).astype(exact)
    return result


def _room(x: Arrays, a: Mapping[str, Any]) -> Any:
    """A weight has the error of its coordinate, after a few roundings. Integers are truncated,
    which may differ by one."""
    given = x["input_tensor"]
    if given.dtype.kind in "iu":
        return 1.0
    return float(np.abs(given.astype(np.float64)).max()) * max(given.shape) * 2.0**-20


def _case(operator: str, name: str, sizes: Sizes, out: Sizes, mode: int, **more: Any) -> Case:
    layouts = more.pop("layouts", [PACKED])
    types = more.pop("types", None)
    attributes = {"interpolation_mode": mode, **more}

    def with_sizes(a: Mapping[str, Any]) -> dict[str, Any]:
        return {**a, "_sizes": out}

    return Case(
        operator, name, {"input_tensor": sizes, "output_tensor": out},
        lambda x, a, t: resampled(x, with_sizes(a), t), attributes=attributes,
        values={"input_tensor": _numbers}, layouts=layouts, types=types,
        room=(lambda x, a: _room(x, with_sizes(a))) if mode == _LINEAR else None)


_HALF, _MINUS = (0.5, 0.5), (-0.5, -0.5)
_F32 = [dict.fromkeys(("input_tensor", "output_tensor"), dml.DataType.FLOAT32)]


def _given(operator: str, rank: int, **more: Any) -> dict[str, Any]:
    """The attributes of an operator with more than RESAMPLE has."""
    result: dict[str, Any] = {}
    if operator != "RESAMPLE":
        result = dict(input_pixel_offsets=(0.5,) * rank, output_pixel_offsets=(-0.5,) * rank)
    if operator in ("RESAMPLE2", "RESAMPLE3"):
        result["rounding_direction"] = 1
    if operator == "RESAMPLE3":
        result["antialiased"] = 0
    return result | more


CASES = [
    *(_case("UPSAMPLE_2D", f"{name}-{mode}", sizes, out, mode, scale_size=scale, layouts=layouts)
      for mode in (_NEAREST, _LINEAR) for name, sizes, out, scale, layouts in (
          ("twice", (2, 3, 5, 6), (2, 3, 10, 12), dml.Size2d(2, 2), (PACKED, SHIFTED, REVERSED)),
          ("solid", (1, 2, 3, 5, 7), (1, 2, 3, 5, 21), dml.Size2d(3, 1), FEW))),
    *(_case(operator, f"{name}-{mode}", sizes, out, mode,
            **_given(operator, len(sizes), scales=scales, layouts=layouts))
      for operator in ("RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3")
      for mode in (_NEAREST, _LINEAR) for name, sizes, out, scales, layouts in (
          ("line", (7,), (13,), (13 / 7,), (PACKED, SHIFTED)),
          ("four-axes", (3, 4, 5, 6), (5, 6, 4, 13), (1.7, 1.5, 0.8, 2.2), (PACKED,)),
          ("images", (2, 8, 5, 7), (2, 8, 8, 16), (1, 1, 1.6, 16 / 7),
           (PACKED, SHIFTED, REVERSED) if operator == "RESAMPLE2" else (PACKED,)))),
    _case("RESAMPLE1", "halves", (9,), (4,), _NEAREST, scales=(0.5,), input_pixel_offsets=(0.0,),
          output_pixel_offsets=(-0.25,)),
    _case("RESAMPLE2", "up", (2, 9), (2, 4), _NEAREST, scales=(1, 0.5), rounding_direction=0,
          input_pixel_offsets=(0, 0.25), output_pixel_offsets=(0, 0)),
    # Coordinates that lie half-way, or at an element.
    _case("RESAMPLE", "half-way", (20, 3), (6, 3), _NEAREST, scales=(0.3, 1)),
    _case("RESAMPLE2", "corners", (8, 3), (3, 5), _NEAREST, scales=(2 / 7, 2), rounding_direction=1,
          input_pixel_offsets=(0, 0), output_pixel_offsets=(0, 0)),
    # Shaders read these elements from tables: the numbers of the fractions are too large.
    _case("RESAMPLE2", "tables", (9, 8), (13, 14), _NEAREST, scales=(1.4142135, 1.75),
          rounding_direction=1, input_pixel_offsets=(0.1234567, 0.5),
          output_pixel_offsets=(-0.5, -0.5)),
    _case("RESAMPLE2", "largest-scale", (3, 4), (1, 4), _LINEAR, types=_F32, rounding_direction=1,
          scales=(3.4028234663852886e38, 1), input_pixel_offsets=(0, 0),
          output_pixel_offsets=(0, 0)),
    _case("RESAMPLE3", "antialiased", (3, 16, 23), (3, 2, 5), _LINEAR, layouts=FEW,
          scales=(1, 1 / 8, 5 / 23), input_pixel_offsets=(0.5,) * 3, antialiased=1,
          output_pixel_offsets=(-0.5,) * 3, rounding_direction=1),
]
for _i, _given_case in enumerate(CASES):
    if _given_case.name in ("largest-scale", "corners", "tables"):
        # The output's sizes differ from those that the scales give.
        CASES[_i] = Case(**{**_given_case.__dict__, "levels": ("descriptor",)})

_X = dml.TensorDesc("float32", [2, 4])
_FIELDS: dict[str, Any] = dict(input_tensor=_X, output_tensor=_X, interpolation_mode=1,
                               scales=(1.0, 1.0))
_OFFSETS = _FIELDS | dict(input_pixel_offsets=_HALF, output_pixel_offsets=_MINUS)
_IMAGE = dml.TensorDesc("float32", [1, 1, 2, 4])
ERRORS = [
    ErrorCase("RESAMPLE", "scale", _FIELDS | dict(scales=(1.0, 0.0)),
              ["Scales[1]", "above 0", "0.0"]),
    ErrorCase("RESAMPLE", "count", _FIELDS | dict(scales=(1.0,)), ["Scales", "2 elements"]),
    ErrorCase("RESAMPLE1", "offset", _OFFSETS | dict(input_pixel_offsets=(0.5, float("nan"))),
              ["InputPixelOffsets[1]", "finite", "nan"]),
    ErrorCase("RESAMPLE2", "direction", _OFFSETS | dict(rounding_direction=2),
              ["RoundingDirection", "INCREASING", "2"]),
    ErrorCase("RESAMPLE3", "samples",
              _OFFSETS | dict(rounding_direction=1, antialiased=1, scales=(1e-9, 1.0)),
              ["antialiasing", "32768 samples"], dml.UnsupportedError),
    ErrorCase("UPSAMPLE_2D", "scale", dict(
        input_tensor=_IMAGE, output_tensor=_IMAGE, scale_size=dml.Size2d(0, 1),
        interpolation_mode=0), ["ScaleSize", "[1, 2^24)"]),
    ErrorCase("UPSAMPLE_2D", "sizes", dict(
        input_tensor=_IMAGE, output_tensor=_IMAGE, scale_size=dml.Size2d(2, 1),
        interpolation_mode=0), ["OutputTensor.Sizes", "[1, 1, 2, 8]"]),
]
