"""Stored runs: a comparison with a later run, and a table for the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ..errors import ValidationError
from .rows import short

_BETWEEN_RUNS = 0.01

_CUBE = "i8 x i8 -> f32, K-contiguous B, zero points, bias"
SHOWN = (
    ("activation_identity", "f32 packed", "[16384, 16384]"),
    ("activation_identity", "f32 transposed in", "[16384, 16384]"),
    ("activation_identity", "f32 axes reversed", "[16, 8, 8, 8, 8, 8, 8, 16]"),
    ("diagonal_matrix", "f32", "[16384, 16384]"),
    ("diagonal_matrix1", "f32 upper", "[16384, 16384]"),
    *(("matrix_multiply_integer_to_float", _CUBE, f"[{n}, {n}] x [{n}, {n}]")
      for n in (8192, 4096, 2048, 1024)),
    ("matrix_multiply_integer_to_float", "i8 x i8 -> f32, zero points, bias",
     "[4096, 4096] x [4096, 4096]"),
    *(("matrix_multiply_integer_to_float", f"i8 x i8 -> f32, K-contiguous B, {cold}",
       "[1, 4096] x [4096, 11008]") for cold in ("cold B", "cold B, independent")),
    ("matrix_multiply_integer_to_float", "i8 x i8 -> f32, K-contiguous B",
     "[512, 768] x [768, 768]"),
)
"""The cases that a table shows first."""


def load(path: Path) -> dict[str, Any]:
    """A run as ``--output`` wrote it, or one of whole models (``models`` instead of ``rows``).

    Raises ValidationError for anything else.
    """
    try:
        run = json.loads(path.read_text("utf-8"))
        rows = {_key(row): row for row in records(run)}
    except OSError as error:
        raise ValidationError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ValidationError(
            f"{path}: expected a run as 'kompute-dml bench --output' writes it"
        ) from None
    return {**run, "by_key": rows}


def records(run: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The rows of a run of operators or of whole models."""
    return run["models"] if "models" in run else run["rows"]


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if "model" in row:
        return row["model"], row["types"], ""
    return row["operator"], row["types"], row["sizes"]


def _clock(row: Mapping[str, object]) -> str:
    if "model" in row:
        return "ms"
    return "host_ms" if row["gpu_ms"] is None else "gpu_ms"


def against(
    rows: Sequence[Mapping[str, Any]], old: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Of each case its milliseconds before and now, how many times as fast, whether it moved.

    A case has moved if it differs by more than the spreads of both runs together, and by more than
    repeated runs usually differ. Cases of only one run are left out.
    """
    changes = []
    for row in rows:
        operator, types, sizes = key = _key(row)
        before = old["by_key"].get(key)
        if before is None or before[_clock(row)] is None or row[_clock(row)] is None:
            continue
        then, now = before[_clock(row)], row[_clock(row)]
        blur = then * (before.get("spread") or 0) + now * (row["spread"] or 0)
        blur = max(blur, _BETWEEN_RUNS * then)
        changes.append({
            "case": f"{short(operator)} {types} {sizes}".rstrip(),
            "before_ms": then, "now_ms": now, "speed": then / now if now else 1.0,
            "moved": abs(then - now) > blur,
        })
    return changes


def against_table(rows: Sequence[Mapping[str, object]], old: Mapping[str, object]) -> str:
    lines = [
        (c["case"], f"{c['before_ms'] * 1e3:.1f} us", f"{c['now_ms'] * 1e3:.1f} us",
         f"{c['speed']:.3f}",
         ("faster" if c["speed"] > 1 else "SLOWER") if c["moved"] else "within the spread")
        for c in against(rows, old)
    ]
    return tabulate(
        lines, headers=("case", f"{old['date']}", "now", "speed", ""),
        colalign=("left", "right", "right", "right", "left"), disable_numparse=True,
    )


def markdown(run: Mapping[str, Any]) -> str:
    """The table of a run. Rows that SHOWN names come first."""
    if "beside_numpy.py" in run["command"]:
        return _beside_numpy(run)
    if "models" in run:
        return "\n".join(_models_table(run))
    copy = run["copy_gb_per_s"]
    judged = [g for row in run["rows"] for g in row["goals"] if g["ratio"] is not None]
    met = sum(g["ratio"] >= g["goal"] for g in judged)
    shown = [row for row in run["rows"] if name(row) in SHOWN]
    return "\n".join([
        f"{run['device']}, {run['driver']}, {run['date']}: `{run['command']}`. Copying moves "
        f"{copy / 1e3:.2f} TB/s. {met} of {len(judged)} goals are met.",
        "",
        *((*_table(shown), "") if shown else ()),
        f"<details><summary>All {len(run['rows'])} cases</summary>",
        "",
        *_table(run["rows"]),
        "",
        "</details>",
    ])


def _beside_numpy(run: Mapping[str, Any]) -> str:
    """The rows that take the largest multiple of NumPy's time come first."""
    slow = sum(row["times_numpy"] > 10 for row in run["rows"])
    return "\n".join([
        f"{run['device']}, {run['driver']}, {run['date']}: `{run['command']}`. "
        f"{slow} of {len(run['rows'])} cases take more than ten times as long as NumPy.",
        "",
        "| case | sizes | NumPy, ms | here, ms | times NumPy's |",
        "| --- | --- | ---: | ---: | ---: |",
        *(f"| {' '.join(name(row)[:2])} | {row['sizes']} | {row['numpy_ms']:.3f} "
          f"| {row['ms']:.3f} | {row['times_numpy']:.1f} |" for row in run["rows"]),
    ])


def short_markdown(run: Mapping[str, Any], models: Sequence[str]) -> str:
    """A line for each of these models, a column for each type."""
    types = list(dict.fromkeys(row["types"] for row in run["models"] if row["model"] in models))
    ms = {(row["model"], row["types"]): f"{row['ms']:.1f} ms" for row in run["models"]
          if row["ms"]}
    return "\n".join([
        f"| model | {' | '.join(types)} |",
        f"| --- |{' ---: |' * len(types)}",
        *(f"| {name} | {' | '.join(ms.get((name, kind), '') for kind in types)} |"
          for name in models),
    ])


def _models_table(run: Mapping[str, Any]) -> list[str]:
    def ms(value: float | None) -> str:
        return "" if value is None else f"{value:.2f} ms"

    rows = run["models"]
    peers = list(dict.fromkeys(peer for row in rows for peer in row.get("peers", ())))
    figures = {title: name for title, name in (
        ("median", "ms"), ("on the device", "device_ms"), ("unfused", "unfused_ms"),
    ) if any(row.get(name) for row in rows)}
    lines = [
        f"| {' | '.join(('model', 'type', *figures, *peers, 'off by'))} |",
        f"| --- | --- |{' ---: |' * (len(figures) + len(peers) + 1)}",
    ]
    for row in rows:
        times = [row.get(name) for name in figures.values()]
        times += [row["peers"].get(peer, {}).get("ms") for peer in peers]
        off_by = "" if row["off_by"] is None else f"{row['off_by']:.1e}"
        lines.append(f"| {' | '.join((row['model'], row['types'], *map(ms, times), off_by))} |")
    return lines


def name(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return short(row["operator"]).lower(), row["types"], row["sizes"]


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| case | sizes | GPU | rate | of copy | times as fast as | reached / goal |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        operator, types, sizes = name(row)
        rate = f"{row['tops']:.3g} TOPS" if row["tops"] else f"{row['gb_per_s'] / 1e3:.2f} TB/s"
        ms = row[_clock(row)]
        peers = ", ".join(
            f"{peer} {time['ms'] / ms:.2f}" for peer, time in row["peers"].items() if time["ms"]
        )
        goals = ", ".join(
            f"{g['against']} {g['ratio']:.2f} / {g['goal']:g}"
            for g in row["goals"] if g["ratio"] is not None
        )
        lines.append(
            f"| {operator} {types} | {sizes} | {ms * 1e3:.4g} us | {rate} "
            f"| {row['share_of_copy']:.0%} | {peers} | {goals} |"
        )
    return lines
