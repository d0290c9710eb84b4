"""Means of whole planes of floats: global average pooling on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..dtypes import DataType
from ..layout import Ints, coalesce, power_of_two, product
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.plan import UNUSED
from .base import OperatorDesc

if TYPE_CHECKING:
    from ..desc import TensorDesc

SHADER = "pooling_means"
_DEEP = (4, 7, 8)
"""Vectors that an invocation reads at once. Each is a pipeline, so there are few. The planes of
pictures of 224 pixels and their halves are multiples of seven."""
_LANES = 8
"""The most vectors of channels of a workgroup."""
_SIZES = {"first": 64, "last": 256}
"""Invocations of a workgroup."""


class _WholePlanes(NamedTuple):
    layout: str
    vectors: int
    """Planes of an image, or vectors of channels."""
    pixels: int
    """Vectors of a plane, or pixels."""
    strides: Ints
    """From image, plane or vector of channels, and pixel to the next, in vectors."""


def _planes(x: TensorDesc) -> _WholePlanes | None:
    """How the shader sees an image, if it consists of whole vectors."""
    each = 16 // x.data_type.itemsize
    channels = x.sizes[1]
    sizes, (steps,) = coalesce(x.sizes[2:], x.strides[2:])
    if len(sizes) > 1 or not x.is_aligned:
        return None
    (count,), (step,) = sizes, steps
    image, channel = (s if n > 1 else 0 for n, s in zip(x.sizes, x.strides[:2]))
    if step == 1 and not any(n % each for n in (count, image, channel)):
        return _WholePlanes("first", channels, count // each, (image // each, channel // each, 1))
    if channel == 1 and not any(n % each for n in (channels, image, step)):
        return _WholePlanes("last", channels // each, count, (image // each, 1, step // each))
    return None


def declined(d: OperatorDesc) -> str | None:
    """Why the shader cannot average whole planes. None if it can."""
    x = d.input_tensor
    if x.data_type not in (DataType.FLOAT16, DataType.FLOAT32):
        return "elements are no floats"
    planes = _planes(x)
    if planes is None:
        return "planes do not consist of whole vectors"
    least = _SIZES[planes.layout]
    return f"planes of fewer than {least} vectors" if (
        planes.layout == "first" and planes.pixels < least) else None


def lower(p: PlanBuilder, d: OperatorDesc) -> None:
    """Average whole planes."""
    x, y, planes = d.input_tensor, d.output_tensor, _planes(d.input_tensor)
    assert planes is not None
    layout, vectors, pixels, strides = planes
    first = layout == "first"
    lanes = 1 if first else min(power_of_two(vectors), _LANES)
    channels = 1 if first else lanes * 16 // x.data_type.itemsize
    per_image = -(-vectors // lanes)
    groups = x.sizes[0] * per_image
    size, resident = _SIZES[layout], measured.count(p.device, SHADER, f"busy_{layout}")
    at_once = size // lanes
    # In parts, each worth a turn of all invocations.
    parts = max(1, min(resident * p.device.cores // groups, pixels // (at_once * _DEEP[-1] // 2)))
    # All turns of a part read as much.
    reads = -(-pixels // (parts * at_once))
    turns = -(-reads // _DEEP[-1])
    deep = -(-reads // turns)
    part = turns * deep * at_once
    parts = -(-pixels // part)
    totals = arrived = UNUSED
    if parts > 1:
        totals, arrived = p.temporary(4, groups * parts * channels), p.zeroed(4, groups)
    subgroup = p.device.subgroup_size  # whole ones, with whole shares of all lanes
    reduced = "subgroups" if (size % subgroup == 0 and lanes <= subgroup and p.library.find(
        SHADER, layout, "subgroups")) else "tree"
    p.dispatch(
        f"{SHADER}.{layout}.{reduced}", groups * parts, x=p.read("input_tensor"),
        y=p.write("output_tensor"), totals=totals, arrived=arrived,
        push={"groups": groups, "per_image": per_image, "vectors": vectors, "pixels": pixels,
              "parts": parts, "part_pixels": part, "x_strides": strides,
              "y_strides": y.strides[:2], "count": float_bits(product(x.sizes[2:]))},
        spec={"LOCAL_SIZE": size, "TYPE": x.data_type.code, "LANES": lanes,
              "DEEP": next(n for n in _DEEP if n >= deep)})
