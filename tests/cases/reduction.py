"""Reductions, scans and sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import ALL, FEW, Arrays, Case, ErrorCase, Types, Values, random_bits
from kompute_dml import spec
from kompute_dml.attributes import AxisDirection
from kompute_dml.attributes import ReduceFunction as F
from layouts import PACKED, Layout, Sizes

_U = 2.0**-24
_INDICES = (F.ARGMAX, F.ARGMIN)
_ONLY_FLOATS = (F.AVERAGE, F.L2, F.LOG_SUM, F.LOG_SUM_EXP)
_FORWARDS, _BACKWARDS = AxisDirection
_FLOATS = [{"input_tensor": t, "output_tensor": t}
           for t in (dml.DataType.FLOAT32, dml.DataType.FLOAT16)]


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    if not data_type.is_float:
        return random_bits(rng, data_type, sizes)
    return rng.normal(0, 4, sizes).astype(data_type.dtype)


def _near_one(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Numbers whose products stay in range."""
    if not data_type.is_float:
        return random_bits(rng, data_type, sizes)
    return rng.uniform(0.9, 1.1, sizes).astype(data_type.dtype)


def _large(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Numbers whose squares exceed FLOAT16, and whose sums cancel."""
    x = rng.uniform(300, 20000, sizes) * rng.choice([-1, 1], sizes)
    return x.astype(data_type.dtype)


def _special(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Many equal numbers, with NaN, infinities and both zeros."""
    if not data_type.is_float:
        few = random_bits(rng, data_type, (5,))
        return rng.choice(few, sizes)
    few = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan]
    return rng.choice(few, sizes, p=[0.3, 0.3, 0.15, 0.15, 0.04, 0.04, 0.02]).astype(
        data_type.dtype)


def _exact(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _row_major(x: np.ndarray, axes: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """The axes as one last dimension, and the sizes of the result."""
    kept = [d for d in range(x.ndim) if d not in axes]
    rows = x.transpose((*kept, *sorted(axes))).reshape(*(x.shape[d] for d in kept), -1)
    return rows, [1 if d in axes else n for d, n in enumerate(x.shape)]


def _first(x: np.ndarray, axes: Sequence[int], least: bool, last: bool) -> np.ndarray:
    rows, sizes = _row_major(x, axes)
    best = np.nanmin(rows, -1, keepdims=True) if least else np.nanmax(rows, -1, keepdims=True)
    hit = rows == best
    if x.dtype.kind == "f":
        nan = np.isnan(rows)
        hit = np.where(nan.any(-1, keepdims=True), nan, hit)
    where = hit.shape[-1] - 1 - hit[..., ::-1].argmax(-1) if last else hit.argmax(-1)
    return where.reshape(sizes)


def _reduce(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given, axes, f = _exact(x["input_tensor"]), attributes["axes"], attributes["function"]
    if f in _INDICES:
        return _first(given, axes, f is F.ARGMIN, False).astype(types["output_tensor"].dtype)
    how: dict[str, Any] = {"axis": axes, "keepdims": True}
    summed = how | {"dtype": given.dtype}
    if f in (F.MAX, F.MIN):
        return (given.max if f is F.MAX else given.min)(**how).astype(x["input_tensor"].dtype)
    if f is F.LOG_SUM_EXP:
        most = given.max(**how)
        return most + np.log(np.exp(given - most).sum(**how))
    if f is F.MULTIPLY:
        return given.prod(**summed)
    terms = {F.L1: abs, F.L2: np.square, F.SUM_SQUARE: np.square}.get(f, lambda v: v)(given)
    total = terms.sum(**summed)
    if f is F.AVERAGE:
        return total / np.prod([given.shape[a] for a in axes])
    return {F.L2: np.sqrt, F.LOG_SUM: np.log}.get(f, lambda v: v)(total)


def _room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """The error that accuracy.md derives."""
    given = x["input_tensor"].astype(np.float64)
    axes, f = attributes["axes"], attributes["function"]
    count = int(np.prod([given.shape[a] for a in axes]))
    result = abs(_reduce(x, attributes, {}))
    if f is F.MULTIPLY:
        return count * _U * result
    if f is F.LOG_SUM_EXP:
        return 4.5 * _U * (count + 16) + 4 * _U * result
    if f is F.L2:
        return 12 * _U * result
    size = (given * given if f is F.SUM_SQUARE else abs(given)).sum(axes, keepdims=True)
    if f is F.LOG_SUM:
        return 12 * _U * size / abs(given.sum(axes, keepdims=True)) + 4 * _U * result
    return 12 * _U * size / (count if f is F.AVERAGE else 1)


def _reduced(sizes: Sizes, axes: Sequence[int]) -> Sizes:
    return tuple(1 if d in axes else n for d, n in enumerate(sizes))


def _function_types(f: F) -> list[Types]:
    entry = spec.operator("DML_OPERATOR_REDUCE")
    table = entry.support_at(max(dml.FeatureLevel), f"DML_REDUCE_FUNCTION_{f.name}")
    assert table is not None
    if f in _INDICES:
        return [{"input_tensor": a, "output_tensor": b} for a in table["InputTensor"].data_types
                for b in table["OutputTensor"].data_types]
    return [{"input_tensor": t, "output_tensor": t} for t in table["InputTensor"].data_types]


def _of(f: F, name: str, sizes: Sizes, axes: tuple[int, ...], types: Sequence[Types],
        values: Values = _numbers, layouts: Sequence[Layout] = (PACKED,), **more: Any) -> Case:
    of_floats = f not in (*_INDICES, F.MAX, F.MIN) and types[0]["input_tensor"].is_float
    positive = (lambda *given: abs(values(*given))) if f is F.LOG_SUM else values
    return Case(
        "REDUCE", f"{f.name.lower()}-{name}",
        {"input_tensor": sizes, "output_tensor": _reduced(sizes, axes)}, _reduce,
        attributes={"function": f, "axes": axes}, values={"input_tensor": positive},
        types=types, layouts=layouts, room=_room if of_floats else None,
        compare="stepwise", **more)


def _each_function() -> list[Case]:
    cases = []
    for f in F:
        types = _function_types(f)
        values = _near_one if f is F.MULTIPLY else _special if f in _INDICES else _numbers
        floats = [t for t in types if t["input_tensor"].is_float]
        integers = [t for t in types if not t["input_tensor"].is_float]
        for name, some in (("floats", floats), ("integers", integers)):
            if some:
                cases.append(_of(f, name, (3, 37, 8), (1,), some, values, levels=("descriptor",)))
        cases += [
            _of(f, "row", (1031,), (0,), floats[:1], values),
            _of(f, "first-and-last", (5, 6, 7), (2, 0), floats[:1], values, FEW),
        ]
    return cases


def _extreme(operator: str, name: str, sizes: Sizes, axes: tuple[int, ...],
             direction: AxisDirection, **more: Any) -> Case:
    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        where = _first(_exact(x["input_tensor"]), attributes["axes"], operator == "ARGMIN",
                       attributes["axis_direction"] == _BACKWARDS)
        return where.astype(types["output_tensor"].dtype)

    return Case(
        operator, name, {"input_tensor": sizes, "output_tensor": _reduced(sizes, axes)}, reference,
        attributes={"axes": axes, "axis_direction": direction},
        values={"input_tensor": _special}, **more)


_INDEX = [{"input_tensor": t, "output_tensor": dml.DataType.INT32}
          for t in (dml.DataType.FLOAT32, dml.DataType.FLOAT16, dml.DataType.INT64)]
_EIGHT = (2, 1, 3, 2, 2, 3, 1, 2)


def _extremes(operator: str) -> list[Case]:
    return [
        _extreme(operator, "types", (2, 35, 3), (1,), _FORWARDS, layouts=[PACKED],
                 levels=("descriptor",)),
        _extreme(operator, "last-wins", (3, 130), (1,), _BACKWARDS, types=_INDEX, layouts=FEW),
        _extreme(operator, "vector", (4097,), (0,), _FORWARDS, types=_INDEX, layouts=[PACKED]),
        _extreme(operator, "eight-dimensions", _EIGHT, (7, 3, 0), _BACKWARDS, types=_INDEX[:1],
                 layouts=FEW),
        _extreme(operator, "first", (129, 67), (0,), _FORWARDS, types=_INDEX, layouts=FEW),
    ]


def _scan(x: Arrays, attributes: Mapping[str, Any], types: Types, product: bool) -> np.ndarray:
    given, axis = _exact(x["input_tensor"]), attributes["axis"]
    exclusive = attributes["has_exclusive_product" if product else "has_exclusive_sum"]
    if attributes["axis_direction"] == _BACKWARDS:
        given = np.flip(given, axis)
    result = (np.cumprod if product else np.cumsum)(given, axis, dtype=given.dtype)
    if exclusive:
        first = np.full_like(np.take(result, [0], axis), product)
        rest = np.take(result, range(result.shape[axis] - 1), axis)
        result = np.concatenate([first, rest], axis)
    return np.flip(result, axis) if attributes["axis_direction"] == _BACKWARDS else result


def _scan_room(x: Arrays, attributes: Mapping[str, Any], product: bool) -> np.ndarray:
    """The error that accuracy.md derives."""
    sizes = {"input_tensor": abs(x["input_tensor"])}
    result = _scan(sizes, attributes, {}, product)
    return (x["input_tensor"].shape[attributes["axis"]] if product else 26) * _U * result


def _cumulative(product: bool, name: str, sizes: Sizes, axis: int, *, floats: bool = True,
                back: AxisDirection = _FORWARDS, exclusive: bool = False, **more: Any) -> Case:
    kinds = [dml.DataType[t] for t in (
        ("FLOAT32", "FLOAT16") if floats else ("INT32", "UINT32", "INT64", "UINT64"))]
    return Case(
        "CUMULATIVE_PRODUCT" if product else "CUMULATIVE_SUMMATION", name,
        {"input_tensor": sizes, "output_tensor": sizes},
        lambda x, attributes, types: _scan(x, attributes, types, product),
        attributes={"axis": axis, "axis_direction": back,
                    "has_exclusive_product" if product else "has_exclusive_sum": exclusive},
        values={"input_tensor": _near_one if product else _numbers},
        types=[{"input_tensor": t, "output_tensor": t} for t in kinds],
        room=(lambda x, attributes: _scan_room(x, attributes, product)) if floats else None, **more)


def _scans(product: bool) -> list[Case]:
    few: dict[str, Any] = {"layouts": [PACKED], "levels": ("descriptor",)}
    return [
        _cumulative(product, "vector", (5,), 0, layouts=FEW),
        _cumulative(product, "integers", (3, 64), 1, floats=False, exclusive=True, **few),
        _cumulative(product, "past-a-tile", (2, 4104), 1, back=_BACKWARDS, exclusive=True, **few),
        _cumulative(product, "odd-row", (2, 1031), 1, back=_BACKWARDS, layouts=FEW),
        _cumulative(product, "first", (131, 35), 0, exclusive=True, layouts=FEW),
        _cumulative(product, "middle", (3, 40, 8), 1, floats=False, back=_BACKWARDS, layouts=FEW),
        _cumulative(product, "eight-dimensions", _EIGHT, 4, layouts=FEW),
    ]


def sorted_indices(x: np.ndarray, axis: int, least: bool) -> np.ndarray:
    """Sorted indices: NaN is the largest, equal numbers keep their order."""
    keys = np.arange(x.shape[axis])
    if x.dtype.kind != "f":
        return np.argsort(x if least else ~x, axis, kind="stable")

    def of_row(row: np.ndarray) -> np.ndarray:
        nan, number = np.isnan(row), np.nan_to_num(row.astype(np.float64), nan=0.0, posinf=np.inf,
                                                   neginf=-np.inf)
        return np.lexsort((keys, number, nan) if least else (keys, -number, ~nan))

    return np.apply_along_axis(of_row, axis, x)


def _top(operator: str, name: str, sizes: Sizes, axis: int, k: int,
         direction: AxisDirection = _BACKWARDS, types: Sequence[str] | None = None,
         **more: Any) -> Case:
    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> Any:
        given = x["input_tensor"]
        least = attributes.get("axis_direction") == _FORWARDS
        order = np.take(sorted_indices(given, axis, least), range(k), axis)
        return (np.take_along_axis(given, order, axis),
                order.astype(types["output_index_tensor"].dtype))

    wanted = None if types is None else [
        {"input_tensor": dml.DataType[t], "output_value_tensor": dml.DataType[t],
         "output_index_tensor": dml.DataType.UINT32} for t in types]
    out = (*sizes[:axis], k, *sizes[axis + 1 :])
    return Case(
        operator, name,
        {"input_tensor": sizes, "output_value_tensor": out, "output_index_tensor": out}, reference,
        attributes={"axis": axis, "k": k} | (
            {"axis_direction": direction} if operator == "TOP_K1" else {}),
        values={"input_tensor": _special}, types=wanted, **more)


_THREE = ("FLOAT32", "FLOAT16", "INT64")
_TOPS = [
    _top("TOP_K", "types", (2, 40, 3), 1, 7, layouts=[PACKED], levels=("descriptor",)),
    _top("TOP_K", "vector", (5,), 0, 5, types=_THREE, layouts=FEW),
    _top("TOP_K", "eight-dimensions", _EIGHT, 5, 2, types=("FLOAT32",), layouts=FEW),
    _top("TOP_K1", "types", (2, 40, 3), 1, 40, _FORWARDS, layouts=[PACKED],
         levels=("descriptor",)),
    _top("TOP_K1", "vector", (1,), 0, 1, types=("FLOAT32",), layouts=[PACKED]),
    _top("TOP_K1", "eight-dimensions", _EIGHT, 2, 3, _FORWARDS, types=("FLOAT16",), layouts=FEW),
    _top("TOP_K1", "rows-of-vectors", (3, 1032), 1, 50, layouts=[PACKED], levels=("descriptor",)),
    _top("TOP_K1", "ties-beyond-a-workgroup", (2, 4097), 1, 1024, types=_THREE, layouts=[PACKED],
         levels=("descriptor",)),
    _top("TOP_K1", "sorted", (2, 2500), 1, 2001, _FORWARDS, types=_THREE, layouts=FEW,
         levels=("descriptor",)),
    _top("TOP_K1", "sorted-whole", (1030, 2), 0, 1030, types=_THREE, layouts=[PACKED]),
]
_PARTED = (2, (1 << 20) + 7)
"""A row that is too long for a single workgroup."""

CASES = [
    *_each_function(),
    *[_of(f, "no-axes", (3, 5), (), _FLOATS[:1], levels=("descriptor",))
      for f in (F.SUM, F.L1, F.LOG_SUM_EXP, F.MAX)],
    _of(F.SUM, "layouts", (3, 5, 33), (1,), _FLOATS[:1], layouts=ALL),
    _of(F.SUM, "integers-layouts", (3, 5, 33), (1,), _function_types(F.SUM)[2:3], layouts=FEW),
    _of(F.SUM, "last", (3, 5, 33), (2,), _FLOATS[1:], layouts=FEW),
    _of(F.MAX, "eight-dimensions", _EIGHT, (1, 3, 6, 7), [_FLOATS[0]], layouts=FEW),
    _of(F.SUM_SQUARE, "beyond-half", (2, 999), (1,), [_FLOATS[0]], _large),
    _of(F.L2, "beyond-half", (2, 9), (1,), [_FLOATS[1]], _large),
    _of(F.SUM, "cancels", (2, 4099), (1,), _FLOATS, _large),
    _of(F.SUM, "many-terms", _PARTED, (1,), [_FLOATS[0]], levels=("descriptor",)),
    *_extremes("ARGMIN"), *_extremes("ARGMAX"),
    *_scans(False), *_scans(True), *_TOPS,
]


def _refused(operator: str, name: str, parts: list[str], **fields: Any) -> ErrorCase:
    return ErrorCase(operator, name, fields, parts)


_X = dml.TensorDesc("float32", [2, 3])
_ROW, _WRONG = dml.TensorDesc("float32", [2, 1]), dml.TensorDesc("float16", [2, 1])
_AT = dml.TensorDesc("uint32", [2, 1])
ERRORS = [
    _refused("REDUCE", "axis", ["Axes[0]", "[0, 2)", "2"], function=F.SUM, input_tensor=_X,
             output_tensor=_ROW, axes=(2,)),
    _refused("REDUCE", "type", ["InputTensor.DataType", "equal OutputTensor.DataType", "FLOAT16"],
             function=F.SUM, input_tensor=_X, output_tensor=_WRONG, axes=(1,)),
    _refused("REDUCE", "sizes", ["OutputTensor.Sizes", "[2, 1]", "[2, 3]"], function=F.SUM,
             input_tensor=_X, output_tensor=_X, axes=(1,)),
    _refused("REDUCE", "index-type", ["OutputTensor.DataType", "UINT32", "FLOAT32"],
             function=F.ARGMAX, input_tensor=_X, output_tensor=_ROW, axes=(1,)),
    _refused("REDUCE", "function", ["Function", "SUM_SQUARE", "12"], function=12,
             input_tensor=_X, output_tensor=_ROW, axes=(1,)),
    *[_refused(name, "twice", ["Axes", "each axis once", "[1, 1]"], input_tensor=_X,
               output_tensor=_AT, axes=(1, 1), axis_direction=_FORWARDS)
      for name in ("ARGMIN", "ARGMAX")],
    _refused("CUMULATIVE_SUMMATION", "axis", ["Axis", "[0, 2)", "2"], input_tensor=_X,
             output_tensor=_X, axis=2, axis_direction=_FORWARDS, has_exclusive_sum=0),
    _refused("CUMULATIVE_PRODUCT", "direction", ["AxisDirection", "INCREASING", "2"],
             input_tensor=_X, output_tensor=_X, axis=1, axis_direction=2, has_exclusive_product=0),
    _refused("TOP_K", "k", ["K", "[1, 3]", "4"], input_tensor=_X, output_value_tensor=_X,
             output_index_tensor=dml.TensorDesc("uint32", [2, 3]), axis=1, k=4),
    _refused("TOP_K1", "none", ["K", "[1, 3]", "0"], input_tensor=_X, output_value_tensor=_ROW,
             output_index_tensor=_AT, axis=1, k=0, axis_direction=_FORWARDS),
]
