"""Products of rows that a model sorts by their experts, as exporters write PyTorch's grouped
products. They run in one region, and the work follows what tokens choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnx_backend as backend
import kompute_dml.onnxruntime as kompute
from kompute_dml.onnx import cost, placement
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from onnx_graphs import FLOAT, INT64, ModelInLines, cpu, model, needs_provider, node, options
from provider_tools import session

_SIZE, _INNER, _EXPERTS, _BEST = 24, 16, 5, 2


class _Sorted(ModelInLines):
    """x [tokens, size] -> y, by the experts that tokens choose."""

    def __init__(self, *, biased: bool = False, split: bool = True, strange: str = "",
                 experts: int = _EXPERTS) -> None:
        super().__init__(7)
        self.experts, self.split, self.biased = experts, split, biased
        self.of("TopK", f"{self.of('MatMul', f'x {self.random(_SIZE, experts)}')} "
                f"{self.exactly([_BEST])}", "weights chosen", axis=-1)
        flat = self.exactly([-1])
        self.of("Reshape", f"chosen {flat}", "listed")
        self.of("TopK", f"listed {self.of('Shape', 'listed')}", "groups places", axis=-1, largest=0)
        rows = self.of("Div", f"places {self.exactly(_BEST)}")
        x = self.of("Gather", f"x {rows}", axis=0)
        zeros = self.exactly(np.full(experts, float(strange == "a count"), np.float32))
        ones = self.of("Expand", f"{self.exactly(np.float32(1))} {self.of('Shape', 'groups')}")
        counts = self.of("ScatterElements", f"{zeros} groups {ones}", axis=0, reduction="add")
        ends = self.of("Cast", self.of(
            "CumSum", f"{self.of('Cast', counts, to=6)} {self.exactly(0)}"), to=INT64)
        parts = [f"end.{e}" for e in range(experts)]
        self.of("Split", ends, " ".join(parts), axis=0, num_outputs=experts)
        one, begin = self.exactly(1), self.exactly(0)
        ranges = []
        for part in parts:
            end = self.of("Squeeze", f"{part} {self.exactly([0])}")
            ranges.append(self.of("Range", f"{begin} {end} {one}"))
            begin = end
        both = self.product(x, ranges, 2 * _INNER, _SIZE)
        self.of("Split", both, "gate up", axis=1, num_outputs=2)
        hidden = self.of("Mul", f"gate {self.of('Sigmoid', 'gate')}")
        y = self.product(self.of("Mul", f"{hidden} up"),
                         ranges, _SIZE, _INNER)
        shares = self.of("Gather", f"{self.of('Reshape', f'weights {flat}')} places", axis=0)
        y = self.of("Mul", f"{y} {self.of('Unsqueeze', f'{shares} {flat}')}")
        column = self.of("Unsqueeze", f"places {flat}")
        numbers = self.of("Range", f"{self.exactly(0)} {self.of('Size', 'places')} {one}")
        empty = self.of("Expand", f"{self.exactly(0)} {self.of('Shape', 'places')}")
        back = self.of("ScatterND", f"{empty} {column} {numbers}")
        y = self.of("Reshape", f"{self.of('Gather', f'{y} {back}', axis=0)} "
                    f"{self.exactly([-1, _BEST, _SIZE])}")
        self.nodes.append(node("ReduceSum", f"{y} {self.exactly([1])}", "y", keepdims=0))
        self.seen = ranges[1]

    def each(self, *sizes: int) -> list[str]:
        """A constant of each expert, or the parts of one."""
        if not self.split:
            return [self.random(*sizes) for _ in range(self.experts)]
        parts = [f"part.{len(self.nodes)}.{e}" for e in range(self.experts)]
        self.of("Split", self.random(self.experts, *sizes), " ".join(parts), axis=0,
                num_outputs=self.experts)
        return [self.of("Squeeze", f"{part} {self.exactly([0])}") for part in parts]

    def product(self, x: str, ranges: list[str], columns: int, depth: int) -> str:
        matrices = self.each(depth, columns)
        biases = self.each(columns) if self.biased else []
        ys = [self.of("MatMul", f"{self.of('Gather', f'{x} {r}', axis=0)} {matrix}")
              for r, matrix in zip(ranges, matrices)]
        ys = [self.of("Add", f"{y} {bias}") for y, bias in zip(ys, biases)] or ys
        return self.of("Concat", " ".join(ys), axis=0)

    def built(self, *more: str) -> bytes:
        return model(self.nodes, [("x", FLOAT, ["n", _SIZE])], [
            ("y", FLOAT, ["n", _SIZE]), *((name, INT64, None) for name in more)],
            self.constants, 21)


def _operators(built: bytes) -> list[str]:
    return [n.op for n in fuse(read(onnx.load_model_from_string(built)))]


def _close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@needs_provider
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_products_run_in_one_region(biased: bool, split: bool, rng: np.random.Generator) -> None:
    """One token chooses fewer experts than there are. Sizes come in turn."""
    built = _Sorted(biased=biased, split=split).built()
    assert _operators(built).count("GroupedMatMul") == 2
    theirs = cpu(built)
    for optimize in (True, False):
        ours = session(built, optimize, claim="all", strict=True)
        for tokens in (1, 2, 5, 3, 40, 1, 7):
            x = rng.standard_normal((tokens, _SIZE), np.float32)
            _close(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0])
    decisions, _ = kompute.decided(built, claim="all")
    assert {d.where for d in decisions} == {"region 0"}


def test_what_is_no_product_of_groups(rng: np.random.Generator) -> None:
    """Where experts end is another number than what they count, or a Range leaves the graph."""
    assert "GroupedMatMul" not in _operators(_Sorted(strange="a count").built())
    sorted_rows = _Sorted()
    assert "GroupedMatMul" not in _operators(sorted_rows.built(sorted_rows.seen))


@needs_provider
def test_regions_that_would_share_a_range(rng: np.random.Generator) -> None:
    """The nodes between the two products are left to the CPU. So is each Range, which both read."""
    built = _Sorted().built()
    ours, theirs = session(built, False, claim="MatMul"), cpu(built)
    decisions, _ = kompute.decided(built, session_options=options(False), claim="MatMul")
    assert {d.where for d in decisions if d.operator == "Range"} == {"CPU"}
    assert any(d.where != "CPU" for d in decisions if d.operator == "MatMul")
    for tokens in (2, 6):
        x = rng.standard_normal((tokens, _SIZE), np.float32)
        _close(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0])


def test_estimates_follow_the_rows(device: Any) -> None:
    nodes = fuse(read(onnx.load_model_from_string(_Sorted().built())))
    products = [n for n in nodes if n.op == "GroupedMatMul"]
    rows = placement.place(nodes, device).rows
    assert all(n in rows for n in products)
    assert [cost.multiplications(n) for n in products] == [
        cost.UNKNOWN * _SIZE * 2 * _INNER, cost.UNKNOWN * _INNER * _SIZE]


def test_the_backend(rng: np.random.Generator) -> None:
    built = _Sorted(biased=True).built()
    x = rng.standard_normal((9, _SIZE), np.float32)
    (got,) = backend.run_model(onnx.load_model_from_string(built), {"x": x})
    _close(got, cpu(built).run(None, {"x": x})[0])
