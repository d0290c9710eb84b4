"""Cumulative sums and products along an axis."""

from __future__ import annotations

from typing import Any

from ..attributes import AxisDirection
from ..layout import begin_with_vectors, power_of_two
from ..lowering.builder import PlanBuilder
from ..lowering.plan import UNUSED
from ..lowering.walk import Walk
from .base import axis_in, like, operator

_STRIPES = 4
"""STRIPES of the shader: units of a tile for each invocation."""
_SIDE_BY_SIDE = 32
"""Rows that neighbouring invocations take, if rows are neighbours in memory."""
_MOST_TILES = 4096
"""The most tiles: llvmpipe ends longer loops."""
_SHARE_ON_CPU = 8
"""Invocations that share a row on a CPU, where each of their steps takes time."""


def _check(desc: Any, strict: bool) -> None:
    axis_in(desc.operator.name, desc.axis, desc.input_tensor)


def _lower(p: PlanBuilder, d: Any, product: bool, exclusive: bool) -> None:
    x, y, device = d.input_tensor, d.output_tensor, p.device
    kept = sorted((a for a in range(len(x.sizes)) if a != d.axis), key=lambda a: -x.strides[a])
    rows = Walk(*([v[a] for a in kept] for v in (x.sizes, x.strides, y.strides)))
    columns, x_stride, y_stride = (v[d.axis] for v in (x.sizes, x.strides, y.strides))

    each = 16 // x.data_type.itemsize
    vectors = columns % each == 0 and all(
        begin_with_vectors(each, t.strides, d.axis) for t in (x, y))
    rows_first = not vectors and rows.strides[0][-1] < x_stride
    unit = each if vectors else 4 if rows_first else 1
    width = min(256, device.max_invocations)
    share = power_of_two(-(-columns // (_STRIPES * unit)))
    if rows_first:
        share = max(min(share, width // _SIDE_BY_SIDE), width // power_of_two(rows.count))
    share = min(share, _SHARE_ON_CPU if device.is_cpu else width)
    height = min(width // share, power_of_two(rows.count))
    groups = -(-rows.count // height)

    # With parts, a row is read twice. This pays off if the device would be idle otherwise.
    tiles = -(-columns // (share * _STRIPES * unit))
    idle = not device.is_cpu and groups < 2 * device.cores
    parts = max(1, min(16 * device.cores // groups, tiles // 4) if idle else 1,
                -(-tiles // _MOST_TILES))
    part_tiles = -(-tiles // parts)
    parts = -(-tiles // part_tiles)

    shader = f"scan.{'float' if x.data_type.is_float else 'integer'}"
    push = {"rows": rows.count, "columns": columns, "parts": parts,
            "part_columns": min(part_tiles * share * _STRIPES * unit, 2**32 - 1),
            "x_stride": x_stride, "y_stride": y_stride}
    spec = {"LOCAL_SIZE": share * height, "TYPE": x.data_type.code, "PRODUCT": product,
            "EXCLUSIVE": exclusive, "BACKWARDS": d.axis_direction == AxisDirection.DECREASING,
            "SHARE": share, "ROWS_FIRST": rows_first, "VECTORS": vectors, "WIDTH": unit,
            "AHEAD": not device.is_cpu, "COMBINED": 2 if device.is_cpu else 4}
    source, target = p.read("input_tensor"), p.write("output_tensor")
    totals = UNUSED
    if parts > 1:
        made = p.temporary(4, 2 * rows.count * parts)
        p.dispatch(shader, groups * parts, x=source, y=UNUSED, totals=made, params=rows.words,
                   push=push, spec=spec | {"TO_TOTALS": True, "FROM_TOTALS": False})
        totals = made.reading()
    p.dispatch(shader, groups * parts, x=source, y=target, totals=totals, params=rows.words,
               push=push, spec=spec | {"TO_TOTALS": False, "FROM_TOTALS": parts > 1})


@operator("CUMULATIVE_SUMMATION", output=like("input_tensor"), shaders=("scan",), check=_check,
          axis_direction=AxisDirection.INCREASING, has_exclusive_sum=False)
def CumulativeSummationOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _lower(p, d, False, bool(d.has_exclusive_sum))


@operator("CUMULATIVE_PRODUCT", output=like("input_tensor"), shaders=("scan",), check=_check,
          axis_direction=AxisDirection.INCREASING, has_exclusive_product=False)
def CumulativeProductOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _lower(p, d, True, bool(d.has_exclusive_product))
