"""Libraries that do the same work beside the device: PyTorch, ONNX Runtime and NumPy.

PyTorch runs on the same GPU if CUDA has it. CUDA events time calls back to back. Short calls are
also timed as a CUDA graph, without the host's overhead. Other libraries, and PyTorch beside other
devices, run on the CPU and are timed by the host's clock.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..runtime.adapters import Adapter, same_device
from .case import Case, Peer
from .timing import Stats, repeats
from .values import Pattern

_SAMPLES = 20
_SAMPLE_MS = 2.0
_MAX_REPEAT = 50
_LONG_MS = 30.0
"""Of a longer call, only three samples are taken."""
_TOO_LONG_MS = 200.0
"""A longer call is made once."""
_GRAPH_MS = 0.25
"""A shorter call is also timed as a CUDA graph."""


@dataclass(frozen=True)
class PeerTime:
    """Milliseconds of one call, or why there are none."""

    ms: float | None = None
    spread: float | None = None
    problem: str = ""
    mib: float | None = None
    """The most MiB of the device that it uses at once, where that is measured."""


class NumPy:
    name = "numpy"
    on_host = True

    def times(self, call: Callable[[], object]) -> Iterator[tuple[str, Stats]]:
        """(suffix of the peer's name, statistics) for each way to call."""
        yield "", _statistics(call, _host_sample)

    def close(self) -> None:
        pass


class OnnxRuntime(NumPy):
    name = "onnxruntime"

    def session(
        self, op_type: str, inputs: Sequence[np.ndarray], domain: str = "", **attributes: object
    ) -> Callable[[], object]:
        """Runs one node on the CPU. Raises where ONNX Runtime has no such node."""
        import onnxruntime
        from onnx import ModelProto, helper

        feed = {f"x{i}": x for i, x in enumerate(inputs)}
        kinds = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in feed.items()}
        node = helper.make_node(op_type, list(feed), ["y"], domain=domain, **attributes)
        # Without output types: shape inference does not know com.microsoft's operators.
        graph = helper.make_graph(
            [node], "peer",
            [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in feed.items()],
            [helper.make_empty_tensor_value_info("y")],
        )
        model: ModelProto = helper.make_model(graph, ir_version=8, opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"])
        return lambda: session.run(None, feed)[0]


class Torch:
    name = "torch"

    def __init__(self, adapter: Adapter) -> None:
        import torch

        self.torch = torch
        ordinal = same_device(adapter, _uuids(torch)) if torch.cuda.is_available() else None
        self.cuda = ordinal is not None
        if self.cuda:
            torch.cuda.set_device(ordinal)
        self.place = "cuda" if self.cuda else "cpu"
        self.on_host = not self.cuda

    def send(self, array: np.ndarray) -> Any:
        # Always contiguous: a transposed view is meant to be stored transposed.
        return self.torch.from_numpy(np.array(array, order="C")).to(self.place)

    def tensor(self, pattern: Pattern) -> Any:
        """The same vector as the pattern's ``tensor``."""
        return self.send(pattern.block).repeat(pattern.repeats)[: pattern.count]

    def times(self, call: Callable[[], object]) -> Iterator[tuple[str, Stats]]:
        if not self.cuda:
            yield "", _statistics(call, _host_sample)
            return
        stats = _statistics(call, self._event_sample)
        yield "", stats
        if stats.median < _GRAPH_MS:
            repeat = repeats(stats.median, _SAMPLE_MS, _MAX_REPEAT)
            graph = self.graph(call, repeat)
            yield " (graph)", _statistics(graph, self._event_sample, repeat)

    def _event_sample(self, call: Callable[[], object], repeat: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeat):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeat

    def graph(self, call: Callable[[], object], repeat: int) -> Callable[[], Any]:
        """Replays a CUDA graph of so many calls."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # warm up: a capture allows no setup
            for _ in range(3):
                call()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for _ in range(repeat):
                call()
        return graph.replay

    def close(self) -> None:
        """Free the memory that PyTorch caches."""
        if self.cuda:
            self.torch.cuda.empty_cache()


def _uuids(torch: ModuleType) -> list[str]:
    """The UUIDs of PyTorch's devices. Old versions have none."""
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [str(getattr(device, "uuid", "")) for device in devices]


def _host_sample(call: Callable[[], object], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) * 1e3 / repeat


def _statistics(
    call: Callable[[], object], sample: Callable[[Callable[[], object], int], float],
    inside: int = 1
) -> Stats:
    """Statistics of calls that do the work ``inside`` times each. The first calls do not count."""
    first = sample(call, 1)
    if first > _TOO_LONG_MS:
        return Stats.of([first / inside])
    once = statistics.median(sample(call, 1) for _ in range(3))
    repeat = repeats(once, _SAMPLE_MS, _MAX_REPEAT)
    count = _SAMPLES if once * repeat < _LONG_MS else 3
    return Stats.of([sample(call, repeat) / inside for _ in range(count)])


LIBRARIES: dict[str, tuple[Callable[[Adapter], Any], tuple[str, ...]]] = {
    "torch": (Torch, ("torch",)),
    "onnxruntime": (lambda adapter: OnnxRuntime(), ("onnxruntime", "onnx")),
    "numpy": (lambda adapter: NumPy(), ("numpy",)),
}
"""By name: the library, and the modules that it needs."""


USUAL = "torch,onnxruntime"
"""The libraries to time where none is named."""


def named(names: str, known: Collection[str]) -> list[str]:
    """The names that commas separate. Those that are not ``known`` are an error."""
    wanted = list(filter(None, names.split(",")))
    for name in wanted:
        if name not in known:
            raise UnsupportedError(
                f"--peers: expected names of {', '.join(known)}, but got '{name}'")
    return wanted


def choose(names: str, adapter: Adapter) -> list[Any]:
    """The installed libraries among ``names``, which commas separate. Other names are an error.

    ``adapter`` is the device that they are compared with.
    """
    chosen = []
    for name in named(names, LIBRARIES):
        make, needed = LIBRARIES[name]
        if all(importlib.util.find_spec(package) for package in needed):
            chosen.append(make(adapter))
    return chosen


def measure(libraries: Sequence[Any], case: Case) -> dict[str, PeerTime]:
    """The time of each library for a case, after its values are checked."""
    times: dict[str, PeerTime] = {}
    for library in libraries:
        # A failure of a peer is a result.
        try:
            for peer in case.peers.get(library.name, lambda _: ())(library):
                times |= _measure_one(library, peer, case)
        except Exception as error:
            times[library.name] = PeerTime(problem=reason(error))
        library.close()
    return times


def _measure_one(library: NumPy | Torch, peer: Peer, case: Case) -> dict[str, PeerTime]:
    times: dict[str, PeerTime] = {}
    try:
        problem = case.check(peer.call()) if peer.checked else ""
        if problem:
            return {peer.name: PeerTime(problem=problem)}
        for suffix, stats in library.times(peer.call):
            times[peer.name + suffix] = PeerTime(stats.median, stats.spread)
    except Exception as error:
        # What calls from the host took stands, where a graph fails.
        times[f"{peer.name} (graph)" if times else peer.name] = PeerTime(problem=reason(error))
    return times


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
