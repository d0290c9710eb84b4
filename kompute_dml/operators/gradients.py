"""Gradients of operators. Each element sums its contributions in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import DataType, saturate
from ..errors import UnsupportedError, expect
from ..layout import (
    begin_with_vectors,
    is_packed,
    packed_strides,
    product,
)
from ..lowering import copy, measured
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.elementwise import float_bits
from ..lowering.plan import UNUSED
from ..lowering.walk import Walk, reciprocal
from .base import OperatorDesc, like, operator
from .elementwise import row
from .fill_value import SHADER, fill
from .movement import slice1_begins, slice1_sizes, slice1_view
from .normalization import check_neighbours, refuse_long_windows

_LARGE = 1 << 31
"""Fewer elements have signed distances."""


def refuse_long_sums(d: OperatorDesc, p: PlanBuilder, loops: Sequence[int]) -> None:
    """Raise if a driver would end nested loops too early."""
    passes = sum(product(loops[: i + 1]) for i in range(len(loops)))
    if passes > (most := p.device.max_loop_passes):
        raise UnsupportedError(
            f"{d.operator.name}: up to {product(loops)} elements for one: more than {most}, "
            "with those of the loops around, are not supported on this device")


row("ACTIVATION_RELU_GRAD", shader="relu_grad")
for _name in ("CLIP_GRAD", "CLIP_GRAD1"):
    row(f"ELEMENT_WISE_{_name}", shader="clip_grad")


# Slices


def _check_slice(d: OperatorDesc, strict: bool) -> None:
    most = slice1_sizes(d, "OutputGradientTensor")
    for i, (n, m) in enumerate(zip(d.input_gradient_tensor.sizes, most)):
        expect(n <= m, d.operator.name, f"InputGradientTensor.Sizes[{i}]",
               f"be at most {m} (what the window and its stride make)", n)


@operator("SLICE_GRAD", shaders=("slice_grad", SHADER, *copy.SHADERS), check=_check_slice)
def SliceGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
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
    p.add(copied(p, dy.sizes, CopyView.whole("input_gradient_tensor", dy),
                 slice1_view(d, "output_gradient_tensor")))


def _slice_vectors(p: PlanBuilder, d: OperatorDesc, each: int) -> None:
    """Zeros and elements in one store of a vector."""
    dx, dy = d.output_gradient_tensor, d.input_gradient_tensor
    begins = slice1_begins(d)
    *outer, row = zip(dx.sizes, begins, d.input_window_strides, dy.sizes, dy.strides)
    words: list[int] = []
    for size, begin, step, count, stride in _merged(outer):
        words[:0] = [size, *reciprocal(size), begin, int(step < 0), abs(step),
                     *reciprocal(abs(step)), count, stride]
    _, begin, step, count, stride = row
    # Whether all vectors meet as many steps, which one load brings.
    hits = each // abs(step)
    even = (step > 0 and hits * step == each and hits * dy.data_type.itemsize in (4, 8)
            and begin // step % hits == 0 and dy.is_aligned
            and begin_with_vectors(hits, dy.strides))
    vectors, per_row = dx.element_count // each, dx.sizes[-1] // each
    local_size = p.device.local_size
    p.dispatch(
        f"slice_grad.{dx.data_type.width}", -(-vectors // local_size),
        x=p.read("input_gradient_tensor"), y=p.write("output_gradient_tensor"),
        params=words or [0],  # a single row has none
        push={"vectors": vectors, "per_row": [per_row, *reciprocal(per_row)], "begin": begin,
              "count": count, "stride": stride},
        spec={"LOCAL_SIZE": local_size, "RANK": len(words) // _SLICE_WORDS, "STEP": abs(step),
              "BACK": step < 0, "EVEN": even, "PHASE": begin % step if even else 0})


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


# Neighbours


_LONGEST_KEPT = 8
"""The most elements of a window that an invocation keeps in registers."""
_BUSY = 2048
"""Invocations that a core of a GPU needs to hide the latency of reads, ..."""
_CHANNELS_LOCAL_SIZE = 64
"""... in workgroups of so many."""
_ALONG_CHANNELS = "local_response_normalization_channels_grad"
_ALONG_HALVES = "local_response_normalization_channels_halves_grad"
_LEAST_NORMAL = 2.0**-126


def _along_channels(d: OperatorDesc, p: PlanBuilder) -> None:
    """Each invocation goes along the channels, or a span of them, and reads them once."""
    x, dy, dx = d.input_tensor, d.input_gradient_tensor, d.output_gradient_tensor
    channels, kept = x.sizes[1], [a for a in range(len(x.sizes)) if a != 1]
    tensors, last = (x, dy, dx), kept[-1]
    # Neighbours of FLOAT16 are read and written together.
    most = next((n for n in (4, 2) if x.data_type is DataType.FLOAT16 and x.sizes[last] % n == 0
                 and all(t.is_aligned and begin_with_vectors(n, t.strides, last)
                         for t in tensors)), 1)
    # Powers of halves need no cases of their own where every base is a normal number, or infinite.
    plain = most > 1 and p.device.exact_units and d.alpha >= 0 and d.bias >= _LEAST_NORMAL
    shader = _ALONG_HALVES if plain else _ALONG_CHANNELS
    variant = p.library.get(*measured.roomy(p.device.device_class, [
        f"{shader}.p{n}" for n in ((4, 2) if plain else (4, 2, 1)) if n <= most]).split("."))
    places = variant.sizes["places"]
    sizes = [x.sizes[a] // (places if a == last else 1) for a in kept]
    walk = Walk(sizes, *([t.strides[a] * (places if a == last else 1) for a in kept]
                         for t in tensors))
    spans = max(1, min(p.device.cores * _BUSY // walk.count, channels // (4 * d.local_size)))
    span = -(-channels // spans)
    spans = -(-channels // span)
    groups = -(-walk.count * spans // _CHANNELS_LOCAL_SIZE)
    spec = {"LOCAL_SIZE": _CHANNELS_LOCAL_SIZE, "BEFORE": (d.local_size - 1) // 2,
            "AFTER": d.local_size // 2, "THREE_QUARTERS": d.beta == 0.75 and p.device.exact_units}
    if not plain:
        spec["TYPE"] = x.data_type.code
    p.dispatch(
        variant, groups,
        x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"),
        dx=p.write("output_gradient_tensor"), params=walk.words,
        push={"places": walk.count, "channels": channels, "span": span, "spans": spans,
              "x_step": x.strides[1], "dy_step": dy.strides[1], "dx_step": dx.strides[1],
              "alpha": float_bits(d.alpha / d.local_size), "beta": float_bits(d.beta),
              "bias": float_bits(d.bias)},
        spec=spec)


@operator("LOCAL_RESPONSE_NORMALIZATION_GRAD", output=like("input_tensor"),
          shaders=("local_response_normalization_grad",
                   _ALONG_CHANNELS, _ALONG_HALVES), check=check_neighbours,
          cross_channel=True, alpha=1e-4, beta=0.75, bias=1.0)
def LocalResponseNormalizationGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
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
    for step, steps, window, operand, dx in (
        ("factors", x.strides, (before, after), parts, UNUSED),
        ("sums", packed, (after, before), parts.reading(), p.write("output_gradient_tensor")),
    ):
        p.dispatch(
            f"local_response_normalization_grad.{step}", -(-walk.count // local_size),
            x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"), parts=operand, dx=dx,
            params=walk.words,
            push={"count": walk.count, "sizes": x.sizes, "steps": steps,
                  "before": window[0], "after": window[1],
                  "alpha": float_bits(d.alpha / d.local_size), "beta": float_bits(d.beta),
                  "bias": float_bits(d.bias)},
            spec={"LOCAL_SIZE": local_size, "TYPE": x.data_type.code, "CROSS_CHANNEL": cross},
        )
