"""Where the time of making a session goes, by phase.

    python benchmarks/session_phases.py MODEL.onnx [MODEL.onnx ...] [--adapter NAME] [--sessions 5]

Milliseconds of the calling thread's wall clock and processor time: the middle of several sessions
after a first one, which also has what a device does not know yet. A phase has no time of the phases
inside it. "ONNX Runtime" is what is left: it reads the file, and runs its own passes.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tabulate import tabulate

from kompute_dml.bench import sessions
from kompute_dml.device import Device
from kompute_dml.graph import builder, planner
from kompute_dml.onnx import region
from kompute_dml.onnxruntime import graph, in_file, kernel, provider

PHASES: dict[str, tuple[tuple[object, str], ...]] = {
    "weights' places in the file": ((in_file, "model_of"),),
    "reading the graph": ((graph.GraphReader, "__init__"),),
    "fusing nodes": ((provider, "fuse"), (kernel, "fuse")),
    "placing": ((provider, "place"), (region.placement, "within"),
                (provider.Provider, "_refusals")),
    "uploading constants": ((region.Region, "_upload_constants"),),
    "waiting for the uploads": ((region.Constants, "finish"),),
    "adding operators": ((region.Region, "_emit"),),
    "passes": ((planner, "fuse"),),
    "compiling operators": ((planner.Planner, "step_of"), (planner.Planner, "_run_once")),
    "preparing constants": ((planner.Planner, "_prepare"), (planner.Preparations, "record")),
    "memory": ((builder.Builder, "allocate"), (Device, "allocate")),
    "the rest of a plan": ((builder.Builder, "finish"),),
    "the rest of ours": ((provider.Provider, "wanted_regions"), (kernel.RegionKernel, "__init__"),
                         (provider.Provider, "__init__")),
}
_OTHERS = "ONNX Runtime"


class Clock:
    """The time of each phase, wall and processor, in seconds."""

    def __init__(self, names: Iterable[str], others: str) -> None:
        """``others`` is the phase of what belongs to no other."""
        self.took = {name: [0.0, 0.0] for name in names}
        self.phases = [others]
        """Those that have begun, the innermost last."""
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def turn(self) -> None:
        """Count the time since the last turn for the innermost phase."""
        now = self._now()
        for i, (end, begin) in enumerate(zip(now, self._last)):
            self.took[self.phases[-1]][i] += end - begin
        self._last = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.turn()
        self.phases.append(name)
        try:
            yield
        finally:
            self.turn()
            self.phases.pop()


_clock = Clock((*PHASES, _OTHERS), _OTHERS)


def _timed(name: str, owner: object, function: str) -> None:
    real: Callable[..., object] = getattr(owner, function)

    @functools.wraps(real)
    def timed(*arguments: object, **more: object) -> object:
        with _clock.phase(name):
            return real(*arguments, **more)

    setattr(owner, function, timed)


def main() -> None:
    global _clock
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--sessions", type=int, default=5)
    asked = parser.parse_args()
    opened = sessions.ready(lambda: sessions.ours(asked.adapter))
    for name, functions in PHASES.items():
        for owner, function in functions:
            _timed(name, owner, function)
    for path in asked.models:
        times = []
        for _ in range(1 + asked.sessions):
            gc.collect()
            _clock = Clock((*PHASES, _OTHERS), _OTHERS)
            session = opened(path)
            _clock.turn()
            times.append(_clock.took)
            del session
        first, *later = times
        rows = [(name, *(1e3 * s for s in first[name]),
                 *(1e3 * statistics.median(t[name][i] for t in later) for i in (0, 1)))
                for name in first]
        rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
        print(path.stem)
        print(tabulate(rows, ("phase", "first: wall", "processor", "later: wall", "processor"),
                       floatfmt=".1f"), flush=True)


if __name__ == "__main__":
    main()
