"""Reductions of rows, and the indices of their extremes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..attributes import AxisDirection, ReduceFunction
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, memory_order, power_of_two
from ..lowering.activation import fused_activation
from ..lowering.builder import PlanBuilder
from ..lowering.plan import UNUSED
from ..lowering.walk import Walk
from .base import Output, axes_in, operator

_F = ReduceFunction
_INDICES = (_F.ARGMAX, _F.ARGMIN)
_VECTORS, _VECTORS_ON_CPU = 4, 32
"""The least vectors for each invocation, if several share a row."""
_MOST = 4096
"""The most elements or vectors of an invocation: llvmpipe ends longer loops."""
_SIDE_BY_SIDE = 64
"""Rows that neighbouring invocations take, if rows are neighbours in memory."""
_VECTORS_SIDE_BY_SIDE = 16
"""The same, if each takes a vector of rows."""
_PARTS, _PARTS_OF_VECTORS = 8, 4
"""Workgroups for each core, if rows are split into parts: of rows, or of vectors of rows."""
_MOST_WIDE = 8
"""The most rows of an invocation. Their totals stay in registers."""
_CHUNK = 8
"""Columns of WIDE rows that an invocation reads at once, of which it remembers only the first where
indices are asked for."""


def _sizes(desc: Any) -> Ints:
    axes = axes_in(desc.operator.name, desc.axes, desc.input_tensor)
    return tuple(1 if d in axes else n for d, n in enumerate(desc.input_tensor.sizes))


def _reduced(desc: Any) -> Mapping[str, Output | list[Output]]:
    """The output. For ARGMIN and ARGMAX the caller chooses the type of indices."""
    indices = getattr(desc, "function", _F.ARGMAX) in _INDICES
    return {"output_tensor": Output(_sizes(desc),
                                    None if indices else desc.input_tensor.data_type)}


def _kind(function: ReduceFunction, data_type: DataType) -> str:
    if function in _INDICES:
        return "argument"
    if function in (_F.MAX, _F.MIN):
        return "extreme"
    if function is _F.LOG_SUM_EXP:
        return "exponential"
    return "float" if data_type.is_float else "integer"


def _wide(x: TensorDesc, rows: Walk, columns: Walk) -> int:
    """Elements of a vector, if each column has whole vectors of neighbouring rows; else 1."""
    each = 16 // x.data_type.itemsize
    steps = (*rows.strides[0][:-1], *columns.strides[0])
    whole = rows.strides[0][-1] == 1 and not any(n % each for n in (rows.sizes[-1], *steps))
    return each if whole and x.is_aligned and each <= _MOST_WIDE else 1


def lower(p: PlanBuilder, d: Any, axes: Ints, function: ReduceFunction,
          last_wins: bool = False) -> None:
    """Reduce the ``axes`` of InputTensor to OutputTensor."""
    x, y, device = d.input_tensor, d.output_tensor, p.device
    # Columns are walked in the order of memory. Indices count in the order of the dimensions.
    near = memory_order(x.strides)
    kept = [a for a in near if a not in axes]
    taken = sorted(axes) if function in _INDICES else [a for a in near if a in axes]
    rows = Walk([x.sizes[a] for a in kept], [x.strides[a] for a in kept],
                [y.strides[a] for a in kept])
    columns = Walk([x.sizes[a] for a in taken], [x.strides[a] for a in taken])

    each = 16 // x.data_type.itemsize
    contiguous = columns.contiguous and columns.count >= each
    if not contiguous:
        each = 1
    rows_first = not contiguous and rows.strides[0][-1] < columns.strides[0][-1]
    kind = _kind(function, x.data_type)
    wide = _wide(x, rows, columns) if rows_first and kind != "exponential" else 1
    units = rows.count // wide
    side_by_side = _SIDE_BY_SIDE if wide == 1 else _VECTORS_SIDE_BY_SIDE
    width = min(256, device.max_invocations)
    own = _VECTORS_ON_CPU if device.is_cpu else _VECTORS
    share = power_of_two(-(-columns.count // (own * each)))
    if rows_first:
        share = max(min(share, width // side_by_side), width // power_of_two(units))
    share = min(share, width)
    height = min(width // share, power_of_two(units))
    groups = -(-units // height)

    wanted = (1 if device.is_cpu
              else (_PARTS if wide == 1 else _PARTS_OF_VECTORS) * device.cores // groups)
    parts = max(1, min(wanted, columns.count // (share * each * 4 * own)),
                -(-columns.count // (share * each * _MOST)))
    part_columns = -(-columns.count // (parts * each)) * each
    parts = -(-columns.count // part_columns)

    words = 3 if kind == "argument" else 2
    # Other CPUs than lavapipe compile the search in chunks for minutes.
    searches = (kind == "argument" and x.data_type.itemsize < 8 and (contiguous or wide > 1)
                and (device.masks_all or not device.is_cpu))
    chunk = {"CHUNK": each if contiguous else _CHUNK} if searches else {}
    source, target = p.read("input_tensor"), p.write("output_tensor")
    totals = p.temporary(4, rows.count * parts * words) if parts > 1 else None
    fused = fused_activation(d)
    spec = {"TYPE": x.data_type.code, "RESULT_TYPE": y.data_type.code, "FUNCTION": int(function),
            "LAST_WINS": last_wins, **(fused.spec if fused.tail else {})}
    push = {"columns": columns.count, "columns_at": len(rows.words),
            "column_stride": columns.strides[0][-1],
            "activation_at": len(rows.words) + len(columns.words)}
    params = [*rows.words, *columns.words, *fused.words]
    p.dispatch(
        fused.variant(f"reduction.{'search' if searches else kind}"), groups * parts, x=source,
        y=UNUSED if totals else target, totals=totals or UNUSED, **p.read_tail(), params=params,
        push=push | {"rows": units, "parts": parts, "part_columns": part_columns,
                     "parts_to_read": 0},
        spec=spec | chunk | {
            "WIDE": wide,
            "LOCAL_SIZE": share * height, "SHARE": share, "ROWS_FIRST": rows_first,
            "CONTIGUOUS": contiguous, "ONE_STRIDE": len(columns.sizes) == 1, "FROM_PARTS": False,
            "TO_PARTS": totals is not None},
    )
    if totals is None:
        return
    share = min(width, power_of_two(parts))
    height = min(width // share, power_of_two(rows.count))
    p.dispatch(
        fused.variant(f"reduction.{kind}"), -(-rows.count // height), x=UNUSED, y=target,
        totals=totals.reading(), **p.read_tail(), params=params,
        push=push | {"rows": rows.count, "parts": 1, "part_columns": columns.count,
                     "parts_to_read": parts},
        spec=spec | {
            "LOCAL_SIZE": share * height, "SHARE": share, "ROWS_FIRST": False, "CONTIGUOUS": False,
            "ONE_STRIDE": True, "FROM_PARTS": True, "TO_PARTS": False},
    )


def _same(desc: Any, strict: bool) -> None:
    """Check types, which the table does not: only indices have a type of their own."""
    x, y = desc.input_tensor, desc.output_tensor
    if desc.function not in _INDICES:
        expect(x.data_type is y.data_type, desc.operator.name, "InputTensor.DataType",
               "equal OutputTensor.DataType", x.data_type, y.data_type)


@operator("REDUCE", output=_reduced, shaders=("reduction",), check=_same,
          data_type=DataType.UINT32)
def ReduceOperatorDesc(d: Any, p: PlanBuilder) -> None:
    lower(p, d, d.axes, ReduceFunction(d.function))


@operator("ARGMIN", output=_reduced, shaders=("reduction",), data_type=DataType.UINT32,
          axis_direction=AxisDirection.INCREASING)
def ArgminOperatorDesc(d: Any, p: PlanBuilder) -> None:
    lower(p, d, d.axes, _F.ARGMIN, d.axis_direction == AxisDirection.DECREASING)


@operator("ARGMAX", output=_reduced, shaders=("reduction",), data_type=DataType.UINT32,
          axis_direction=AxisDirection.INCREASING)
def ArgmaxOperatorDesc(d: Any, p: PlanBuilder) -> None:
    lower(p, d, d.axes, _F.ARGMAX, d.axis_direction == AxisDirection.DECREASING)
