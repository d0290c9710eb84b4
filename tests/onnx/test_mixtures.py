"""Sums over experts that a model spells out: each expert computes all tokens, and a mask weighs it.
The results are the CPU provider's, and the work follows what tokens choose."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="results are compared with ONNX Runtime's")

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
from kompute_dml.graph.builder import Builder
from kompute_dml.graph.node import Node
from kompute_dml.layout import product
from kompute_dml.onnx import cost, placement
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.region import Region
from kompute_dml.onnx.row import MICROSOFT
from onnx_graphs import FLOAT, INT64, ModelInLines, cpu, model, node

_SIZE, _INNER, _EXPERTS, _BEST = 32, 16, 6, 2


class _Mixture(ModelInLines):
    """A model of one sum. ``form`` is that of its experts."""

    def __init__(self, form: str, tokens: tuple[int, ...], *, routed: bool = True,
                 experts: int = _EXPERTS, strange: str = "") -> None:
        super().__init__(5)
        self.form, self.tokens = form, tokens
        self.fed = {"x": self.rng.standard_normal((*tokens, _SIZE), np.float32)}
        self.inputs = [("x", FLOAT, (*tokens, _SIZE))]
        if routed:
            self.of("TopK", f"{self.of('MatMul', f'x {self.random(_SIZE, experts)}')} "
                    f"{self.exactly([_BEST])}", "weights chosen", axis=-1)
        else:
            chosen = self.rng.integers(-2, experts + 2, (*tokens, _BEST))
            weights = self.rng.uniform(0.1, 1, chosen.shape).astype(np.float32)
            self.fed |= {"weights": weights, "chosen": chosen}
            self.inputs += [("weights", FLOAT, chosen.shape), ("chosen", INT64, chosen.shape)]
        y = self.of("Mul", f"x {self.exactly(np.float32(0.5))}")
        for i in range(experts):
            share = self.share(i)
            if strange == "other weights" and i == 1:
                share = self.of("Neg", share)
            out = self.expert(self.of("Relu", "x") if strange == "another form" and i else "x")
            y = self.of("Add", f"{y} {self.of('Mul', f'{out} {share}')}")
            self.seen = out
        self.nodes.append(node("Identity", y, "y"))

    def share(self, i: int) -> str:
        match = self.of("Equal", f"chosen {self.exactly(i)}")
        number = (self.of("CastLike", f"{match} weights") if i % 2
                  else self.of("Cast", match, to=FLOAT))
        total = self.of("ReduceSum", f"{self.of('Mul', f'weights {number}')} {self.exactly([-1])}",
                        keepdims=int(i % 3 > 0))
        return total if i % 3 else self.of("Unsqueeze", f"{total} {self.exactly([-1])}")

    def expert(self, x: str) -> str:
        gate, up = (self.product(x, _SIZE, _INNER) for _ in range(2))
        if self.form == "clipped":
            gate = self.of("Min", f"{gate} {self.exactly(np.float32(1))}")
            up = self.of("Clip", f"{up} {self.exactly(np.float32(-1))} "
                         f"{self.exactly(np.float32(1))}")
            up = self.of("Add", f"{up} {self.exactly(np.float32(1))}")
        gate = self.of("Mul", f"{gate} {self.of('Sigmoid', gate)}")
        return self.product(self.of("Mul", f"{gate} {up}"), _INNER, _SIZE)

    def product(self, x: str, depth: int, columns: int) -> str:
        if self.form == "gemm":
            return self.of("Gemm", f"{x} {self.random(columns, depth)} {self.random(columns)}",
                           transB=1)
        if self.form == "blocks":
            b, zeros = (self.exactly(self.rng.integers(0, 256, sizes, np.uint8)) for sizes in (
                (columns, depth // 16, 8), (columns * -(-depth // 32),)))
            scales = self.exactly(self.rng.uniform(0.01, 0.1, columns * depth // 16).astype(
                np.float32))
            return self.of("MatMulNBits", f"{x} {b} {scales} {zeros}", "", MICROSOFT, K=depth,
                           N=columns, bits=4, block_size=16)
        if self.form == "transposed":
            w = self.of("Transpose", self.random(columns, depth), perm=[1, 0])
            return self.of("MatMul", f"{x} {w}")
        y = self.of("MatMul", f"{x} {self.random(depth, columns)}")
        return self.of("Add", f"{y} {self.random(columns)}") if self.form == "clipped" else y

    def built(self, *more: str) -> bytes:
        sizes = (*self.tokens, _SIZE)
        return model(self.nodes, self.inputs, [(name, FLOAT, sizes) for name in ("y", *more)],
                     self.constants, 21)


def _operators(built: bytes) -> list[str]:
    return [n.op for n in fuse(read(onnx.load_model_from_string(built)))]


def _compare(mix: _Mixture, *more: str) -> None:
    built = mix.built(*more)
    results = backend.run_model(onnx.load_model_from_string(built), mix.fed)
    for got, wanted in zip(results, cpu(built).run(None, mix.fed)):
        # Sums of some hundred products, which are taken in another order.
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("form", ["plain", "clipped", "gemm", "blocks", "transposed"])
@pytest.mark.parametrize("tokens", [(1,), (2,), (5,)])
def test_forms(form: str, tokens: tuple[int, ...]) -> None:
    """One or two tokens choose fewer experts than there are."""
    mix = _Mixture(form, tokens)
    operators = _operators(mix.built())
    assert operators.count("Experts") == 1 and "Equal" not in operators
    _compare(mix)


@pytest.mark.parametrize("tokens", [(1, 1), (2, 3)])
def test_batches(tokens: tuple[int, ...]) -> None:
    _compare(_Mixture("plain", tokens))


@pytest.mark.parametrize("tokens", [(2,), (6,)])
def test_choices_that_no_expert_has_count_for_nothing(tokens: tuple[int, ...]) -> None:
    mix = _Mixture("plain", tokens, routed=False)
    assert (mix.fed["chosen"] < 0).any() or (mix.fed["chosen"] >= _EXPERTS).any()
    _compare(mix)


def test_parts_of_the_tokens(own: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a buffer does not hold is computed for some tokens at a time."""
    mix = _Mixture("plain", (40,))
    region = _region(mix.built(), own)
    (wanted,) = region.run([*mix.fed.values()])
    monkeypatch.setattr(own.runtime.engine, "max_buffer", 16 * 8 * _BEST * _SIZE * 4)
    small = _region(mix.built(), own)
    np.testing.assert_allclose(small.run([*mix.fed.values()])[0], wanted, rtol=1e-5, atol=1e-5)
    assert _sorts(small, mix) == 3


@pytest.mark.parametrize("strange", ["other weights", "another form", "a result that is read"])
def test_sums_that_are_no_mixture(strange: str) -> None:
    mix = _Mixture("plain", (1,), strange=strange)
    more = [mix.seen] if "read" in strange else []
    assert "Experts" not in _operators(mix.built(*more))
    _compare(mix, *more)


def _region(built: bytes, device: dml.Device) -> Region:
    graph = read(onnx.load_model_from_string(built))
    return Region(device, fuse(graph), graph.inputs, graph.outputs)


def _nodes(region: Region, mix: _Mixture) -> list[Node]:
    builder = Builder(region.device)
    region._emit(builder, [x.shape for x in mix.fed.values()], {})
    return builder.nodes


def _sorts(region: Region, mix: _Mixture) -> int:
    return sum(n.name == "GROUP_ROWS" for n in _nodes(region, mix))


def _multiplications(region: Region, mix: _Mixture) -> int:
    """Those of all tiles."""
    return sum(product(n.desc.output_tensor.sizes) * n.desc.a_tensor.sizes[-1]
               for n in _nodes(region, mix) if n.name in ("GEMM", "GROUPED_GEMM"))


@pytest.mark.parametrize("tokens", [1, 64])
def test_work_follows_what_is_chosen(
    tokens: int, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens take as many dispatches with 32 experts as with 8, and about as many multiplications,
    but for the router's. Without the rewrite these are those of all experts."""
    each, nodes = 3 * _SIZE * _INNER, {}
    for experts in (8, 32):
        mix = _Mixture("plain", (tokens,), experts=experts)
        region = _region(mix.built(), device)
        taken = _multiplications(region, mix) - tokens * (_SIZE * experts + _BEST * _SIZE)
        # Tiles without rows are not computed. Each expert's last one may have one row.
        assert tokens * _BEST * each <= taken <= 3 * tokens * _BEST * each
        nodes[experts] = len(region.plan([*mix.fed.values()])._steps)
    assert nodes[8] == nodes[32]
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "mixtures")
    mix = _Mixture("plain", (tokens,), experts=8)
    assert _multiplications(_region(mix.built(), device), mix) == tokens * 8 * (each + _SIZE)


def test_estimates_follow_what_is_chosen(device: dml.Device) -> None:
    (experts,) = [n for n in fuse(read(onnx.load_model_from_string(
        _Mixture("plain", (1,)).built()))) if n.op == "Experts"]
    row = placement.place([experts], device).rows[experts]
    all_of_them = _EXPERTS * 3 * _SIZE * _INNER
    assert cost.multiplications(experts) == all_of_them
    assert row.repetition(experts) * all_of_them == _BEST * 3 * _SIZE * _INNER
