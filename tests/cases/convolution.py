"""Convolutions, forward and transposed, of floats and of quantized numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, SHIFTED, TRANSPOSED, Sizes

_FORWARD, _BACKWARD = dml.ConvolutionDirection
_MIRRORED, _CORRELATION = dml.ConvolutionMode


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 1, sizes).astype(data_type.dtype)


def _taps(filter_sizes: Sizes, attributes: Mapping[str, Any]) -> Any:
    """The index of each tap in the filter, and its place in the padded input."""
    for at in itertools.product(*map(range, filter_sizes[2:])):
        k = at
        if attributes.get("mode", _CORRELATION) == _MIRRORED:
            k = tuple(n - 1 - i for n, i in zip(filter_sizes[2:], at))
        yield (..., *k), tuple(i * d for i, d in zip(at, attributes["dilations"]))


def _sums(x: np.ndarray, w: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """The convolution, tap by tap, in the type of ``x``, which must hold every sum."""
    a, groups = attributes, attributes["group_count"]
    batches, spatial = x.shape[0], w.shape[2:]
    x = x.reshape(batches, groups, -1, *x.shape[2:])
    reach = [d * (k - 1) + 1 for k, d in zip(spatial, a["dilations"])]
    starts, strides = a["start_padding"], a["strides"]
    if a.get("direction", _FORWARD) == _FORWARD:
        padded = np.pad(x, [(0, 0)] * 3 + list(zip(starts, a["end_padding"])))
        sizes = [(n - r) // s + 1 for n, r, s in zip(padded.shape[3:], reach, strides)]
        w = w.reshape(groups, -1, *w.shape[1:])
        y = np.zeros((batches, groups, w.shape[1], *sizes), x.dtype)
        for k, at in _taps((0, 0, *spatial), a):
            window = tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(at, sizes, strides))
            y += np.einsum("ngc...,goc->ngo...", padded[(..., *window)], w[k])
    else:
        w = w.reshape(groups, -1, *w.shape[1:])
        full = [(n - 1) * s + r for n, s, r in zip(x.shape[3:], strides, reach)]
        whole = np.zeros((batches, groups, w.shape[2],
                          *(n + p for n, p in zip(full, a["output_padding"]))), x.dtype)
        for k, at in _taps((0, 0, *spatial), a):
            window = tuple(slice(f, f + (n - 1) * s + 1, s)
                           for f, n, s in zip(at, x.shape[3:], strides))
            whole[(..., *window)] += np.einsum("ngc...,gco->ngo...", x, w[k])
        y = whole[(..., *(slice(s, n - e) for s, e, n in zip(
            starts, a["end_padding"], whole.shape[3:])))]
    return y.reshape(batches, -1, *y.shape[3:])


def _along(bias: np.ndarray | None, like: np.ndarray) -> Any:
    return 0 if bias is None else bias.reshape(1, -1, *[1] * (like.ndim - 2))


def _convolution(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    inputs = {name: v.astype(np.float64) for name, v in x.items()}
    y = _sums(inputs["input_tensor"], inputs["filter_tensor"], attributes)
    y = y + _along(inputs.get("bias_tensor"), y)
    fused = attributes.get("fused_activation")
    if isinstance(fused, dml.ActivationReluOperatorDesc):
        return np.maximum(y, 0)
    return y if fused is None else np.clip(y, fused.min, fused.max)


def _room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """Each of the K products and sums, and the bias, is rounded once in float32."""
    inputs = {name: np.abs(v.astype(np.float64)) for name, v in x.items()}
    w = inputs["filter_tensor"].shape
    k = prod(w[1:] if attributes["direction"] == _FORWARD else (w[0], *w[2:]))
    y = _sums(inputs["input_tensor"], inputs["filter_tensor"], attributes)
    return (y + _along(inputs.get("bias_tensor"), y)) * (k + 2) * 2.0**-24


def _window(axes: int, **given: Any) -> dict[str, Any]:
    """Attributes along the axes, with defaults."""
    defaults = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}
    return {name: given.get(name, (value,) * axes) for name, value in defaults.items()} | {
        "group_count": given.get("group_count", 1)}


def _float(name: str, x: Sizes, w: Sizes, y: Sizes, *, bias: bool = True, layouts: Any = (PACKED,),
           **given: Any) -> Case:
    axes = len(x) - 2
    sizes: dict[str, Sizes] = {"input_tensor": x, "filter_tensor": w}
    if bias:
        sizes["bias_tensor"] = (1, y[1], *[1] * axes)
    attributes = {"mode": given.pop("mode", _CORRELATION),
                  "direction": given.pop("direction", _FORWARD),
                  "output_padding": given.pop("output_padding", (0,) * axes),
                  **({"fused_activation": given.pop("fused")} if "fused" in given else {}),
                  **_window(axes, **given)}
    more = {k: given[k] for k in ("types",) if k in given}
    return Case("CONVOLUTION", name, {**sizes, "output_tensor": y}, _convolution,
                attributes=attributes, values=dict.fromkeys(sizes, _numbers), room=_room,
                layouts=layouts, **more)


_F32 = [dict.fromkeys(
    ("input_tensor", "filter_tensor", "bias_tensor", "output_tensor"), dml.DataType.FLOAT32)]
_FLOATS = [
    _float("plane", (2, 3, 7, 9), (4, 3, 3, 3), (2, 4, 7, 9), start_padding=(1, 1),
           end_padding=(1, 1), layouts=(PACKED, SHIFTED, TRANSPOSED)),
    _float("line", (1, 2, 17), (3, 2, 5), (1, 3, 17), start_padding=(2,), end_padding=(2,),
           bias=False),
    _float("space", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), (1, 3, 4, 2, 5), strides=(1, 2, 1),
           dilations=(1, 1, 2), start_padding=(1, 0, 1), end_padding=(0, 0, 0),
           mode=_MIRRORED, types=_F32),
    _float("groups", (2, 6, 11, 13), (9, 2, 3, 2), (2, 9, 6, 6), strides=(2, 2),
           dilations=(2, 1), start_padding=(1, 0), end_padding=(3, 0), group_count=3,
           fused=dml.ActivationReluOperatorDesc(), types=_F32),
    _float("depthwise", (1, 5, 9, 67), (5, 1, 3, 3), (1, 5, 9, 67), start_padding=(1, 1),
           end_padding=(1, 1), group_count=5,
           fused=dml.ElementWiseClipOperatorDesc(
               input_tensor=None, output_tensor=None, min=-0.5, max=1.0)),
    _float("past-a-tile", (1, 37, 3, 23), (67, 37, 1, 1), (1, 67, 3, 23)),
    _float("kernel-past-the-image", (1, 2, 2, 3), (3, 2, 5, 5), (1, 3, 1, 1), types=_F32,
           start_padding=(2, 1), end_padding=(1, 1)),
    _float("padding-past-the-kernel", (1, 1, 1, 1), (1, 1, 1, 2), (1, 1, 7, 8), types=_F32,
           start_padding=(3, 5), end_padding=(3, 3)),
    _float("stride-past-the-kernel", (1, 2, 13, 11), (2, 2, 2, 1), (1, 2, 3, 2), types=_F32,
           strides=(5, 7)),
    _float("many-steps-of-k", (1, 8209, 1, 2), (3, 8209, 2, 2), (1, 3, 1, 2), types=_F32,
           start_padding=(1, 0), end_padding=(0, 1)),
    _float("transposed", (2, 3, 4, 5), (3, 4, 3, 3), (2, 4, 8, 11), direction=_BACKWARD,
           strides=(2, 2), start_padding=(1, 0), end_padding=(1, 0), output_padding=(1, 0),
           layouts=FEW),
    _float("transposed-groups", (1, 6, 3, 4), (6, 2, 2, 3), (1, 4, 8, 14), direction=_BACKWARD,
           mode=_MIRRORED, strides=(2, 3), dilations=(3, 2), group_count=2, bias=False),
    _float("transposed-stride-past-the-kernel", (1, 2, 3), (2, 3, 2), (1, 3, 12), types=_F32,
           direction=_BACKWARD, strides=(5,)),
    _float("transposed-without-taps", (1, 3, 1, 1), (3, 1, 3, 2), (1, 1, 2, 1), direction=_BACKWARD,
           strides=(2, 2), dilations=(1, 2), start_padding=(1, 1), end_padding=(1, 1),
           output_padding=(1, 0), types=_F32),
    _float("transposed-space", (1, 2, 2, 3, 2), (2, 1, 2, 2, 3), (1, 1, 4, 4, 6),
           direction=_BACKWARD, strides=(2, 1, 3), types=_F32),
]


def _integers(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """Exact sums of products of numbers less their zero points."""
    less = {}
    for name in ("input", "filter"):
        zero = x.get(f"{name}_zero_point_tensor")
        value = x[f"{name}_tensor"].astype(np.int64)
        if zero is not None:
            shape = (-1, *[1] * (value.ndim - 1)) if name == "filter" else (1,)
            value = value - zero.astype(np.int64).reshape(shape)
        less[name] = value
    return _sums(less["input"], less["filter"], attributes)


def _convolution_integer(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    return _integers(x, attributes).astype(np.int32)


def _call_integer(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types,
                  out: Any) -> Any:
    return dml.convolution_integer(
        x["input_tensor"], x["filter_tensor"], x_zero_point=x.get("input_zero_point_tensor"),
        filter_zero_point=x.get("filter_zero_point_tensor"), **attributes, out=out)


def _integer(name: str, x: Sizes, w: Sizes, y: Sizes, x_zero: Sizes | None, w_zero: Sizes | None,
             **given: Any) -> Case:
    zeros = {f"{n}_zero_point_tensor": z for n, z in (("input", x_zero), ("filter", w_zero)) if z}
    layouts = given.pop("layouts", (PACKED,))
    return Case("CONVOLUTION_INTEGER", name, {
        "input_tensor": x, "filter_tensor": w, **zeros, "output_tensor": y},
        _convolution_integer, _call_integer, attributes=_window(len(x) - 2, **given),
        layouts=layouts)


_INTEGERS = [
    _integer("plane", (2, 4, 5, 9), (6, 2, 3, 3), (2, 6, 3, 5), (1, 1, 1, 1), (1, 6, 1, 1),
             strides=(2, 2), start_padding=(1, 1), end_padding=(1, 1), group_count=2, layouts=FEW),
    _integer("line", (1, 3, 70), (2, 3, 2), (1, 2, 68), (1,), (2,), dilations=(2,)),
    _integer("no-zero-points", (1, 37, 1, 1), (67, 37, 1, 1), (1, 67, 1, 1), None, None),
]


def _quantized(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    """The operator's steps: one float32 multiplier, halves to even."""
    sums = _integers(x, attributes)
    if "bias_tensor" in x:
        sums = sums + _along(x["bias_tensor"].astype(np.int64), sums)
    scale = x["input_scale_tensor"].reshape(()) * x["filter_scale_tensor"].reshape(-1)
    scale = (scale / x["output_scale_tensor"].reshape(())).astype(np.float32)
    zero = x.get("output_zero_point_tensor", np.zeros(1)).astype(np.int64).reshape(())
    limits = np.iinfo(types["output_tensor"].dtype)
    y = np.rint(sums.astype(np.float32) * _along(scale, sums)).astype(np.int64) + zero
    return np.clip(y, limits.min, limits.max).astype(limits.dtype)


def _call_quantized(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types,
                    out: Any) -> Any:
    def at(name: str) -> Any:
        return x.get(f"{name}_tensor")

    return dml.quantized_linear_convolution(
        at("input"), at("input_scale"), at("input_zero_point"), at("filter"), at("filter_scale"),
        at("filter_zero_point"), at("output_scale"), at("output_zero_point"), at("bias"),
        **attributes, data_type=types["output_tensor"], out=out)


def _scales(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Powers of two, so that ties occur and no rounding depends on the order."""
    return (2.0 ** rng.integers(-3, 0, sizes)).astype(np.float32)


def _small(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.integers(-100, 100, sizes).astype(np.int32)


def _kinds(x: str, w: str, y: str) -> dict[str, dml.DataType]:
    kinds = {"input": x, "filter": w, "output": y, "bias": "int32"}
    return {f"{n}_tensor": dml.DataType.of(t) for n, t in kinds.items()} | {
        f"{n}_zero_point_tensor": dml.DataType.of(kinds[n]) for n in ("input", "filter", "output")
    } | {f"{n}_scale_tensor": dml.DataType.FLOAT32 for n in ("input", "filter", "output")}


_KINDS = [_kinds("int8", "int8", "int8"), _kinds("uint8", "uint8", "uint8"),
          _kinds("int8", "uint8", "uint8"), _kinds("uint8", "int8", "int8")]


def _quantized_case(name: str, x: Sizes, w: Sizes, y: Sizes, one: Sizes, channels: Sizes,
                    full: bool, **given: Any) -> Case:
    sizes = {"input_tensor": x, "input_scale_tensor": one, "filter_tensor": w,
             "filter_scale_tensor": channels, "output_scale_tensor": one, "output_tensor": y}
    if full:
        sizes |= {"input_zero_point_tensor": one, "filter_zero_point_tensor": channels,
                  "output_zero_point_tensor": one,
                  "bias_tensor": (1, y[1], *[1] * (len(x) - 2))}
    values = {n: _scales for n in sizes if "scale" in n} | {"bias_tensor": _small}
    layouts = given.pop("layouts", (PACKED,))
    return Case("QUANTIZED_LINEAR_CONVOLUTION", name, sizes, _quantized, _call_quantized,
                attributes=_window(len(x) - 2, **given), values=values, layouts=layouts,
                types=given.get("types", _KINDS))


_QUANTIZED = [
    _quantized_case("plane", (2, 4, 5, 9), (6, 2, 3, 3), (2, 6, 3, 5), (1, 1, 1, 1), (1, 6, 1, 1),
                    True, strides=(2, 2), start_padding=(1, 1), end_padding=(1, 1), group_count=2),
    _quantized_case("strided", (1, 2, 3, 4), (3, 2, 1, 1), (1, 3, 3, 4), (1, 1, 1, 1),
                    (1, 1, 1, 1), False, layouts=FEW, types=_KINDS[:1]),
    _quantized_case("line", (1, 3, 70), (2, 3, 2), (1, 2, 69), (1,), (2,), True),
]

CASES = [*_FLOATS, *_INTEGERS, *_QUANTIZED]


_X, _W = dml.TensorDesc("float32", [1, 4, 5, 5]), dml.TensorDesc("float32", [6, 4, 3, 3])
_Y = dml.TensorDesc("float32", [1, 6, 3, 3])
_PLAIN = dict(input_tensor=_X, filter_tensor=_W, output_tensor=_Y, mode=_CORRELATION,
              direction=_FORWARD, output_padding=(0, 0), **_window(2))


def _error(name: str, parts: list[str], **fields: Any) -> ErrorCase:
    return ErrorCase("CONVOLUTION", name, _PLAIN | fields, parts)


def _desc(*sizes: int, data_type: str = "float32") -> dml.TensorDesc:
    return dml.TensorDesc(data_type, sizes)


_I8 = {n: _desc(*t.sizes, data_type="int8") for n, t in (("input_tensor", _X),
                                                         ("filter_tensor", _W))}
ERRORS = [
    _error("stride", ["Strides[1]", "above 0", "0"], strides=(1, 0)),
    _error("dilation", ["Dilations[0]", "above 0", "0"], dilations=(0, 1)),
    _error("groups", ["GroupCount", "4 channels", "3"], group_count=3),
    _error("no-groups", ["GroupCount", "4 channels", "0"], group_count=0),
    _error("filter-channels", ["FilterTensor.Sizes[1]", "be 2", "4"], group_count=2),
    _error("filters", ["FilterTensor.Sizes[0]", "multiple of GroupCount 4", "6"], group_count=4,
           filter_tensor=_desc(6, 1, 3, 3)),
    _error("dimensions", ["DimensionCount", "be 2", "1"], strides=(1,), dilations=(1,),
           start_padding=(0,), end_padding=(0,), output_padding=(0,)),
    _error("window", ["FilterTensor.Sizes[2]", "padded input of 5", "9"], dilations=(4, 1)),
    _error("output", ["OutputTensor.Sizes", "[1, 6, 2, 2]", "[1, 6, 3, 3]"], strides=(2, 2)),
    _error("bias", ["BiasTensor.Sizes", "[1, 6, 1, 1]", "[1, 1, 1, 6]"],
           bias_tensor=_desc(1, 1, 1, 6)),
    _error("output-padding", ["OutputPadding", "0 for a FORWARD", "[0, 1]"],
           output_padding=(0, 1)),
    _error("extent", ["padded size of axis 0", "2147483647", "4294967300"],
           start_padding=(2**32 - 1, 0)),
    _error("nothing-left", ["StartPadding[0] and EndPadding[0]", "be below 7 together"],
           direction=_BACKWARD, filter_tensor=_desc(4, 6, 3, 3), start_padding=(4, 0),
           end_padding=(3, 0)),
    _error("transposed-filter", ["FilterTensor.Sizes[0]", "be 4", "6"], direction=_BACKWARD,
           output_tensor=_desc(1, 4, 7, 7)),
    ErrorCase("CONVOLUTION_INTEGER", "zero-points", dict(
        **_I8, filter_zero_point_tensor=_desc(1, 5, 1, 1, data_type="int8"),
        output_tensor=_desc(1, 6, 3, 3, data_type="int32"), **_window(2)),
        ["FilterZeroPointTensor.Sizes", "one element, or 6", "[1, 5, 1, 1]"]),
    ErrorCase("QUANTIZED_LINEAR_CONVOLUTION", "scale", dict(
        **_I8, input_scale_tensor=_desc(2), filter_scale_tensor=_desc(1),
        output_scale_tensor=_desc(1), output_tensor=_desc(1, 6, 3, 3, data_type="int8"),
        **_window(2)),
        ["InputScaleTensor.Sizes", "one element", "[2]"]),
]
