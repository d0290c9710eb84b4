"""Convolutions of contiguous channels, in vectors: on matrix units, or of floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...desc import TensorDesc, TensorFlags
from ...dtypes import DataType
from ...layout import Ints, packed_strides, pad_left, power_of_two, product
from ...lowering.activation import NOTHING, Fused
from ...lowering.builder import PlanBuilder
from ...lowering.copy import View, copied
from ...lowering.plan import TEMPORARY, UNUSED, Operand, Plan
from ...lowering.walk import Walk
from ...tuning import work_key
from . import blocks, floats
from .geometry import AXES
from .problem import Problem

SHADER, LINES, PACK = "convolution_coopmat", "convolution_lines", "convolution_pack"
_INVOCATIONS = 256


class Kernel(NamedTuple):
    shader: str
    axes: str
    tile: Ints
    """Rows and columns of a tile, and K of a step."""
    resident: int
    """Workgroups that a core runs at a time. One alone takes 0.7 of the time of all."""
    step: float
    """Microseconds of a core for a step of one workgroup, ..."""
    extra: int
    """... and the steps that the beginning and the end cost."""


class Choice(NamedTuple):
    kernel: Kernel
    splits: int
    """Splits of K, each for a workgroup of its own."""

    @property
    def name(self) -> str:
        return f"{self.kernel.axes.rpartition('.')[2]}-{self.splits}"

    @property
    def variant(self) -> str:
        return f"{self.kernel.shader}.{self.kernel.axes}"


def _kernels(shader: str, of: str, each: int,
             *tiles: tuple[str, Ints, int, float, int]) -> list[Kernel]:
    """Kernels of a shader. ``each`` is the elements of a vector of K."""
    return [Kernel(shader, of + name, (rows, columns, vectors * each), resident, step, extra)
            for name, (rows, columns, vectors), resident, step, extra in tiles]


# As measured on an H200; bytes with quantized outputs, except for t128x160.
_HALVES = _kernels(
    SHADER, "f16.", 8,
    ("t128", (128, 128, 4), 2, 0.47, 7), ("t256x64", (256, 64, 4), 1, 0.63, 11),
    ("t128x160", (128, 160, 4), 1, 0.62, 10), ("t256", (256, 128, 4), 1, 1.05, 7),
    ("t96", (96, 128, 4), 2, 0.35, 8), ("t128d", (128, 128, 8), 1, 1.3, 7),
    ("t96d", (96, 128, 8), 1, 0.82, 7),
    ("t128x64", (128, 64, 4), 2, 0.33, 9), ("t64", (64, 64, 8), 2, 0.35, 5),
    ("t64s", (64, 64, 4), 4, 0.2, 6))
_BYTES = _kernels(
    SHADER, "i8.", 16,
    ("t128x160", (128, 160, 4), 1, 0.62, 10),
    ("t256", (256, 128, 4), 1, 0.96, 9), ("t96", (96, 128, 4), 2, 0.38, 9),
    ("t96d", (96, 128, 8), 1, 0.78, 8), ("t128x64", (128, 64, 4), 2, 0.35, 8),
    ("t64", (64, 64, 8), 2, 0.36, 5), ("t64s", (64, 64, 4), 4, 0.22, 6))
_FLOATS = _kernels(LINES, "", 4, ("t128", (128, 128, 2), 1, 0.79, 2),
                   ("t128x64", (128, 64, 2), 3, 0.4, 4), ("t64", (64, 64, 4), 1, 0.55, 2))
# A step takes 2.37 us. Where several rounds fill all cores, _FLOATS gain 3 % on their estimates.
_WIDE = [Kernel(floats.SHADER, name, tile, 1, 2.4, 1) for name, tile in floats.TILES.items()]
_BLOCKS = [Kernel(blocks.SHADER, name, tile, 1, 0, 0) for name, tile in blocks.TILES.items()]
_CORE_SPEED = 0.19
"""Million operations of convolution.comp in a microsecond on a core."""
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_MAX_TAPS, _MAX_BITS = 63, 31
"""Limits of convolution_coopmat.comp."""
_LEAST_STEPS = 4
"""The least steps of K in a split."""
_SUM_SPEED, _PACK_SPEED = 6e6, 1.5e6
"""Bytes in a microsecond, for sums and for packing."""


_FAR = 16 << 20
"""The least bytes of a filter that caches do not hold."""
_WORTH_LINES, _WORTH_BLOCKS, _WORTH_LARGE_BLOCKS = 1 << 24, 1 << 20, 1 << 23
"""The least multiplications for which a CPU uses the kernels of floats."""


def chosen(p: PlanBuilder, c: Problem, shared: bool = True) -> Choice | None:
    """A kernel and the splits of K. None if convolution.comp should do it. ``shared``: several
    splits are allowed."""
    found = [choice for _, choice in _candidates(p, c, shared)]
    if not found:
        return None
    work = work_key(f"convolution {p.tensor('input_tensor').data_type.family}", c.rows,
                    c.in_channels, c.k, c.out_channels, c.groups)
    return p.choose(work, found, lambda choice: "core" if choice is None else choice.name)


def estimate(p: PlanBuilder, c: Problem) -> float:
    """Microseconds of the best of these kernels."""
    found = _candidates(p, c, True)
    return found[0][0] if found else _without(p, c)


def _candidates(p: PlanBuilder, c: Problem, shared: bool) -> list[tuple[float, Choice | None]]:
    """Kernels with splits of K after their estimated times, the presumably fastest first."""
    taps = [max(n for _, n, _ in a.phases) for a in c.axes]
    data_type = p.tensor("input_tensor").data_type
    kernels: list[Kernel] = []
    if (min(c.out_channels, c.k) < 16 or c.rows < 16 or product(taps) > _MAX_TAPS
            or sum(taps) > _MAX_BITS):
        pass
    elif data_type is DataType.FLOAT16 and p.device.multiplies(16, 16, 16, "f16", "f32"):
        kernels = _HALVES
    elif data_type.itemsize == 1 and p.device.multiplies(16, 16, 32, "i8", "i32"):
        kernels = _BYTES
    elif data_type.is_float:
        plain = floats.serves(p, c) and is_plain(p, c, p.write("output_tensor"), c.y_strides, 4)
        kernels = [*_FLOATS, *_WIDE] if plain else _FLOATS
    if data_type.is_float and p.device.slow_barriers:
        kernels = [*kernels, *_BLOCKS]
    timed = _timed_on_cpu if p.device.is_cpu else _timed
    found: list[tuple[float, Choice | None]] = [
        each for k in kernels if _is_there(p, c, k)
        for each in timed(p, c, k, _splits(p, c, k, shared))]
    if found and kernels[-1].shader != SHADER:
        found.append((_without(p, c), None))
    found.sort(key=lambda each: each[0])
    return found


def _is_there(p: PlanBuilder, c: Problem, kernel: Kernel) -> bool:
    """Whether the device has a kernel for this filter."""
    variant = p.library.find(kernel.shader, *kernel.axes.split("."), *p.tail_axis)
    return (variant is not None and variant.shared_bytes <= p.device.max_shared_memory
            and product(variant.workgroup_size) <= p.device.max_invocations
            and not (kernel in _BLOCKS and c.k > blocks.MAX_K))


def _splits(p: PlanBuilder, c: Problem, kernel: Kernel, shared: bool) -> list[int]:
    """The splits with which a kernel that is there serves."""
    whole = not shared or kernel in [*_BLOCKS, *_WIDE]
    most = 1 if whole else c.k // (kernel.tile[2] * _LEAST_STEPS)
    found = [n for n in _SPLITS if n == 1 or n <= most]
    if kernel is _FLOATS[0] and getattr(p.desc, "tail", None) and (
            not is_plain(p, c, p.write("output_tensor"), c.y_strides, 4)):
        del found[0]  # sums go to memory where so many tails are computed one by one
    return found


def _without(p: PlanBuilder, c: Problem) -> float:
    """The estimated microseconds of convolution.comp, which packs nothing. Of a CPU only the order
    counts."""
    if p.device.is_cpu:
        worth = _WORTH_BLOCKS if p.device.slow_barriers else _WORTH_LINES
        return 0 if _work(c) < worth else 1e9
    tiles = -(-c.tiles(64, 64) // p.device.cores)
    return tiles * 2 * 64 * 64 * c.k / 1e6 / _CORE_SPEED


def _work(c: Problem) -> int:
    return c.rows * c.k * c.out_channels * c.groups


def _timed_on_cpu(
    p: PlanBuilder, c: Problem, kernel: Kernel, every: Sequence[int]
) -> list[tuple[float, Choice]]:
    """The kernel with splits of K, after a measure for the order. Loads take most of a CPU's time,
    so large blocks are better, if the work is worth their compilation."""
    if kernel in _BLOCKS:  # the large ones take twice as long to compile
        order = 0.5 if kernel is _BLOCKS[_work(c) >= _WORTH_LARGE_BLOCKS] else 1
        return [(order, Choice(kernel, splits)) for splits in every]
    if kernel in _WIDE:  # no CPU gains from large tiles
        return [(math.inf, Choice(kernel, splits)) for splits in every]
    rows, columns, _ = kernel.tile
    waste = c.tiles(rows, columns) * rows * columns / (c.rows * c.out_channels * c.groups)
    return [(splits * waste * (1 + 128 / columns + 128 / rows), Choice(kernel, splits))
            for splits in every]


def _timed(
    p: PlanBuilder, c: Problem, kernel: Kernel, every: Sequence[int]
) -> list[tuple[float, Choice]]:
    """The kernel with splits of K, after the estimated microseconds: of the core with the most
    workgroups, of adding splits, and of packing."""
    (rows, columns, depth), resident, step = kernel.tile, kernel.resident, kernel.step
    cores, tiles, all_steps = p.device.cores, c.tiles(rows, columns), -(-c.k // depth)
    if resident == 1 and p.tensor("filter_tensor").total_tensor_size_in_bytes > _FAR:
        step *= 1.4  # no other workgroup hides the filter's latency
    before, found = packing(p, c), []
    for splits in every:
        rounds, rest = divmod(tiles * splits, cores * resident)
        last = max(-(-rest // cores), 0.7 * resident) if rest else 0
        time = (rounds * resident + last) * (-(-all_steps // splits) + kernel.extra) * step
        if splits > 1:
            time += adding(c, splits)
        found.append((time + before, Choice(kernel, splits)))
    return found


def packing(p: PlanBuilder, c: Problem) -> float:
    """Microseconds that an input takes whose channels are apart."""
    x = p.tensor("input_tensor")
    size = x.element_count * x.data_type.itemsize
    return 0.0 if c.x_strides[1] == 1 else 2 * size / _PACK_SPEED


def adding(c: Problem, splits: int) -> float:
    """Microseconds that the sums of splits take."""
    return (8 * splits + 2) * product(c.output_sizes) / _SUM_SPEED


class Packed(NamedTuple):
    """A convolution whose input and filter consist of vectors of channels, and how to make
    these."""

    problem: Problem
    """The convolution of vectors, still with the strides of the tensors."""
    each: int
    """Elements of a vector."""
    neighbours: int
    """Neighbours along the last axis whose channels share a vector."""


def planned(p: PlanBuilder, c: Problem) -> Packed:
    """The packed form of a convolution. If channels are few, neighbours share a vector. (Bytes do
    not share, because filters may have zero points.)"""
    each, last = 16 // p.tensor("input_tensor").data_type.itemsize, c.axes[-1]
    neighbours = each // power_of_two(c.in_channels)
    if (neighbours < 2 or each > 8 or c.groups > 1 or last.transposed or last.filter_step < 0
            or last.filter_size == 1):
        return Packed(replace(c, in_channels=-(-c.in_channels // each) * each), each, 1)
    axes = (*c.axes[:-1], last.together(neighbours))
    return Packed(replace(c, in_channels=each, axes=axes), each, neighbours)


def packed(p: PlanBuilder, c: Problem, to: Packed, fill: Operand = UNUSED
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


def packed_input(p: PlanBuilder, c: Problem, to: Packed) -> tuple[Problem, Operand]:
    """The packed convolution with its input; the filter is that of ``c``."""
    x, x_steps = _input(p, c, to, UNUSED)
    return replace(to.problem, x_strides=(x_steps[0], 1, *x_steps[1:4])), x


def _input(p: PlanBuilder, c: Problem, to: Packed, fill: Operand) -> tuple[Operand, Ints]:
    """The packed input, and the strides of {batch, axes, group}."""
    axes, last = to.problem.axes, c.axes[-1]
    return _lines(
        p, "input_tensor", c, to, (c.batches, *(a.in_size for a in axes), c.groups),
        (c.x_strides[0], *c.x_strides[2:], c.in_channels * c.x_strides[1]), c.x_strides[1],
        {"limit": last.in_size, "step": 1, "apart": last.tap_step,
         "shift": axes[-1].in_size - last.in_size}, fill)


def _filter(p: PlanBuilder, c: Problem, to: Packed) -> tuple[Operand, Ints]:
    """The packed filter, and the strides of {group, output channel, axes}."""
    axes, last = to.problem.axes, c.axes[-1]
    return _lines(
        p, "filter_tensor", c, to, (c.groups, c.out_channels, *(a.filter_size for a in axes)),
        (*c.w_strides[:2], *c.w_strides[3:]), c.w_strides[2],
        {"limit": last.filter_size, "step": to.neighbours, "apart": 1, "shift": 0}, UNUSED)


def packed_filter(p: PlanBuilder, c: Problem, to: Packed) -> Operand:
    """The filter as lines of vectors."""
    return _filter(p, c, to)[0]


def takes_halves(p: PlanBuilder) -> bool:
    """Whether input and output are FLOAT16, and matrix units multiply that."""
    return p.device.multiplies(16, 16, 16, "f16", "f32") and all(
        p.tensor(f"{slot}_tensor").data_type is DataType.FLOAT16 for slot in ("input", "output"))


def keeps_filter(p: PlanBuilder, c: Problem) -> bool:
    """Whether a kernel that keeps the filter in registers is taken, of those that can."""
    work = work_key("kept filter", c.rows, c.in_channels, c.k, c.out_channels)
    return p.choose(work, ["kept", "tiles"]) == "kept"


def channels_last(t: TensorDesc, order: Ints = (0, 1)) -> TensorDesc:
    """The tensor, packed with its channels last. ``order``: the dimensions of batches and of
    channels."""
    line, inner = order
    first, *others = packed_strides((t.sizes[line], *t.sizes[2:], t.sizes[inner]))
    two = (first, 1) if line == 0 else (1, first)
    return t.replace(strides=(*two, *others[:-1]), flags=TensorFlags.NONE)


def turn(p: PlanBuilder, x: View, y: View, slots: dict[str, Operand]) -> None:
    """Copy ``x`` to ``y``, which have different layouts. ``slots`` maps their slots to operands."""
    p.include(Plan((copied(p.target, x.desc.sizes, x, y),)), slots)


def _lines(p: PlanBuilder, slot: str, c: Problem, to: Packed, sizes: Ints, strides: Ints,
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
        turn(p, View.whole(slot, t), View.whole("copy", last), {"copy": copy})
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


def is_plain(p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, each: int = 8) -> bool:
    """Whether each ``each`` channels of the output are an aligned vector, and those of a tail's
    tensor."""
    others = [s for s, n in zip((y_strides[0], *y_strides[2:]), (
        c.batches, *(a.out_size for a in c.axes))) if n > 1]
    return y_strides[1] == 1 and not any(n % each for n in (c.out_channels, *others)) and (
        y.slot == TEMPORARY or (p.tensor("output_tensor").is_aligned and p.tail_is_aligned))


def dispatch(
    p: PlanBuilder, c: Problem, choice: Choice, y: Operand, y_strides: Ints,
    spec: dict[str, int], push: dict[str, int], more_params: Ints, operands: dict[str, Any],
    fused: Fused = NOTHING,
) -> None:
    """Dispatch a kernel. ``operands`` are input, filter, and those after the output."""
    words, tile = c.words(y_strides), choice.kernel.tile
    if choice.kernel not in [*_BLOCKS, *_WIDE]:
        each = 8 if choice.kernel.shader == SHADER else 4
        spec = {**spec, "PLAIN": is_plain(p, c, y, y_strides, each)}
    x, w, *more = operands.items()
    bound = {**dict([x, w]), "y": y, **dict(more)}
    if choice.kernel in _WIDE:
        floats.dispatch(p, c, fused.variant(choice.variant), tile, y, y_strides, spec, push,
                        tuple(more_params), bound)
        return
    if choice.kernel in _BLOCKS:
        blocks.dispatch(p, c, fused.variant(choice.variant), tile, y, y_strides, spec,
                        {"activation_at": len(words), **push}, (*words, *more_params), bound)
        return
    own = c.push(tile, choice.splits, y_strides)
    if choice.kernel.shader == SHADER:
        own["w_strides"] = c.w_strides[:2]
    p.dispatch(
        fused.variant(choice.variant), c.tiles(*tile[:2]) * choice.splits, **bound,
        params=[*words, *more_params],
        push={**own, "activation_at": len(words), **push},
        spec={"OUTPUT_ALONG_ROWS": y_strides[1] >= y_strides[-1], **spec})
