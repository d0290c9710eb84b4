"""Where the time of a run goes, from NumPy's arrays to NumPy's arrays.

    python benchmarks/run_phases.py [MODEL.onnx ...] [--adapter NAME] [--runs 100]

Microseconds of the calling thread's wall clock and processor time, each the middle of many runs of
a session. A phase has no time of the phases inside it. Models of one node, which negate 1, 2.5, 5,
10 and 100 MB, come first: what they take is copies and waits. "Device" is its own time in
dispatches, if it has timestamps, and "copies" is that of the dispatches that copy.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from tabulate import tabulate

from kompute_dml.bench import sessions
from kompute_dml.bench.start import start
from kompute_dml.graph import recorded, recordings
from kompute_dml.onnxruntime import allocation, kernel
from kompute_dml.runtime import kp_engine, transfer
from session_phases import Clock

_OTHERS = "ONNX Runtime"
_IN, _OUT = "the host's copy in", "the host's copy out"
PHASES: dict[str, tuple[tuple[object, str], ...]] = {
    "inputs and outputs of the run": ((allocation, "_copy"),),
    "the region": ((kernel.RegionKernel, "compute"),),
    "its plan": ((recorded.RecordedPlan, "launch"), (recordings.Recordings, "run_at_once")),
    "uploads": ((transfer.Transfer, "upload"),),
    "downloads": ((transfer.Transfer, "download"), (recorded.RecordedPlan, "read")),
    "submits": ((kp_engine.CommandList, "submit"),),
    "waits": ((kp_engine.CommandList, "wait"),),
}
MEGABYTES = (1.0, 2.5, 5.0, 10.0, 100.0)


class RunClock(Clock):
    """Phases of a run."""

    def __init__(self) -> None:
        super().__init__((*PHASES, _IN, _OUT, _OTHERS), _OTHERS)


_clock = RunClock()


def _timed(owner: object, function: str, name: Callable[[], str]) -> None:
    real: Callable[..., object] = getattr(owner, function)

    @functools.wraps(real)
    def timed(*arguments: object, **more: object) -> object:
        with _clock.phase(name()):
            return real(*arguments, **more)

    setattr(owner, function, timed)


def _negations(folder: Path) -> Iterator[Path]:
    for megabytes in MEGABYTES:
        sizes = [int(megabytes * 1e6 / 4)]
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in "xy")
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negation", [x], [y])
        path = folder / f"{megabytes:g} MB.onnx"
        onnx.save(helper.make_model(
            graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
        yield path


def _feed(session: Any) -> dict[str, np.ndarray]:
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16,
             "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    rng = np.random.default_rng(0)
    return {x.name: rng.random([n if isinstance(n, int) else 1 for n in x.shape]).astype(
        types[x.type]) for x in session.get_inputs()}


def main() -> None:
    global _clock
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--runs", type=int, default=100)
    asked = parser.parse_args()
    opened = sessions.ready(lambda: sessions.ours(asked.adapter))
    columns: dict[str, list[tuple[float, float]]] = {}
    device: dict[str, tuple[float | None, float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = [*_negations(Path(folder)), *asked.models]
        for path in models:
            feed = _feed(opened(path))
            began = start(path, feed, asked.adapter)
            device[path.stem] = began.device_ms, began.transfer_ms
        for name, functions in PHASES.items():
            for owner, function in functions:
                _timed(owner, function, lambda name=name: name)  # type: ignore[misc]
        _timed(transfer.Transfer, "move",
               lambda: _OUT if "downloads" in _clock.phases else _IN)
        for path in models:
            session = opened(path)
            feed = _feed(session)
            times: list[dict[str, list[float]]] = []
            for _ in range(10 + asked.runs):
                _clock = RunClock()
                result = session.run(None, feed)
                _clock.turn()
                times.append(_clock.took)
            del result, session
            columns[path.stem] = [
                (statistics.median(t[name][0] for t in times[10:]),
                 statistics.median(t[name][1] for t in times[10:])) for name in times[0]]
            columns[path.stem].append((
                statistics.median(sum(v[0] for v in t.values()) for t in times[10:]),
                statistics.median(sum(v[1] for v in t.values()) for t in times[10:])))
    names = [*_clock.took, "all"]
    rows = [(name, *(f"{1e6 * columns[c][i][0]:.0f}, {1e6 * columns[c][i][1]:.0f}"
                     for c in columns)) for i, name in enumerate(names)]
    rows.append(("device, copies", *(", ".join(
        "-" if ms is None else f"{1e3 * ms:.0f}" for ms in device[c]) for c in columns)))
    print(tabulate(rows, ("wall, processor", *columns), stralign="right"), flush=True)


if __name__ == "__main__":
    main()
