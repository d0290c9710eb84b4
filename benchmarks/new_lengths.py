"""The host's time for a new length of a decoder with growing caches, and for the same one again:
`python benchmarks/new_lengths.py [LAYERS [LENGTHS]]`.

The model is that of small operators, as optimum exports one, and narrow: its products take the
device no time. Times are those of the calling thread, without what it waits. `steady` are lengths
for which memory and kernels are there; the others lay out memory or meet another class of kernels.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx

import kompute_dml as dml
from kompute_dml.bench import growing
from kompute_dml.bench.decoders import Shape
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.region import Region

_FIRST = 3
"""The first length. Those up to a quarter of all are not counted."""


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
        print(f"{what:8}{len(times):5} runs: plan {plan:6.3f} ms and launch {launch:6.3f} ms, "
              f"both in the mean {mean:6.3f} ms")


def main(layers: int = 16, lengths: int = 200) -> None:
    """Measure so many lengths in turn."""
    shape = Shape("narrow", layers, 64, 4, 2, 16, 64, 128, 16)
    rng, device = np.random.default_rng(0), dml.Device()
    graph = read(onnx.load_model_from_string(growing.decoder(shape, rng)))
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
    print(f"{device.adapter.name}, {device.runtime.engine.description} kp: {layers} layers, "
          f"{len(graph.nodes)} nodes, {len(region.plan(feed).variants)} dispatches")
    _print("new", [*steady, *others])
    _print("steady", steady)
    _print("others", others)
    _print("again", again)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
