"""How Resize and Upsample lower: RESAMPLE, or products with matrices of weights.

DirectML has nearest and linear interpolation of up to four dimensions. Cubic interpolation,
antialiasing and crops are a product with a constant matrix along each resized dimension: row i
holds the weights of the elements that output i is made of. Nearest elements of more dimensions, and
of crops, are gathered along one after another.

Where sizes are open and the places of elements follow from them, the device computes the places and
weights. Elements are then gathered along one dimension after another, and added up.

Coordinates are exact (lowering/coordinates.py). ONNX Runtime's CPU provider and ONNX's reference
round the scale and each step: they may take the element beside one that lies at a whole coordinate,
or half-way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...attributes import AxisDirection, InterpolationMode, ScaleBias
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import product
from ...lowering.coordinates import DOWN, UP, Affine, ratio
from ...sizes import any_open, is_open, numbers, whole
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, dimension, emit_elementwise, given, host, seen
from ..row import Mapping
from .gather import gather
from .products import product_of

_FLOAT, _INDEX = np.dtype("float32"), np.dtype("int32")
_FLT_MAX = float(np.finfo(np.float32).max)
_MOST_DIMENSIONS = 4
"""Of RESAMPLE2."""
_OFF_BY_A_HALF = "tf_half_pixel_for_nn"
"""The transformation that moves an unchanged dimension of images. ONNX Runtime copies those."""
_OF_SIZES = "what elements are made of depends on the sizes of the image"
"""Why there is no plan for many sizes."""
_MOST_TAPS = 16
"""The most elements along a dimension that one is made of, where the device computes weights."""
_MOST_INDEX = 1 << 31
_OF_ENDS = ("align_corners", "half_pixel_symmetric")
"""Transformations that follow from the ends of the image."""
_NEAREST = {"round_prefer_floor": (-0.5, UP), "round_prefer_ceil": (0.5, DOWN),
            "floor": (0.0, DOWN), "ceil": (0.0, UP)}


class _Ratio(NamedTuple):
    """A scale that follows from open sizes."""

    out: int
    size: int


_Factor: TypeAlias = "float | _Ratio"


def refusal(node: OnnxNode) -> str | None:
    """Why a Resize or Upsample is not served, or None."""
    mode = node.attributes.get("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        return f"mode={mode!r}"
    return None


def _resized(node: OnnxNode, inputs: Inputs, x: Array) -> tuple[list[int], list[_Factor]]:
    """Sizes and scales of all dimensions."""
    rank = len(x.shape)
    if _is_old(node):
        scales: Any = host(inputs, 1) if node.since >= 9 else _scales(node)
        wanted = None
    else:
        scales, wanted = host(inputs, 2), host(inputs, 3)
    axes = _axes(node, rank)
    sizes = list(x.shape)
    factors: list[_Factor] = [1.0] * rank
    if wanted is not None and wanted.size:
        for a, n in zip(axes, wanted):
            if n < 0 or (n and not x.shape[a]):
                raise ValidationError(f"expected sizes that {list(x.shape)} is resized to, but got "
                                      f"{wanted.tolist()}")
        ratios = [_quotient(whole(n), x.shape[a] or 1) for a, n in zip(axes, wanted)]
        policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
        for a, n, ratio in zip(axes, wanted, ratios):
            sizes[a], factors[a] = whole(n), ratio
            if policy != "stretch":
                settled = [r for r in ratios if not isinstance(r, _Ratio)]
                if len(settled) < len(ratios):
                    raise TypeError(_OF_SIZES)
                kept = min(settled) if policy == "not_larger" else max(settled)
                factors[a], sizes[a] = kept, math.floor(kept * x.shape[a] + 0.5)
    elif scales is not None:
        for a, scale in zip(axes, np.asarray(scales, np.float32).reshape(-1)):
            if not 0 < scale < math.inf:
                raise ValidationError(f"expected scales to be above 0 and finite, but got {scale}")
            factors[a] = float(scale)
            # Of crops, too: onnx's reference and ONNX Runtime do not multiply by the region's size.
            sizes[a] = _scaled(x.shape[a], scale)
    else:
        raise ValidationError("expected sizes or scales")
    return sizes, factors


def _scaled(n: int, scale: np.float32) -> int:
    """The size that a size is scaled to. The product is rounded to float32, as ONNX Runtime's is.
    That rounding adds at most 2**-13 below 4,096. So of an open size the product is exact where it
    is not that close below a whole number. Elsewhere the number is taken."""
    exact = Fraction(float(scale))
    if is_open(n):
        above, below = n * exact.numerator, exact.denominator
        if above < below << 12 and above % below <= below - (below >> 13) - 1:
            return above // below
    return math.floor(scale * np.float32(int(n)))


def _quotient(n: int, size: int) -> _Factor:
    """``n / size``. Of open sizes it is open, unless one is a multiple of the other."""
    if not is_open(n) and not is_open(size):
        return int(n) / int(size)
    for a, b in ((n, size), (size, n)):
        rest = a % b
        if not is_open(rest) and rest == 0 and not is_open(times := a // b):
            return float(times) if a is n else 1 / times
    return _Ratio(n, size)


def _is_old(node: OnnxNode) -> bool:
    """Whether it is from before Resize got modes of coordinates and rounding."""
    return node.op == "Upsample" or node.since < 11


def _transformation(node: OnnxNode) -> str:
    mode = "asymmetric" if _is_old(node) else "half_pixel"
    return str(node.attributes.get("coordinate_transformation_mode", mode))


def _rounding(node: OnnxNode) -> tuple[float, int]:
    """What is added to a coordinate, and how the sum is rounded to the nearest element."""
    mode = "floor" if _is_old(node) else "round_prefer_floor"
    return _NEAREST[str(node.attributes.get("nearest_mode", mode))]


def _axes(node: OnnxNode, rank: int) -> list[int]:
    return [dimension(a, rank) for a in node.attributes.get("axes", range(rank))]


def _scales(node: OnnxNode) -> Any:
    """Of Upsample, as attributes: those of a plane's sides in version 1."""
    read = node.attributes
    return read["scales"] if node.since > 1 else (1, 1, read["height_scale"], read["width_scale"])


def _coordinates(mode: str, size: int, out: int, scale: float) -> tuple[float, float, float]:
    """Scale, input and output offset of a dimension: output i is of the input's element
    (i - output offset) / scale - input offset."""
    if mode == "align_corners":
        # As in ONNX's reference: the resized length may be fractional.
        return ((scale * size - 1) / (size - 1) if out > 1 and size > 1 else _FLT_MAX), 0.0, 0.0
    if mode == "asymmetric":
        return scale, 0.0, 0.0
    if mode == "pytorch_half_pixel" and out == 1:
        return _FLT_MAX, 0.0, 0.0
    if mode == _OFF_BY_A_HALF:
        return scale, 0.0, -0.5
    offset = 0.0
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - out / (scale * size))
    return scale, 0.5 - offset, -0.5


def resize(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    sizes, factors = _resized(node, inputs, x)
    if not product(sizes):
        return [builder.new(sizes, x.dtype)]
    if not product(x.shape):
        raise ValidationError(f"expected elements to resize, but got sizes {list(x.shape)}")
    mode = _transformation(node)
    kind = node.attributes.get("mode", "nearest")
    region = _region(node, inputs, x)
    linear = kind != "nearest"
    antialiased = linear and bool(node.attributes.get("antialias", 0))
    weighted = kind == "cubic" or antialiased or (linear and region is not None)
    scales = [f for f in factors if not isinstance(f, _Ratio)]
    if any_open((*x.shape, *sizes)):
        if region is not None:
            raise TypeError(_OF_SIZES)
        if weighted or mode in _OF_ENDS or len(scales) < len(factors):
            return [_of_open_sizes(builder, node, x, sizes, factors)]
    if weighted:
        return [_weighted(builder, node, x, sizes, scales, region)]
    added, rounding = (0.0, DOWN) if linear else _rounding(node)
    # Unchanged dimensions are merged, because DirectML takes four.
    dims: list[tuple[int, int, tuple[float, float, float]]] = []
    same = (1.0, 0.0, 0.0)
    order = [*range(len(sizes))]
    if len(sizes) > 3 and x.has_channels_inside:
        order.append(order.pop(1))  # in the order of memory
    for d in order:
        n, out, factor = x.shape[d], sizes[d], scales[d]
        if n == out and factor == 1.0 and not (not linear and d > 1 and mode == _OFF_BY_A_HALF):
            if dims and dims[-1][2] == same:
                dims[-1] = (dims[-1][0] * n, dims[-1][1] * n, same)
            elif n != 1:
                dims.append((n, n, same))
        else:
            scale, in_offset, out_offset = _coordinates(mode, n, out, factor)
            dims.append((n, out, (scale, in_offset - added, out_offset)))
    if region is not None or len(dims) > _MOST_DIMENSIONS:
        if any_open((*x.shape, *sizes)):
            return [_of_open_sizes(builder, node, x, sizes, factors)]
        kernel = _weighted if linear else _gathered
        return [kernel(builder, node, x, sizes, scales, region)]
    y = builder.new([sizes[d] for d in order], x.dtype)
    dims = dims or [(1, 1, same)]
    flat = builder.reshape(x.transpose(order), [d[0] for d in dims])
    y_view = builder.reshape(y, [d[1] for d in dims])
    attributes: dict[str, Any] = dict(
        interpolation_mode=InterpolationMode.LINEAR if linear
        else InterpolationMode.NEAREST_NEIGHBOR,
        rounding_direction=AxisDirection.INCREASING if rounding == UP else AxisDirection.DECREASING,
        scales=tuple(d[2][0] for d in dims), input_pixel_offsets=tuple(d[2][1] for d in dims),
        output_pixel_offsets=tuple(d[2][2] for d in dims))
    builder.emit("RESAMPLE2", {"input_tensor": seen(flat), "output_tensor": seen(y_view)},
                 **attributes)
    return [y.transpose([order.index(d) for d in range(len(order))])]


def _region(node: OnnxNode, inputs: Inputs, x: Array) -> np.ndarray | None:
    """A crop's first and last point in each dimension, as parts of its size."""
    if _transformation(node) != "tf_crop_and_resize":
        return None
    points, axes = host(inputs, 1), _axes(node, len(x.shape))
    if points is None or points.size != 2 * len(axes):
        raise ValidationError(f"expected a region of {2 * len(axes)} numbers")
    region = np.tile([[0.0], [1.0]], len(x.shape))
    region[:, axes] = points.astype(float).reshape(2, len(axes))
    return region


def _changed(
    x: Array, sizes: list[int], factors: Sequence[_Factor], region: np.ndarray | None
) -> list[int]:
    """The dimensions that change, those first that leave the fewest elements. Open sizes do not
    tell these."""
    order = range(len(sizes)) if any_open((*sizes, *x.shape)) else sorted(
        range(len(sizes)), key=lambda d: sizes[d] / x.shape[d])
    return [d for d in order
            if sizes[d] != x.shape[d] or factors[d] != 1
            or (region is not None and tuple(region[:, d]) != (0, 1))]


def _gathered(
    builder: Builder, node: OnnxNode, x: Array, sizes: list[int], factors: list[float],
    region: np.ndarray | None,
) -> Array:
    """The nearest elements, along one dimension after another."""
    added, rounding = _rounding(node)
    inside: Any = np.ones((1,) * len(sizes), bool)
    for d in _changed(x, sizes, factors, region):
        n = x.shape[d]
        line = _line(node, n, sizes[d], factors[d], region, d)
        inside = inside & _within(line, n, sizes, d, region)
        indices = builder.constant(
            line.moved(Fraction(added)).rounded(rounding).floors(sizes[d], n))
        (x,) = gather(builder, replace(node, attributes={"axis": d}), [x, indices])
    if not inside.all():
        outside = np.array(node.attributes.get("extrapolation_value", 0.0)).astype(x.dtype)
        x = emit_elementwise(builder, "ELEMENT_WISE_IF", [
            builder.constant(inside), x, builder.constant(outside)], x.dtype, {})
    return x


def _weighted(
    builder: Builder, node: OnnxNode, x: Array, sizes: list[int], factors: list[float],
    region: np.ndarray | None,
) -> Array:
    """A product along each dimension that changes."""
    dtype = x.dtype
    x = converted(builder, x, _FLOAT)
    inside: Any = np.ones((1,) * len(sizes), bool)
    for d in _changed(x, sizes, factors, region):
        line = _line(node, x.shape[d], sizes[d], factors[d], region, d)
        within = _within(line, x.shape[d], sizes, d, region)
        matrix = _matrix(node, line.places(sizes[d]), x.shape[d], factors[d])
        matrix[~within.reshape(-1)] = 0
        inside = inside & within
        before, after = x.shape[:d], x.shape[d + 1 :]
        weights = matrix.astype(_FLOAT)
        if product(after) == 1:
            rows = builder.reshape(x, (product(before), x.shape[d]))
            weighted = product_of(builder, rows, builder.constant(np.ascontiguousarray(weights.T)))
        else:
            planes = builder.reshape(x, (product(before), x.shape[d], product(after)))
            weighted = product_of(builder, builder.constant(weights), planes)
        x = builder.reshape(weighted, (*before, sizes[d], *after))
    outside = float(node.attributes.get("extrapolation_value", 0.0))
    if outside and not inside.all():
        added = builder.constant(np.where(inside, 0.0, outside).astype(_FLOAT))
        x = emit_elementwise(builder, "ELEMENT_WISE_ADD", [x, added], _FLOAT, {})
    if dtype.kind != "f":
        x = emit_elementwise(builder, "ELEMENT_WISE_ROUND", [x], _FLOAT, dict(rounding_mode=0))
    return converted(builder, x, dtype)


def _line(
    node: OnnxNode, size: int, out: int, factor: float, region: np.ndarray | None, d: int
) -> Affine:
    """The input's coordinates of the outputs of dimension ``d``."""
    if region is None:
        return Affine.of_scale(
            size, out, *_coordinates(_transformation(node), size, out, factor))
    first, last = (ratio(float(v)) * (size - 1) for v in region[:, d])
    if out > 1:
        return Affine.through(first, (last - first) / (out - 1))
    return Affine.through((first + last) / 2, Fraction(1))


def _within(
    line: Affine, size: int, sizes: list[int], d: int, region: np.ndarray | None
) -> np.ndarray:
    """Which outputs along dimension ``d`` of ``sizes`` lie inside of the input: of crops."""
    places = line.places(sizes[d])
    within = (places >= 0) & (places <= size - 1) if region is not None else np.ones(
        sizes[d], bool)
    return within.reshape([-1 if e == d else 1 for e in range(len(sizes))])


def _matrix(node: OnnxNode, points: np.ndarray, size: int, factor: float) -> np.ndarray:
    """The weights of ``size`` elements at each of the points, as onnx's reference defines them."""
    cubic = node.attributes.get("mode") == "cubic"
    excludes = node.attributes.get("exclude_outside", 0)
    matrix = np.zeros((len(points), size))
    rows = np.arange(len(points))
    smooths = node.attributes.get("antialias", 0)
    narrow = min(factor, 1.0) if smooths else 1.0
    reach = math.ceil((2 if cubic else 1) / narrow)
    first = np.floor(points).astype(int)
    at = first[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(at - points[:, None]) * narrow
    weights = (_cubic(distance, float(node.attributes.get("cubic_coeff_a", -0.75)))
               if cubic else np.maximum(1 - distance, 0))
    if excludes:
        weights[(at < 0) | (at >= size)] = 0
    if smooths or excludes:
        weights /= weights.sum(1, keepdims=True)
    np.add.at(matrix, (rows[:, None], np.clip(at, 0, size - 1)), weights)
    return matrix


def _of_open_sizes(
    builder: Builder, node: OnnxNode, x: Array, sizes: list[int], factors: Sequence[_Factor]
) -> Array:
    """The same where places and weights follow from open sizes: the device computes them. Elements
    are gathered along one dimension after another, and added up."""
    dtype = x.dtype
    weighs = node.attributes.get("mode", "nearest") != "nearest"
    if weighs:
        x = converted(builder, x, _FLOAT)
    for d in _changed(x, sizes, factors, None):
        taps = _Taps(builder, node, x.shape[d], sizes[d], factors[d])
        along = replace(node, attributes={"axis": d})
        total: Array | None = None
        for at, weight in taps.indices():
            (y,) = gather(builder, along, [x, at])
            if weight is not None:
                column = builder.reshape(weight, (sizes[d], *(1,) * (len(sizes) - 1 - d)))
                y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [y, column], _FLOAT, {})
            total = y if total is None else emit_elementwise(
                builder, "ELEMENT_WISE_ADD", [total, y], _FLOAT, {})
        assert total is not None
        x = total
    if weighs and dtype.kind != "f":
        x = emit_elementwise(builder, "ELEMENT_WISE_ROUND", [x], _FLOAT, dict(rounding_mode=0))
    return converted(builder, x, dtype)


class _Taps:
    """The elements that outputs along a dimension are made of, computed on the device."""

    def __init__(
        self, builder: Builder, node: OnnxNode, size: int, out: int, factor: _Factor
    ) -> None:
        self._builder, self._node, self._size, self._out = builder, node, size, out
        self._factor = factor
        self._weighs = node.attributes.get("mode", "nearest") != "nearest"
        step, first, divisor = self._line()
        if not self._weighs:
            added, rounding = _rounding(node)
            step, divisor = 2 * step, 2 * divisor
            first = 2 * first + (-divisor // 2 if added < 0 else divisor // 2 if added else 0)
            first += divisor - 1 if rounding == UP else 0
        before = 1 if is_open(first) else max(-(first // divisor), 0)
        first += before * divisor
        if first < 0 or step * out + first >= _MOST_INDEX:
            raise TypeError(_OF_SIZES)
        places = self._of("ADD", self._of("MULTIPLY", builder.counted(out, _INDEX), step), first)
        floors = self._of("DIVIDE", places, divisor)
        self._floors = self._of("SUBTRACT", floors, before)
        self._rests = self._of("SUBTRACT", places, self._of("MULTIPLY", floors, divisor))
        self._divisor = divisor

    def _line(self) -> Affine:
        """As fractions of whole numbers, which may be open."""
        node, size, out, factor = self._node, self._size, self._out, self._factor
        mode = _transformation(node)
        if not isinstance(factor, _Ratio):
            if mode not in _OF_ENDS:
                return Affine.of_scale(size, out, *_coordinates(mode, size, out, factor))
            exact = ratio(factor)
            top, bottom = exact.numerator * size, exact.denominator  # the resized length
            if mode == "half_pixel_symmetric":
                return Affine(2 * bottom, bottom - bottom * out + exact.numerator * (size - 1),
                              2 * exact.numerator)
        else:
            top, bottom = out, 1
        if mode == "align_corners":
            return Affine(bottom * (size - 1), 0, top - bottom) if out > 1 and size > 1 else Affine(
                0, 0, 1)
        if mode == "asymmetric":
            return Affine(bottom * size, 0, top)
        if mode == "pytorch_half_pixel" and out == 1:
            return Affine(0, 0, 1)
        moved = 0 if mode == _OFF_BY_A_HALF else top
        return Affine(2 * bottom * size, bottom * size - moved, 2 * top)

    def indices(self) -> list[tuple[Array, Array | None]]:
        """Of each tap: elements by output, and what they weigh."""
        builder, last = self._builder, self._size - 1
        if not self._weighs:
            return [(self._within(self._floors, last), None)]
        read = self._node.attributes.get
        cubic, smooths = read("mode") == "cubic", read("antialias", 0)
        reach, narrow = 2 if cubic else 1, self._narrow() if smooths else None
        if narrow is not None:
            top, bottom = narrow
            exact = -(-reach * bottom // top)
            # What lies farther away weighs 0. So a plan serves scales that are about as small.
            while reach < exact:
                reach *= 2
                if 2 * reach > _MOST_TAPS:
                    raise TypeError(_OF_SIZES)
        count = 2 * reach
        offsets = builder.constant(np.arange(1 - reach, reach + 1, dtype=_INDEX))
        # An output's taps lie side by side: so each tap begins at a place that no size changes.
        at = self._of("ADD", offsets, builder.reshape(self._floors, (self._out, 1)))
        inside = self._within(at, last)
        rests = self._real("DIVIDE", self._float(builder.reshape(self._rests, (self._out, 1))),
                           self._float(self._number(self._divisor)))
        distances = self._real("ABS", self._real("SUBTRACT", self._float(offsets), rests))
        if narrow is not None:
            times, by = (self._float(self._number(n)) for n in narrow)
            distances = self._real("DIVIDE", self._real("MULTIPLY", distances, times), by)
        weights = self._kernel(distances, cubic)
        excludes = read("exclude_outside", 0)
        if excludes:
            same = emit_elementwise(
                builder, "ELEMENT_WISE_LOGICAL_EQUALS", [at, inside], np.dtype(bool), {})
            weights = self._real("MULTIPLY", weights, self._float(same))
        if smooths or excludes:
            total = _tap(weights, 0)
            for i in range(1, count):
                total = self._real("ADD", total, _tap(weights, i))
            weights = self._real("DIVIDE", weights, builder.reshape(total, (self._out, 1)))
        return [(_tap(inside, i), _tap(weights, i)) for i in range(count)]

    def _narrow(self) -> tuple[int, int] | None:
        """The scale as a fraction, where it is below 1."""
        if isinstance(self._factor, _Ratio):
            out, size = self._factor
            return (out, size) if out < size else None
        exact = ratio(self._factor)
        return (exact.numerator, exact.denominator) if exact < 1 else None

    def _kernel(self, x: Array, cubic: bool) -> Array:
        if not cubic:
            return self._real("CLIP", self._scaled(x, -1, 1), min=0.0, max=1.0)
        a = float(self._node.attributes.get("cubic_coeff_a", -0.75))
        far, near = self._scaled(x, a, -5 * a), self._scaled(x, a + 2, -(a + 3))
        far = self._scaled(self._real("MULTIPLY", far, x), 1, 8 * a)
        far = self._scaled(self._real("MULTIPLY", far, x), 1, -4 * a)
        near = self._scaled(self._real("MULTIPLY", self._real("MULTIPLY", near, x), x), 1, 1)
        for limit, other in ((2.0, None), (1.0, near)):
            bound = self._builder.constant(np.array(limit, _FLOAT))
            beyond = emit_elementwise(self._builder, "ELEMENT_WISE_LOGICAL_GREATER_THAN",
                                      [x, bound], np.dtype(bool), {})
            if other is None:
                other, far = far, self._builder.constant(np.array(0, _FLOAT))
            far = emit_elementwise(self._builder, "ELEMENT_WISE_IF", [beyond, far, other], _FLOAT,
                                   {})
        return far

    def _within(self, at: Array, last: int) -> Array:
        zero = self._builder.constant(np.array(0, _INDEX))
        at = emit_elementwise(self._builder, "ELEMENT_WISE_MAX", [at, zero], _INDEX, {})
        return self._of("MIN", at, last)

    def _number(self, n: int) -> Array:
        return self._builder.numbers(numbers([n]), _INDEX)

    def _of(self, operator: str, x: Array, y: Array | int) -> Array:
        return emit_elementwise(self._builder, "ELEMENT_WISE_" + operator, [
            x, y if isinstance(y, Array) else self._number(y)], _INDEX, {})

    def _float(self, x: Array) -> Array:
        return converted(self._builder, x, _FLOAT)

    def _real(self, operator: str, *arrays: Array, **attributes: float) -> Array:
        return emit_elementwise(
            self._builder, "ELEMENT_WISE_" + operator, arrays, _FLOAT, attributes)

    def _scaled(self, x: Array, scale: float, bias: float) -> Array:
        return emit_elementwise(self._builder, "ELEMENT_WISE_IDENTITY", [x], _FLOAT,
                                {"scale_bias": ScaleBias(scale, bias)})


def _tap(x: Array, i: int) -> Array:
    """Column ``i`` of a matrix."""
    return x.view(x.shape[:1], x.strides[:1], i * x.strides[1])


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys's kernel, which is 0 from 2 on."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


ROWS: tuple[Mapping, ...] = (
    Mapping("Upsample", (1, 7, 9, 10), "RESAMPLE2", resize,
        fields=("InputTensor", None),
        attributes=("height_scale", "mode", "scales", "width_scale"), host=(1,),
        refuses=refusal),
    Mapping("Resize", (10,), "RESAMPLE2", resize, fields=("InputTensor", None),
        attributes=("mode",), host=(1,), refuses=refusal),
    Mapping("Resize", (11, 13, 18, 19), "RESAMPLE2", resize,
        fields=("InputTensor", None),
        attributes=("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a",
                    "exclude_outside", "extrapolation_value", "keep_aspect_ratio_policy", "mode",
                    "nearest_mode"),
        host=(1, 2, 3), refuses=refusal),
)
