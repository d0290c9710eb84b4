"""Gradients of operators, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from cases.elementwise import case
from cases.pooling import windows
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes

_U = 2.0**-24


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 4, sizes).astype(data_type.dtype)


def _clip_grad(x: np.ndarray, dy: np.ndarray, min: float, max: float) -> Any:
    return np.where((x <= min) | (x >= max), dy.dtype.type(0), dy)


# Slices


def _sized(function: Any, sizes: Sizes) -> Any:
    """A function that wants the sizes of its output where that is not given."""
    def call(x: Mapping[str, Any], given: Mapping[str, Any], types: Types, out: Any) -> Any:
        made = {} if out is not None else {"output_sizes": sizes}
        return function(x["input_gradient_tensor"], **given, **made, out=out)

    return call


def _slice_case(name: str, sizes: Sizes, part: Sizes, offsets: Sizes, windows: Sizes,
                strides: Sizes, layouts: Any = (PACKED,)) -> Case:
    def reference(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
        dy = x["input_gradient_tensor"]
        dx = np.zeros(sizes, dy.dtype)
        at = [o + (w - 1 if s < 0 else 0) + s * np.arange(n)
              for o, w, s, n in zip(offsets, windows, strides, part)]
        dx[np.ix_(*at)] = dy
        return dx

    return Case(
        "SLICE_GRAD", name, {"input_gradient_tensor": part, "output_gradient_tensor": sizes},
        reference, _sized(dml.slice_grad, sizes),
        attributes=dict(input_window_offsets=offsets, input_window_sizes=windows,
                        input_window_strides=strides),
        layouts=layouts)


_SLICES = [
    _slice_case("forwards-and-back", (5, 7, 9), (2, 3, 8), (1, 0, 1), (4, 7, 8), (2, -3, 1), FEW),
    _slice_case("vector", (11,), (2,), (3,), (8,), (-4,)),
    _slice_case("eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 4), (1, 1, 2, 2, 2, 3, 1, 2),
                (1, 0, 0, 0, 0, 0, 0, 0), (1, 1, 3, 2, 2, 3, 1, 4), (1, 1, -2, 1, -1, 1, 1, 2)),
]


# Pooling


def _average(x: Arrays, a: Mapping[str, Any], sizes: Sizes) -> np.ndarray:
    dy = x["input_gradient_tensor"].astype(np.float64)
    dx = np.zeros(sizes)
    for at, inside, padded in windows(dx, a, dy.shape):
        count = padded if a["include_padding"] else int(np.prod([len(p) for p in inside]))
        if all(len(p) for p in inside):
            key = (slice(None), slice(None), *np.ix_(*inside))
            dx[key] += (dy[(slice(None), slice(None), *at)] / count).reshape(
                *sizes[:2], *(1,) * len(at))
    return dx


def _maximum(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    given, dy = x["input_tensor"], x["input_gradient_tensor"].astype(np.float64)
    dx = np.zeros(given.shape)
    for at, inside, _ in windows(given, a, dy.shape):
        if not all(len(p) for p in inside):
            continue
        for n, c in np.ndindex(*given.shape[:2]):
            part = given[n, c][np.ix_(*inside)]
            first = np.unravel_index(part.argmax(), part.shape)  # NaN is the largest
            dx[(n, c, *(p[i] for p, i in zip(inside, first)))] += dy[(n, c, *at)]
    return dx


def _off(x: Arrays, a: Mapping[str, Any], f: Any) -> np.ndarray:
    """Each of the windows that an element meets adds a rounding, and its quotient one or two."""
    meeting = int(np.prod([-(-k * d // s) for k, s, d in zip(
        a["window_size"], a["strides"], a.get("dilations", (1, 1, 1)))]))
    sizes = {**x, "input_gradient_tensor": abs(x["input_gradient_tensor"])}
    return f(sizes) * (meeting + 4) * _U


def _coarse(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Equal maxima, NaN and infinities."""
    return rng.choice([-np.inf, -2, 0.0, 1, 1, 2, 2, np.nan], sizes).astype(data_type.dtype)


_WINDOWS: list[tuple[str, Sizes, Sizes, dict[str, Sizes], Sizes, Any]] = [
    ("overlapping", (2, 3, 6, 7), (2, 3, 4, 4), dict(
        window_size=(3, 2), strides=(2, 2), start_padding=(1, 0), end_padding=(2, 1)), (1, 1), FEW),
    ("deep", (1, 2, 4, 5, 3), (1, 2, 3, 2, 2), dict(
        window_size=(2, 3, 2), strides=(1, 3, 2), start_padding=(0, 1, 1), end_padding=(0, 0, 0)),
     (1, 1, 1), (PACKED,)),
    ("gaps", (1, 1, 9, 8), (1, 1, 3, 3), dict(
        window_size=(2, 1), strides=(3, 3), start_padding=(0, 0), end_padding=(0, 0)), (1, 1),
     (PACKED,)),
    ("past-a-workgroup", (3, 4, 9, 11), (3, 4, 9, 11), dict(
        window_size=(3, 3), strides=(1, 1), start_padding=(1, 1), end_padding=(1, 1)), (1, 1),
     (PACKED,)),
]
_DILATED = ("dilated", (1, 2, 9, 8), (1, 2, 5, 4), dict(
    window_size=(3, 2), strides=(1, 2), start_padding=(0, 1), end_padding=(0, 0)), (2, 2),
    (PACKED,))


def _pooling_cases() -> list[Case]:
    cases = []
    for include in (0, 1):
        for name, sizes, made, window, _, layouts in _WINDOWS:
            def sums(x: Arrays, a: Mapping[str, Any], sizes: Sizes = sizes) -> np.ndarray:
                return _average(x, a, sizes)

            cases.append(Case(
                "AVERAGE_POOLING_GRAD", f"{name}-{'padded' if include else 'inside'}",
                {"input_gradient_tensor": made, "output_gradient_tensor": sizes},
                lambda x, a, types, f=sums: f(x, a), _sized(dml.average_pooling_grad, sizes),
                attributes={**window, "include_padding": include},
                values={"input_gradient_tensor": _numbers}, layouts=layouts,
                room=lambda x, a, f=sums: _off(x, a, lambda y: f(y, a))))
    for name, sizes, made, window, dilations, layouts in (*_WINDOWS, _DILATED):
        cases.append(Case(
            "MAX_POOLING_GRAD", name,
            {"input_tensor": sizes, "input_gradient_tensor": made, "output_gradient_tensor": sizes},
            _maximum, attributes={**window, "dilations": dilations},
            values={"input_tensor": _coarse, "input_gradient_tensor": _numbers}, layouts=layouts,
            room=lambda x, a: _off(x, a, lambda y: _maximum(y, a, {}))))
    return cases


CASES: list[Case] = [
    *_SLICES,
    *_pooling_cases(),
    *case("ACTIVATION_RELU_GRAD", lambda x, dy: np.where(x > 0, dy, dy.dtype.type(0))),
    *case("ELEMENT_WISE_CLIP_GRAD", _clip_grad, min=0.5, max=3.0),
    *case("ELEMENT_WISE_CLIP_GRAD1", _clip_grad, min=1, max=3),
]

_X, _I = dml.TensorDesc("float32", [2, 3]), dml.TensorDesc("int32", [2, 3])


def _xdy(t: dml.TensorDesc) -> dict[str, Any]:
    return dict(input_tensor=t, input_gradient_tensor=t, output_gradient_tensor=t)


_P = dict(strides=(2, 2), window_size=(2, 2), start_padding=(0, 0), end_padding=(0, 0))
_IN, _SMALL = (dml.TensorDesc("float32", [1, 1, n, n]) for n in (4, 2))
_WHOLE = dict(input_gradient_tensor=_SMALL, output_gradient_tensor=_IN)
ERRORS = [
    ErrorCase("SLICE_GRAD", "no-step", dict(
        **_WHOLE, input_window_offsets=(0,) * 4, input_window_sizes=(1, 1, 4, 4),
        input_window_strides=(1, 1, 0, 1)), ["InputWindowStrides[2]", "not be 0"]),
    ErrorCase("SLICE_GRAD", "beyond", dict(
        **_WHOLE, input_window_offsets=(0, 0, 1, 0), input_window_sizes=(1, 1, 4, 4),
        input_window_strides=(1, 1, 1, 1)), ["at most OutputGradientTensor.Sizes[2] = 4", "5"]),
    ErrorCase("AVERAGE_POOLING_GRAD", "sizes", dict(
        input_gradient_tensor=_IN, output_gradient_tensor=_IN, **_P, include_padding=0),
        ["InputGradientTensor.Sizes[2]", "be 2", "4"]),
    ErrorCase("MAX_POOLING_GRAD", "sizes", dict(
        input_tensor=_IN, input_gradient_tensor=_IN, output_gradient_tensor=_IN, **_P,
        dilations=(1, 1)), ["InputGradientTensor.Sizes[2]", "be 2", "4"]),
    ErrorCase("ACTIVATION_RELU_GRAD", "types", _xdy(_X) | {"input_tensor": _I},
              ["DataType", "FLOAT32", "INT32"]),
    ErrorCase("ELEMENT_WISE_CLIP_GRAD", "type", _xdy(dml.TensorDesc("float64", [2])) | dict(
        min=0.0, max=1.0), ["DataType", "FLOAT64"]),
    ErrorCase("ELEMENT_WISE_CLIP_GRAD1", "limit", _xdy(_I) | dict(
        min_max_data_type=dml.DataType.INT32, min=0, max=2**40), ["Max", "INT32", str(2**40)]),
]
