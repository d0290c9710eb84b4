"""Tokens a second of decoders with random weights, beside llama.cpp, PyTorch and WebGPU.

Each model is made where it is measured, as ONNX and as GGUF, and removed afterwards. A small one is
compared with ONNX Runtime's CPU provider first.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from . import decoders, generator
from .decoder_peers import (
    CONTEXTS,
    PACKAGES,
    PROMPT,
    TOKENS,
    measured,
    median_rate,
    prompt_of,
    rate,
)
from .peers import named
from .rows import Judged, UseRow, in_time

USUAL = ",".join(PACKAGES)
MODELS = ("1B-q4", "8B-q4", "1B-f16", "1B-q4-long")
"""The models of the suite, and which one tries it on a CPU driver."""
SMALL = ("tiny-q4", "tiny-f16")
_BATCH, _LONG = 16, 32768
_SMALL_PROMPT, _SMALL_CONTEXTS, _SMALL_TOKENS = 32, (32, 128), 4
_PEER_SECONDS = 120.0
_BOUND = 1e-2
"""How far logits may be from the CPU provider's, as a part of the largest."""
_GOALS: dict[str, tuple[tuple[str, float], ...]] = {
    "decode": (("llama.cpp", 1.4),), "captured": (("llama.cpp", 1.4),),
    "prompt": (("llama.cpp", 1.5),)}
"""By the first word of a row: libraries, and how many times as fast to be."""


class PeerRate(NamedTuple):
    """Tokens a second of a library, or why there are none."""

    rate: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class GenerationRow(UseRow):
    """Tokens a second of a model in one use."""

    model: str
    types: str
    use: str
    """``prompt 512``, ``decode 4096`` (tokens that were there before), ``captured 512``."""
    values: str
    """``ok``, or what is wrong."""
    rate: float | None = None
    ms: float | None = None
    """Milliseconds of a token."""
    first_ms: float | None = None
    """The first step of such a size, with its plan."""
    peers: dict[str, PeerRate] = field(default_factory=dict)
    goals: tuple[Judged, ...] = ()
    timings: None = None

    def judged(self, peers: dict[str, PeerRate]) -> GenerationRow:
        """The row beside other libraries."""
        goals = tuple(
            Judged(name, least, self.rate / other if self.rate and other else None)
            for name, least in _GOALS.get(self.use.split()[0], ())
            for other in [peers[name].rate if name in peers else None])
        return dataclasses.replace(self, peers=peers, goals=goals)


class GenerationBench:
    """Measures decoders on an adapter."""

    def __init__(self, adapter: str, names: str) -> None:
        """``names`` of libraries, which commas separate."""
        self._adapter = adapter
        self.left_out: list[str] = []
        """A line about each library that is left out, or that failed."""
        self._peers = []
        for name in named(names, PACKAGES):
            if importlib.util.find_spec(PACKAGES[name].partition(".")[0]):
                self._peers.append(name)
            else:
                self.left_out.append(f"{name} is left out: it is not installed")

    def run(self, names: Sequence[str], seconds: float) -> Iterator[GenerationRow]:
        """The rows of these models. After so many seconds none is begun."""
        end = time.monotonic() + seconds
        begun = in_time(names, str, seconds, self.left_out)
        for name in SMALL:
            with _Folder(decoders.SHAPES[name]) as folder:
                yield self._compared(decoders.SHAPES[name], folder)
        for name in begun:
            shape = decoders.SHAPES[name]
            with _Folder(shape) as folder:
                rows = [*self._rows(shape, folder)]
                gc.collect()  # the device's memory is for the others now
                peers: dict[str, dict[str, Any]] = {}
                for peer in self._peers:
                    if shape.positions > _LONG or time.monotonic() > end:
                        continue
                    peers[peer] = rates = measured(peer, shape, folder, _PEER_SECONDS)
                    if "problem" in rates:
                        self.left_out.append(f"{peer} {name}: {rates['problem']}")
            for row in rows:
                use = row.use.replace("captured", "decode")
                yield row.judged({peer: PeerRate(rates[use]) for peer, rates in peers.items()
                                  if use in rates})

    def _compared(self, shape: decoders.Shape, folder: Path) -> GenerationRow:
        """A prompt and tokens beside the CPU provider."""
        ids = prompt_of(shape, 8)[None]
        logits = []
        for one in (generator.ours(folder / "model.onnx", shape, self._adapter),
                    generator.on_cpu(folder / "model.onnx", shape)):
            one.begin(32)
            steps = [one.step(one.bind(8), ids, 0, 8)]
            bound = one.bind(1)
            steps += [one.step(bound, [[n + 1]], 8 + n, 9 + n) for n in range(4)]
            logits.append(np.stack(steps).astype(np.float32))
        off = float(np.abs(logits[0] - logits[1]).max() / np.abs(logits[1]).max())
        said = "ok" if off <= _BOUND else f"off by {off:.1e}"
        return GenerationRow(shape.name, shape.kind, "values", said)

    def _rows(self, shape: decoders.Shape, folder: Path) -> Iterator[GenerationRow]:
        small = shape.name in SMALL
        prompt, contexts = ((_SMALL_PROMPT, _SMALL_CONTEXTS) if small else (PROMPT, CONTEXTS))
        tokens = _SMALL_TOKENS if small else TOKENS
        long = shape.positions > _LONG
        uses = [("decode", contexts[0], 1), ("decode", _LONG, 1), ("captured", _LONG, 1)] if (
            long) else [
            ("prompt", prompt, 1), *[("decode", n, 1) for n in contexts],
            *[("captured", n, 1) for n in contexts], ("decode", contexts[0], _BATCH)]
        sessions: dict[bool, generator.TokenGenerator] = {}
        for use, count, batches in uses:
            captures = use == "captured"
            label = f"{use} {count}" + (f" x {batches}" if batches > 1 else "")
            try:
                if captures not in sessions:
                    sessions.clear()
                    gc.collect()
                    sessions[captures] = generator.ours(
                        folder / "model.onnx", shape, self._adapter,
                        **({"enable_graph_capture": True} if captures else {}))
                yield self._timed(sessions[captures], use, count, batches, tokens, label)
            except Exception as error:  # of ONNX Runtime, whose classes have nothing in common
                said = " ".join(str(error).split())[-200:]
                yield GenerationRow(shape.name, shape.kind, label, said)

    @staticmethod
    def _timed(one: generator.TokenGenerator, use: str, count: int, batches: int, tokens: int,
               label: str) -> GenerationRow:
        shape = one.shape
        begin = time.perf_counter()
        if use == "prompt":
            one.begin(count + 2 * tokens)
            ids, bound = prompt_of(shape, count)[None], one.bind(count)
            one.step(bound, ids, 0, count)
            first = time.perf_counter() - begin
            a_second = median_rate(lambda: one.step(bound, ids, 0, count), count)
        else:
            captures = use == "captured"
            one.begin(count + 2 * tokens, batches, seed=1)
            bound = one.bind(1, graph=count if captures else None, fixed=captures)

            def step(n: int) -> None:
                ids = np.full((batches, 1), n % shape.words)
                one.step(bound, ids, count + n, None if captures else count + n + 1)

            begin = time.perf_counter()
            step(0)
            first = time.perf_counter() - begin
            a_second = batches * rate(step, tokens)
        return GenerationRow(
            shape.name, shape.kind, label, "ok", a_second, 1e3 / a_second, first * 1e3)


class _Folder:
    """A folder with a decoder, as long as it is measured."""

    def __init__(self, shape: decoders.Shape) -> None:
        self._shape = shape
        self._path = Path(tempfile.mkdtemp(prefix="decoder-"))

    def __enter__(self) -> Path:
        written = decoders.write_onnx(self._shape, self._path)
        (self._path / "parts.json").write_text(json.dumps(written.parts))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def as_table(rows: Sequence[GenerationRow]) -> str:
    """Tokens a second of each, and of the libraries beside."""
    def number(x: float | None) -> str:
        return "-" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.1f}"

    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    return tabulate(
        [(row.model, row.use, number(row.rate),
          *(number(row.peers[n].rate if n in row.peers else None) for n in names),
          number(row.first_ms),
          row.times_a_peer)
         for row in rows],
        headers=("model", "use", "tokens/s", *names, "first ms", "times a peer"),
        colalign=("left", "left", *("right",) * (2 + len(names)), "left"), disable_numparse=True)
