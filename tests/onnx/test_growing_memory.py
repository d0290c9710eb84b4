"""What plans for many sizes hold, and what is left when their sessions go."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx import region as region_module
from kompute_dml.onnx.region import MAX_PLANS
from onnx_graphs import FLOAT, cpu, model, needs_provider, node
from provider_tools import last_kernel, session

pytestmark = needs_provider


def _built(rng: np.random.Generator) -> bytes:
    constants = {"w": rng.standard_normal((32, 32)).astype(np.float32)}
    return model(
        [node("MatMul", "x w", "a"), node("Softmax", "a", "b"), node("MatMul", "b w", "c"),
         node("Relu", "c", "y")], [("x", FLOAT, ["n", 32])], [("y", FLOAT, ["n", 32])], constants)


def _run(made: Any, n: int) -> None:
    y = made.run(None, {"x": np.ones((n, 32), np.float32)})[0]
    assert y.shape == (n, 32)


def test_many_sizes_hold_no_more_than_a_few(rng: np.random.Generator) -> None:
    made = session(_built(rng), False, claim="all")
    region = last_kernel().region
    held = []
    for n in (100, *range(1, 81)):  # many rows have other kernels
        _run(made, n)
        if n in (40, 80):
            gc.collect()
            held.append((len(region._plans), len(region._shaders)))
    assert held[0] == held[1] and held[0][0] == MAX_PLANS
    # Sizes of the last 16 plans are larger than those of the first.
    assert sum(plan.nbytes for plan in region._plans.values()) < MAX_PLANS * 6 * 80 * 32 * 4


def test_filters_are_prepared_once_for_all_sizes(rng: np.random.Generator) -> None:
    constants, nodes, x, channels = {}, [], "x", 3
    for n, wide in enumerate((16, 32, 32)):
        constants[f"w{n}"] = rng.standard_normal((wide, channels, 3, 3), np.float32) / 9
        nodes.append(node("Conv", f"{x} w{n}", f"y{n}", pads=[1] * 4, strides=[1 + n % 2] * 2))
        x, channels = f"y{n}", wide
    built = model(nodes, [("x", FLOAT, [1, 3, "h", "w"])], [(x, FLOAT, None)], constants)
    made, theirs = session(built, False, claim="all"), cpu(built)
    region, counts = last_kernel().region, []
    for n in range(24):
        feed = {"x": rng.standard_normal((1, 3, 20 + 3 * n, 90 - 2 * n), np.float32)}
        np.testing.assert_allclose(
            made.run(None, feed)[0], theirs.run(None, feed)[0], rtol=1e-4, atol=1e-4)
        counts.append(len(region._prepared))
    assert counts[4] == counts[-1] <= 2 * len(constants), "kernels of two classes of sizes"


def test_plans_are_bounded_by_bytes(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(_built(rng), False, claim="all")
    region = last_kernel().region
    _run(made, 64)
    one = next(iter(region._plans.values())).nbytes
    assert one >= 2 * 64 * 32 * 4, "the input and the output"
    monkeypatch.setattr(
        region_module, "PLANS_SHARE", region.device.adapter.device_memory // (3 * one))
    for n in (60, 61, 62, 63, 60, 59):
        _run(made, n)
        assert sum({plan.memory_of: plan.nbytes for plan in region._plans.values()}.values()) <= (
            3.01 * one)
    assert len({plan.memory_of for plan in region._plans.values()}) == 2, (
        "that of the first sizes, and that of all others")
    _run(made, 4096)
    assert len(region._plans) == 1, "the newest plan stays, however large it is"


def test_what_no_session_uses_goes_with_the_last_one(rng: np.random.Generator) -> None:
    built = _built(rng)
    first, second = (session(built, False, claim="all") for _ in range(2))
    runtime = last_kernel().region.device.runtime
    runtime.collect()
    for n in (3, 40):
        _run(first, n)
        _run(second, n)
    used = set(last_kernel().region._shaders)
    bytes_of_both = runtime.heap.used
    assert used <= runtime.pipelines._compiled.keys() | {
        key[:2] for key in runtime.pipelines._cache}
    del first
    gc.collect()
    assert used <= runtime.pipelines._users.keys(), "the second session still uses them"
    assert runtime.heap.used < bytes_of_both
    _run(second, 3)
    bytes_of_one = runtime.heap.used
    del second
    gc.collect()
    assert not used & runtime.pipelines._users.keys()
    assert not used & runtime.pipelines._compiled.keys()
    assert not used & {key[:2] for key in runtime.pipelines._cache}
    assert runtime.heap.used < bytes_of_one
    third = session(built, False, claim="all")
    _run(third, 3)
