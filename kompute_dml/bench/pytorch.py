"""Networks of PyTorch on the device ``kompute``: eager and compiled inference, training steps, and
the host's time of each, and of one operator.

    kompute-dml bench --suite torch --peers
"""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import torch
from tabulate import tabulate

from ..torch import memory
from . import networks
from .network_uses import USED, UsedMemory, first_line, peer_time, timed
from .peers import PeerTime, named
from .rows import Judged, UseRow, in_time

MODELS = (networks.ONE, *networks.NETWORKS)
PEERS = ("eager", "graphs", "inductor")
"""PyTorch by itself: on the same GPU where CUDA has it, else eager on the CPU only."""
_BOUND = 2e-3
"""How far the last loss may be from the CPU's, as a part of it."""
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
        # A process without this device, beside which PyTorch's backward passes on CUDA fail.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            for name, use in in_time(uses, " ".join, seconds, self.left_out):
                try:
                    row = self._row(name, use)
                except Exception as error:
                    row = NetworkRow(name, use, first_line(error))
                torch.kompute.empty_cache()  # for the peers
                yield row.judged({
                    peer: self._beside(apart.submit(peer_time, peer, name, use, self.large))
                    for peer in self._peers})

    @staticmethod
    def _beside(peer: Future[PeerTime]) -> PeerTime:
        try:
            return peer.result()
        except BrokenProcessPool as error:
            return PeerTime(problem=first_line(error))

    def _row(self, name: str, use: str) -> NetworkRow:
        torch._dynamo.reset()
        memory_used = UsedMemory(torch.kompute)
        work = networks.workload(name, self.large).to("kompute")
        call = USED[use](work, self.device.synchronize, torch.compile)
        begin = time.perf_counter()
        first = call.run()
        call.wait()
        first_s = time.perf_counter() - begin
        values = self._wrong(name, use, first) if not self.large else "ok"
        recorder = self.device.runtime.recorder
        ms, host, (anew, replayed) = timed(
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
