"""Descriptions of operators that have several kernels, drawn at random with the sizes of models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import kompute_dml as dml
from kompute_dml.operators.base import OperatorDesc, definitions
from kompute_dml.operators.convolution import ConvolutionIntegerToFloatDesc
from kompute_dml.operators.matrix_multiply.blocked_weights import BlockedGemmDesc

_OWNED = dml.TensorFlags.OWNED_BY_DML
_SIDES = (1, 7, 14, 28, 56, 112, 224, 17, 37)
_CHANNELS = (3, 8, 16, 24, 32, 48, 64, 96, 128, 144, 192, 256, 320, 512, 960, 1024, 2048, 5, 33)
_LONG = (1, 2, 3, 4, 8, 12, 16, 31, 64, 100, 128, 384, 512, 768, 1024, 2048, 3072, 4096, 11008)

Random = random.Random


def _image(r: Random, kind: str, sizes: tuple[int, ...], last: bool, **more: Any) -> dml.TensorDesc:
    """Images whose channels come first, or last."""
    _, c, h, w = sizes
    strides = (h * w * c, 1, w * c, c) if last else None
    return dml.TensorDesc(kind, sizes, strides, **more)


def _taps(r: Random, kind: str, sizes: tuple[int, ...], last: bool) -> dml.TensorDesc:
    flags = _OWNED if r.random() < 0.7 else dml.TensorFlags.NONE
    return _image(r, kind, sizes, last, flags=flags)


def _window(r: Random) -> tuple[dict[str, Any], int, int, int, int]:
    k, stride = r.choice(((1, 1), (1, 2), (3, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 2), (2, 2)))
    dilation = 2 if k > 1 and r.random() < 0.1 else 1
    pad = r.choice((0, dilation * (k - 1) // 2))
    return dict(dimension_count=2, strides=(stride,) * 2, dilations=(dilation,) * 2,
                start_padding=(pad,) * 2, end_padding=(pad,) * 2), k, stride, dilation, pad


def _layer(r: Random) -> tuple[Any, ...]:
    window, k, stride, dilation, pad = _window(r)
    side = r.choice([n for n in _SIDES if n + 2 * pad > dilation * (k - 1)])
    x, y = r.choice(_CHANNELS), r.choice(_CHANNELS)
    groups = 1
    if r.random() < 0.25:
        y = groups = x
    elif r.random() < 0.1 and x % 4 == y % 4 == 0:
        groups = 4
    out = (side + 2 * pad - dilation * (k - 1) - 1) // stride + 1
    n = r.choice((1, 1, 2, 8, 32))
    return window, (n, x, side, side), (y, x // groups, k, k), (n, y, out, out), groups, (
        r.random() < 0.7)


def convolution(r: Random) -> OperatorDesc:
    kind = r.choice(("float16", "float16", "float32"))
    window, x, w, y, groups, last = _layer(r)
    direction, output_padding = dml.ConvolutionDirection.FORWARD, (0, 0)
    if r.random() < 0.15 and groups == 1:
        direction, k, s = dml.ConvolutionDirection.BACKWARD, w[2], window["strides"][0]
        pad, reach = window["start_padding"][0], window["dilations"][0] * (k - 1) + 1
        side = (x[2] - 1) * s + reach - 2 * pad
        if side > 0:
            w, y = (x[1], y[1], k, k), (x[0], y[1], side, side)
        else:
            direction = dml.ConvolutionDirection.FORWARD
    y_last = last if r.random() < 0.9 else not last
    activation = dml.ActivationReluOperatorDesc() if r.random() < 0.3 else None
    return dml.ConvolutionOperatorDesc(
        input_tensor=_image(r, kind, x, last), filter_tensor=_taps(r, kind, w, r.random() < 0.5),
        bias_tensor=dml.TensorDesc(kind, (1, y[1], 1, 1)) if r.random() < 0.5 else None,
        output_tensor=_image(r, kind, y, y_last), mode=dml.ConvolutionMode.CROSS_CORRELATION,
        direction=direction, **window, output_padding=output_padding, group_count=groups,
        fused_activation=activation)


def _bytes(r: Random) -> tuple[dict[str, Any], tuple[int, ...], Any, int]:
    window, x, w, y, groups, last = _layer(r)
    kinds = r.choice((("int8", "int8"), ("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")))
    zero = dml.TensorDesc(kinds[0], (1, 1, 1, 1)) if r.random() < 0.4 else None
    w_zero = dml.TensorDesc(kinds[1], (1, 1, 1, 1)) if r.random() < 0.2 else None
    return dict(
        input_tensor=_image(r, kinds[0], x, last),
        filter_tensor=_taps(r, kinds[1], w, last), input_zero_point_tensor=zero,
        filter_zero_point_tensor=w_zero, **window, group_count=groups), y, last, y[1]


def convolution_integer(r: Random) -> OperatorDesc:
    fields, y, last, _ = _bytes(r)
    return dml.ConvolutionIntegerOperatorDesc(**fields, output_tensor=_image(r, "int32", y, last))


def convolution_integer_to_float(r: Random) -> OperatorDesc:
    fields, y, last, channels = _bytes(r)
    of_channels = dml.TensorDesc("float32", (1, channels, 1, 1))
    desc: OperatorDesc = ConvolutionIntegerToFloatDesc(
        **fields, output_tensor=_image(r, "float32", y, last),
        input_scale_tensor=dml.TensorDesc("float32", (1, 1, 1, 1)),
        filter_scale_tensor=of_channels, bias_tensor=of_channels if r.random() < 0.5 else None,
        fused_activation=None, range_scale_tensor=None, range_zero_point_tensor=None)
    return desc


def convolution_quantized(r: Random) -> OperatorDesc:
    fields, y, last, channels = _bytes(r)
    one = dml.TensorDesc("float32", (1, 1, 1, 1))
    bias = dml.TensorDesc("int32", (1, channels, 1, 1)) if r.random() < 0.5 else None
    return dml.QuantizedLinearConvolutionOperatorDesc(
        **fields, output_tensor=_image(r, "int8", y, last), input_scale_tensor=one,
        filter_scale_tensor=dml.TensorDesc("float32", (1, channels, 1, 1)),
        output_scale_tensor=one, output_zero_point_tensor=None, bias_tensor=bias)


def _matrix(r: Random, kind: str, batches: int, rows: int, columns: int, flipped: bool,
            **more: Any) -> dml.TensorDesc:
    pitch = columns + (0 if r.random() < 0.9 else r.choice((1, 3, 8)))
    strides = (rows * pitch, rows * pitch, pitch, 1)
    if flipped:
        strides = (rows * columns, rows * columns, 1, rows)
    return dml.TensorDesc(kind, (1, batches, rows, columns), strides, **more)


def _sizes(r: Random) -> tuple[int, int, int, int]:
    return (r.choice((1, 1, 1, 2, 12)), r.choice(_LONG), r.choice((*_LONG[3:], 4093)),
            r.choice((*_LONG, 4097)))


def gemm(r: Random) -> OperatorDesc:
    kind = r.choice(("float16", "float16", "float32"))
    batches, m, k, n = _sizes(r)
    trans_b = int(r.random() < 0.5)
    flags = _OWNED if r.random() < 0.3 else dml.TensorFlags.NONE
    b = (n, k) if trans_b else (k, n)
    return dml.GemmOperatorDesc(
        a_tensor=_matrix(r, kind, batches, m, k, r.random() < 0.1),
        b_tensor=_matrix(r, kind, batches, *b, False, flags=flags),
        c_tensor=_matrix(r, kind, batches, m, n, False) if r.random() < 0.3 else None,
        output_tensor=_matrix(r, kind, batches, m, n, False), trans_a=0, trans_b=trans_b,
        alpha=1.0, beta=1.0,
        fused_activation=dml.ActivationReluOperatorDesc() if r.random() < 0.3 else None)


def blocked_gemm(r: Random) -> OperatorDesc:
    kind, of = r.choice(("float16", "float32")), r.choice(("uint4", "uint4", "int8", "uint8"))
    block, m = r.choice((16, 32, 64, 128)), r.choice((1, 1, 2, 4, 7, 8, 16))
    k, n = block * r.choice((4, 8, 32, 64)), r.choice((32, 512, 1024, 4096, 11008))
    zero = dml.TensorDesc(of, (n, k // block)) if r.random() < 0.5 else None
    desc: OperatorDesc = BlockedGemmDesc(
        a_tensor=dml.TensorDesc(kind, (1, 1, m, k)),
        b_tensor=dml.TensorDesc(of, (1, 1, k, n), (k * n, k * n, 1, k)),
        b_scale_tensor=dml.TensorDesc(kind, (n, k // block)), b_zero_point_tensor=zero,
        c_tensor=None, output_tensor=dml.TensorDesc(kind, (1, 1, m, n)), block_size=block,
        trans_a=0, trans_b=0, alpha=1.0, beta=1.0, fused_activation=None)
    return desc


def _integers(r: Random) -> tuple[dict[str, Any], tuple[int, ...]]:
    batches, m, k, n = _sizes(r)
    a, b = r.choice((("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")))
    flags = _OWNED if r.random() < 0.3 else dml.TensorFlags.NONE
    zeros = [dml.TensorDesc(t, (1, 1, 1, 1)) if r.random() < 0.5 else None for t in (a, b)]
    return dict(
        a_tensor=_matrix(r, a, batches, m, k, r.random() < 0.1), a_zero_point_tensor=zeros[0],
        b_tensor=_matrix(r, b, batches, k, n, r.random() < 0.5, flags=flags),
        b_zero_point_tensor=zeros[1]), (1, batches, m, n)


def matrix_multiply_integer(r: Random) -> OperatorDesc:
    fields, sizes = _integers(r)
    return dml.MatrixMultiplyIntegerOperatorDesc(
        **fields, output_tensor=dml.TensorDesc("int32", sizes))


def matrix_multiply_to_float(r: Random) -> OperatorDesc:
    fields, sizes = _integers(r)
    one, out = dml.TensorDesc("float32", (1, 1, 1, 1)), r.choice(("float32", "float16"))
    one = dml.TensorDesc(out, (1, 1, 1, 1))
    return dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        **fields, a_scale_tensor=one, b_scale_tensor=one, bias_tensor=None,
        output_tensor=dml.TensorDesc(out, sizes))


def matrix_multiply_quantized(r: Random) -> OperatorDesc:
    fields, sizes = _integers(r)
    one = dml.TensorDesc("float32", (1, 1, 1, 1))
    return dml.QuantizedLinearMatrixMultiplyOperatorDesc(
        **fields, a_scale_tensor=one, b_scale_tensor=one, output_scale_tensor=one,
        output_zero_point_tensor=None, output_tensor=dml.TensorDesc("int8", sizes))


def attention(r: Random) -> OperatorDesc:
    kind = r.choice(("float16", "float16", "float32"))
    batches, heads, group = r.choice((1, 2, 8)), r.choice((1, 8, 12, 32)), r.choice((1, 1, 4))
    key_heads = heads // group if heads % group == 0 else heads
    queries = r.choice((1, 1, 4, 16, 64, 77, 128, 512, 1024, 4096))
    keys = r.choice((queries, queries, 77, 128, 1024, 4096))
    size = r.choice((32, 64, 64, 80, 96, 128, 160, 40))
    fields: dict[str, Any] = {f.snake: None for f in definitions()[
        "DML_OPERATOR_MULTIHEAD_ATTENTION1"].spec.fields}
    added = r.random() < 0.2 and queries * keys < 1 << 20
    relative = dml.TensorDesc(kind, (batches, heads, queries, keys)) if added else None
    fields.update(
        query_tensor=dml.TensorDesc(kind, (batches, queries, heads * size)),
        key_tensor=dml.TensorDesc(kind, (batches, keys, key_heads * size)),
        value_tensor=dml.TensorDesc(kind, (batches, keys, key_heads * size)),
        output_tensor=dml.TensorDesc(kind, (batches, queries, heads * size)),
        relative_position_bias_tensor=relative, query_head_count=heads,
        key_value_head_count=key_heads, scale=size**-0.5, mask_filter_value=-1e4,
        mask_type=dml.MultiheadAttentionMaskType.NONE)
    return dml.MultiheadAttention1OperatorDesc(**fields)


def pooling(r: Random) -> OperatorDesc:
    kind, last = r.choice(("float16", "float32")), r.random() < 0.5
    _, k, stride, _, pad = _window(r)
    n, c, side = r.choice((1, 8, 32)), r.choice(_CHANNELS), r.choice((14, 28, 56, 112, 17, 7))
    if r.random() < 0.3:
        k, stride, pad = side, 1, 0
    out = (side + 2 * pad - k) // stride + 1
    fields: dict[str, Any] = dict(
        input_tensor=_image(r, kind, (n, c, side, side), last),
        output_tensor=_image(r, kind, (n, c, out, out), last), dimension_count=2,
        strides=(stride,) * 2, window_size=(k, k), start_padding=(pad,) * 2, end_padding=(pad,) * 2)
    if r.random() < 0.5:
        return dml.AveragePoolingOperatorDesc(**fields, include_padding=0)
    return dml.MaxPoolingOperatorDesc(**fields)


def reduction(r: Random) -> OperatorDesc:
    kind = r.choice(("float16", "float32", "int32"))
    sizes = tuple(r.choice((1, 7, 32, 64, 100, 512, 1500)) for _ in range(3))
    axes = tuple(sorted(r.sample(range(3), r.choice((1, 1, 2, 3)))))
    function = r.choice((dml.ReduceFunction.SUM, dml.ReduceFunction.MAX,
                         dml.ReduceFunction.ARGMAX, dml.ReduceFunction.AVERAGE))
    if kind == "int32" and function == dml.ReduceFunction.AVERAGE:
        function = dml.ReduceFunction.SUM
    to = "uint32" if function == dml.ReduceFunction.ARGMAX else kind
    return dml.ReduceOperatorDesc(
        function=function, axes=axes, input_tensor=dml.TensorDesc(kind, sizes),
        output_tensor=dml.TensorDesc(to, tuple(
            1 if i in axes else n for i, n in enumerate(sizes))))


def first_k(r: Random) -> OperatorDesc:
    kind, rows, columns = r.choice(("float16", "float32", "int64")), r.choice(
        (1, 8, 512, 2048)), r.choice((10, 100, 1000, 2048, 16384, 131072, 1 << 20))
    k = min(columns, r.choice((1, 5, 50, 500, 5000)))
    return dml.TopKOperatorDesc(
        input_tensor=dml.TensorDesc(kind, (rows, columns)), axis=1, k=k,
        output_value_tensor=dml.TensorDesc(kind, (rows, k)),
        output_index_tensor=dml.TensorDesc("uint32", (rows, k)))


def scan(r: Random) -> OperatorDesc:
    kind = r.choice(("float16", "float32", "int32"))
    sizes = (r.choice((1, 8, 512, 2048)), r.choice((10, 100, 2048, 16384, 1 << 20)))
    axis = r.choice((0, 1, 1))
    x = dml.TensorDesc(kind, sizes)
    return dml.CumulativeSummationOperatorDesc(
        input_tensor=x, output_tensor=x, axis=axis, axis_direction=dml.AxisDirection.INCREASING,
        has_exclusive_sum=int(r.random() < 0.3))


def resample(r: Random) -> OperatorDesc:
    kind, last = r.choice(("float16", "float32")), r.random() < 0.3
    n, c, side = r.choice((1, 8)), r.choice(_CHANNELS), r.choice((7, 16, 56, 100))
    scale = r.choice((2.0, 0.5, 1.5, 4.0))
    out = int(side * scale)
    return dml.Resample1OperatorDesc(
        input_tensor=_image(r, kind, (n, c, side, side), last),
        output_tensor=_image(r, kind, (n, c, out, out), last), dimension_count=4,
        interpolation_mode=r.choice(list(dml.InterpolationMode)), scales=(1.0, 1.0, scale, scale),
        input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4)


_MAKERS: dict[Callable[[Random], OperatorDesc], int] = {
    convolution: 700, convolution_integer: 150, convolution_integer_to_float: 200,
    convolution_quantized: 200, gemm: 500, blocked_gemm: 150, matrix_multiply_integer: 150,
    matrix_multiply_to_float: 250, matrix_multiply_quantized: 150, attention: 300, pooling: 150,
    reduction: 100, first_k: 60, scan: 60, resample: 100}


def drawn() -> Iterator[tuple[str, OperatorDesc]]:
    """The same descriptions at every call, with their names."""
    for make, count in _MAKERS.items():
        r = Random(make.__name__)
        for i in range(count):
            yield f"{make.__name__} {i}", make(r)
