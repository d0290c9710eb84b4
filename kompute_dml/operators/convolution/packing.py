"""Convolutions of contiguous channels: input and filter as vectors, copied where they are not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ...desc import TensorDesc, TensorFlags
from ...dtypes import DataType
from ...layout import Ints, packed_strides, pad_left, power_of_two, product
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.copy import CopyView, copied
from ...lowering.plan import TEMPORARY, UNUSED, Operand, Plan
from ...lowering.walk import Walk
from ...runtime.traits import DeviceTraits
from .geometry import AXES
from .problem import Problem

PACK, SUM = "convolution_pack", "convolution_sum"
_INVOCATIONS = 256


class Tensors(Protocol):
    """A plan's builder, or a layer: whoever knows the tensors."""

    def tensor(self, slot: str) -> Any: ...

    @property
    def tail_is_aligned(self) -> bool: ...


def packing(p: Tensors, c: Problem, traits: DeviceTraits) -> float:
    """Microseconds that an input takes whose channels are apart."""
    x = p.tensor("input_tensor")
    size = x.element_count * x.data_type.itemsize
    return 0.0 if c.x_strides[1] == 1 else 2 * size / measured.figure(traits, PACK, "speed")


def adding(c: Problem, splits: int, traits: DeviceTraits) -> float:
    """Microseconds that the sums of splits take."""
    return (8 * splits + 2) * product(c.output_sizes) / measured.figure(traits, SUM, "speed")


def in_two(time: float, traits: DeviceTraits) -> float:
    """Microseconds of splits and their sum, of FLOAT16 on matrix units, by those without the wait
    between the two. Of long ones the wait is a small part."""
    return math.hypot(time, measured.figure(traits, SUM, "wait"))


class PackedSides(NamedTuple):
    """A convolution whose input and filter consist of vectors of channels, and how to make
    these."""

    problem: Problem
    """The convolution of vectors, still with the strides of the tensors."""
    each: int
    """Elements of a vector."""
    neighbours: int
    """Neighbours along the last axis whose channels share a vector."""


def planned(p: Tensors, c: Problem) -> PackedSides:
    """The packed form of a convolution. If channels are few, neighbours share a vector. (Bytes do
    not share, because filters may have zero points.)"""
    each, last = 16 // p.tensor("input_tensor").data_type.itemsize, c.axes[-1]
    neighbours = each // power_of_two(c.in_channels)
    if (neighbours < 2 or each > 8 or c.groups > 1 or last.transposed or last.filter_step < 0
            or last.filter_size == 1):
        return PackedSides(replace(c, in_channels=-(-c.in_channels // each) * each), each, 1)
    axes = (*c.axes[:-1], last.together(neighbours))
    return PackedSides(replace(c, in_channels=each, axes=axes), each, neighbours)


def packed(p: PlanBuilder, c: Problem, to: PackedSides, fill: Operand = UNUSED
           ) -> tuple[Problem, dict[str, Any]]:
    """The packed convolution with its operands: the tensors if they consist of vectors, else
    copies. A filter that is OWNED_BY_DML is copied once. ``fill`` is the element outside the input,
    else 0."""
    x, x_steps = _input(p, c, to, fill)
    w, w_steps = _filter(p, c, to)
    return replace(
        to.problem, x_strides=(x_steps[0], 1, *x_steps[1:4]),
        w_strides=(*w_steps[:2], 1, *w_steps[2:]),
    ), {"x": x, "w": w}


def packed_input(p: PlanBuilder, c: Problem, to: PackedSides) -> tuple[Problem, Operand]:
    """The packed convolution with its input; the filter is that of ``c``."""
    x, x_steps = _input(p, c, to, UNUSED)
    return replace(to.problem, x_strides=(x_steps[0], 1, *x_steps[1:4])), x


def _input(p: PlanBuilder, c: Problem, to: PackedSides, fill: Operand) -> tuple[Operand, Ints]:
    """The packed input, and the strides of {batch, axes, group}."""
    axes, last = to.problem.axes, c.axes[-1]
    return _lines(
        p, "input_tensor", c, to, (c.batches, *(a.in_size for a in axes), c.groups),
        (c.x_strides[0], *c.x_strides[2:], c.in_channels * c.x_strides[1]), c.x_strides[1],
        {"limit": last.in_size, "step": 1, "apart": last.tap_step,
         "shift": axes[-1].in_size - last.in_size}, fill)


def _filter(p: PlanBuilder, c: Problem, to: PackedSides) -> tuple[Operand, Ints]:
    """The packed filter, and the strides of {group, output channel, axes}."""
    axes, last = to.problem.axes, c.axes[-1]
    return _lines(
        p, "filter_tensor", c, to, (c.groups, c.out_channels, *(a.filter_size for a in axes)),
        (*c.w_strides[:2], *c.w_strides[3:]), c.w_strides[2],
        {"limit": last.filter_size, "step": to.neighbours, "apart": 1, "shift": 0}, UNUSED)


def packed_filter(p: PlanBuilder, c: Problem, to: PackedSides) -> Operand:
    """The filter as lines of vectors."""
    return _filter(p, c, to)[0]


def channels_last(t: TensorDesc, order: Ints = (0, 1)) -> TensorDesc:
    """The tensor, packed with its channels last. ``order``: the dimensions of batches and of
    channels."""
    line, inner = order
    first, *others = packed_strides((t.sizes[line], *t.sizes[2:], t.sizes[inner]))
    two = (first, 1) if line == 0 else (1, first)
    return t.replace(strides=(*two, *others[:-1]), flags=TensorFlags.NONE)


def turn(p: PlanBuilder, x: CopyView, y: CopyView, slots: dict[str, Operand]) -> None:
    """Copy ``x`` to ``y``, which have different layouts. ``slots`` maps their slots to operands."""
    p.include(Plan((copied(p, x.desc.sizes, x, y),)), slots)


def _lines(p: PlanBuilder, slot: str, c: Problem, to: PackedSides, sizes: Ints, strides: Ints,
           channel: int, along: dict[str, int], fill: Operand) -> tuple[Operand, Ints]:
    """A tensor as vectors of channels: its operand, and the strides of its ``sizes``."""
    t, width = p.tensor(slot), to.problem.in_channels
    size = t.data_type.itemsize
    moving = [s for n, s in zip(sizes, strides) if n > 1]
    if ((width == c.in_channels or _is_padded(p, slot, c, width)) and channel == 1 and t.is_aligned
            and not any(s * size % 16 for s in moving)):
        return p.read(slot), strides
    forward = slot == "input_tensor" or c.w_strides[1] == t.strides[0]
    if (width == c.in_channels and not t.owned_by_dml and (forward or c.groups == 1)
            and not p.device.slow_barriers):
        order = (0, 1) if forward else (1, 0)  # rows, then channels
        last = channels_last(t, order)
        copy = p.temporary(size, t.element_count)
        turn(p, CopyView.whole(slot, t), CopyView.whole("copy", last), {"copy": copy})
        spatial = pad_left(last.strides[2:], AXES, 0)
        if slot == "input_tensor":
            return copy.reading(), (last.strides[0], *spatial, width)
        line = last.strides[order[0]]
        return copy.reading(), (c.out_channels * line, line, *spatial)
    axis = 3 if slot == "input_tensor" else 4  # the last one
    own = list(strides)
    if to.neighbours > 1:
        own[axis] = 0
        along = {**along, "width": sizes[axis], "stride": strides[axis]}
    else:
        along = {}
    lines, walk = product(sizes), Walk(sizes, own)
    together = _INVOCATIONS // min(8, power_of_two(width * size // 16))
    make = p.persistent if t.owned_by_dml else lambda _, *size: p.temporary(*size)
    y = make(slot, size, lines * width)
    p.dispatch(
        f"{PACK}.{t.data_type.width}", -(-lines // together), x=p.read(slot), y=y, fill=fill,
        params=walk.words,
        push={"rows": lines, "channels": c.in_channels, "vectors": width * size // 16,
              "channel_stride": channel, **along},
        spec={"LOCAL_SIZE": _INVOCATIONS, "LINES": together, "HAS_FILL": fill is not UNUSED,
              "NEIGHBOURS": to.neighbours, "CHANNELS": width // to.neighbours},
        once=t.owned_by_dml)
    return y.reading(), tuple(width * s for s in packed_strides(sizes))


def _is_padded(p: PlanBuilder, slot: str, c: Problem, width: int) -> bool:
    """Whether there is memory between an image's channels up to a whole vector, which the filter's
    padding multiplies by zeros."""
    t, filter_ = p.tensor(slot), p.tensor("filter_tensor")
    return (slot == "input_tensor" and c.groups == 1 and filter_.data_type is DataType.INT8
            and getattr(p.desc, "filter_zero_point_tensor", None) is None
            and t.total_tensor_size_in_bytes >= t.element_count // c.in_channels * width
            and min(s for s, n in zip(t.strides, t.sizes) if n > 1 and s > 1) >= width)


def is_plain(p: Tensors, c: Problem, y_strides: Ints, each: int = 8, y: Operand = UNUSED) -> bool:
    """Whether each ``each`` channels of the output, or of ``y``, are an aligned vector, and those
    of a tail's tensor."""
    others = [s for s, n in zip((y_strides[0], *y_strides[2:]), (
        c.batches, *(a.out_size for a in c.axes))) if n > 1]
    return y_strides[1] == 1 and not any(n % each for n in (c.out_channels, *others)) and (
        y.slot == TEMPORARY or (p.tensor("output_tensor").is_aligned and p.tail_is_aligned))
