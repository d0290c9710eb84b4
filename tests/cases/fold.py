"""FOLD and UNFOLD against loops over blocks and window points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes


def _points(image: Sizes, a: Mapping[str, Any]) -> Iterator[tuple[int, int, Any]]:
    """Window point, block, and their pixel; None outside the image."""
    blocks = [(n + p + e - d * (w - 1) - 1) // s + 1 for n, w, s, d, p, e in zip(
        image, a["window_sizes"], a["strides"], a["dilations"], a["start_padding"],
        a["end_padding"])]
    for k, at in enumerate(itertools.product(*map(range, a["window_sizes"]))):
        for b, block in enumerate(itertools.product(*map(range, blocks))):
            pixel = tuple(o * s + i * d - p for o, s, i, d, p in zip(
                block, a["strides"], at, a["dilations"], a["start_padding"]))
            inside = all(0 <= i < n for i, n in zip(pixel, image))
            yield k, b, pixel if inside else None


def _unfold(columns: Sizes) -> Any:
    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        given = x["input_tensor"]
        y = np.zeros((*given.shape[:2], prod(attributes["window_sizes"]), columns[2]), given.dtype)
        for k, b, pixel in _points(given.shape[2:], attributes):
            if pixel is not None:
                y[:, :, k, b] = given[(..., *pixel)]
        return y.reshape(columns)

    return reference


def _fold(image: Sizes) -> Any:
    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        given = x["input_tensor"].reshape(*image[:2], -1, x["input_tensor"].shape[2])
        wide = np.float64 if given.dtype.kind == "f" else given.dtype
        y = np.zeros(image, wide)
        for k, b, pixel in _points(image[2:], attributes):
            if pixel is not None:
                y[(..., *pixel)] += given[:, :, k, b]
        return y.astype(given.dtype)

    return reference


def _whole(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every type."""
    return rng.integers(0, 100, sizes).astype(data_type.dtype)


def summed() -> list[dml.DataType]:
    """What FOLD sums on this device."""
    has_float64 = "shaderFloat64" in dml.default_device().features
    return [t for t in dml.DataType
            if t.bits >= 8 and (has_float64 or t is not dml.DataType.FLOAT64)]


def _pair(name: str, image: Sizes, columns: Sizes, layouts: Any = (PACKED,),
          types: Any = None, **attributes: Any) -> list[Case]:
    def call(x: Mapping[str, Any], given: Mapping[str, Any], types: Types, out: Any) -> Any:
        return dml.fold(x["input_tensor"], image[2:], **given, out=out)

    names = ("input_tensor", "output_tensor")
    return [
        Case("UNFOLD", name, {"input_tensor": image, "output_tensor": columns}, _unfold(columns),
             attributes=attributes, layouts=layouts, types=types),
        Case("FOLD", name, {"input_tensor": columns, "output_tensor": image}, _fold(image), call,
             attributes=attributes, values={"input_tensor": _whole}, layouts=layouts,
             types=types or [dict.fromkeys(names, t) for t in summed()]),
    ]


def _with_ones(ones: int, *cases: Case) -> list[Case]:
    """The same with leading ones before both tensors, which only descriptions have."""

    def of(c: Case) -> Case:
        def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> Any:
            given = x["input_tensor"]
            y = c.reference({"input_tensor": given.reshape(given.shape[ones:])}, attributes, types)
            assert isinstance(y, np.ndarray)
            return y.reshape((1,) * ones + y.shape)

        return replace(
            c, name=f"{c.name}-after-{ones}", levels=("descriptor",), reference=reference,
            sizes={n: (*(1,) * ones, *s) for n, s in c.sizes.items()})

    return [of(c) for c in cases]


_F32 = [dict.fromkeys(("input_tensor", "output_tensor"), dml.DataType.FLOAT32)]
CASES = [
    *_pair("line", (2, 3, 7), (2, 6, 4), window_sizes=(2,), strides=(2,), dilations=(3,),
           start_padding=(1,), end_padding=(2,)),
    *_pair("plane", (2, 2, 5, 6), (2, 12, 15), FEW, _F32, window_sizes=(3, 2), strides=(2, 1),
           dilations=(1, 2), start_padding=(1, 0), end_padding=(1, 1)),
    # h: blocks at 0, 4; taps 0, 2, 4. w: blocks at -1, 1, 3, 5; taps 0, 1, 2.
    *_pair("vectors", (1, 2, 9, 8), (1, 18, 8), types=_F32, window_sizes=(3, 3), strides=(4, 2),
           dilations=(2, 1), start_padding=(0, 1), end_padding=(0, 0)),
    *_pair("far-apart", (1, 1, 20), (1, 5, 4), types=_F32, window_sizes=(5,), strides=(2,),
           dilations=(4,), start_padding=(3,), end_padding=(0,)),
    *_pair("six-axes", (1, 2, 2, 1, 3, 2, 1, 2), (1, 16, 6), types=_F32,
           window_sizes=(2, 1, 1, 2, 1, 2), strides=(1,) * 6, dilations=(1,) * 6,
           start_padding=(0,) * 6, end_padding=(0, 0, 0, 0, 1, 0)),
]
CASES += _with_ones(1, *(c for c in CASES if c.name == "plane"))
CASES += _with_ones(5, *(c for c in CASES if c.name == "line"))

_IMAGE, _COLUMNS = dml.TensorDesc("float32", [1, 1, 4, 4]), dml.TensorDesc("float32", [1, 9, 4])
_PLAIN = dict(window_sizes=(3, 3), strides=(1, 1), dilations=(1, 1), start_padding=(0, 0),
              end_padding=(0, 0))
ERRORS = [
    ErrorCase("UNFOLD", "stride", dict(input_tensor=_IMAGE, output_tensor=_COLUMNS,
                                       **_PLAIN | {"strides": (1, 0)}),
              ["Strides[1]", "above 0", "0"]),
    ErrorCase("UNFOLD", "window", dict(input_tensor=_IMAGE, output_tensor=_COLUMNS,
                                       **_PLAIN | {"window_sizes": (3, 5)}),
              ["WindowSizes[1]", "padded image of 4", "5"]),
    ErrorCase("UNFOLD", "dimensions", dict(input_tensor=_IMAGE.replace(
        sizes=(2, 1, 1, 4, 4), strides=None), output_tensor=_COLUMNS, **_PLAIN),
              ["DimensionCount", "be 3", "[2, 1, 1, 4, 4]", "2"]),
    ErrorCase("FOLD", "columns", dict(input_tensor=_COLUMNS, output_tensor=_IMAGE,
                                      **_PLAIN | {"strides": (2, 2)}),
              ["InputTensor.Sizes", "[1, 9, 1]", "[1, 9, 4]"]),
]
