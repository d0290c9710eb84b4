"""Lowers a convolution as a matrix product that gathers its left side from the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...layout import Ints, extent, packed_strides, pad_left, product
from ...lowering.activation import NOTHING, Fused
from ...lowering.builder import PlanBuilder
from ...lowering.copy import View
from ...lowering.plan import UNUSED, Operand
from ...lowering.walk import Walk
from ..quantize import find_range, made_range
from . import depthwise, grids, kept, matrix_units, packed, patches, points, slices
from .geometry import AXES
from .problem import Problem

CORE, SUM, DIRECT = "convolution", "convolution_sum", "convolution_direct"
_TILE_K = 16
_INVOCATIONS = 256
_MAX_STEPS = 2048
"""The most steps of K in one workgroup: lavapipe silently ends loops after 65,535 passes in all."""
_MAX_SPLITS = 64
_FEW, _MAX_DIRECT = 8, 1024
"""The most output channels of a group, and the longest K, for a sum in one invocation."""
_MIN_STEPS = 8
"""The least steps of K that are worth a workgroup."""


def _tile(p: PlanBuilder, c: Problem) -> int:
    # With a tail for each of so many sums, they go to memory.
    wide = min(c.rows, c.out_channels) > 64 and not p.device.is_cpu and (
        not getattr(p.desc, "tail", None))
    return 128 if wide and c.tiles(128, 128) >= p.device.cores else 64


def splits_of(p: PlanBuilder, tiles: int, steps: int) -> int:
    """The number of splits of K, enough for a workgroup on every core."""
    least = max(-(-steps // _MAX_STEPS), 1)  # no step at all where all taps miss the input
    if p.device.is_cpu:
        return least
    return max(least, min(2 * p.device.cores // tiles, steps // _MIN_STEPS, _MAX_SPLITS))


def is_narrow(c: Problem) -> bool:
    """Whether groups have too few output channels for tiles of a product."""
    return c.out_channels <= _FEW


def lower_float(p: PlanBuilder, c: Problem, fused: Fused) -> None:
    """CONVOLUTION."""
    if c.groups > 1 and is_narrow(c) and c.k <= _MAX_DIRECT:
        if not depthwise.lower(p, c, fused):
            _direct(p, c, fused)
        return
    if patches.lower(p, c, fused):
        return
    if points.lower(p, c, fused):
        return
    in_order = packed.chosen(p, c)
    if not (in_order and packed.outdoes_kept(c, fused)) and kept.lower(p, c, fused):
        return
    if in_order is not None:
        _packed(p, c, in_order, fused)
        return
    plan = matrix_units.planned(p, c)
    choice = matrix_units.chosen(p, plan.problem)
    if choice is not None:
        splits = choice.splits
        c, operands = matrix_units.packed(p, c, plan)
        operands["bias"] = p.read("bias_tensor")
    else:
        tile = (*[_tile(p, c)] * 2, _TILE_K)
        variant, splits = f"f32.t{tile[0]}", splits_of(p, c.tiles(*tile[:2]), -(-c.k // tile[2]))
    data_type = p.tensor("input_tensor").data_type
    bias_tensor = p.tensor("bias_tensor")
    y, turned = p.write("output_tensor"), None
    if c.phases > 1 and c.y_strides[1] != 1 and choice is not None and not fused.has_tensor:
        # Neighbours in a row belong to different phases, channels to the same. So the output is
        # stored channels-last and then copied.
        turned = matrix_units.channels_last(p.tensor("output_tensor"))
        c = replace(c, y_strides=(*turned.strides[:2], *pad_left(turned.strides[2:], AXES, 0)))
        y = p.temporary(turned.data_type.itemsize, product(c.output_sizes))
    finish = {"bias_stride": _channel_stride(bias_tensor, 1)}
    end = {"HAS_BIAS": bias_tensor is not None, **fused.spec}

    def dispatch(y: Operand, y_strides: Ints, last: bool) -> None:
        more, push, spec = (fused.words, finish, {**end}) if last else ((), {}, {})
        kinds = {"TYPE": data_type.code, "OUTPUT_TYPE": data_type.code if last else 36}
        own = fused if last else NOTHING
        tail = p.read_tail() if last else {}
        if choice is not None:
            units = choice.kernel.shader == matrix_units.SHADER
            spec |= {"UNFINISHED": not last} if units else kinds
            matrix_units.dispatch(p, c, choice, y, y_strides, spec, push, more, operands | tail,
                                  own)
        else:
            _gather(p, c, own.variant(variant), splits, y, y_strides,
                    {**kinds, "FILTER_TYPE": data_type.code, **spec}, push, more,
                    bias=p.read("bias_tensor"), **tail)

    # Sums of factors that were rounded are finished in the output's type.
    if splits == 1 and data_type is p.tensor("output_tensor").data_type:
        dispatch(y, c.y_strides, True)
    else:
        _in_splits(p, c, splits, y, dispatch, fused, {**finish}, end)
    if turned is not None:
        to = View.whole("output_tensor", p.tensor("output_tensor"))
        matrix_units.turn(p, View.whole("turned", turned), to, {"turned": y.reading()})


def _packed(p: PlanBuilder, c: Problem, tile: packed.Choice, fused: Fused) -> None:
    y, bias = p.write("output_tensor"), p.tensor("bias_tensor")
    made, bound = packed.operands(p, c, tile.tile)

    def dispatch(y: Operand, y_strides: Ints, last: bool) -> None:
        packed.dispatch(p, made, tile, y, y_strides, last, bound, fused if last else NOTHING,
                        p.read_tail() if last else {})

    if tile.splits == 1:
        dispatch(y, c.y_strides, True)
    else:
        _in_splits(p, c, tile.splits, y, dispatch, fused,
                   {"bias_stride": _channel_stride(bias, 1)},
                   {"HAS_BIAS": bias is not None, **fused.spec})


def _in_splits(p: PlanBuilder, c: Problem, splits: int, y: Operand,
              dispatch: Callable[[Operand, Ints, bool], None], fused: Fused,
              finish: dict[str, int], end: dict[str, int]) -> None:
    """Dispatch the splits of K, then add up and finish their sums."""
    count = product(c.output_sizes)
    sums = p.temporary(4, splits * c.split_stride)
    dense, strides = _sums_layout(c)
    dispatch(sums, strides, False)
    walk = Walk(c.output_sizes, c.y_strides)
    each = _INVOCATIONS * (8 if dense else 1)
    p.dispatch(
        fused.variant(f"{SUM}.float"), -(-count // each), sums=sums.reading(), y=y,
        bias=p.read("bias_tensor"), **p.read_tail(), params=[*walk.words, *fused.words],
        push={"count": count, "splits": splits, "split_stride": c.split_stride,
              "positions": strides[1], "channels": c.output_sizes[1],
              "activation_at": len(walk.words), **finish},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("output_tensor").data_type.code,
              "DENSE": dense, **end})


def _sums_layout(c: Problem) -> tuple[bool, Ints]:
    """Whether sums have the layout of the output, which then is dense; and their strides."""
    dense = extent(c.output_sizes, c.y_strides) == product(c.output_sizes)
    strides = c.y_strides if dense else packed_strides(c.output_sizes)
    return dense, (strides[0], max(strides[1], 1), *strides[2:])


def _direct(p: PlanBuilder, c: Problem, fused: Fused) -> None:
    words, bias = c.words(c.y_strides), p.tensor("bias_tensor")
    along_rows, channels = c.y_strides[1] >= c.y_strides[-1], c.groups * c.out_channels
    fast, slow = (c.rows, channels) if along_rows else (channels, c.rows)
    push = c.push((1, 1, 1), 1, c.y_strides)
    for unused in ("row_tiles", "column_tiles", "splits", "steps"):
        del push[unused]
    p.dispatch(
        fused.variant(DIRECT), -(-(-(-fast // 2) * slow * c.phases) // _INVOCATIONS),
        x=p.read("input_tensor"), w=p.read("filter_tensor"), y=p.write("output_tensor"),
        bias=p.read("bias_tensor"),
        **p.read_tail(), params=[*words, *fused.words],
        push={**push, "rows": c.rows, "bias_stride": _channel_stride(bias, 1),
              "activation_at": len(words)},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("input_tensor").data_type.code,
              "ALONG_ROWS": along_rows, "HAS_BIAS": bias is not None, **fused.spec})


def lower_integer(
    p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, choice: matrix_units.Choice | None,
    end: Mapping[str, Operand], push: Mapping[str, int], spec: Mapping[str, int],
    fused: Fused = NOTHING,
) -> None:
    """The INT32 sums of CONVOLUTION_INTEGER and QUANTIZED_LINEAR_CONVOLUTION. ``end`` are the
    operands that kernels on matrix units use to finish them, if they do."""
    zeros, of, strides = _bytes(p)
    if choice is not None:
        c, operands = matrix_units.packed(p, c, matrix_units.planned(p, c), zeros["x_zero"])
        tail = {"tail": end["tail"]} if "tail" in end else {}
        operands |= {**zeros, **{name: end.get(name, UNUSED) for name in _SCALES}, **tail,
                     "zeroed": end.get("zeroed", UNUSED)}
        matrix_units.dispatch(p, c, choice, y, y_strides, {**of, **spec}, {**strides, **push},
                              fused.words, operands, fused)
        return
    _gather(p, c, f"i32.t{_tile(p, c)}", 1, y, y_strides, {"OUTPUT_TYPE": 20, **of}, strides, (),
            **zeros)


def _bytes(p: PlanBuilder) -> tuple[dict[str, Operand], dict[str, int], dict[str, int]]:
    """The zero points of bytes: operands, constants, and push fields."""
    slots = {"x_zero": "input_zero_point_tensor", "w_zero": "filter_zero_point_tensor"}
    x_zero, w_zero = map(p.tensor, slots.values())
    return {name: p.read(slot) for name, slot in slots.items()}, {
        "TYPE": p.tensor("input_tensor").data_type.code,
        "FILTER_TYPE": p.tensor("filter_tensor").data_type.code,
        "HAS_INPUT_ZERO": x_zero is not None, "HAS_FILTER_ZERO": w_zero is not None,
    }, {"w_zero_stride": _channel_stride(w_zero)}


_SCALES = {"bias": "bias", "x_scale": "input_scale", "w_scale": "filter_scale",
           "y_scale": "output_scale", "y_zero": "output_zero_point"}
_OF_FLOATS = ("bias", "x_scale", "w_scale")


def _depthwise(p: PlanBuilder, c: Problem, to: str, operands: Mapping[str, Any],
               push: Mapping[str, int], spec: Mapping[str, int], fused: Fused = NOTHING) -> bool:
    """Lower a depthwise convolution of bytes, if its kernels can compute it."""
    zeros, of, strides = _bytes(p)
    return depthwise.lower_bytes(p, c, to, {**zeros, **operands}, {**strides, **push},
                                 {**of, **spec}, fused)


def lower_sums(p: PlanBuilder, c: Problem) -> None:
    """CONVOLUTION_INTEGER."""
    if _depthwise(p, c, "sums", {}, {}, {}):
        return
    choice = matrix_units.chosen(p, matrix_units.planned(p, c).problem, shared=False)
    lower_integer(p, c, p.write("output_tensor"), c.y_strides, choice, {}, {}, {})


def lower_scaled(p: PlanBuilder, c: Problem, fused: Fused) -> None:
    """CONVOLUTION_INTEGER_TO_FLOAT: the sums times both scales, plus a bias."""
    operands: dict[str, Any] = {name: p.read(f"{_SCALES[name]}_tensor") for name in _OF_FLOATS}
    strides = {"bias_stride": _channel_stride(p.tensor("bias_tensor"), 1),
               "w_scale_stride": _channel_stride(p.tensor("filter_scale_tensor"), 1)}
    of = {"HAS_BIAS": p.tensor("bias_tensor") is not None,
          "HAS_INPUT_SCALE": p.tensor("input_scale_tensor") is not None, **fused.spec}
    zero, ranged = p.tensor("range_zero_point_tensor"), {}
    if zero is not None:
        ranged = {"RANGED": True, "RANGE_TYPE": zero.data_type.code}
    if _depthwise(p, c, "floats", operands, strides, {**of, **ranged}, fused):
        return
    choice = matrix_units.chosen(p, matrix_units.planned(p, c).problem)
    y = p.write("output_tensor")
    if choice is not None and choice.splits == 1:
        found = made_range(p)
        end = {**operands, **p.read_tail(), "zeroed": found["zeroed"],
               "y_scale": found["range_scale"], "y_zero": found["range_zero"]}
        lower_integer(p, c, y, c.y_strides, choice, end, strides,
                      {**of, **ranged, "SCALED": True}, fused)
        return
    _lower_sums_alone(p, c, choice, fused.variant(f"{SUM}.scaled"),
                      {**operands, **p.read_tail()}, strides, of, fused.words)
    if zero is not None:
        find_range(p, "output_tensor", zero.data_type, "range_scale_tensor",
                   "range_zero_point_tensor")


def lower_quantized(p: PlanBuilder, c: Problem) -> None:
    """QUANTIZED_LINEAR_CONVOLUTION."""
    operands: dict[str, Any] = {name: p.read(f"{slot}_tensor") for name, slot in _SCALES.items()}
    strides = {"bias_stride": _channel_stride(p.tensor("bias_tensor"), 1),
               "w_scale_stride": _channel_stride(p.tensor("filter_scale_tensor"))}
    of = {"HAS_BIAS": p.tensor("bias_tensor") is not None,
          "HAS_OUTPUT_ZERO": p.tensor("output_zero_point_tensor") is not None}
    kind = p.tensor("output_tensor").data_type.code
    if _depthwise(p, c, "bytes", operands, strides,
                  {**of, "HAS_INPUT_SCALE": True, "OUTPUT_TYPE": kind}):
        return
    end = operands, strides, {**of, "OUTPUT_TYPE": kind}
    if grids.lower(p, c, *end) or slices.lower(p, c, *end):
        return
    choice = matrix_units.chosen(p, matrix_units.planned(p, c).problem)
    y = p.write("output_tensor")
    if choice is not None and choice.splits == 1 and matrix_units.is_plain(p, c, y, c.y_strides):
        lower_integer(p, c, y, c.y_strides, choice, operands, strides,
                      {**of, "REQUANTIZED": True, "OUTPUT_TYPE": kind,
                       "OUTPUT_ALONG_ROWS": False})  # a row of one position says nothing
        return
    _lower_sums_alone(p, c, choice, f"{SUM}.quantized", operands, strides, of)


def _lower_sums_alone(
    p: PlanBuilder, c: Problem, choice: matrix_units.Choice | None, variant: str,
    operands: Mapping[str, Any], strides: Mapping[str, int], spec: Mapping[str, int],
    activation: Ints | None = None,
) -> None:
    """INT32 sums, and a dispatch of ``variant`` that finishes them. ``activation``: its words,
    where the variant takes one."""
    splits = 1 if choice is None else choice.splits
    count, sums = product(c.output_sizes), p.temporary(4, splits * c.split_stride)
    dense, sums_strides = _sums_layout(c)
    lower_integer(p, c, sums, sums_strides, choice, {}, {}, {})
    walk = Walk(c.output_sizes, c.y_strides)
    more = {} if activation is None else {"activation_at": len(walk.words)}
    p.dispatch(
        variant, -(-count // (_INVOCATIONS * (8 if dense else 1))),
        sums=sums.reading(), y=p.write("output_tensor"), **operands,
        params=[*walk.words, *(activation or ())],
        push={"count": count, "splits": splits, "split_stride": c.split_stride,
              "positions": sums_strides[1], "channels": c.output_sizes[1], **more, **strides},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("output_tensor").data_type.code,
              "DENSE": dense, **spec})


def _channel_stride(t: Any, axis: int | None = None) -> int:
    """The stride of a vector along ``axis``, or along its only dimension larger than 1."""
    if t is None:
        return 0
    axes = range(t.dimension_count) if axis is None else [axis]
    return next((t.strides[d] for d in axes if t.sizes[d] > 1), 0)


def _gather(
    p: PlanBuilder, c: Problem, variant: str, splits: int, y: Operand, y_strides: Ints,
    spec: dict[str, int], push: dict[str, int], more_params: Ints, **operands: Any,
) -> None:
    side = int(variant.split(".")[1][1:])
    words = c.words(y_strides)
    taps = [s for s, a in zip(c.w_strides[3:], c.axes) if max(n for _, n, _ in a.phases) > 1]
    channels_inner = not taps or c.w_strides[2] < min(taps)
    activation = {"activation_at": len(words)} if "bias" in operands else {}
    p.dispatch(
        f"{CORE}.{variant}", c.tiles(side, side) * splits, x=p.read("input_tensor"),
        w=p.read("filter_tensor"), y=y, **operands, params=[*words, *more_params],
        push={**c.push((side, side, _TILE_K), splits, y_strides), **activation, **push},
        spec={"LOCAL_SIZE": _INVOCATIONS, "CHANNELS_INNER": channels_inner,
              "OUTPUT_ALONG_ROWS": y_strides[1] >= y_strides[-1],
              "INPUT_K_CONTIGUOUS": channels_inner and c.x_strides[1] <= c.x_strides[-1],
              "FILTER_K_CONTIGUOUS": min(taps + [c.w_strides[2]]) <= c.w_strides[1], **spec},
    )
