"""Softmax and normalizations."""

from __future__ import annotations

import torch

import kompute_dml as dml

from ..table import call, lowers
from ..values import F32, Sizes, Unsupported, Value, cast, empty, full, resized, rounded_once, value
from .reductions import Function, reduced


@lowers("_softmax")
def softmax(x: Value, dim: int, half_to_float: object = False) -> Value:
    return _softmax(dml.activation_softmax1, x, dim, half_to_float)


@lowers("_safe_softmax")
def safe_softmax(x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Rows that are masked whole give 0."""
    y = softmax(x if dtype is None else cast(x, dtype), dim)
    masked = call("all.dim", call("isneginf", x), dim, True)
    return call("where.self", masked, full((), 0.0, y.dtype), y)


@lowers("_log_softmax")
def log_softmax(x: Value, dim: int, half_to_float: object = False) -> Value:
    return _softmax(dml.activation_log_softmax1, x, dim, half_to_float)


def _softmax(function: object, x: Value, dim: int, half_to_float: object) -> Value:
    result = half_to_float if isinstance(half_to_float, torch.dtype) else (
        F32 if half_to_float else x.dtype)
    if x.data is None:
        return empty(x.shape, result)
    if torch.float64 in (x.dtype, result):
        raise Unsupported("softmax in FLOAT64")
    y = cast(x, result if result in (F32, torch.float16) else F32)
    z = function(y.elements, axes=[dim % max(x.ndim, 1)])  # type: ignore[operator]
    return cast(value(z, x.shape, y.dtype), result)


@lowers("_softmax_backward_data")
def softmax_backward(g: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    return cast(_softmax_gradient(g, y, dim), input_dtype)


@rounded_once
def _softmax_gradient(g: Value, y: Value, dim: int) -> Value:
    product = call("mul.Tensor", g, y)
    total = reduced(Function.SUM, product, [dim], True)
    return call("sub.Tensor", product, call("mul.Tensor", y, total))


@lowers("_log_softmax_backward_data")
def log_softmax_backward(g: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    return cast(_log_softmax_gradient(g, y, dim), input_dtype)


@rounded_once
def _log_softmax_gradient(g: Value, y: Value, dim: int) -> Value:
    total = reduced(Function.SUM, g, [dim], True)
    return call("sub.Tensor", g, call("mul.Tensor", call("exp", y), total))


def _standardized(x: Value, dims: Sizes, eps: float) -> list[Value]:
    """(x - mean) / sqrt(variance + eps), the mean, and the reciprocal."""
    average = reduced(Function.AVERAGE, x, dims, True)
    apart = call("sub.Tensor", x, average)
    variance = reduced(Function.AVERAGE, call("mul.Tensor", apart, apart), dims, True)
    scale = call("rsqrt", call("add.Tensor", variance, eps))
    return [call("mul.Tensor", apart, scale), average, scale]


@lowers("native_layer_norm")
def layer_norm(x: Value, shape: Sizes, weight: Value | None, bias: Value | None, eps: float
               ) -> list[Value]:
    dims = list(range(x.ndim - len(shape), x.ndim))
    if x.dtype in (torch.float16, torch.bfloat16):
        results = layer_norm(cast(x, F32), shape, weight and cast(weight, F32), bias and cast(
            bias, F32), eps)
        return [cast(results[0], x.dtype), *results[1:]]
    y, average, scale = _standardized(x, dims, eps)
    return [_affine(y, weight, bias), average, scale]


def _affine(y: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        y = call("mul.Tensor", y, weight)
    return y if bias is None else call("add.Tensor", y, bias)


def _per_channel(x: Value | None, rank: int) -> Value | None:
    return None if x is None else resized(x, (1, x.numel, *[1] * (rank - 2)))


@lowers("native_group_norm")
def group_norm(x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hw: int,
               groups: int, eps: float) -> list[Value]:
    if x.dtype in (torch.float16, torch.bfloat16):
        results = group_norm(cast(x, F32), weight and cast(weight, F32), bias and cast(bias, F32),
                             n, c, hw, groups, eps)
        return [cast(results[0], x.dtype), *[cast(v, x.dtype) for v in results[1:]]]
    rows = resized(x, (n, groups, c // groups * hw))
    y, average, scale = _standardized(rows, [2], eps)
    y = _affine(resized(y, x.shape), _per_channel(weight, x.ndim), _per_channel(bias, x.ndim))
    return [y, resized(average, (n, groups)), resized(scale, (n, groups))]


@lowers("_native_batch_norm_legit_no_training")
def batch_norm(x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value,
               momentum: float, eps: float) -> list[Value]:
    nothing = empty((0,), x.dtype)
    if x.data is None:
        return [x, nothing, nothing]
    per_channel = [
        _per_channel(cast(v, x.dtype), x.ndim) for v in (
            mean, variance, weight or full(mean.shape, 1.0, x.dtype),
            bias or full(mean.shape, 0.0, x.dtype))]
    if x.dtype not in (F32, torch.float16):
        scale = call("rsqrt", call("add.Tensor", per_channel[1], eps))
        y = call("mul.Tensor", call("sub.Tensor", x, per_channel[0]), scale)
        return [_affine(y, per_channel[2], per_channel[3]), nothing, nothing]
    y = dml.batch_normalization(x.data, *[v.elements for v in per_channel if v is not None],
                                epsilon=eps)
    return [value(y, x.shape, x.dtype), nothing, nothing]


@lowers("_weight_norm_interface_backward")
def weight_norm_backward(gradient: Value, v: Value, g: Value, norms: Value, dim: int
                         ) -> list[Value]:
    """Of w = v g / |v|, whose norms are over all dimensions but ``dim``."""
    others = [d for d in range(v.ndim) if d != dim % v.ndim]
    norms = cast(norms, g.dtype)
    along = call("div.Tensor", call(
        "sum.dim_IntList", call("mul.Tensor", gradient, v), others, True), norms)
    across = call("sub.Tensor", gradient, call("mul.Tensor", v, call("div.Tensor", along, norms)))
    return [call("mul.Tensor", across, call("div.Tensor", g, norms)), cast(along, g.dtype)]
