"""Lowerings of pooling and regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import InterpolationMode, ReduceFunction, ScaleBias, Size2d
from ...errors import UnsupportedError, ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...graph.recorded import Allowed
from ...layout import channels_last_strides, pad_left, product
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, Seen, emit_elementwise, expect, given, optional, seen
from ..row import MICROSOFT, Mapping
from .movement import joined, part

_COUNTS_WHAT_IT_HAS = 19
"""The version from which AveragePool divides by the elements of a window that is cut off, before by
the whole window. It is the same where the padding does not count, and to other operators."""


def _unsigned(x: Array) -> Array:
    """Indices as unsigned numbers for DirectML. They are never negative."""
    return replace(x, dtype=np.dtype("uint64")) if x.dtype == np.int64 else x


def _spatial(x: Array, most: int = 5) -> Array:
    """An array with a height of 1 if it has only a width."""
    if not 3 <= len(x.shape) <= most:
        raise UnsupportedError(f"pooling of {len(x.shape)} dimensions")
    if len(x.shape) > 3:
        return x
    return x.view((*x.shape[:2], 1, x.shape[2]), (*x.strides[:2], 0, x.strides[2]))


def _window(node: OnnxNode, spatial: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
    """The output's spatial sizes and DirectML's attributes, including dilations."""
    rank = len(spatial)
    window = list(node.attributes["kernel_shape"])
    strides = list(node.attributes.get("strides", [1] * rank))
    dilations = list(node.attributes.get("dilations", [1] * rank))
    pads = list(node.attributes.get("pads", [0] * (2 * rank)))
    auto = node.attributes.get("auto_pad", "NOTSET")
    if len(window) != rank or len(strides) != rank or len(dilations) != rank or min(strides) < 1:
        raise ValidationError(f"expected {rank} sizes of the window, strides and dilations")
    if min(pads) < 0:
        raise UnsupportedError("negative pads")
    sizes = []
    for i, n in enumerate(spatial):
        reach = (window[i] - 1) * dilations[i] + 1
        if auto == "VALID":
            pads[i] = pads[rank + i] = 0
        elif auto.startswith("SAME"):
            total = max((-(-n // strides[i]) - 1) * strides[i] + reach - n, 0)
            less = total // 2
            pads[i], pads[rank + i] = ((less, total - less) if auto == "SAME_UPPER"
                                       else (total - less, less))
        room = n + pads[i] + pads[rank + i] - reach
        if -strides[i] < room < 0:  # ONNX's quotient is rounded towards 0: there is one window
            if node.since < _COUNTS_WHAT_IT_HAS:
                pads[rank + i] -= room
            else:
                window[i] = (reach + room - 1) // dilations[i] + 1
            room = 0
        size = room // strides[i] + 1
        if node.attributes.get("ceil_mode", 0) and room % strides[i]:
            # A window that begins in the end padding is left out.
            size += (size * strides[i] < n + pads[i])
        sizes.append(size)
    extra = 1 if rank == 1 else 0  # the height

    def wide(values: Sequence[int], fill: int) -> tuple[int, ...]:
        return pad_left(values, rank + extra, fill)

    return sizes, dict(
        window_size=wide(window, 1), strides=wide(strides, 1), dilations=wide(dilations, 1),
        start_padding=wide(pads[:rank], 0), end_padding=wide(pads[rank:], 0))


def pooling(operator: str, dilated: str) -> Build:
    """AveragePool, LpPool and MaxPool; ``dilated`` is the operator with dilations and indices."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        planes = _spatial(x)
        sizes, attributes = _window(node, x.shape[2:])
        y = builder.new((*x.shape[:2], *sizes), x.dtype)
        if x.is_channels_last:
            y = y.view(y.shape, channels_last_strides(y.shape))
        results = [y]
        if len(node.outputs) > 1 and node.outputs[1] is not None:
            results.append(builder.new(y.shape, "int64"))
        if y.storage is None:
            return results
        tensors: dict[str, Seen | None] = {
            "input_tensor": seen(planes), "output_tensor": seen(_spatial(y))}
        name = operator
        if len(results) > 1 or any(n != 1 for n in attributes["dilations"]):
            name = dilated
            if operator == "MAX_POOLING":
                tensors["output_indices_tensor"] = (
                    seen(_spatial(_unsigned(results[1]))) if len(results) > 1 else None)
        else:
            del attributes["dilations"]
        builder.emit(name, tensors, **attributes, **_own(operator, node))
        if len(results) > 1 and node.attributes.get("storage_order", 0):
            results[1] = _by_columns(builder, results[1], x.shape[2:])
        return results

    return build


def _by_columns(builder: Builder, indices: Array, sizes: Sequence[int]) -> Array:
    """Indices that count the first spatial dimension fastest, of those that count the last so."""

    def of(operator: str, x: Array, y: Array | int) -> Array:
        if isinstance(y, int):
            y = builder.constant(np.array(y, np.int64))
        return emit_elementwise(builder, "ELEMENT_WISE_" + operator, [x, y], x.dtype, {})

    rest = of("MODULUS_FLOOR", indices, product(sizes))
    result = of("SUBTRACT", indices, rest)
    for d in reversed(range(len(sizes))):
        place = of("MODULUS_FLOOR", rest, sizes[d])
        result = of("ADD", result, of("MULTIPLY", place, product(sizes[:d])))
        rest = of("DIVIDE", rest, sizes[d])
    return result


def _own(operator: str, node: OnnxNode) -> dict[str, Any]:
    if operator == "LP_POOLING":
        return {"p": int(node.attributes.get("p", 2))}
    if operator == "MAX_POOLING":
        return {}
    return {"include_padding": node.attributes.get("count_include_pad", 0)}


def _whole(x: Array) -> dict[str, Any]:
    """The attributes of a window over all elements."""
    rank = len(x.shape) - 2
    return dict(window_size=x.shape[2:], strides=(1,) * rank, start_padding=(0,) * rank,
                end_padding=(0,) * rank)


def global_pooling(operator: str) -> Build:
    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        y = builder.new((*x.shape[:2], *(1 for _ in x.shape[2:])), x.dtype)
        if y.storage is not None:
            flat = builder.reshape(x, (*x.shape[:2], 1, product(x.shape[2:])))
            small = builder.reshape(y, (*x.shape[:2], 1, 1))
            builder.emit(operator, {"input_tensor": seen(flat), "output_tensor": seen(small)},
                         **_whole(flat), **_own(operator, node))
        return [y]

    return build


def quantized_average(whole: bool) -> Build:
    """com.microsoft QLinearAveragePool and QLinearGlobalAveragePool."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        last = node.attributes.get("channels_last", 0)
        rank = len(x.shape)
        if last:
            x = x.transpose([0, rank - 1, *range(1, rank - 1)])
        sizes, attributes = (
            ([1] * (rank - 2), _whole(_spatial(x))) if whole else _window(node, x.shape[2:]))
        attributes.setdefault("dilations", (1,) * len(attributes["strides"]))
        shape = (*x.shape[:2], *sizes)
        order = [0, *range(2, rank), 1] if last else list(range(rank))
        y = builder.new([shape[d] for d in order], x.dtype)
        if y.storage is None:
            return [y]
        y_last = y.transpose([0, rank - 1, *range(1, rank - 1)]) if last else y
        tensors: dict[str, Seen | None] = {
            "input_tensor": seen(_spatial(x)), "output_tensor": seen(_spatial(y_last))}
        for i, field in enumerate(("input_scale_tensor", "input_zero_point_tensor",
                                   "output_scale_tensor", "output_zero_point_tensor"), 1):
            p = optional(inputs, i)
            tensors[field] = None if p is None else (p, (1,), (1,))
        builder.emit("QUANTIZED_LINEAR_AVERAGE_POOLING", tensors, **attributes,
                     **_own("AVERAGE_POOLING", node))
        return [y]

    return build


def max_unpooling(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, indices = builder.pack(given(inputs, 0)), builder.pack(given(inputs, 1))
    rank = len(x.shape) - 2
    window = node.attributes["kernel_shape"]
    strides = node.attributes.get("strides", [1] * rank)
    pads = node.attributes.get("pads", [0] * (2 * rank))
    y = builder.new((*x.shape[:2], *[
        (x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[rank + i] + window[i]
        for i in range(rank)]), x.dtype)
    expect(builder, node, given(inputs, 1), Allowed("indices", 0, y.size))
    if y.storage is not None:
        # Indices count elements, so the dimensions do not matter.
        flat, places, y_flat = (builder.reshape(t, (1, 1, 1, t.size))
                                for t in (x, _unsigned(indices), y))
        builder.emit("MAX_UNPOOLING", {"input_tensor": seen(flat), "indices_tensor": seen(places),
                                       "output_tensor": seen(y_flat)})
    return [y]


def roi_pooling(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, rois = given(inputs, 0), given(inputs, 1)
    height, width = node.attributes["pooled_shape"]
    y = builder.new((rois.shape[0], x.shape[1], height, width), x.dtype)
    if y.storage is not None:
        builder.emit(
            "ROI_POOLING",
            {"input_tensor": seen(x), "roi_tensor": (rois, (1, 1, *rois.shape),
                                                      (0, 0, *rois.strides)),
             "output_tensor": seen(y)},
            spatial_scale=float(node.attributes.get("spatial_scale", 1.0)),
            pooled_size=Size2d(width, height))
    return [y]


def roi_align(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, rois, batch = (given(inputs, i) for i in range(3))
    size = (node.attributes.get("output_height", 1), node.attributes.get("output_width", 1))
    expect(builder, node, batch, Allowed("batch indices", 0, x.shape[0]))
    y = builder.new((rois.shape[0], x.shape[1], *size), x.dtype)
    if y.storage is None:
        return [y]
    mode = node.attributes.get("coordinate_transformation_mode",
                 "output_half_pixel" if node.since < 16 else "half_pixel")
    ratio = node.attributes.get("sampling_ratio", 0)
    scale = float(node.attributes.get("spatial_scale", 1.0))
    if mode == "output_half_pixel":
        rois = _of_whole_elements(builder, rois, scale)
    builder.emit(
        "ROI_ALIGN1",
        {"input_tensor": seen(x), "roi_tensor": seen(rois),
         "batch_indices_tensor": seen(_unsigned(batch)), "output_tensor": seen(y)},
        reduction_function=ReduceFunction.AVERAGE, interpolation_mode=InterpolationMode.LINEAR,
        spatial_scale_x=scale, spatial_scale_y=scale,
        input_pixel_offset=0.5 if mode == "half_pixel" else 0.0, output_pixel_offset=-0.5,
        out_of_bounds_input_value=0.0, minimum_samples_per_output=ratio or 1,
        maximum_samples_per_output=ratio or 2**32 - 1, align_regions_to_corners=0)
    return [y if ratio or mode == "output_half_pixel" else _without_empty(builder, y, rois)]


def _without_empty(builder: Builder, y: Array, rois: Array) -> Array:
    """0 for regions of no area, in which ONNX takes no sample, and DirectML at least one."""
    corners = [part(rois, (0, at), (rois.shape[0], 1), (1, 1)) for at in range(4)]
    wide, high = (emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_LESS_THAN", [a, b], BOOL, {})
                  for a, b in (corners[::2], corners[1::2]))
    both = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_AND", [wide, high], BOOL, {})
    zero = builder.constant(np.zeros((), y.dtype))
    shown = builder.reshape(both, (rois.shape[0], 1, 1, 1))
    return emit_elementwise(builder, "ELEMENT_WISE_IF", [shown, y, zero], y.dtype, {})


def _of_whole_elements(builder: Builder, rois: Array, scale: float) -> Array:
    """Regions, {x1, y1, x2, y2} each, that span at least one element of the scaled image."""
    begin, end = (part(rois, (0, at), (rois.shape[0], 2), (1, 1)) for at in (0, 2))
    least = emit_elementwise(builder, "ELEMENT_WISE_IDENTITY", [begin], rois.dtype,
                             {"scale_bias": ScaleBias(1.0, 1 / scale)})
    end = emit_elementwise(builder, "ELEMENT_WISE_MAX", [least, end], rois.dtype, {})
    return joined(builder, [begin, end], 1)


def roi_align_refused(node: OnnxNode) -> str | None:
    if node.attributes.get("mode", "avg") != "avg":
        return "the maximum of weighted elements: DirectML's is of interpolated samples"
    return None


_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")

ROWS: tuple[Mapping, ...] = (
    Mapping("AveragePool", (1, 7, 10, 11, 19, 22), "AVERAGE_POOLING",
        pooling("AVERAGE_POOLING", "AVERAGE_POOLING1"),
        attributes=(*_WINDOW, "count_include_pad")),
    Mapping("LpPool", (1, 2, 11, 18, 22), "LP_POOLING",
        pooling("LP_POOLING", "LP_POOLING1"), attributes=(*_WINDOW, "p")),
    Mapping("MaxPool", (1, 8, 10, 11, 12, 22), "MAX_POOLING",
        pooling("MAX_POOLING", "MAX_POOLING2"),
        attributes=(*_WINDOW, "storage_order")),
    *(Mapping(f"Global{op}Pool", since, operator, global_pooling(operator),
          attributes=("p",) if op == "Lp" else ())
      for op, since, operator in (
          ("Average", (1, 22), "AVERAGE_POOLING"), ("Max", (1, 22), "MAX_POOLING"),
          ("Lp", (1, 2, 22), "LP_POOLING"))),
    Mapping("QLinearAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        quantized_average(False), MICROSOFT,
        attributes=(*_WINDOW, "count_include_pad", "channels_last")),
    Mapping("QLinearGlobalAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        quantized_average(True), MICROSOFT, attributes=("channels_last",)),
    Mapping("MaxUnpool", (9, 11, 22), "MAX_UNPOOLING", max_unpooling,
        fields=("InputTensor", None), attributes=("kernel_shape", "pads", "strides"),
        refuses=lambda node: "output_shape" if node.input(2) else None),
    Mapping("MaxRoiPool", (1, 22), "ROI_POOLING", roi_pooling,
        attributes=("pooled_shape", "spatial_scale")),
    Mapping("RoiAlign", (10, 16, 22), "ROI_ALIGN1", roi_align,
        fields=("InputTensor", "ROITensor", None),
        attributes=("coordinate_transformation_mode", "mode", "output_height", "output_width",
                    "sampling_ratio", "spatial_scale"), refuses=roi_align_refused),
)
