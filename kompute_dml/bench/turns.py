"""Sizes in turn: what a model takes at sizes that it never had, and at the same ones again.

The second run of a size comes right after the first one, whose plan is there then. Sizes that are
not timed run before, so that the kernels of their classes are compiled.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tabulate import tabulate

from .peers import PeerTime
from .rows import Judged, TypedRow
from .sessions import Open
from .timing import Stats

if TYPE_CHECKING:
    import onnxruntime

    from ..onnx.region import Region

SEEN_BEFORE = "a size seen before"
"""What goals of sizes in turn name: the ratio of the second runs' time to that of the first."""
MOST = 1.15
"""How many times the time of a size seen before a new size may take."""
_COMPARED = 3

Size = int | tuple[int, int]
"""Tokens, or the height and width of an image."""
Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class SizedModel:
    """A model as a file, and its inputs at any size."""

    path: Path
    feed: Callable[[Size], Feed]
    sizes: Sequence[Size]
    """What is timed."""
    warm: Sequence[Size]
    """Other sizes, which run first."""
    bound: float
    """How far an output may be from the CPU provider's, as a part of its largest element."""


class Parted(NamedTuple):
    """Sizes to time, and sizes of the same range to run before."""

    sizes: tuple[Size, ...]
    warm: tuple[Size, ...]


def parted(sizes: Sequence[Size], every: int) -> Parted:
    """Of each ``every`` sizes in a row, the middle one runs before the others are timed."""
    middle = every // 2
    return Parted(tuple(s for i, s in enumerate(sizes) if i % every != middle),
                  tuple(sizes[middle::every]))


@dataclass(frozen=True)
class TurnsRow(TypedRow):
    """A model, and the times of its sizes in turn."""

    model: str
    types: str
    values: str
    """``ok``, or what is wrong with the values (then there are no times)."""
    sizes: int = 0
    """Sizes that were timed."""
    ms: float | None = None
    """Median run of a size that is new."""
    spread: float | None = None
    """Half the interquartile range over the median."""
    again_ms: float | None = None
    """Median run of the same sizes, each right after its first run."""
    host_ms: float | None = None
    """Time of the calling thread in runs of new sizes, ..."""
    again_host_ms: float | None = None
    """... and in those of the same sizes again."""
    plans: int = 0
    """Plans that were built in all these runs."""
    off_by: float | None = None
    """The largest difference from the CPU provider, as a part of an output's largest element."""
    peers: dict[str, PeerTime] = field(default_factory=dict)
    goals: tuple[Judged, ...] = ()
    timings: None = None

    @property
    def ratio(self) -> float | None:
        """How many times the time of a size seen before a new one takes."""
        return self.ms / self.again_ms if self.ms and self.again_ms else None

    def record(self) -> dict[str, Any]:
        return {**super().record(), "ratio": self.ratio}

    def judged(self, goals: Sequence[tuple[str, float]]) -> TurnsRow:
        """The row with its goals."""
        return dataclasses.replace(self, goals=tuple(
            Judged(against, goal, self.ratio and 1 / self.ratio) for against, goal in goals))


def timed(name: str, types: str, model: SizedModel, ours: Open, cpu: Open) -> TurnsRow:
    """Time a model's sizes in turn, and compare three of them with the CPU provider."""
    gc.collect()
    before = set(_regions())
    session = ours(model.path)
    regions = [region for region in _regions() if region not in before]
    for size in model.warm:
        feed = _read(session, model.feed(size))
        for _ in range(2):
            session.run(None, feed)
    step = max(len(model.sizes) - 1, 1) / (_COMPARED - 1)
    compared = {model.sizes[min(round(i * step), len(model.sizes) - 1)] for i in range(_COMPARED)}
    results: list[tuple[Feed, list[np.ndarray]]] = []
    times: list[list[tuple[float, float]]] = [[], []]
    plans = sum(region.planned for region in regions)
    for size in model.sizes:
        feed = _read(session, model.feed(size))
        for turn in times:
            begin, on_host = time.perf_counter(), time.thread_time()
            outputs = session.run(None, feed)
            turn.append(((time.perf_counter() - begin) * 1e3,
                         (time.thread_time() - on_host) * 1e3))
            if size in compared:
                results.append((feed, outputs))
    plans = sum(region.planned for region in regions) - plans
    del session
    off_by = _off_by(cpu(model.path), results)
    row = TurnsRow(name, types, "ok", len(model.sizes),
                   off_by=off_by if np.isfinite(off_by) else None)
    if not off_by <= model.bound:
        return dataclasses.replace(
            row, values=f"off by {off_by:.1e}, expected at most {model.bound:.0e}")
    (new, host), (again, again_host) = (
        [Stats.of([*column]) for column in zip(*turn)] for turn in times)
    return dataclasses.replace(
        row, ms=new.median, spread=new.spread, again_ms=again.median, host_ms=host.median,
        again_host_ms=again_host.median, plans=plans)


def _regions() -> list[Region]:
    """Those of all sessions that there are."""
    kernel = importlib.import_module("kompute_dml.onnxruntime.kernel")  # needs cffi
    return [each.region for each in [*kernel.capi.alive.values()]
            if isinstance(each, kernel.RegionKernel)]


def _read(session: onnxruntime.InferenceSession, feed: Feed) -> Feed:
    """What a model reads. An exporter leaves out the rest."""
    return {x.name: feed[x.name] for x in session.get_inputs()}


def _off_by(
    cpu: onnxruntime.InferenceSession, results: Sequence[tuple[Feed, Sequence[np.ndarray]]]
) -> float:
    """The largest difference of all outputs; infinite where sizes differ."""
    worst = 0.0
    for feed, outputs in results:
        for y, expected in zip(outputs, cpu.run(None, feed)):
            if y.shape != expected.shape:
                return np.inf
            worst = max(worst, float(np.abs(y - expected).max() / np.abs(expected).max()))
            if np.isnan(y).any():
                return np.nan
    return worst


def as_table(rows: Sequence[TurnsRow]) -> str:
    """Milliseconds of new sizes and of the same again, and whether the goal is met."""
    def number(x: float | None) -> str:
        return "-" if x is None else f"{x:.3g}" if x < 100 else f"{x:.0f}"

    def goals(row: TurnsRow) -> str:
        """As times of a size seen before, which is what a goal bounds."""
        return ", ".join(f"at most {1 / goal.goal:.3g}: {'met' if goal.met else 'MISSED'}"
                         for goal in row.goals if goal.met is not None)

    return tabulate(
        [(row.model, row.types, row.sizes, number(row.ms), number(row.again_ms),
          "-" if row.ratio is None else f"{row.ratio:.2f}", number(row.host_ms),
          number(row.again_host_ms), row.plans, number(row.off_by),
          goals(row) if row.ok else "WRONG") for row in rows],
        headers=("sizes in turn", "type", "sizes", "new, ms", "again, ms", "ratio",
                 "new, host's thread", "again", "plans", "off by", "goal"),
        colalign=("left", "left", *("right",) * 8, "left"), disable_numparse=True)
