"""The host's time for PyTorch's calls: `python benchmarks/torch_host.py [--profile] [NAME ...]`.

Networks are narrow and a few layers deep, so the device's part is small. Each line has the
microseconds of the calling thread, which waits for nobody: the least of many calls, because other
work makes a call slower and never faster. The goal is 60 for each compiled graph and 2 for each of
its dispatches, and 30 for an eager addition. The last number is that of the last step that recorded
anything anew.

NAME begins the names of what is measured. `--profile` prints the functions that take the time.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

import kompute_dml.torch  # noqa: F401 - registers the device
from kompute_dml.bench import networks
from kompute_dml.bench.network_uses import USED
from kompute_dml.bench.networks import NetworkSizes
from kompute_dml.torch import memory

_CALLS = 200
_STEPS = 12
"""Those that may record anew."""
_SIZES = {
    "mlp": NetworkSizes(8, 0, 64, 3, 8),
    "gpt2": NetworkSizes(1, 8, 32, 3),
    "resnet": NetworkSizes(2, 16, 4, 2, 8),
}


class Case(NamedTuple):
    name: str
    make: Callable[[], Callable[[], Any]]
    graphs: int
    """How many compiled graphs a call runs. 0 for an eager operator."""


def _cases() -> Iterator[Case]:
    yield Case("add", lambda: _used(networks.ONE, "eager"), 0)
    yield Case("adamw", lambda: _adamw(60), 1)
    for name in _SIZES:
        for graphs, use in enumerate(("inference", "gradients", "training"), 1):
            yield Case(f"{name} {use}", partial(_used, name, use), graphs)


def _used(name: str, use: str) -> Callable[[], Any]:
    work = networks.sized(name, _SIZES.get(name)).to("kompute")
    return USED[use](work, memory.device().synchronize, torch.compile).run


def _adamw(count: int) -> Callable[[], Any]:
    """A compiled step of an optimizer of so many parameters."""
    parameters = [torch.nn.Parameter(torch.ones(8, 8, device="kompute")) for _ in range(count)]
    for p in parameters:
        p.grad = torch.ones(8, 8, device="kompute")
    step: Callable[[], Any] = torch.compile(torch.optim.AdamW(parameters, 1e-3).step)
    return step


def _repeated(call: Callable[[], Any]) -> Iterator[float]:
    """Seconds of this thread in each call. It runs the backward pass, too."""
    wait = memory.device().synchronize
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(_CALLS):
            wait()
            begin = time.thread_time()
            call()
            yield time.thread_time() - begin


def measure(case: Case, profiled: bool) -> None:
    """Print a line about it, and where the time goes."""
    torch._dynamo.reset()
    recorder, call = memory.device().runtime.recorder, case.make()
    last = 0
    for step in range(1, _STEPS + 1):
        before = recorder.dispatches
        call()
        if recorder.dispatches > before:
            last = step
    before = recorder.dispatches + recorder.replayed
    call()
    dispatches = recorder.dispatches + recorder.replayed - before
    us = min(_repeated(call)) * 1e6
    goal = 60 * case.graphs + 2 * dispatches if case.graphs else 30
    print(f"{case.name:18} {us:6.0f} us, goal {goal:5} us, {dispatches:4} dispatches, "
          f"recorded until step {last}", flush=True)
    if profiled:
        profile = cProfile.Profile(time.thread_time)
        profile.runcall(lambda: [*_repeated(call)])
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def main(*names: str) -> None:
    """Measure what the names begin."""
    wanted = tuple(n for n in names if not n.startswith("--")) or ("",)
    device = memory.device()
    print(f"{device.adapter.name}, {device.runtime.engine.description} kp")
    for case in _cases():
        if case.name.startswith(wanted):
            measure(case, "--profile" in names)
            gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
