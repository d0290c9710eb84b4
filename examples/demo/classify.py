"""Real files, classified by an int8 model on the execution provider."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from tabulate import tabulate

from kompute_dml.errors import DmlError
from kompute_dml.runtime.adapters import Adapter
from real_models import Magika, quantized

_SHOWN = 16
"""Files in the table: first one of each kind."""
_MAX_DIFFERENCE = 1e-2
"""Of a score: rounding that differs before a value is quantized may move it by one step."""


def classify(
    adapter: Adapter, magika: Magika, files: Sequence[Path], closing: list[str]
) -> Iterator[bool]:
    """Yields what holds of the labels; nothing where ONNX Runtime cannot take the provider.

    ``closing`` gets the line with which the demonstration ends.
    """
    import kompute_dml.onnxruntime as kompute

    click.echo("\nThe whole model, quantized to 8 bits, in ONNX Runtime")
    with tempfile.TemporaryDirectory() as folder:
        try:
            kompute.register()
            path = quantized(magika.path, Path(folder) / "magika.onnx")
            ours, theirs = _sessions(path, adapter.index)
        except DmlError as error:
            click.echo(f"   left out: {error}")
            return
    given, nodes = _placement(ours)
    click.echo(f"   on the device: {len(given)} of {nodes} nodes, "
               f"{given.count('MatMulInteger')} matrix products among them")
    rows = [magika.features_of(path) for path in files]
    got, ms = _run(ours, rows)
    expected, cpu_ms = _run(theirs, rows)
    best, cpu_best = got.argmax(axis=1), expected.argmax(axis=1)
    first_of_kind = {i: n for n, i in reversed(list(enumerate(best)))}.values()
    shown = sorted(range(len(files)), key=lambda n: n not in first_of_kind)[:_SHOWN]
    table = [
        [files[n].name[:36], magika.labels[best[n]], ms[n], magika.labels[cpu_best[n]], cpu_ms[n]]
        for n in sorted(shown)
    ]
    table.append([f"median of all {len(files)} files", "", np.median(ms), "", np.median(cpu_ms)])
    headers = ["file", "on the device", "ms", "CPU provider", "ms"]
    text = tabulate(table, headers, tablefmt="simple", floatfmt=".2f")
    click.echo("\n".join(f"   {line}" for line in text.splitlines()))
    same = int((best == cpu_best).sum())
    difference = float(np.abs(got - expected).max())
    closing.append(f"One file takes {np.median(ms):.2f} ms on {adapter.name}, "
                   f"{np.median(cpu_ms):.2f} ms on ONNX Runtime's CPU provider"
                   + (": both are the same CPU, so this says nothing of a GPU"
                      if adapter.is_cpu else ""))
    yield verdict(f"{same} of {len(files)} files get the CPU provider's label", same == len(files))
    yield verdict(f"scores differ by {difference:.1e} at most", difference <= _MAX_DIFFERENCE)


def _sessions(path: str, adapter: int) -> tuple[Any, Any]:
    import onnxruntime

    import kompute_dml.onnxruntime as kompute

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of nodes that stay on the CPU
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return (
        kompute.session(path, session_options=options, adapter=adapter),
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]),
    )


def _placement(session: Any) -> tuple[list[str], int]:
    """The operators of the nodes that the device was given, and how many nodes there are."""
    parts = session.get_provider_graph_assignment_info()
    given = [n.op_type for p in parts if "CPU" not in p.ep_name for n in p.get_nodes()]
    return given, sum(len(p.get_nodes()) for p in parts)


def _run(session: Any, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, list[float]]:
    """The scores of every row, and the milliseconds of each run."""
    (name,) = [i.name for i in session.get_inputs()]
    session.run(None, {name: rows[0][None]})  # the first run makes the pipelines
    scores, times = [], []
    for row in rows:
        start = time.perf_counter()
        scores.append(session.run(None, {name: row[None]})[0][0])
        times.append((time.perf_counter() - start) * 1e3)
    return np.stack(scores), times


def verdict(text: str, holds: bool) -> bool:
    click.echo(f"   {'ok  ' if holds else 'FAIL'}  {text}")
    return holds
