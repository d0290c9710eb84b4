"""The first K elements along an axis: few by a bound, more by histograms, many by sorting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..attributes import AxisDirection
from ..dtypes import DataType
from ..errors import refuse
from ..layout import power_of_two
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .base import OperatorDesc, Output, axis_in, operator

_FEW = 128
"""The largest K for which a bound is found. The work to rank entries grows with its square."""
_FEW_GATHERED = 512
"""MOST of ``top_k_few.comp``."""
_KEPT_WORDS = 32
"""Words of a row that an invocation keeps in registers."""
_READ = 4
"""Entries of earlier parts that an invocation reads at a time."""
_ONE_WORD = (1 << 16) - 1
"""An entry of up to 16 bits takes one word in parts of fewer columns."""
_LEAST = 32
"""The fewest invocations: at least as many as elements before and after whole vectors."""
_ON_CPU = 64
"""Invocations of a workgroup on a CPU, where each of their steps takes time."""
_MOST = 1024
"""The most entries that a workgroup gathers."""
_ENOUGH = 256
"""The most entries of a row that are gathered without selection."""
_WORDS = 3
"""Words of an entry."""
_COLUMNS_OF_PASS = 17
"""Columns of a part for each pass of a loop that a device has."""
_USUAL, _WIDEST = 128, 256
"""Invocations that keep a part in registers: as a rule, and the most."""
_FEW_PER_LANE, _PER_LANE = 16, 64
"""Elements of each: with up to 16 there are fewer than usual, with more than 64 more. They have a
mark each in two words."""
_PASSING = 1.8
"""Times K: about the entries that pass a bound."""
_MOST_RANKED = 4
"""Entries that an invocation ranks at a time."""
_SHADERS = ("top_k", "top_k_few", "top_k_subgroups", "top_k_sort")


def _selected(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    x = desc.input_tensor
    axis = axis_in(desc.operator.name, desc.axis, x)
    if not 1 <= desc.k <= x.sizes[axis]:
        refuse(desc.operator.name, "K", f"be in [1, {x.sizes[axis]}] (InputTensor.Sizes[{axis}])",
               desc.k)
    sizes = (*x.sizes[:axis], desc.k, *x.sizes[axis + 1 :])
    return {"output_value_tensor": Output(sizes, x.data_type),
            "output_index_tensor": Output(sizes, None)}


class Selection:
    """The first K of each row, or the least ones."""

    def __init__(self, d: OperatorDesc, least: bool) -> None:
        tensors = (d.input_tensor, d.output_value_tensor, d.output_index_tensor)
        x, _, z = tensors
        others = [a for a in range(len(x.sizes)) if a != d.axis]
        self.k, self.columns, self.itemsize = d.k, x.sizes[d.axis], x.data_type.itemsize
        self.aligned = x.is_aligned
        self.rows = Walk([x.sizes[a] for a in others],
                         *([t.strides[a] for a in others] for t in tensors))
        self.push = {"rows": self.rows.count, "k": d.k}
        self.push |= {f"{name}_stride": t.strides[d.axis] for name, t in zip("xyz", tensors)}
        self.spec = {"TYPE": x.data_type.code, "INDEX_TYPE": z.data_type.code, "LEAST": least}

    @property
    def work(self) -> str:
        """The tuning key."""
        return work_key("top_k", self.rows.count, self.columns, self.k, self.itemsize)


@dataclass(frozen=True)
class _Bound(Kernel[Selection]):
    """A bound that few entries pass is found among groups of them, in registers of subgroups or in
    shared memory."""

    name: str
    subgroups: bool

    def shader(self, problem: Selection) -> str:
        return "top_k_subgroups" if self.subgroups else ""

    def serves(self, problem: Selection, traits: DeviceTraits) -> str | None:
        if problem.k > _FEW:
            return f"K is above {_FEW}"
        return "elements of 8 bytes, or a CPU" if self.subgroups and (
            problem.itemsize > 4 or traits.is_cpu) else None

    def estimate(self, problem: Selection, traits: DeviceTraits) -> float:
        """Rows of many columns are faster in subgroups."""
        short = measured.figure(traits, "top_k_subgroups", "short")
        return 0.0 if self.subgroups == (problem.columns > short) else 1.0

    def lower(self, problem: Selection, p: PlanBuilder) -> None:
        _select_few(p, problem.k, problem.columns, problem.rows, problem.push, problem.spec,
                    problem.aligned, self.subgroups)


class _Histograms(Kernel[Selection]):
    name = "histograms"
    cost = 2.0

    def shader(self, problem: Selection) -> str:
        return "top_k"

    def serves(self, problem: Selection, traits: DeviceTraits) -> str | None:
        return None if problem.k <= _MOST else f"K is above {_MOST}"

    def lower(self, problem: Selection, p: PlanBuilder) -> None:
        _select(p, problem.k, problem.columns, problem.rows, problem.push, problem.spec)


class _Sort(Kernel[Selection]):
    name = "sort"
    cost = 3.0

    def lower(self, problem: Selection, p: PlanBuilder) -> None:
        _sort(p, problem.columns, problem.rows, problem.push, problem.spec)


KERNELS: tuple[Kernel[Selection], ...] = (
    _Bound("subgroups", True), _Bound("groups", False), _Histograms(), _Sort())


def _lower(p: PlanBuilder, d: OperatorDesc, least: bool) -> None:
    problem = Selection(d, least)
    choose(KERNELS, problem, p).lower(problem, p)


def _select_few(
    p: PlanBuilder, k: int, columns: int, rows: Walk, push: dict[str, int], spec: dict[str, int],
    aligned: bool, subgroups: bool
) -> None:
    device, itemsize = p.device, spec["TYPE"] % 16
    most = min(_FEW_GATHERED, device.max_invocations)
    # About 1.6 K entries pass a bound that is found among 1.25 K groups.
    groups = min(power_of_two(-(-5 * k // 4)), most)
    source, candidates = p.read("input_tensor"), UNUSED
    if subgroups:
        candidates, columns = _first_of_parts(p, k, columns, rows, push, spec, aligned)
        if candidates is UNUSED:
            return
    while True:
        first = candidates is UNUSED
        fits = first and not device.is_cpu
        own = _KEPT_WORDS * 4 // max(itemsize, 4) if fits else _READ
        longest = _COLUMNS_OF_PASS * device.max_loop_passes
        parts = -(-columns // (most * own if fits else longest))
        if not device.is_cpu:
            # More parts pay off if they leave few of the row's entries.
            wanted = 8 * device.cores // rows.count
            parts = max(min(wanted, columns // (16 * k), columns // 8192), parts)
        part_columns = -(-columns // parts)
        parts = -(-columns // part_columns)
        local = _ON_CPU if device.is_cpu else power_of_two(-(-part_columns // own))
        local = min(max(local, groups, _LEAST), most)
        each = 16 // itemsize
        if not first or push["x_stride"] != 1 or part_columns < groups * each:
            each = 1
        kept = _rounded_up(-(-part_columns // (local * each))) if fits else (
            1 if device.is_cpu else _READ)
        last = parts == 1
        taken = UNUSED if last else p.temporary(4, _WORDS * rows.count * parts * k)
        p.dispatch(
            "top_k_few", rows.count * parts, x=source,
            y=p.write("output_value_tensor") if last else UNUSED,
            z=p.write("output_index_tensor") if last else UNUSED,
            entries=candidates, made=taken, params=rows.words,
            push=push | {"columns": columns, "parts": parts, "part_columns": part_columns},
            spec=spec | {
                "LOCAL_SIZE": local, "HIGH": _FEW_GATHERED if itemsize == 8 else 1,
                "GROUPS": groups, "EACH": each, "KEPT": kept, "FITS": fits,
                "ONE_WORD": itemsize < 4 and first and part_columns < _ONE_WORD,
                "FROM_ENTRIES": not first, "TO_ENTRIES": not last},
        )
        if last:
            return
        candidates, columns = taken.reading(), parts * k


def _rounded_up(pieces: int) -> int:
    """A power of two, or three quarters of one: a shader is compiled for each number of pieces."""
    most = power_of_two(pieces)
    return most * 3 // 4 if most > 2 and pieces <= most * 3 // 4 else most


def _first_of_parts(
    p: PlanBuilder, k: int, columns: int, rows: Walk, push: dict[str, int], spec: dict[str, int],
    aligned: bool
) -> tuple[Operand, int]:
    """The first K of each row, or of each part: then the entries made, and how many for a row."""
    device, itemsize = p.device, spec["TYPE"] % 16
    widest = min(_WIDEST, device.max_invocations)
    parts = -(-columns // (widest * _PER_LANE))
    # More parts pay off if they leave few of the row's entries.
    wanted = 8 * device.cores // rows.count
    parts = max(min(wanted, columns // (16 * k), columns // 8192), parts)
    each = 16 // itemsize
    if (not aligned or push["x_stride"] != 1 or columns % each
            or any(n % each for n in rows.strides[0])):
        each = 1
    part_columns = -(-columns // parts)
    part_columns = -(-part_columns // each) * each
    parts = -(-columns // part_columns)
    local = power_of_two(-(-part_columns // _PER_LANE))
    local = max(local, min(_USUAL, power_of_two(-(-part_columns // _FEW_PER_LANE))))
    local = min(max(local, _LEAST), widest)
    kept = _rounded_up(-(-part_columns // (local * each)))
    leads = min(power_of_two(-(-5 * k // (4 * local))), kept)
    if local * leads < k and part_columns > _FEW_GATHERED:
        each, kept = 1, _rounded_up(-(-part_columns // local))
        leads = min(power_of_two(-(-5 * k // (4 * local))), kept)
    most = _FEW_GATHERED // 2 if k <= _FEW // 2 else _FEW_GATHERED
    last = parts == 1
    candidates = UNUSED if last else p.temporary(4, _WORDS * rows.count * parts * k)
    words = (itemsize == 2 and k % 2 == 0 and push["y_stride"] == 1
             and not any(n % 2 for n in rows.strides[1]))
    p.dispatch(
        "top_k_subgroups", rows.count * parts, x=p.read("input_tensor"),
        y=p.write("output_value_tensor") if last else UNUSED,
        z=p.write("output_index_tensor") if last else UNUSED, made=candidates, params=rows.words,
        push=push | {"columns": columns, "parts": parts, "part_columns": part_columns},
        spec=spec | {
            "LOCAL_SIZE": local, "TO_ENTRIES": not last, "EACH": each, "KEPT": kept,
            "LEADS": leads, "MOST": most, "MOST_PAIRS": most if itemsize == 4 else 1,
            "OWN": min(int(_PASSING * k) // local + 1, _MOST_RANKED), "WORDS": words,
            "AS_FLOATS": bool(spec["TYPE"] & 32) and device.exact_units},
    )
    return (UNUSED, 0) if last else (candidates.reading(), parts * k)


def _select(
    p: PlanBuilder, k: int, columns: int, rows: Walk, push: dict[str, int], spec: dict[str, int]
) -> None:
    # Of short rows half as many invocations are faster, as fewer wait at barriers.
    short = columns <= measured.figure(p.device, "top_k", "short")
    width = min(128 if short else 256, p.device.max_invocations)
    source, candidates = p.read("input_tensor"), UNUSED
    values, indices = p.write("output_value_tensor"), p.write("output_index_tensor")
    wanted = 1 if p.device.is_cpu else 8 * p.device.cores // rows.count
    while True:
        # Parts pay off if they leave few of the row's entries.
        longest = _COLUMNS_OF_PASS * p.device.max_loop_passes
        parts = max(min(wanted, columns // (16 * k), columns // 8192), -(-columns // longest), 1)
        part_columns = -(-columns // parts)
        parts = -(-columns // part_columns)
        last = parts == 1
        first = candidates is UNUSED
        taken = UNUSED if last else p.temporary(4, _WORDS * rows.count * parts * k)
        p.dispatch(
            "top_k", rows.count * parts, x=source, y=values if last else UNUSED,
            z=indices if last else UNUSED,
            entries=candidates, made=taken, params=rows.words,
            push=push | {"columns": columns, "parts": parts, "part_columns": part_columns,
                         "few": _MOST if part_columns > _MOST else max(k, _ENOUGH)},
            spec=spec | {"LOCAL_SIZE": width, "HIGH": _MOST if spec["TYPE"] % 16 == 8 else 1,
                         "FROM_ENTRIES": not first, "TO_ENTRIES": not last},
        )
        if last:
            return
        candidates, columns, wanted = taken.reading(), parts * k, 1


def _sort(
    p: PlanBuilder, columns: int, rows: Walk, push: dict[str, int], spec: dict[str, int]
) -> None:
    width = min(256, p.device.max_invocations)
    block = 2 * width
    padded = max(power_of_two(columns), block)
    entries = p.temporary(4, _WORDS * rows.count * padded)
    total = rows.count * padded

    def step(name: str, groups: int, first: int = 0, last: int = 0, distance: int = 0) -> None:
        p.dispatch(
            f"top_k_sort.{name}", groups,
            x=p.read("input_tensor") if name in ("load", "store") else UNUSED,
            y=p.write("output_value_tensor") if name == "store" else UNUSED,
            z=p.write("output_index_tensor") if name == "store" else UNUSED,
            entries=entries.reading() if name == "store" else entries, params=rows.words,
            push=push | {"columns": columns, "padded": padded, "first_run": first,
                         "last_run": last, "distance": distance},
            spec=spec | {"LOCAL_SIZE": width},
        )

    step("load", -(-total // width))
    step("local", total // block, 2, block)
    run = 2 * block
    while run <= padded:
        distance = run // 2
        while distance >= block:
            step("global", total // block, last=run, distance=distance)
            distance //= 2
        step("local", total // block, run, run)
        run *= 2
    step("store", -(-rows.count * push["k"] // width))


@operator("TOP_K", output=_selected, shaders=_SHADERS, axis=-1, data_type=DataType.UINT32)
def TopKOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, d, False)


@operator("TOP_K1", output=_selected, shaders=_SHADERS, axis=-1, data_type=DataType.UINT32,
          axis_direction=AxisDirection.DECREASING)
def TopK1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, d, d.axis_direction == AxisDirection.INCREASING)
