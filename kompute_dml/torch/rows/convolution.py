"""Convolutions, pooling, and what resamples images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import kompute_dml as dml

from ..table import call, lowers
from ..values import (
    F32,
    I64,
    Number,
    Sizes,
    Unsupported,
    Value,
    cast,
    constant,
    full,
    permuted,
    resized,
    value,
    window,
)
from .reductions import Function, reduced


def _each(sizes: Sequence[int] | int, rank: int) -> list[int]:
    """One number for each dimension of an image."""
    if isinstance(sizes, int):
        return [sizes] * rank
    return [int(n) for n in (sizes if len(sizes) == rank else [sizes[0]] * rank)]


@lowers("convolution")
def convolution(x: Value, weight: Value, bias: Value | None, stride: Sizes, padding: Sizes,
                dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int) -> Value:
    rank = weight.ndim - 2
    if x.ndim == weight.ndim - 1:
        y = convolution(resized(x, (1, *x.shape)), weight, bias, stride, padding, dilation,
                        transposed, output_padding, groups)
        return resized(y, y.shape[1:])
    if not x.dtype.is_floating_point:
        raise Unsupported("a convolution of integers")
    if x.dtype not in (F32, torch.float16):
        y = convolution(cast(x, F32), cast(weight, F32), bias and cast(bias, F32), stride, padding,
                        dilation, transposed, output_padding, groups)
        return cast(y, x.dtype)
    s, p, d, extra = (_each(v, rank) for v in (stride, padding, dilation, output_padding))
    shape = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for i in range(rank):
        reach = d[i] * (weight.shape[2 + i] - 1) + 1
        n = x.shape[2 + i]
        shape.append((n - 1) * s[i] - 2 * p[i] + reach + extra[i] if transposed
                     else (n + 2 * p[i] - reach) // s[i] + 1)
    if not x.numel or not weight.numel:
        nothing = full(shape, 0, x.dtype)
        return nothing if bias is None else call(
            "add.Tensor", nothing, resized(bias, (bias.numel, *[1] * rank)))
    added = None if bias is None else bias.elements.reshape((1, bias.numel, *[1] * rank))
    sums = dml.convolution(
        x.elements, weight.elements, added, strides=s, dilations=d, start_padding=p, end_padding=p,
        output_padding=extra, group_count=groups, direction=1 if transposed else 0)
    return value(sums, shape, x.dtype)


@lowers("convolution_backward")
def convolution_backward(
    g: Value, x: Value, weight: Value, bias_sizes: Sizes | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int, mask: Sequence[bool],
) -> list[Value | None]:
    """The gradient of the input is the convolution of the other direction; that of the weights is
    a convolution whose channels are the batch."""
    rank = weight.ndim - 2
    if x.ndim == weight.ndim - 1:
        of_batch = convolution_backward(
            resized(g, (1, *g.shape)), resized(x, (1, *x.shape)), weight, bias_sizes, stride,
            padding, dilation, transposed, output_padding, groups, mask)
        return [of_batch[0] and resized(of_batch[0], x.shape), *of_batch[1:]]
    if x.dtype == torch.bfloat16:
        wide = convolution_backward(cast(g, F32), cast(x, F32), cast(weight, F32), bias_sizes,
                                    stride, padding, dilation, transposed, output_padding, groups,
                                    mask)
        return [v and cast(v, x.dtype) for v in wide]
    s, p, d = (_each(v, rank) for v in (stride, padding, dilation))
    dx: Value | None = None
    dw: Value | None = None
    db: Value | None = None
    if mask[0]:
        dx = (full(x.shape, 0, x.dtype) if not g.numel else
              _input_gradient(g, x, weight, s, p, d, transposed, groups))
    if mask[1]:
        dw = (full(weight.shape, 0, x.dtype) if not g.numel else
              _weight_gradient(*(g, x) if transposed else (x, g), weight, s, p, d, groups))
    if mask[2]:
        db = reduced(Function.SUM, g, [0, *range(2, 2 + rank)], False)
    return [dx, dw, db]


def _input_gradient(g: Value, x: Value, weight: Value, s: Sizes, p: Sizes, d: Sizes,
                    transposed: bool, groups: int) -> Value:
    rank = weight.ndim - 2
    if transposed:
        return convolution(g, weight, None, s, p, d, False, [0] * rank, groups)
    reach = [d[i] * (weight.shape[2 + i] - 1) + 1 for i in range(rank)]
    extra = [x.shape[2 + i] - ((g.shape[2 + i] - 1) * s[i] - 2 * p[i] + reach[i])
             for i in range(rank)]
    return convolution(g, weight, None, s, p, d, True, extra, groups)


def _weight_gradient(slid: Value, other: Value, weight: Value, s: Sizes, p: Sizes, d: Sizes,
                     groups: int) -> Value:
    """The window slides over ``slid`` with steps of the dilation, its taps are the stride apart."""
    rank = weight.ndim - 2
    batch, channels = slid.shape[0], slid.shape[1] // groups
    split = resized(slid, (batch, groups, channels, *slid.shape[2:]))
    left = permuted(split, [2, 1, 0, *range(3, 3 + rank)])
    left = resized(left, (channels, groups * batch, *slid.shape[2:]))
    right = permuted(other, [1, 0, *range(2, 2 + rank)])
    y = convolution(left, right, None, d, p, s, False, [0] * rank, groups)
    for i in range(rank):
        y = window(y, 2 + i, 0, weight.shape[2 + i])
    return permuted(y, [1, 0, *range(2, 2 + rank)])


# Pooling


def _window(x: Value, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil: bool,
            rank: int = 2) -> tuple[dict[str, Any], list[int]]:
    """DirectML's fields, and the dilations. With ``ceil`` the end is padded, so that a last window
    that begins inside counts."""
    k = _each(kernel, rank)
    s = _each(stride, rank) if (not isinstance(stride, int) and len(stride)) or isinstance(
        stride, int) else k
    p, d = _each(padding, rank), _each(dilation, rank)
    end = list(p)
    if ceil:
        for i in range(rank):
            size = x.shape[x.ndim - rank + i] + 2 * p[i]
            reach = d[i] * (k[i] - 1) + 1
            out = -(-(size - reach) // s[i]) + 1
            out -= (out - 1) * s[i] >= size - p[i]
            end[i] += (out - 1) * s[i] + reach - size
    if min(end) < 0:
        raise Unsupported("a pool that leaves elements out")
    return {"window_size": k, "strides": s, "start_padding": p, "end_padding": end}, d


def _images(x: Value, rank: int = 2) -> Value:
    return x if x.ndim == rank + 2 else resized(x, (1, *x.shape))


@lowers("max_pool2d_with_indices")
def max_pool2d(x: Value, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,),
               dilation: Sizes = (1,), ceil_mode: bool = False) -> list[Value]:
    return _max_pool(x, kernel, stride, padding, dilation, ceil_mode, 2)


@lowers("max_pool3d_with_indices")
def max_pool3d(x: Value, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,),
               dilation: Sizes = (1,), ceil_mode: bool = False) -> list[Value]:
    return _max_pool(x, kernel, stride, padding, dilation, ceil_mode, 3)


def _max_pool(x: Value, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil: bool,
              rank: int) -> list[Value]:
    fields, d = _window(x, kernel, stride, padding, dilation, ceil, rank)
    if not x.dtype.is_floating_point:
        raise Unsupported("a pool of the largest integers")
    images = _images(x, rank)
    if x.dtype == torch.bfloat16:
        images = cast(images, F32)
    y, at = dml.max_pooling2(images.elements, dilations=d, output_indices=True,
                             data_type="uint32", **fields)
    plane = math.prod(images.shape[2:])
    at = dml.cast(dml.modulus_truncate(at, plane), "int64")  # DirectML counts the whole tensor
    shape = y.desc.sizes if x.ndim == images.ndim else y.desc.sizes[1:]
    return [cast(value(y, shape, images.dtype), x.dtype), value(at, shape, I64)]


@lowers("max_pool2d_with_indices_backward")
def max_pool2d_backward(g: Value, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes,
                        dilation: Sizes, ceil_mode: bool, indices: Value) -> Value:
    return _max_pool_back(g, x, kernel, stride, padding, dilation, ceil_mode, 2)


@lowers("max_pool3d_with_indices_backward")
def max_pool3d_backward(g: Value, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes,
                        dilation: Sizes, ceil_mode: bool, indices: Value) -> Value:
    return _max_pool_back(g, x, kernel, stride, padding, dilation, ceil_mode, 3)


def _max_pool_back(g: Value, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes,
                   dilation: Sizes, ceil: bool, rank: int) -> Value:
    fields, d = _window(x, kernel, stride, padding, dilation, ceil, rank)
    if x.dtype not in (F32, torch.float16):
        raise Unsupported(f"the gradient of a pool of {x!r}")
    y = dml.max_pooling_grad(_images(x, rank).elements, _images(g, rank).elements, dilations=d,
                             **fields)
    return value(y, x.shape, x.dtype)


@lowers("avg_pool2d")
def avg_pool2d(x: Value, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,),
               ceil_mode: bool = False, count_include_pad: bool = True,
               divisor_override: int | None = None) -> Value:
    return _average(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


@lowers("avg_pool3d")
def avg_pool3d(x: Value, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,),
               ceil_mode: bool = False, count_include_pad: bool = True,
               divisor_override: int | None = None) -> Value:
    return _average(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


def _average(x: Value, kernel: Sizes, stride: Sizes, padding: Sizes, ceil: bool, include: bool,
             divisor: int | None, rank: int) -> Value:
    fields, _ = _window(x, kernel, stride, padding, (1,), ceil, rank)
    if x.dtype not in (F32, torch.float16):
        raise Unsupported(f"an average pool of {x!r}")
    averages = dml.average_pooling(_images(x, rank).elements,
                                   include_padding=int(include or divisor is not None), **fields)
    shape = averages.desc.sizes if x.ndim == rank + 2 else averages.desc.sizes[1:]
    y = value(averages, shape, x.dtype)
    if divisor is None:
        cut = _cut(fields, x.shape[-rank:]) if include else None
        return y if cut is None else call("mul.Tensor", y, cast(cut, x.dtype))
    return call("mul.Tensor", y, math.prod(fields["window_size"]) / divisor)


@lowers("avg_pool2d_backward")
def avg_pool2d_backward(g: Value, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes,
                        ceil_mode: bool, count_include_pad: bool,
                        divisor_override: int | None = None) -> Value:
    return _average_back(g, x, kernel, stride, padding, ceil_mode, count_include_pad,
                         divisor_override, 2)


@lowers("avg_pool3d_backward")
def avg_pool3d_backward(g: Value, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes,
                        ceil_mode: bool, count_include_pad: bool,
                        divisor_override: int | None = None) -> Value:
    return _average_back(g, x, kernel, stride, padding, ceil_mode, count_include_pad,
                         divisor_override, 3)


def _average_back(g: Value, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes, ceil: bool,
                  include: bool, divisor: int | None, rank: int) -> Value:
    fields, _ = _window(x, kernel, stride, padding, (1,), ceil, rank)
    cut = _cut(fields, x.shape[-rank:]) if include else None
    if divisor is not None:
        g = call("mul.Tensor", g, math.prod(fields["window_size"]) / divisor)
    elif cut is not None:
        g = call("mul.Tensor", g, cast(cut, g.dtype))
    y = dml.average_pooling_grad(
        _images(g, rank).elements, include_padding=int(include or divisor is not None),
        output_sizes=_images(x, rank).shape, **fields)
    return value(y, x.shape, x.dtype)


def _cut(fields: dict[str, Any], sizes: Sizes) -> Value | None:
    """A whole window against the part of it that PyTorch counts: padding at the end counts as far
    as at the start. None where all windows count whole."""
    if fields["end_padding"] == fields["start_padding"]:
        return None
    ratios = np.ones((), np.float32)
    for k, s, p, end, n in zip(fields["window_size"], fields["strides"], fields["start_padding"],
                               fields["end_padding"], sizes):
        begin = np.arange((n + p + end - k) // s + 1) * s - p
        counts = np.minimum(begin + k, n + p) - begin
        ratios = ratios[..., None] * (k / counts).astype(np.float32)
    return constant(ratios, F32)


@lowers("upsample_nearest2d")
def upsample_nearest2d(x: Value, size: Sizes, scales_h: Number | None = None,
                       scales_w: Number | None = None) -> Value:
    """Whole factors repeat; others take rows and columns."""
    for dim, n, scale in ((2, size[0], scales_h), (3, size[1], scales_w)):
        m = x.shape[dim]
        if n % m == 0 and (scale is None or scale == n // m):
            shape = list(x.shape)
            tall = call("expand", call("unsqueeze", x, dim + 1),
                        [*shape[:dim + 1], n // m, *shape[dim + 1:]])
            x = resized(tall, [*shape[:dim], n, *shape[dim + 1:]])
        else:
            ratio = 1 / scale if scale else m / n
            at = call("floor", call("mul.Tensor", call("arange", n, dtype=F32), ratio))
            x = call("index_select", x, dim, cast(call("clamp", at, 0, m - 1), I64))
    return x
