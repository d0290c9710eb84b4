"""A measured case as one row: its time, its rates, and its peers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..cases import Scale
from ..device import Device
from . import peers as peers_module
from .case import AS_IT_IS, AS_MANY_BYTES, SCALES, Case, Recipe, scale_for
from .peers import PeerTime
from .timing import Loop, Timings, measure, repeats

T = TypeVar("T")

_SAMPLE_MS = 2.0
"""A sample repeats its dispatch until it takes about so long, ..."""
_MAX_REPEAT = 50
"""... but no more often than this."""
_SAMPLES = 21
"""Samples of a case. The first one is cold."""
_LONG_MS = 20.0
"""Longer dispatches get fewer samples."""


@dataclass(frozen=True)
class Judged:
    """A goal of a row, a ratio to ``against``, and the ratio that was reached."""

    against: str
    goal: float
    ratio: float | None
    """None where this run has nothing to compare with."""

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else self.ratio >= self.goal


class SuiteRow:
    """A row of a suite, a dataclass."""

    values: str
    goals: tuple[Judged, ...]

    @property
    def ok(self) -> bool:
        return self.values in ("ok", "unchecked")

    def record(self) -> dict[str, Any]:
        """The figures by name, as JSON has them."""
        row: Any = self
        fields = dataclasses.asdict(dataclasses.replace(row, timings=None))
        del fields["timings"]
        return fields


class UseRow(SuiteRow):
    """A row of a model in one use."""

    model: str
    use: str

    @property
    def times_a_peer(self) -> str:
        """How many times as fast as others it is, and should be; or that its values are wrong."""
        if not self.ok:
            return f"WRONG: {self.values}"
        return "; ".join(f"{g.ratio:.2f} of {g.goal:g} {g.against}" for g in self.goals
                         if g.ratio is not None)

    @property
    def name(self) -> str:
        return f"{self.model} {self.use}"

    def record(self) -> dict[str, Any]:
        return {**super().record(), "model": self.name}


class TypedRow(SuiteRow):
    """A row of a model in one type."""

    model: str
    types: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.types}"


@dataclass(frozen=True)
class BenchRow(SuiteRow):
    """A case, its time and its rates."""

    operator: str
    types: str
    sizes: str
    values: str
    """``ok``, ``unchecked``, or what is wrong with the values (then nothing was timed)."""
    gpu_ms: float | None = None
    """Median for one of the dispatches between two device timestamps. None without timestamps."""
    spread: float | None = None
    """Half the interquartile range over the median, for the clock used."""
    host_ms: float | None = None
    """Median of recording, submitting and waiting, per dispatch."""
    bytes: int = 0
    operations: int = 0
    gb_per_s: float | None = None
    tops: float | None = None
    share_of_copy: float | None = None
    """This row's bandwidth over that of copying in the same run."""
    peers: dict[str, PeerTime] = field(default_factory=dict)
    goals: tuple[Judged, ...] = ()
    timings: Timings | None = field(default=None, repr=False, compare=False)

    @property
    def ms(self) -> float | None:
        """Milliseconds by the device's clock, or by the host's without one."""
        return self.host_ms if self.gpu_ms is None else self.gpu_ms

    @property
    def name(self) -> str:
        return f"{short(self.operator)} {self.types} {self.sizes}"

    def with_copy(self, copy: float | None) -> BenchRow:
        if copy is None or self.gb_per_s is None:
            return self
        return dataclasses.replace(self, share_of_copy=self.gb_per_s / copy)

    def ratio(self, peer: str) -> float | None:
        """The speedup over a peer."""
        time = self.peers.get(peer)
        return time.ms / self.ms if time and time.ms and self.ms else None

    def judged(
        self, recipe: Recipe, others: Mapping[Recipe, BenchRow],
        copy_of: Mapping[int, float | None] | None = None, as_it_is: BenchRow | None = None,
    ) -> BenchRow:
        """The row with the recipe's goals, judged beside the ``others`` of the same run.

        ``copy_of``: GB/s of copies by the bytes that they move. ``as_it_is``: the row without
        emulation.
        """

        def judge(against: str | Recipe, goal: float) -> Judged:
            if isinstance(against, Recipe):
                other = others.get(against)
                return Judged(other.name if other else against.types, goal,
                              _speed_ratio(self, other))
            if against == "TOPS":
                return Judged(f"{goal:g} TOPS", 1.0, self.tops and self.tops / goal)
            if against == "us":
                return Judged(f"{goal:g} us", 1.0, self.ms and goal / (self.ms * 1e3))
            if against == "host us":
                return Judged(f"{goal:g} us of the host", 1.0,
                              self.host_ms and goal / (self.host_ms * 1e3))
            if against == AS_IT_IS:
                return Judged(against, goal, _speed_ratio(self, as_it_is))
            if against == AS_MANY_BYTES:
                copy = (copy_of or {}).get(self.bytes)
                return Judged(against, goal, copy and self.gb_per_s and self.gb_per_s / copy)
            ratio = self.share_of_copy if against == "copy" else self.ratio(against)
            return Judged(against, goal, ratio)

        return dataclasses.replace(self, goals=tuple(judge(*goal) for goal in recipe.goals))


def in_time(
    work: Iterable[T], name: Callable[[T], str], seconds: float, left_out: list[str]
) -> Iterator[T]:
    """The work that is begun within so many seconds from now on. ``left_out`` gets a line about
    each that is not."""
    end = time.monotonic() + seconds

    def begun() -> Iterator[T]:
        for each in work:
            if time.monotonic() > end:
                left_out.append(f"{name(each)} is left out: {seconds:g} s are over")
            else:
                yield each

    return begun()


def _speed_ratio(row: BenchRow, other: BenchRow | None) -> float | None:
    if other is None:
        return None
    for figure in ("tops", "gb_per_s"):
        a, b = getattr(row, figure), getattr(other, figure)
        if a and b:
            return float(a / b)
    return None


def make_row(case: Case, values: str, timings: Timings) -> BenchRow:
    """The figures of a timed case. Rates follow the device's clock, or the host's without one."""
    clock = timings.gpu or timings.cpu
    count = case.dispatches
    # At least one tick of the device's clock.
    seconds = max(clock.hot.median / count / 1e3, 1e-9)
    return BenchRow(
        case.operator, case.types, case.sizes, values,
        gpu_ms=timings.gpu.hot.median / count if timings.gpu else None,
        spread=clock.hot.spread,
        host_ms=timings.cpu.hot.median / count,
        bytes=case.bytes,
        operations=case.operations,
        gb_per_s=case.bytes / seconds / 1e9,
        tops=case.operations / seconds / 1e12 if case.operations else None,
        timings=timings,
    )


def run_case(
    device: Device, case: Case, loop: Loop | None = None, libraries: Sequence[object] = ()
) -> BenchRow:
    """Check a case's values, time it, and check the output of the last timed dispatch.

    Dispatches back to back may go wrong where one alone does not. Without ``loop`` the number of
    repeats follows from the case's speed.
    """
    output = case.dispatch()
    if problem := case.check(output):
        return BenchRow(case.operator, case.types, case.sizes, problem)

    def dispatch() -> None:
        nonlocal output
        output = case.dispatch()

    def timed(loop: Loop) -> Timings:
        return measure(device, dispatch, loop, on_host=case.on_host)

    if loop is None:
        once = timed(Loop(iterations=3))
        ms = (once.gpu or once.cpu).hot.median
        repeat = repeats(ms, _SAMPLE_MS, _MAX_REPEAT)
        loop = Loop(iterations=_SAMPLES if ms < _LONG_MS else 4, repeat=repeat)
    timings = timed(loop)
    if problem := case.check(output):
        return BenchRow(case.operator, case.types, case.sizes, f"after it was timed: {problem}")
    row = make_row(case, "ok", timings)
    return dataclasses.replace(row, peers=peers_module.measure(libraries, case))


def run_recipe(
    device: Device, recipe: Recipe, loop: Loop | None, scale: Scale,
    libraries: Sequence[object] = ()
) -> Iterator[BenchRow]:
    for case in recipe.make(device, scale):
        yield run_case(device, case, loop, libraries)


def copy_bandwidth(copy: BenchRow) -> float | None:
    """GB/s of a row that copies: its own, or PyTorch's if that is faster."""
    return copy.gb_per_s and copy.gb_per_s * max(1.0, 1 / (copy.ratio("torch") or 1.0))


def suitable_scale(device: Device, copy: Recipe) -> Scale:
    """The scale that suits the speed of a small copy on the device."""
    (case,) = copy.make(device, SCALES["small"])
    return scale_for(run_case(device, case, Loop(iterations=4, repeat=10)).gb_per_s or 0.0)


def short(operator: str) -> str:
    return operator.removeprefix("DML_OPERATOR_")
