"""RESAMPLE_GRAD: each element sums the gradients of the outputs that read it. Offsets are those of
this operator's own tensors. Its input is RESAMPLE's output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..attributes import InterpolationMode
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, begin_with_vectors, product
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.neighbours import Neighbours
from ..lowering.planes import block_strides, chosen
from .base import operator
from .gradients import refuse_long_sums
from .resample import DOWN, HALVES_UP, check_scales, rounding_of

_MOST_TAPS = 8
_MOST_SCALE = 4
"""The largest factor of resample_grad_planes.comp."""
_LOCAL_SIZE = 256


def _check(d: Any, strict: bool) -> None:
    name, dy, dx = d.operator.name, d.input_gradient_tensor, d.output_gradient_tensor
    check_scales(d, dy.dimension_count)
    for n in (*dy.sizes, *dx.sizes):
        expect(n < 1 << 24, name, "InputGradientTensor.Sizes and OutputGradientTensor.Sizes",
               "be below 2^24 (coordinates are FLOAT32)", n)


class _Readers(NamedTuple):
    """The outputs that read each element along an axis: neighbours."""

    firsts: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    """Of all elements, one after the other."""

    @property
    def are_the_same(self) -> bool:
        """Whether each element is read by its own output only."""
        return bool((self.counts == 1).all() and (self.weights == 1).all()
                    and (self.firsts == np.arange(len(self.firsts))).all())

    def words(self, begin: int) -> list[int]:
        """The table, which begins at the params' word ``begin``, and the weights."""
        at = begin + 3 * len(self.counts) + np.cumsum(self.counts) - self.counts
        table: list[int] = np.stack([self.firsts, self.counts, at], 1).ravel().tolist()
        return table + self.weights.view(np.uint32).tolist()


def _readers(n: int, made: int, scale: float, x_offset: float, y_offset: float,
             rounding: int | None) -> _Readers:
    """Of ``n`` elements and ``made`` outputs. Coordinates are computed as resampling computes them,
    in FLOAT32; ``rounding`` is None if it is linear."""
    one = np.float32
    y = np.arange(made)
    place = (y.astype(one) - one(y_offset)) / one(scale) - one(x_offset)
    place = np.clip(place, one(-1), one(n))
    if rounding is None:
        whole = np.floor(place)
        second = place - whole
        near = [np.clip(whole.astype(np.int64) + i, 0, n - 1) for i in (0, 1)]
        by = [1 - second, second]
        same = near[0] == near[1]
        by = [np.where(same, by[0] + by[1], by[0]), np.where(same, one(0), by[1])]
    else:
        whole = (np.floor(place + one(0.5)) if rounding == HALVES_UP
                 else np.floor(place) if rounding == DOWN else np.ceil(place))
        near, by = [np.clip(whole.astype(np.int64), 0, n - 1)], [np.ones(made, one)]
    # Coordinates ascend with the outputs, so those that read an element are neighbours.
    x, weights = np.concatenate(near), np.concatenate(by)
    y = np.tile(y, len(near))
    order = np.lexsort((y, x))
    order = order[weights[order] != 0]
    x, y, weights = x[order], y[order], weights[order]
    count = np.bincount(x, minlength=n)
    begin = np.cumsum(count) - count
    first = np.where(count > 0, np.append(y, 0)[begin], 0)
    return _Readers(first, count, weights)


class _Stencil(NamedTuple):
    """An axis whose elements all have the same weights: those of the outputs from ``scale`` * i -
    ``before`` on. Outputs beyond an edge are those mirrored at it."""

    scale: int
    before: int
    weights: tuple[float, ...]


def _stencil(readers: _Readers, made: int) -> _Stencil | None:
    n = len(readers.counts)
    scale, most = made // n, int(readers.counts.max())
    if made != scale * n or not 2 <= scale <= _MOST_SCALE or most > 2 * scale:
        return None
    begins = np.cumsum(readers.counts) - readers.counts
    middle = n // 2
    first, begin = int(readers.firsts[middle]), int(begins[middle])
    before = scale * middle - first
    weights = readers.weights[begin : begin + int(readers.counts[middle])]
    taps = len(weights)
    if not (taps == most and before >= 0 and before + scale <= taps):
        return None
    lows = scale * np.arange(n) - before
    inside = (lows >= 0) & (lows + taps <= made)
    if not ((readers.firsts == lows) & (readers.counts == taps))[inside].all() or (
            readers.weights[begins[inside][:, None] + np.arange(taps)] != weights).any():
        return None
    for i in np.flatnonzero(~inside):
        sums = np.zeros(made, np.float32)
        at = lows[i] + np.arange(taps)
        at = np.where(at < 0, -1 - at, np.where(at >= made, 2 * made - 1 - at, at))
        if at.min() < 0 or at.max() >= made:
            return None
        np.add.at(sums, at, weights)
        own = slice(int(readers.firsts[i]), int(readers.firsts[i]) + int(readers.counts[i]))
        sums[own] -= readers.weights[begins[i] : begins[i] + readers.counts[i]]
        if sums.any():
            return None
    return _Stencil(scale, before, tuple(map(float, weights)))


def _planes(d: Any, p: PlanBuilder, readers: dict[int, _Readers]) -> bool:
    """Add the dispatch for planes of floats if it is chosen. Returns whether it is."""
    dy, dx = d.input_gradient_tensor, d.output_gradient_tensor
    each = 16 // dx.data_type.itemsize
    if (dx.dimension_count != 4 or sorted(readers) != [2, 3]
            or dx.data_type not in (DataType.FLOAT16, DataType.FLOAT32)
            or not (dx.is_aligned and dy.is_aligned)):
        return False

    def of_vectors(inner: int) -> bool:
        return all(t.sizes[inner] % each == 0 and begin_with_vectors(each, t.strides, inner)
                   for t in (dx, dy))

    # Blocks as measured on an H200.
    if of_vectors(3):
        layout, block, step = "first", (1 if each == 4 else 2, each), 1
    elif of_vectors(1):
        layout, block, step = "last", (3, 1), each
    else:
        return False
    stencils = [_stencil(readers[i], dy.sizes[i]) for i in (2, 3)]
    if None in stencils or not chosen(p, "resample_grad", layout, dx):
        return False
    down, across = (s for s in stencils if s is not None)
    channels = dx.sizes[1] // step
    blocks = product([-(-dx.sizes[i] // n) for i, n in zip((2, 3), block)])

    def eight(weights: tuple[float, ...]) -> Ints:
        return tuple(float_bits(w) for w in (*weights, *(0.0,) * (8 - len(weights))))

    p.dispatch(
        f"resample_grad_planes.{layout}", -(-dx.sizes[0] * channels * blocks // _LOCAL_SIZE),
        dy=p.read("input_gradient_tensor"), dx=p.write("output_gradient_tensor"),
        push={"batches": dx.sizes[0], "channels": channels, "x_sizes": dx.sizes[2:],
              "y_sizes": dy.sizes[2:],
              "dx_strides": block_strides(dx, step), "dy_strides": block_strides(dy, step),
              "weights_y": eight(down.weights), "weights_x": eight(across.weights)},
        spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": dx.data_type.code, "ROWS": block[0],
              "COLUMNS": block[1], "SCALE_Y": down.scale, "SCALE_X": across.scale,
              "TAPS_Y": len(down.weights), "TAPS_X": len(across.weights),
              "BEFORE_Y": down.before, "BEFORE_X": across.before})
    return True


def _lower(d: Any, p: PlanBuilder) -> None:
    dy, dx = d.input_gradient_tensor, d.output_gradient_tensor
    rounding = None if d.interpolation_mode == InterpolationMode.LINEAR else rounding_of(d)
    readers = {i: found for i, axis in enumerate(zip(
        dx.sizes, dy.sizes, d.scales, d.output_pixel_offsets, d.input_pixel_offsets))
        if not (found := _readers(*axis, rounding)).are_the_same}
    if rounding is None and _planes(d, p, readers):
        return
    near = Neighbours(dx)
    along = near.inner in readers
    if not along and dy.strides[near.inner] != 1:
        near.each = 1
    axes = sorted(readers, key=lambda i: (i == near.inner, i))
    most = [int(readers[i].counts.max()) for i in axes]
    refuse_long_sums(d, p, most)
    rank = dx.dimension_count
    units = [tuple(int(k < len(axes) and axes[k] == i) for i in range(rank)) for k in range(4)]
    walk = near.walk(dx.strides, tuple(0 if i in readers else s for i, s in enumerate(dy.strides)),
                     *units)
    words, tables = list(walk.words), []
    for i in axes:
        tables.append(len(words))
        words += readers[i].words(len(words))

    def four(values: list[int]) -> Ints:
        return (*values, *(0,) * (4 - len(values)))

    p.dispatch(
        "resample_grad", -(-walk.count // p.device.local_size),
        dy=p.read("input_gradient_tensor"), dx=p.write("output_gradient_tensor"), params=words,
        push={"count": walk.count, "dy_strides": four([dy.strides[i] for i in axes]),
              "tables": four(tables)},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": dx.data_type.code, "AXES": len(axes),
              "EACH": near.each, "ALONG_AXIS": along,
              "VECTORS": not along and near.are_vectors(dy),
              "TAPS": most[-1] if along and most[-1] <= _MOST_TAPS else 0})


ResampleGradOperatorDesc = operator(
    "RESAMPLE_GRAD", shaders=("resample_grad", "resample_grad_planes"), check=_check)(_lower)
ResampleGrad1OperatorDesc = operator(
    "RESAMPLE_GRAD1", shaders=("resample_grad", "resample_grad_planes"), check=_check)(_lower)
