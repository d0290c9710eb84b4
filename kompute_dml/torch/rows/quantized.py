"""Rounding to the integers that quantized elements would have: training for quantization."""

from __future__ import annotations

import math

import torch

from ..table import call, lowers
from ..values import BOOL, F32, Number, Unsupported, Value, cast, expanded, full, resized


def _quantized(x: Value, scale: Value | Number, zero: Value | Number) -> Value:
    """The integers, not clamped. NaN counts as the least one, as on the CPU."""
    inverse = 1 / scale if not isinstance(scale, Value) else call("reciprocal", scale)
    q = call("add.Tensor", call("round", call("mul.Tensor", x, inverse)), zero)
    return call("where.self", call("isnan", q), full((), -math.inf, F32), q)


def _faked(x: Value, scale: Value | Number, zero: Value | Number, least: int, most: int
           ) -> list[Value]:
    """What quantized elements stand for, and which ones are not clamped."""
    if x.dtype not in (F32, torch.float16, torch.bfloat16):
        raise Unsupported(f"quantized elements of {x.dtype}")
    q = _quantized(cast(x, F32), scale, zero)
    inside = call("logical_and", call("ge.Scalar", q, least), call("le.Scalar", q, most))
    q = call("clamp", q, float(least), float(most))
    y = call("mul.Tensor", call("sub.Tensor", q, zero), scale)
    return [cast(expanded(y, x.shape), x.dtype), expanded(inside, x.shape)]


def _number(x: Value) -> Value:
    """One parameter, FLOAT32."""
    if x.numel != 1:
        raise Unsupported("several scales of one tensor")
    return resized(cast(x, F32), ())


def _of_channels(x: Value, parameter: Value, axis: int) -> Value:
    shape = [parameter.numel if d == axis % x.ndim else 1 for d in range(x.ndim)]
    return resized(cast(parameter, F32), shape)


@lowers("fake_quantize_per_tensor_affine_cachemask")
def of_tensor(x: Value, scale: float, zero: int, least: int, most: int) -> list[Value]:
    return _faked(x, full((), scale, F32), zero, least, most)


@lowers("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def of_tensor_by_tensors(x: Value, scale: Value, zero: Value, enabled: Value, least: int, most: int
                         ) -> list[Value]:
    y, inside = _faked(x, _number(scale), _number(zero), least, most)
    on = call("ne.Scalar", resized(enabled, ()), 0)
    return [call("where.self", on, y, x),
            call("where.self", on, inside, full((), True, BOOL))]


@lowers("fake_quantize_per_channel_affine_cachemask")
def of_channels(x: Value, scale: Value, zero: Value, axis: int, least: int, most: int
                ) -> list[Value]:
    if zero.dtype.is_floating_point:
        raise Unsupported("zero points between integers")
    return _faked(x, _of_channels(x, scale, axis), _of_channels(x, zero, axis), least, most)


def _nearest(zero: Value, least: int, most: int) -> Value:
    return call("clamp", call("round", zero), float(least), float(most))


@lowers("_fake_quantize_learnable_per_tensor_affine")
def learnable(x: Value, scale: Value, zero: Value, least: int, most: int, share: float = 1.0
              ) -> Value:
    return _faked(x, _number(scale), _nearest(_number(zero), least, most), least, most)[0]


@lowers("_fake_quantize_learnable_per_channel_affine")
def learnable_of_channels(x: Value, scale: Value, zero: Value, axis: int, least: int, most: int,
                          share: float = 1.0) -> Value:
    return _faked(x, _of_channels(x, scale, axis), _nearest(
        _of_channels(x, zero, axis), least, most), least, most)[0]


def _slopes(g: Value, x: Value, scale: Value, zero: Value, least: int, most: int, share: float
            ) -> list[Value]:
    """The gradients of elements, and each element's share in those of scale and zero point."""
    zero = _nearest(zero, least, most)
    g = cast(g, F32)
    q = _quantized(cast(x, F32), scale, zero)
    low, high = call("lt.Scalar", q, least), call("gt.Scalar", q, most)
    inside = call("logical_not", call("logical_or", low, high))
    faked = call("mul.Tensor", call("sub.Tensor", q, zero), scale)
    rest = call("div.Tensor", call("sub.Tensor", faked, x), scale)
    slope = call("where.self", low, call("rsub.Scalar", zero, least), call(
        "where.self", high, call("rsub.Scalar", zero, most), rest))
    nothing = full((), 0.0, F32)
    return [call("where.self", inside, g, nothing),
            call("mul.Tensor", call("mul.Tensor", g, slope), share),
            call("where.self", inside, nothing, call(
                "mul.Tensor", call("mul.Tensor", g, scale), -share))]


@lowers("_fake_quantize_learnable_per_tensor_affine_backward")
def learnable_backward(g: Value, x: Value, scale: Value, zero: Value, least: int, most: int,
                       share: float = 1.0) -> list[Value]:
    slopes = _slopes(g, x, _number(scale), _number(zero), least, most, share)
    return [slopes[0], *[resized(call("sum", v), (1,)) for v in slopes[1:]]]


@lowers("_fake_quantize_learnable_per_channel_affine_backward")
def learnable_of_channels_backward(
    g: Value, x: Value, scale: Value, zero: Value, axis: int, least: int, most: int,
    share: float = 1.0,
) -> list[Value]:
    slopes = _slopes(g, x, _of_channels(x, scale, axis), _of_channels(x, zero, axis), least, most,
                     share)
    others = [d for d in range(x.ndim) if d != axis % x.ndim]
    return [slopes[0], *[call("sum.dim_IntList", v, others) if others else v
                         for v in slopes[1:]]]
