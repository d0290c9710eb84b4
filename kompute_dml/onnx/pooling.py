"""Lowerings of pooling, regions of interest and resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..attributes import AxisDirection, InterpolationMode, ReduceFunction, Size2d
from ..errors import UnsupportedError, ValidationError
from ..graph.array import Array
from ..graph.builder import Builder
from ..layout import channels_last_strides, pad_left, product
from .graph import Node
from .lowerings import Build, Inputs, Seen, dimension, given, host

_FLT_MAX = float(np.finfo(np.float32).max)


def _text(node: Node, name: str, default: str) -> str:
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _seen(x: Array) -> Seen:
    return x, x.shape, x.strides


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


def _window(node: Node, spatial: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
    """The output's spatial sizes and DirectML's attributes, including dilations."""
    rank = len(spatial)
    window = list(node.attributes["kernel_shape"])
    strides = list(node.attributes.get("strides", [1] * rank))
    dilations = list(node.attributes.get("dilations", [1] * rank))
    pads = list(node.attributes.get("pads", [0] * (2 * rank)))
    auto = _text(node, "auto_pad", "NOTSET")
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

    def build(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        seen = _spatial(x)
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
            "input_tensor": _seen(seen), "output_tensor": _seen(_spatial(y))}
        name = operator
        if len(results) > 1 or any(n != 1 for n in attributes["dilations"]):
            name = dilated
            if operator == "MAX_POOLING":
                tensors["output_indices_tensor"] = (
                    _seen(_spatial(_unsigned(results[1]))) if len(results) > 1 else None)
        else:
            del attributes["dilations"]
        builder.emit(name, tensors, **attributes, **_own(operator, node))
        return results

    return build


def _own(operator: str, node: Node) -> dict[str, Any]:
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
    def build(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        y = builder.new((*x.shape[:2], *(1 for _ in x.shape[2:])), x.dtype)
        if y.storage is not None:
            flat = builder.reshape(x, (*x.shape[:2], 1, product(x.shape[2:])))
            small = builder.reshape(y, (*x.shape[:2], 1, 1))
            builder.emit(operator, {"input_tensor": _seen(flat), "output_tensor": _seen(small)},
                         **_whole(flat), **_own(operator, node))
        return [y]

    return build


def quantized_average(whole: bool) -> Build:
    """com.microsoft QLinearAveragePool and QLinearGlobalAveragePool."""

    def build(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
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
        made = y.transpose([0, rank - 1, *range(1, rank - 1)]) if last else y
        tensors: dict[str, Seen | None] = {
            "input_tensor": _seen(_spatial(x)), "output_tensor": _seen(_spatial(made))}
        for i, field in enumerate(("input_scale_tensor", "input_zero_point_tensor",
                                   "output_scale_tensor", "output_zero_point_tensor"), 1):
            p = inputs[i] if i < len(inputs) else None
            tensors[field] = None if p is None else (p, (1,), (1,))
        builder.emit("QUANTIZED_LINEAR_AVERAGE_POOLING", tensors, **attributes,
                     **_own("AVERAGE_POOLING", node))
        return [y]

    return build


def max_unpooling(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, indices = builder.pack(given(inputs, 0)), builder.pack(given(inputs, 1))
    rank = len(x.shape) - 2
    window = node.attributes["kernel_shape"]
    strides = node.attributes.get("strides", [1] * rank)
    pads = node.attributes.get("pads", [0] * (2 * rank))
    y = builder.new((*x.shape[:2], *[
        (x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[rank + i] + window[i]
        for i in range(rank)]), x.dtype)
    if y.storage is not None:
        # Indices count elements, so the dimensions do not matter.
        flat, places, made = (builder.reshape(t, (1, 1, 1, t.size))
                              for t in (x, _unsigned(indices), y))
        builder.emit("MAX_UNPOOLING", {"input_tensor": _seen(flat), "indices_tensor": _seen(places),
                                       "output_tensor": _seen(made)})
    return [y]


def roi_pooling(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, rois = given(inputs, 0), given(inputs, 1)
    height, width = node.attributes["pooled_shape"]
    y = builder.new((rois.shape[0], x.shape[1], height, width), x.dtype)
    if y.storage is not None:
        builder.emit(
            "ROI_POOLING",
            {"input_tensor": _seen(x), "roi_tensor": (rois, (1, 1, *rois.shape),
                                                      (0, 0, *rois.strides)),
             "output_tensor": _seen(y)},
            spatial_scale=float(node.attributes.get("spatial_scale", 1.0)),
            pooled_size=Size2d(width, height))
    return [y]


def roi_align(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, rois, batch = (given(inputs, i) for i in range(3))
    size = (node.attributes.get("output_height", 1), node.attributes.get("output_width", 1))
    y = builder.new((rois.shape[0], x.shape[1], *size), x.dtype)
    if y.storage is None:
        return [y]
    mode = _text(node, "coordinate_transformation_mode",
                 "output_half_pixel" if node.since < 16 else "half_pixel")
    ratio = node.attributes.get("sampling_ratio", 0)
    scale = float(node.attributes.get("spatial_scale", 1.0))
    builder.emit(
        "ROI_ALIGN1",
        {"input_tensor": _seen(x), "roi_tensor": _seen(rois),
         "batch_indices_tensor": _seen(_unsigned(batch)), "output_tensor": _seen(y)},
        reduction_function=ReduceFunction.AVERAGE, interpolation_mode=InterpolationMode.LINEAR,
        spatial_scale_x=scale, spatial_scale_y=scale,
        input_pixel_offset=0.5 if mode == "half_pixel" else 0.0, output_pixel_offset=-0.5,
        out_of_bounds_input_value=0.0, minimum_samples_per_output=ratio or 1,
        maximum_samples_per_output=ratio or 2**32 - 1, align_regions_to_corners=0)
    return [y]


def roi_align_refused(node: Node) -> str | None:
    if _text(node, "mode", "avg") != "avg":
        return "the maximum of weighted elements: DirectML's is of interpolated samples"
    return None


def resize_refused(node: Node) -> str | None:
    """Why DirectML cannot express a Resize or Upsample, or None."""
    mode = _text(node, "mode", "nearest")
    if mode == "cubic":
        return "mode=cubic: DirectML has nearest and linear interpolation"
    if node.attributes.get("antialias", 0):
        return "antialias: DirectML's filter is not ONNX's"
    if node.attributes.get("exclude_outside", 0):
        return "exclude_outside"
    if _text(node, "coordinate_transformation_mode", "") in (
            "tf_crop_and_resize", "tf_half_pixel_for_nn"):
        return "coordinates that DirectML does not have"
    return None


def _resized(node: Node, inputs: Inputs, x: Array) -> tuple[list[int], list[float]]:
    """Sizes and scales of all dimensions."""
    rank = len(x.shape)
    if node.op == "Upsample" or node.since < 11:
        scales: Any = host(inputs, 1) if node.since >= 9 else _scales(node)
        wanted = None
    else:
        scales, wanted = host(inputs, 2), host(inputs, 3)
    axes = [dimension(a, rank) for a in node.attributes.get("axes", range(rank))]
    sizes, factors = list(x.shape), [1.0] * rank
    if wanted is not None and wanted.size:
        ratios = [int(n) / x.shape[a] for a, n in zip(axes, wanted)]
        policy = _text(node, "keep_aspect_ratio_policy", "stretch")
        for a, n, ratio in zip(axes, wanted, ratios):
            sizes[a], factors[a] = int(n), ratio
            if policy != "stretch":
                factors[a] = min(ratios) if policy == "not_larger" else max(ratios)
                sizes[a] = math.floor(factors[a] * x.shape[a] + 0.5)
    elif scales is not None:
        for a, scale in zip(axes, np.asarray(scales, np.float32).reshape(-1)):
            if not 0 < scale < math.inf:
                raise ValidationError(f"expected scales to be above 0 and finite, but got {scale}")
            factors[a] = float(scale)
            sizes[a] = math.floor(float(scale) * x.shape[a])
    else:
        raise ValidationError("expected sizes or scales")
    return sizes, factors


def _scales(node: Node) -> Any:
    """Of Upsample, as attributes: those of a plane's sides in version 1."""
    read = node.attributes
    return read["scales"] if node.since > 1 else (1, 1, read["height_scale"], read["width_scale"])


def _coordinates(mode: str, size: int, out: int, scale: float) -> tuple[float, float, float]:
    """Scale, input and output offset of a dimension."""
    if mode == "align_corners":
        # As in ONNX's reference: the resized length may be fractional.
        return ((scale * size - 1) / (size - 1) if out > 1 and size > 1 else _FLT_MAX), 0.0, 0.0
    if mode == "asymmetric":
        return scale, 0.0, 0.0
    if mode == "pytorch_half_pixel" and out == 1:
        return _FLT_MAX, 0.0, 0.0
    offset = 0.0
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - out / (scale * size))
    return scale, 0.5 - offset, -0.5


def resize(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    sizes, factors = _resized(node, inputs, x)
    y = builder.new(sizes, x.dtype)
    if y.storage is None:
        return [y]
    old = node.op == "Upsample" or node.since < 11
    mode = "asymmetric" if old else _text(node, "coordinate_transformation_mode", "half_pixel")
    linear = _text(node, "mode", "nearest") != "nearest"
    rounding = "floor" if old else _text(node, "nearest_mode", "round_prefer_floor")
    shift = 0.0 if linear else {"round_prefer_floor": 0.5, "round_prefer_ceil": -0.5}.get(
        rounding, 0.0)
    upwards = rounding in ("round_prefer_floor", "ceil")
    # Unchanged dimensions are merged, because DirectML takes four.
    dims: list[tuple[int, int, tuple[float, float, float]]] = []
    same = (1.0, 0.0, 0.0)
    for n, out, factor in zip(x.shape, sizes, factors):
        if n == out and factor == 1.0:
            if dims and dims[-1][2] == same:
                dims[-1] = (dims[-1][0] * n, dims[-1][1] * n, same)
            elif n != 1:
                dims.append((n, n, same))
        else:
            scale, in_offset, out_offset = _coordinates(mode, n, out, factor)
            dims.append((n, out, (scale, in_offset + shift, out_offset)))
    if len(dims) > 4:
        raise UnsupportedError(f"resizing of {len(dims)} dimensions")
    dims = dims or [(1, 1, same)]
    flat = builder.reshape(x, [d[0] for d in dims])
    made = builder.reshape(y, [d[1] for d in dims])
    attributes: Mapping[str, Any] = dict(
        interpolation_mode=InterpolationMode.LINEAR if linear
        else InterpolationMode.NEAREST_NEIGHBOR,
        rounding_direction=AxisDirection.INCREASING if upwards else AxisDirection.DECREASING,
        scales=tuple(d[2][0] for d in dims), input_pixel_offsets=tuple(d[2][1] for d in dims),
        output_pixel_offsets=tuple(d[2][2] for d in dims))
    builder.emit("RESAMPLE2", {"input_tensor": _seen(flat), "output_tensor": _seen(made)},
                 **attributes)
    return [y]
