"""Rows as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from .. import __version__
from ..device import Device
from ..runtime.adapters import Adapter
from .rows import BenchRow, short

if TYPE_CHECKING:
    from .models import ModelRow
    from .turns import TurnsRow


def _milliseconds(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms * 1e3:.1f} us" if ms < 1 else f"{ms:.3f} ms"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def rate(row: BenchRow) -> str:
    """TOPS where a row counts operations, else bandwidth."""
    if row.tops is not None:
        return f"{row.tops:.3g} TOPS" if row.tops >= 0.1 else f"{row.tops * 1e3:.3g} GOPS"
    if row.gb_per_s is None:
        return "-"
    if row.gb_per_s >= 1000:
        return f"{row.gb_per_s / 1e3:.2f} TB/s"
    return f"{row.gb_per_s:.3g} GB/s"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"


def peers_text(row: BenchRow) -> str:
    """How many times as fast as each peer."""
    return ", ".join(
        f"{name} {'failed' if (ratio := row.ratio(name)) is None else _ratio(ratio) + 'x'}"
        for name in row.peers
    )


def goals_text(row: BenchRow | ModelRow) -> str:
    """What a row reached of its goals."""
    marks = {None: "?", True: "met", False: "MISSED"}
    return ", ".join(
        f"{g.against} {'-' if g.ratio is None else _ratio(g.ratio)}/{g.goal:g} {marks[g.met]}"
        for g in row.goals
    )


def as_table(rows: Sequence[BenchRow]) -> str:
    extra = {name: text for name, text, wanted in (
        ("faster than", peers_text, any(row.peers for row in rows)),
        ("reached/goal", goals_text, any(row.goals for row in rows)),
    ) if wanted}
    return tabulate(
        [
            (
                short(row.operator), row.types, row.sizes, _milliseconds(row.gpu_ms),
                "-" if row.spread is None else f"+-{row.spread:.0%}",
                _milliseconds(row.host_ms), _bytes(row.bytes), rate(row),
                "-" if row.share_of_copy is None else f"{row.share_of_copy:.0%}",
                *(text(row) for text in extra.values()),
                row.values if row.ok else "WRONG",
            )
            for row in rows
        ],
        headers=("operator", "types", "sizes", "GPU", "spread", "host", "bytes", "rate",
                 "of copy", *extra, "values"),
        colalign=("left", "left", "left", *("right",) * 6, *("left",) * (len(extra) + 1)),
        disable_numparse=True,
    )


def summary(rows: Sequence[BenchRow | ModelRow | TurnsRow]) -> list[str]:
    """The lines below a table."""
    lines = []
    judged = [goal for row in rows for goal in row.goals if goal.met is not None]
    if judged:
        lines.append(f"{sum(bool(g.met) for g in judged)} of {len(judged)} goals are met.")
    lines += [
        f"{row.name}: {name} failed: {time.problem}"
        for row in rows for name, time in row.peers.items() if time.problem
    ]
    if any(row.gpu_ms is None for row in rows if row.ok and isinstance(row, BenchRow)):
        lines.append("No device timestamps here: rates follow the host's clock.")
    return lines


def as_csv(rows: Sequence[BenchRow | ModelRow | TurnsRow]) -> str:
    records = [row.record() for row in rows]
    text = io.StringIO()
    names = dict.fromkeys(name for record in records for name in record)
    writer = csv.DictWriter(text, [*names], lineterminator="\n")
    writer.writeheader()
    for record in records:
        record.update({name: json.dumps(record[name]) for name in ("peers", "goals")})
        writer.writerow(record)
    return text.getvalue().rstrip("\n")


def about(adapter: Adapter, command: str) -> dict[str, Any]:
    """Where, when and how a run was made, as JSON has it."""
    return {
        "device": adapter.name,
        "driver": f"{adapter.driver} {adapter.driver_version}",
        "version": __version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
    }


def document(rows: Sequence[BenchRow], device: Device, copy: float | None,
             command: str) -> dict[str,
                                                                                            Any]:
    """A run, as it is written to JSON."""
    return {**about(device.adapter, command), "copy_gb_per_s": copy,
            "rows": [row.record() for row in rows]}
