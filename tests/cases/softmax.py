"""Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes

_EXTREMES = (np.nan, np.inf, -np.inf, 80.0, -80.0, 0.0, -0.0)


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Few different numbers, so that many are equal."""
    return np.round(rng.normal(0, 4, sizes), 1).astype(data_type.dtype)


def _extremes(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Infinities and NaN, some rows without them, and one row of negative infinities."""
    x = rng.normal(0, 4, sizes)
    special = rng.choice(_EXTREMES, sizes)
    x = np.where(rng.random(sizes) < 0.15, special, x)
    x[0] = -np.inf
    return x.astype(data_type.dtype)


def _axes(x: np.ndarray, attributes: Mapping[str, Any]) -> tuple[int, ...]:
    return attributes.get("axes", (x.ndim - 1,))


def _parts(x: Arrays, attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the maximum, and sums of their exponentials."""
    given = x["input_tensor"].astype(np.float64)
    axes = _axes(given, attributes)
    with np.errstate(all="ignore"):
        difference = given - given.max(axes, keepdims=True)
        return difference, np.exp(difference).sum(axes, keepdims=True)


def _softmax(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    difference, total = _parts(x, attributes)
    return np.exp(difference) / total


def _log_softmax(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    difference, total = _parts(x, attributes)
    return difference - np.log(total)


def _hardmax(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"]
    axes = sorted(_axes(given, attributes))
    rows = np.moveaxis(given, axes, range(-len(axes), 0)) if axes else given[..., None]
    kept = rows.shape[: rows.ndim - max(len(axes), 1)]
    flat = rows.reshape(*kept, -1)
    places = np.argmax(flat, -1)[..., None]
    made = (np.arange(flat.shape[-1]) == places).astype(given.dtype).reshape(rows.shape)
    return np.moveaxis(made, range(-len(axes), 0), axes) if axes else made[..., 0]


def _error(x: Arrays, attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The relative errors of a power and of the sum, as in accuracy.md, and the distances."""
    difference, total = _parts(x, attributes)
    away = np.nan_to_num(np.abs(difference), nan=0.0, posinf=0.0, neginf=0.0)
    return away * 2.0**-24 + 2.0**-21, total


def _room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    error, _ = _error(x, attributes)
    return np.nan_to_num(_softmax(x, attributes, {})) * (error + 2.0**-19) + 2.0**-119


def _log_room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    error, total = _error(x, attributes)
    return error + 2.0**-19 + 2.0**-22 * np.abs(np.nan_to_num(np.log(total)))


_KINDS = {"SOFTMAX": (_softmax, _room), "LOG_SOFTMAX": (_log_softmax, _log_room),
          "HARDMAX": (_hardmax, None)}


def _case(kind: str, name: str, sizes: Sizes, axes: tuple[int, ...] | None = None,
          values: Any = _numbers, **more: Any) -> Case:
    reference, room = _KINDS[kind]
    return Case(
        f"ACTIVATION_{kind}" + ("" if axes is None else "1"), name,
        {"input_tensor": sizes, "output_tensor": sizes}, reference,
        attributes={} if axes is None else {"axes": axes}, values={"input_tensor": values},
        room=room, **more)


def _cases(kind: str) -> list[Case]:
    return [
        _case(kind, "vector", (5,), (0,), layouts=FEW),
        _case(kind, "last", (3, 5, 7), (2,)),
        _case(kind, "first-and-last", (3, 4, 5, 6), (3, 0), layouts=FEW),
        _case(kind, "past-a-workgroup", (2, 1031), (1,), layouts=FEW),
        _case(kind, "vectors", (3, 4160), (1,), layouts=[PACKED]),
        _case(kind, "many-rows", (70, 48), (1,), layouts=FEW),
        _case(kind, "no-axes", (3, 5), (), layouts=[PACKED]),
        _case(kind, "eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), (1, 3, 6, 7), layouts=[PACKED]),
        _case(kind, "extremes", (40, 24), (1,), _extremes, layouts=[PACKED]),
        _case(kind, "rows", (1, 1, 6, 9), layouts=FEW),
        _case(kind, "line", (7,), layouts=[PACKED]),
        _case(kind, "eight", (1, 1, 1, 1, 1, 1, 2, 3), layouts=[PACKED]),
    ]


CASES = [case for kind in _KINDS for case in _cases(kind)]

_X = dml.TensorDesc("float32", [2, 3])
_DEEP = dml.TensorDesc("float32", [2, 2, 3])
ERRORS = [
    ErrorCase("ACTIVATION_SOFTMAX1", "axis", dict(input_tensor=_X, output_tensor=_X, axes=(2,)),
              ["Axes[0]", "[0, 2)", "2"]),
    ErrorCase("ACTIVATION_SOFTMAX1", "text", dict(input_tensor=_X, output_tensor=_X, axes="hello"),
              ["Axes", "tuple of UINT", "hello"]),
    ErrorCase("ACTIVATION_SOFTMAX1", "count",
              dict(input_tensor=_X, output_tensor=_X, axes=(1,), axis_count=2),
              ["AxisCount", "be 1", "2"]),
    *[ErrorCase(f"ACTIVATION_{kind}1", "twice",
                dict(input_tensor=_X, output_tensor=_X, axes=(1, 1)),
                ["Axes", "each axis once", "[1, 1]"]) for kind in _KINDS],
    *[ErrorCase(f"ACTIVATION_{kind}", "deep", dict(input_tensor=_DEEP, output_tensor=_DEEP),
                ["InputTensor.Sizes", "1 except for the last two", "[2, 2, 3]"])
      for kind in _KINDS],
]
