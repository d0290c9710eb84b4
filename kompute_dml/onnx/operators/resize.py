"""How Resize and Upsample lower: RESAMPLE, or products with matrices of weights.

DirectML has nearest and linear interpolation of up to four dimensions. Cubic interpolation,
antialiasing and crops are a product with a constant matrix along each resized dimension: row i
holds the weights of the elements that output i is made of. Nearest elements of more dimensions, and
of crops, are gathered along one after another.

Coordinates are exact (lowering/coordinates.py). ONNX Runtime's CPU provider and ONNX's reference
round the scale and each step: they may take the element beside one that lies at a whole coordinate,
or half-way.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...attributes import AxisDirection, InterpolationMode
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import product
from ...lowering.coordinates import DOWN, UP, Line, ratio
from ...sizes import any_open, is_open, whole
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, dimension, emit_elementwise, given, host, seen
from ..row import Mapping
from .gather import gather
from .products import product_of

_FLOAT = np.dtype("float32")
_FLT_MAX = float(np.finfo(np.float32).max)
_MOST_DIMENSIONS = 4
"""Of RESAMPLE2."""
_OFF_BY_A_HALF = "tf_half_pixel_for_nn"
"""The transformation that moves an unchanged dimension of images. ONNX Runtime copies those."""
_OF_SIZES = "what elements are made of depends on the sizes of the image"
"""Why there is no plan for many sizes."""
_NEAREST = {"round_prefer_floor": (-0.5, UP), "round_prefer_ceil": (0.5, DOWN),
            "floor": (0.0, DOWN), "ceil": (0.0, UP)}


def refusal(node: OnnxNode) -> str | None:
    """Why a Resize or Upsample is not served, or None."""
    mode = node.attributes.get("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        return f"mode={mode!r}"
    return None


def _resized(node: OnnxNode, inputs: Inputs, x: Array) -> tuple[list[int], list[float]]:
    """Sizes and scales of all dimensions."""
    rank = len(x.shape)
    if _is_old(node):
        scales: Any = host(inputs, 1) if node.since >= 9 else _scales(node)
        wanted = None
    else:
        scales, wanted = host(inputs, 2), host(inputs, 3)
    axes = _axes(node, rank)
    sizes, factors = list(x.shape), [1.0] * rank
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
                factors[a] = min(ratios) if policy == "not_larger" else max(ratios)
                sizes[a] = math.floor(factors[a] * x.shape[a] + 0.5)
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
    That of an open size is exact there, or the number is taken."""
    exact = Fraction(float(scale))
    if is_open(n) and n * exact.numerator < 1 << 24 and exact.denominator < 1 << 24:
        return n * exact.numerator // exact.denominator
    return math.floor(scale * np.float32(int(n)))


def _quotient(n: int, size: int) -> float:
    """``n / size``. Of open sizes the one must be a multiple of the other, whatever they are.

    Raises TypeError if they are not: the scale would be another one for each size.
    """
    if not is_open(n) and not is_open(size):
        return int(n) / int(size)
    for a, b in ((n, size), (size, n)):
        rest = a % b
        if not is_open(rest) and rest == 0 and not is_open(times := a // b):
            return float(times) if a is n else 1 / times
    raise TypeError(_OF_SIZES)


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
    if mode in ("align_corners", "half_pixel_symmetric") and (is_open(size) or is_open(out)):
        raise TypeError(_OF_SIZES)
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
    if kind == "cubic" or (linear and (region is not None or node.attributes.get("antialias", 0))):
        if any_open((*x.shape, *sizes)):
            raise TypeError(_OF_SIZES)
        return [_weighted(builder, node, x, sizes, factors, region)]
    added, rounding = (0.0, DOWN) if linear else _rounding(node)
    # Unchanged dimensions are merged, because DirectML takes four.
    dims: list[tuple[int, int, tuple[float, float, float]]] = []
    same = (1.0, 0.0, 0.0)
    order = [*range(len(sizes))]
    if len(sizes) > 3 and x.has_channels_inside:
        order.append(order.pop(1))  # in the order of memory
    for d in order:
        n, out, factor = x.shape[d], sizes[d], factors[d]
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
            raise TypeError(_OF_SIZES)
        kernel = _weighted if linear else _gathered
        return [kernel(builder, node, x, sizes, factors, region)]
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
    x: Array, sizes: list[int], factors: list[float], region: np.ndarray | None
) -> list[int]:
    """The dimensions that change, those first that leave the fewest elements."""
    return [d for d in sorted(range(len(sizes)), key=lambda d: sizes[d] / x.shape[d])
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
) -> Line:
    """The input's coordinates of the outputs of dimension ``d``."""
    if region is None:
        return Line.of_scale(
            size, out, *_coordinates(_transformation(node), size, out, factor))
    first, last = (ratio(float(v)) * (size - 1) for v in region[:, d])
    if out > 1:
        return Line.through(first, (last - first) / (out - 1))
    return Line.through((first + last) / 2, Fraction(1))


def _within(
    line: Line, size: int, sizes: list[int], d: int, region: np.ndarray | None
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
