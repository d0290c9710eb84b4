"""The start of a model in a process of its own, and the device's time in its runs.

``python -m kompute_dml.bench.start MODEL.onnx FEED.npz ADAPTER`` prints JSON. A new process knows
only the pipelines that earlier ones have kept, and compiles the others. The first session of a
process also waits for what ONNX Runtime and this package do once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import onnxruntime as kompute
from ..errors import UnsupportedError
from . import sessions

_RUNS = 3
"""Runs that are profiled after the first."""
_LONGEST_S = 300
_FOLDERS = ("KOMPUTE_DML_PIPELINES", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR")
"""Where this package and drivers keep compiled shaders."""
_COPY = "transfer"
"""The name of dispatches that copy from and to the host."""


@dataclass(frozen=True)
class Start:
    """Milliseconds of a new process, and what a run does."""

    session_ms: float
    first_ms: float
    regions: int
    dispatches: int | None
    """Without those that copy to and from the device. None without device timestamps."""
    device_ms: float | None
    """The device's time in dispatches, of the median run."""
    transfer_ms: float | None
    """The device's time in copies, of the same run."""


def started_twice(
    model: Path, feed: Mapping[str, np.ndarray], adapter: str
) -> tuple[Start, Start]:
    """Start a model in two new processes, one after the other: the first one finds no shader
    compiled, the second one those that the first has kept."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "feed.npz"
        np.savez(inputs, **feed)  # type: ignore[arg-type]  # a parameter is called allow_pickle
        shaders = Path(folder) / "shaders"
        shaders.mkdir()
        return (_started(model, inputs, adapter, shaders),
                _started(model, inputs, adapter, shaders))


def _started(model: Path, feed: Path, adapter: str, shaders: Path) -> Start:
    """Start a model in a new process, which keeps compiled shaders in this folder only."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(model), str(feed), adapter],
        env={**os.environ, **dict.fromkeys(_FOLDERS, str(shaders))},
        capture_output=True, text=True, timeout=_LONGEST_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UnsupportedError(f"a new process fails: {last}")
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def start(model: Path, feed: dict[str, Any], adapter: str) -> Start:
    """Start a model in this process."""
    sessions.ready(lambda: sessions.ours(adapter))
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        begin = time.perf_counter()
        session = kompute.session(str(model), claim="all", adapter=adapter, profile=trace)
        ready = time.perf_counter()
        sessions.run(session, feed)
        first = time.perf_counter()
        for _ in range(_RUNS):
            sessions.run(session, feed)
        del session  # writes the trace
        events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    return Start((ready - begin) * 1e3, (first - ready) * 1e3, *_of_a_run(events, 1 + _RUNS))


def _of_a_run(
    events: Sequence[Mapping[str, Any]], runs: int
) -> tuple[int, int | None, float | None, float | None]:
    """Regions, dispatches, and milliseconds in dispatches and in copies. The first of the runs
    does not count."""
    regions: list[list[tuple[str, float]]] = []
    for event in events:
        if event.get("cat") == "region":
            regions.append([])
        elif event.get("cat") == "dispatch":
            regions[-1].append((event["name"], event["dur"] / 1e3))
    count = len(regions) // runs
    hot = []
    for i in range(count, len(regions), count or 1):
        of_run = [one for region in regions[i : i + count] for one in region]
        copies = sum((ms for name, ms in of_run if name == _COPY), 0.0)
        work = [ms for name, ms in of_run if name != _COPY]
        hot.append((sum(work), copies, len(work)))
    if not any(work for _, _, work in hot):
        return count, None, None, None
    device, copied, dispatches = sorted(hot)[len(hot) // 2]
    return count, dispatches, device, copied


if __name__ == "__main__":
    model, feed, adapter = sys.argv[1:]
    with np.load(feed) as arrays:
        found = start(Path(model), dict(arrays), adapter)
    print(json.dumps(asdict(found)))
