"""Softmax and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 4, sizes).astype(data_type.dtype)


def _softmax(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"].astype(np.float64)
    axes = attributes["axes"]
    e = np.exp(given - given.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def _room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """exp multiplies the error of its argument; sums of positive numbers lose a few ulp."""
    return _softmax(x, attributes, {}) * 2.0**-19


def _softmax1(name: str, sizes: Sizes, axes: tuple[int, ...], **more: Any) -> Case:
    return Case(
        "ACTIVATION_SOFTMAX1", name, {"input_tensor": sizes, "output_tensor": sizes}, _softmax,
        attributes={"axes": axes}, values={"input_tensor": _numbers}, room=_room, **more)


CASES = [
    _softmax1("vector", (5,), (0,), layouts=FEW),
    _softmax1("last", (3, 5, 7), (2,)),
    _softmax1("first-and-last", (3, 4, 5, 6), (3, 0), layouts=FEW),
    _softmax1("past-a-workgroup", (2, 1031), (1,), layouts=FEW),
    _softmax1("eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), (1, 3, 6, 7), layouts=[PACKED]),
]

_X = dml.TensorDesc("float32", [2, 3])
ERRORS = [
    ErrorCase("ACTIVATION_SOFTMAX1", "axis", dict(input_tensor=_X, output_tensor=_X, axes=(2,)),
              ["Axes[0]", "[0, 2)", "2"]),
    ErrorCase("ACTIVATION_SOFTMAX1", "twice", dict(input_tensor=_X, output_tensor=_X, axes=(1, 1)),
              ["Axes", "each axis once", "[1, 1]"]),
    ErrorCase("ACTIVATION_SOFTMAX1", "text", dict(input_tensor=_X, output_tensor=_X, axes="hello"),
              ["Axes", "tuple of UINT", "hello"]),
    ErrorCase("ACTIVATION_SOFTMAX1", "count",
              dict(input_tensor=_X, output_tensor=_X, axes=(1,), axis_count=2),
              ["AxisCount", "be 1", "2"]),
]
