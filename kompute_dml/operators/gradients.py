"""Gradients of operators. Each element sums its contributions in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..desc import TensorDesc
from ..dtypes import DataType, saturate
from ..errors import UnsupportedError, expect
from ..layout import (
    Ints,
    begin_with_vectors,
    is_packed,
    packed_strides,
    pad_left,
    product,
)
from ..lowering import copy
from ..lowering.builder import PlanBuilder
from ..lowering.copy import View, copied
from ..lowering.elementwise import float_bits
from ..lowering.neighbours import Neighbours
from ..lowering.plan import UNUSED
from ..lowering.planes import block_strides, chosen
from ..lowering.walk import Walk, reciprocal
from .base import like, operator
from .elementwise import row
from .fill_value import SHADER, fill
from .movement import slice1_begins, slice1_sizes, slice1_view
from .normalization import check_neighbours, refuse_long_windows
from .pooling import MOST_ALONG, WINDOWS, Window, blocks_of, planes, window_of, winners

_LOCAL_SIZE = 256
_MOST_STRIDE = 4
"""The largest stride of a window in pooling_grad_planes.comp."""
_LARGE = 1 << 31
"""Fewer elements have signed distances."""
_PASSES = 65_000
"""The most passes of nested loops: lavapipe ends loops after 65,535, and walks have loops, too."""



def refuse_long_sums(d: Any, p: PlanBuilder, loops: Sequence[int]) -> None:
    """Raise if a CPU driver would end nested loops too early."""
    passes = sum(product(loops[: i + 1]) for i in range(len(loops)))
    if p.device.is_cpu and passes > _PASSES:
        raise UnsupportedError(
            f"{d.operator.name}: up to {product(loops)} elements for one: more than {_PASSES}, "
            "with those of the loops around, are not supported on a CPU")


row("ACTIVATION_RELU_GRAD", shader="relu_grad")
for _name in ("CLIP_GRAD", "CLIP_GRAD1"):
    row(f"ELEMENT_WISE_{_name}", shader="clip_grad")


# Slices


def _check_slice(d: Any, strict: bool) -> None:
    most = slice1_sizes(d, "OutputGradientTensor")
    for i, (n, m) in enumerate(zip(d.input_gradient_tensor.sizes, most)):
        expect(n <= m, d.operator.name, f"InputGradientTensor.Sizes[{i}]",
               f"be at most {m} (what the window and its stride make)", n)


@operator("SLICE_GRAD", shaders=("slice_grad", SHADER, *copy.SHADERS), check=_check_slice)
def SliceGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    dx, dy = d.output_gradient_tensor, d.input_gradient_tensor
    each = 16 // dx.data_type.itemsize
    # A CPU is faster where single elements of one or two bytes would be stored.
    pays_off = not p.device.is_cpu or (
        each > 4 and abs(d.input_window_strides[-1]) > 1)
    if (pays_off and is_packed(dx.sizes, dx.strides) and dx.is_aligned
            and dx.sizes[-1] % each == 0 and dx.element_count < _LARGE):
        _slice_vectors(p, d, each)
        return
    fill(p, "output_gradient_tensor", dx, saturate(0, dx.data_type))
    p.add(copied(p.target, dy.sizes, View.whole("input_gradient_tensor", dy),
                 slice1_view(d, "output_gradient_tensor")))


def _slice_vectors(p: PlanBuilder, d: Any, each: int) -> None:
    """Zeros and elements in one store of a vector."""
    dx, dy = d.output_gradient_tensor, d.input_gradient_tensor
    begins = slice1_begins(d)
    *outer, row = zip(dx.sizes, begins, d.input_window_strides, dy.sizes, dy.strides)
    words: list[int] = []
    for size, begin, step, count, stride in _merged(outer):
        words[:0] = [size, *reciprocal(size), begin, int(step < 0), abs(step),
                     *reciprocal(abs(step)), count, stride]
    _, begin, step, count, stride = row
    vectors, per_row = dx.element_count // each, dx.sizes[-1] // each
    local_size = p.device.local_size
    p.dispatch(
        f"slice_grad.{dx.data_type.width}", -(-vectors // local_size),
        x=p.read("input_gradient_tensor"), y=p.write("output_gradient_tensor"),
        params=words or [0],  # a single row has none
        push={"vectors": vectors, "per_row": [per_row, *reciprocal(per_row)], "begin": begin,
              "count": count, "stride": stride},
        spec={"LOCAL_SIZE": local_size, "RANK": len(words) // _SLICE_WORDS, "STEP": abs(step),
              "BACK": step < 0})


_SLICE_WORDS = 10
"""WORDS of ``slice_grad.comp``."""
_Sliced = tuple[int, int, int, int, int]
"""A dimension: size, begin and step of the slice, the slice's size and stride."""


def _merged(dims: Sequence[_Sliced]) -> list[_Sliced]:
    """Neighbours that the slice takes whole become one. Dimensions of size 1 are left out."""
    merged: list[_Sliced] = []
    for size, begin, step, count, stride in dims:
        if size == 1:
            continue
        if merged and (begin, step, count) == (0, 1, size):
            before = merged[-1]
            if before[1:4] == (0, 1, before[0]) and before[4] == count * stride:
                merged[-1] = (before[0] * size, 0, 1, before[0] * size, stride)
                continue
        merged.append((size, begin, step, count, stride))
    return merged


# Pooling


def _pooling_window(d: Any) -> Window:
    """The checked window. The incoming gradient must have the sizes of the pooling's output."""
    x, dy = d.output_gradient_tensor, d.input_gradient_tensor
    window = window_of(d, x)
    name = d.operator.name
    for i in range(x.dimension_count):
        allowed = [x.sizes[i]]
        if i > 1:
            room = (x.sizes[i] + window.start[i - 2] + window.end[i - 2] - window.reach[i - 2])
            step = window.strides[i - 2]
            allowed = sorted({room // step + 1, -(-room // step) + 1})
        expect(dy.sizes[i] in allowed, name, f"InputGradientTensor.Sizes[{i}]",
               f"be {' or '.join(map(str, allowed))}, as pooling makes it", dy.sizes[i])
    return window


def _check_pooling(d: Any, strict: bool) -> None:
    _pooling_window(d)


def _packed_like(t: TensorDesc) -> Ints:
    """The strides of a packed tensor whose dimensions have the order of ``t`` in memory."""
    order = sorted(range(t.dimension_count), key=lambda i: (t.sizes[i] > 1, -t.strides[i]))
    steps = packed_strides([t.sizes[i] for i in order])
    return tuple(steps[order.index(i)] for i in range(t.dimension_count))


def _planes(p: PlanBuilder, d: Any, window: Window, maximum: bool) -> bool:
    """Add the dispatch for planes of floats if it is chosen. Returns whether it is."""
    dx, dy = d.output_gradient_tensor, d.input_gradient_tensor
    each = 16 // dx.data_type.itemsize
    if (dx.dimension_count != 4 or dx.data_type not in (DataType.FLOAT16, DataType.FLOAT32)
            or max(window.sizes) > MOST_ALONG or max(window.strides) > _MOST_STRIDE
            or set(window.dilations) != {1} or not (dx.is_aligned and dy.is_aligned)):
        return False
    rows, columns = window.strides
    lanes, per_word = 1, each // 4
    chunk = each // columns
    if all(t.sizes[1] % each == 0 and begin_with_vectors(each, t.strides, 1) for t in (dx, dy)):
        layout, lanes, chunk = "last", each, per_word
    elif (each % columns == 0 and dx.sizes[3] % each == 0
          and begin_with_vectors(each, dx.strides, 3) and dy.strides[3] == 1):
        layout, columns = "first", each
        while chunk % per_word == 0 and any(n % chunk for n in (*dy.strides[:3], dy.sizes[3])):
            chunk //= 2
        if maximum or each == 8:  # as measured on an H200
            rows *= 2
    else:
        return False
    if chunk % per_word:
        return False
    # The first window that reaches into the first block. It begins ``leads`` elements before it.
    firsts = [-(-(start - k + 1) // s) for start, k, s in zip(
        window.start, window.sizes, window.strides)]
    leads = [start - first * s for start, first, s in zip(window.start, firsts, window.strides)]
    counts = [(n - 1 + lead) // s + 1 for n, lead, s in zip(
        (rows, columns), leads, window.strides)]

    op, blocks = "average", None
    winners = TensorDesc(DataType.UINT8, dy.sizes, _packed_like(dy))
    if maximum:
        op, blocks = "max", blocks_of("winner", d, p, winners)
        if blocks is None or blocks.layout != layout:
            return False
    if not chosen(p, f"pooling_grad {op}", layout, dx):
        return False
    found = UNUSED
    if blocks is not None:
        made = p.temporary(1, winners.element_count)
        planes("winner", d, p, winners, made, blocks)
        found = made.reading()
    channels = dx.sizes[1] // lanes
    count = -(-dx.sizes[2] // rows) * -(-dx.sizes[3] // columns)
    p.dispatch(
        f"pooling_grad_planes.{op}.{layout}", -(-dx.sizes[0] * channels * count // _LOCAL_SIZE),
        dy=p.read("input_gradient_tensor"), winners=found, dx=p.write("output_gradient_tensor"),
        push={"batches": dx.sizes[0], "channels": channels, "x_sizes": dx.sizes[2:],
              "y_sizes": dy.sizes[2:],
              "padded_ends": [n + e for n, e in zip(dx.sizes[2:], window.end)],
              "first": firsts, "padding": window.start,
              "dy_strides": block_strides(dy, lanes), "dx_strides": block_strides(dx, lanes),
              "winners_strides": block_strides(winners, lanes)},
        spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": dx.data_type.code, "WINDOW_Y": window.sizes[0],
              "WINDOW_X": window.sizes[1], "STRIDE_Y": window.strides[0],
              "STRIDE_X": window.strides[1], "ROWS": rows, "COLUMNS": columns,
              "LEAD_Y": leads[0], "LEAD_X": leads[1], "COUNT_Y": counts[0], "COUNT_X": counts[1],
              "WORDS": chunk // per_word, "PHASE": firsts[1] % chunk,
              "INCLUDE_PADDING": not maximum and bool(d.include_padding)})
    return True


def _pooling(p: PlanBuilder, d: Any, maximum: bool) -> None:
    dx, dy, window = d.output_gradient_tensor, d.input_gradient_tensor, _pooling_window(d)
    if len(window.sizes) == 2 and _planes(p, d, window, maximum):
        return
    rank = dx.dimension_count
    refuse_long_sums(d, p, [min(-(-k // s), n) for k, s, n in
                   zip(window.reach, window.strides, dy.sizes[2:])])
    near = Neighbours(dx)
    if not (near.along_width or near.share_windows(dy)):
        near.each = 1
    found, strides = UNUSED, (0,) * rank
    if maximum:
        steps = packed_strides([dy.sizes[i] for i in near.order])
        strides = tuple(steps[near.order.index(i)] for i in range(rank))
        found = p.temporary(4, dy.element_count)
        winners(d, p, TensorDesc(DataType.UINT32, dy.sizes, strides), found)

    def three(values: Sequence[int], fill: int) -> Ints:
        return pad_left(values, 3, fill)

    def by_plane(strides: Ints) -> Ints:
        return (*strides[:2], *(0,) * (rank - 2))

    units = [tuple(int(i > 1 and i == rank - 3 + a) for i in range(rank)) for a in range(3)]
    numbers = packed_strides(dx.sizes)
    walk = near.walk(dx.strides, by_plane(dy.strides), by_plane(strides), *units, numbers)
    reach, steps = three(window.reach, 1), three(window.strides, 1)
    local_size = p.device.local_size
    p.dispatch(
        f"pooling_grad.{'max' if maximum else 'average'}", -(-walk.count // local_size),
        dy=p.read("input_gradient_tensor"), winners=found.reading() if maximum else UNUSED,
        dx=p.write("output_gradient_tensor"), params=walk.words,
        push={"count": walk.count, "x_sizes": three(dx.sizes[2:], 1),
              "y_sizes": three(dy.sizes[2:], 1), "paddings": three(window.start, 0),
              "ends": three([n + e for n, e in zip(dx.sizes[2:], window.end)], 1),
              "dy_strides": three(dy.strides[2:], 0), "winners_strides": three(strides[2:], 0),
              "number_step": numbers[near.inner]},
        spec={"LOCAL_SIZE": local_size, "TYPE": dx.data_type.code, "EACH": near.each,
              "INCLUDE_PADDING": not maximum and bool(d.include_padding),
              "ALONG_WIDTH": near.along_width, "VECTORS": near.are_vectors(dy)
              and not near.along_width,
              **dict(zip(("REACH_D", "REACH_H", "REACH_W"), reach)),
              **dict(zip(("STEP_D", "STEP_H", "STEP_W"), steps))})


@operator("AVERAGE_POOLING_GRAD", shaders=("pooling_grad", "pooling_grad_planes"),
          check=_check_pooling)
def AveragePoolingGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _pooling(p, d, False)


@operator("MAX_POOLING_GRAD", output=like("input_tensor"),
          shaders=("pooling_grad", "pooling_grad_planes", "pooling_planes", *WINDOWS),
          check=_check_pooling)
def MaxPoolingGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _pooling(p, d, True)


# Neighbours


_LONGEST_KEPT = 8
"""The most elements of a window that an invocation keeps in registers."""
_BUSY = 2048
"""Invocations that a core of a GPU needs to hide the latency of reads, ..."""
_CHANNELS_LOCAL_SIZE = 64
"""... in workgroups of so many."""


def _along_channels(d: Any, p: PlanBuilder) -> None:
    """Each invocation goes along the channels, or a span of them, and reads them once."""
    x, dy, dx = d.input_tensor, d.input_gradient_tensor, d.output_gradient_tensor
    channels, kept = x.sizes[1], [a for a in range(len(x.sizes)) if a != 1]
    walk = Walk([x.sizes[a] for a in kept], *([t.strides[a] for a in kept] for t in (x, dy, dx)))
    spans = max(1, min(p.device.cores * _BUSY // walk.count, channels // (4 * d.local_size)))
    span = -(-channels // spans)
    spans = -(-channels // span)
    groups = -(-walk.count * spans // _CHANNELS_LOCAL_SIZE)
    p.dispatch(
        "local_response_normalization_channels_grad", groups,
        x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"),
        dx=p.write("output_gradient_tensor"), params=walk.words,
        push={"places": walk.count, "channels": channels, "span": span, "spans": spans,
              "x_step": x.strides[1], "dy_step": dy.strides[1], "dx_step": dx.strides[1],
              "alpha": float_bits(d.alpha / d.local_size), "beta": float_bits(d.beta),
              "bias": float_bits(d.bias)},
        spec={"LOCAL_SIZE": _CHANNELS_LOCAL_SIZE, "TYPE": x.data_type.code,
              "BEFORE": (d.local_size - 1) // 2, "AFTER": d.local_size // 2,
              "THREE_QUARTERS": d.beta == 0.75 and p.device.exact_units},
    )


@operator("LOCAL_RESPONSE_NORMALIZATION_GRAD", output=like("input_tensor"),
          shaders=("local_response_normalization_grad",
                   "local_response_normalization_channels_grad"), check=check_neighbours,
          cross_channel=True, alpha=1e-4, beta=0.75, bias=1.0)
def LocalResponseNormalizationGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    x, cross = d.input_tensor, bool(d.cross_channel)
    refuse_long_windows(d, p)
    if cross and not p.device.is_cpu and d.local_size <= _LONGEST_KEPT:
        _along_channels(d, p)
        return
    across, along = ((0,) * 4, (0, 1, 0, 0)) if cross else ((0, 0, 1, 0), (0, 0, 0, 1))
    walk = Walk(x.sizes, x.strides, d.input_gradient_tensor.strides,
                d.output_gradient_tensor.strides, across, along)
    local_size = p.device.local_size
    before, after = (d.local_size - 1) // 2, d.local_size // 2
    parts = p.temporary(4, 2 * x.element_count)
    packed = tuple(2 * s for s in packed_strides(x.sizes))
    for step, steps, window, made, dx in (
        ("factors", x.strides, (before, after), parts, UNUSED),
        ("sums", packed, (after, before), parts.reading(), p.write("output_gradient_tensor")),
    ):
        p.dispatch(
            f"local_response_normalization_grad.{step}", -(-walk.count // local_size),
            x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"), parts=made, dx=dx,
            params=walk.words,
            push={"count": walk.count, "sizes": x.sizes, "steps": steps,
                  "before": window[0], "after": window[1],
                  "alpha": float_bits(d.alpha / d.local_size), "beta": float_bits(d.beta),
                  "bias": float_bits(d.bias)},
            spec={"LOCAL_SIZE": local_size, "TYPE": x.data_type.code, "CROSS_CHANNEL": cross},
        )
