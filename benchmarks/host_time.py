"""The host's time for decoders of 16 layers: `python benchmarks/host_time.py [LAYERS [LENGTHS]]`.

- A new length of caches that grow, and the same one again. One model has small operators, as
  optimum exports one. The other has those of opset 23, of which a decoder takes few.
- A replay of a decoder whose caches stay where they are, by ONNX Runtime with an IOBinding, with
  graph capture and without.

The models are narrow: their products take the device no time. Times are those of the calling
thread, without what it waits. `steady` are lengths for which memory and kernels are there; the
others lay out memory or meet another class of kernels.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

import kompute_dml as dml
from kompute_dml.bench import decoders, generator, growing
from kompute_dml.bench.decoders import Shape
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.region import Region

_FIRST = 3
"""The first length. Those up to a quarter of all are not counted."""
_GRAPH = 1
"""The number of the captured graph."""


class Times(NamedTuple):
    """Milliseconds of the calling thread."""

    plan: float
    launch: float


def run(region: Region, feed: Sequence[np.ndarray]) -> Times:
    """A run, as far as it takes the calling thread."""
    begin = time.thread_time()
    plan = region.plan(feed)
    planned = time.thread_time()
    plan.launch(feed)
    launched = time.thread_time()
    region.device.synchronize()
    return Times((planned - begin) * 1e3, (launched - planned) * 1e3)


def _print(what: str, times: Sequence[Times]) -> None:
    if times:
        plan, launch = (statistics.median(column) for column in zip(*times))
        mean = statistics.mean(map(sum, times))
        print(f"  {what:8}{len(times):5} runs: plan {plan:6.3f} ms and launch {launch:6.3f} ms, "
              f"both {statistics.median(map(sum, times)):6.3f} ms, in the mean {mean:6.3f} ms")


def new_lengths(device: dml.Device, shape: Shape, lengths: int, *, small: bool) -> None:
    """So many lengths of growing caches in turn."""
    rng = np.random.default_rng(0)
    graph = read(onnx.load_model_from_string(growing.decoder(shape, rng, small=small)))
    region = Region(device, fuse(graph), graph.inputs, graph.outputs)
    steady, others, again = list[Times](), list[Times](), list[Times]()
    known = None
    for past in range(_FIRST, _FIRST + lengths):
        values = growing.step(shape, past, rng)
        feed = [values[x.name] for x in graph.inputs]
        new, repeated = run(region, feed), run(region, feed)
        now = [(p.layouts, p.lowered, p.listed) for p in region._open.plans]
        if past >= _FIRST + lengths // 4:
            (steady if now == known else others).append(new)
            again.append(repeated)
        known = now
    print(f"growing caches, {shape.layers} layers, {len(graph.nodes)} nodes, "
          f"{len(region.plan(feed).variants)} dispatches:")
    _print("new", [*steady, *others])
    _print("steady", steady)
    _print("others", others)
    _print("again", again)


def replays(device: dml.Device, shape: Shape, tokens: int, *, captures: bool) -> None:
    """So many tokens with caches that stay where they are."""
    entries = {"enable_graph_capture": True} if captures else {}
    with tempfile.TemporaryDirectory() as folder:
        path = decoders.write_onnx(shape, Path(folder)).path
        one = generator.ours(path, shape, str(device.adapter.index), **entries)
    one.begin(tokens + 1, seed=1)
    bound = one.bind(1, graph=_GRAPH if captures else None, fixed=True)
    times = []
    for n in range(tokens):
        bound.ids.update_inplace(np.array([[n % shape.words]], np.int64))
        bound.lengths.update_inplace(np.array([n], np.int32))
        begin = time.thread_time()
        one.session.run_with_iobinding(bound.binding, bound.options)
        times.append((time.thread_time() - begin) * 1e3)
        bound.logits.numpy()  # waits
    print(f"replay, {shape.layers} layers, {'with' if captures else 'without'} capture: "
          f"{statistics.median(times[tokens // 4:]):6.3f} ms")


def main(layers: int = 16, lengths: int = 200) -> None:
    """Measure so many lengths, and as many replays."""
    shape = Shape("narrow", layers, 64, 4, 2, 16, 64, 128, 16, positions=lengths + _FIRST + 1)
    device = dml.Device()
    print(f"{device.adapter.name}, {device.runtime.engine.description} kp")
    for small in (False, True):
        new_lengths(device, shape, lengths, small=small)
    for captures in (True, False):
        replays(device, shape, lengths, captures=captures)
        gc.collect()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
