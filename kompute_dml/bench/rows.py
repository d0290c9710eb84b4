"""A measured case as one row, and rows as a table, CSV or JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .cases import COPY, SCALES, Case, Recipe, Scale
from .timing import Loop, Timings, measure

_SAMPLE_MS = 2.0
"""A sample repeats its dispatch until it lasts about as long, ..."""
_MAX_REPEAT = 50
"""... but no more often than this."""


@dataclass(frozen=True)
class Row:
    """One case: what it is, how long it took, what that makes."""

    operator: str
    types: str
    sizes: str
    values: str
    """``ok``, ``unchecked``, or what is wrong with the values (then nothing was timed)."""
    gpu_ms: float | None = None
    """Median between the device's timestamps around a dispatch; None where it has none."""
    spread: float | None = None
    """Half the distance of the quartiles, as a part of the median; of the clock used."""
    host_ms: float | None = None
    """Median of recording, submitting and waiting, for one dispatch of a sample."""
    bytes: int = 0
    operations: int = 0
    gb_per_s: float | None = None
    tops: float | None = None
    share_of_copy: float | None = None
    """This row's bandwidth over that of the packed FLOAT32 copy of the same run."""
    timings: Timings | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.values in ("ok", "unchecked")

    def with_copy(self, copy: float | None) -> Row:
        if copy is None or self.gb_per_s is None:
            return self
        return dataclasses.replace(self, share_of_copy=self.gb_per_s / copy)

    def record(self) -> dict[str, Any]:
        """The figures by name, as CSV and JSON have them."""
        fields = dataclasses.asdict(dataclasses.replace(self, timings=None))
        del fields["timings"]
        return fields


def make_row(case: Case, values: str, timings: Timings) -> Row:
    """The figures of a timed case. Rates follow the device's clock, or the host's without one."""
    clock = timings.gpu or timings.cpu
    # What is shorter than a tick of the device's clock took a tick.
    seconds = max(clock.hot.median / 1e3, 1e-9)
    return Row(
        case.operator, case.types, case.sizes, values,
        gpu_ms=timings.gpu.hot.median if timings.gpu else None,
        spread=clock.hot.spread,
        host_ms=timings.cpu.hot.median,
        bytes=case.bytes,
        operations=case.operations,
        gb_per_s=case.bytes / seconds / 1e9,
        tops=case.operations / seconds / 1e12 if case.operations else None,
        timings=timings,
    )


def run_case(device: Any, case: Case, loop: Loop | None) -> Row:
    """Check a case's values, then time it. Without ``loop`` the repeats follow from its speed."""
    case.dispatch()
    problem = case.check()
    if problem:
        return Row(case.operator, case.types, case.sizes, problem)
    if loop is None:
        once = measure(device, case.dispatch, Loop(iterations=3))
        clock = once.gpu or once.cpu
        repeat = int(_SAMPLE_MS / max(clock.hot.median, 1e-3))
        loop = Loop(iterations=11, repeat=min(max(repeat, 1), _MAX_REPEAT))
    return make_row(case, "ok", measure(device, case.dispatch, loop))


def run_recipe(device: Any, recipe: Recipe, loop: Loop | None, scale: Scale) -> Iterator[Row]:
    for case in recipe.make(device, scale):
        yield run_case(device, case, loop)


def copy_bandwidth(device: Any, loop: Loop | None, scale: Scale) -> tuple[float | None, Row]:
    """GB/s of the packed FLOAT32 copy, and its row."""
    row = next(run_recipe(device, COPY, loop, scale))
    return row.gb_per_s, row.with_copy(row.gb_per_s)


def scale_of(device: Any) -> Scale:
    return SCALES.get(device.adapter.type, SCALES["other"])


# -- formats


def short(operator: str) -> str:
    return operator.removeprefix("DML_OPERATOR_")


def _milliseconds(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms * 1e3:.1f} us" if ms < 1 else f"{ms:.3f} ms"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def rate(row: Row) -> str:
    """TOPS where a row computes, else bandwidth."""
    if row.tops is not None:
        return f"{row.tops:.3g} TOPS" if row.tops >= 0.1 else f"{row.tops * 1e3:.3g} GOPS"
    if row.gb_per_s is None:
        return "-"
    if row.gb_per_s >= 1000:
        return f"{row.gb_per_s / 1e3:.2f} TB/s"
    return f"{row.gb_per_s:.3g} GB/s"


def as_table(rows: Sequence[Row]) -> str:
    from tabulate import tabulate

    return tabulate(
        [
            (
                short(row.operator), row.types, row.sizes, _milliseconds(row.gpu_ms),
                "-" if row.spread is None else f"+-{row.spread:.0%}",
                _milliseconds(row.host_ms), _bytes(row.bytes), rate(row),
                "-" if row.share_of_copy is None else f"{row.share_of_copy:.0%}",
                row.values if row.ok else "WRONG",
            )
            for row in rows
        ],
        headers=("operator", "types", "sizes", "GPU", "spread", "host", "bytes", "rate",
                 "of copy", "values"),
        colalign=("left", "left", "left", *("right",) * 6, "left"),
        disable_numparse=True,
    )


def as_csv(rows: Sequence[Row]) -> str:
    names = [f.name for f in dataclasses.fields(Row) if f.name != "timings"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.record() for row in rows)
    return text.getvalue().rstrip("\n")


def as_json(rows: Sequence[Row], device: Any) -> str:
    return json.dumps(
        {
            "device": device.adapter.name,
            "driver": f"{device.adapter.driver} {device.adapter.driver_version}",
            "rows": [row.record() for row in rows],
        },
        indent=2,
    )
