"""Reductions of rows, and the indices of their extremes."""

from __future__ import annotations

from collections.abc import Mapping

from ..attributes import AxisDirection, ReduceFunction
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, memory_order, power_of_two
from ..lowering import measured
from ..lowering.activation import fused_activation
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED
from ..lowering.walk import Walk
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .base import OperatorDesc, Output, axes_in, operator

_F = ReduceFunction
_INDICES = (_F.ARGMAX, _F.ARGMIN)
_PASSES = 15
"""Passes of loops that an element or vector of an invocation takes at most."""
_SIDE_BY_SIDE = 64
"""Rows that neighbouring invocations take, if rows are neighbours in memory."""
_VECTORS_SIDE_BY_SIDE = 16
"""The same, if each takes a vector of rows."""
_MOST_WIDE = 8
"""The most rows of an invocation. Their totals stay in registers."""
_FEW_ON_CPU = 16
"""On a CPU one invocation, so many or all of a workgroup share a row."""
_CHUNK = 8
"""Columns of WIDE rows that an invocation reads at once, of which it remembers only the first where
indices are asked for."""


def _sizes(desc: OperatorDesc) -> Ints:
    axes = axes_in(desc.operator.name, desc.axes, desc.input_tensor)
    return tuple(1 if d in axes else n for d, n in enumerate(desc.input_tensor.sizes))


def _reduced(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
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


class Reduction:
    """Rows of columns, each of which becomes an element, and how workgroups share them."""

    def __init__(self, p: PlanBuilder, d: OperatorDesc, axes: Ints, function: ReduceFunction,
                 last_wins: bool) -> None:
        self.x, self.y, self.function, self.last_wins = (
            d.input_tensor, d.output_tensor, function, last_wins)
        x, y, device = self.x, self.y, p.device
        self.fused = fused_activation(d)
        # Columns are walked in the order of memory. Indices count in the order of the dimensions.
        near = memory_order(x.strides)
        others = [a for a in near if a not in axes]
        along = sorted(axes) if function in _INDICES else [a for a in near if a in axes]
        self.rows = Walk([x.sizes[a] for a in others], [x.strides[a] for a in others],
                         [y.strides[a] for a in others])
        self.columns = Walk([x.sizes[a] for a in along], [x.strides[a] for a in along])
        each = 16 // x.data_type.itemsize
        self.contiguous = self.columns.contiguous and self.columns.count >= each
        self.each = each = each if self.contiguous else 1
        self.rows_first = not self.contiguous and (
            self.rows.strides[0][-1] < self.columns.strides[0][-1])
        self.kind = _kind(function, x.data_type)
        self.wide = _wide(x, self.rows, self.columns) if self.rows_first and (
            self.kind != "exponential") else 1
        self.units = self.rows.count // self.wide
        self.width = width = min(256, device.max_invocations)
        known = measured.figures(device.device_class, "reduction")
        # The least vectors for each invocation, if several share a row.
        own = int(known["vectors"])
        share, most = power_of_two(-(-self.columns.count // (own * each))), width
        if self.rows_first:
            most //= _SIDE_BY_SIDE if self.wide == 1 else _VECTORS_SIDE_BY_SIDE
            share = max(min(share, most), width // power_of_two(self.units))
        share = min(share, width)
        if device.is_cpu:
            share = next(n for n in (1, _FEW_ON_CPU, width) if n >= share)
        self.share = share
        self.most_share = share if share == most and not device.is_cpu else 0
        """The share of all long rows, which is a constant of the shader. 0 for others."""
        self.height = width // share
        self.groups = -(-self.units // self.height)
        # Workgroups for each core, if rows are split into parts.
        busy = int(known["busy" if self.wide == 1 else "busy_wide"])
        wanted = 1 if device.is_cpu else busy * device.cores // self.groups
        most = device.max_loop_passes // _PASSES
        parts = max(1, min(wanted, self.columns.count // (share * each * 4 * own)),
                    -(-self.columns.count // (share * each * most)))
        self.part_columns = -(-self.columns.count // (parts * each)) * each
        self.parts = -(-self.columns.count // self.part_columns)

    @property
    def work(self) -> str:
        kind = f"reduction {self.kind} {self.x.data_type.width}"
        return work_key(kind + ("" if self.contiguous else " strided"), self.rows.count,
                        self.columns.count)

    @property
    def spec(self) -> dict[str, int]:
        """The constants of all dispatches."""
        return {"TYPE": self.x.data_type.code, "RESULT_TYPE": self.y.data_type.code,
                "FUNCTION": int(self.function), "LAST_WINS": self.last_wins,
                **(self.fused.spec if self.fused.tail else {})}


class _Totals(Kernel[Reduction]):
    """Each invocation keeps the total of what it has read. Parts of rows are joined afterwards."""

    name = "totals"
    cost = 1.0

    def variant(self, problem: Reduction) -> str:
        return problem.kind

    def chunk(self, problem: Reduction) -> dict[str, int]:
        """Constants of reading several columns at once."""
        return {}

    def lower(self, problem: Reduction, p: PlanBuilder) -> None:
        rows, columns, fused = problem.rows, problem.columns, problem.fused
        words = 3 if problem.kind == "argument" else 2
        source, target = p.read("input_tensor"), p.write("output_tensor")
        parts = problem.parts
        totals = p.temporary(4, rows.count * parts * words) if parts > 1 else None
        push = {"columns": columns.count, "columns_at": len(rows.words),
                "column_stride": columns.strides[0][-1],
                "activation_at": len(rows.words) + len(columns.words)}
        params = [*rows.words, *columns.words, *fused.words]
        p.dispatch(
            fused.variant(f"reduction.{self.variant(problem)}"), problem.groups * parts, x=source,
            y=UNUSED if totals else target, totals=totals or UNUSED, **p.read_tail(),
            params=params,
            push=push | {"rows": problem.units, "parts": parts,
                         "part_columns": problem.part_columns, "parts_to_read": 0,
                         "share_bits": problem.share.bit_length() - 1},
            spec=problem.spec | self.chunk(problem) | {
                "WIDE": problem.wide, "LOCAL_SIZE": problem.width, "ROWS_FIRST": problem.rows_first,
                "CONTIGUOUS": problem.contiguous, "ONE_STRIDE": len(columns.sizes) == 1,
                "FROM_PARTS": False, "TO_PARTS": totals is not None,
                "MOST_SHARE": problem.most_share})
        if totals is None:
            return
        share = min(problem.width, power_of_two(parts))
        height = problem.width // share
        p.dispatch(
            fused.variant(f"reduction.{problem.kind}"), -(-rows.count // height), x=UNUSED,
            y=target, totals=totals.reading(), **p.read_tail(), params=params,
            push=push | {"rows": rows.count, "parts": 1, "part_columns": columns.count,
                         "parts_to_read": parts, "share_bits": share.bit_length() - 1},
            spec=problem.spec | {
                "LOCAL_SIZE": problem.width, "ROWS_FIRST": False,
                "CONTIGUOUS": False, "ONE_STRIDE": True, "FROM_PARTS": True, "TO_PARTS": False})


class _Search(_Totals):
    """Indices of extremes: an invocation reads several columns at once, and remembers the first."""

    name = "search"
    cost = 0.0

    def serves(self, problem: Reduction, traits: DeviceTraits) -> str | None:
        if problem.kind != "argument" or problem.x.data_type.itemsize == 8:
            return "for indices of extremes among elements of up to four bytes"
        if not problem.contiguous and problem.wide == 1:
            return "columns are not contiguous, and rows no vectors"
        if traits.is_cpu and not traits.masks_all:
            return "this CPU's driver compiles it for minutes"
        return None

    def variant(self, problem: Reduction) -> str:
        return "search"

    def chunk(self, problem: Reduction) -> dict[str, int]:
        return {"CHUNK": problem.each if problem.contiguous else _CHUNK}


KERNELS: tuple[Kernel[Reduction], ...] = (_Search(), _Totals())


def lower(p: PlanBuilder, d: OperatorDesc, axes: Ints, function: ReduceFunction,
          last_wins: bool = False) -> None:
    """Reduce the ``axes`` of InputTensor to OutputTensor."""
    problem = Reduction(p, d, axes, function, last_wins)
    choose(KERNELS, problem, p).lower(problem, p)


def _same(desc: OperatorDesc, strict: bool) -> None:
    """Check types, which the table does not: only indices have a type of their own."""
    x, y = desc.input_tensor, desc.output_tensor
    if desc.function not in _INDICES:
        expect(x.data_type is y.data_type, desc.operator.name, "InputTensor.DataType",
               "equal OutputTensor.DataType", x.data_type, y.data_type)


@operator("REDUCE", output=_reduced, shaders=("reduction",), check=_same,
          data_type=DataType.UINT32)
def ReduceOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    lower(p, d, d.axes, ReduceFunction(d.function))


@operator("ARGMIN", output=_reduced, shaders=("reduction",), data_type=DataType.UINT32,
          axis_direction=AxisDirection.INCREASING)
def ArgminOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    lower(p, d, d.axes, _F.ARGMIN, d.axis_direction == AxisDirection.DECREASING)


@operator("ARGMAX", output=_reduced, shaders=("reduction",), data_type=DataType.UINT32,
          axis_direction=AxisDirection.INCREASING)
def ArgmaxOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    lower(p, d, d.axes, _F.ARGMAX, d.axis_direction == AxisDirection.DECREASING)
