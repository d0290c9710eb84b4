"""com.microsoft MoE and QMoE beside ONNX Runtime's CPU provider, and when both are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="results are compared with ONNX Runtime's")

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
from kompute_dml import tuning
from kompute_dml.onnx import cost, placement
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.graph import OnnxGraph, OnnxNode, OnnxValue
from kompute_dml.onnx.model import read
from kompute_dml.onnx.region import Region
from kompute_dml.onnx.row import MICROSOFT
from kompute_dml.runtime.traits import DeviceClass
from onnx_graphs import FLOAT, RELEASE, cpu, model, node
from test_convolution import EveryWork, set_traits

_SIZE, _INNER, _EXPERTS = 12, 20, 5
needs_experts = pytest.mark.skipif(
    RELEASE < [1, 26], reason="older CPU providers have no MoE, or other activations")


def _given(rng: np.random.Generator, parts: int, biased: bool, *tokens: int
           ) -> dict[str, np.ndarray]:
    sizes: dict[str, tuple[int, ...]] = {
        "x": (*tokens, _SIZE), "r": (int(np.prod(tokens)), _EXPERTS),
        "w1": (_EXPERTS, parts * _INNER, _SIZE), "w2": (_EXPERTS, _SIZE, _INNER)}
    if biased:
        sizes |= {"b1": (_EXPERTS, parts * _INNER), "b2": (_EXPERTS, _SIZE)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}


@needs_experts
@pytest.mark.parametrize(("kind", "biased", "tokens", "more"), [
    ("relu", True, (7,), {"k": 2}), ("gelu", False, (7,), {"k": 1}),
    ("silu", True, (2, 4), {"k": 3, "normalize_routing_weights": 1}),
    ("identity", False, (1,), {"k": _EXPERTS}),
    ("silu", True, (2,), {"k": 2, "normalize_routing_weights": 1}),  # fewer than there are
    ("swiglu", True, (1,), {"k": 2, "swiglu_fusion": 1, "activation_beta": 1.0}),
    ("swiglu", True, (6,), {"k": 2, "swiglu_fusion": 1, "activation_alpha": 1.702,
                            "activation_beta": 1.0, "swiglu_limit": 2.0}),
    ("swiglu", False, (6,), {"k": 2, "swiglu_fusion": 1, "normalize_routing_weights": 1}),
])
@pytest.mark.parametrize("constant", [False, True])
def test_experts(
    kind: str, biased: bool, tokens: tuple[int, ...], more: dict[str, Any], constant: bool,
    rng: np.random.Generator,
) -> None:
    given = _given(rng, 2 if kind == "swiglu" else 1, biased, *tokens)
    fed = {n: x for n, x in given.items() if n in "xr" or not constant}
    names = "x r w1 b1 w2 b2" if biased else "x r w1 - w2"
    built = model(
        [node("MoE", names, "y", MICROSOFT, activation_type=kind, **more)],
        [(n, FLOAT, x.shape) for n, x in fed.items()], [("y", FLOAT, given["x"].shape)],
        {n: x for n, x in given.items() if n not in fed})
    (got,) = backend.run_model(onnx.load_model_from_string(built), fed)
    (wanted,) = cpu(built).run(None, fed)
    # Sums of up to EXPERTS * INNER products, which are taken in another order.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@needs_experts
@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize(("bits", "block", "zeros", "weighted"), [
    (4, 16, False, False), (4, 32, True, False), (4, 0, False, False), (8, 16, True, False),
    (8, 0, False, False), (4, 16, False, True)])
def test_experts_of_few_bits(
    bits: int, block: int, zeros: bool, weighted: bool, tokens: int, rng: np.random.Generator
) -> None:
    """One token chooses 2 of 5 experts, whose weights are gathered; 6 tokens may choose all. The
    CPU provider takes 8 bits of activations beside weights of 8 bits."""
    size, inner = 32, 64
    given: dict[str, np.ndarray] = {}
    for n, rows, columns in ((1, 2 * inner, size), (2, size, inner)):
        blocks = columns // block if block else 1
        given[f"w{n}"] = rng.integers(0, 256, (_EXPERTS, rows, columns * bits // 8), np.uint8)
        scales = rng.uniform(0.5, 1, (_EXPERTS, rows, blocks)) * 2.0**-bits
        given[f"s{n}"] = scales.astype(np.float32)[..., slice(None) if block else 0]
        given[f"b{n}"] = rng.standard_normal((_EXPERTS, rows)).astype(np.float32)
        if zeros:
            wide = -(-blocks * bits // 8)
            given[f"z{n}"] = rng.integers(0, 256, (_EXPERTS, rows, wide), np.uint8)
    fed = {"x": rng.standard_normal((tokens, size)).astype(np.float32),
           "r": rng.standard_normal((tokens, _EXPERTS)).astype(np.float32)}
    names = f"x r w1 s1 b1 w2 s2 b2 - - - {'z1 z2' if zeros else '- -'}"
    if weighted:
        fed["weights"] = rng.uniform(0.1, 1, (tokens, _EXPERTS)).astype(np.float32)
        names += " - weights"
    more = {"block_size": block} if block else {}
    built = model(
        [node("QMoE", names, "y", MICROSOFT, activation_type="swiglu", swiglu_fusion=1, k=2,
              activation_alpha=1.702, activation_beta=1.0, normalize_routing_weights=1,
              expert_weight_bits=bits, **more)],
        [(n, FLOAT, x.shape) for n, x in fed.items()], [("y", FLOAT, fed["x"].shape)], given)
    (got,) = backend.run_model(onnx.load_model_from_string(built), fed)
    (wanted,) = cpu(built).run(None, fed)
    np.testing.assert_allclose(
        got, wanted, rtol=0, atol=(2e-5 if bits == 4 else 2e-2) * np.abs(wanted).max())


_CHOOSING = {"all": lambda n: np.zeros(n), "half": lambda n: np.arange(n) % 2 * 20,
             "first": lambda n: -5 * np.arange(n)}
"""Some experts have no token, or one has all."""


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize(("tokens", "choosing", "data_type"), [
    (1, "all", "float32"), (3, "first", "float16"), (60, "half", "float16"),
    (200, "all", "float32"), (200, "first", "float32")])
def test_beside_numpy(
    k: int, tokens: int, choosing: str, data_type: str, rng: np.random.Generator
) -> None:
    experts, size, inner = 16, 24, 40
    x, w1, w2 = (rng.standard_normal(s).astype(data_type) for s in (
        (tokens, size), (experts, inner, size), (experts, size, inner)))
    # Shares of FLOAT16 differ, too.
    router = (rng.permuted(np.tile(np.arange(experts) / 4, (tokens, 1)), axis=1)
              + _CHOOSING[choosing](experts)).astype(data_type)
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    built = model([node("MoE", "x r w1 - w2", "y", MICROSOFT, activation_type="relu", k=k)],
                  [("x", kind, x.shape), ("r", kind, router.shape)], [("y", kind, x.shape)],
                  {"w1": w1, "w2": w2})
    (got,) = backend.run_model(onnx.load_model_from_string(built), {"x": x, "r": router})
    shares = np.exp(router.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    wanted = np.zeros((tokens, size))
    for e in range(experts):
        # Each expert computes the rows that choose it.
        best = np.sort(router, 1)[:, -k]
        rows = np.flatnonzero(router[:, e] >= best)
        hidden = np.maximum(x[rows].astype(np.float64) @ w1[e].T, 0)
        wanted[rows] += shares[rows, e, None] * (hidden @ w2[e].T.astype(np.float64))
    np.testing.assert_allclose(
        got, wanted, rtol=0, atol=(2e-5 if x.itemsize == 4 else 6e-3) * np.abs(wanted).max())


@pytest.mark.parametrize(("kernel", "tokens"), [
    ("gemm_blocked_weights-r1-split", 2), ("gemm_blocked_weights-r4-split", 10),
    ("gemm_blocked_weights-r8-split", 10), ("gemm_blocked_weights-r8-split", 60),
    ("dequantize", 60)])
@pytest.mark.parametrize(("bits", "zeros"), [(4, True), (4, False), (8, True)])
def test_blocks_beside_numpy(
    kernel: str, tokens: int, bits: int, zeros: bool, own: dml.Device, rng: np.random.Generator
) -> None:
    """Each kernel that reads weights in blocks of 32, of both products, with gates."""
    experts, size, inner, block = 6, 64, 96, 32
    set_traits(own, device_class=DeviceClass.UNKNOWN if "r8" in kernel else DeviceClass.CPU)
    given, real = {}, {}
    for n, rows, columns in ((1, 2 * inner, size), (2, size, inner)):
        blocks = columns // block
        given[f"w{n}"] = rng.integers(0, 256, (experts, rows, columns * bits // 8), np.uint8)
        given[f"s{n}"] = rng.uniform(0.5, 1, (experts, rows, blocks)).astype(
            np.float32) * 2.0**-bits
        wide = -(-blocks * bits // 8)
        given[f"z{n}"] = rng.integers(0, 256, (experts, rows, wide), np.uint8)
        elements, points = (
            (t[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1).reshape(experts, rows, -1)
            for t in (given[f"w{n}"], given[f"z{n}"]))
        middle = points[..., :blocks] if zeros else 1 << bits - 1
        real[n] = (elements.astype(np.float64) - np.repeat(
            np.broadcast_to(middle, (experts, rows, blocks)), block, 2)) * np.repeat(
                given[f"s{n}"], block, 2)
    x = rng.standard_normal((tokens, size)).astype(np.float32)
    router = rng.standard_normal((tokens, experts)).astype(np.float32)
    if not zeros:
        del given["z1"], given["z2"]
    built = model(
        [node("QMoE", f"x r w1 s1 - w2 s2 - - - - {'z1 z2' if zeros else ''}".strip(), "y",
              MICROSOFT, activation_type="swiglu", swiglu_fusion=1, k=2,
              expert_weight_bits=bits, block_size=block)],
        [("x", FLOAT, x.shape), ("r", FLOAT, router.shape)], [("y", FLOAT, x.shape)], given)
    with tuning.trial(EveryWork(kernel)):
        graph = read(onnx.load_model_from_string(built))
        region = Region(own, fuse(graph), graph.inputs, graph.outputs)
        (got,) = region.run([x, router])
    if kernel != "dequantize":
        names = {name for compiled, _ in region.plan([x, router])._steps
                 for name in compiled.variants}
        assert kernel.removesuffix("-split").replace("-", ".") in names
    shares = np.exp(router.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    wanted = np.zeros((tokens, size))
    for t, e in zip(*np.nonzero(router >= np.sort(router, 1)[:, -2:-1])):
        gates, values = (real[1][e] @ x[t].astype(np.float64)).reshape(-1, 2).T
        hidden = gates / (1 + np.exp(-gates)) * values
        wanted[t] += shares[t, e] * (real[2][e] @ hidden)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def _gate(kind: str, x: np.ndarray) -> np.ndarray:
    if kind in ("gelu", "geglu"):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if kind in ("silu", "swiglu"):
        return x / (1 + np.exp(-x))
    return np.maximum(x, 0) ** (2 if kind == "relu2" else 1)


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize(("kind", "fusion", "more"), [
    ("relu2", None, {}), ("silu", 0, {}), ("gelu", 0, {}), ("relu", 0, {}), ("swiglu", 0, {}),
    ("swiglu", 2, {}), ("geglu", 1, {}), ("geglu", 2, {}),
    ("swiglu", 0, {"swiglu_limit": 0.7, "activation_beta": 1.0}),
    ("swiglu", 2, {"swiglu_limit": 0.7, "swiglu_limit_after_activation": 1}),
])
@pytest.mark.parametrize("tokens", [1, 6])
def test_two_products_of_a_row(
    kind: str, fusion: int | None, more: dict[str, Any], bits: int, tokens: int,
    rng: np.random.Generator
) -> None:
    """The second product has an input of its own (fc3, ``fusion`` 0), or columns of the first one,
    in turns (1) or side by side (2). ONNX Runtime's CUDA provider has these, its CPU provider has
    not."""
    size, inner, block = 32, 48, 16
    rows = {1: inner * (2 if fusion else 1), 2: size, **({3: inner} if fusion == 0 else {})}
    given: dict[str, np.ndarray] = {}
    real: dict[int, np.ndarray] = {}
    for n, count in rows.items():
        columns = inner if n == 2 else size
        given[f"b{n}"] = rng.standard_normal((_EXPERTS, count)).astype(np.float32)
        if not bits:
            given[f"w{n}"] = rng.standard_normal((_EXPERTS, count, columns)).astype(np.float32)
            real[n] = given[f"w{n}"].astype(np.float64)
            continue
        shape, blocks = (_EXPERTS, count, columns * bits // 8), columns // block
        given[f"w{n}"] = rng.integers(0, 256, shape, np.uint8)
        given[f"s{n}"] = rng.uniform(0.5, 1, (*shape[:2], blocks)).astype(np.float32) / 2**bits
        given[f"z{n}"] = rng.integers(0, 256, (*shape[:2], -(-blocks * bits // 8)), np.uint8)
        elements, points = (
            (t[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1).reshape(*shape[:2], -1)
            for t in (given[f"w{n}"], given[f"z{n}"]))
        real[n] = np.repeat(given[f"s{n}"], block, 2) * (
            elements.astype(np.float64) - np.repeat(points[..., :blocks], block, 2))
    fed = {"x": rng.standard_normal((tokens, size)).astype(np.float32),
           "r": rng.standard_normal((tokens, _EXPERTS)).astype(np.float32)}
    third = ("w3 b3", "w3 s3 b3") if 3 in rows else ("", "- - -")
    names = (f"x r w1 s1 b1 w2 s2 b2 {third[1]} z1 z2 {'z3' if 3 in rows else ''}" if bits
             else f"x r w1 b1 w2 b2 {third[0]}")
    attributes = {"activation_type": kind, "k": 2, **more}
    attributes |= {} if fusion is None else {"swiglu_fusion": fusion}
    attributes |= {"expert_weight_bits": bits, "block_size": block} if bits else {}
    built = model([node("QMoE" if bits else "MoE", names.strip(), "y", MICROSOFT, **attributes)],
                  [(n, FLOAT, x.shape) for n, x in fed.items()], [("y", FLOAT, fed["x"].shape)],
                  given)
    (got,) = backend.run_model(onnx.load_model_from_string(built), fed)
    shares = np.exp(fed["r"].astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    limit, beta = more.get("swiglu_limit", np.inf), more.get("activation_beta", 0.0)
    late = "swiglu_limit_after_activation" in more
    wanted = np.zeros((tokens, size))
    for t, e in zip(*np.nonzero(fed["r"] >= np.sort(fed["r"], 1)[:, -2:-1])):
        y = real[1][e] @ fed["x"][t] + given["b1"][e]
        if fusion:
            gate, value = y.reshape(inner, 2).T if fusion == 1 else y.reshape(2, inner)
        else:
            gate, value = y, np.ones(inner)
        if fusion == 0:
            value = real[3][e] @ fed["x"][t] + given["b3"][e]
        gate = (np.minimum(_gate(kind, gate), limit) if late
                else _gate(kind, np.minimum(gate, limit)))
        hidden = gate * (np.clip(value, -limit, limit) + beta)
        wanted[t] += shares[t, e] * (real[2][e] @ hidden + given["b2"][e])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())


def _sparse(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """SparseMixer of transformers' Phi-3.5-MoE: weights and numbers of two experts."""
    shares, chosen, rest = [], [], scores.astype(np.float64)
    for _ in range(2):
        first = rest.argmax(1)[:, None]
        most = np.take_along_axis(rest, first, 1)
        far = (most - scores) / np.maximum(abs(scores), most) > 0.02
        terms = np.where(far, 0, np.exp(rest - most))
        shares.append(np.take_along_axis(terms, first, 1) / terms.sum(1, keepdims=True))
        chosen.append(first)
        rest = rest.copy()
        np.put_along_axis(rest, first, -np.inf, 1)
    return np.concatenate(shares, 1), np.concatenate(chosen, 1)


@pytest.mark.parametrize("normalized", [0, 1])
def test_a_sparse_mixer(normalized: int, rng: np.random.Generator) -> None:
    """Some scores are within a hundredth of the best one, the second one or both, some below 0."""
    tokens, size, inner, experts = 60, 16, 24, 8
    x, w1, w2 = (rng.standard_normal(s).astype(np.float32) for s in (
        (tokens, size), (experts, inner, size), (experts, size, inner)))
    router = rng.choice(np.float32([2, 1, -0.5]), (tokens, 1)) * rng.choice(
        np.float32([1, 1.006, 1.012, 1.5, 2]), (tokens, experts))
    router += rng.uniform(-1e-3, 1e-3, router.shape).astype(np.float32)
    built = model([node("MoE", "x r w1 - w2", "y", MICROSOFT, activation_type="relu", k=2,
                        use_sparse_mixer=1, normalize_routing_weights=normalized)],
                  [("x", FLOAT, x.shape), ("r", FLOAT, router.shape)], [("y", FLOAT, x.shape)],
                  {"w1": w1, "w2": w2})
    (got,) = backend.run_model(onnx.load_model_from_string(built), {"x": x, "r": router})
    shares, chosen = _sparse(router)
    assert np.unique(shares.round(2)).size > 6  # of one expert, of two, of three ...
    if normalized:
        shares /= shares.sum(1, keepdims=True)
    wanted = np.zeros((tokens, size))
    for t in range(tokens):
        for share, e in zip(shares[t], chosen[t]):
            wanted[t] += share * (w2[e] @ np.maximum(w1[e] @ x[t], 0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def _reason(device: dml.Device, experts: int, k: int, **more: Any) -> str | None:
    def value(name: str, *shape: int, constant: bool = False) -> OnnxValue:
        return OnnxValue(name, np.dtype("float32"), shape,
                         np.broadcast_to(np.float32(0), shape) if constant else None)

    x, y = value("x", 4096, 256), value("y", 4096, 256)
    weights = [value("w1", experts, 64, 256, constant=True),
               value("w2", experts, 256, 64, constant=True)]
    moe = OnnxNode("MoE", MICROSOFT, 1, (x, value("r", 4096, experts), weights[0], None,
                                  weights[1]), (y,), {"k": k, "activation_type": "relu", **more})
    graph = OnnxGraph([moe], [x, moe.inputs[1]], [y])  # type: ignore[list-item]
    placed = placement.place([moe], device)
    if placed.reasons:
        return placed.reasons[moe]
    return cost.refusals([[moe]], placed, graph)[0]


def test_many_experts_of_which_few_are_chosen_are_taken(device: dml.Device) -> None:
    assert _reason(device, 8, 2) is None and _reason(device, 128, 1) is None


@pytest.mark.parametrize(("more", "why"), [
    ({"activation_type": "tanh"}, "activation_type"), ({"use_sparse_mixer": 1, "k": 1}, "sparse"),
    ({"activation_type": "swiglu"}, "swiglu_fusion=0"),
    ({"activation_type": "geglu", "swiglu_fusion": 3}, "swiglu_fusion=3")])
def test_experts_that_are_refused(device: dml.Device, more: dict[str, Any], why: str) -> None:
    assert why in str(_reason(device, 8, **{"k": 2, **more}))
