"""RESAMPLE_GRAD: each element sums the gradients of the outputs that read it. Offsets are those of
this operator's own tensors. Its input is RESAMPLE's output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..attributes import AxisDirection, InterpolationMode
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, begin_with_vectors, product
from ..lowering.builder import PlanBuilder
from ..lowering.coordinates import Affine
from ..lowering.elementwise import float_bits
from ..lowering.kernel import Kernel, choose
from ..lowering.neighbours import Neighbours
from ..lowering.planes import General, Images, Planes, block_strides
from ..runtime.traits import DeviceTraits
from .base import Each, OperatorDesc, operator
from .gradients import refuse_long_sums
from .resample import check_scales, four, rounding_of

_MOST_TAPS = 8
_MOST_SCALE = 4
"""The largest factor of resample_grad_planes.comp."""
_LOCAL_SIZE = 256


def _check(d: OperatorDesc, strict: bool) -> None:
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


def _readers(n: int, outputs: int, scale: float, x_offset: float, y_offset: float,
             rounding: int | None) -> _Readers:
    """Of ``n`` elements and so many outputs. Coordinates are those of resampling; ``rounding`` is
    None if it is linear."""
    one, y = np.float32, np.arange(outputs)
    line = Affine.of_scale(n, outputs, scale, x_offset, y_offset)
    if rounding is None:
        place = line.float_places(outputs, n)
        whole = np.floor(place)
        second = place - whole
        near = [np.clip(whole.astype(np.int64) + i, 0, n - 1) for i in (0, 1)]
        by = [1 - second, second]
        same = near[0] == near[1]
        by = [np.where(same, by[0] + by[1], by[0]), np.where(same, one(0), by[1])]
    else:
        near, by = [line.rounded(rounding).floors(outputs, n)], [np.ones(outputs, one)]
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


def _stencil(readers: _Readers, outputs: int) -> _Stencil | None:
    n = len(readers.counts)
    scale, most = outputs // n, int(readers.counts.max())
    if outputs != scale * n or not 2 <= scale <= _MOST_SCALE or most > 2 * scale:
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
    inside = (lows >= 0) & (lows + taps <= outputs)
    if not ((readers.firsts == lows) & (readers.counts == taps))[inside].all() or (
            readers.weights[begins[inside][:, None] + np.arange(taps)] != weights).any():
        return None
    for i in np.flatnonzero(~inside):
        sums = np.zeros(outputs, np.float32)
        at = lows[i] + np.arange(taps)
        at = np.where(at < 0, -1 - at, np.where(at >= outputs, 2 * outputs - 1 - at, at))
        if at.min() < 0 or at.max() >= outputs:
            return None
        np.add.at(sums, at, weights)
        own = slice(int(readers.firsts[i]), int(readers.firsts[i]) + int(readers.counts[i]))
        sums[own] -= readers.weights[begins[i] : begins[i] + readers.counts[i]]
        if sums.any():
            return None
    return _Stencil(scale, before, tuple(map(float, weights)))


def _readers_of(d: OperatorDesc) -> dict[int, _Readers]:
    """By dimension: who reads each element of the input, where it is not one of the same place."""
    dy, dx = d.input_gradient_tensor, d.output_gradient_tensor
    rounding = None if d.interpolation_mode == InterpolationMode.LINEAR else rounding_of(d)
    return {i: readers for i, axis in enumerate(zip(
        dx.sizes, dy.sizes, d.scales, d.output_pixel_offsets, d.input_pixel_offsets))
        if not (readers := _readers(*axis, rounding)).are_the_same}


class _ResampleGradientBlocks(NamedTuple):
    """The blocks of planes, as measured on an H200."""

    name: str
    block: tuple[int, int]
    step: int
    """Channels of a vector."""


def _layout_of(d: OperatorDesc) -> _ResampleGradientBlocks | None:
    dy, dx = d.input_gradient_tensor, d.output_gradient_tensor
    each = 16 // dx.data_type.itemsize
    if (dx.dimension_count != 4 or dx.data_type not in (DataType.FLOAT16, DataType.FLOAT32)
            or not (dx.is_aligned and dy.is_aligned)):
        return None

    def of_vectors(inner: int) -> bool:
        return all(t.sizes[inner] % each == 0 and begin_with_vectors(each, t.strides, inner)
                   for t in (dx, dy))

    if of_vectors(3):
        return _ResampleGradientBlocks("first", (1 if each == 4 else 2, each), 1)
    return _ResampleGradientBlocks("last", (3, 1), each) if of_vectors(1) else None


def _stencils(d: OperatorDesc) -> list[_Stencil | None]:
    readers = _readers_of(d)
    if sorted(readers) != [2, 3]:
        return [None]
    return [_stencil(readers[i], d.input_gradient_tensor.sizes[i]) for i in (2, 3)]


class _PlanesOfResampleGradient(Planes):
    """Linear, along rows and columns that are enlarged by whole numbers."""

    def serves(self, problem: Images, traits: DeviceTraits) -> str | None:
        if problem.desc.interpolation_mode != InterpolationMode.LINEAR:
            return "it is not linear"
        if _layout_of(problem.desc) is None:
            return "not aligned planes of floats whose rows or channels are vectors"
        return "places are not read alike" if None in _stencils(problem.desc) else None

    def lower(self, problem: Images, p: PlanBuilder) -> None:
        d, dx, planes = problem.desc, problem.y, _layout_of(problem.desc)
        assert planes is not None
        (layout, block, step), dy, stencils = planes, d.input_gradient_tensor, _stencils(d)
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


class _AnyResampleGradient(General):
    def lower(self, problem: Images, p: PlanBuilder) -> None:
        d, dx, dy = problem.desc, problem.y, problem.desc.input_gradient_tensor
        readers = _readers_of(d)
        near = Neighbours(dx, p.device)
        along = near.inner in readers
        if not along and dy.strides[near.inner] != 1:
            near.each = 1
        axes = sorted(readers, key=lambda i: (i == near.inner, i))
        most = [int(readers[i].counts.max()) for i in axes]
        refuse_long_sums(d, p, most)
        rank = dx.dimension_count
        units = [tuple(int(k < len(axes) and axes[k] == i) for i in range(rank)) for k in range(4)]
        strides = tuple(0 if i in readers else s for i, s in enumerate(dy.strides))
        walk = near.walk(dx.strides, strides, *units)
        words, tables = list(walk.words), []
        for i in axes:
            tables.append(len(words))
            words += readers[i].words(len(words))

        p.dispatch(
            "resample_grad", -(-walk.count // p.device.local_size),
            dy=p.read("input_gradient_tensor"), dx=p.write("output_gradient_tensor"), params=words,
            push={"count": walk.count, "dy_strides": four([dy.strides[i] for i in axes]),
                  "tables": four(tables)},
            spec={"LOCAL_SIZE": p.device.local_size, "TYPE": dx.data_type.code, "AXES": len(axes),
                  "EACH": near.each, "ALONG_AXIS": along,
                  "VECTORS": not along and near.are_vectors(dy),
                  "TAPS": most[-1] if along and most[-1] <= _MOST_TAPS else 0})


KERNELS: tuple[Kernel[Images], ...] = (_PlanesOfResampleGradient(), _AnyResampleGradient())


def _lower(d: OperatorDesc, p: PlanBuilder) -> None:
    problem = Images(d, "resample_grad", d.output_gradient_tensor)
    choose(KERNELS, problem, p).lower(problem, p)


_COMMON: dict[str, Any] = dict(
    shaders=("resample_grad", "resample_grad_planes"), check=_check,
    interpolation_mode=InterpolationMode.LINEAR, input_pixel_offsets=Each(-0.5),
    output_pixel_offsets=Each(0.5))

ResampleGradOperatorDesc = operator("RESAMPLE_GRAD", **_COMMON)(_lower)
ResampleGrad1OperatorDesc = operator(
    "RESAMPLE_GRAD1", rounding_direction=AxisDirection.DECREASING, **_COMMON)(_lower)
