"""Sizes that the device has no room for: the region runs on ONNX Runtime's CPU kernels."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime as ort
import pytest

import kompute_dml.onnxruntime as kompute
from kompute_dml.device import shared_device
from onnx_graphs import FLOAT, cpu, model, needs_provider, node
from provider_tools import session

pytestmark = needs_provider


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of the device hold 64 KiB."""
    monkeypatch.setattr(shared_device(None).runtime.engine, "max_buffer", 1 << 16)


def _joined(rng: np.random.Generator) -> bytes:
    """Attributes and constants of all kinds, and a Concat of three times the input's bytes."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("BatchNormalization", "c s b m v", "n"),
        node("LeakyRelu", "n", "l", alpha=0.25), node("Concat", "x l x", "j", axis=1),
        node("Resize", "j - scales", "r", mode="nearest", nearest_mode="floor"),
        node("GlobalAveragePool", "r", "y")]
    return model(nodes, [("x", FLOAT, ["n", 4, "h", "w"])],
                 [("y", FLOAT, None)], {
        "w": rng.standard_normal((4, 4, 3, 3)).astype(np.float32),
        **{name: rng.uniform(0.5, 1, 4).astype(np.float32) for name in "sbmv"},
        "scales": np.float32([1, 1, 2, 2])}, opset=19)


@pytest.mark.parametrize("memory", ["device", "host"])
def test_other_sizes_run_on_the_cpu(
    small_buffers: None, memory: str, rng: np.random.Generator
) -> None:
    built = _joined(rng)
    ours, theirs = session(built, claim="all", strict=True, memory=memory), cpu(built)
    said = []
    for side in (8, 40, 8, 40, 48):
        x = {"x": rng.standard_normal((1, 4, side, side)).astype(np.float32)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (y,) = ours.run(None, x)
        said.append([str(w.message).startswith("a region runs on the CPU") for w in caught])
        np.testing.assert_allclose(y, theirs.run(None, x)[0], rtol=1e-5, atol=1e-6)
    assert said == [[], [True], [], [], [True]]


def test_tensors_on_the_device_go_through_the_host(
    small_buffers: None, rng: np.random.Generator
) -> None:
    built = model([node("Concat", "x x", "y", axis=0), node("ReduceMax", "y", "z", keepdims=1)],
                  [("x", FLOAT, ["n"])], [("z", FLOAT, None)])
    made = session(built, claim="all", strict=True)
    x = np.arange(10_000, dtype=np.float32)
    place = ("gpu", 0, kompute.VENDOR_ID)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, *place))
    z = ort.OrtValue.ortvalue_from_shape_and_type([1], np.float32, *place)
    binding.bind_ortvalue_output("z", z)
    with pytest.warns(UserWarning, match="runs on the CPU .* which holds 65536 bytes"):
        made.run_with_iobinding(binding)
    np.testing.assert_array_equal(z.numpy(), [x.max()])


def test_known_sizes_make_a_session_all_the_same(
    small_buffers: None, rng: np.random.Generator
) -> None:
    """Where no node's value alone is too large for a claim."""
    built = model([node("Conv", "x w", "y")], [("x", FLOAT, [1, 16, 24, 24])],
                  [("y", FLOAT, [1, 16, 22, 22])],
                  {"w": rng.standard_normal((16, 16, 3, 3)).astype(np.float32)})
    x = {"x": rng.standard_normal((1, 16, 24, 24)).astype(np.float32)}
    np.testing.assert_allclose(session(built, claim="all").run(None, x)[0],
                               cpu(built).run(None, x)[0], rtol=1e-4, atol=1e-4)
