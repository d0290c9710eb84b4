"""Caches that grow by a row: every length, in turn and in any order, gives the CPU's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx

import kompute_dml as dml
from kompute_dml.bench import growing
from kompute_dml.bench.decoders import Shape
from kompute_dml.compiler import CompiledOperator
from kompute_dml.graph.listed import MAX_BOUND
from kompute_dml.graph.open_plan import MAX_LISTINGS
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.region import MAX_PLANS, Region
from kompute_dml.runtime.kp_engine import CommandList, Dispatches
from onnx_graphs import cpu, needs_provider
from provider_tools import last_kernel, session
from tiny_decoders import KEY_HEADS, SIZE, WORDS, language_model

pytestmark = needs_provider
_LAYERS, _MOST = 4, 300


def test_all_lengths_in_any_order(tmp_path: Path, rng: np.random.Generator) -> None:
    path = str(language_model(tmp_path, shares=False, layers=_LAYERS) / "model.onnx")
    ours, theirs = session(path, claim="all"), cpu(path)
    region = last_kernel().region
    caches = [x.name for x in theirs.get_inputs() if x.name.startswith("past")]
    numbers = rng.standard_normal((len(caches), 1, KEY_HEADS, _MOST, SIZE), np.float32)
    up = [*range(1, _MOST + 1)]
    held: list[tuple[int, int]] = []
    for lengths in (up, up[::-1], rng.permutation(up).tolist()):
        for n in lengths:
            feed = {"input_ids": rng.integers(0, WORDS, (1, 1)), **{
                name: np.ascontiguousarray(x[:, :, :n]) for name, x in zip(caches, numbers)}}
            for name, y, expected in zip(theirs.get_outputs(), ours.run(None, feed),
                                         theirs.run(None, feed)):
                np.testing.assert_allclose(y, expected, 1e-4, 1e-4, err_msg=f"{name.name}, {n}")
        # One plan for the first length, one for all above 1, and one for 1 where it comes again:
        # a size of 1 repeats. Operators are lowered for a few classes of lengths.
        assert region.planned <= 3
        opened = region._open.plans
        assert len(opened) <= 2 and not any(plan.sized for plan in opened)
        assert sum(plan.lowered for plan in opened) <= 150
        assert sum(plan.layouts for plan in opened) <= 20
        assert sum(plan.nbytes for plan in opened) < 4 << 20
        assert any(plan.listed for plan in opened) == region.device.runtime.engine.records_many
        assert all(plan.listed <= MAX_LISTINGS for plan in opened)
        held.append((len(region._plans), len(region._shaders)))
    assert held == [held[0]] * 3 and held[0][0] == MAX_PLANS


@pytest.mark.parametrize("small", [False, True])
def test_lengths_that_run_together_record_anew_what_changes(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """Nothing waits between the lengths, so several are in flight. What stays of them is recorded
    in commands that all of them execute. Words that depend on a length come with its inputs."""
    shape = Shape("narrow", 4, 64, 4, 2, 16, 64, 128, 16, positions=64)
    model = onnx.load_model_from_string(growing.decoder(shape, rng, small=small))
    graphs = [read(model), read(model)]
    alone, region = (Region(own, fuse(g), g.inputs, g.outputs) for g in graphs)
    steps = {n: growing.step(shape, n, rng) for n in range(2, 60)}
    feeds = {n: [values[x.name] for x in graphs[0].inputs] for n, values in steps.items()}
    recorded: list[tuple[int, int]] = []
    record = CommandList.dispatch_all

    def note(self: CommandList, dispatches: Dispatches, groups: np.ndarray, push: np.ndarray
             ) -> None:
        recorded.append((groups.size, dispatches.count))
        record(self, dispatches, groups, push)

    with monkeypatch.context() as patch:
        patch.setenv("KOMPUTE_DML_DISABLE_PASSES", "open_sizes")
        expected = {n: alone.run(feed) for n, feed in feeds.items()}
    monkeypatch.setattr(CommandList, "dispatch_all", note)
    for _ in range(2):
        lengths = rng.permutation([*feeds]).tolist()
        moves = own.runtime.transfer.moves
        results = [(n, region.launch(feeds[n])) for n in lengths]
        moves = own.runtime.transfer.moves - moves
        for n, outputs in results:
            for y, numbers in zip(outputs, expected[n]):
                assert y is not None
                np.testing.assert_allclose(y.values(), numbers, 1e-4, 1e-4, err_msg=f"{n}")
    assert bool(recorded) == own.runtime.engine.records_many
    assert moves == 0 or not recorded
    assert all(2 * anew < count for anew, count in recorded)


def test_kernels_that_came_before_stay_bound(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths whose kernels differ come in any order. However many choices of kernels there are,
    each is recorded by one call where it came before."""
    shape = Shape("narrow", 2, 64, 4, 2, 16, 64, 128, 16, positions=160)
    graph = read(onnx.load_model_from_string(growing.decoder(shape, rng, small=False)))
    region = Region(own, fuse(graph), graph.inputs, graph.outputs)
    alone: list[int] = []
    run_alone = CompiledOperator.run

    def note(self: CompiledOperator, *places: Any) -> None:
        alone.append(1)
        run_alone(self, *places)

    def run(n: int) -> None:
        values = growing.step(shape, n, rng)
        region.launch([values[x.name] for x in graph.inputs])
        own.synchronize()

    lengths = [*range(97, 145)]
    for n in lengths:
        run(n)
    assert sum(plan.listed for plan in region._open.plans) > MAX_BOUND or (
        not own.runtime.engine.records_many)
    run(max(lengths))  # the memory is that of the largest one
    for n in lengths:
        run(n)
    monkeypatch.setattr(CompiledOperator, "run", note)
    for _ in range(3):
        for n in rng.permutation(lengths).tolist():
            run(n)
    assert bool(alone) != own.runtime.engine.records_many
