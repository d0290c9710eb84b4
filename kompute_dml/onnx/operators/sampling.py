"""Grids of points. GridSample is arithmetic on coordinates, and a gather for each neighbour of a
point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import ScaleBias
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import packed_strides, product
from ...sizes import is_open, numbers
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, emit_elementwise, given, host
from ..row import MICROSOFT, Mapping
from . import gather, movement
from .products import product_of

_FLOAT, _INDEX = np.dtype("float32"), np.dtype("int32")
_NEIGHBOURS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
_NAMES = {"bilinear": "linear", "bicubic": "cubic"}
"""What versions before 20 call them."""
_KEYS = -0.75
"""The free coefficient of the cubic kernel."""
_FAR = float(1 << 24)
"""Beyond all elements whose places are FLOAT32."""


def refusal(node: OnnxNode) -> str | None:
    """Why a GridSample is not served, or None."""
    padding = node.attributes.get("padding_mode", "zeros")
    if _mode(node) not in _NEIGHBOURS or padding not in ("zeros", "border", "reflection"):
        return f"mode={_mode(node)!r} with padding_mode={padding!r}"
    return None


def _mode(node: OnnxNode) -> str:
    mode = node.attributes.get("mode", "linear")
    return _NAMES.get(mode, mode)


def grid_sample(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, grid = given(inputs, 0), given(inputs, 1)
    (batches, channels, *sizes), mode = x.shape, _mode(node)
    if len(grid.shape) != len(x.shape) or grid.shape[0] != batches or (
            grid.shape[-1] != len(sizes)) or not sizes:
        raise ValidationError(f"expected a grid of points in {list(x.shape)}, but got a grid of "
                              f"{list(grid.shape)}")
    shape = (batches, channels, *grid.shape[1:-1])
    if not product(shape):
        return [builder.new(shape, x.dtype)]
    if not product(sizes):
        raise ValidationError(f"expected elements to take samples of, but got {list(x.shape)}")
    grid = converted(builder, grid, _FLOAT)
    points = product(grid.shape[1:-1])
    grid = builder.reshape(grid, (batches, points, len(sizes)))
    axes = []
    for d, n in enumerate(sizes):  # the first number of a point is along the last dimension
        at = grid.view((batches, points), grid.strides[:2], (len(sizes) - 1 - d) * grid.strides[2])
        axes.append(_SampledAxis(builder, node, at, n))
    if axes[0].padding == "zeros":
        pads = np.array([0, 0, *[1] * len(sizes)] * 2)
        (x,) = movement.pad(builder, replace(node, attributes={}), [
            x, Array(pads.dtype, pads.shape, (1,), None, pads)])
    steps = packed_strides(x.shape)[2:]
    pixels = builder.reshape(x, (batches, channels, product(x.shape[2:])))
    taken = replace(node, attributes={"axis": 2})

    def sample(axes: Sequence[_SampledAxis], steps: Sequence[int], index: Array | None) -> Array:
        """Interpolated along ``axes``; ``index`` is of the dimensions before."""
        if not axes:
            assert index is not None
            seen = builder.reshape(index, (batches, 1, points))
            (y,) = gather.gather_elements(
                builder, taken, [pixels, seen.broadcast_to((batches, channels, points))])
            return y if mode == "nearest" or y.dtype == _FLOAT else emit_elementwise(
                builder, "CAST", [y], _FLOAT, {})
        total = None
        for place, weight in axes[0].neighbours:
            step = builder.numbers(numbers(steps[:1]), _INDEX)
            at = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [place, step], _INDEX, {})
            if index is not None:
                at = emit_elementwise(builder, "ELEMENT_WISE_ADD", [index, at], _INDEX, {})
            y = sample(axes[1:], steps[1:], at)
            if weight is not None:
                seen = builder.reshape(weight, (batches, 1, points))
                y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [y, seen], _FLOAT, {})
            total = y if total is None else emit_elementwise(
                builder, "ELEMENT_WISE_ADD", [total, y], _FLOAT, {})
        assert total is not None
        return total

    y = sample(axes, steps, None)
    return [builder.reshape(converted(builder, y, x.dtype), shape)]


class _SampledAxis:
    """Points along one dimension: each one's neighbours and what they weigh."""

    def __init__(self, builder: Builder, node: OnnxNode, at: Array, size: int) -> None:
        read = node.attributes.get
        self._builder, self._last, mode = builder, size - 1, _mode(node)
        self.padding = read("padding_mode", "zeros")
        aligned = bool(read("align_corners", 0))
        self._reach = size - 1 if aligned else size
        """From the first to the last place. The first is 0, or half an element before it."""
        self._low = 0.0 if aligned else -0.5
        at = self._line(at, self._half(self._reach), self._half(self._last))
        if mode == "nearest":
            at = self._of("ROUND", at, rounding_mode=0)
        # The cubic kernel's four elements are each brought to the border, as ONNX Runtime does.
        if not (self.padding == "border" and mode == "cubic"):
            at = self._inside(at)
        first = at if mode == "nearest" else self._of("FLOOR", at)
        weights: list[Array | None] = [None]
        if mode != "nearest":
            rest = self._of("SUBTRACT", at, first)
            weights = self._weights(rest, self._line(rest, -1, 1), mode)
        self.neighbours = [(self._index(self._line(first, 1, offset)), weight)
                           for offset, weight in zip(_NEIGHBOURS[mode], weights)]

    def _weights(self, rest: Array, other: Array, mode: str) -> list[Array | None]:
        if mode == "linear":
            return [other, rest]
        near, far = (_KEYS + 2, -(_KEYS + 3), 0, 1), (_KEYS, -2 * _KEYS, _KEYS, 0)
        return [self._polynomial(rest, far), self._polynomial(rest, near),
                self._polynomial(other, near), self._polynomial(other, far)]

    def _polynomial(self, x: Array, factors: Sequence[float]) -> Array:
        first, second, *rest = factors
        y = self._line(x, first, second)
        for factor in rest:
            y = self._line(self._of("MULTIPLY", y, x), 1, factor)
        return y

    def _inside(self, at: Array) -> Array:
        """Points outside brought to the border, or reflected at it."""
        if self.padding == "zeros":
            return at
        if self.padding == "border":
            return self._clipped(at, self._last)
        reach = self._reach
        if reach == 0:
            return self._line(at, 0, 0)
        distance = self._of("ABS", self._line(at, 1, -self._low))
        turns = self._of("FLOOR", self._line(distance, self._inverse(2 * reach), 0))
        within = self._of("SUBTRACT", distance, self._line(turns, self._half(4 * reach), 0))
        turned = self._of("ABS", self._line(within, 1, self._half(-2 * reach)))
        return self._line(turned, -1, self._half(2 * reach + int(2 * self._low)))

    def _index(self, at: Array) -> Array:
        """Of whole numbers; of zeros there is one at each end."""
        last = self._last
        if self.padding == "zeros":
            at, last = self._line(at, 1, 1), self._last + 2
        at = self._clipped(self._inside(at) if self.padding == "reflection" else at, last)
        return emit_elementwise(self._builder, "CAST", [at], _INDEX, {})

    def _clipped(self, at: Array, last: int) -> Array:
        if is_open(last):
            return self._of("MIN", self._of("CLIP", at, min=0.0, max=_FAR), self._number(last))
        return self._of("CLIP", at, min=0.0, max=float(last))

    def _number(self, n: int) -> Array:
        return self._builder.numbers(numbers([n]), _FLOAT)

    def _half(self, n: int) -> float | Array:
        """Half of a number. Of an open one it is on the device."""
        return self._line(self._number(n), 0.5, 0) if is_open(n) else n / 2

    def _inverse(self, n: int) -> float | Array:
        """1 / n, in the same way."""
        return self._of("RECIP", self._number(n)) if is_open(n) else 1 / n

    def _line(self, x: Array, scale: float | Array, bias: float | Array) -> Array:
        if isinstance(scale, Array):
            x, scale = self._of("MULTIPLY", x, scale), 1.0
        if isinstance(bias, Array):
            x = x if scale == 1 else self._line(x, scale, 0)
            return self._of("ADD", x, bias)
        return self._of("IDENTITY", x, scale_bias=ScaleBias(scale, bias))

    def _of(self, operator: str, *arrays: Array, **attributes: Any) -> Array:
        return emit_elementwise(
            self._builder, "ELEMENT_WISE_" + operator, list(arrays), _FLOAT, attributes)


def affine_grid(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The points of an image, each with a 1 behind it, by matrices."""
    theta, wanted = given(inputs, 0), host(inputs, 1)
    sizes = [] if wanted is None else [int(n) for n in wanted.reshape(-1)[2:]]
    if len(sizes) not in (2, 3) or theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise ValidationError(f"expected matrices of {len(sizes)} x {len(sizes) + 1}, but got "
                              f"{list(theta.shape)}")
    ends = [1.0 if node.attributes.get("align_corners", 0) else 1 - 1 / max(n, 1) for n in sizes]
    planes = np.meshgrid(*(np.linspace(-e, e, n) for e, n in zip(ends, sizes)), indexing="ij")
    points = np.stack([*reversed(planes), np.ones(sizes)], -1).reshape(-1, len(sizes) + 1)
    grid = product_of(builder, builder.constant(points.astype(theta.dtype)),
                      theta.transpose((0, 2, 1)))
    return [builder.reshape(grid, (theta.shape[0], *sizes, len(sizes)))]


ROWS: tuple[Mapping, ...] = (
    *[Mapping("GridSample", since, "GATHER_ELEMENTS", grid_sample, domain,
          fields=("InputTensor", None),
          attributes=("align_corners", "mode", "padding_mode"), refuses=refusal)
      for since, domain in (((16, 20, 22), ""), ((1,), MICROSOFT))],
    Mapping("AffineGrid", (20,), "GEMM", affine_grid, fields=("ATensor", None),
        attributes=("align_corners",), host=(1,)),
)
