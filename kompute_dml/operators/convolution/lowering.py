"""How a convolution lowers: as a product whose left side is gathered from the input."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...layout import Ints, packed_strides, pad_left, product
from ...lowering.activation import Fused
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Operand
from ...lowering.walk import Walk
from .geometry import AXES, Axis, params_of

CORE, SUM = "convolution", "convolution_sum"
_DEPTH = 16
_INVOCATIONS = 256
_MAX_STEPS = 2048
"""Of K in one workgroup: lavapipe silently ends loops after 65,535 passes in all."""
_MIN_STEPS = 8
"""A part of K that is worth a workgroup of its own."""


class Problem(NamedTuple):
    """A convolution, whatever operator asks for it. Filters are {output channel, input channel,
    taps}, as their strides say."""

    batches: int
    groups: int
    in_channels: int
    """Of one group."""
    out_channels: int
    axes: tuple[Axis, ...]
    x_strides: Ints
    """Batch, channel, axes."""
    w_strides: Ints
    """Group, output channel, input channel, axes."""
    y_strides: Ints
    """Batch, channel, axes."""

    @property
    def rows(self) -> int:
        """Output positions of a phase."""
        return self.batches * product([a.positions for a in self.axes])

    @property
    def phases(self) -> int:
        return product([len(a.phases) for a in self.axes])

    @property
    def depth(self) -> int:
        """The longest K of a phase."""
        return self.in_channels * product([max(n for _, n, _ in a.phases) for a in self.axes])

    @property
    def output_sizes(self) -> Ints:
        return (self.batches, self.groups * self.out_channels, *(a.out_size for a in self.axes))

    def words(self, y_strides: Ints) -> Ints:
        return params_of(self.axes, self.in_channels, self.x_strides[2:], self.w_strides[3:],
                         y_strides[2:])


class Epilogue(NamedTuple):
    """What a dispatch does with its sums."""

    bias: Operand
    bias_stride: int
    fused: Fused


def problem_of(desc: Any, axes: list[Axis], transposed: bool) -> Problem:
    """The convolution of a description with InputTensor, FilterTensor and OutputTensor."""
    x, w, y, groups = desc.input_tensor, desc.filter_tensor, desc.output_tensor, desc.group_count
    whole = Axis.whole()
    in_channels = x.sizes[1] // groups
    of_group = w.strides[0] * (w.sizes[0] // groups)
    channels = (w.strides[1], w.strides[0]) if transposed else w.strides[:2]

    def spread(strides: Ints) -> Ints:
        return pad_left(strides, AXES, 0)

    return Problem(
        x.sizes[0], groups, in_channels, y.sizes[1] // groups,
        (*[whole] * (AXES - len(axes)), *axes),
        (*x.strides[:2], *spread(x.strides[2:])),
        (of_group, *channels, *spread(w.strides[2:])),
        (*y.strides[:2], *spread(y.strides[2:])),
    )


def _tile(p: PlanBuilder, c: Problem) -> int:
    def count(side: int) -> int:
        return -(-c.rows // side) * -(-c.out_channels // side) * c.groups * c.phases

    wide = min(c.rows, c.out_channels) > 64 and not p.device.is_cpu
    return 128 if wide and count(128) >= p.device.cores else 64


def _parts(p: PlanBuilder, tiles: int, steps: int, most: int) -> int:
    """Into how many parts K is cut, so that every core has a workgroup."""
    least = -(-steps // _MAX_STEPS)
    if p.device.is_cpu:
        return least
    return max(least, min(2 * p.device.cores // tiles, steps // _MIN_STEPS, most))


def lower_float(p: PlanBuilder, c: Problem, fused: Fused) -> None:
    """CONVOLUTION."""
    data_type = p.tensor("input_tensor").data_type
    has_bias = p.tensor("bias_tensor") is not None
    bias = p.read("bias_tensor")
    bias_stride = _channel_stride(p.tensor("bias_tensor"), 1)
    side, steps = _tile(p, c), -(-c.depth // _DEPTH)
    tiles = -(-c.rows // side) * -(-c.out_channels // side) * c.groups * c.phases
    parts = _parts(p, tiles, steps, most=64)
    spec = {"TYPE": data_type.code, "FILTER_TYPE": data_type.code}
    finish = {"bias_stride": bias_stride}
    if parts == 1:
        _gather(p, c, f"f32.t{side}", 1, p.write("output_tensor"), c.y_strides,
                {**spec, "OUTPUT_TYPE": data_type.code, "HAS_BIAS": has_bias,
                 "FUSED_ACTIVATION": fused.code}, finish, fused.words, bias=bias)
        return
    count = product(c.output_sizes)
    sums = p.temporary(4, parts * count)
    _gather(p, c, f"f32.t{side}", parts, sums, packed_strides(c.output_sizes), spec, {}, (),
            bias=bias)
    walk = Walk(c.output_sizes, c.y_strides)
    p.dispatch(
        f"{SUM}.float", -(-count // _INVOCATIONS), sums=sums.reading(), y=p.write("output_tensor"),
        bias=bias, params=[*walk.words, *fused.words],
        push={"count": count, "parts": parts, "positions": product(c.output_sizes[2:]),
              "channels": c.output_sizes[1], "activation_at": len(walk.words), **finish},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": data_type.code, "HAS_BIAS": has_bias,
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
    side, steps = int(variant.rpartition(".t")[2]), -(-c.depth // _DEPTH)
    words = c.words(y_strides)
    row_tiles, column_tiles = -(-c.rows // side), -(-c.out_channels // side)
    taps = [s for s, a in zip(c.w_strides[3:], c.axes) if max(n for _, n, _ in a.phases) > 1]
    channels_inner = not taps or c.w_strides[2] < min(taps)
    p.dispatch(
        f"{CORE}.{variant}", row_tiles * column_tiles * parts * c.groups * c.phases,
        x=p.read("input_tensor"), w=p.read("filter_tensor"), y=y, **operands,
        params=[*words, *more_params],
        push={
            "row_tiles": row_tiles, "column_tiles": column_tiles, "parts": parts,
            "steps": -(-steps // parts), "groups": c.groups,
            "batches": c.batches, "in_channels": c.in_channels, "out_channels": c.out_channels,
            "x_strides": c.x_strides[:2], "w_strides": c.w_strides[:3],
            "y_strides": (product(c.output_sizes), *y_strides[:2]),
            **({"activation_at": len(words)} if "bias" in operands else {}), **push,
        },
        spec={"LOCAL_SIZE": _INVOCATIONS, "CHANNELS_INNER": channels_inner,
              "INPUT_ALONG_K": channels_inner and c.x_strides[1] <= c.x_strides[-1],
              "FILTER_ALONG_K": min(taps + [c.w_strides[2]]) <= c.w_strides[1], **spec},
    )
