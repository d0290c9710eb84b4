"""Regions of interest, pooled or aligned, and MAX_UNPOOLING."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, REVERSED, SHIFTED, Sizes


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 4, sizes).astype(data_type.dtype)


def _rows(*values: tuple[float, ...]) -> np.ndarray:
    return np.array(values, np.float32)[None, None]


# MAX_UNPOOLING


def _unpooled(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    given, indices = x["input_tensor"].reshape(-1), x["indices_tensor"].reshape(-1)
    result = np.zeros(_UNPOOLED, given.dtype)
    for value, index in zip(given, indices):
        if index < result.size:
            result.reshape(-1)[int(index)] = value
    return result


_UNPOOLED = (2, 3, 5, 7)


def _indices(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Some indices twice, some beyond the output."""
    result = rng.integers(0, 230, sizes).astype(data_type.dtype)
    result.reshape(-1)[:1] = np.iinfo(data_type.dtype).max
    return result


def _unpool(x: Mapping[str, Any], a: Mapping[str, Any], types: Types, out: Any) -> Any:
    return dml.max_unpooling(x["input_tensor"], x["indices_tensor"], output_sizes=_UNPOOLED,
                             out=out)


# ROI_POOLING

_POOLED_ROIS = _rows((0, 0, 0, 9, 8), (1, 1.5, 2.5, 4, 5), (7, 3, 3, 3, 3), (-1, -4, -9, 20, 2),
                     (1, 8, 8, 2, 2), (0, 40, 40, 50, 50))


def _half_away(x: float) -> int:
    return int(np.copysign(np.floor(abs(x) + 0.5), x))


def _roi_pooled(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    given, size = x["input_tensor"], a["pooled_size"]
    rois = x["roi_tensor"].reshape(-1, 5).astype(np.float32)
    result = np.zeros((len(rois), given.shape[1], size.height, size.width), given.dtype)
    for r, (batch, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (_half_away(np.float32(c) * np.float32(a["spatial_scale"]))
                          for c in corners)
        n = int(np.clip(batch, 0, given.shape[0] - 1))

        def span(first: int, last: int, k: int, bins: int, limit: int) -> slice:
            length = max(last - first, 0) + 1
            ends = (k * length // bins + first, -(-(k + 1) * length // bins) + first)
            return slice(*np.clip(ends, 0, limit))

        for i in range(size.height):
            for j in range(size.width):
                part = given[n, :, span(y1, y2, i, size.height, given.shape[2]),
                             span(x1, x2, j, size.width, given.shape[3])]
                if part.size:
                    result[r, :, i, j] = part.max((1, 2))
    return result


# ROI_ALIGN

_ROIS = np.array([(1, 2, 9, 7), (-6, -3, 4, 30), (5, 5, 5, 5), (9, 8, 2, 1), (0, 0, 13, 11),
                  (3.25, 0.5, 11.5, 4.75)], np.float32)


def _samples(
    given: np.ndarray, x: Arrays, a: Mapping[str, Any]
) -> Iterator[tuple[int, int, int, np.ndarray]]:
    """The samples of all channels of ``given``, by region, row and column."""
    rois = x["roi_tensor"].reshape(-1, 4).astype(np.float64)
    batch = x["batch_indices_tensor"].reshape(-1)
    height, width = a["_size"]
    in_offset, out_offset = a.get("input_pixel_offset", 0.5), a.get("output_pixel_offset", -0.5)
    corners = a.get("align_regions_to_corners", 0)

    def places(low: float, high: float, outputs: int, scale: float) -> np.ndarray:
        low, high = low * scale, high * scale
        n = int(np.clip(np.ceil((high - low) / outputs), a["minimum_samples_per_output"],
                        a["maximum_samples_per_output"]))
        total = outputs * n
        if corners and total == 1:
            return np.array([[(low + high) / 2 - in_offset]])
        step = (high - low) / (total - 1 if corners else total)
        return ((np.arange(total) - out_offset) * step + low - in_offset).reshape(outputs, n)

    def sample(plane: np.ndarray, v: float, u: float) -> np.ndarray:
        h, w = plane.shape[1:]
        if not (-1 <= v <= h and -1 <= u <= w):
            return np.full(len(plane), a["out_of_bounds_input_value"], np.float64)
        v, u = np.clip(v, 0, h - 1), np.clip(u, 0, w - 1)
        if a["interpolation_mode"] == 0:
            return plane[:, int(v + 0.5), int(u + 0.5)]
        top, left = int(v), int(u)
        bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
        p, q = v - top, u - left
        return ((plane[:, top, left] * (1 - q) + plane[:, top, right] * q) * (1 - p)
                + (plane[:, bottom, left] * (1 - q) + plane[:, bottom, right] * q) * p)

    for r, (x1, y1, x2, y2) in enumerate(rois):
        plane = given[min(int(batch[r]), len(given) - 1)]
        down = places(y1, y2, height, a["spatial_scale_y"])
        across = places(x1, x2, width, a["spatial_scale_x"])
        for i in range(height):
            for j in range(width):
                samples = [sample(plane, v, u) for v in down[i] for u in across[j]]
                yield r, i, j, np.stack(samples)


def _aligned(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
    given = x["input_tensor"].astype(np.float64)
    result = np.zeros((x["roi_tensor"].shape[-2], given.shape[1], *a["_size"]))
    for r, i, j, whole in _samples(given, x, a):
        result[r, :, i, j] = whole.max(0) if a["reduction_function"] == 7 else whole.mean(0)
    return result


def _align_case(operator: str, name: str, rank: int = 2, channels: int = 3, **more: Any) -> Case:
    function, out = 2, (3, 4)
    attributes: dict[str, Any] = dict(
        reduction_function=function, interpolation_mode=1, spatial_scale_x=0.5,
        spatial_scale_y=0.75, out_of_bounds_input_value=0.0, minimum_samples_per_output=1,
        maximum_samples_per_output=2**32 - 1)
    if operator.endswith("1"):
        attributes |= dict(input_pixel_offset=0.5, output_pixel_offset=-0.5,
                           align_regions_to_corners=0)
    layouts = more.pop("layouts", FEW)
    attributes |= more

    def reference(x: Arrays, a: Mapping[str, Any], types: Types) -> np.ndarray:
        return _aligned(x, {**a, "_size": out}, types)

    def room(x: Arrays, a: Mapping[str, Any]) -> float:
        # A coordinate of up to 32 has a few roundings, and neighbours differ by at most twice the
    # largest number.
        return float(np.abs(x["input_tensor"].astype(np.float64)).max()) * 2.0**-17

    count = len(_ROIS)
    return Case(
        operator, name,
        {"input_tensor": (2, channels, 11, 13), "roi_tensor": (*(1,) * (rank - 2), count, 4),
         "batch_indices_tensor": (*(1,) * (rank - 1 if rank > 2 else 0), count),
         "output_tensor": (count, channels, *out)},
        reference, attributes=attributes, room=room, layouts=layouts,
        values={"input_tensor": _numbers,
                "roi_tensor": _ROIS.reshape(*(1,) * (rank - 2), count, 4),
                "batch_indices_tensor": np.array([0, 1, 1, 0, 1, 9])},
        call=lambda x, a, types, to: getattr(dml, operator.lower())(
            x["input_tensor"], x["roi_tensor"], x["batch_indices_tensor"], output_size=out,
            out=to, **a))


# ROI_ALIGN_GRAD. No samples lie on elements, where slopes jump.

# The samples of an empty region are equal, so MAX has no derivative there.
_GRADIENT_ROIS = np.array([(1.25, 2.375, 9.5, 7.125), (-6.25, -3.375, 4.5, 29),
                           (9.25, 8.5, 2.125, 1.375), (5.5, 5.25, 5.5, 5.25)], np.float32)
_IMAGE, _OUT = (2, 3, 11, 13), (3, 4)


def _image_gradient(x: Arrays, a: Mapping[str, Any]) -> np.ndarray:
    """The transposed matrix of the forward operator, which comes from images with a single 1. MAX
    takes the largest sample only."""
    dy = x["input_gradient_tensor"].astype(np.float64)
    pixels = _IMAGE[2] * _IMAGE[3]
    given = np.zeros((_IMAGE[0], _IMAGE[1] + pixels, *_IMAGE[2:]))
    given[:, _IMAGE[1]:] = np.eye(pixels).reshape(pixels, *_IMAGE[2:])
    if "input_tensor" in x:
        given[:, :_IMAGE[1]] = x["input_tensor"]
    result = np.zeros((*_IMAGE[:2], pixels))
    for r, i, j, whole in _samples(given, x, a):
        n = min(int(x["batch_indices_tensor"].reshape(-1)[r]), _IMAGE[0] - 1)
        for c in range(_IMAGE[1]):
            read = whole[:, _IMAGE[1]:]
            read = read[whole[:, c].argmax()] if a["reduction_function"] == 7 else read.mean(0)
            result[n, c] += dy[r, c, i, j] * read
    return result.reshape(_IMAGE)


def _region_gradient(x: Arrays, a: Mapping[str, Any]) -> np.ndarray:
    """Finite differences of the forward operator in float64."""
    dy, rois = (x[n].astype(np.float64) for n in ("input_gradient_tensor", "roi_tensor"))
    result = np.zeros(rois.shape)
    for corner in range(4):
        sides = []
        for apart in (1e-5, -1e-5):
            moved = rois.copy()
            moved[..., corner] += apart
            y = _aligned({**x, "roi_tensor": moved}, a, {})
            sides.append((y * dy).sum((1, 2, 3)))
        result[..., corner] = ((sides[0] - sides[1]) / 2e-5).reshape(rois.shape[:-1])
    return result


def _gradient_case(name: str, outputs: str, rank: int = 2, **more: Any) -> Case:
    layouts = more.pop("layouts", (PACKED,))
    made = [n for n, wanted in (("output_gradient_tensor", "x"),
                                ("output_roi_gradient_tensor", "r")) if wanted in outputs]
    attributes: dict[str, Any] = dict(
        reduction_function=2, interpolation_mode=1, spatial_scale_x=0.5, spatial_scale_y=0.75,
        input_pixel_offset=0.5, output_pixel_offset=-0.5, minimum_samples_per_output=2,
        maximum_samples_per_output=3, align_regions_to_corners=0) | more
    full = {"_size": _OUT, "out_of_bounds_input_value": 0.0}
    needs_input = "r" in outputs or attributes["reduction_function"] == 7

    def reference(x: Arrays, a: Mapping[str, Any], types: Types) -> Any:
        found = tuple(f(x, {**a, **full}) for f, n in (
            (_image_gradient, "output_gradient_tensor"),
            (_region_gradient, "output_roi_gradient_tensor")) if n in made)
        return found if len(found) > 1 else found[0]

    def room(x: Arrays, a: Mapping[str, Any]) -> Any:
        most = float(abs(x["input_gradient_tensor"].astype(np.float64)).max())
        slope = float(abs(x.get("input_tensor", np.zeros(1)).astype(np.float64)).max()) * 2
        each = _IMAGE[1] * _OUT[0] * _OUT[1]
        # At most 40 outputs read one element. A weight has the error of a coordinate of up to 32,
        # and a difference in float64 has an error of 1e-9 of its terms.
        rooms = {"output_gradient_tensor": 40 * most * 2.0**-17,
                 "output_roi_gradient_tensor": each * most * slope * 2.0**-17}
        found = tuple(rooms[n] for n in made)
        return found if len(found) > 1 else found[0]

    rois = _GRADIENT_ROIS[:3] if attributes["reduction_function"] == 7 else _GRADIENT_ROIS
    count = len(rois)
    regions = (*(1,) * (rank - 2), count, 4)
    sizes = {"input_tensor": _IMAGE} if needs_input else {}
    sizes |= {"input_gradient_tensor": (count, _IMAGE[1], *_OUT), "roi_tensor": regions,
              "batch_indices_tensor": (*(1,) * (rank - 1 if rank > 2 else 0), count)}
    sizes |= {n: _IMAGE if n == "output_gradient_tensor" else regions for n in made}

    def call(x: Mapping[str, Any], a: Mapping[str, Any], types: Types, to: Any) -> Any:
        return dml.roi_align_grad(
            x["input_gradient_tensor"], x["roi_tensor"], x["batch_indices_tensor"],
            x.get("input_tensor"), output_gradient="x" in outputs,
            output_roi_gradient="r" in outputs, out=to, **a,
            **({"output_sizes": _IMAGE} if to is None and not needs_input else {}))

    return Case(
        "ROI_ALIGN_GRAD", name, sizes, reference, attributes=attributes, room=room,
        layouts=layouts, call=call,
        values={"input_tensor": _numbers, "input_gradient_tensor": _numbers,
                "roi_tensor": rois.reshape(regions),
                "batch_indices_tensor": np.array([1, 0, 9, 1])[:count]})


CASES = [
    _gradient_case("image", "x", layouts=FEW),
    _gradient_case("both", "xr", layouts=FEW),
    _gradient_case("regions", "r", 4),
    _gradient_case("maximum", "xr", 4, reduction_function=7),
    _gradient_case("corners", "xr", align_regions_to_corners=1, output_pixel_offset=0.0,
                   input_pixel_offset=0.125),
    _gradient_case("nearest", "x", interpolation_mode=0, input_pixel_offset=0.37,
                   spatial_scale_x=0.53, spatial_scale_y=0.71),
    Case("MAX_UNPOOLING", "scattered",
         {"input_tensor": (2, 3, 3, 5), "indices_tensor": (2, 3, 3, 5),
          "output_tensor": _UNPOOLED}, _unpooled, call=_unpool, layouts=(PACKED, REVERSED),
         values={"indices_tensor": _indices}),
    Case("MAX_UNPOOLING", "shifted",
         {"input_tensor": (2, 3, 3, 5), "indices_tensor": (2, 3, 3, 5),
          "output_tensor": _UNPOOLED}, _unpooled, call=_unpool, layouts=(PACKED, SHIFTED),
         values={"indices_tensor": _indices},
         types=[{"input_tensor": t, "output_tensor": t, "indices_tensor": dml.DataType.UINT32}
                for t in (dml.DataType.UINT8, dml.DataType.FLOAT32)]),
    *(Case("ROI_POOLING", name,
           {"input_tensor": (2, 3, 11, 13), "roi_tensor": (1, 1, 6, 5),
            "output_tensor": (6, 3, 3, 4)}, _roi_pooled,
           attributes={"spatial_scale": scale, "pooled_size": dml.Size2d(4, 3)},
           values={"input_tensor": _numbers, "roi_tensor": _POOLED_ROIS}, layouts=FEW)
      for name, scale in (("whole", 1.0), ("half", 0.5))),
    _align_case("ROI_ALIGN", "average"),
    _align_case("ROI_ALIGN", "maximum", 4, reduction_function=7, layouts=[PACKED]),
    _align_case("ROI_ALIGN", "few-samples", layouts=[PACKED], maximum_samples_per_output=2,
                minimum_samples_per_output=2, out_of_bounds_input_value=3.5),
    _align_case("ROI_ALIGN", "channels", layouts=[PACKED], channels=12),
    _align_case("ROI_ALIGN1", "average", input_pixel_offset=0.0),
    _align_case("ROI_ALIGN1", "maximum", 4, reduction_function=7, layouts=[PACKED]),
    _align_case("ROI_ALIGN1", "corners", layouts=[PACKED], align_regions_to_corners=1,
                output_pixel_offset=0.0, input_pixel_offset=0.0),
    _align_case("ROI_ALIGN1", "nearest", layouts=[PACKED], interpolation_mode=0,
                input_pixel_offset=0.37, spatial_scale_x=0.53, spatial_scale_y=0.71),
]

_X = dml.TensorDesc("float32", [2, 3, 11, 13])
_ALIGN: dict[str, Any] = dict(
    input_tensor=_X, roi_tensor=dml.TensorDesc("float32", [6, 4]),
    batch_indices_tensor=dml.TensorDesc("uint32", [6]),
    output_tensor=dml.TensorDesc("float32", [6, 3, 2, 2]), reduction_function=2,
    interpolation_mode=1, spatial_scale_x=1.0, spatial_scale_y=1.0, out_of_bounds_input_value=0.0,
    minimum_samples_per_output=1, maximum_samples_per_output=4)
_ALIGN1 = _ALIGN | dict(input_pixel_offset=0.0, output_pixel_offset=0.0,
                        align_regions_to_corners=0)
_POOL: dict[str, Any] = dict(
    input_tensor=_X, roi_tensor=dml.TensorDesc("float32", [1, 1, 6, 5]),
    output_tensor=dml.TensorDesc("float32", [6, 3, 4, 2]), spatial_scale=1.0,
    pooled_size=dml.Size2d(2, 4))
_GRADIENT: dict[str, Any] = {
    k: v for k, v in _ALIGN1.items()
    if k not in ("input_tensor", "output_tensor", "out_of_bounds_input_value")
} | dict(output_gradient_tensor=_X, input_gradient_tensor=dml.TensorDesc("float32", [6, 3, 2, 2]))
ERRORS = [
    ErrorCase("ROI_ALIGN_GRAD", "no-output", _GRADIENT | dict(output_gradient_tensor=None),
              ["OutputGradientTensor or OutputROIGradientTensor", "given"]),
    ErrorCase("ROI_ALIGN_GRAD", "no-input", _GRADIENT | dict(reduction_function=7),
              ["InputTensor", "MAX"]),
    ErrorCase("ROI_ALIGN_GRAD", "channels", _GRADIENT | dict(
        input_gradient_tensor=dml.TensorDesc("float32", [6, 2, 2, 2])),
              ["InputGradientTensor.Sizes", "6 regions and 3 channels", "[6, 2, 2, 2]"]),
    ErrorCase("ROI_ALIGN", "function", _ALIGN | dict(reduction_function=10),
              ["ReductionFunction", "AVERAGE or MAX", "SUM"]),
    ErrorCase("ROI_ALIGN", "batch",
              _ALIGN | dict(batch_indices_tensor=dml.TensorDesc("uint32", [5])),
              ["BatchIndicesTensor.Sizes", "6", "[5]"]),
    ErrorCase("ROI_ALIGN1", "samples", _ALIGN1 | dict(minimum_samples_per_output=100_000),
              ["MinimumSamplesPerOutput", "[1, 254]", "100000"]),
    ErrorCase("ROI_ALIGN1", "roi",
              _ALIGN1 | dict(roi_tensor=dml.TensorDesc("float32", [6, 5])),
              ["ROITensor.Sizes", "NumROIs, 4"]),
    ErrorCase("ROI_POOLING", "pooled", _POOL | dict(pooled_size=dml.Size2d(4, 2)),
              ["OutputTensor.Sizes", "[6, 3, 2, 4]", "[6, 3, 4, 2]"]),
    ErrorCase("ROI_POOLING", "scale", _POOL | dict(spatial_scale=float("inf")),
              ["SpatialScale", "finite"]),
    ErrorCase("MAX_UNPOOLING", "indices", dict(
        input_tensor=_X, indices_tensor=dml.TensorDesc("uint32", [2, 3, 11, 12]),
        output_tensor=_X), ["InputTensor.Sizes", "IndicesTensor.Sizes"]),
]
