"""Cumulative sums and products along an axis."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..attributes import AxisDirection
from ..desc import TensorDesc
from ..layout import begin_with_vectors, power_of_two
from ..lowering.builder import PlanBuilder
from ..lowering.plan import UNUSED, Operand, in_units
from ..lowering.walk import Walk
from ..runtime.traits import DeviceTraits
from .base import axis_in, like, operator


class _Kind(NamedTuple):
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
_FLOAT, _INTEGER = _Kind("float", 4, 8), _Kind("integer", 8, 8)
_HALVES = _Kind("halves", 8, 16, 2, 8, 1, True)
"""Two neighbouring FLOAT16 rows are a row of words: single halves are stored by atomic
operations."""
_SIDE_BY_SIDE = 32
"""Rows that neighbouring invocations take, if rows are neighbours in memory."""
_WIDTH, _WIDEST = 256, 1024
"""Invocations of a workgroup: as a rule, and if each core has one workgroup at a time, which scans
neighbouring rows."""
_PARTS = 16
"""Parts for each core, if rows are split."""
_LEAST_ONCE, _ALL_ONCE = 1 << 20, 1 << 26
"""The least columns of rows, and the least elements of all rows, that are read once by several
workgroups, ..."""
_WIDTH_ONCE, _STRIPES_ONCE = 256, 16
"""... invocations of such a workgroup and vectors of each, ..."""
_BLOCK = 256
"""... tiles of a block, ..."""
_TURNS = 1 << 10
"""... how often a workgroup looks for a total before it makes it, ..."""
_LEAST_SUBGROUP = 8
"""... and the least subgroup with which a term is in few additions."""
_HEAD = 64
"""Words before the counts of blocks, see the shader."""
_IDLE, _IDLE_FIRST = 2, 1.5
"""Workgroups for each core below which rows are split: as a rule, and if rows are neighbours."""
_LEAST_TILES = 8
"""The least tiles, ..."""
_LEAST_BYTES = 64
"""... bytes of a column, ..."""
_BUSY = 0.7
"""... and share of the cores with which one workgroup of each core at a time pays off."""
_MOST_TILES = 4096
"""The most tiles: llvmpipe ends longer loops."""
_SHARE_ON_CPU = 8
"""Invocations that share a row on a CPU, where each of their steps takes time."""


def _check(desc: Any, strict: bool) -> None:
    axis_in(desc.operator.name, desc.axis, desc.input_tensor)


def _fits(device: DeviceTraits, width: int, kind: _Kind) -> bool:
    """Whether the device has workgroups of this width, with their shared memory."""
    return (width <= device.max_invocations
            and width * (2 * kind.stripes * kind.number + kind.carry) <= device.max_shared_memory)


def _of_a_core(device: DeviceTraits, rows: int, columns: int, itemsize: int, kind: _Kind) -> int:
    """How many neighbouring rows a workgroup takes, if one workgroup of each core, or nearly of
    each, scans all, or one after the other. Such rows need no parts, which are read twice. Else
    0."""
    if device.is_cpu or not _fits(device, _WIDEST, kind):
        return 0
    for side in (_SIDE_BY_SIDE, _SIDE_BY_SIDE // 2):
        tile = _WIDEST // side * kind.stripes * kind.unit
        share = -(-rows // side) / device.cores
        if (side * itemsize >= _LEAST_BYTES and columns >= _LEAST_TILES * tile
                and any(_BUSY * n <= share <= n for n in range(1, kind.turns + 1))):
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


def _reads_once(p: PlanBuilder, rows: int, columns: int, itemsize: int, kind: _Kind) -> bool:
    """Whether several workgroups scan a long row of vectors of which each reads a tile. FLOAT16
    gains nothing."""
    size = p.device.subgroup_size
    return (itemsize >= 4 and columns >= _LEAST_ONCE and rows * columns >= _ALL_ONCE
            and p.library.find("scan_once", kind.name) is not None
            and p.device.max_invocations >= _WIDTH_ONCE
            and size >= _LEAST_SUBGROUP and _WIDTH_ONCE % (2 * size) == 0)


def _read_once(p: PlanBuilder, rows: Walk, columns: int, each: int, kind: _Kind, source: Operand,
               target: Operand, spec: dict[str, int]) -> None:
    tiles = -(-columns // (_WIDTH_ONCE * _STRIPES_ONCE * each))
    count, blocks = rows.count * tiles, rows.count * -(-tiles // _BLOCK)
    words = 4 if kind is _INTEGER else 2  # of a total
    zeroed = p.zeroed(4, _HEAD + -(-blocks // 4) * 4 + words * (blocks + count))
    p.dispatch(
        f"scan_once.{kind.name}", count, x=source, y=target, zeroed=zeroed, params=rows.words,
        push={"columns": columns, "tiles": tiles, "all_tiles": count},
        spec=spec | {"LOCAL_SIZE": _WIDTH_ONCE, "STRIPES": _STRIPES_ONCE, "BLOCK": _BLOCK,
                     "TURNS": _TURNS, "FENCES": not p.device.fences_gather})


def _lower(p: PlanBuilder, d: Any, product: bool, exclusive: bool) -> None:
    x, y, device = d.input_tensor, d.output_tensor, p.device
    source, target = p.read("input_tensor"), p.write("output_tensor")
    kind, itemsize = _FLOAT if x.data_type.is_float else _INTEGER, x.data_type.itemsize
    kept = sorted((a for a in range(len(x.sizes)) if a != d.axis), key=lambda a: -x.strides[a])
    rows = Walk(*([v[a] for a in kept] for v in (x.sizes, x.strides, y.strides)))
    columns, x_stride, y_stride = (v[d.axis] for v in (x.sizes, x.strides, y.strides))

    each = 16 // itemsize
    vectors = columns % each == 0 and all(
        begin_with_vectors(each, t.strides, d.axis) for t in (x, y))
    rows_first = not vectors and rows.strides[0][-1] < x_stride
    if rows_first and (words := _words(rows, x, y, d.axis)):
        rows, kind, itemsize = words, _HALVES, 4
        source, target = in_units(source, 4), in_units(target, 4)
        x_stride, y_stride = x_stride // 2, y_stride // 2
    unit = each if vectors else kind.unit if rows_first else 1
    each_turn = kind.stripes * unit  # columns that an invocation scans at once
    width, side_by_side = min(_WIDTH, device.max_invocations), _SIDE_BY_SIDE
    own = _of_a_core(device, rows.count, columns, itemsize, kind) if rows_first else 0
    if own:
        width, side_by_side = _WIDEST, own
    share = power_of_two(-(-columns // each_turn))
    if rows_first:
        share = max(min(share, width // side_by_side), width // power_of_two(rows.count))
    share = min(share, _SHARE_ON_CPU if device.is_cpu else width)
    height = min(width // share, power_of_two(rows.count))
    groups = -(-rows.count // height)

    # With parts, a row is read twice. This pays off if the device would be idle otherwise.
    tiles = -(-columns // (share * each_turn))
    few = groups < (_IDLE_FIRST if rows_first else _IDLE) * device.cores
    idle = not device.is_cpu and not own and few
    wanted = _PARTS * device.cores // groups
    parts = max(1, min(wanted, tiles // 4) if idle else 1,
                -(-tiles // _MOST_TILES))
    part_tiles = -(-tiles // parts)
    parts = -(-tiles // part_tiles)

    spec = {"TYPE": x.data_type.code, "PRODUCT": product, "EXCLUSIVE": exclusive,
            "BACKWARDS": d.axis_direction == AxisDirection.DECREASING}
    if idle and vectors and _reads_once(p, rows.count, columns, itemsize, kind):
        _read_once(p, rows, columns, each, kind, source, target, spec)
        return

    push = {"rows": rows.count, "columns": columns, "parts": parts,
            "part_columns": min(part_tiles * share * each_turn, 2**32 - 1),
            "x_stride": x_stride, "y_stride": y_stride}
    spec |= {"LOCAL_SIZE": share * height, "SHARE": share, "ROWS_FIRST": rows_first,
             "VECTORS": vectors, "WIDTH": unit, "STRIPES": kind.stripes,
             "AHEAD": not device.is_cpu and (vectors or kind.ahead),
             "COMBINED": 2 if device.is_cpu else 4}
    shader, totals = f"scan.{kind.name}", UNUSED
    if parts > 1:
        made = p.temporary(kind.carry, rows.count * parts)
        p.dispatch(shader, groups * parts, x=source, y=UNUSED, totals=made, params=rows.words,
                   push=push, spec=spec | {"TO_TOTALS": True, "FROM_TOTALS": False})
        totals = made.reading()
    p.dispatch(shader, groups * parts, x=source, y=target, totals=totals, params=rows.words,
               push=push, spec=spec | {"TO_TOTALS": False, "FROM_TOTALS": parts > 1})


@operator("CUMULATIVE_SUMMATION", output=like("input_tensor"), shaders=_SHADERS, check=_check,
          axis_direction=AxisDirection.INCREASING, has_exclusive_sum=False)
def CumulativeSummationOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _lower(p, d, False, bool(d.has_exclusive_sum))


@operator("CUMULATIVE_PRODUCT", output=like("input_tensor"), shaders=_SHADERS, check=_check,
          axis_direction=AxisDirection.INCREASING, has_exclusive_product=False)
def CumulativeProductOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _lower(p, d, True, bool(d.has_exclusive_product))
