"""The roofline: what each row reaches against the copy bandwidth of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .formats import rate
from .rows import Row

_ROOF_INCHES = 7.0


def draw(rows: Sequence[Row], device: str, path: str) -> None:
    """Write the picture to ``path``; its suffix gives the format.

    Left: the bandwidth of each row that moves data as a bar, the copy's as a line. Right, where
    something computes: operations per second over operations per byte, under the slope that the
    copy sets; one colour for each kind of product.
    """
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.gb_per_s is not None]
    copy = next((r.gb_per_s / r.share_of_copy for r in timed if r.share_of_copy and r.gb_per_s),
                None)
    computing = [row for row in timed if row.tops]
    moving = [row for row in timed if not row.tops] or timed
    height = max(1.4 + 0.17 * len(moving), _ROOF_INCHES if computing else 0.0)
    figure = Figure(figsize=(18 if computing else 10, height), layout="constrained")
    grid = figure.add_gridspec(
        2, 2 if computing else 1, height_ratios=(_ROOF_INCHES, max(height - _ROOF_INCHES, 0.01)))
    figure.suptitle(f"kompute_dml on {device}")
    _bars(figure.add_subplot(grid[:, 0]), moving, copy)
    if computing:
        _roofline(figure.add_subplot(grid[0, 1]), computing, copy)
    figure.savefig(path, dpi=100)


def _bars(axes: Any, rows: Sequence[Row], copy: float | None) -> None:
    bars = axes.barh(range(len(rows)), [row.gb_per_s for row in rows], color="tab:blue")
    labels = [rate(r) + (f" ({r.share_of_copy:.0%})" if r.share_of_copy else "") for r in rows]
    axes.bar_label(bars, labels, padding=3, fontsize=7,
                   bbox=dict(facecolor="white", edgecolor="none", pad=0.5))
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.2)
    axes.set_xlabel("GB/s, each element that is needed read or written counted once")
    if copy is not None:
        axes.axvline(copy, color="black", linestyle="--", linewidth=1,
                     label=f"copying packed FLOAT32: {copy:.3g} GB/s")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8)  # above the bars


def _roofline(axes: Any, rows: Sequence[Row], copy: float | None) -> None:
    from matplotlib import colormaps

    colors = colormaps["tab20"](range(20))
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.types, []).append(row)
    for i, (types, members) in enumerate(kinds.items()):
        axes.plot([row.operations / row.bytes for row in members], [row.tops for row in members],
                  "os^D"[i // len(colors) % 4], color=colors[i % len(colors)], markersize=6,
                  label=types)
    if copy is not None:
        intensities = [row.operations / row.bytes for row in rows]
        span = (min(intensities) / 2, max(intensities) * 2)
        axes.plot(span, [copy * x / 1e3 for x in span], "k--", linewidth=1,
                  label="bound by the copy bandwidth")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("TOPS")
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=7)
