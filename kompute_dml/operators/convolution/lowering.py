"""How a convolution lowers: as a product whose left side is gathered from the input."""

from __future__ import annotations

from typing import Any

from ...layout import Ints, packed_strides, product
from ...lowering.activation import Fused
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Operand
from ...lowering.walk import Walk
from . import matrix_units
from .problem import Problem

CORE, SUM, DIRECT = "convolution", "convolution_sum", "convolution_direct"
_DEPTH = 16
_INVOCATIONS = 256
_MAX_STEPS = 2048
"""Of K in one workgroup: lavapipe silently ends loops after 65,535 passes in all."""
_MAX_PARTS = 64
_FEW, _MAX_DIRECT = 8, 1024
"""Output channels of a group that are no tile, and the longest K that one invocation sums."""
_MIN_STEPS = 4
"""A part of K that is worth a workgroup of its own."""


def _tile(p: PlanBuilder, c: Problem) -> int:
    wide = min(c.rows, c.out_channels) > 64 and not p.device.is_cpu
    return 128 if wide and c.tiles(128, 128) >= p.device.cores else 64


def parts_of(p: PlanBuilder, tiles: int, steps: int, per_core: int) -> int:
    """Into how many parts K is cut, so that every core has ``per_core`` workgroups."""
    least = -(-steps // _MAX_STEPS)
    if p.device.is_cpu:
        return least
    return max(least, min(per_core * p.device.cores // tiles, steps // _MIN_STEPS, _MAX_PARTS))


def lower_float(p: PlanBuilder, c: Problem, fused: Fused) -> None:
    """CONVOLUTION."""
    if c.groups > 1 and c.out_channels <= _FEW and c.depth <= _MAX_DIRECT:
        _direct(p, c, fused)
        return
    kernel = matrix_units.kernel_of(p, c)
    if kernel is not None:
        c, operands = matrix_units.packed(p, c)
        tile, per_core = kernel.tile, kernel.per_core
    else:
        tile = (*[_tile(p, c)] * 2, _DEPTH)
        operands, per_core = {}, 2
    data_type = p.tensor("input_tensor").data_type
    bias_tensor = p.tensor("bias_tensor")
    finish = {"bias_stride": _channel_stride(bias_tensor, 1)}
    end = {"HAS_BIAS": bias_tensor is not None, "FUSED_ACTIVATION": fused.code}
    parts = parts_of(p, c.tiles(*tile[:2]), -(-c.depth // tile[2]), per_core)

    def dispatch(y: Operand, y_strides: Ints, last: bool) -> None:
        more, push, spec = (fused.words, finish, end) if last else ((), {}, {})
        if kernel is not None:
            matrix_units.dispatch(p, c, kernel, parts, y, y_strides, spec, push, more, operands)
        else:
            kind = data_type.code if last else 36
            _gather(p, c, f"f32.t{tile[0]}", parts, y, y_strides,
                    {"TYPE": data_type.code, "FILTER_TYPE": data_type.code, "OUTPUT_TYPE": kind,
                     **spec}, push, more, bias=p.read("bias_tensor"))

    if parts == 1:
        dispatch(p.write("output_tensor"), c.y_strides, last=True)
        return
    count = product(c.output_sizes)
    sums = p.temporary(4, parts * count)
    dispatch(sums, packed_strides(c.output_sizes), last=False)
    walk = Walk(c.output_sizes, c.y_strides)
    p.dispatch(
        f"{SUM}.float", -(-count // _INVOCATIONS), sums=sums.reading(), y=p.write("output_tensor"),
        bias=p.read("bias_tensor"), params=[*walk.words, *fused.words],
        push={"count": count, "parts": parts, "positions": product(c.output_sizes[2:]),
              "channels": c.output_sizes[1], "activation_at": len(walk.words), **finish},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": data_type.code, **end})


def _direct(p: PlanBuilder, c: Problem, fused: Fused) -> None:
    words, bias = c.words(c.y_strides), p.tensor("bias_tensor")
    along_rows, channels = c.y_strides[1] >= c.y_strides[-1], c.groups * c.out_channels
    fast, slow = (c.rows, channels) if along_rows else (channels, c.rows)
    push = c.push((1, 1, 1), 1, c.y_strides)
    for unused in ("row_tiles", "column_tiles", "parts", "steps"):
        del push[unused]
    p.dispatch(
        DIRECT, -(-(-(-fast // 2) * slow * c.phases) // _INVOCATIONS), x=p.read("input_tensor"),
        w=p.read("filter_tensor"), y=p.write("output_tensor"), bias=p.read("bias_tensor"),
        params=[*words, *fused.words],
        push={**push, "rows": c.rows, "bias_stride": _channel_stride(bias, 1),
              "activation_at": len(words)},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("input_tensor").data_type.code,
              "ALONG_ROWS": along_rows, "HAS_BIAS": bias is not None,
              "FUSED_ACTIVATION": fused.code})


def lower_integer(p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints) -> None:
    """The sums of CONVOLUTION_INTEGER and QUANTIZED_LINEAR_CONVOLUTION, INT32."""
    kinds = [p.tensor(f"{name}_tensor").data_type for name in ("input", "filter")]
    zeros = [p.tensor(f"{name}_zero_point_tensor") for name in ("input", "filter")]
    x_zero, w_zero = (p.read(f"{name}_zero_point_tensor") for name in ("input", "filter"))
    spec = {"TYPE": kinds[0].code, "FILTER_TYPE": kinds[1].code, "OUTPUT_TYPE": 20,
            "HAS_INPUT_ZERO": zeros[0] is not None, "HAS_FILTER_ZERO": zeros[1] is not None}
    push = {"w_zero_stride": _channel_stride(zeros[1])}
    _gather(p, c, f"i32.t{_tile(p, c)}", 1, y, y_strides, spec, push, (), x_zero=x_zero,
            w_zero=w_zero)


def lower_quantized(p: PlanBuilder, c: Problem) -> None:
    """QUANTIZED_LINEAR_CONVOLUTION."""
    count = product(c.output_sizes)
    sums = p.temporary(4, count)
    lower_integer(p, c, sums, packed_strides(c.output_sizes))
    walk = Walk(c.output_sizes, c.y_strides)
    names = {"bias": "bias", "x_scale": "input_scale", "w_scale": "filter_scale",
             "y_scale": "output_scale", "y_zero": "output_zero_point"}
    operands: dict[str, Any] = {name: p.read(f"{slot}_tensor") for name, slot in names.items()}
    p.dispatch(
        f"{SUM}.quantized", -(-count // _INVOCATIONS), sums=sums.reading(),
        y=p.write("output_tensor"), **operands, params=walk.words,
        push={"count": count, "parts": 1, "positions": product(c.output_sizes[2:]),
              "channels": c.output_sizes[1],
              "bias_stride": _channel_stride(p.tensor("bias_tensor"), 1),
              "w_scale_stride": _channel_stride(p.tensor("filter_scale_tensor"))},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("output_tensor").data_type.code,
              "HAS_BIAS": p.tensor("bias_tensor") is not None,
              "HAS_OUTPUT_ZERO": p.tensor("output_zero_point_tensor") is not None})


def _channel_stride(t: Any, axis: int | None = None) -> int:
    """Of a vector along ``axis``, or along its only dimension that is not of size 1."""
    if t is None:
        return 0
    axes = range(t.dimension_count) if axis is None else [axis]
    return next((t.strides[d] for d in axes if t.sizes[d] > 1), 0)


def _gather(
    p: PlanBuilder, c: Problem, variant: str, parts: int, y: Operand, y_strides: Ints,
    spec: dict[str, int], push: dict[str, int], more_params: Ints, **operands: Any,
) -> None:
    side = int(variant.rpartition(".t")[2])
    words = c.words(y_strides)
    taps = [s for s, a in zip(c.w_strides[3:], c.axes) if max(n for _, n, _ in a.phases) > 1]
    channels_inner = not taps or c.w_strides[2] < min(taps)
    activation = {"activation_at": len(words)} if "bias" in operands else {}
    p.dispatch(
        f"{CORE}.{variant}", c.tiles(side, side) * parts, x=p.read("input_tensor"),
        w=p.read("filter_tensor"), y=y, **operands, params=[*words, *more_params],
        push={**c.push((side, side, _DEPTH), parts, y_strides), **activation, **push},
        spec={"LOCAL_SIZE": _INVOCATIONS, "CHANNELS_INNER": channels_inner,
              "INPUT_ALONG_K": channels_inner and c.x_strides[1] <= c.x_strides[-1],
              "FILTER_ALONG_K": min(taps + [c.w_strides[2]]) <= c.w_strides[1], **spec},
    )
