"""The device's time in each kernel of whole models, by sizes.

    python benchmarks/model_profile.py esrgan:FLOAT16 swin_t:FLOAT16 [--peer] [--lines 40]

The models are those of ``kompute-dml bench --suite models`` whose names begin so. A line is all
dispatches of a variant for one operator of the same sizes: their count in a run, microseconds, and
what multiplications and bytes make of these. Each dispatch has a pair of timestamps, which costs
some time of its own; "whole" is the time of a run between two timestamps. ``waits`` are
dispatches that wait for others. ``--peer`` times PyTorch, too, by calls and as a CUDA graph.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from kompute_dml import onnxruntime as kompute
from kompute_dml.bench import architectures, models, peers, sessions
from kompute_dml.bench.timing import Clock, Loop
from kompute_dml.compiler import CompiledOperator
from kompute_dml.desc import TensorDesc
from kompute_dml.device import Device
from kompute_dml.layout import product
from kompute_dml.operators.base import OperatorDesc
from kompute_dml.runtime import adapters
from kompute_dml.runtime.recorder import Recorder

RUNS = 7


class _Labels:
    """Names dispatches by the operator that records them, too."""

    def __init__(self) -> None:
        self.operator, self.whole = "", False
        self.work: dict[str, tuple[float, float]] = {}
        """Operations and bytes of each operator."""

    def install(self) -> None:
        run, record, times = CompiledOperator.run, Recorder.dispatch, Device.time
        order = Recorder._order
        waits = False

        def named_run(operator: CompiledOperator, places: Any) -> None:
            desc = operator.operator.desc
            self.operator = _label(desc)
            self.work[self.operator] = _operations(desc), _bytes(desc)
            try:
                run(operator, places)
            finally:
                self.operator = ""

        def noting_order(recorder: Recorder, batch: Any, accesses: Any, conflict: Any) -> None:
            nonlocal waits
            waits = bool(conflict)
            order(recorder, batch, accesses, conflict)

        def named_record(recorder: Recorder, pipeline: Any, groups: int, push: Any, accesses: Any,
                         name: str, **more: Any) -> None:
            # The name is noted after the order: a list of one is read late.
            before = len(recorder._recorded.names) if recorder._recorded is not None else 0
            record(recorder, pipeline, groups, push, accesses, name, **more)
            batch = recorder._recorded
            if self.operator and batch is not None and len(batch.names) > before:
                end, _ = batch.names[-1]
                batch.names[-1] = end, json.dumps([name, self.operator, groups, waits])

        def timed(device: Device, work: Callable[[], object], *more: Any) -> Any:
            return [("whole", device.elapsed(work))] if self.whole else times(device, work, *more)

        CompiledOperator.run = named_run  # type: ignore[method-assign]
        Recorder._order = noting_order  # type: ignore[method-assign]
        Recorder.dispatch = named_record  # type: ignore[method-assign]
        Device.time = timed  # type: ignore[method-assign]


def _tensors(desc: OperatorDesc) -> dict[str, TensorDesc]:
    every = {}
    for name, value in desc.__dict__.items():
        for i, one in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(one, TensorDesc):
                every[f"{name}{i or ''}"] = one
    return every


def _label(desc: OperatorDesc) -> str:
    def of(t: TensorDesc) -> str:
        last = "" if len(t.sizes) < 3 or t.strides[1] != 1 else f"/{t.strides[-1]}"
        return "x".join(map(str, t.sizes)) + last

    tail = getattr(desc, "tail", None) or ()
    window = "".join(f" {name[0]}{product(v)}" for name in ("strides", "dilations")
                     if isinstance(v := getattr(desc, name, None), tuple) and product(v) > 1)
    sizes = " ".join(of(t) for t in _tensors(desc).values())
    return (f"{desc.operator.short_name}{window} {sizes}"[:110]
            + (f" +{len(tail)}" if tail else ""))


def _operations(desc: OperatorDesc) -> float:
    t = _tensors(desc)
    y = t.get("output_tensor")
    if y is None:
        return 0.0
    if (w := t.get("filter_tensor")) is not None:
        return 2.0 * product(y.sizes) * product(w.sizes[1:])
    if (a := t.get("a_tensor")) is not None and "b_tensor" in t and "GEMM" in desc.operator.name:
        return 2.0 * product(y.sizes) * min(a.sizes[-1], a.element_count // product(y.sizes[:-1]))
    return 0.0


def _bytes(desc: OperatorDesc) -> float:
    return sum(min(t.element_count * t.data_type.itemsize, t.total_tensor_size_in_bytes)
               for t in _tensors(desc).values())


def _events(path: Path, feed: dict[str, Any], labels: _Labels) -> tuple[list[Any], list[float]]:
    """The dispatches of each run, and microseconds of whole runs."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        session = kompute.session(str(path), claim="all", profile=trace)
        for labels.whole in (False, True):
            for _ in range(RUNS + 1):
                sessions.run(session, feed)
        del session  # writes the trace
        gc.collect()
        events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    runs: list[Any] = []
    for event in events:
        if event.get("cat") == "region":
            runs.append([])
        elif event.get("cat") == "dispatch":
            runs[-1].append((event["name"], event["dur"]))
    return runs[1 : RUNS + 1], [sum(us for _, us in run) for run in runs[RUNS + 2 :]]


def _profile(runs: list[Any], labels: _Labels, most: int) -> tuple[float, int, int]:
    """Print the table. Microseconds of a run, its dispatches, and those that wait."""
    took: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    waiting: dict[tuple[str, str, int], int] = defaultdict(int)
    for run in runs:
        for name, us in run:
            variant, operator, groups, waits = (
                json.loads(name) if name.startswith("[") else (name, "", 0, True))
            key = variant, operator, groups
            took[key].append(us)
            waiting[key] += waits
    count = len(runs)
    total = sum(map(sum, took.values())) / count
    rows = []
    for key in sorted(took, key=lambda k: -sum(took[k])):
        variant, operator, groups = key
        each = statistics.median(took[key])
        operations, nbytes = labels.work.get(operator, (0.0, 0.0))
        rows.append((f"{sum(took[key]) / count:.1f}", f"{len(took[key]) / count:g}",
                     f"{each:.2f}", f"{waiting[key] / count:g}",
                     f"{operations / each / 1e6:.1f}" if operations else "",
                     f"{nbytes / each / 1e3:.0f}", groups, variant, operator))
    print(tabulate(rows[:most], ("us", "n", "each", "waits", "TF", "GB/s", "groups", "variant",
                                 "operator"), tablefmt="plain", disable_numparse=True))
    by_variant: dict[str, list[float]] = defaultdict(list)
    for (variant, _, _), times in took.items():
        by_variant[variant] += times
    print("\nby variant:", "; ".join(
        f"{v} {sum(t) / count:.0f} us / {len(t) / count:g}"
        for v, t in sorted(by_variant.items(), key=lambda item: -sum(item[1]))))
    return (total, sum(map(len, took.values())) // count, sum(waiting.values()) // count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="NAME:TYPE, where NAME is a name's beginning")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--lines", type=int, default=40)
    asked = parser.parse_args()
    labels = _Labels()
    labels.install()
    rows = []
    opened = sessions.ready(lambda: sessions.ours(""))
    library = None
    if asked.peer:
        library = peers.Torch(adapters.choose())
        library.torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        for wanted in asked.models:
            begin = time.perf_counter()
            name, _, types = wanted.partition(":")
            kind = next(k for k in architectures.kinds()
                        if k.name.startswith(name) and k.types == (types or "FLOAT16"))
            try:
                model = kind.make(Path(folder))
                assert isinstance(model, models.BenchModel)
                runs, whole = _events(model.path, model.feed, labels)
                print(f"\n== {kind.name} {kind.types}")
                total, count, waits = _profile(runs, labels, asked.lines)
                session = opened(model.path)
                off = models._off_by(sessions.run(session, model.feed), model.expected)
                walls = []
                for _ in range(20):
                    start = time.perf_counter()
                    sessions.run(session, model.feed)
                    walls.append((time.perf_counter() - start) * 1e3)
                del session
                beside: dict[str, Any] = {}
                if library is not None and model.torch is not None:
                    beside = models._torch(library, model, _clock)
                graph = beside.get("torch (graph)")
                rows.append((
                    kind.name, kind.types, f"{statistics.median(walls):.3f}",
                    f"{statistics.median(whole) / 1e3:.3f}", f"{total / 1e3:.3f}", count, waits,
                    f"{off:.1e}", graph and ((graph.ms and f"{graph.ms:.3f}") or graph.problem),
                    f"{time.perf_counter() - begin:.0f}"))
            except Exception as error:  # the next model is profiled all the same
                rows.append((kind.name, kind.types, repr(error)[:80]))
            print(rows[-1], flush=True)
    print()
    print(tabulate(rows, ("model", "type", "wall ms", "device ms", "each", "dispatches", "waits",
                          "off by", "graph ms", "s"), disable_numparse=True))


def _clock(call: Callable[[], object]) -> Clock:
    return models.measure(models._Host, call, Loop(20, warmup=1)).cpu


if __name__ == "__main__":
    main()
