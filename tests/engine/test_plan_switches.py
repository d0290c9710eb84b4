"""What a graph does besides fusing operators, each with the switch that turns it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.runtime.kp_engine import CommandList
from test_convolution import EveryWork

SWITCH = "KOMPUTE_DML_DISABLE_PASSES"
UNFUSED = "elementwise_fusion,epilogue"
Build = Callable[..., Any]


def _run(device: dml.Device, build: Build, *arrays: np.ndarray) -> tuple[Any, Any]:
    with dml.Graph(device) as g:
        run = g.compile(build(*[g.input(a.shape, a.dtype) for a in arrays]))
    return run, run(*arrays)


def _both(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, build: Build, name: str,
    *arrays: np.ndarray, always: str = "",
) -> tuple[Any, Any]:
    """The graph with and without what ``name`` stands for. The results are the same bits."""
    monkeypatch.setenv(SWITCH, always)
    run, result = _run(device, build, *arrays)
    monkeypatch.setenv(SWITCH, f"{always},{name}")
    without, other = _run(device, build, *arrays)
    np.testing.assert_array_equal(result, other)
    return run, without


def _softmaxes(x: Any) -> Any:
    for _ in range(4):
        x = dml.activation_softmax1(x)
    return x


def test_values_share_memory(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((64, 64), np.float32)
    run, without = _both(device, monkeypatch, _softmaxes, "memory", x, always="in_place")
    assert run.memory.planned == 2 * x.nbytes and without.memory.planned == 3 * x.nbytes
    assert run.memory.alive == without.memory.alive == 2 * x.nbytes
    assert str(without.memory).endswith("(1.50)")


def test_operators_write_over_their_inputs(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((64, 64), np.float32)

    def build(x: Any) -> Any:
        return dml.abs(dml.sqrt(dml.abs(dml.sqrt(x))))

    run, without = _both(device, monkeypatch, build, "in_place", x, always=UNFUSED)
    assert run.memory.planned == x.nbytes and without.memory.planned == 2 * x.nbytes


def test_constants_are_repacked_once(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = (rng.integers(-9, 9, s).astype(np.float32) for s in ((1, 40, 9, 8), (36, 40, 3, 3)))
    with tuning.trial(EveryWork("t64-1")):
        run, without = _both(own, monkeypatch, lambda x: dml.convolution(x, w), "repacking", x)
    inputs = [{o.slot for c, _ in g._plan._steps for d in c.plan.execute for o in d.operands}
              for g in (run, without)]
    assert "filter_tensor" not in inputs[0] and "filter_tensor" in inputs[1]


def test_branches_run_without_barriers(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four operators that do not depend on one another, and one that joins them."""
    if not own.runtime.engine.records_barriers:
        pytest.skip("this kp records no barriers")
    counts: list[int] = []
    real = CommandList.barrier

    def barrier(self: CommandList, buffers: list[Any]) -> None:
        counts[-1] += 1
        real(self, buffers)

    monkeypatch.setattr(CommandList, "barrier", barrier)
    x = np.ones((8, 8), np.float32)

    def build(x: Any) -> Any:
        return dml.join([dml.activation_softmax1(x) for _ in range(4)], axis=0)

    for name in ("common_subexpressions", "common_subexpressions,branches"):
        monkeypatch.setenv(SWITCH, name)
        counts.append(0)
        run, _ = _run(own, build, x)
    assert counts[1] - counts[0] == 3 and run.operators == ["ACTIVATION_SOFTMAX1"] * 4


def test_what_is_computed_twice(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two softmaxes of equal sums, and constants of equal values. Another axis is another value."""
    def build(x: Any) -> Any:
        sums = [dml.add(x, np.full((1, 1), 2, np.float32)) for _ in range(3)]
        first, second = (dml.activation_softmax1(s, axes=(1,)) for s in sums[:2])
        return dml.multiply(first, second), dml.activation_softmax1(sums[2], axes=(0,))

    x = rng.normal(0, 1, (6, 8)).astype(np.float32)
    found = []
    for name in (UNFUSED, f"{UNFUSED},common_subexpressions"):
        monkeypatch.setenv(SWITCH, name)
        run, results = _run(device, lambda x: list(build(x)), x)
        found.append((run.operators, results))
    (operators, results), (plain, others) = found
    assert len(operators) == 4 and len(plain) == 7
    for ours, theirs in zip(results, others):
        np.testing.assert_array_equal(ours, theirs)


SLICED: dict[str, Build] = {
    "SLICE": lambda x: dml.activation_softmax1(
        dml.slice(x, offsets=(2, 0), sizes=(4, 8), strides=(2, 1))),
    "SLICE1": lambda x: dml.activation_softmax1(dml.slice1(
        x, input_window_offsets=(1, 4), input_window_sizes=(6, 4), input_window_strides=(1, 1))),
    "SPLIT": lambda x: [dml.activation_softmax1(y) for y in dml.split(x, sections=2, axis=0)],
    "TILE": lambda x: dml.activation_softmax1(
        dml.tile(dml.reduce(x, axes=(0,), function="SUM"), repeats=(3, 1))),
}


@pytest.mark.parametrize("name", SLICED)
def test_views_instead_of_copies(
    name: str, device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.normal(0, 1, (10, 8)).astype(np.float32)
    run, without = _both(device, monkeypatch, SLICED[name], "view_propagation", x)
    assert name not in run.operators and name in without.operators


@pytest.mark.parametrize("build", [
    lambda x: dml.slice(x, offsets=(2, 0), sizes=(4, 8), strides=(2, 1)),
    lambda x: dml.activation_softmax1(
        dml.slice(x, offsets=(0, 1), sizes=(4, 4), strides=(1, 2))),
    lambda x: dml.activation_softmax1(dml.slice1(
        x, input_window_offsets=(0, 0), input_window_sizes=(10, 8),
        input_window_strides=(-1, 1))),
], ids=["an output", "gaps between neighbours", "backwards"])
def test_copies_that_stay(build: Build, device: dml.Device) -> None:
    run, _ = _run(device, build, np.ones((10, 8), np.float32))
    assert run.operators[0].startswith("SLICE")
