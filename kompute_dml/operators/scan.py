"""Cumulative sums and products along an axis."""

from __future__ import annotations

from typing import NamedTuple

from ..attributes import AxisDirection
from ..desc import TensorDesc
from ..layout import begin_with_vectors, power_of_two
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED, in_units
from ..lowering.walk import Walk
from ..runtime.shader_library import Variant
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .base import OperatorDesc, axis_in, like, operator


class _ScanVariant(NamedTuple):
    """A variant of the shader."""

    name: str
    number: int
    """Bytes of a number, ..."""
    carry: int
    """... and of what all tiles before make."""
    stripes: int = 4
    """Units of a tile for each invocation."""
    unit: int = 4
    """Neighbouring columns of a unit, if rows are neighbours in memory."""
    turns: int = 2
    """The most workgroups that a core has one after the other, where each scans whole rows."""
    ahead: bool = False
    """Whether GPUs read a tile of such rows while they scan the one before."""


_SHADERS = ("scan", "scan_once")
_FLOAT, _INTEGER = _ScanVariant("float", 4, 8), _ScanVariant("integer", 8, 8)
_HALVES = _ScanVariant("halves", 8, 16, 2, 8, 1, True)
"""Two neighbouring FLOAT16 rows are a row of words: single halves are stored by atomic
operations."""
_SIDE_BY_SIDE = 32
"""Rows that neighbouring invocations take, if rows are neighbours in memory."""
_WIDTH, _WIDEST = 256, 1024
"""Invocations of a workgroup: as a rule, and if each core has one workgroup at a time, which scans
neighbouring rows."""
_WIDTH_ONCE, _STRIPES_ONCE = 256, 16
"""Where several workgroups read a row once: invocations of one and vectors of each, ..."""
_BLOCK = 256
"""... tiles of a block, ..."""
_TURNS = 1 << 10
"""... how often a workgroup looks for a total before it makes it, ..."""
_LEAST_SUBGROUP = 8
"""... and the least subgroup with which a term is in few additions."""
_HEAD = 64
"""Words before the counts of blocks, see the shader."""
_PASSES = 15
"""Passes of loops that a tile takes."""
_SHARE_ON_CPU = 8
"""Invocations that share a row on a CPU, where each of their steps takes time. Others have a row
each."""


def _check(desc: OperatorDesc, strict: bool) -> None:
    axis_in(desc.operator.name, desc.axis, desc.input_tensor)


def _fits(device: DeviceTraits, width: int, kind: _ScanVariant) -> bool:
    """Whether the device has workgroups of this width, with their shared memory."""
    return (width <= device.max_invocations
            and width * (2 * kind.stripes * kind.number + kind.carry) <= device.max_shared_memory)


def _of_a_core(
    device: DeviceTraits, rows: int, columns: int, itemsize: int, kind: _ScanVariant
) -> int:
    """How many neighbouring rows a workgroup takes, if one workgroup of each core, or nearly of
    each, scans all, or one after the other. Such rows need no parts, which are read twice. Else
    0."""
    if device.is_cpu or not _fits(device, _WIDEST, kind):
        return 0
    known = measured.figures(device.device_class, "scan")
    for side in (_SIDE_BY_SIDE, _SIDE_BY_SIDE // 2):
        tile = _WIDEST // side * kind.stripes * kind.unit
        share = -(-rows // side) / device.cores
        if (side * itemsize >= known["line_bytes"] and columns >= known["tiles"] * tile
                and any(known["cores"] * n <= share <= n for n in range(1, kind.turns + 1))):
            return side
    return 0


def _words(rows: Walk, x: TensorDesc, y: TensorDesc, axis: int) -> Walk | None:
    """Two neighbouring rows of 2-byte elements as one of words, or None if some words hold others,
    too."""
    steps = (t.strides[axis] for t in (x, y))
    if (x.data_type.itemsize != 2 or not (x.is_aligned and y.is_aligned) or rows.sizes[-1] % 2
            or any(s[-1] != 1 or any(n % 2 for n in (*s[:-1], step))
                   for s, step in zip(rows.strides, steps))):
        return None
    return Walk((*rows.sizes[:-1], rows.sizes[-1] // 2),
                *((*(n // 2 for n in s[:-1]), 1) for s in rows.strides))


class Scan:
    """Rows along an axis, and how workgroups share them."""

    def __init__(self, p: PlanBuilder, product: bool, exclusive: bool) -> None:
        d, device = p.desc, p.device
        self.x, self.y, self.product, self.exclusive = (
            d.input_tensor, d.output_tensor, product, exclusive)
        self.backwards = d.axis_direction == AxisDirection.DECREASING
        x, y = self.x, self.y
        self.source, self.target = p.read("input_tensor"), p.write("output_tensor")
        self.kind = _FLOAT if x.data_type.is_float else _INTEGER
        self.itemsize = x.data_type.itemsize
        others = sorted((a for a in range(len(x.sizes)) if a != d.axis),
                        key=lambda a: -x.strides[a])
        self.rows = Walk(*([v[a] for a in others] for v in (x.sizes, x.strides, y.strides)))
        self.columns, self.x_stride, self.y_stride = (
            v[d.axis] for v in (x.sizes, x.strides, y.strides))
        self.each = 16 // self.itemsize
        self.vectors = self.columns % self.each == 0 and all(
            begin_with_vectors(self.each, t.strides, d.axis) for t in (x, y))
        self.rows_first = not self.vectors and self.rows.strides[0][-1] < self.x_stride
        if self.rows_first and (words := _words(self.rows, x, y, d.axis)):
            self.rows, self.kind, self.itemsize = words, _HALVES, 4
            self.source, self.target = in_units(self.source, 4), in_units(self.target, 4)
            self.x_stride, self.y_stride = self.x_stride // 2, self.y_stride // 2
        self.unit = self.each if self.vectors else self.kind.unit if self.rows_first else 1
        self.each_turn = self.kind.stripes * self.unit
        """Columns that an invocation scans at once."""
        width, side_by_side = min(_WIDTH, device.max_invocations), _SIDE_BY_SIDE
        own = _of_a_core(device, self.rows.count, self.columns, self.itemsize, self.kind
                         ) if self.rows_first else 0
        if own:
            width, side_by_side = _WIDEST, own
        share, most = power_of_two(-(-self.columns // self.each_turn)), width
        if self.rows_first:
            most //= side_by_side
            share = max(min(share, most), width // power_of_two(self.rows.count))
        if device.is_cpu:
            share = _SHARE_ON_CPU if share > 1 else 1
        self.width, self.share = width, min(share, width)
        self.most_share = self.share if self.share == most and not device.is_cpu else 0
        """The share of all long rows, which is a constant of the shader. 0 for others."""
        self.height = width // self.share
        self.groups = -(-self.rows.count // self.height)
        busy = measured.figure(device, "scan", "busy_first" if self.rows_first else "busy")
        few = self.groups < busy * device.cores
        self.idle = not device.is_cpu and not own and few
        """Whether most cores would have nothing to do."""

    @property
    def work(self) -> str:
        kind = f"scan {self.x.data_type.width}{'' if self.vectors else ' strided'}"
        return work_key(kind, self.rows.count, self.columns)

    @property
    def spec(self) -> dict[str, int]:
        """The constants of all kernels."""
        return {"TYPE": self.x.data_type.code, "PRODUCT": self.product,
                "EXCLUSIVE": self.exclusive, "BACKWARDS": self.backwards}


class _Once(Kernel[Scan]):
    """Several workgroups scan a long row of vectors, of which each reads a tile once."""

    name = "once"

    def shader(self, problem: Scan) -> str:
        return f"scan_once.{problem.kind.name}"

    def takes(self, problem: Scan, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        return _WIDTH_ONCE, variant.shared_bytes

    def serves(self, problem: Scan, traits: DeviceTraits) -> str | None:
        if not problem.idle or not problem.vectors:
            return "rows are no vectors, or keep all cores busy"
        if problem.itemsize < 4:
            return "FLOAT16 gains nothing"
        known = measured.figures(traits.device_class, "scan_once")
        if problem.columns < known["columns"] or (
                problem.rows.count * problem.columns < known["elements"]):
            return "rows are short"
        size = traits.subgroup_size
        return None if size >= _LEAST_SUBGROUP and _WIDTH_ONCE % (2 * size) == 0 else (
            f"subgroups have {size} invocations")

    def lower(self, problem: Scan, p: PlanBuilder) -> None:
        rows, columns = problem.rows, problem.columns
        tiles = -(-columns // (_WIDTH_ONCE * _STRIPES_ONCE * problem.each))
        count, blocks = rows.count * tiles, rows.count * -(-tiles // _BLOCK)
        words = 4 if problem.kind is _INTEGER else 2  # of a total
        zeroed = p.zeroed(4, _HEAD + -(-blocks // 4) * 4 + words * (blocks + count))
        p.dispatch(
            self.shader(problem), count, x=problem.source, y=problem.target, zeroed=zeroed,
            params=rows.words, push={"columns": columns, "tiles": tiles, "all_tiles": count},
            spec=problem.spec | {
                "LOCAL_SIZE": _WIDTH_ONCE, "STRIPES": _STRIPES_ONCE, "BLOCK": _BLOCK,
                "TURNS": _TURNS, "FENCES": not p.device.fences_gather})


class _InParts(Kernel[Scan]):
    """Any rows. With parts, a row is read twice, which pays off if the device would be idle."""

    name = "parts"
    cost = 1.0

    def lower(self, problem: Scan, p: PlanBuilder) -> None:
        rows, columns, share, kind = problem.rows, problem.columns, problem.share, problem.kind
        device, each_turn = p.device, problem.each_turn
        tiles = -(-columns // (share * each_turn))
        wanted = measured.count(device, "scan", "parts") * device.cores // problem.groups
        most = device.max_loop_passes // _PASSES
        parts = max(1, min(wanted, tiles // 4) if problem.idle else 1, -(-tiles // most))
        part_tiles = -(-tiles // parts)
        parts = -(-tiles // part_tiles)
        push = {"rows": rows.count, "columns": columns, "parts": parts,
                "part_columns": min(part_tiles * share * each_turn, 2**32 - 1),
                "x_stride": problem.x_stride, "y_stride": problem.y_stride,
                "share_bits": share.bit_length() - 1}
        spec = problem.spec | {
            "LOCAL_SIZE": problem.width,
            "ROWS_FIRST": problem.rows_first, "VECTORS": problem.vectors, "WIDTH": problem.unit,
            "STRIPES": kind.stripes, "AHEAD": not device.is_cpu and (problem.vectors or kind.ahead),
            "COMBINED": 2 if device.is_cpu else 4, "MOST_SHARE": problem.most_share}
        shader, totals, groups = f"scan.{kind.name}", UNUSED, problem.groups * parts
        if parts > 1:
            written = p.temporary(kind.carry, rows.count * parts)
            p.dispatch(shader, groups, x=problem.source, y=UNUSED, totals=written,
                       params=rows.words, push=push,
                       spec=spec | {"TO_TOTALS": True, "FROM_TOTALS": False})
            totals = written.reading()
        p.dispatch(shader, groups, x=problem.source, y=problem.target, totals=totals,
                   params=rows.words, push=push,
                   spec=spec | {"TO_TOTALS": False, "FROM_TOTALS": parts > 1})


KERNELS: tuple[Kernel[Scan], ...] = (_Once(), _InParts())


def _lower(p: PlanBuilder, product: bool, exclusive: bool) -> None:
    problem = Scan(p, product, exclusive)
    choose(KERNELS, problem, p).lower(problem, p)


@operator("CUMULATIVE_SUMMATION", output=like("input_tensor"), shaders=_SHADERS, check=_check,
          axis_direction=AxisDirection.INCREASING, has_exclusive_sum=False)
def CumulativeSummationOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, False, bool(d.has_exclusive_sum))


@operator("CUMULATIVE_PRODUCT", output=like("input_tensor"), shaders=_SHADERS, check=_check,
          axis_direction=AxisDirection.INCREASING, has_exclusive_product=False)
def CumulativeProductOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, True, bool(d.has_exclusive_product))
