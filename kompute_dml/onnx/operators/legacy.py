"""Operators and versions of operators that ONNX has dropped since."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...attributes import ScaleBias
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from .. import lowerings
from ..graph import DTYPES, OnnxNode, OnnxValue
from ..lowerings import Build, Inputs, dimension, emit_elementwise, given
from ..row import COPY, Mapping, elementwise
from . import movement
from .elementwise import truth
from .views import reshape

_NAMES = {dtype.name.upper(): number for number, dtype in DTYPES.items()} | {
    "FLOAT": 1, "DOUBLE": 11}
"""TensorProto.DataType by name, as Cast spelled it before version 6."""


def broadcast(build: Build) -> Build:
    """Before version 7 B is broadcast only where ``broadcast`` is set, from ``axis`` on."""

    def built(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        a, b = given(inputs, 0), given(inputs, 1)
        if not node.attributes.get("broadcast", 0):
            if a.shape != b.shape:
                raise ValidationError(f"expected equal sizes, but got {list(a.shape)} and "
                                      f"{list(b.shape)}")
        elif "axis" in node.attributes:
            after = len(a.shape) - dimension(node.attributes["axis"], len(a.shape)) - len(b.shape)
            b = builder.reshape(b, (*b.shape, *(1,) * max(after, 0)))
        return list(build(builder, node, [a, b]))

    return built


def slopes(build: Build) -> Build:
    """PRelu before version 7: a slope for each of the second dimension's indices."""

    def built(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x, slope = given(inputs, 0), given(inputs, 1)
        if slope.size > 1:
            slope = builder.reshape(slope, (slope.size, *(1,) * (len(x.shape) - 2)))
        return list(build(builder, node, [x, slope]))

    return built


def renamed_cast(node: OnnxNode) -> OnnxNode:
    """Cast before version 6 names its type."""
    return replace(node, attributes={"to": _NAMES.get(str(node.attributes.get("to")).upper(), 0)})


def cast_refusal(node: OnnxNode) -> str | None:
    return None if renamed_cast(node).attributes["to"] else "a cast to this data type"


def cast(to_bool: Build, to_other: Build) -> Build:
    def built(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        node = renamed_cast(node)
        dtype = DTYPES[node.attributes["to"]]
        out = OnnxValue("y", dtype)
        build = to_bool if dtype == BOOL else to_other
        return list(build(builder, replace(node, outputs=(out,)), inputs))

    return built


def reshape_attribute(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Reshape before version 5: the sizes are an attribute."""
    x, sizes = given(inputs, 0), np.array(node.attributes.get("shape", ()), np.int64)
    return reshape(builder, node, [x, Array(sizes.dtype, sizes.shape, (1,), None, sizes)])


def image_scaler(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """A factor for all, and a sum for each channel."""
    x, read = given(inputs, 0), node.attributes.get
    line = ScaleBias(float(read("scale", 1.0)), 0.0)
    scaled = emit_elementwise(
        builder, "ELEMENT_WISE_IDENTITY", [x], x.dtype, {"scale_bias": line})
    bias = np.array(read("bias", [0.0] * x.shape[1]), x.dtype).reshape(-1, 1, 1)
    return [emit_elementwise(
        builder, "ELEMENT_WISE_ADD", [scaled, builder.constant(bias)], x.dtype, {})]


def crop(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """``border`` is left, top, right and bottom; ``scale`` the height and width that are left."""
    x, border = given(inputs, 0), node.attributes.get("border", ())
    if len(x.shape) != 4 or len(border) != 4:
        raise ValidationError("expected four dimensions, and a border of four numbers")
    left, top, right, bottom = border
    height, width = node.attributes.get(
        "scale", (x.shape[2] - top - bottom, x.shape[3] - left - right))
    if min(height, width, *border) < 0 or top + height > x.shape[2] or left + width > x.shape[3]:
        raise ValidationError(f"border {list(border)} leaves nothing of sizes {list(x.shape)}")
    return [movement.part(x, (0, 0, top, left), (*x.shape[:2], height, width), (1, 1, 1, 1))]


ROWS: tuple[Mapping, ...] = (
    Mapping("ImageScaler", (1,), "ELEMENT_WISE_ADD", image_scaler,
        attributes=("bias", "scale")),
    Mapping("Crop", (1,), COPY, crop, attributes=("border", "scale")),
    *[replace(row, since=since, build=broadcast(row.build),
              attributes=("axis", "broadcast"))
      for op, since, operator in (
          *((op, (1, 6), f"ELEMENT_WISE_{name}") for op, name in (
              ("Add", "ADD"), ("Sub", "SUBTRACT"), ("Mul", "MULTIPLY"), ("Div", "DIVIDE"))),
          *((op, (1,), f"ELEMENT_WISE_LOGICAL_{name}") for op, name in (
              ("And", "AND"), ("Or", "OR"), ("Xor", "XOR"), ("Equal", "EQUALS"),
              ("Greater", "GREATER_THAN"), ("Less", "LESS_THAN"))),
          ("Pow", (1,), "ELEMENT_WISE_POW"))
      for row in (elementwise(op, since, operator),)],
    Mapping("PRelu", (1, 6), "ACTIVATION_PARAMETERIZED_RELU", slopes(
        lowerings.elementwise("ACTIVATION_PARAMETERIZED_RELU"))),
    Mapping("Cast", (1,), "CAST", cast(truth, lowerings.elementwise("CAST")),
        attributes=("to",), refuses=cast_refusal),
    Mapping("Reshape", (1,), COPY, reshape_attribute, attributes=("shape",)),
)
