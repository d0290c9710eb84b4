"""RESAMPLE_GRAD: each element sums the gradients of the outputs that read it. Offsets are those of
this operator's own tensors. Its input is RESAMPLE's output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..attributes import InterpolationMode
from ..errors import expect
from ..layout import Ints
from ..lowering.builder import PlanBuilder
from ..lowering.neighbours import Neighbours
from .base import operator
from .gradients import refuse_long_sums
from .resample import DOWN, HALVES_UP, check_scales, rounding_of

_MOST_TAPS = 8


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


def _lower(d: Any, p: PlanBuilder) -> None:
    dy, dx = d.input_gradient_tensor, d.output_gradient_tensor
    rounding = None if d.interpolation_mode == InterpolationMode.LINEAR else rounding_of(d)
    readers = {i: found for i, axis in enumerate(zip(
        dx.sizes, dy.sizes, d.scales, d.output_pixel_offsets, d.input_pixel_offsets))
        if not (found := _readers(*axis, rounding)).are_the_same}
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
    "RESAMPLE_GRAD", shaders=("resample_grad",), check=_check)(_lower)
ResampleGrad1OperatorDesc = operator(
    "RESAMPLE_GRAD1", shaders=("resample_grad",), check=_check)(_lower)
