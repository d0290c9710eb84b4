"""Cases that move elements in less ordinary layouts and types, each beside NumPy's own function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..attributes import PaddingMode
from ..cases import Scale
from ..cases.case import Entry, Given, OperatorCase, case
from ..cases.movement import put, to_depth, to_space, with_rows_added
from .case import Recipe
from .ordinary import ordinary

_U8, _I64 = np.uint8, np.int64


def _matrix(s: Scale, height: int = 0, width: int = 0, dtype: npt.DTypeLike = np.float32) -> Given:
    """A matrix of about ``s.side`` rows and columns, the side changed by so many."""
    high = 0.9 if np.dtype(dtype).kind == "f" else 200
    return Given((s.side + height, s.side + width), 0.1, high, dtype, shared=True)


def _narrow(s: Scale, width: int) -> Given:
    """Half as many bytes as a case has, in rows of a few."""
    return Given((-(-s.elements // (2 * width)), width), 0, 200, _U8, shared=True)


def _planes(s: Scale, side: int, channels: int = 1, dtype: npt.DTypeLike = np.float32) -> Given:
    """Square planes. A multiple of ``channels`` of them."""
    count = max(1, s.elements // (side * side * channels)) * channels
    high = 0.9 if np.dtype(dtype).kind == "f" else 200
    return Given((1, count, side, side), 0.1, high, dtype, shared=True)


def _numbers(count: int, size: int, dtype: npt.DTypeLike = np.int32) -> np.ndarray:
    """Indices in no order, with duplicates."""
    return np.random.default_rng(3).integers(0, size, count).astype(dtype)


def _joined(axis: int, *widths: int, dtype: npt.DTypeLike = np.float32) -> Entry:
    def entry(s: Scale) -> OperatorCase:
        parts = [_matrix(s, 0, w, dtype) for w in widths]
        return case(lambda *x: np.concatenate(x, axis), *parts, axis=axis,
                    call=lambda f, /, *x, **more: f(x, **more))

    return entry


def _joined_many(s: Scale) -> OperatorCase:
    parts = [Given((s.side, -(-s.side // 28)), shared=True)] * 28
    return case(lambda *x: np.concatenate(x, 1), *parts, axis=1,
                call=lambda f, /, *x, **more: f(x, **more))


def _split_many(s: Scale) -> OperatorCase:
    width = -(-s.side // 28)
    return case(lambda x: np.split(x, 28, 1), Given((s.side, 28 * width), shared=True),
                sections=28, axis=1)


def _split(width: int, dtype: npt.DTypeLike = np.float32) -> Entry:
    def entry(s: Scale) -> OperatorCase:
        first = s.side // 2 - 1
        sizes = (first, s.side + width - first)
        return case(lambda x: np.split(x, [first], 1),
                    _matrix(s, 0, width, dtype), sections=sizes, axis=1)

    return entry


def _sliced(key: tuple[slice, slice], dtype: npt.DTypeLike = np.float32, more: int = 1) -> Entry:
    """SLICE of a matrix whose last axis is ``more`` times as long."""
    def entry(s: Scale) -> OperatorCase:
        n = s.side, more * s.side
        ranges = [range(*k.indices(m)) for k, m in zip(key, n)]
        return case(lambda x: x[key], Given(n, 0.1, 200, dtype, shared=True),
                    offsets=[r.start for r in ranges], sizes=[len(r) for r in ranges],
                    strides=[r.step for r in ranges])

    return entry


def _reversed(*steps: int) -> Entry:
    """SLICE1 of a whole matrix."""
    return lambda s: case(
        lambda x: x[tuple(slice(None, None, step) for step in steps)], _matrix(s),
        input_window_offsets=(0, 0), input_window_sizes=(s.side, s.side),
        input_window_strides=steps)


def _padded(input_of: Callable[[Scale], Given], around: Sequence[tuple[int, int]],
            mode: PaddingMode, name: Any) -> Entry:
    begin, end = zip(*around)
    return lambda s: case(lambda x: np.pad(x, around, name), input_of(s), start_padding=begin,
                          end_padding=end, padding_mode=mode)


def _tiled(input_of: Callable[[Scale], Given], *repeats: int) -> Entry:
    return lambda s: case(lambda x: np.tile(x, repeats), input_of(s), repeats=repeats)


def _to_space(b: int, side: int, dtype: npt.DTypeLike = np.float32) -> Entry:
    return lambda s: case(
        lambda x: to_space(x, b), _planes(s, side, b * b, dtype), block_size=b)


def _to_depth(b: int, side: int, dtype: npt.DTypeLike = np.float32) -> Entry:
    return lambda s: case(lambda x: to_depth(x, b), _planes(s, side, 1, dtype), block_size=b)


def _backwards(s: Scale) -> OperatorCase:
    """REVERSE_SUBSEQUENCES of half of each row."""
    half = s.side // 2
    lengths = np.full((s.side, 1), half, np.uint32)
    return case(lambda x, _: np.concatenate([x[:, :half][:, ::-1], x[:, half:]], 1),
                _matrix(s), lengths, axis=1)


def _backwards_rows(dtype: npt.DTypeLike) -> Entry:
    """REVERSE_SUBSEQUENCES of the first half of the rows, all of one length."""
    def entry(s: Scale) -> OperatorCase:
        half = s.side // 2
        return case(
            lambda x, _: np.concatenate([x[:half][::-1], x[half:]]), _matrix(s, 0, -1, dtype),
            np.full((1, 1), half, np.uint32), axis=0,
            call=lambda f, /, x, n, **more: f(x, n.broadcast_to((1, x.sizes[1])), **more))

    return entry


def _backwards_columns(width: int, dtype: npt.DTypeLike) -> Entry:
    """REVERSE_SUBSEQUENCES of columns, each with a length of its own."""
    def entry(s: Scale) -> OperatorCase:
        n = _numbers(s.side + width, s.side + 1)[None]
        at = np.arange(s.side)[:, None]

        def compute(x: np.ndarray, n: np.ndarray) -> np.ndarray:
            return np.take_along_axis(x, np.where(at < n, n.astype(int) - 1 - at, at), 0)

        return case(compute, _matrix(s, 0, width, dtype), n.astype(np.uint32), axis=0)

    return entry


def _gathered(axis: int, width: int = 0, dtype: npt.DTypeLike = np.float32) -> Entry:
    return lambda s: case(lambda x, i: x.take(i[0], axis), _matrix(s, 0, width, dtype),
                          _numbers(s.side, s.side)[None], axis=axis, index_dimensions=1)


def _gathered_scalars(s: Scale) -> OperatorCase:
    count = s.side**2
    return case(lambda x, i: x.take(i), Given((count,), shared=True), _numbers(count, count),
                axis=0, index_dimensions=1)


def _along(axis: int, dtype: npt.DTypeLike) -> Entry:
    return lambda s: case(lambda x, i: np.take_along_axis(x, i, axis), _matrix(s),
                          _numbers(s.side**2, s.side, dtype).reshape(s.side, -1), axis=axis)


def _tuples(s: Scale) -> OperatorCase:
    chosen = _numbers(2 * s.side**2, s.side).reshape(-1, 2)
    return case(lambda x, i: x[i[:, 0], i[:, 1]], _matrix(s), chosen, input_dimension_count=2,
                indices_dimension_count=2, call=_flat)


def _flat(f: Callable[..., Any], /, *inputs: Any, **more: Any) -> Any:
    """The last dimension alone: the output has as many dimensions as the input."""
    out = more.pop("out", None)
    y = f(*inputs, **more, out=None if out is None else out.reshape(1, *out.sizes))
    return y.reshape(y.sizes[-1])


def _scattered(axis: int, dtype: npt.DTypeLike, kind: npt.DTypeLike = np.float32) -> Entry:
    return lambda s: case(lambda x, i, new: put(x, i, new, axis), _matrix(s, dtype=kind),
                          _numbers(s.side**2, s.side, dtype).reshape(s.side, -1),
                          _matrix(s, dtype=kind), axis=axis)


def _scattered_tuples(s: Scale) -> OperatorCase:
    def compute(x: np.ndarray, i: np.ndarray, new: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[i[:, 0], i[:, 1]] = new[0]
        return x

    chosen = _numbers(2 * s.side**2, s.side).reshape(-1, 2)
    return case(compute, _matrix(s), chosen, Given((1, s.side**2), shared=True),
                input_dimension_count=2, indices_dimension_count=2)


def _edges(ends: int) -> Entry:
    """A graph network's messages, a row each, are added at the ends of edges."""
    def entry(s: Scale) -> OperatorCase:
        edges = max(s.elements // 64, 1)
        places = min(ends, edges)
        return case(with_rows_added, Given((places, 64), shared=True),
                    _numbers(edges, places, _I64).reshape(-1, 1), Given((edges, 64), shared=True),
                    input_dimension_count=2, indices_dimension_count=2)

    return entry


def _hot(axis: int, depth: int = 0) -> Entry:
    def entry(s: Scale) -> OperatorCase:
        n = s.side + depth
        sizes = [s.side, s.side]
        sizes[axis] = n
        at = np.expand_dims(_numbers(s.side, n), axis)
        line = np.expand_dims(np.arange(n), 1 - axis)
        return case(lambda i, values: np.where(i == line, values[0, 1], values[0, 0]), at,
                    np.array([[0, 1]], np.float32), out=(sizes[0], sizes[1]), axis=axis)

    return entry


_ALL = slice(None)
_FROM = slice(1, None)
_HALF = slice(None, None, 2)
_AROUND = (3, 5), (7, 9)
_THREE = (0, 0), (0, 0), (3, 3), (3, 3)

VARIANTS: tuple[Recipe, ...] = tuple(
    ordinary("DML_OPERATOR_" + operator, types, entry) for operator, types, entry in (
        ("SLICE", "f32 rows", _sliced((_FROM, _ALL))),
        ("SLICE", "f32 odd window", _sliced((_FROM, slice(3, -2)))),
        ("SLICE", "u8 odd window", _sliced((_FROM, slice(3, -2)), _U8)),
        ("SLICE", "f32 step 2", _sliced((_ALL, _HALF), more=2)),
        ("SLICE", "u8 step 2", _sliced((_ALL, _HALF), _U8, 2)),
        ("SLICE1", "f32 both axes backwards", _reversed(-1, -1)),
        ("JOIN", "f32 axis 0", _joined(0, 0, 0)),
        ("JOIN", "f32 odd widths", _joined(1, -1, 1, 3)),
        ("JOIN", "u8 odd widths", _joined(1, -1, 1, 3, dtype=_U8)),
        ("JOIN", "f32 of 28", _joined_many),
        ("SPLIT", "f32 into 28", _split_many),
        ("SPLIT", "f32 odd widths", _split(1)),
        ("SPLIT", "u8 odd widths", _split(1, _U8)),
        ("PADDING", "f32 around", _padded(_matrix, _AROUND, PaddingMode.CONSTANT, "constant")),
        ("PADDING", "u8 around", _padded(lambda s: _matrix(s, dtype=_U8), _AROUND,
                                         PaddingMode.CONSTANT, "constant")),
        *(("PADDING", f"f32 planes, {name}", _padded(lambda s: _planes(s, 64), _THREE, mode, name))
          for mode, name in ((PaddingMode.EDGE, "edge"), (PaddingMode.REFLECTION, "reflect"),
                             (PaddingMode.SYMMETRIC, "symmetric"))),
        ("TILE", "f32 planes 2x2", _tiled(lambda s: _planes(s, 64), 1, 1, 2, 2)),
        ("TILE", "f32 odd rows", _tiled(lambda s: _matrix(s, -1, -1), 2, 1)),
        ("TILE", "f32 odd rows 2x2", _tiled(lambda s: _matrix(s, -1, -1), 2, 2)),
        ("TILE", "u8 odd rows 2x2", _tiled(lambda s: _matrix(s, -1, -1, _U8), 2, 2)),
        ("TILE", "u8 rows of 33", _tiled(lambda s: _narrow(s, 33), 1, 2)),
        ("TILE", "u8 rows of 7", _tiled(lambda s: _narrow(s, 7), 1, 2)),
        ("DEPTH_TO_SPACE", "f32 3x3", _to_space(3, 32)),
        ("DEPTH_TO_SPACE", "f32 2x2 odd", _to_space(2, 33)),
        ("DEPTH_TO_SPACE", "u8 2x2", _to_space(2, 32, _U8)),
        ("SPACE_TO_DEPTH", "f32 3x3", _to_depth(3, 96)),
        ("SPACE_TO_DEPTH", "f32 2x2 odd", _to_depth(2, 66)),
        ("SPACE_TO_DEPTH", "u8 2x2", _to_depth(2, 64, _U8)),
        ("REVERSE_SUBSEQUENCES", "f32 along rows", _backwards),
        ("REVERSE_SUBSEQUENCES", "f32 odd rows of one length", _backwards_rows(np.float32)),
        ("REVERSE_SUBSEQUENCES", "u8 odd rows of one length", _backwards_rows(_U8)),
        ("REVERSE_SUBSEQUENCES", "u8 columns", _backwards_columns(0, _U8)),
        ("REVERSE_SUBSEQUENCES", "u8 odd columns", _backwards_columns(-1, _U8)),
        ("GATHER", "f32 odd rows", _gathered(0, -1)),
        ("GATHER", "u8 rows", _gathered(0, 0, _U8)),
        ("GATHER", "f32 columns", _gathered(1)),
        ("GATHER", "f32 scalars", _gathered_scalars),
        ("GATHER_ELEMENTS", "f32 axis 0", _along(0, np.int32)),
        ("GATHER_ELEMENTS", "f32 axis 0, i64", _along(0, _I64)),
        ("GATHER_ND", "f32 elements", _tuples),
        ("SCATTER", "f32 axis 0", _scattered(0, np.int32)),
        ("SCATTER", "f32 axis 0, i64", _scattered(0, _I64)),
        ("SCATTER", "u8 axis 0", _scattered(0, np.int32, _U8)),
        ("SCATTER_ND", "f32 elements", _scattered_tuples),
        ("SCATTER_ND_REDUCE", "f32 rows, 16 places", _edges(16)),
        ("SCATTER_ND_REDUCE", "f32 rows, 64 K places", _edges(1 << 16)),
        ("ONE_HOT", "f32 axis 0", _hot(0)),
        ("ONE_HOT", "f32 odd depth", _hot(1, -1)),
    )
)
