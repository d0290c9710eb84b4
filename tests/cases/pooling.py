"""Pooling in all its forms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, REVERSED, SHIFTED, TRANSPOSED, Sizes


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    if data_type.is_float:
        return rng.normal(0, 4, sizes).astype(data_type.dtype)
    limits = np.iinfo(data_type.dtype)
    return rng.integers(limits.min, limits.max, sizes, data_type.dtype, endpoint=True)


def _coarse(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Few different numbers, so that maxima tie. Floats include NaN, infinities and both zeros."""
    values: list[Any] = [0, 1, 2, 3]
    if data_type.is_float:
        values = [-np.inf, -2, -0.0, 0.0, 1, 1, np.nan, -1, -3, -5, -7]
    return rng.choice(np.array(values, data_type.dtype), sizes)


def _attribute(attributes: Mapping[str, Any], name: str, rank: int) -> Sequence[int]:
    return attributes.get(name, (1,) * rank)


def windows(x: np.ndarray, attributes: Mapping[str, Any], sizes: Sizes) -> Any:
    """(output position, coordinates inside the input, elements that count with padding)."""
    rank = x.ndim - 2
    window, strides, start, end = (attributes[n] for n in (
        "window_size", "strides", "start_padding", "end_padding"))
    dilations = _attribute(attributes, "dilations", rank)
    for at in itertools.product(*map(range, sizes[2:])):
        inside, padded = [], []
        for i in range(rank):
            p = at[i] * strides[i] - start[i] + np.arange(window[i]) * dilations[i]
            inside.append(p[(p >= 0) & (p < x.shape[2 + i])])
            padded.append(int((p < x.shape[2 + i] + end[i]).sum()))
        yield at, inside, int(np.prod(padded))


def _sizes(x: np.ndarray, a: Mapping[str, Any]) -> Sizes:
    spatial = []
    for i in range(x.ndim - 2):
        reach = (a["window_size"][i] - 1) * _attribute(a, "dilations", x.ndim - 2)[i] + 1
        room = x.shape[2 + i] + a["start_padding"][i] + a["end_padding"][i] - reach
        spatial.append(room // a["strides"][i] + 1)
    return (*x.shape[:2], *spatial)


def _pooled(x: np.ndarray, a: Mapping[str, Any], sizes: Sizes, make: Any) -> np.ndarray:
    result = np.zeros(sizes, np.float64)
    for at, inside, padded in windows(x, a, sizes):
        part = x[(slice(None), slice(None), *np.ix_(*inside))].reshape(*x.shape[:2], -1)
        result[(slice(None), slice(None), *at)] = make(part, padded)
    return result


def _average(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"].astype(np.float64)

    def make(part: np.ndarray, padded: int) -> np.ndarray:
        return part.sum(-1) / max(padded if a["include_padding"] else part.shape[-1], 1)

    return _pooled(given, a, a.get("_sizes", _sizes(given, a)), make)


def _average_room(x: Arrays, a: Mapping[str, Any]) -> np.ndarray:
    n = int(np.prod(a["window_size"]))
    return _average({"input_tensor": np.abs(x["input_tensor"])}, a, {}) * (n + 4) * 2.0**-24


def _lp(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"].astype(np.float64)
    p = a["p"]
    return _pooled(given, a, _sizes(given, a),
                   lambda part, padded: (np.abs(part) ** p).sum(-1) ** (1 / p))


def _lp_room(x: Arrays, a: Mapping[str, Any]) -> np.ndarray:
    # Errors of sums of n terms. From P = 3 on also of the power: exp of a logarithm up to 88.
    n = int(np.prod(a["window_size"]))
    return _lp(x, a, {}) * ((n + 8) * 2.0**-24 + (2.0**-17 if a["p"] > 2 else 0))


def _max(with_indices: bool) -> Any:
    def reference(x: Arrays, a: Mapping[str, Any], types: Types) -> Any:
        given = x["input_tensor"]
        sizes = _sizes(given, a)
        kind = given.dtype.kind
        low = -np.inf if kind == "f" else np.iinfo(given.dtype).min
        values = np.full(sizes, low, given.dtype)
        index_type = types["output_indices_tensor"].dtype if with_indices else np.dtype("u8")
        indices = np.full(sizes, np.iinfo(index_type).max, index_type)
        flat = np.arange(given.size).reshape(given.shape)
        for at, inside, _ in windows(given, a, sizes):
            key = (slice(None), slice(None), *np.ix_(*inside))
            part, places = (v[key].reshape(*sizes[:2], -1) for v in (given, flat))
            if part.shape[-1]:
                first = part.argmax(-1)[..., None]  # the first maximum; NaN is the largest
                to = (slice(None), slice(None), *at)
                values[to] = np.take_along_axis(part, first, -1)[..., 0]
                indices[to] = np.take_along_axis(places, first, -1)[..., 0]
        return (values, indices) if with_indices else values

    return reference


def _attributes(window: Sizes, strides: Sizes, start: Sizes, end: Sizes,
                dilations: Sizes | None = None, **more: Any) -> dict[str, Any]:
    result = dict(window_size=window, strides=strides, start_padding=start, end_padding=end, **more)
    return result if dilations is None else result | {"dilations": dilations}


_SHAPES: dict[str, tuple[Sizes, Sizes, Sizes, Sizes, Sizes, Sizes]] = {
    # sizes, window, strides, start, end, dilations
    "padded": ((2, 3, 9, 16), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "solid": ((2, 5, 3, 7, 11), (2, 3, 3), (1, 2, 3), (1, 0, 2), (0, 1, 1), (1, 1, 1)),
    "channels": ((2, 8, 6, 7), (2, 3), (1, 1), (0, 1), (1, 0), (1, 1)),
    "far-padding": ((1, 2, 3, 4), (2, 2), (1, 2), (3, 0), (0, 3), (1, 1)),
    "one-pixel": ((1, 1, 1, 1), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "global": ((3, 7, 9, 13), (9, 13), (1, 1), (0, 0), (0, 0), (1, 1)),
    "large-window": ((1, 2, 70, 72), (67, 71), (2, 1), (1, 0), (0, 2), (1, 1)),
    "very-large": ((1, 2, 1, 5003), (1, 4999), (1, 1), (0, 0), (0, 0), (1, 1)),
}
_FEW = (
    (dml.DataType.FLOAT32, dml.DataType.UINT32), (dml.DataType.FLOAT16, dml.DataType.UINT64),
    (dml.DataType.UINT8, dml.DataType.UINT32), (dml.DataType.INT64, dml.DataType.UINT32),
)
_DILATED: dict[str, tuple[Sizes, Sizes, Sizes, Sizes, Sizes, Sizes]] = {
    "dilated": ((2, 3, 9, 13), (3, 2), (2, 1), (1, 2), (1, 1), (2, 3)),
    "dilated-solid": ((1, 3, 4, 7, 8), (2, 2, 3), (1, 2, 1), (0, 1, 0), (1, 0, 2), (2, 1, 3)),
}


def _with_indices(operator: str) -> Any:
    def call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any) -> Any:
        return getattr(dml, operator.lower())(
            x["input_tensor"], **attributes, output_indices=True, out=out,
            data_type=types["output_indices_tensor"])

    return call


def _maximum(operator: str, name: str, tensors: Mapping[str, Sizes], both: Mapping[str, Sizes],
             indexed: bool, attributes: Mapping[str, Any], **more: Any) -> Case:
    return Case(
        operator, name, both if indexed else tensors, _max(indexed), attributes=attributes,
        values={"input_tensor": _coarse if indexed else _numbers},
        call=_with_indices(operator) if indexed else None, **more)


def _cases() -> list[Case]:
    result = []
    for name, (sizes, window, strides, start, end, dilations) in (_SHAPES | _DILATED).items():
        has_dilations = name in _DILATED
        geometry = (window, strides, start, end)
        empty = np.empty(sizes)
        out = _sizes(empty, _attributes(*geometry, dilations))
        tensors = {"input_tensor": sizes, "output_tensor": out}
        layouts = ((PACKED, TRANSPOSED, REVERSED) if name == "channels" else
                   (PACKED, SHIFTED, REVERSED) if name in ("padded", "dilated", "solid")
                   else FEW if name == "global" else [PACKED])
        averages = (("AVERAGE_POOLING1",) if has_dilations or name == "padded" else ()) + (
            () if has_dilations else ("AVERAGE_POOLING",))
        for operator in averages:
            at = dilations if operator.endswith("1") else None
            for include in (0, 1):
                result.append(Case(
                    operator, f"{name}-{'with' if include else 'without'}-padding", tensors,
                    _average, attributes=_attributes(*geometry, at, include_padding=include),
                    values={"input_tensor": _numbers}, room=_average_room, layouts=layouts))
        powers = (1, 2, 3) if name in ("padded", "dilated") else (2,)
        for p in powers if name != "very-large" else ():
            operator, at = ("LP_POOLING1", dilations) if has_dilations else ("LP_POOLING", None)
            result.append(Case(
                operator, f"{name}-{p}", tensors, _lp, attributes=_attributes(*geometry, at, p=p),
                values={"input_tensor": _numbers}, room=_lp_room, layouts=layouts))
        both = tensors | {"output_indices_tensor": out}
        few: dict[str, Any] = {"types": [
            {"input_tensor": t, "output_tensor": t, "output_indices_tensor": i} for t, i in _FEW]}
        for operator, at, indexed in (
            ("MAX_POOLING", None, False), ("MAX_POOLING1", None, True),
            ("MAX_POOLING1", None, False), ("MAX_POOLING2", dilations, True),
            ("MAX_POOLING2", dilations, False),
        ):
            if (at is None) == has_dilations or (operator == "MAX_POOLING1" and name not in (
                    "padded", "solid")) or (not indexed and name in ("global", "very-large")):
                continue
            layers = layouts if operator == "MAX_POOLING2" else [PACKED, SHIFTED]
            if name == "padded" or (name == "dilated" and indexed):
                result.append(_maximum(operator, f"{name}-{indexed}-types", tensors, both, indexed,
                                       _attributes(*geometry, at), layouts=[PACKED]))
            result.append(_maximum(operator, f"{name}{'-indices' if indexed else ''}", tensors,
                                   both, indexed, _attributes(*geometry, at), layouts=layers,
                                   **few))
    return result


def _scale(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.uniform(0.05, 0.2, sizes).astype(np.float32)


def _quantized(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    """Each step is rounded to float32."""
    given = x["input_tensor"].astype(np.int64)
    rank = given.ndim

    def spread(name: str) -> np.ndarray:
        t = x.get(name)
        return (np.zeros(1, np.int64) if t is None else t).reshape((1, -1, *(1,) * (rank - 2)))

    centred = given - spread("input_zero_point_tensor").astype(np.int64)
    sizes = _sizes(given, a)
    total = _pooled(centred, a, sizes, lambda part, padded: part.sum(-1)).astype(np.float32)
    count = _pooled(centred, a, sizes, lambda part, padded: max(
        padded if a["include_padding"] else part.shape[-1], 1)).astype(np.float32)
    mean = total * spread("input_scale_tensor") / count
    whole = np.rint(mean / spread("output_scale_tensor"))
    limits = np.iinfo(types["output_tensor"].dtype)
    zero = spread("output_zero_point_tensor").astype(np.int64)
    return np.clip(whole + zero, limits.min, limits.max).astype(limits.dtype)


def _quantized_case(name: str, key: str, scalar: Sizes, zeros: bool, **more: Any) -> Case:
    sizes, *geometry, dilations = (_SHAPES | _DILATED)[key]
    out = _sizes(np.empty(sizes), _attributes(*geometry, dilations))
    tensors = {"input_tensor": sizes, "input_scale_tensor": scalar, "output_scale_tensor": scalar,
               "output_tensor": out}
    if zeros:
        tensors |= {"input_zero_point_tensor": scalar, "output_zero_point_tensor": scalar}
    return Case(
        "QUANTIZED_LINEAR_AVERAGE_POOLING", name, tensors, _quantized,
        attributes=_attributes(*geometry, dilations, include_padding=int(zeros)),
        values={"input_tensor": _numbers, "input_scale_tensor": _scale,
                "output_scale_tensor": _scale, "input_zero_point_tensor": _numbers,
                "output_zero_point_tensor": _numbers}, **more)


CASES = [
    *_cases(),
    _quantized_case("padded", "padded", (1,), True, layouts=(PACKED, SHIFTED, REVERSED)),
    _quantized_case("channels", "channels", (1, 8, 1, 1), True, layouts=(PACKED, REVERSED)),
    _quantized_case("solid", "dilated-solid", (1, 1, 1, 1, 1), True, layouts=(PACKED,)),
    _quantized_case("no-zero-points", "padded", (1,), False, layouts=(PACKED,)),
    _quantized_case("large-window", "large-window", (1, 2, 1, 1), True, layouts=(PACKED,)),
    _quantized_case("very-large", "very-large", (1,), True, layouts=(PACKED,)),
    _quantized_case("global", "global", (1, 7, 1, 1), True, layouts=(PACKED, REVERSED)),
]


def _error(operator: str, name: str, parts: Sequence[str], sizes: Sizes = (1, 1, 3, 3),
           **changed: Any) -> ErrorCase:
    x = dml.TensorDesc("float32", [1, 1, 4, 4])
    fields: dict[str, Any] = dict(
        input_tensor=x, output_tensor=dml.TensorDesc("float32", sizes),
        **_attributes((2, 2), (1, 1), (0, 0), (0, 0)))
    if operator.endswith("1"):
        fields["dilations"] = (1, 1)
    if operator.startswith("AVERAGE"):
        fields["include_padding"] = 0
    if operator.startswith("LP"):
        fields["p"] = 2
    return ErrorCase(operator, name, fields | changed, parts)


def _quantized_error() -> ErrorCase:
    byte, scale = dml.TensorDesc("uint8", [1, 2, 4, 4]), dml.TensorDesc("float32", [3])
    return ErrorCase(
        "QUANTIZED_LINEAR_AVERAGE_POOLING", "scales",
        dict(input_tensor=byte, input_scale_tensor=scale, input_zero_point_tensor=None,
             output_scale_tensor=dml.TensorDesc("float32", [1]), output_zero_point_tensor=None,
             output_tensor=dml.TensorDesc("uint8", [1, 2, 3, 3]), include_padding=0,
             **_attributes((2, 2), (1, 1), (0, 0), (0, 0), (1, 1))),
        ["InputScaleTensor.Sizes", "[1, 2, 1, 1]", "[3]"])


_INDICES = dict(output_indices_tensor=None)
ERRORS = [
    _error("AVERAGE_POOLING", "strides", ["Strides[1]", "at least 1", "0"], strides=(1, 0)),
    _error("AVERAGE_POOLING1", "dilations", ["Dilations[0]", "at least 1"], dilations=(0, 1)),
    _error("AVERAGE_POOLING", "sizes", ["OutputTensor.Sizes", "[1, 1, 3, 3]", "[1, 1, 3, 4]"],
           (1, 1, 3, 4)),
    _error("LP_POOLING", "p", ["P", "at least 1"], p=0),
    _error("LP_POOLING1", "window", ["WindowSize[0]", "padded size", "5"], window_size=(5, 2)),
    _error("MAX_POOLING", "count", ["Strides", "2 elements"], strides=(1, 1, 1),
           window_size=(2, 2, 2), start_padding=(0, 0, 0), end_padding=(0, 0, 0)),
    _error("MAX_POOLING", "padding", ["StartPadding[0] and EndPadding[0]", "2^30"],
           start_padding=(2**32 - 1, 0)),
    ErrorCase("MAX_POOLING1", "window", {
        **_error("MAX_POOLING", "", []).fields, **_INDICES,
        "window_size": (0, 2)}, ["WindowSize[0]", "at least 1"]),
    ErrorCase("MAX_POOLING2", "indices", {
        **_error("MAX_POOLING", "", []).fields, "dilations": (1, 1),
        "output_indices_tensor": dml.TensorDesc("uint32", [1, 1, 3, 2])},
        ["OutputIndicesTensor.Sizes", "[1, 1, 3, 2]"]),
    _quantized_error(),
]
