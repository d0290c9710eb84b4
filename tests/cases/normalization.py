"""Normalizations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes

_HALF = 2.0**-24
_SUM = 48 * _HALF
"""The relative error of sums of these rows: each number is rounded so often."""


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(1, 2, sizes).astype(data_type.dtype)


def _positive(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.uniform(0.25, 4, sizes).astype(data_type.dtype)


def _far(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Numbers whose mean is much larger than their deviation."""
    return rng.normal(1000, 1, sizes).astype(data_type.dtype)


def _large(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Numbers whose squares exceed FLOAT16."""
    return rng.uniform(-60000, 60000, sizes).astype(data_type.dtype)


def _relu(y: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    return np.maximum(y, 0) if attributes.get("fused_activation") else y


def _optional(x: Arrays, name: str, default: float) -> np.ndarray:
    return x[name].astype(np.float64) if name in x else np.float64(default)


def _statistics(x: Arrays, attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """The input, the mean, and the divisor."""
    given = x["input_tensor"].astype(np.float64)
    axes = attributes.get("axes", (1, 2, 3) if attributes.get("cross_channel") else (2, 3))
    mean = given.mean(axes, keepdims=True) if attributes.get("use_mean", 1) else np.float64(0)
    squares = ((given - mean) ** 2).mean(axes, keepdims=True)
    varies = attributes.get("normalize_variance", attributes.get("use_variance", 1))
    root = np.sqrt(squares + attributes["epsilon"]) if varies else np.float64(1)
    return given, mean, root


def _mvn(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given, mean, root = _statistics(x, attributes)
    y = (given - mean) / root * _optional(x, "scale_tensor", 1) + _optional(x, "bias_tensor", 0)
    return _relu(y, attributes)


def _mvn_room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """The errors of mean and root (half that of the variance), and the roundings after them."""
    given, mean, root = _statistics(x, attributes)
    axes = attributes.get("axes", (1, 2, 3) if attributes.get("cross_channel") else (2, 3))
    lost = _SUM * np.abs(given).mean(axes, keepdims=True) * (np.abs(mean) > 0)
    centered = np.abs(given - mean)
    scale = np.abs(_optional(x, "scale_tensor", 1))
    error = (lost + centered * (_SUM + 8 * _HALF)) / root
    return scale * error + 2 * _HALF * np.abs(_optional(x, "bias_tensor", 0))


_FIELDS = ("input_tensor", "scale_tensor", "bias_tensor", "output_tensor")


def _mvn_case(
    which: str, name: str, sizes: Sizes, scale: Sizes | None = None, bias: Sizes | None = None,
    values: Any = _numbers, layouts: Any = FEW, types: Any = None, **attributes: Any,
) -> Case:
    named = dict(zip(_FIELDS, (sizes, scale, bias, sizes)))
    return Case(
        "MEAN_VARIANCE_NORMALIZATION" + which, name,
        {f: s for f, s in named.items() if s is not None}, _mvn,
        attributes={"epsilon": 1e-5, **attributes},
        values={"input_tensor": values, "scale_tensor": _numbers, "bias_tensor": _numbers},
        room=_mvn_room, layouts=layouts, types=types)


_RELU = dml.ActivationReluOperatorDesc()
_ONE: dict[str, Any] = {"normalize_variance": 1}
_TWO: dict[str, Any] = {"use_mean": 1, "use_variance": 1}

_MVN = [
    _mvn_case("", "instances", (2, 3, 4, 5), (1, 3, 1, 1), (1, 3, 1, 1), cross_channel=0,
              normalize_variance=1, layouts=FEW),
    _mvn_case("", "across-channels", (2, 3, 4, 8), cross_channel=1, normalize_variance=1,
              layouts=[PACKED]),
    _mvn_case("", "mean", (1, 2, 3, 5), cross_channel=0, normalize_variance=0, layouts=[PACKED]),
    _mvn_case("1", "line", (9,), (9,), (1,), axes=(0,), **_ONE, layouts=[PACKED]),
    _mvn_case("1", "layers", (70, 48), (1, 48), (1, 48), axes=(1,), **_ONE),
    _mvn_case("1", "groups", (2, 3, 2, 16), (1, 3, 2, 1), (1, 3, 2, 1), axes=(2, 3), **_ONE,
              layouts=[PACKED]),
    _mvn_case("1", "long", (3, 4160), (1, 4160), (1, 1), axes=(1,), **_ONE, layouts=[PACKED]),
    _mvn_case("1", "longer", (1, 3, 1031), (1, 1, 1031), None, axes=(2, 1), **_ONE),
    _mvn_case("1", "mean", (4, 6), (1, 6), (4, 1), axes=(0,), normalize_variance=0,
              fused_activation=_RELU, layouts=[PACKED]),
    _mvn_case("1", "no-axes", (3, 5), (1, 5), (1, 5), axes=(), **_ONE, layouts=[PACKED]),
    _mvn_case("1", "far", (5, 260), axes=(1,), **_ONE, values=_far, layouts=[PACKED]),
    _mvn_case("1", "eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), (1, 1, 3, 1, 2, 1, 1, 2),
              (1, 1, 1, 1, 1, 3, 1, 1), axes=(1, 3, 6, 7), **_ONE, layouts=[PACKED]),
    _mvn_case("2", "line", (9,), (1,), (9,), axes=(0,), **_TWO, layouts=[PACKED]),
    _mvn_case("2", "relu", (6, 40), (1, 40), (1, 40), axes=(1,), **_TWO, fused_activation=_RELU),
    _mvn_case("2", "squares", (6, 40), (1, 40), axes=(1,), use_mean=0, use_variance=1),
    _mvn_case("2", "large", (3, 96), (1, 96), axes=(1,), use_mean=0, use_variance=1,
              values=_large, layouts=[PACKED]),
    _mvn_case("2", "as-it-is", (3, 8), (1, 8), (3, 1), axes=(1,), use_mean=0, use_variance=0,
              layouts=[PACKED]),
    _mvn_case("2", "as-it-is-long", (2, 4400), axes=(1,), use_mean=0, use_variance=0,
              layouts=[PACKED]),
    _mvn_case("2", "bias", (3, 8), None, (3, 8), axes=(1,), **_TWO, layouts=[PACKED]),
    _mvn_case("2", "eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), (1,) * 8, (2, *(1,) * 7),
              axes=(0, 2), use_mean=1, use_variance=0, layouts=[PACKED]),
]


# Norms


def _norm(x: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    size = np.abs(x.astype(np.float64)) ** attributes["p"]
    total = size.sum(attributes["axis"], keepdims=True) ** (1 / attributes["p"])
    return np.maximum(total, np.float32(attributes["epsilon"]))


def _lp(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    return x["input_tensor"].astype(np.float64) / _norm(x["input_tensor"], attributes)


def _lp_room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    return np.abs(_lp(x, attributes, {})) * (_SUM + 6 * _HALF)


def _with_zeros(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    x = _numbers(rng, data_type, sizes)
    x[0] = 0
    return x


def _lp_case(name: str, sizes: Sizes, axis: int, p: int, layouts: Any = FEW) -> Case:
    return Case("LP_NORMALIZATION", name, {"input_tensor": sizes, "output_tensor": sizes}, _lp,
                attributes={"axis": axis, "p": p, "epsilon": 1e-5},
                values={"input_tensor": _with_zeros}, room=_lp_room, layouts=layouts)


_LP = [
    _lp_case("line", (7,), 0, 2, [PACKED]), _lp_case("ones", (3, 4, 5), 1, 1),
    _lp_case("twos", (3, 64), 1, 2),
    _lp_case("eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), 4, 2, [PACKED]),
]


# Given statistics

_GIVEN = ("input_tensor", "mean_tensor", "variance_tensor", "scale_tensor", "bias_tensor")


def _batch(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given, mean, variance, scale, bias = (x[f].astype(np.float64) for f in _GIVEN)
    return _relu((given - mean) / np.sqrt(variance + attributes["epsilon"]) * scale + bias,
                 attributes)


def _batch_room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    bias = np.abs(x["bias_tensor"].astype(np.float64))
    return (np.abs(_batch({**x, "bias_tensor": 0 * bias}, {**attributes, "fused_activation": None},
                          {})) * 8 + bias * 2) * _HALF


def _batch_case(name: str, sizes: Sizes, *parameters: Sizes, layouts: Any = FEW, **more: Any
                ) -> Case:
    shapes = [sizes, *(parameters if len(parameters) == 4 else parameters * 4), sizes]
    return Case(
        "BATCH_NORMALIZATION", name, dict(zip((*_GIVEN, "output_tensor"), shapes)), _batch,
        attributes={"spatial": 1, "epsilon": 1e-5, **more},
        values={**dict.fromkeys(_GIVEN, _numbers), "variance_tensor": _positive},
        room=_batch_room, layouts=layouts)


_BATCH = [
    _batch_case("channels", (2, 3, 4, 5), (1, 3, 1, 1)),
    _batch_case("planes", (2, 3, 4, 8), (1, 3, 1, 1), fused_activation=_RELU, layouts=[PACKED]),
    _batch_case("line", (11,), (11,), (1,), (11,), (1,), layouts=[PACKED]),
    _batch_case("columns", (5, 24), (1, 24), layouts=[PACKED]),
    _batch_case("different", (3, 4, 8), (1, 4, 1), (3, 4, 8), (1, 1, 8), (1, 1, 1),
                layouts=[PACKED]),
    _batch_case("past-a-workgroup", (3, 5, 301), (1, 5, 1), layouts=[PACKED]),
    _batch_case("eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), (1, 1, 3, 1, 1, 1, 1, 1),
                layouts=[PACKED]),
]


# Neighbours


def _lrn_sum(x: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    squares = x.astype(np.float64) ** 2
    size = attributes["local_size"]
    before, after = (size - 1) // 2, size // 2
    for axis in (1,) if attributes["cross_channel"] else (2, 3):
        n = squares.shape[axis]
        parts = [squares.take(range(max(i - before, 0), min(i + after, n - 1) + 1), axis)
                 .sum(axis, keepdims=True) for i in range(n)]
        squares = np.concatenate(parts, axis)
    return squares


def _lrn(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"].astype(np.float64)
    base = attributes["bias"] + attributes["alpha"] / attributes["local_size"] * _lrn_sum(
        given, attributes)
    return given / base ** attributes["beta"]


def _lrn_room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    return np.abs(_lrn(x, attributes, {})) * (_SUM * attributes["beta"] + 12 * _HALF)


def _lrn_case(name: str, sizes: Sizes, cross: int, size: int, layouts: Any = FEW) -> Case:
    return Case(
        "LOCAL_RESPONSE_NORMALIZATION", name, {"input_tensor": sizes, "output_tensor": sizes},
        _lrn, attributes={"cross_channel": cross, "local_size": size, "alpha": 0.25, "beta": 0.75,
                          "bias": 1.0},
        values={"input_tensor": _numbers}, room=_lrn_room, layouts=layouts)


_LRN = [
    _lrn_case("channels", (2, 7, 3, 4), 1, 4), _lrn_case("planes", (2, 2, 5, 6), 0, 3),
    _lrn_case("wide", (1, 3, 2, 5), 1, 2**32 - 1, [PACKED]),
]

CASES = [*_MVN, *_LP, *_BATCH, *_LRN]

_X = dml.TensorDesc("float32", [1, 2, 3, 4])
_WRONG = dml.TensorDesc("float32", [1, 2, 2, 1])
_C = dml.TensorDesc("float32", [1, 2, 1, 1])
_PLAIN: dict[str, Any] = dict(input_tensor=_X, output_tensor=_X)
_MVN1: dict[str, Any] = dict(**_PLAIN, axes=(2, 3), epsilon=0.0)
_LRN_PLAIN: dict[str, Any] = dict(**_PLAIN, alpha=1.0, beta=1.0, bias=1.0)
_NORMAL: dict[str, Any] = dict(**_PLAIN, mean_tensor=_C, variance_tensor=_C, scale_tensor=_C,
                               bias_tensor=_C, spatial=1, epsilon=0.0)

ERRORS = [
    ErrorCase("MEAN_VARIANCE_NORMALIZATION", "scale", dict(
        **_PLAIN, cross_channel=0, normalize_variance=1, epsilon=0.0, scale_tensor=_WRONG,
        bias_tensor=_C), ["ScaleTensor.Sizes", "[1, 2, 3, 4]", "[1, 2, 2, 1]"]),
    ErrorCase("MEAN_VARIANCE_NORMALIZATION", "switch", dict(
        **_PLAIN, cross_channel=2, normalize_variance=1, epsilon=0.0),
        ["CrossChannel", "0 or 1", "2"]),
    ErrorCase("MEAN_VARIANCE_NORMALIZATION1", "axis", dict(
        **{**_MVN1, "axes": (4,)}, normalize_variance=1), ["Axes[0]", "[0, 4)", "4"]),
    ErrorCase("MEAN_VARIANCE_NORMALIZATION2", "twice", dict(
        **{**_MVN1, "axes": (1, 1)}, use_mean=1, use_variance=1), ["Axes", "each axis once"]),
    ErrorCase("MEAN_VARIANCE_NORMALIZATION2", "switch", dict(
        **_MVN1, use_mean=3, use_variance=1), ["UseMean", "0 or 1", "3"]),
    ErrorCase("LP_NORMALIZATION", "p", dict(**_PLAIN, axis=1, epsilon=0.0, p=3),
              ["P", "1 or 2", "3"]),
    ErrorCase("LP_NORMALIZATION", "axis", dict(**_PLAIN, axis=4, epsilon=0.0, p=1),
              ["Axis", "[0, 4)", "4"]),
    ErrorCase("BATCH_NORMALIZATION", "variance", {**_NORMAL, "variance_tensor": _WRONG},
              ["VarianceTensor.Sizes", "[1, 2, 3, 4]", "[1, 2, 2, 1]"]),
    ErrorCase("LOCAL_RESPONSE_NORMALIZATION", "size", dict(
        **_LRN_PLAIN, cross_channel=1, local_size=0), ["LocalSize", "at least 1", "0"]),
]
