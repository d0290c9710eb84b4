"""The loop that times dispatches as DxDispatch does, and statistics of its samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..device import Device
from ..errors import UnsupportedError


@dataclass(frozen=True)
class Loop:
    """How often to dispatch."""

    iterations: int = 1
    """Samples to take."""
    repeat: int = 1
    """Dispatches in a sample. A sample's times are divided by it."""
    milliseconds: float | None = None
    """Take samples for this long instead of counting them."""
    warmup: int = 1
    """Number of cold samples at the beginning. At least one sample is always hot."""


ONCE = Loop()


@dataclass(frozen=True)
class Stats:
    """Statistics of times in milliseconds."""

    count: int
    average: float
    minimum: float
    median: float
    maximum: float
    spread: float
    """Half the interquartile range over the median."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Stats:
        median = statistics.median(samples)
        quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [0.0] * 3
        spread = (quartiles[2] - quartiles[0]) / 2 / median if median else 0.0
        return cls(len(samples), statistics.fmean(samples), min(samples), median, max(samples),
                   spread)


@dataclass(frozen=True)
class Clock:
    """All samples of one clock, in milliseconds, and how many of them are cold."""

    samples: tuple[float, ...]
    cold_count: int

    @property
    def cold(self) -> Stats | None:
        return Stats.of(self.samples[: self.cold_count]) if self.cold_count else None

    @property
    def hot(self) -> Stats:
        return Stats.of(self.samples[self.cold_count :])


@dataclass(frozen=True)
class Timings:
    """The samples of a loop."""

    cpu: Clock
    """The host's time from the first recording call to the end of the wait."""
    gpu: Clock | None
    """The time between device timestamps before and after a sample's dispatches, which wait for one
    another where they must. None without timestamps."""


def repeats(ms: float, sample_ms: float, most: int) -> int:
    """How often to repeat a call of ``ms`` in a sample of about ``sample_ms``: from 1 to
    ``most``."""
    return min(max(int(sample_ms / max(ms, 1e-3)), 1), most)


def has_gpu_clock(device: Device) -> bool:
    """Whether the device has timestamps."""
    try:
        device.elapsed(lambda: None)
    except UnsupportedError:
        return False
    return True


def measure(
    device: Any,
    dispatch: Callable[[], object],
    loop: Loop = ONCE,
    bind: Callable[[], object] = lambda: None,
    *,
    on_host: bool = False,
) -> Timings:
    """Time ``dispatch``, which records one dispatch. ``bind`` runs before each sample, untimed.
    ``on_host``: take no device timestamps, for which the host makes each command buffer anew."""
    gpu_clock = not on_host and has_gpu_clock(device)

    def work() -> None:
        for _ in range(loop.repeat):
            dispatch()

    device.synchronize()
    cpu: list[float] = []
    gpu: list[float] = []
    end = None if loop.milliseconds is None else time.perf_counter() + loop.milliseconds / 1e3
    while not cpu or (len(cpu) < loop.iterations if end is None else time.perf_counter() < end):
        bind()
        start = time.perf_counter()
        if gpu_clock:
            gpu.append(device.elapsed(work) / 1e6 / loop.repeat)
        else:
            work()
            device.synchronize()
        cpu.append((time.perf_counter() - start) * 1e3 / loop.repeat)
    cold = min(len(cpu) - 1, loop.warmup)
    return Timings(Clock(tuple(cpu), cold), Clock(tuple(gpu), cold) if gpu_clock else None)


def report(name: str, timings: Timings, verbosity: int) -> list[str]:
    """The lines that DxDispatch prints for a dispatch."""
    count, cpu, gpu = len(timings.cpu.samples), timings.cpu, timings.gpu
    head = f"Dispatch '{name}': {count} iterations"
    if verbosity <= 0:
        line = f"{head}, {cpu.hot.median:.4f} ms median (CPU)"
        return [line if gpu is None else f"{line}, {gpu.hot.median:.4f} ms median (GPU)"]
    lines = [head]
    for heat in ("Cold", "Hot"):
        for clock_name, clock in (("CPU", cpu), ("GPU", gpu)):
            stats = getattr(clock, heat.lower()) if clock else None
            if stats:
                lines.append(
                    f"{clock_name} Timings {f'({heat})':<7}: {stats.count} samples, "
                    f"{stats.average:.4f} ms average, {stats.minimum:.4f} ms min, "
                    f"{stats.median:.4f} ms median, {stats.maximum:.4f} ms max"
                )
    if verbosity >= 2:
        lines.append("The timings of each iteration:")
        for i, ms in enumerate(cpu.samples):
            line = f"iteration {i}: {ms:.4f} ms (CPU)"
            lines.append(line if gpu is None else f"{line}, {gpu.samples[i]:.4f} ms (GPU)")
    return lines
