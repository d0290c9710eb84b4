"""Weights of ONNX models that are BFLOAT16 in the type of FLOAT32, as a Cast of them makes."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx.region import Region  # noqa: E402
from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node  # noqa: E402
from provider_tools import last_kernel, session  # noqa: E402

pytestmark = needs_provider
_K, _N = 192, 128


def _weights(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    w = rng.standard_normal(sizes, np.float32) * np.float32(sizes[0] ** -0.5)
    return (w.view(np.uint32) & 0xFFFF0000).view(np.float32)


def _region() -> Region:
    return last_kernel().region


def _reads_halves(region: Region) -> bool:
    """Whether products read them as they are. Drivers that compile slowly have no such product."""
    return region.device.target.traits.slow_compiler or any(
        "bfloat16.r" in v for plan in region._plans.values() for v in plan.variants)


def test_a_cast_of_bfloat16_keeps_half_the_memory(rng: np.random.Generator) -> None:
    """ONNX Runtime computes the Cast when it makes the session."""
    w = _weights(rng, _K, _N)
    built = model([node("Cast", "b", "w", to=FLOAT), node("MatMul", "x w", "y")],
                  [("x", FLOAT, ["n", _K])], [("y", FLOAT, ["n", _N])], {})
    proto = onnx.load_model_from_string(built)
    raw = (w.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    proto.graph.initializer.append(
        onnx.helper.make_tensor("b", onnx.TensorProto.BFLOAT16, w.shape, raw, raw=True))
    ours = session(proto.SerializeToString(), claim="all", strict=True)
    region = _region()
    assert [x.dtype.itemsize for x in region._halves.values()] == [2] and not region._constants
    for rows in (1, 5, 8, 20):
        x = rng.standard_normal((rows, _K), np.float32)
        np.testing.assert_allclose(ours.run(None, {"x": x})[0], x @ w, rtol=0, atol=1e-4)
    assert _reads_halves(region)
    (value,) = region._halves
    assert region.holds(value)
    np.testing.assert_array_equal(region.constant(value), w)


@pytest.mark.parametrize("kind", ["a lower half", "also an embedding", "few", "a first factor"])
def test_others_are_kept_as_float32(kind: str, rng: np.random.Generator) -> None:
    w = _weights(rng, _K, 64 if kind == "few" else _N)
    if kind == "a lower half":
        w.view(np.uint32)[-1, -1] |= 1
    nodes, inputs = [node("MatMul", "x w", "y")], [("x", FLOAT, ["n", _K])]
    feed = {"x": rng.standard_normal((2, _K), np.float32)}
    if kind == "also an embedding":
        nodes.append(node("Gather", "w ids", "rows"))
        inputs.append(("ids", INT64, [3]))
        feed["ids"] = rng.integers(0, _K, 3)
    if kind == "a first factor":
        nodes, inputs = [node("MatMul", "w x", "y")], [("x", FLOAT, [_N, "n"])]
        feed = {"x": rng.standard_normal((_N, 2), np.float32)}
    built = model(nodes, inputs, [(n.output[0], FLOAT, None) for n in nodes], {"w": w})
    ours = session(built, False, claim="all", strict=True)
    assert not _region()._halves
    for got, wanted in zip(ours.run(None, feed), cpu(built, False).run(None, feed)):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


def test_a_switch_leaves_them_as_they_are(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "bfloat16_weights")
    w = _weights(rng, _K, _N)
    built = model([node("MatMul", "x w", "y")], [("x", FLOAT, [1, _K])], [("y", FLOAT, [1, _N])],
                  {"w": w})
    ours = session(built, False, claim="all", strict=True)
    assert not _region()._halves and ours.run(None, {"x": np.zeros((1, _K), np.float32)})


def test_layers_and_sizes(rng: np.random.Generator) -> None:
    """A decoder's layers, whose plans are repeated, and plans for many sizes."""
    nodes, constants, last = [], {}, "x"
    for i in range(6):
        for name, k, n in (("up", _K, 256), ("down", 256, _K)):
            constants[f"{i}.{name}"] = _weights(rng, k, n)
            constants[f"{i}.{name}.b"] = rng.standard_normal(n, np.float32)
            nodes += [node("MatMul", f"{last} {i}.{name}", f"{i}.{name}.y"),
                      node("Add", f"{i}.{name}.y {i}.{name}.b", f"{i}.{name}.z"),
                      node("Tanh", f"{i}.{name}.z", f"{i}.{name}.t"),
                      node("Abs", f"{i}.{name}.t", f"{i}.{name}.a")]
            last = f"{i}.{name}.a"
    built = model(nodes, [("x", FLOAT, ["n", _K])], [(last, FLOAT, ["n", _K])], constants)
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    region = _region()
    assert len(region._halves) == 12
    for rows in (1, 2, 3, 7, 8, 9, 30, 31, 1):
        x = rng.standard_normal((rows, _K), np.float32)
        np.testing.assert_allclose(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0],
                                   rtol=0, atol=1e-4)
    assert _reads_halves(region)
