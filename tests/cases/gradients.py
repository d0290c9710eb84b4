"""Gradients of operators, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from cases.elementwise import case
from cases.pooling import windows
from cases.resample import resampled
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, REVERSED, TRANSPOSED, Sizes

_U = 2.0**-24


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 4, sizes).astype(data_type.dtype)


def _clip_grad(x: np.ndarray, dy: np.ndarray, min: float, max: float) -> Any:
    return np.where((x <= min) | (x >= max), dy.dtype.type(0), dy)


# Slices


def _sized(function: Any, sizes: Sizes) -> Any:
    """A function that needs the sizes of its output unless ``out`` is given."""
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
    # Rows of whole vectors: steps within a vector and beyond, in both directions, of a part.
    _slice_case("vectors", (3, 5, 32), (2, 4, 9), (1, 1, 3), (2, 4, 28), (-1, 1, 3)),
    _slice_case("vectors-back", (4, 3, 48), (2, 3, 20), (0, 0, 5), (4, 3, 41), (2, 1, -2), FEW),
    _slice_case("vectors-apart", (2, 3, 64), (2, 3, 3), (0, 0, 1), (2, 3, 63), (1, 1, 21), FEW),
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
    """Each window of an element adds one rounding, and its quotient one or two."""
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
    ("vectors", (4, 3, 8, 12), (4, 3, 8, 12), dict(
        window_size=(3, 3), strides=(1, 1), start_padding=(1, 1), end_padding=(1, 1)), (1, 1),
     (PACKED, TRANSPOSED, REVERSED)),
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


# Neighbours


def _lrn_parts(x: Arrays, a: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """The two terms of the gradient. The second uses the matrix of elements and windows."""
    given, dy = (x[n].astype(np.float64) for n in ("input_tensor", "input_gradient_tensor"))
    n, beta, alpha = a["local_size"], a["beta"], a["alpha"] / a["local_size"]
    base, reached = given**2, None
    axes = (1,) if a["cross_channel"] else (2, 3)

    def along(values: np.ndarray, axis: int, back: bool) -> np.ndarray:
        at = np.arange(values.shape[axis])
        apart = at[None] - at[:, None]  # distance of an element from its window's middle
        inside = (apart >= -((n - 1) // 2)) & (apart <= n // 2)
        held = (inside.T if back else inside).astype(float)
        return np.moveaxis(np.tensordot(held, values, (1, axis)), 0, axis)

    for axis in axes:
        base = along(base, axis, False)
    base = a["bias"] + alpha * base
    reached = dy * given * base ** (-beta - 1)
    for axis in axes:
        reached = along(reached, axis, True)
    return dy * base**-beta, -2 * alpha * beta * given * reached


def _lrn(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    return sum(_lrn_parts(x, a))  # type: ignore[return-value]


def _lrn_room(x: Arrays, a: Mapping[str, Any]) -> np.ndarray:
    """Errors of two sums of positive terms, two powers, and some products."""
    sizes = {name: abs(v) for name, v in x.items()}
    return sum(abs(part) for part in _lrn_parts(sizes, a)) * 80 * _U


def _lrn_case(name: str, sizes: Sizes, cross: int, size: int, layouts: Any) -> Case:
    return Case(
        "LOCAL_RESPONSE_NORMALIZATION_GRAD", name,
        dict.fromkeys(("input_tensor", "input_gradient_tensor", "output_gradient_tensor"), sizes),
        _lrn, attributes=dict(cross_channel=cross, local_size=size, alpha=0.25, beta=0.75,
                              bias=1.0),
        values=dict.fromkeys(("input_tensor", "input_gradient_tensor"), _numbers), room=_lrn_room,
        layouts=layouts)


_LRN = [_lrn_case("channels", (2, 7, 3, 4), 1, 4, FEW),
        _lrn_case("planes", (2, 2, 5, 6), 0, 3, (PACKED,)),
        _lrn_case("even-planes", (1, 2, 19, 11), 0, 4, (PACKED,))]


# Resampling


def _resample_grad(x: Arrays, a: Mapping[str, Any], sizes: Sizes) -> np.ndarray:
    """The matrix of resampling an axis, transposed."""
    result = x["input_gradient_tensor"].astype(np.float64)
    forward = {"interpolation_mode": a["interpolation_mode"]}
    if "rounding_direction" in a:
        forward["rounding_direction"] = a["rounding_direction"]
    for axis, n in enumerate(sizes):
        matrix = resampled({"input_tensor": np.eye(n, dtype=np.float32)}, {
            **forward, "_sizes": (result.shape[axis], n), "scales": (a["scales"][axis], 1.0),
            "input_pixel_offsets": (a["output_pixel_offsets"][axis], 0.0),
            "output_pixel_offsets": (a["input_pixel_offsets"][axis], 0.0)}, {})
        result = np.moveaxis(np.tensordot(matrix.astype(np.float64), result, (0, axis)), 0, axis)
    return result


def _resample_case(operator: str, name: str, sizes: Sizes, made: Sizes, linear: bool,
                   scales: tuple[float, ...], y_offset: float = -0.5, x_offset: float = 0.5,
                   layouts: Any = (PACKED,), **more: Any) -> Case:
    rank = len(sizes)

    def reference(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
        return _resample_grad(x, a, sizes)

    def room(x: Arrays, a: Mapping[str, Any]) -> np.ndarray:
        """A weight has the error of its coordinate. Each gradient that is read adds a rounding."""
        read = _resample_grad({"input_gradient_tensor": np.ones(made)}, a, sizes).max()
        most = float(abs(x["input_gradient_tensor"].astype(np.float64)).max())
        return np.full(sizes, (read + 4) * most * max(made) * 2.0**-20)

    return Case(
        operator, name, {"input_gradient_tensor": made, "output_gradient_tensor": sizes},
        reference, _sized(getattr(dml, operator.lower()), sizes),
        attributes=dict(interpolation_mode=int(linear), scales=scales,
                        input_pixel_offsets=(y_offset,) * rank,
                        output_pixel_offsets=(x_offset,) * rank, **more),
        values={"input_gradient_tensor": _numbers}, layouts=layouts, room=room)


def _resample_cases(operator: str, **more: Any) -> list[Case]:
    def make(*given: Any, **some: Any) -> Case:
        return _resample_case(operator, *given, **some, **more)

    return [
        make("linear", (2, 1, 5, 6), (2, 2, 8, 4), True, (1, 2, 1.6, 0.7), layouts=FEW),
        make("nearest", (2, 1, 5, 6), (2, 2, 8, 4), False, (1, 2, 1.6, 0.7)),
        make("vector", (9,), (31,), True, (3.5,)),
        make("shifted", (300,), (620,), False, (2.0,), y_offset=0.0, x_offset=0.0),
        make("rows", (5, 3, 8), (8, 6, 8), True, (1.6, 2, 1), layouts=(PACKED, REVERSED)),
        make("far-off", (7,), (12,), True, (1.5,), y_offset=4.25, x_offset=-1.0),
    ]


CASES: list[Case] = [
    *_LRN,
    *_resample_cases("RESAMPLE_GRAD"),
    *_resample_cases("RESAMPLE_GRAD1", rounding_direction=1),
    _resample_case("RESAMPLE_GRAD1", "increasing", (5, 6), (8, 4), False, (1.6, 0.7),
                   rounding_direction=0),
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
_R = dict(**_WHOLE, interpolation_mode=1, input_pixel_offsets=(0.0,) * 4,
          output_pixel_offsets=(0.0,) * 4)
ERRORS = [
    ErrorCase("LOCAL_RESPONSE_NORMALIZATION_GRAD", "size", dict(
        input_tensor=_IN, input_gradient_tensor=_IN, output_gradient_tensor=_IN, cross_channel=1,
        local_size=0, alpha=1.0, beta=1.0, bias=1.0), ["LocalSize", "at least 1", "0"]),
    ErrorCase("RESAMPLE_GRAD", "scale", dict(**_R, scales=(1.0, 1.0, 0.0, 1.0)),
              ["Scales[2]", "above 0"]),
    ErrorCase("RESAMPLE_GRAD1", "entries", dict(
        **_R, scales=(1.0,), dimension_count=1, rounding_direction=0),
        ["DimensionCount", "4", "1"]),
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
