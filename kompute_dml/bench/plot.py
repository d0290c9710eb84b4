"""The picture of a run, as SVG that follows the reader's light or dark theme.

Left: whole models where there are any, else the bandwidth of each row that moves data. Right: the
roofline of the rows that compute, operations per second over operations per byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .rows import short

Record = Mapping[str, Any]

_WIDTH, _LINE, _TOP, _PLOT = 450, 22, 84, 262
_SERIES = 4
"""Colours; what comes after them shares the last."""
_STYLE = """
.page{fill:#fff}.grid{stroke:#e3e6ea}.axis,.span{stroke:#9aa3ad}.roof{stroke:#57606a;fill:none}
text{font:11px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#57606a}
.title{font-size:14px;font-weight:600;fill:#1f2328}.name{fill:#1f2328}.roof{stroke-dasharray:5 4}
.c0{fill:#1769c2}.c1{fill:#d9571c}.c2{fill:#12856a}.c3{fill:#6b747e}
circle{fill-opacity:.8}
@media(prefers-color-scheme:dark){
.page{fill:#0d1117}.grid{stroke:#262c36}.axis,.span{stroke:#59636e}.roof{stroke:#9da7b3}
text{fill:#9da7b3}.title,.name{fill:#f0f6fc}
.c0{fill:#58a6ff}.c1{fill:#ff9159}.c2{fill:#3fc9a4}.c3{fill:#8b949e}}
""".strip()


def picture(run: Record | None, models: Record | None = None) -> str:
    """The SVG of a run and of whole models, as `baseline.load` reads them; either may be None."""
    rows = [] if run is None else [row for row in run["rows"] if row["gb_per_s"]]
    copy = None if run is None else run["copy_gb_per_s"]
    computing = [row for row in rows if row["tops"]]
    panels: list[tuple[str, int]] = []
    if models is not None and any(row["ms"] for row in models["models"]):
        panels.append(_models(models))
    elif moving := [row for row in rows if not row["tops"]]:
        panels.append(_bandwidths(moving, copy))
    if run is not None and computing:
        panels.append(_roofline(run, computing, copy))
    height = max((bottom for _, bottom in panels), default=_TOP)
    width = _WIDTH * max(len(panels), 1)
    body = "\n".join(f'<g transform="translate({i * _WIDTH})">\n{drawn}\n</g>'
                     for i, (drawn, _) in enumerate(panels))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n<style>\n{_STYLE}\n</style>\n'
            f'<rect class="page" width="{width}" height="{height}" rx="6"/>\n{body}\n</svg>\n')


# -- panels: each gives its elements and where it ends


def _models(run: Record) -> tuple[str, int]:
    """A line for each model, a dot for each type, on a logarithmic axis."""
    timed = [row for row in run["models"] if row["ms"]]
    names = list(dict.fromkeys(row["model"] for row in timed))
    types = list(dict.fromkeys(row["types"] for row in timed))
    x = _axis([row["ms"] for row in timed], 185, _WIDTH - 48)
    line = max(_LINE, _PLOT / len(names))
    end = round(_TOP + line * len(names))
    drawn = [_title("Whole models: milliseconds a run", _place(run)), _legend(types),
             *_ticks(x, end, "ms, ONNX Runtime, NumPy in to NumPy out")]
    for i, name in enumerate(names):
        y = round(_TOP + line * (i + 0.5))
        dots = sorted((row["ms"], types.index(row["types"])) for row in timed
                      if row["model"] == name)
        drawn.append(_text(146, y + 4, name, "name", "end"))
        drawn.append(f'<path class="span" d="M{x(dots[0][0]):.1f} {y}H{x(dots[-1][0]):.1f}"/>')
        for j, (ms, kind) in enumerate(dots):
            dx, dy, anchor = 0, -9, "middle"  # above the dot, between the first and the last
            if j in (0, len(dots) - 1):
                dx, dy, anchor = (-9, 4, "end") if j == 0 and len(dots) > 1 else (9, 4, "start")
            drawn.append(_dot(x(ms), y, kind, 5))
            drawn.append(_text(x(ms) + dx, y + dy, f"{ms:.3g}", anchor=anchor))
    return "\n".join(drawn), end + 46


def _bandwidths(rows: Sequence[Record], copy: float | None) -> tuple[str, int]:
    """A bar for each row, and a line where copying is."""
    most = max([row["gb_per_s"] for row in rows] + ([copy] if copy else []))
    end = _TOP + _LINE * len(rows)
    drawn = [_title("Bandwidth: GB/s", "each element that is needed counted once; dashed: copying")]
    for i, row in enumerate(rows):
        y = _TOP + _LINE * i
        length = 140 * row["gb_per_s"] / most
        label = f"{short(row['operator']).lower()} {row['types']}"
        label = label if len(label) < 40 else f"{label[:38]}.."
        drawn += [_text(232, y + 15, label, "name", "end"),
                  f'<rect class="c0" x="240" y="{y + 4}" width="{length:.1f}" height="14" rx="2"/>',
                  _text(_WIDTH - 20, y + 15, _plain(row["gb_per_s"]), anchor="end")]
    if copy:
        drawn.append(f'<path class="roof" d="M{240 + 140 * copy / most:.1f} {_TOP}V{end}"/>')
    return "\n".join(drawn), end + 16


def _roofline(run: Record, rows: Sequence[Record], copy: float | None) -> tuple[str, int]:
    counted = [(row["operations"] / row["bytes"], row["tops"], _kind(row)) for row in rows]
    kinds = list(dict.fromkeys(kind for *_, kind in counted))
    named = kinds if len(kinds) <= _SERIES else [*kinds[:_SERIES - 1], "others"]
    end = _TOP + _PLOT
    x = _axis([at for at, *_ in counted], 50, _WIDTH - 20)
    y = _axis([tops for _, tops, _ in counted], end, _TOP)
    slope = f"; dashed: copying, {copy / 1e3:.3g} TB/s" if copy else ""
    drawn = [_title("Roofline: TOPS over operations per byte", _place(run) + slope),
             _legend(named), *_ticks(x, end, "operations per byte"),
             _text(20, _TOP - 4, "TOPS: 10¹² operations per second")]
    for tops in y.ticks:
        drawn += [f'<path class="grid" d="M50 {y(tops):.1f}H{_WIDTH - 20}"/>',
                  _text(44, y(tops) + 4, f"{tops:g}", anchor="end")]
    if copy:
        # Within the frame: from its left or lower edge to its right or upper one.
        low = max(x.low, y.low * 1e3 / copy)
        high = min(x.high, y.high * 1e3 / copy)
        if low < high:
            drawn.append(f'<path class="roof" d="M{x(low):.1f} {y(low * copy / 1e3):.1f}'
                         f'L{x(high):.1f} {y(high * copy / 1e3):.1f}"/>')
    drawn += [_dot(x(at), y(tops), kinds.index(kind), 4) for at, tops, kind in counted]
    return "\n".join(drawn), end + 46


def _kind(row: Record) -> str:
    return str(row["types"]).split(",")[0]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _place(run: Record) -> str:
    return f"{run['device']}, {run['driver']}, {run['date']}"


# -- parts of panels


class _axis:
    """A logarithmic axis of a decade at least, from pixel `start` to `end`."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        listed = list(values)
        margin = max(1.25, math.sqrt(10 * min(listed) / max(listed)))
        self.low, self.high = min(listed) / margin, max(listed) * margin
        self._start, self._scale = start, (end - start) / math.log(self.high / self.low)
        steps = (1,) if self.high > 200 * self.low else (1, 2, 5)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [round(step * 10.0**d, 9) for d in decades for step in steps]
        self.ticks = [t for t in ticks if self.low <= t <= self.high]

    def __call__(self, value: float) -> float:
        return self._start + self._scale * math.log(value / self.low)


def _ticks(x: _axis, end: float, label: str) -> Iterable[str]:
    for value in x.ticks:
        yield f'<path class="grid" d="M{x(value):.1f} {_TOP}V{end}"/>'
        yield _text(x(value), end + 15, f"{value:g}", anchor="middle")
    yield f'<path class="axis" d="M{x(x.low):.1f} {end}H{x(x.high):.1f}"/>'
    yield _text(x(x.high), end + 32, label, anchor="end")


def _title(title: str, below: str) -> str:
    return _text(20, 28, title, "title") + "\n" + _text(20, 46, below)


def _legend(names: Sequence[str]) -> str:
    drawn, at = [], 24.0
    for i, name in enumerate(names):
        drawn += [_dot(at, 63, i, 4), _text(at + 8, 67, name)]
        at += 24 + 6.2 * len(name)
    return "\n".join(drawn)


def _dot(x: float, y: float, series: int, radius: float) -> str:
    return (f'<circle class="c{min(series, _SERIES - 1)}" cx="{x:.1f}" cy="{y:.1f}" '
            f'r="{radius:g}"/>')


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "start") -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    attributes = f' class="{css}"' * bool(css) + f' text-anchor="{anchor}"' * (anchor != "start")
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escaped}</text>'
