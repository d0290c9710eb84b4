"""Depthwise convolutions: one filter for each channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

from ...layout import Ints
from ...lowering.activation import NOTHING, Fused
from ...lowering.builder import PlanBuilder
from ...tuning import work_key
from ..quantize import made_range
from .problem import Problem

SHADER, ROWS = "convolution_depthwise", "convolution_depthwise_rows"
BYTES = "convolution_depthwise_bytes"
_MAX_TAPS, _MAX_SPAN = 7, 24
"""Along an axis: the most taps of a filter, and the most input elements of a row of outputs."""
_SHARED_FOURS = 1024
"""The most vectors of four taps in shared memory."""
_INVOCATIONS = 256
_CHANNELS = 4
"""Channels of an invocation, if they come last."""
_EARLY = 12
"""The most input elements that an invocation reads before the filters, unless a row has more."""
_MAX_KEPT, _MAX_STRIDE = 5, 2
"""The most taps and the longest stride along an axis of ROWS, which keeps a window in registers."""
_ROWS = {7: 1024, 4: 192}
"""Rows of outputs for each invocation of ROWS, and the least invocations for each core with which
they are the fastest."""


class Kernel(NamedTuple):
    name: str
    rows: int
    """Rows of outputs for each invocation, ..."""
    columns: int
    """... and columns (1 or 2 of the kernel "first")."""
    words: int = 0
    """Words of the input that an invocation of ROWS reads at once."""

    def blocks(self, c: Problem) -> int:
        """Blocks of outputs in all images."""
        _, y, x = c.axes
        return c.batches * -(-y.out_size // self.rows) * -(-x.out_size // self.columns)


_FIRST = Kernel("first", 4, 1)
_LAST = [Kernel(f"last{rows}x{columns}", rows, columns)
         for rows, columns in ((2, 4), (1, 4), (4, 2), (1, 8), (1, 1))]
_LEAST = (256, 64)
"""The least invocations for each core with which the first of them are the fastest."""
_OF_BYTES = (_LAST[0], _LAST[1], _LAST[4])


def lower(p: PlanBuilder, c: Problem, fused: Fused) -> bool:
    """Lower the convolution if the kernels can compute it. Returns whether they can."""
    if not _is_depthwise(c):
        return False
    data_type = p.tensor("input_tensor").data_type
    found = _last(p, c, _LAST) if _is_of_fours(p, c) else _first(p, c)
    work = work_key(f"depthwise {data_type.family} {found[0].name}", c.rows, c.groups,
                    c.axes[2].out_size)
    _dispatch(p, c, p.choose(work, found, lambda k: k.name), fused)
    return True


def lower_bytes(p: PlanBuilder, c: Problem, to: str, operands: Mapping[str, Any],
                push: Mapping[str, int], spec: Mapping[str, int], fused: Fused = NOTHING) -> bool:
    """Lower a convolution of bytes whose channels come last, ``to`` sums, floats or bytes. Returns
    whether the kernels can compute it. ``operands`` are those after the output, which finish
    sums."""
    if not _is_depthwise(c) or not _is_of_fours(p, c):
        return False
    found = _last(p, c, _OF_BYTES)
    work = work_key(f"depthwise bytes {found[0].name}", c.rows, c.groups, c.axes[2].out_size)
    kernel = p.choose(work, found, lambda k: k.name)
    if p.library.find(BYTES, to, kernel.name, *p.tail_axis) is None:
        return False  # it binds too many tensors
    y_axis, x_axis = c.axes[1:]
    for name, axis in (("Y", y_axis), ("X", x_axis)):
        spec = {**spec, f"TAPS_{name}": axis.filter_size, f"STRIDE_{name}": axis.input_step,
                f"DILATION_{name}": axis.tap_step, f"PADDING_{name}": -axis.phases[0][2]}
    groups, more = _of_last(p, c, kernel)
    del more["EARLY"]
    if to == "floats":
        operands = {**operands, **p.read_tail(), **made_range(p), "params": fused.words or (0,)}
    p.dispatch(
        fused.variant(f"{BYTES}.{to}.{kernel.name}"), groups,
        x=p.read("input_tensor"), w=p.read("filter_tensor"), y=p.write("output_tensor"),
        **operands,
        push={"batches": c.batches, "channels": c.groups,
              "x_sizes": (y_axis.in_size, x_axis.in_size),
              "y_sizes": (y_axis.out_size, x_axis.out_size),
              "x_strides": (c.x_strides[0], *c.x_strides[3:]),
              "y_strides": (c.y_strides[0], *c.y_strides[3:]),
              "w_strides": (c.w_strides[0], *c.w_strides[4:]), **push},
        spec={**spec, **more})
    return True


def _is_depthwise(c: Problem) -> bool:
    z, *axes = c.axes
    taps = [a.filter_size for a in axes]
    spans = [a.input_step + a.tap_step * (n - 1) for a, n in zip(axes, taps)]
    return not (
        c.in_channels != 1 or c.out_channels != 1 or z.in_size * z.out_size * z.filter_size != 1
        or any(a.transposed for a in c.axes) or max(taps) > _MAX_TAPS or spans[1] + 1 > _MAX_SPAN)


def _is_of_fours(p: PlanBuilder, c: Problem) -> bool:
    """Whether channels of input and output come last, in fours, as those of a tail do."""
    return c.groups % _CHANNELS == 0 and p.tail_is_aligned and all(
        _of_fours(p, slot, strides) for slot, strides in (
            ("input_tensor", c.x_strides), ("output_tensor", c.y_strides)))


def _last(p: PlanBuilder, c: Problem, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels for channels that come last. Large blocks read less, if they are enough for all
    cores. As measured on an H200."""
    invocations = [k.blocks(c) * c.groups // _CHANNELS for k in kernels]
    best = next((i for i, (n, least) in enumerate(zip(invocations, _LEAST))
                 if n >= p.device.cores * least), len(kernels) - 1)
    return [kernels[best], *kernels[:best], *kernels[best + 1 :]]


def _first(p: PlanBuilder, c: Problem) -> list[Kernel]:
    """The kernels for channels that come first, or lie in any order."""
    _, y, x = c.axes
    item = p.tensor("input_tensor").data_type.itemsize
    words = _chunks(p, c)
    if not words:
        return [_FIRST]
    rows = [Kernel(f"rows{n}", n, _columns(words * 4 // item, x.input_step, item), words)
            for n in _ROWS]
    faster: list[Kernel] = []  # as measured on an H200, with 3 x 3 taps
    if not p.device.is_cpu and y.filter_size == x.filter_size == 3:
        if y.input_step == x.input_step == 1 and (words == 4 or item == 2):
            faster = rows
        elif y.input_step == x.input_step == 2 and words == 4:
            faster = rows[:1]
    best = next((k for k in faster
                 if k.blocks(c) * c.groups >= p.device.cores * _ROWS[k.rows]), _FIRST)
    return [best, *(k for k in (_FIRST, *rows) if k is not best)]


def _columns(chunk: int, stride: int, item: int) -> int:
    """Columns of an invocation of ROWS: whole words, whose windows all begin at the same place of a
    chunk of so many elements."""
    return max(chunk // gcd(chunk, stride), 4 // item)


def _chunks(p: PlanBuilder, c: Problem) -> int:
    """The most words of the chunks that make up all rows, or 0 where ROWS cannot read and write
    them."""
    _, y, x = c.axes
    tensors = [p.tensor(slot) for slot in ("input_tensor", "output_tensor")]
    if (c.x_strides[4] != 1 or c.y_strides[4] != 1 or not all(t.is_aligned for t in tensors)
            or any(a.filter_size > _MAX_KEPT or a.input_step > _MAX_STRIDE or a.tap_step != 1
                   for a in (y, x))):
        return 0
    item = tensors[0].data_type.itemsize
    read = gcd(*c.x_strides[:2], c.x_strides[3], x.in_size)
    written = gcd(*c.y_strides[:2], c.y_strides[3], x.out_size)
    return next((n for n in (4, 2, 1) if read % (n * 4 // item) == 0
                 and written % _columns(n * 4 // item, x.input_step, item) == 0), 0)


def _of_fours(p: PlanBuilder, slot: str, strides: Ints) -> bool:
    """Whether channels are contiguous, in whole groups of _CHANNELS."""
    others = (strides[0], *strides[2:])
    return (p.tensor(slot).is_aligned and strides[1] == 1
            and not any(s % _CHANNELS for s in others))


def _dispatch(p: PlanBuilder, c: Problem, kernel: Kernel, fused: Fused) -> None:
    y_axis, x_axis = c.axes[1:]
    bias = p.tensor("bias_tensor")
    spec: dict[str, int] = {"TYPE": p.tensor("input_tensor").data_type.code,
                            "HAS_BIAS": bias is not None, **fused.spec}
    for name, axis in (("Y", y_axis), ("X", x_axis)):
        spec |= {f"TAPS_{name}": axis.filter_size, f"STRIDE_{name}": axis.input_step}
        if not kernel.words:
            spec[f"DILATION_{name}"] = axis.tap_step
    constants = _of_rows if kernel.words else _of_first if kernel is _FIRST else _of_last
    groups, more = constants(p, c, kernel)
    p.dispatch(
        fused.variant(ROWS if kernel.words else f"{SHADER}.{kernel.name}"), groups,
        x=p.read("input_tensor"), w=p.read("filter_tensor"), y=p.write("output_tensor"),
        bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
        push={"batches": c.batches, "channels": c.groups,
              "x_sizes": (y_axis.in_size, x_axis.in_size),
              "y_sizes": (y_axis.out_size, x_axis.out_size), "padding": _padding(c),
              "x_strides": (*c.x_strides[:2], *c.x_strides[3:]),
              "y_strides": (*c.y_strides[:2], *c.y_strides[3:]),
              "w_strides": (c.w_strides[0], *(
                  s * a.filter_step for s, a in zip(c.w_strides[4:], (y_axis, x_axis)))),
              "w_first": sum(a.phases[0][0] * s for s, a in zip(
                  c.w_strides[4:], (y_axis, x_axis))),
              "bias_stride": bias.strides[1] if bias is not None and c.groups > 1 else 0,
              "activation_at": 0},
        spec=spec | more)


def _padding(c: Problem) -> Ints:
    """Along y and x, before the first element."""
    return tuple(-a.phases[0][2] for a in c.axes[1:])


Constants = tuple[int, dict[str, int]]
"""Workgroups and specialization constants."""


def _of_first(p: PlanBuilder, c: Problem, kernel: Kernel) -> Constants:
    y, x = c.axes[1:]
    # FLOAT16 moves in words of two, if all rows are whole words.
    strides = (*c.x_strides[:2], c.x_strides[3], *c.y_strides[:2], c.y_strides[3])
    pairs = (p.tensor("input_tensor").data_type.itemsize == 2
             and c.x_strides[4] == c.y_strides[4] == 1
             and p.tensor("input_tensor").is_aligned and p.tensor("output_tensor").is_aligned
             and not any(n % 2 for n in (*strides, x.in_size, x.out_size))
             and x.input_step + x.tap_step * (x.filter_size - 1) < _MAX_SPAN)
    neighbours = 2 if pairs else 1
    lines = -(-x.out_size // neighbours) * -(-y.out_size // kernel.rows)
    return -(-c.batches * c.groups * lines // _INVOCATIONS), {
        "LOCAL_SIZE": _INVOCATIONS, "EACH": neighbours, "ODD": _padding(c)[1] % 2}


def _of_rows(p: PlanBuilder, c: Problem, kernel: Kernel) -> Constants:
    _, x = c.axes[1:]
    padding = _padding(c)[1]
    phase = -padding % (kernel.words * 4 // p.tensor("input_tensor").data_type.itemsize)
    last = (x.out_size - kernel.columns) * x.input_step - padding - phase  # where chunks begin
    return -(-kernel.blocks(c) * c.groups // _INVOCATIONS), {
        "LOCAL_SIZE": _INVOCATIONS, "COLUMNS": kernel.columns, "ROWS": kernel.rows,
        "WORDS": kernel.words, "PHASE": phase, "SURE_FROM": padding + phase,
        "SURE_TO": max(x.in_size - last, 0)}


def _of_last(p: PlanBuilder, c: Problem, kernel: Kernel) -> Constants:
    y, x = c.axes[1:]
    fours = c.groups // _CHANNELS
    most = min(64, _SHARED_FOURS // (y.filter_size * x.filter_size))
    lanes = max(n for n in range(1, most + 1) if fours % n == 0)
    if 4 * lanes < min(fours, most):
        lanes = min(fours, most)
    places = _INVOCATIONS // lanes
    lines, span = [
        (n - 1) * a.input_step + (a.filter_size - 1) * a.tap_step + 1
        for n, a in zip((kernel.rows, kernel.columns), (y, x))]
    return -(-fours // lanes) * -(-kernel.blocks(c) // places), {
        "LOCAL_SIZE": lanes * places, "LANES": lanes,
        "EARLY": min(max(_EARLY // span, 1), lines)}
