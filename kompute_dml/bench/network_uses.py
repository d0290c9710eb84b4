"""How networks of PyTorch are used and timed, on this package's device or another of PyTorch's.

It does not register the device ``kompute``: beside it, PyTorch's backward passes on CUDA fail. So
peers are timed in a process of their own.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import networks
from .peers import PeerTime

_SECONDS = 2.0
_WARMUP = 6
_HOST_CALLS = 40
"""The most calls whose time on the host is taken. The least one counts."""


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


def peer_time(peer: str, name: str, use: str, large: bool) -> PeerTime:
    """PyTorch's time of a network, on CUDA where it is there, in FLOAT32 without TF32. ``peer`` is
    one of "eager", "graphs" and "inductor"."""
    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    cuda = torch.cuda.is_available()
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    memory_used = UsedMemory(torch.cuda) if cuda and peer != "graphs" else None
    try:
        work = networks.workload(name, large).to("cuda" if cuda else "cpu")
        options = {}
        if "training" in use:
            options = {"fused": peer != "inductor", "capturable": peer == "graphs"}
        call = USED[use](work, wait, torch.compile if peer == "inductor" else lambda f: f,
                         **options)
        if peer == "graphs":
            call = _captured(call)
        ms = timed(call, lambda: (0, 0))[0]
        return PeerTime(ms, mib=None if memory_used is None else memory_used.most(call))
    except Exception as error:
        return PeerTime(problem=first_line(error))
    finally:
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()  # for the network that is timed next


class UsedMemory:
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


def first_line(error: Exception) -> str:
    """What a table has room for."""
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


def timed(
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
