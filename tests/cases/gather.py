"""Gathers, scatters, one-hot vectors and coordinates of non-zeros."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types, random_bits
from layouts import PACKED, REPEATED, SHIFTED, STEPPED, TRANSPOSED, Sizes

_DATA = ("input_tensor", "updates_tensor", "values_tensor", "output_tensor")
_ALL = [t for t in dml.DataType if t.bits >= 8]
_INDICES = [dml.DataType[n] for n in ("INT64", "INT32", "UINT64", "UINT32")]
_HOSTILE = [-(2**63), -(2**32), -(2**31), -12, -7, -2, -1, 0, 1, 2, 5, 11, 2**31 - 1, 2**32 - 1,
            2**32, 2**63 - 1, 2**64 - 1]


def hostile(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Indices: many are valid, some are equal, and many are outside."""
    info = np.iinfo(data_type.dtype)
    known = [i for i in _HOSTILE if info.min <= i <= info.max]
    near = [i for i in range(-6, 7) if i >= info.min]
    picked = [int(rng.choice(len(known) + 3 * len(near))) for _ in range(int(np.prod(sizes)))]
    return np.array([(known + 3 * near)[i] for i in picked], data_type.dtype).reshape(sizes)


def resolve(indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Clamped places along an axis, and whether each index was inside."""
    wide = np.asarray(indices, object)
    wide = np.asarray(np.where(wide < 0, wide + size, wide), object)
    inside = (wide >= 0) & (wide < size)
    return np.asarray(np.clip(wide, 0, size - 1), np.int64), np.asarray(inside, bool)


def _pairs(types: list[dml.DataType], fields: tuple[str, ...]) -> list[Types]:
    """Each data type with one type of indices, and FLOAT32 with each."""
    f32 = dml.DataType.FLOAT32
    pairs = [(t, _INDICES[i % 4]) for i, t in enumerate(types)]
    pairs += [(f32, i) for i in _INDICES if (f32, i) not in pairs]
    return [{f: t if f in _DATA else i for f in fields} for t, i in pairs]


def _case(operator: str, name: str, sizes: Mapping[str, Sizes], reference: Any, layouts: Any,
          **attributes: Any) -> Case:
    types = _ALL if layouts == [PACKED] else [dml.DataType[n] for n in ("UINT8", "FLOAT32")]
    return Case(operator, name, sizes, reference, attributes=attributes, layouts=layouts,
                values={"indices_tensor": hostile}, types=_pairs(types, tuple(sizes)))


def _gather(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    data, indices = x["input_tensor"], x["indices_tensor"]
    indices = indices.reshape(indices.shape[indices.ndim - given["index_dimensions"]:])
    at, _ = resolve(indices, data.shape[given["axis"]])
    made = np.take(data, at, given["axis"])
    return made.reshape((1,) * (data.ndim - made.ndim) + made.shape[max(made.ndim - data.ndim, 0):])


def gather(name: str, x: Sizes, indices: Sizes, y: Sizes, axis: int, count: int,
           layouts: Any = (PACKED,)) -> Case:
    return _case("GATHER", name, {"input_tensor": x, "indices_tensor": indices, "output_tensor": y},
                 _gather, list(layouts), axis=axis, index_dimensions=count)


def _elements(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    data, axis = x["input_tensor"], given["axis"]
    at, _ = resolve(x["indices_tensor"], data.shape[axis])
    grid = list(np.indices(at.shape, sparse=True))
    grid[axis] = at
    return data[tuple(grid)]


def elements(name: str, x: Sizes, indices: Sizes, axis: int, layouts: Any = (PACKED,)) -> Case:
    return _case("GATHER_ELEMENTS", name,
                 {"input_tensor": x, "indices_tensor": indices, "output_tensor": indices},
                 _elements, list(layouts), axis=axis)


def _scatter(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    y, axis = x["input_tensor"].copy(), given["axis"]
    at, inside = resolve(x["indices_tensor"], y.shape[axis])
    for c in itertools.product(*map(range, at.shape)):
        if inside[c]:
            y[(*c[:axis], at[c], *c[axis + 1:])] = x["updates_tensor"][c]
    return y


def scatter(name: str, x: Sizes, indices: Sizes, axis: int, layouts: Any = (PACKED,)) -> Case:
    return _case("SCATTER", name,
                 {"input_tensor": x, "indices_tensor": indices, "updates_tensor": indices,
                  "output_tensor": x}, _scatter, list(layouts), axis=axis)


def _tuples(data: np.ndarray, indices: np.ndarray, given: Mapping[str, Any]) -> Any:
    """The valid dimensions of both tensors, and for each tuple coordinate its place and whether it
    is inside."""
    data = data.reshape(data.shape[data.ndim - given["input_dimension_count"]:])
    indices = indices.reshape(
        indices.shape[indices.ndim - given["indices_dimension_count"]:])
    b = given.get("batch_dimension_count", 0)
    found = []
    for c in itertools.product(*map(range, indices.shape[:-1])):
        places = [resolve(i, n) for i, n in zip(indices[c], data.shape[b:])]
        at = (*c[:b], *(int(p) for p, _ in places))
        found.append((c, at, all(ok for _, ok in places)))
    return data, indices.shape[:-1], found


def _gather_nd(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    whole = x["input_tensor"]
    data, outer, found = _tuples(whole, x["indices_tensor"], given)
    made = np.array([data[at] for _, at, _ in found], data.dtype)
    made = made.reshape((*outer, *made.shape[1:]))
    return made.reshape((1,) * (whole.ndim - made.ndim) + made.shape)


def gather_nd(name: str, x: Sizes, indices: Sizes, y: Sizes, batches: int | None = None,
              layouts: Any = (PACKED,), real: tuple[int, int] | None = None) -> Case:
    counts = real or (len(x), len(indices))
    more = {} if batches is None else {"batch_dimension_count": batches}
    return _case("GATHER_ND" if batches is None else "GATHER_ND1", name,
                 {"input_tensor": x, "indices_tensor": indices, "output_tensor": y}, _gather_nd,
                 list(layouts), input_dimension_count=counts[0],
                 indices_dimension_count=counts[1], **more)


def _scatter_nd(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    y = x["input_tensor"].copy()
    inner, outer, found = _tuples(y, x["indices_tensor"], given)
    updates = x["updates_tensor"].reshape((*outer, *inner.shape[len(found[0][1]):]))
    for c, at, inside in found:
        if inside:
            inner[at] = updates[c]
    return inner.reshape(y.shape)


def scatter_nd(name: str, x: Sizes, indices: Sizes, updates: Sizes, layouts: Any = (PACKED,),
               real: tuple[int, int] | None = None) -> Case:
    counts = real or (len(x), len(indices))
    return _case("SCATTER_ND", name,
                 {"input_tensor": x, "indices_tensor": indices, "updates_tensor": updates,
                  "output_tensor": x}, _scatter_nd, list(layouts),
                 input_dimension_count=counts[0], indices_dimension_count=counts[1])


def _one_hot(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    off, on = x["values_tensor"].reshape(-1)[:2]
    depth, axis = _DEPTH, given["axis"]
    at, inside = resolve(x["indices_tensor"], depth)
    shape = [1] * at.ndim
    shape[axis] = depth
    hot = inside & (at == np.arange(depth).reshape(shape))
    return np.where(hot, on, off)


_DEPTH = 8


def _call_one_hot(x: Mapping[str, Any], given: Mapping[str, Any], types: Types, out: Any) -> Any:
    return dml.one_hot(x["indices_tensor"], x["values_tensor"], depth=_DEPTH, axis=given["axis"],
                       out=out)


def one_hot(name: str, indices: Sizes, values: Sizes, axis: int, layouts: Any = (PACKED,)) -> Case:
    y = (*indices[:axis], _DEPTH, *indices[axis + 1:])
    fields = ("indices_tensor", "values_tensor", "output_tensor")
    types = _ALL if list(layouts) == [PACKED] else [dml.DataType.UINT8, dml.DataType.FLOAT32]
    return Case("ONE_HOT", name, dict(zip(fields, (indices, values, y))), _one_hot, _call_one_hot,
                attributes={"axis": axis}, layouts=list(layouts),
                values={"indices_tensor": hostile}, types=_pairs(types, fields))


def sparse(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Half of the elements are zeros of both signs."""
    x = random_bits(rng, data_type, sizes)
    x[rng.random(sizes) < 0.5] = 0
    if data_type.is_float:
        x[rng.random(sizes) < 0.2] = -0.0
    return x


def _nonzero(x: Arrays, given: Mapping[str, Any], types: Types) -> tuple[np.ndarray, np.ndarray]:
    data = x["input_tensor"]
    found = np.argwhere(data).astype(np.uint32)[:, -_COLUMNS[data.shape]:]
    rows = np.zeros((data.size, found.shape[1]), np.uint32)
    rows[:len(found)] = found
    outer = (1,) * (_RANKS[data.shape] - 2)
    count = np.array([len(found)], np.uint32).reshape((1,) * _COUNTS[data.shape])
    return count, rows.reshape(*outer, *rows.shape)


def _nonzero_room(x: Arrays, given: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Rows after the last non-zero are undefined."""
    count, rows = _nonzero(x, given, {})
    undefined = np.arange(rows.shape[-2]) >= int(count.reshape(-1)[0])
    return np.zeros(count.shape), np.broadcast_to(
        np.where(undefined, np.inf, 0.0)[:, None], rows.shape)


# Input sizes -> coordinates of a row, and dimensions of both outputs.
_COLUMNS: dict[Sizes, int] = {}
_RANKS: dict[Sizes, int] = {}
_COUNTS: dict[Sizes, int] = {}


def nonzero(name: str, x: Sizes, columns: int, rank: int, layouts: Any = (PACKED,),
            count: int = 1) -> Case:
    _COLUMNS[x], _RANKS[x], _COUNTS[x] = columns, rank, count
    sizes = {"input_tensor": x, "output_count_tensor": (1,) * count,
             "output_coordinates_tensor": (*(1,) * (rank - 2), int(np.prod(x)), columns)}
    plain = columns == len(x) and rank == 2 and count == 1
    return Case("NONZERO_COORDINATES", name, sizes, _nonzero, room=_nonzero_room,
                values={"input_tensor": sparse}, layouts=list(layouts),
                levels=("descriptor", "function", "arrays") if plain else ("descriptor",),
                types=None if list(layouts) == [PACKED] else [
                    {"input_tensor": t, "output_count_tensor": dml.DataType.UINT32,
                     "output_coordinates_tensor": dml.DataType.UINT32}
                    for t in (dml.DataType.FLOAT16, dml.DataType.INT8, dml.DataType.UINT32)])


_SOME = [*FEW, STEPPED, REPEATED]
_F = dml.ReduceFunction
_UFUNCS: dict[dml.ReduceFunction, np.ufunc] = {
    _F.SUM: np.add, _F.MULTIPLY: np.multiply, _F.MIN: np.minimum, _F.MAX: np.maximum}
_REDUCED = [t for t in _ALL if t is not dml.DataType.FLOAT64]


def _few_numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Numbers whose sums and products are exact."""
    picked = rng.choice([-2, -1, 1, 2, 3], sizes)
    return (picked if data_type.is_float or data_type.is_signed else abs(picked)).astype(
        data_type.dtype)


def _reduced_along(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    y, axis, reduce = x["input_tensor"].copy(), given["axis"], _UFUNCS[given["function"]]
    at, inside = resolve(x["indices_tensor"], y.shape[axis])
    for c in itertools.product(*map(range, at.shape)):
        if inside[c]:
            to = (*c[:axis], at[c], *c[axis + 1:])
            y[to] = reduce(y[to], x["updates_tensor"][c])
    return y


def _reduced_tuples(x: Arrays, given: Mapping[str, Any], types: Types) -> np.ndarray:
    y, reduce = x["input_tensor"].copy(), _UFUNCS[given["function"]]
    inner, outer, found = _tuples(y, x["indices_tensor"], given)
    updates = x["updates_tensor"].reshape((*outer, *inner.shape[len(found[0][1]):]))
    for c, at, inside in found:
        if inside:
            inner[at] = reduce(inner[at], updates[c])
    return inner.reshape(y.shape)


def _reducing(operator: str, name: str, sizes: Mapping[str, Sizes], reference: Any, layouts: Any,
              **attributes: Any) -> Case:
    pairs = _pairs(_REDUCED, tuple(sizes))
    if layouts != [PACKED]:
        pairs = [t for t in pairs if t["input_tensor"].name in ("UINT8", "FLOAT32")][:2]
    return Case(operator, name, sizes, reference, attributes=attributes, layouts=layouts,
                values={"indices_tensor": hostile, "input_tensor": _few_numbers,
                        "updates_tensor": _few_numbers}, types=pairs)


def scatter_reduce(name: str, x: Sizes, indices: Sizes, axis: int, function: dml.ReduceFunction,
                   layouts: Any = (PACKED,)) -> Case:
    return _reducing("SCATTER_REDUCE", name,
                     {"input_tensor": x, "indices_tensor": indices, "updates_tensor": indices,
                      "output_tensor": x}, _reduced_along, list(layouts), axis=axis,
                     function=function)


def scatter_nd_reduce(name: str, x: Sizes, indices: Sizes, updates: Sizes,
                      function: dml.ReduceFunction, layouts: Any = (PACKED,),
                      real: tuple[int, int] | None = None) -> Case:
    counts = real or (len(x), len(indices))
    return _reducing("SCATTER_ND_REDUCE", name,
                     {"input_tensor": x, "indices_tensor": indices, "updates_tensor": updates,
                      "output_tensor": x}, _reduced_tuples, list(layouts),
                     input_dimension_count=counts[0], indices_dimension_count=counts[1],
                     function=function)


_DEEP = (2, 1, 3, 2, 1, 2, 3, 2)

CASES = [
    gather("vector", (7,), (5,), (5,), 0, 1),
    gather("scalar-index", (1, 7), (1, 1), (1, 1), 1, 0),
    gather("matrix-of-indices", (1, 5, 3, 4), (1, 1, 2, 3), (5, 2, 3, 4), 2, 2, _SOME),
    gather("rows", (5, 48), (1, 3), (3, 48), 0, 1, FEW),
    gather("deep", _DEEP, (1, 1, 1, 1, 1, 1, 1, 2), (2, 1, 2, 2, 1, 2, 3, 2), 2, 1),
    elements("vector", (7,), (19,), 0),
    elements("first", (5, 7), (3, 7), 0, _SOME),
    elements("fewer", (4, 3, 5), (3, 2, 8), 2, FEW),
    elements("past-a-workgroup", (2, 11), (2, 1160), 1, FEW),
    elements("whole-vectors", (5, 16), (3, 16), 0),
    elements("deep", _DEEP, _DEEP, 2),
    scatter("vector", (7,), (19,), 0),
    scatter("first", (5, 7), (9, 7), 0, _SOME),
    scatter("columns", (5, 66), (9, 66), 0, (PACKED, SHIFTED)),
    scatter("last", (3, 16), (3, 24), 1, _SOME),
    scatter("fewer", (4, 3, 5), (3, 2, 8), 2, FEW),
    scatter("deep", _DEEP, _DEEP, 2),
    scatter("deep-last", _DEEP, _DEEP, 7),
    gather_nd("vector", (7,), (1,), (1,), real=(1, 1)),
    gather_nd("points", (4, 5), (3, 2), (1, 3), layouts=_SOME),
    gather_nd("slices", (3, 4, 16), (1, 5, 1), (5, 4, 16), layouts=FEW, real=(3, 2)),
    gather_nd("deep", _DEEP, (1, 1, 1, 1, 1, 1, 3, 3), (1, 1, 3, 2, 1, 2, 3, 2), real=(8, 2)),
    gather_nd("vector", (7,), (1,), (1,), 0, real=(1, 1)),
    gather_nd("batches", (2, 4, 5), (2, 3, 1), (2, 3, 5), 1, layouts=_SOME),
    gather_nd("deep", (1, 1, 2, 3, 4, 2, 3, 2), (1, 1, 1, 1, 2, 3, 3, 2),
              (1, 1, 1, 2, 3, 3, 3, 2), 2, real=(6, 4)),
    scatter_nd("vector", (7,), (1,), (1,), real=(1, 1)),
    scatter_nd("points", (4, 5), (9, 2), (1, 9), layouts=_SOME),
    scatter_nd("slices", (3, 4, 16), (1, 5, 1), (5, 4, 16), layouts=FEW, real=(3, 2)),
    scatter_nd("deep", _DEEP, (1, 1, 1, 1, 1, 1, 3, 3), (1, 1, 3, 2, 1, 2, 3, 2), real=(8, 2)),
    *(scatter_reduce(f"vector-{f.name.lower()}", (7,), (19,), 0, f) for f in _UFUNCS),
    scatter_reduce("first", (5, 7), (9, 7), 0, _F.SUM, _SOME),
    scatter_reduce("columns", (5, 66), (9, 66), 0, _F.SUM, (PACKED, SHIFTED)),
    scatter_reduce("last", (3, 16), (3, 24), 1, _F.MAX, (PACKED, SHIFTED)),
    scatter_reduce("fewer", (4, 3, 5), (3, 2, 8), 2, _F.MULTIPLY, FEW),
    scatter_reduce("past-a-block", (5, 7), (900, 7), 0, _F.SUM, (PACKED, SHIFTED)),
    scatter_reduce("deep", _DEEP, _DEEP, 2, _F.SUM),
    scatter_nd_reduce("vector", (7,), (1,), (1,), _F.SUM, real=(1, 1)),
    scatter_nd_reduce("points", (4, 5), (99, 2), (1, 99), _F.MIN, layouts=_SOME),
    scatter_nd_reduce("slices", (3, 4, 16), (1, 5, 1), (5, 4, 16), _F.SUM, layouts=FEW,
                      real=(3, 2)),
    scatter_nd_reduce("deep", _DEEP, (1, 1, 1, 1, 1, 1, 3, 3), (1, 1, 3, 2, 1, 2, 3, 2),
                      _F.MULTIPLY, real=(8, 2)),
    one_hot("vector", (1,), (2,), 0),
    one_hot("last", (5, 3, 1), (1, 1, 2), 2, FEW),
    one_hot("first", (1, 5, 3), (2, 1, 1), 0, _SOME),
    one_hot("whole-vectors", (1, 16), (1, 3), 0, FEW),
    one_hot("deep", (2, 1, 3, 1, 1, 2, 3, 2), (1, 1, 1, 1, 1, 1, 2, 2), 3),
    nonzero("vector", (37,), 1, 2),
    nonzero("matrix", (5, 7), 2, 2, [PACKED, SHIFTED, TRANSPOSED, STEPPED]),
    nonzero("past-a-block", (3, 2741), 2, 2, [PACKED, SHIFTED]),
    nonzero("fewer-coordinates", (1, 1, 4, 1, 5), 3, 4, [PACKED, TRANSPOSED]),
    nonzero("deep", _DEEP, 8, 8, count=8),
]

_X = dml.TensorDesc("float32", [3, 4])
_I = dml.TensorDesc("int32", [3, 4])


def _error(operator: str, name: str, parts: list[str], **fields: Any) -> ErrorCase:
    given = {"input_tensor": _X, "indices_tensor": _I, "output_tensor": _X} | fields
    return ErrorCase(operator, name, given, parts)


ERRORS = [
    _error("GATHER", "axis", ["Axis", "[0, 2)", "2"], axis=2, index_dimensions=1),
    _error("GATHER", "dimensions", ["IndexDimensions", "[0, 2]", "3"], axis=0, index_dimensions=3),
    _error("GATHER", "lost", ["IndicesTensor.Sizes", "only 1s before the last 1", "[3, 4]"],
           axis=0, index_dimensions=1),
    _error("GATHER", "room", ["InputTensor.Sizes", "begin with 1 1s", "[3, 4]"],
           axis=1, index_dimensions=2),
    _error("GATHER_ELEMENTS", "larger", ["IndicesTensor.Sizes[0]", "at most", "3", "5"], axis=1,
           indices_tensor=dml.TensorDesc("int32", [5, 4]),
           output_tensor=dml.TensorDesc("float32", [5, 4])),
    ErrorCase("GATHER_ELEMENTS", "smaller",
              {"input_tensor": _X, "indices_tensor": dml.TensorDesc("int32", [2, 4]),
               "output_tensor": dml.TensorDesc("float32", [2, 4]), "axis": 1},
              ["IndicesTensor.Sizes[0]", "equal InputTensor.Sizes[0]", "2", "3"], strict=True),
    _error("SCATTER", "updates", ["IndicesTensor.Sizes", "equal UpdatesTensor.Sizes", "[2, 4]"],
           axis=1, updates_tensor=dml.TensorDesc("float32", [2, 4])),
    _error("GATHER_ND", "tuple", ["IndicesTensor.Sizes[1]", "at most 2", "4"],
           input_dimension_count=2, indices_dimension_count=2),
    _error("GATHER_ND", "hidden", ["InputTensor.Sizes", "only 1s before the last 1", "[3, 4]"],
           input_dimension_count=1, indices_dimension_count=2),
    _error("GATHER_ND1", "batches", ["BatchDimensionCount", "[0, 2)", "2"],
           input_dimension_count=2, indices_dimension_count=2, batch_dimension_count=2),
    _error("SCATTER_ND", "updates", ["UpdatesTensor.Sizes", "[1, 3]", "[3, 4]"],
           indices_tensor=dml.TensorDesc("int32", [3, 2]), updates_tensor=_X,
           input_dimension_count=2, indices_dimension_count=2),
    _error("SCATTER_REDUCE", "function", ["Function", "SUM, MULTIPLY, MIN, MAX", "AVERAGE"], axis=1,
           updates_tensor=_X, function=_F.AVERAGE),
    _error("SCATTER_ND_REDUCE", "updates", ["UpdatesTensor.Sizes", "[1, 3]", "[3, 4]"],
           indices_tensor=dml.TensorDesc("int32", [3, 2]), updates_tensor=_X, function=_F.SUM,
           input_dimension_count=2, indices_dimension_count=2),
    ErrorCase("ONE_HOT", "values",
              {"indices_tensor": dml.TensorDesc("int32", [3, 1]),
               "values_tensor": dml.TensorDesc("float32", [1, 1]), "output_tensor": _X, "axis": 1},
              ["ValuesTensor.Sizes", "at least two", "[1, 1]"]),
    ErrorCase("ONE_HOT", "indices",
              {"indices_tensor": _I, "values_tensor": _X, "output_tensor": _X, "axis": 1},
              ["IndicesTensor.Sizes", "[3, 1]", "[3, 4]"]),
    ErrorCase("NONZERO_COORDINATES", "rows",
              {"input_tensor": _X, "output_count_tensor": dml.TensorDesc("uint32", [1]),
               "output_coordinates_tensor": dml.TensorDesc("uint32", [12, 1])},
              ["OutputCoordinatesTensor.Sizes", "[..., 12, N]", "[2, 2]", "[12, 1]"]),
    ErrorCase("NONZERO_COORDINATES", "count",
              {"input_tensor": _X, "output_count_tensor": dml.TensorDesc("uint32", [2]),
               "output_coordinates_tensor": dml.TensorDesc("uint32", [12, 2])},
              ["OutputCountTensor.Sizes", "all 1", "[2]"]),
]
