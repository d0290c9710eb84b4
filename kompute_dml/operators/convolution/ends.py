"""What becomes of a convolution's sums, after a kernel of tiles or in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...layout import Ints, extent, packed_strides, pad_left, product
from ...lowering import measured
from ...lowering.activation import NOTHING, Fused
from ...lowering.builder import PlanBuilder
from ...lowering.copy import CopyView
from ...lowering.plan import UNUSED, Operand
from ...lowering.walk import Walk
from ..quantize import find_range, made_range
from . import packing
from .geometry import AXES
from .layer import Layer
from .problem import Problem

if TYPE_CHECKING:
    from ...desc import TensorDesc
    from .tiles import Tiles

CORE = "convolution"
_TILE_K = 16
_INVOCATIONS = 256
_MAX_STEPS = 2048
"""The most steps of K in one workgroup, each with loops of its own. See max_loop_passes."""


def lower(p: PlanBuilder, layer: Layer, tiles: Tiles | None) -> None:
    """Lower a layer with tiles of a packed convolution, else with convolution.comp."""
    {"float": _floats, "sums": _sums, "scaled": _scaled, "quantized": _quantized}[layer.ends](
        p, layer, tiles)


def tile_of(p: PlanBuilder, c: Problem) -> int:
    """The side of convolution.comp's tiles."""
    # With a tail for each of so many sums, they go to memory.
    wide = min(c.rows, c.out_channels) > 64 and not p.device.is_cpu and (
        not getattr(p.desc, "tail", None))
    fits = p.library.get("convolution", "f32", "t128").shared_bytes <= p.device.max_shared_memory
    return 128 if wide and fits and c.tiles(128, 128) >= p.device.cores else 64


def splits_of(p: PlanBuilder, tiles: int, steps: int) -> int:
    """The number of splits of K, enough for a workgroup on every core."""
    least = max(-(-steps // _MAX_STEPS), 1)  # no step at all where all taps miss the input
    if p.device.is_cpu:
        return least
    known = measured.figures(p.device.device_class, CORE)
    busy, steps_each, most = (int(known[name]) for name in ("busy", "split_steps", "splits"))
    return max(least, min(busy * p.device.cores // tiles, steps // steps_each, most))


def _floats(p: PlanBuilder, layer: Layer, tiles: Tiles | None) -> None:
    """CONVOLUTION."""
    c, fused = layer.c, layer.fused
    if tiles is not None:
        splits = tiles.splits
        c, operands = packing.packed(p, c, packing.planned(p, c))
        operands["bias"] = p.read("bias_tensor")
    else:
        tile = (*[tile_of(p, c)] * 2, _TILE_K)
        variant, splits = f"f32.t{tile[0]}", splits_of(p, c.tiles(*tile[:2]), -(-c.k // tile[2]))
    data_type = p.tensor("input_tensor").data_type
    bias_tensor = p.tensor("bias_tensor")
    y, turned = p.write("output_tensor"), None
    if c.phases > 1 and c.y_strides[1] != 1 and tiles is not None and not fused.has_tensor:
        # Neighbours in a row belong to different phases, channels to the same. So the output is
        # stored channels-last and then copied.
        turned = packing.channels_last(p.tensor("output_tensor"))
        c = replace(c, y_strides=(*turned.strides[:2], *pad_left(turned.strides[2:], AXES, 0)))
        y = p.temporary(turned.data_type.itemsize, product(c.output_sizes))
    finish = {"bias_stride": channel_stride(bias_tensor, 1)}
    end = {"HAS_BIAS": bias_tensor is not None, **fused.spec}

    def dispatch(y: Operand, y_strides: Ints, last: bool) -> None:
        more, push, spec = (fused.words, finish, {**end}) if last else ((), {}, {})
        kinds = {"TYPE": data_type.code, "OUTPUT_TYPE": data_type.code if last else 36}
        own = fused if last else NOTHING
        tail = p.read_tail() if last else {}
        if tiles is not None:
            spec |= {"UNFINISHED": not last} if tiles.finishes else kinds
            tiles.dispatch(p, c, y, y_strides, spec, push, more, operands | tail, own)
        else:
            _gather(p, c, own.variant(variant), splits, y, y_strides,
                    {**kinds, "FILTER_TYPE": data_type.code, **spec}, push, more,
                    bias=p.read("bias_tensor"), **tail)

    # Sums of factors that were rounded are finished in the output's type.
    if splits == 1 and data_type is p.tensor("output_tensor").data_type:
        dispatch(y, c.y_strides, True)
    else:
        in_splits(p, c, splits, y, dispatch, fused, {**finish}, end)
    if turned is not None:
        to = CopyView.whole("output_tensor", p.tensor("output_tensor"))
        packing.turn(p, CopyView.whole("turned", turned), to, {"turned": y.reading()})


def in_splits(p: PlanBuilder, c: Problem, splits: int, y: Operand,
              dispatch: Callable[[Operand, Ints, bool], None], fused: Fused,
              finish: dict[str, int], end: dict[str, int]) -> None:
    """Dispatch the splits of K, then add up and finish their sums."""
    count = product(c.output_sizes)
    sums = p.temporary(4, splits * c.split_stride)
    dense, strides, walk = _sums_layout(c)
    dispatch(sums, strides, False)
    each = _INVOCATIONS * (8 if dense else 1)
    p.dispatch(
        fused.variant(f"{packing.SUM}.float"), -(-count // each), sums=sums.reading(), y=y,
        bias=p.read("bias_tensor"), **p.read_tail(), params=[*walk.words, *fused.words],
        push={"count": count, "splits": splits, "split_stride": c.split_stride,
              "positions": strides[1], "channels": c.output_sizes[1],
              "activation_at": len(walk.words), **finish},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("output_tensor").data_type.code,
              "DENSE": dense, **end})


def _sums_layout(c: Problem) -> tuple[bool, Ints, Walk]:
    """Whether sums have the layout of the output, which then is dense; their strides; and the
    output in the order of the sums. An output with gaps only has its order of channels."""
    sizes = c.output_sizes
    if extent(sizes, c.y_strides) == product(sizes):
        batch, channel, *others = c.y_strides
        return True, (batch, max(channel, 1), *others), Walk(sizes, c.y_strides)
    order = (0, *range(2, len(sizes)), 1) if c.y_strides[1] == 1 else range(len(sizes))
    packed = dict(zip(order, packed_strides([sizes[i] for i in order])))
    return False, tuple(packed[i] for i in range(len(sizes))), Walk(
        [sizes[i] for i in order], [c.y_strides[i] for i in order])


def _integers(
    p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, tiles: Tiles | None,
    end: Mapping[str, Operand], push: Mapping[str, int], spec: Mapping[str, int],
    fused: Fused = NOTHING,
) -> None:
    """The INT32 sums of bytes. ``end`` are the operands that kernels on matrix units use to finish
    them, if they do."""
    zeros, of, strides = of_bytes(p)
    if tiles is not None:
        c, operands = packing.packed(p, c, packing.planned(p, c), zeros["x_zero"])
        tail = {"tail": end["tail"]} if "tail" in end else {}
        operands |= {**zeros, **{name: end.get(name, UNUSED) for name in _SCALES}, **tail,
                     "zeroed": end.get("zeroed", UNUSED)}
        tiles.dispatch(p, c, y, y_strides, {**of, **spec}, {**strides, **push}, fused.words,
                       operands, fused)
        return
    _gather(p, c, f"i32.t{tile_of(p, c)}", 1, y, y_strides, {"OUTPUT_TYPE": 20, **of}, strides, (),
            **zeros)


def of_bytes(p: PlanBuilder) -> tuple[dict[str, Operand], dict[str, int], dict[str, int]]:
    """The zero points of bytes: operands, constants, and push fields."""
    slots = {"x_zero": "input_zero_point_tensor", "w_zero": "filter_zero_point_tensor"}
    x_zero, w_zero = map(p.tensor, slots.values())
    return {name: p.read(slot) for name, slot in slots.items()}, {
        "TYPE": p.tensor("input_tensor").data_type.code,
        "FILTER_TYPE": p.tensor("filter_tensor").data_type.code,
        "HAS_INPUT_ZERO": x_zero is not None, "HAS_FILTER_ZERO": w_zero is not None,
    }, {"w_zero_stride": channel_stride(w_zero)}


_SCALES = {"bias": "bias", "x_scale": "input_scale", "w_scale": "filter_scale",
           "y_scale": "output_scale", "y_zero": "output_zero_point"}
_OF_FLOATS = ("bias", "x_scale", "w_scale")


class End:
    """How sums of bytes are finished: operands, strides and constants."""

    def __init__(self, p: PlanBuilder, layer: Layer) -> None:
        names = {"sums": (), "scaled": _OF_FLOATS, "quantized": tuple(_SCALES)}[layer.ends]
        self.operands: dict[str, Any] = {n: p.read(f"{_SCALES[n]}_tensor") for n in names}
        self.strides: dict[str, int] = {}
        self.spec: dict[str, int] = {}
        self.range: dict[str, int] = {}
        """Constants of kernels that find the range of the outputs' quantization, too."""
        if layer.ends == "sums":
            return
        bias, zero = p.tensor("bias_tensor"), p.tensor("range_zero_point_tensor") if (
            layer.ends == "scaled") else None
        axis = 1 if layer.ends == "scaled" else None
        self.strides = {
            "bias_stride": channel_stride(bias, 1),
            "w_scale_stride": channel_stride(p.tensor("filter_scale_tensor"), axis)}
        self.spec = {"HAS_BIAS": bias is not None}
        if layer.ends == "scaled":
            self.spec |= {"HAS_INPUT_SCALE": p.tensor("input_scale_tensor") is not None,
                          **layer.fused.spec}
            if zero is not None:
                self.range = {"RANGED": True, "RANGE_TYPE": zero.data_type.code}
        else:
            self.spec |= {"HAS_OUTPUT_ZERO": p.tensor("output_zero_point_tensor") is not None}


def _sums(p: PlanBuilder, layer: Layer, tiles: Tiles | None) -> None:
    """CONVOLUTION_INTEGER."""
    _integers(p, layer.c, p.write("output_tensor"), layer.c.y_strides, tiles, {}, {}, {})


def _scaled(p: PlanBuilder, layer: Layer, tiles: Tiles | None) -> None:
    """CONVOLUTION_INTEGER_TO_FLOAT: the sums times both scales, plus a bias."""
    c, fused, end, zero = layer.c, layer.fused, End(p, layer), p.tensor("range_zero_point_tensor")
    if tiles is not None and tiles.splits == 1 and tiles.scales:
        ranges, y = made_range(p), p.write("output_tensor")
        operands = {**end.operands, **p.read_tail(), "zeroed": ranges["zeroed"],
                    "y_scale": ranges["range_scale"], "y_zero": ranges["range_zero"]}
        _integers(p, c, y, c.y_strides, tiles, operands, end.strides,
                  {**end.spec, **end.range, "SCALED": True}, fused)
        return
    _sums_alone(p, c, tiles, fused.variant(f"{packing.SUM}.scaled"),
                {**end.operands, **p.read_tail()}, end.strides, end.spec, fused.words)
    if zero is not None:
        find_range(p, "output_tensor", zero.data_type, "range_scale_tensor",
                   "range_zero_point_tensor")


def _quantized(p: PlanBuilder, layer: Layer, tiles: Tiles | None) -> None:
    """QUANTIZED_LINEAR_CONVOLUTION."""
    c, end, y = layer.c, End(p, layer), p.write("output_tensor")
    if tiles is not None and tiles.splits == 1 and layer.stores_vectors:
        _integers(p, c, y, c.y_strides, tiles, end.operands, end.strides,
                  {**end.spec, "REQUANTIZED": True, "OUTPUT_TYPE": layer.output_code,
                   "OUTPUT_ALONG_ROWS": False})  # a row of one position says nothing
        return
    _sums_alone(p, c, tiles, f"{packing.SUM}.quantized", end.operands, end.strides, end.spec)


def _sums_alone(
    p: PlanBuilder, c: Problem, tiles: Tiles | None, variant: str,
    operands: Mapping[str, Any], strides: Mapping[str, int], spec: Mapping[str, int],
    activation: Ints | None = None,
) -> None:
    """INT32 sums, and a dispatch of ``variant`` that finishes them. ``activation``: its words,
    where the variant takes one."""
    splits = 1 if tiles is None else tiles.splits
    count, sums = product(c.output_sizes), p.temporary(4, splits * c.split_stride)
    dense, sums_strides, walk = _sums_layout(c)
    _integers(p, c, sums, sums_strides, tiles, {}, {}, {})
    more = {} if activation is None else {"activation_at": len(walk.words)}
    p.dispatch(
        variant, -(-count // (_INVOCATIONS * (8 if dense else 1))),
        sums=sums.reading(), y=p.write("output_tensor"), **operands,
        params=[*walk.words, *(activation or ())],
        push={"count": count, "splits": splits, "split_stride": c.split_stride,
              "positions": sums_strides[1], "channels": c.output_sizes[1], **more, **strides},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.tensor("output_tensor").data_type.code,
              "DENSE": dense, **spec})


def channel_stride(t: TensorDesc | None, axis: int | None = None) -> int:
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
