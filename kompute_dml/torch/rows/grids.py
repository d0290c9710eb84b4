"""Images sampled at the places of a grid, in two and three dimensions, and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..table import call, lowers
from ..values import F32, I64, Unsupported, Value, cast, expanded, full, resized

_LINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1
"""PyTorch's numbers of the modes. Paddings beyond these reflect."""


class _GridAxis(NamedTuple):
    """One dimension of an image, and where the samples lie in it."""

    size: int
    place: Value
    """Counted in elements, as FLOAT32."""
    slope: Value
    """How fast the place moves with the grid."""


class _Corner(NamedTuple):
    """Neighbours that samples are made of, one for each sample."""

    at: Value
    """Their places in the image, all dimensions as one."""
    inside: Value
    """Whether there is an element."""
    weights: Sequence[Value]
    """What they count, in each dimension."""
    signs: Sequence[int]
    """How that grows with the place."""


def _axis(c: Value, size: int, padding: int, corners: bool) -> _GridAxis:
    """A dimension whose samples lie at ``c`` between -1 and 1, in PyTorch's order of rounding."""
    from_0 = call("add.Tensor", c, 1)
    if corners:
        place = call("mul.Tensor", call("div.Tensor", from_0, 2), size - 1)
    else:
        place = call("div.Tensor", call("sub.Tensor", call("mul.Tensor", from_0, size), 1), 2)
    slope = full(c.shape, (size - 1 if corners else size) / 2, F32)
    if padding == _ZEROS:
        return _GridAxis(size, place, slope)
    if padding != _BORDER:
        place, slope = _reflected(place, slope, 0 if corners else -0.5,
                                  size - 1 if corners else size)
    outside = call("logical_or", call("le.Scalar", place, 0), call("ge.Scalar", place, size - 1))
    return _GridAxis(size, call("clamp", place, 0, size - 1),
                 call("where.self", outside, full((), 0, F32), slope))


def _reflected(place: Value, slope: Value, low: float, span: int) -> tuple[Value, Value]:
    """Places between ``low`` and ``span`` more, as mirrors at both ends show them."""
    if not span:
        return full(place.shape, 0, F32), full(place.shape, 0, F32)
    above = call("sub.Tensor", place, low)
    rest = call("fmod.Scalar", call("abs", above), span)
    flips = call("floor", call("div.Tensor", call("abs", above), span))
    turned = call("eq.Scalar", call("fmod.Scalar", flips, 2), 1)
    rest = call("where.self", turned, call("sub.Tensor", full((), span, F32), rest), rest)
    backward = call("ne.Tensor", turned, call("lt.Scalar", above, 0))
    return call("add.Tensor", rest, low), call("where.self", backward, call("neg", slope), slope)


def _axes(x: Value, grid: Value, padding: int, corners: bool) -> list[_GridAxis]:
    """The image's dimensions in order. The grid names the last one first."""
    count, rank = math.prod(grid.shape[1:-1]), x.ndim - 2
    places = resized(cast(grid, F32), (grid.shape[0], count, rank))
    return [_axis(call("select.int", places, -1, rank - 1 - d), x.shape[2 + d], padding, corners)
            for d in range(rank)]


def _corners(axes: Sequence[_GridAxis], mode: int) -> Iterator[_Corner]:
    """The neighbours of all samples, one of each sample at a time."""
    firsts = [call("round" if mode == _NEAREST else "floor", a.place) for a in axes]
    for steps in itertools.product((0, 1) if mode == _LINEAR else (0,), repeat=len(axes)):
        at = inside = None
        weights = []
        for axis, first, step in zip(axes, firsts, steps):
            here = call("add.Tensor", first, step)
            fits = call("logical_and", call("ge.Scalar", here, 0),
                        call("le.Scalar", here, axis.size - 1))
            inside = fits if inside is None else call("logical_and", inside, fits)
            index = cast(call("where.self", fits, here, full((), 0, F32)), I64)
            at = index if at is None else call(
                "add.Tensor", call("mul.Tensor", at, axis.size), index)
            above = call("sub.Tensor", axis.place, first)
            weights.append(above if step else call("sub.Tensor", full((), 1, F32), above))
        assert at is not None and inside is not None
        yield _Corner(at, inside, weights, [2 * step - 1 for step in steps])


def _product(corner: _Corner, factors: Sequence[Value]) -> Value:
    """A product for each sample, 0 where there is no element."""
    y = full(corner.at.shape, 1, F32)
    for factor in factors:
        y = call("mul.Tensor", y, factor)
    return call("where.self", corner.inside, y, full((), 0, F32))


def _checked(x: Value, grid: Value, mode: int, *others: Value) -> None:
    if mode not in (_LINEAR, _NEAREST) or not x.numel or not grid.numel or not all(
            v.dtype.is_floating_point for v in (x, grid, *others)):
        raise Unsupported(f"samples of {x!r} in mode {mode}")


def _of_channels(x: Value, per_sample: Value) -> Value:
    """One number a sample, for all channels of the image."""
    n, count = per_sample.shape
    return expanded(resized(per_sample, (n, 1, count)), (n, x.shape[1], count))


@lowers("grid_sampler_3d")
def grid_sampler(x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    _checked(x, grid, mode)
    n, channels = x.shape[:2]
    flat = resized(cast(x, F32), (n, channels, math.prod(x.shape[2:])))
    y: Value | None = None
    for corner in _corners(_axes(x, grid, padding, corners), mode):
        weight = _product(corner, corner.weights if mode == _LINEAR else ())
        part = call("mul.Tensor", call("gather", flat, 2, _of_channels(x, corner.at)),
                    _of_channels(x, weight))
        y = part if y is None else call("add.Tensor", y, part)
    assert y is not None
    return cast(resized(y, (n, channels, *grid.shape[1:-1])), x.dtype)


@lowers("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    g: Value, x: Value, grid: Value, mode: int, padding: int, corners: bool,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    _checked(x, grid, mode, g)
    n, channels = x.shape[:2]
    flat = resized(cast(x, F32), (n, channels, math.prod(x.shape[2:])))
    change = resized(cast(g, F32), (n, channels, math.prod(g.shape[2:])))
    axes = _axes(x, grid, padding, corners)
    of_x = full(flat.shape, 0, F32)
    of_places = [full(a.place.shape, 0, F32) for a in axes]
    for corner in _corners(axes, mode):
        at = _of_channels(x, corner.at)
        if output_mask[0]:
            weight = _product(corner, corner.weights if mode == _LINEAR else ())
            of_x = call("scatter_add", of_x, 2, at,
                        call("mul.Tensor", change, _of_channels(x, weight)))
        if output_mask[1] and mode == _LINEAR:
            dot = call("sum.dim_IntList", call("mul.Tensor", change, call("gather", flat, 2, at)),
                       [1])
            for d, sign in enumerate(corner.signs):
                others = [w for i, w in enumerate(corner.weights) if i != d]
                part = call("mul.Tensor", _product(corner, [dot, *others]), sign)
                of_places[d] = call("add.Tensor", of_places[d], part)
    of_grid = call("stack", [call("mul.Tensor", part, axis.slope)
                             for part, axis in zip(of_places, axes)][::-1], -1)
    return [cast(resized(of_x, x.shape), x.dtype) if output_mask[0] else None,
            cast(resized(of_grid, grid.shape), grid.dtype) if output_mask[1] else None]
