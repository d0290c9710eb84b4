"""What regions are given, and where their results go, from call to call."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the provider is ONNX Runtime's")

from kompute_dml.bench import decoders, generator
from kompute_dml.onnxruntime.kernel import RegionKernel
from onnx_graphs import FLOAT, model, node
from provider_tools import session


def _doubled(rank: int) -> Any:
    sizes = [f"n{i}" for i in range(rank)]
    made = model([node("Add", "x x", "y")], [("x", FLOAT, sizes)], [("y", FLOAT, sizes)])
    return session(made, False, claim="all")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[RegionKernel]:
    """The kernels of the runs that ask for a plan."""
    kernels: list[RegionKernel] = []
    start = RegionKernel._start

    def count(self: RegionKernel, *arguments: Any) -> Any:
        kernels.append(self)
        return start(self, *arguments)

    monkeypatch.setattr(RegionKernel, "_start", count)
    return kernels


@pytest.mark.parametrize("rank", [0, 1, 8])
def test_sizes_of_every_rank(rank: int) -> None:
    """Rank 8 takes more words than are expected."""
    one = _doubled(rank)
    for n in (2, 3, 3, 2):
        x = np.arange(n**bool(rank), dtype=np.float32).reshape([n] * (rank > 0) + [1] * (rank - 1))
        np.testing.assert_array_equal(one.run(None, {"x": x})[0], x + x)


def test_sizes_that_only_change_places() -> None:
    one = _doubled(2)
    for sizes in ((2, 6), (6, 2), (6, 2), (3, 4), (12, 1)):
        x = np.arange(12, dtype=np.float32).reshape(sizes)
        y = one.run(None, {"x": x})[0]
        assert y.shape == sizes
        np.testing.assert_array_equal(y, x + x)


def test_a_run_of_known_sizes_is_not_planned(planned: list[RegionKernel]) -> None:
    one = session(model([node("Add", "x x", "y")], [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 3])]),
                  False, claim="all")
    for n in range(5):
        x = np.full((2, 3), n, np.float32)
        np.testing.assert_array_equal(one.run(None, {"x": x})[0], x + x)
    assert len(planned) == 1


def test_threads_have_inputs_of_their_own() -> None:
    one = _doubled(2)
    wrong = []

    def run(n: int) -> None:
        for i in range(20):
            x = np.full((n, 1 + i % 3), n * 100 + i, np.float32)
            if not np.array_equal(one.run(None, {"x": x})[0], x + x):
                wrong.append((n, i))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("captures", [False, True])
def test_tokens_of_another_capacity_are_not_planned_one_by_one(
    planned: list[RegionKernel], tmp_path: Path, captures: bool
) -> None:
    """The second capacity has a plan for many sizes."""
    shape = decoders.SHAPES["tiny-f16"]
    one = generator.ours(decoders.write_onnx(shape, tmp_path).path, shape,
                         **({"enable_graph_capture": True} if captures else {}))
    for capacity in (48, 64):
        one.begin(capacity, seed=1)
        bound = one.bind(1, graph=capacity if captures else None, fixed=captures)
        planned.clear()
        for n in range(8):
            one.step(bound, [[n]], n, None if captures else n + 1)
        assert len(planned) <= 1 + captures
