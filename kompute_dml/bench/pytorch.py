"""Networks of PyTorch on the device ``kompute``: eager and compiled inference, training steps, and
the host's time of each, and of one operator.

    kompute-dml bench --suite torch --peers
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tabulate import tabulate

from ..torch import memory
from . import networks
from .peers import PeerTime, named
from .rows import Judged, UseRow, in_time

MODELS = (networks.ONE, *networks.NETWORKS)
PEERS = ("eager", "graphs", "inductor")
"""PyTorch by itself: on the same GPU where CUDA has it, else eager on the CPU only."""
_BOUND = 2e-3
"""How far the last loss may be from the CPU's, as a part of it."""
_SECONDS = 2.0
_WARMUP = 6
_HOST_CALLS = 40
"""The most calls whose time on the host is taken. The least one counts."""
_ONE_US, _GRAPH_US, _DISPATCH_US = 30.0, 60.0, 2.0
"""The goals of the host's time: of an eager operator, and of a compiled graph, with its
dispatches."""
_MEMORY = 1.15
"""How much of CUDA's memory a training step may use."""


@dataclass(frozen=True)
class NetworkRow(UseRow):
    """Times of a network in one use."""

    model: str
    use: str
    values: str
    """``ok``, or what is wrong."""
    ms: float | None = None
    """Milliseconds of a call, many calls in flight."""
    host_us: float | None = None
    """Microseconds of the calling thread in a call, without waits for the device."""
    dispatches: float | None = None
    """Dispatches of a call."""
    anew: float | None = None
    """Those that a call records anew. 0 where all is replayed."""
    first_s: float | None = None
    """Seconds of the first call, with compilation."""
    mib: float | None = None
    """The most MiB of the device that are in use at once in a call, with weights and states."""
    peers: dict[str, PeerTime] = field(default_factory=dict)
    goals: tuple[Judged, ...] = ()
    timings: None = None
    types: str = "FLOAT32"

    def judged(self, peers: dict[str, PeerTime]) -> NetworkRow:
        """The row beside PyTorch. The goals are the speed of eager mode on the same GPU, the
        host's time, and the memory of a training step."""
        other = peers["eager"].ms if "eager" in peers else None
        ratio = other / self.ms if other and self.ms else None
        goals = [Judged("eager", 1.0, ratio)]
        allowed = self.host_goal
        if allowed is not None and self.host_us:
            goals.append(Judged("host", 1.0, allowed / self.host_us))
        theirs = peers["eager"].mib if "eager" in peers else None
        if theirs and self.mib and self.use in ("gradients", "training"):
            goals.append(Judged("memory", 1.0, _MEMORY * theirs / self.mib))
        return dataclasses.replace(self, peers=peers, goals=tuple(goals))

    @property
    def host_goal(self) -> float | None:
        """The most microseconds that the host should take. None for several eager operators."""
        if self.use == "eager" and self.model == networks.ONE:
            return _ONE_US
        graphs = {"inference": 1, "gradients": 2, "training": 3}.get(self.use)
        if graphs is None or self.dispatches is None:
            return None
        return _GRAPH_US * graphs + _DISPATCH_US * self.dispatches


class Repeated(NamedTuple):
    """What is timed, and how to wait for all of it."""

    run: Callable[[], Any]
    wait: Callable[[], None]


def inference(
    work: networks.Workload, wait: Callable[[], None], compiled: Callable[[Any], Any]
) -> Repeated:
    """One forward pass without gradients."""
    model = compiled(work.model.eval())

    def run() -> Any:
        with torch.no_grad():
            return model(work.inputs)

    return Repeated(run, wait)


def eager(
    work: networks.Workload, wait: Callable[[], None], compiled: Callable[[Any], Any]
) -> Repeated:
    """One forward pass without gradients, an operator at a time."""
    return inference(work, wait, lambda model: model)


def gradients(
    work: networks.Workload, wait: Callable[[], None], compiled: Callable[[Any], Any],
    **options: object
) -> Repeated:
    """Forward and backward."""
    work.model.train()
    forward = compiled(lambda x, labels: work.loss(work.model(x), labels))

    def run() -> Any:
        work.model.zero_grad()
        loss = forward(work.inputs, work.labels)
        loss.backward()
        return loss

    return Repeated(run, wait)


def training(work: networks.Workload, wait: Callable[[], None], compiled: Callable[[Any], Any],
             **options: object) -> Repeated:
    """Forward, backward and AdamW."""
    work.model.train()
    forward = compiled(lambda x, labels: work.loss(work.model(x), labels))
    optimizer = torch.optim.AdamW(work.model.parameters(), 1e-3, **options)
    update = compiled(optimizer.step)

    def run() -> Any:
        optimizer.zero_grad()
        loss = forward(work.inputs, work.labels)
        loss.backward()
        update()
        return loss

    return Repeated(run, wait)


def eager_training(
    work: networks.Workload, wait: Callable[[], None], compiled: Callable[[Any], Any],
    **options: object
) -> Repeated:
    """Forward, backward and AdamW, an operator at a time."""
    return training(work, wait, lambda f: f, **options)


USED: dict[str, Callable[..., Repeated]] = {
    "eager": eager, "inference": inference, "gradients": gradients,
    "eager training": eager_training, "training": training}


class NetworkBench:
    """Measures networks on the default device."""

    def __init__(self, names: str, scale: str | None = None) -> None:
        """``names`` of :data:`PEERS`, which commas separate. ``scale`` "tiny" or "small" takes the
        sizes of a CPU driver, others those of a GPU; by default as the device is."""
        wanted = named(names, PEERS)
        self.device = memory.device()
        self.large = not self.device.target.traits.is_cpu if scale is None else (
            scale not in ("tiny", "small"))
        self.left_out: list[str] = []
        """A line about each peer that is left out."""
        self._cuda = torch.cuda.is_available()
        self._peers = [name for name in wanted if self._cuda or name == "eager"]
        self.left_out += [f"{name} is left out: PyTorch has no CUDA here"
                          for name in wanted if name not in self._peers]

    def run(self, names: Sequence[str], seconds: float) -> Iterator[NetworkRow]:
        """The rows of these networks. After so many seconds none is begun."""
        uses = [(name, use) for name in names for use in USED
                if use in ("eager", "inference") or name != networks.ONE]  # which has no weights
        for name, use in in_time(uses, " ".join, seconds, self.left_out):
            try:
                row = self._row(name, use)
            except Exception as error:
                row = NetworkRow(name, use, _first_line(error))
            yield row.judged({peer: self._peer(peer, name, use) for peer in self._peers})

    def _row(self, name: str, use: str) -> NetworkRow:
        torch._dynamo.reset()
        memory_used = _Memory(torch.kompute)
        work = networks.workload(name, self.large).to("kompute")
        call = USED[use](work, self.device.synchronize, torch.compile)
        begin = time.perf_counter()
        first = call.run()
        call.wait()
        first_s = time.perf_counter() - begin
        values = self._wrong(name, use, first) if not self.large else "ok"
        recorder = self.device.runtime.recorder
        ms, host, (anew, replayed) = _timed(
            call, lambda: (recorder.dispatches, recorder.replayed))
        mib = memory_used.most(call)
        gc.collect()
        return NetworkRow(name, use, values or "ok", ms, host, anew + replayed, anew, first_s, mib)

    @staticmethod
    def _wrong(name: str, use: str, results: torch.Tensor) -> str:
        """What is wrong with the first result, beside the CPU's."""
        expected = USED[use](networks.workload(name), lambda: None, lambda f: f).run()
        apart = (results.detach().cpu() - expected.detach()).abs().max() / expected.abs().max()
        return "" if float(apart) < _BOUND else f"{float(apart):.1e} from the CPU's"

    def _peer(self, peer: str, name: str, use: str) -> PeerTime:
        torch._dynamo.reset()
        where = "cuda" if self._cuda else "cpu"
        wait = torch.cuda.synchronize if self._cuda else (lambda: None)
        memory_used = _Memory(torch.cuda) if self._cuda and peer != "graphs" else None
        try:
            work = networks.workload(name, self.large).to(where)
            options = {}
            if "training" in use:
                options = {"fused": peer != "inductor", "capturable": peer == "graphs"}
            call = USED[use](work, wait, torch.compile if peer == "inductor" else lambda f: f,
                             **options)
            if peer == "graphs":
                call = _captured(call)
            ms = _timed(call, lambda: (0, 0))[0]
            return PeerTime(ms, mib=None if memory_used is None else memory_used.most(call))
        except Exception as error:
            return PeerTime(problem=_first_line(error))
        finally:
            gc.collect()


class _Memory:
    """What a network uses of a device's memory, by PyTorch's count."""

    def __init__(self, module: Any) -> None:
        """Before the network is there. ``module`` is torch.cuda, or that of this device."""
        gc.collect()
        self._module, self._before = module, module.memory_allocated()

    def most(self, call: Repeated) -> float:
        """The most MiB in use at once in a call, with what lay there before the call."""
        call.wait()
        self._module.reset_peak_memory_stats()
        call.run()
        call.wait()
        peak: int = self._module.max_memory_allocated()
        return (peak - self._before) / (1 << 20)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _captured(call: Repeated) -> Repeated:
    """The call as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
    return Repeated(graph.replay, call.wait)


def _timed(
    call: Repeated, counted: Callable[[], tuple[int, int]]
) -> tuple[float, float, tuple[float, float]]:
    """Milliseconds of a call, many in flight; microseconds of this thread in one, which waits for
    nobody; and how much the numbers of ``counted`` grow in a call."""
    for _ in range(_WARMUP):
        call.run()
    call.wait()
    begin = time.perf_counter()
    call.run()
    call.wait()
    once = time.perf_counter() - begin
    calls = min(100, max(3, int(_SECONDS / 3 / once)))
    ms = []
    before = counted()
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(calls):
            call.run()
        call.wait()
        ms.append((time.perf_counter() - begin) / calls * 1e3)
    grown = [(b - a) / (3 * calls) for a, b in zip(before, counted())]
    return statistics.median(ms), _host_us(call, min(calls, _HOST_CALLS)), (grown[0], grown[1])


def _host_us(call: Repeated, calls: int) -> float:
    """Microseconds of this thread in a call. It runs the backward pass, too: PyTorch would take a
    thread of the device's for that."""
    host = []
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(calls):
            call.wait()
            begin = time.thread_time()
            call.run()
            host.append(time.thread_time() - begin)
    return min(host) * 1e6


def as_table(rows: Sequence[NetworkRow]) -> str:
    """Times and memory of each row, and of PyTorch beside."""
    def number(x: float | None, digits: int = 2) -> str:
        return "-" if x is None else f"{x:,.{digits}f}"

    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    weighed = [n for n in names if any(row.peers[n].mib for row in rows if n in row.peers)]
    return tabulate(
        [(row.model, row.use, number(row.ms), number(row.host_us, 0), number(row.dispatches, 0),
          number(row.anew, 1),
          *(number(row.peers[n].ms if n in row.peers else None) for n in names),
          number(row.mib, 1),
          *(number(row.peers[n].mib if n in row.peers else None, 1) for n in weighed),
          number(row.first_s, 1),
          row.times_a_peer)
         for row in rows],
        headers=("model", "use", "ms", "host us", "dispatches", "recorded",
                 *(f"{n} ms" for n in names), "MiB", *(f"{n} MiB" for n in weighed), "first s",
                 "times a peer"),
        colalign=("left", "left", *("right",) * (6 + len(names) + len(weighed)), "left"),
        disable_numparse=True)
