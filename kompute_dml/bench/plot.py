"""The roofline: what each row reaches against the copy bandwidth of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .formats import rate
from .rows import Row, short


def draw(rows: Sequence[Row], device: str, path: str) -> None:
    """Write the picture to ``path``; its suffix gives the format.

    Left: each row's bandwidth as a bar, the copy's as a line. Right, where something computes:
    operations per second over operations per byte, under the slope that the copy sets.
    """
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.gb_per_s is not None]
    copy = next((r.gb_per_s / r.share_of_copy for r in timed if r.share_of_copy and r.gb_per_s),
                None)
    computing = [row for row in timed if row.tops]
    figure = Figure(figsize=(15 if computing else 10, 1.6 + 0.38 * len(timed)),
                    layout="constrained")
    axes = figure.subplots(1, 2 if computing else 1, squeeze=False,
                           width_ratios=(3, 2) if computing else (1,))[0]
    figure.suptitle(f"kompute_dml on {device}")
    _bars(axes[0], timed, copy)
    if computing:
        _roofline(axes[1], computing, copy)
    figure.savefig(path, dpi=120)


def _bars(axes: Any, rows: Sequence[Row], copy: float | None) -> None:
    names = [f"{short(row.operator)}\n{row.types}   {row.sizes}" for row in rows]
    values = [row.gb_per_s for row in rows]
    bars = axes.barh(
        range(len(rows)), values, color=["tab:orange" if r.tops else "tab:blue" for r in rows]
    )
    labels = [rate(r) + (f" ({r.share_of_copy:.0%})" if r.share_of_copy else "") for r in rows]
    axes.bar_label(bars, labels, padding=3, fontsize=7)
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("GB/s, each element read or written counted once")
    if copy is not None:
        axes.axvline(copy, color="black", linestyle="--", linewidth=1,
                     label=f"copy of packed FLOAT32: {copy:.3g} GB/s")
        axes.legend(loc="lower right", fontsize=8)


def _roofline(axes: Any, rows: Sequence[Row], copy: float | None) -> None:
    intensities = [row.operations / row.bytes for row in rows]
    for row, intensity in zip(rows, intensities):
        axes.plot(intensity, row.tops, "o", markersize=7, label=f"{row.types}  {row.sizes}")
    if copy is not None:
        span = (min(intensities) / 2, max(intensities) * 2)
        axes.plot(span, [copy * x / 1e3 for x in span], "k--", linewidth=1,
                  label="bound by the copy bandwidth")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("TOPS")
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=7)
