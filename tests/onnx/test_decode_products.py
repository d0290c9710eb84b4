"""Products of a decoder's token: with their normalization, SwiGLU and sum they are one dispatch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import TensorProto

import kompute_dml as dml
from kompute_dml.graph.passes import decode_products
from kompute_dml.lowering import measured
from kompute_dml.lowering.builder import PlanBuilder
from kompute_dml.onnx.row import MICROSOFT
from kompute_dml.operators.matrix_multiply import decode, decode_kernels
from kompute_dml.runtime.traits import DeviceClass
from onnx_graphs import cpu, model, needs_provider, node
from provider_tools import last_kernel, session
from test_convolution import with_figures

pytestmark = needs_provider
_HALF = TensorProto.FLOAT16
_K = 128


@pytest.fixture(autouse=True)
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay quantized, and CPUs get the kernel, too."""
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "constant_folding")
    monkeypatch.setattr(decode_products, "ON_CPUS", True)
    for_all = {"rows": decode_kernels.MOST_ROWS, "products": 1}
    with_figures(monkeypatch, gemm_decode=for_all, gemm_decode_plain=for_all)


def _product(rows: int, bits: int = 4, block: int = 16, k: int = 64, columns: int = 64) -> Any:
    """What is asked of a product's description."""
    return SimpleNamespace(
        a_tensor=dml.TensorDesc("float16", (1, 1, rows, k)), block_size=block,
        b_tensor=dml.TensorDesc({4: "uint4", 8: "uint8", 16: "float16"}[bits], (1, 1, k, columns)),
        output_tensor=dml.TensorDesc("float16", (1, 1, rows, columns)))


@pytest.mark.parametrize(("rows", "served"), [(1, True), (2, True), (3, False), (4, False)])
def test_registers_of_the_devices_class_decide(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, rows: int, served: bool
) -> None:
    monkeypatch.setattr(measured, "crowded", lambda kind: {
        f"gemm_decode.{math}.r4.p1" for math in ("halves", "floats")})
    assert decode.serves(device.target, [_product(rows)]) == served


@pytest.mark.parametrize(("rows", "products", "served"), [
    (2, 2, True), (2, 3, True), (3, 3, False), (1, 1, False)])
def test_what_was_measured_decides(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, rows: int, products: int, served: bool
) -> None:
    with_figures(monkeypatch, gemm_decode={"rows": 2, "products": 2})
    assert decode.serves(device.target, [_product(rows)] * products) == served


@pytest.mark.parametrize(("rows", "bits", "block", "k", "served"), [
    (1, 4, 32, 64, True), (1, 4, 32, 128, False), (2, 4, 32, 64, False), (1, 4, 16, 64, False),
    (1, 8, 32, 64, False), (1, 16, 0, 64, False)])
def test_the_kernel_of_one_row_is_for_few_elements(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, rows: int, bits: int, block: int, k: int,
    served: bool,
) -> None:
    least = {"products": 4}
    with_figures(monkeypatch, gemm_decode=least, gemm_decode_plain=least,
                 gemm_decode_row={"elements": 3 * 64 * 64}, gemm_decode_plain_row={"workgroups": 0})
    assert decode.serves(device.target, [_product(rows, bits, block, k)] * 3) == served


@pytest.mark.parametrize("kind", DeviceClass)
@pytest.mark.parametrize("bits", [4, 16])
def test_classes_in_which_nobody_measured_it_do_not_get_the_kernel_of_one_row(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, kind: DeviceClass, bits: int
) -> None:
    served = kind in (DeviceClass.NVIDIA_HOPPER, DeviceClass.CPU)  # the tests take it there
    least = {"products": 2}
    with_figures(monkeypatch, gemm_decode=least, gemm_decode_plain=least)
    target = device.target
    target = replace(target, traits=replace(target.traits, device_class=kind))
    assert decode.serves(target, [_product(1, bits, 32)]) == served


class _Graph:
    """Nodes with their constants."""

    def __init__(self, rng: np.random.Generator, bits: int, block: int, zeros: bool) -> None:
        self._rng, self._bits, self._block, self._zeros = rng, bits, block, zeros
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def product(self, x: str, y: str, depth: int, columns: int) -> None:
        if self._bits == 16:
            self.constants[f"{y}.w"] = (self._rng.standard_normal(
                (depth, columns)) * depth**-0.5).astype(np.float16)
            self.nodes.append(node("MatMul", f"{x} {y}.w", y))
            return
        blocks = depth // self._block
        per_byte = 8 // self._bits
        names = [x, f"{y}.w", f"{y}.s"]
        self.constants[f"{y}.w"] = self._rng.integers(
            0, 256, (columns, blocks, self._block // per_byte)).astype(np.uint8)
        self.constants[f"{y}.s"] = self._rng.uniform(
            0.01, 0.03, columns * blocks).astype(np.float16) * np.float16(2 ** (4 - self._bits))
        if self._zeros:
            self.constants[f"{y}.z"] = self._rng.integers(
                0, 256, columns * -(-blocks // per_byte)).astype(np.uint8)
            names.append(f"{y}.z")
        self.nodes.append(node("MatMulNBits", " ".join(names), y, MICROSOFT, K=depth, N=columns,
                               bits=self._bits, block_size=self._block))

    def norm(self, x: str, y: str, depth: int) -> None:
        self.constants[f"{y}.g"] = self._rng.uniform(0.5, 1.5, depth).astype(np.float16)
        self.nodes.append(node(
            "SimplifiedLayerNormalization", f"{x} {y}.g", y, axis=-1, epsilon=1e-5, stash_type=1))

    def check(self, x: np.ndarray, outputs: list[str], more: dict[str, np.ndarray],
              operators: list[str], shader: str = "") -> None:
        """The same results as the CPU provider's, by these operators and this shader."""
        given = {"x": x, **more}
        infos = [(n, _HALF, v.shape) for n, v in given.items()]
        built = model(self.nodes, infos, [
            (n, _HALF, [None] * x.ndim) for n in outputs], self.constants)
        expected = cpu(built, False).run(None, given)
        made = session(built, False, claim="all", strict=True)
        for ours, theirs in zip(made.run(None, given), expected):
            assert ours.shape == theirs.shape
            ours, theirs = (t.astype(np.float32) for t in (ours, theirs))
            scale = np.abs(theirs).max()
            np.testing.assert_allclose(ours / scale, theirs / scale, atol=3e-3)
        (plan,) = last_kernel().region._plans.values()
        assert plan.operators == operators
        assert not shader or shader in {v.split(".")[0] for v in plan.variants}


def _shader(bits: int, block: int, rows: int) -> str:
    """Of few elements."""
    if bits == 16:
        return "gemm_decode_plain_row" if rows == 1 else "gemm_decode_plain"
    return "gemm_decode_row" if rows == 1 and bits == 4 and block >= 32 else "gemm_decode"


def _rows(rng: np.random.Generator, count: int, depth: int = _K) -> np.ndarray:
    return rng.standard_normal((1, count, depth)).astype(np.float16)


@pytest.mark.parametrize(("bits", "block", "zeros", "rows"), [
    (4, 32, False, 1), (4, 64, True, 1), (4, 16, True, 1), (4, 16, True, 2),
    (4, 128, True, 3), (8, 32, False, 8), (8, 16, True, 1), (16, 0, False, 1),
    (16, 0, False, 3), (16, 0, False, 8),
])
def test_normalized_rows_by_three_matrices(
    bits: int, block: int, zeros: bool, rows: int, rng: np.random.Generator
) -> None:
    g = _Graph(rng, bits, block, zeros)
    g.norm("x", "a", _K)
    for name, columns in (("q", 64), ("k", 32), ("v", 48)):
        g.product("a", name, _K, columns)
    g.check(_rows(rng, rows), ["q", "k", "v"], {}, ["DECODE_PRODUCT"], _shader(bits, block, rows))


@pytest.mark.parametrize(("bits", "rows", "zeros"), [
    (4, 2, False), (16, 2, False), (4, 1, False), (4, 1, True)])
def test_a_swiglu(bits: int, rows: int, zeros: bool, rng: np.random.Generator) -> None:
    g = _Graph(rng, bits, 32, zeros)
    g.norm("x", "a", _K)
    g.product("a", "gate", _K, 96)
    g.product("a", "up", _K, 96)
    g.nodes += [node("Sigmoid", "gate", "s"), node("Mul", "gate s", "silu"),
                node("Mul", "up silu", "y")]
    g.check(_rows(rng, rows), ["y"], {}, ["DECODE_PRODUCT"], _shader(bits, 32, rows))


@pytest.mark.parametrize(("bits", "rows"), [(4, 2), (16, 2), (4, 1)])
def test_a_product_and_a_sum(bits: int, rows: int, rng: np.random.Generator) -> None:
    g = _Graph(rng, bits, 32, False)
    g.product("x", "p", _K, 64)
    g.nodes.append(node("Add", "r p", "y"))
    g.check(_rows(rng, rows), ["y"], {"r": _rows(rng, rows, 64)}, ["DECODE_PRODUCT"],
            _shader(bits, 32, rows))


@pytest.mark.parametrize("bits", [4, 16])
def test_a_normalization_that_others_read_stays(bits: int, rng: np.random.Generator) -> None:
    g = _Graph(rng, bits, 32, False)
    g.norm("x", "a", _K)
    g.product("a", "p", _K, 64)
    g.nodes.append(node("Neg", "a", "n"))
    g.check(_rows(rng, 1), ["p", "n"], {}, [
        "MEAN_VARIANCE_NORMALIZATION2", "ELEMENT_WISE_NEGATE", "DECODE_PRODUCT"])


@pytest.mark.parametrize(("bits", "depth", "columns"), [
    (4, _K, 40), (4, 144, 64), (16, _K, 40), (16, 129, 32)])
def test_what_the_kernel_does_not_take(
    bits: int, depth: int, columns: int, rng: np.random.Generator
) -> None:
    """Columns are whole tiles, K whole vectors, or pairs of FLOAT16."""
    g = _Graph(rng, bits, 16, False)
    g.product("x", "y", depth, columns)
    g.check(_rows(rng, 1, depth), ["y"], {}, ["GEMM"])


@pytest.mark.parametrize(("bits", "rows"), [(4, 2), (8, 2), (16, 2), (4, 1), (16, 1)])
def test_workgroups_take_turns_at_tiles(bits: int, rows: int, rng: np.random.Generator) -> None:
    g = _Graph(rng, bits, 32, False)
    g.norm("x", "a", _K)
    for name, columns in (("q", 8192), ("k", 64), ("v", 4096)):
        g.product("a", name, _K, columns)
    g.check(_rows(rng, rows), ["q", "k", "v"], {}, ["DECODE_PRODUCT"], _shader(bits, 32, rows))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e4])
def test_one_row_of_any_size(scale: float, rng: np.random.Generator) -> None:
    """Parts of a row are multiplied by powers of 2, and so are neither too small nor too large."""
    g = _Graph(rng, 4, 128, True)
    g.norm("x", "a", 8192)
    g.product("a", "y", 8192, 32)
    x = (_rows(rng, 1, 8192) * np.float32(scale)).astype(np.float16)
    x[0, 0, :32] = 0
    g.check(x, ["y"], {}, ["DECODE_PRODUCT"], "gemm_decode_row")


@pytest.mark.parametrize("form", ["parts", "sum", "gated"])
def test_one_row_by_few_tiles(
    form: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer tiles than cores, a workgroup has twice as many invocations."""
    lower, noted = decode_kernels._PlainRow.lower, []
    dispatch = PlanBuilder.dispatch

    def with_many_cores(self: Any, g: Any, p: PlanBuilder) -> None:
        p.device = replace(p.device, cores=64, max_invocations=1024)
        lower(self, g, p)

    def counted(self: PlanBuilder, shader: Any, *groups: Any, **more: Any) -> None:
        if str(shader).startswith("gemm_decode_plain_row"):
            noted.append(more["spec"]["LOCAL_SIZE"])
        dispatch(self, shader, *groups, **more)

    monkeypatch.setattr(decode_kernels._PlainRow, "lower", with_many_cores)
    monkeypatch.setattr(PlanBuilder, "dispatch", counted)
    g, depth, more = _Graph(rng, 16, 0, False), 1032, {}
    if form != "sum":
        g.norm("x", "a", depth)
    for name, columns in {"parts": [("q", 64), ("k", 32), ("v", 16)], "sum": [("p", 96)],
                          "gated": [("gate", 48), ("up", 48)]}[form]:
        g.product("x" if form == "sum" else "a", name, depth, columns)
    if form == "sum":
        g.nodes.append(node("Add", "r p", "y"))
        more = {"r": _rows(rng, 1, 96)}
    elif form == "gated":
        g.nodes += [node("Sigmoid", "gate", "s"), node("Mul", "gate s", "silu"),
                    node("Mul", "up silu", "y")]
    g.check(_rows(rng, 1, depth), ["q", "k", "v"] if form == "parts" else ["y"], more,
            ["DECODE_PRODUCT"], "gemm_decode_plain_row")
    assert noted and set(noted) == {1024}


def test_a_row_of_no_whole_vectors(rng: np.random.Generator) -> None:
    g = _Graph(rng, 16, 0, False)
    g.product("x", "y", 132, 64)
    g.check(_rows(rng, 1, 132), ["y"], {}, ["DECODE_PRODUCT"], "gemm_decode_plain")


@pytest.mark.parametrize(("bits", "zeros"), [(4, True), (8, False)])
def test_devices_without_float16_arithmetic(
    bits: int, zeros: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "KERNELS", tuple(
        k for k in decode_kernels.KERNELS if k.name == "blocks-floats"))
    g = _Graph(rng, bits, 64, zeros)
    g.product("x", "y", _K, 32)
    g.check(_rows(rng, 1), ["y"], {}, ["DECODE_PRODUCT"])


@pytest.mark.parametrize("bits", [4, 16])
def test_long_rows_are_held_in_parts(bits: int, rng: np.random.Generator) -> None:
    """More of K than shared memory holds, and large numbers, whose sums FLOAT16 does not hold."""
    depth = 6144
    g = _Graph(rng, bits, 32, False)
    g.product("x", "y", depth, 16)
    rows = _rows(rng, 8, depth)
    rows[:, 3] *= 100
    g.check(rows, ["y"], {}, ["DECODE_PRODUCT"])
