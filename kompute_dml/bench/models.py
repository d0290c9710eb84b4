"""Whole models on ONNX Runtime's provider, NumPy in to NumPy out, beside other libraries.

A model's result is compared with the expected one before and after it is timed. PyTorch's tensors
stay on the GPU, so its times have no copies from and to the host.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from ..errors import UnsupportedError
from ..runtime.adapters import Adapter
from . import peers, sessions, turns
from .formats import goals_text
from .peers import PeerTime
from .rows import Judged, TypedRow, in_time
from .sessions import Open
from .start import Start, started_twice
from .timing import Clock, Loop, Stats, Timings, measure

Goal = tuple[str, float]
"""What to compare with, and the least ratio: a peer, or another type of the same model. With "ms",
the most milliseconds; with "session ms", of making a session; with "webgpu's session", the least
ratio of WebGPU's to ours. Of sizes in turn only :data:`.turns.SEEN_BEFORE`."""

USUAL = "torch,onnxruntime,webgpu,ggml"
"""The libraries to time where none is named: all."""
_WEBGPU = "webgpu's session"
_RUNS = 15
_SLOW_MS, _SLOW_RUNS = 100.0, 3
"""Of a slower run, fewer samples are taken."""
_FIRST_RUN_MS = 1000.0
_SESSIONS, _FEW_SESSIONS, _SESSIONS_S = 5, 3, 6.0
"""Sessions of each provider whose median counts; the least, where they take more seconds."""
_PEER_BOUND = 5e-2
"""Some peers compute FLOAT32 in fewer bits."""


@dataclass(frozen=True)
class BenchModel:
    """A model as a file, with inputs and the expected first result."""

    path: Path
    feed: dict[str, np.ndarray]
    expected: np.ndarray
    bound: float
    """How far a result may be from the expected one, as a part of the largest element."""
    torch: tuple[Any, tuple[Any, ...]] | None = None
    """The same model as PyTorch's module, and its inputs."""


class ModelKind(NamedTuple):
    """A model in one type. ``make`` writes it to a folder."""

    name: str
    types: str
    goals: tuple[Goal, ...]
    make: Callable[[Path], BenchModel | turns.SizedModel]


@dataclass(frozen=True)
class SessionTime(PeerTime):
    """Milliseconds of a run, of making a session and of its first run."""

    session_ms: float | None = None
    """Making a session: the median of several, after the model's first one."""
    session_first_ms: float | None = None
    """Making the model's first session in the process, ..."""
    first_ms: float | None = None
    """... and its first run."""
    off_by: float | None = None
    """The largest difference from the expected result, as a part of its largest element."""


@dataclass(frozen=True)
class ModelRow(TypedRow):
    """A model, its times and its goals."""

    model: str
    types: str
    values: str
    """``ok``, or what is wrong with the values (then nothing was timed)."""
    ms: float | None = None
    """Median run."""
    spread: float | None = None
    """Half the interquartile range over the median."""
    off_by: float | None = None
    session_ms: float | None = None
    """Making a session: the median of several, after the model's first one."""
    session_first_ms: float | None = None
    """Making the model's first session in this process, which knows the shaders that were kept
    before it began."""
    first_ms: float | None = None
    """The first run of that session, likewise."""
    start: Start | None = None
    """A new process that finds no shader compiled."""
    warm: Start | None = None
    """A new process that finds the shaders that the first one has kept."""
    peers: dict[str, PeerTime] = field(default_factory=dict)
    goals: tuple[Judged, ...] = ()
    timings: Timings | None = field(default=None, repr=False, compare=False)

    def record(self) -> dict[str, Any]:
        """The figures by name, as JSON has them."""
        fields = super().record()
        nothing = dict.fromkeys(Start.__dataclass_fields__)
        cold, warm = (fields.pop(name) or nothing for name in ("start", "warm"))
        in_new = {f"{kind}_{name}": begin[name] for kind, begin in (("cold", cold), ("warm", warm))
                  for name in _OF_A_PROCESS}
        return {**fields, **{n: v for n, v in cold.items() if n not in _OF_A_PROCESS}, **in_new}

    def judged(self, goals: Sequence[Goal], others: Mapping[str, ModelRow]) -> ModelRow:
        """The row with its goals, judged beside the same model in other types."""
        webgpu = self.peers.get("webgpu")
        session = webgpu.session_ms if isinstance(webgpu, SessionTime) else None

        def judge(against: str, goal: float) -> Judged:
            if against == "ms":
                return Judged(f"{goal:g} ms", 1.0, _ratio(goal, self.ms))
            if against == "session ms":
                return Judged(f"session {goal:g} ms", 1.0, _ratio(goal, self.session_ms))
            if against == _WEBGPU:
                return Judged(_WEBGPU, goal, _ratio(session, self.session_ms))
            other = others.get(against) or self.peers.get(against)
            return Judged(against, goal, _ratio(other.ms if other else None, self.ms))

        own = () if _WEBGPU in dict(goals) else ((_WEBGPU, 1.0),)
        return dataclasses.replace(self, goals=(
            *(judge(*goal) for goal in goals),
            Judged(f"warm first run {_FIRST_RUN_MS:g} ms", 1.0,
                   _ratio(_FIRST_RUN_MS, self.warm.first_ms if self.warm else None)),
            *(judge(*goal) for goal in own),
        ))


_OF_A_PROCESS = ("session_ms", "first_ms")
"""Figures of a :class:`Start` that a process without shaders and one with them have."""


def _ratio(other: float | None, own: float | None) -> float | None:
    return other / own if other and own else None


# -- measuring


class Bench:
    """Measures models on a device, beside the libraries that are installed."""

    def __init__(self, adapter: Adapter, names: str, loop: Loop | None) -> None:
        """``names`` of libraries, which commas separate."""
        wanted = peers.named(names, USUAL.split(","))
        self._adapter, self._loop = str(adapter.index), loop
        self._ours = sessions.ready(lambda: sessions.ours(self._adapter))
        self._torch: peers.Torch | None = None
        self._providers, self.left_out = sessions.choose(
            name for name in wanted if name in sessions.PROVIDERS)
        """A line about each library that is left out."""
        if "torch" in wanted:
            self._torch = self._gpu_torch(adapter)

    def _gpu_torch(self, adapter: Adapter) -> peers.Torch | None:
        why = "torch is not installed"
        if importlib.util.find_spec("torch"):
            library = peers.Torch(adapter)
            if library.cuda:
                library.torch.backends.cudnn.allow_tf32 = False  # products do without by default
                return library
            why = "it has no CUDA for this device"
        self.left_out.append(f"torch is left out: {why}")
        return None

    def run(
        self, kinds: Sequence[ModelKind], seconds: float
    ) -> Iterator[ModelRow | turns.TurnsRow]:
        """The rows of these models. After so many seconds none is begun."""
        rows: dict[str, dict[str, ModelRow]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for kind in in_time(
                    kinds, lambda kind: f"{kind.name} {kind.types}", seconds, self.left_out):
                try:
                    model = kind.make(Path(folder))
                except Exception as error:  # of the library that makes it
                    self.left_out.append(
                        f"{kind.name} {kind.types} is left out: {peers.reason(error)}")
                    continue
                if isinstance(model, turns.SizedModel):
                    yield self._turns(kind, model).judged(kind.goals)
                    continue
                row = self._row(kind, model)
                others = rows.setdefault(kind.name, {})
                others[kind.types] = row = row.judged(kind.goals, others)
                yield row

    def _turns(self, kind: ModelKind, model: turns.SizedModel) -> turns.TurnsRow:
        try:
            return turns.timed(kind.name, kind.types, model, self._ours,
                               sessions.PROVIDERS["onnxruntime"][0]())
        except Exception as error:  # of ONNX Runtime, whose classes have nothing in common
            return turns.TurnsRow(kind.name, kind.types, peers.reason(error))

    def _row(self, kind: ModelKind, model: BenchModel) -> ModelRow:
        try:
            cold, warm = started_twice(model.path, model.feed, self._adapter)
            ours, timings = self._timed(self._ours, model, model.bound)
        except Exception as error:  # of ONNX Runtime, whose classes have nothing in common
            return ModelRow(kind.name, kind.types, peers.reason(error))
        row = ModelRow(
            kind.name, kind.types, ours.problem or "ok", ours.ms, ours.spread, ours.off_by, None,
            ours.session_first_ms, ours.first_ms, cold, warm, timings=timings)
        if not row.ok:
            return row
        beside: dict[str, PeerTime] = {}
        if self._torch is not None and model.torch is not None:
            beside |= _torch(self._torch, model, self._clock)
        for name, opened in self._providers.items():
            if name == "onnxruntime" and kind.types == "FLOAT16":
                continue  # the CPU computes it in FLOAT32, and converts
            try:
                beside[name], _ = self._timed(opened, model, _PEER_BOUND)
            except Exception as error:  # a failure of a peer is a result
                beside[name] = PeerTime(problem=peers.reason(error))
        able = {name: one for name, one in beside.items() if isinstance(one, SessionTime)}
        took = sessions.in_turns(
            {"": self._ours, **{name: self._providers[name] for name in able}}, model.path,
            _SESSIONS, _FEW_SESSIONS, _SESSIONS_S)
        for name, one in able.items():
            beside[name] = dataclasses.replace(one, session_ms=took[name])
        return dataclasses.replace(
            row, values="ok" if took[""] else "a later session fails", session_ms=took[""],
            peers=beside)

    def _timed(
        self, opened: Open, model: BenchModel, bound: float
    ) -> tuple[SessionTime, Timings | None]:
        gc.collect()  # what wrote the model left garbage, and only a provider in Python collects it
        begin = time.perf_counter()
        session = opened(model.path)
        ready = time.perf_counter()
        result = sessions.run(session, model.feed)
        first = time.perf_counter()
        off_by = _off_by(result, model.expected)
        row = SessionTime(
            session_first_ms=(ready - begin) * 1e3, first_ms=(first - ready) * 1e3,
            off_by=off_by if np.isfinite(off_by) else None)
        if problem := _wrong(result, model.expected, bound):
            return dataclasses.replace(row, problem=problem), None

        def call() -> None:
            nonlocal result
            result = sessions.run(session, model.feed)

        clock = self._clock(call)
        if problem := _wrong(result, model.expected, bound):
            return dataclasses.replace(row, problem=f"after it was timed: {problem}"), None
        hot = clock.hot
        return (dataclasses.replace(row, ms=hot.median, spread=hot.spread),
                Timings(clock, None))

    def _clock(self, call: Callable[[], object]) -> Clock:
        """The host's time of calls, after a first one."""
        loop = self._loop
        if loop is None:
            once = measure(_Host, call).cpu.hot.median
            loop = Loop(_RUNS if once < _SLOW_MS else _SLOW_RUNS, warmup=0)
        return measure(_Host, call, loop).cpu


class _Host:
    """In a device's place: calls that wait for their own end."""

    @staticmethod
    def synchronize() -> None:
        pass

    @staticmethod
    def elapsed(work: Callable[[], object]) -> float:
        raise UnsupportedError("timestamps")


def _torch(
    library: peers.Torch, model: BenchModel, clock: Callable[[Callable[[], object]], Clock]
) -> dict[str, PeerTime]:
    """PyTorch's time for calls, and for a CUDA graph of one."""
    assert model.torch is not None
    times: dict[str, PeerTime] = {}
    torch, (module, inputs) = library.torch, model.torch
    module, inputs = module.to(library.place), tuple(x.to(library.place) for x in inputs)
    result: Any = None

    def call() -> None:
        nonlocal result
        result = module(*inputs)

    def timed(run: Callable[[], object]) -> PeerTime:
        def waited() -> None:
            run()
            torch.cuda.synchronize()

        waited()
        if problem := _wrong(result.cpu().numpy(), model.expected, _PEER_BOUND):
            return PeerTime(problem=problem)
        hot: Stats = clock(waited).hot
        return PeerTime(hot.median, hot.spread)

    with torch.no_grad():
        for name, make in (("torch", lambda: call),
                           ("torch (graph)", lambda: library.graph(call, 1))):
            try:
                times[name] = timed(make())
            except Exception as error:  # a failure of a peer is a result
                times[name] = PeerTime(problem=peers.reason(error))
    result = None
    library.close()
    return times


def _off_by(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(result, np.float32) - expected).max() / np.abs(expected).max())


def _wrong(result: np.ndarray, expected: np.ndarray, bound: float) -> str:
    """What is wrong with a result, or ""."""
    if result.shape != expected.shape:
        return f"expected sizes {list(expected.shape)}, but got {list(result.shape)}"
    off_by = _off_by(result, expected)
    return "" if off_by <= bound else f"off by {off_by:.1e}, expected at most {bound:.0e}"


# -- printing


def as_table(rows: Sequence[ModelRow | turns.TurnsRow]) -> str:
    """A table of models, and one of sizes in turn."""
    models = [row for row in rows if isinstance(row, ModelRow)]
    sized = [row for row in rows if isinstance(row, turns.TurnsRow)]
    return "\n\n".join([*([_models_table(models)] if models or not sized else []),
                        *([turns.as_table(sized)] if sized else [])])


def _models_table(rows: Sequence[ModelRow]) -> str:
    """Milliseconds of each, and what it misses of its goals."""
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"

    def peer(row: ModelRow, name: str) -> str:
        time = row.peers.get(name)
        return "" if time is None else "failed" if time.ms is None else ms(time.ms)

    def goals(row: ModelRow) -> str:
        judged = [goal for goal in row.goals if goal.met is not None]
        missed = tuple(goal for goal in judged if not goal.met)
        told = goals_text(dataclasses.replace(row, goals=missed))
        return f"{len(judged) - len(missed)} of {len(judged)}{'; ' * bool(missed)}{told}"

    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    return tabulate(
        [
            (row.model, row.types, ms(row.ms),
             "-" if row.spread is None else f"+-{row.spread:.0%}",
             ms(row.start.device_ms if row.start else None), *(peer(row, name) for name in names),
             "-" if row.off_by is None else f"{row.off_by:.0e}",
             *((row.start.regions, row.start.dispatches or "-") if row.start else ("-", "-")),
             ms(row.session_ms),
             *(ms(new.first_ms if new else None) for new in (row.start, row.warm)),
             goals(row) if row.ok else "WRONG")
            for row in rows
        ],
        headers=("model", "type", "ms", "spread", "device", *names, "off by", "regions",
                 "dispatches", "session", "cold run", "warm run", "goals met"),
        colalign=("left", "left", *("right",) * (9 + len(names)), "left"),
        disable_numparse=True,
    )
