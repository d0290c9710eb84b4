"""Products of few rows by weights of 4 or 8 bits in blocks: one kernel instead of DEQUANTIZE and
GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.operators.matrix_multiply.blocked_weights import BlockedGemmDesc
from kompute_dml.runtime.traits import DeviceClass
from record_plans import targets
from switches import long_pipelines
from test_convolution import EveryWork, set_slow_barriers, set_traits
from test_gemm import h200, runs_fragments

pytestmark = [pytest.mark.usefixtures("_not_folded"), pytest.mark.skipif(
    find_spec("ml_dtypes") is None, reason="NumPy has no types of 4 bits")]
U = 2.0**-24
BOTH = ["DEQUANTIZE", "GEMM"]


@pytest.fixture
def _not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU keeps dequantized constants, if there is room."""
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "constant_folding")


class Weights:
    """Weights of so many columns and K, with a scale and perhaps a zero point for each block."""

    def __init__(self, kind: str, number: str, columns: int, blocks: int, block: int,
                 has_zero: bool, rng: np.random.Generator) -> None:
        signed, bits = kind[0] == "i", int(kind[-1])
        self.type = dml.DataType.of(kind).dtype
        low = -(1 << bits - 1) if signed else 0

        def integers(*sizes: int) -> np.ndarray:
            return rng.integers(low, low + (1 << bits), sizes).astype(self.type)

        self.elements, self.zeros = integers(columns, blocks * block), integers(columns, blocks)
        self.scales = rng.uniform(2.0**-7, 2.0**-5, (columns, blocks)).astype(number)
        middle = 0 if signed else 1 << bits - 1
        zeros = self.zeros.astype(np.float64) if has_zero else np.full((columns, blocks), middle)
        self.real = (self.elements.astype(np.float64) - np.repeat(zeros, block, 1)) * np.repeat(
            self.scales.astype(np.float64), block, 1)
        self.parts = [self.scales, *[self.zeros] * has_zero]


def _compiled(device: dml.Device, weights: Weights, a: np.ndarray, c: np.ndarray | None,
              **more: Any) -> Any:
    k = a.shape[-1]
    with dml.Graph(device) as g:
        x = g.input(a.shape, a.dtype.name)
        parts = [g.constant(t) for t in weights.parts]
        w = dml.dequantize(g.constant(weights.elements), parts, quantization_type=len(parts))
        y = dml.gemm(x, w[:, :k], trans_b=1, **more)
        return g.compile(y if c is None else dml.activation_relu(y + g.constant(c)))


def _close(got: np.ndarray, a: np.ndarray, weights: Weights, c: np.ndarray | None, *,
           rounds_weights: bool) -> None:
    """GEMM's bound in spec/accuracy.md. FLOAT16 also rounds the result, and DEQUANTIZE's one."""
    k, half = a.shape[-1], a.dtype == np.float16
    x, w = a.astype(np.float64), weights.real[:, :k].T
    y, size = x @ w, abs(x) @ abs(w)
    bound = (k + 4 + 2) * U * size + (2.0**-11 * size if half and rounds_weights else 0)
    if c is not None:
        y, bound = np.maximum(y + c, 0), bound + U * abs(c)
    bound = bound + (2.0**-11 * abs(y) + 2.0**-11 * bound + 2.0**-25 if half else U * abs(y))
    assert (abs(got.astype(np.float64) - y) <= bound).all()


def _variants(run: Any) -> list[str]:
    return [name for compiled, _ in run._plan._steps for name in compiled.variants]


def _of_rows(rows: int) -> str:
    return f"gemm_blocked_weights.r{next(n for n in (1, 2, 4, 8) if n >= rows)}"


_CASES = [
    ("uint4", "float16", 1, 96, 5, 16, True),
    ("int4", "float32", 3, 1024, 9, 64, True),
]
_LONG = [
    ("uint4", "float32", 1, 4100, 37, 32, False),  # K ends in a block; K is split
    ("uint4", "float16", 2, 90, 33, 16, False),  # an odd number of half vectors
    ("uint4", "float16", 4, 200, 40, 128, True),
    ("uint4", "float32", 7, 513, 19, 256, False),
    ("uint8", "float32", 1, 272, 21, 16, True),
    ("int8", "float16", 5, 160, 12, 32, False),
]
_FORCED = [("gemm_blocked_weights-r8-split", 11),  # in two tiles
           ("dequantize", 3),
           *((f"gemm_blocked_weights_coopmat-r{n}-split", n) for n in (1, 8, 16))]
VARIANTS = {_of_rows(rows) for _, _, rows, *_ in (*_CASES, *_LONG)} | {
    kernel.removesuffix("-split").replace("-", ".") for kernel, _ in _FORCED
    if kernel != "dequantize"}


@pytest.mark.parametrize(("kind", "number", "rows", "k", "columns", "block", "has_zero"), [
    *_CASES, *(pytest.param(*case, marks=long_pipelines) for case in _LONG)])
def test_values(kind: str, number: str, rows: int, k: int, columns: int, block: int,
                has_zero: bool, device: dml.Device, rng: np.random.Generator,
                monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(kind, number, columns, -(-k // block), block, has_zero, rng)
    a = rng.normal(0, 1, (rows, k)).astype(number)
    fused = _compiled(device, weights, a, None)
    assert (fused.operators, _variants(fused)) == (["GEMM"], [_of_rows(rows)])
    got = fused(a)
    _close(got, a, weights, None, rounds_weights=False)
    np.testing.assert_array_equal(got, fused(a))
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "blocked_weights, constant_folding")
    plain = _compiled(device, weights, a, None)
    assert plain.operators == BOTH
    _close(plain(a), a, weights, None, rounds_weights=True)


@pytest.mark.parametrize("exact", [False, True])
def test_rows_stay_halves_where_conversions_are_exact(
    exact: bool, own: dml.Device, rng: np.random.Generator
) -> None:
    set_traits(own, exact_units=exact)
    weights = Weights("uint4", "float16", 33, 5, 32, False, rng)
    a = rng.normal(0, 1, (2, 154)).astype(np.float16)
    run = _compiled(own, weights, a, None)
    _close(run(a), a, weights, None, rounds_weights=False)
    (held,) = (d.spec["HELD"] for compiled, _ in run._plan._steps for d in compiled.plan.execute
               if d.variant.name == _of_rows(2))
    assert held == (128 if exact else 64)


@long_pipelines
@pytest.mark.parametrize(("kernel", "rows"), _FORCED)
def test_each_kernel(kernel: str, rows: int, own: dml.Device, rng: np.random.Generator) -> None:
    """Also those that this device would not choose. With C and an activation."""
    weights = Weights("uint4", "float16", 70, 6, 32, True, rng)
    a, c = (rng.normal(0, 1, (rows, n)).astype(np.float16) for n in (190, 70))
    set_slow_barriers(own, False)  # with slow barriers, more than 8 rows are left
    if "coopmat" in kernel and not runs_fragments(own):
        pytest.skip("it needs matrix units, and to know where their elements lie")
    with tuning.trial(EveryWork(kernel)):
        run = _compiled(own, weights, a, c)
        assert run.operators == ["GEMM"]
        # Matrix units take FLOAT16 weights of several rows. For one row, sums are scaled instead.
        rounds = kernel == "dequantize" or ("coopmat" in kernel and rows > 1)
        _close(run(a), a, weights, c, rounds_weights=rounds)
    first = kernel.removesuffix("-split").replace("-", ".")
    assert _variants(run)[0] == (
        "quantize_blocks.dequantize" if kernel == "dequantize" else first)


@pytest.mark.parametrize(("kind", "rows", "variant"), [
    (DeviceClass.UNKNOWN, 5, "gemm_blocked_weights.r8"),
    (DeviceClass.INTEL, 1, "gemm_blocked_weights.r1"),
    (DeviceClass.INTEL, 5, "gemm_blocked_weights.r2"),
    (DeviceClass.INTEL, 9, "quantize_blocks.dequantize"),  # too many tiles
    (DeviceClass.AMD_GCN, 8, "gemm_blocked_weights.r4")])
def test_several_small_tiles_take_the_place_of_a_crowded_one(
    kind: DeviceClass, rows: int, variant: str, own: dml.Device, rng: np.random.Generator
) -> None:
    set_traits(own, slow_barriers=False, device_class=kind)
    weights = Weights("uint4", "float32", 33, 5, 32, True, rng)
    a = rng.normal(0, 1, (rows, 160)).astype(np.float32)
    run = _compiled(own, weights, a, None)
    assert _variants(run)[0] == variant
    _close(run(a), a, weights, None, rounds_weights=rows > 8)


@long_pipelines
@pytest.mark.parametrize("room", [None, 0])
def test_constants_are_dequantized_once(
    room: int | None, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """For many rows, and on a CPU for few, if there is room for what is several times as large."""
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "")
    if room is not None:
        monkeypatch.setattr("kompute_dml.graph.planner.room_for_weights", lambda *given: room)
    weights = Weights("uint4", "float32", 160, 4, 32, True, rng)  # more than 64 KB
    a = rng.normal(0, 1, (17, 128)).astype(np.float32)
    for x in (a, a[:2]):
        run = _compiled(device, weights, x, None)
        assert run.operators == (["GEMM"] if room is None or len(x) == 2 else BOTH)
        _close(run(x), x, weights, None, rounds_weights=True)
        slow = device.target.traits.slow_barriers
        assert ("gemm_blocked_weights.r2" in _variants(run)) == (
            len(x) == 2 and not (slow and room is None))


@pytest.mark.parametrize("what", ["many rows", "blocks of 20", "N contiguous", "another reader"])
def test_what_is_left(what: str, device: dml.Device, rng: np.random.Generator) -> None:
    """Its values are right, too."""
    rows, block = 17 if what == "many rows" else 2, 20 if what == "blocks of 20" else 32
    weights = Weights("uint4", "float32", 5 if what != "N contiguous" else 4 * block, 4, block,
                      True, rng)
    k = weights.real.shape[0] if what == "N contiguous" else weights.real.shape[1]
    a = rng.normal(0, 1, (rows, k)).astype(np.float32)
    with dml.Graph(device) as g:
        x = g.input(a.shape)
        w = dml.dequantize(g.constant(weights.elements), [
            g.constant(t) for t in weights.parts], quantization_type=2)
        y = dml.gemm(x, w, trans_b=int(what != "N contiguous"))
        run = g.compile([y, w] if what == "another reader" else [y])
    assert run.operators == BOTH
    if what == "N contiguous":
        weights.real = weights.real.T
    _close(run(a)[0], a, weights, None, rounds_weights=True)


@pytest.mark.parametrize(("kind", "rows", "k", "columns", "variant", "groups"), [
    ("float16", 1, 4096, 11008, "gemm_blocked_weights_coopmat.r1", 344),
    ("float16", 1, 11008, 4096, "gemm_blocked_weights_coopmat.r1", 128),
    ("float16", 1, 4096, 2048, "gemm_blocked_weights_coopmat.r1", 128),
    ("float16", 1, 20480, 4096, "gemm_blocked_weights_coopmat.r1", 2 * 128),  # A is long
    ("float16", 5, 4096, 11008, "gemm_blocked_weights_coopmat.r8", 172),
    ("float16", 16, 4096, 11008, "gemm_blocked_weights_coopmat.r16", 86),
    ("float32", 1, 4096, 11008, "gemm_blocked_weights.r1", 344),
    ("float32", 1, 11008, 4096, "gemm_blocked_weights.r1", 256),
    ("float32", 4, 4096, 11008, "gemm_blocked_weights.r4", 344),
    ("float32", 8, 4096, 11008, "gemm_blocked_weights.r8", 344),
    ("float32", 16, 4096, 11008, "gemm_blocked_weights.r8", 2 * 172),  # two tiles of rows
])
def test_kernels_for_an_h200(
    kind: str, rows: int, k: int, columns: int, variant: str, groups: int
) -> None:
    a, b, y, scale = (dml.TensorDesc(kind, s) for s in (
        (rows, k), (k, columns), (rows, columns), (columns, k // 32)))
    d = BlockedGemmDesc(
        a_tensor=a, b_tensor=dml.TensorDesc("uint4", b.sizes, (1, k)), output_tensor=y, trans_a=0,
        trans_b=0, alpha=1.0, beta=0.0, b_scale_tensor=scale, block_size=32)
    with tuning.trial({}):
        dispatch, = d.operator.lower(d, h200()).execute
    dispatch.variant.pack_spec(dispatch.spec)
    assert (dispatch.variant.name, dispatch.groups) == (variant, groups)


@pytest.mark.parametrize(("kind", "exact", "floats"), [
    (DeviceClass.UNKNOWN, True, False),
    (DeviceClass.UNKNOWN, False, True),  # conversions take many instructions
    (DeviceClass.AMD_RDNA, True, True),  # operations on halves take twice as long
])
def test_where_halves_become_floats(
    kind: DeviceClass, exact: bool, floats: bool
) -> None:
    spec = _spec_of_eight_rows("no_matrix_units", device_class=kind, exact_units=exact)
    assert spec["HOLDS_FLOATS"] == floats
    assert spec["HELD"] == (16 if floats else 32)


@pytest.mark.parametrize(("device", "kilobytes", "held"), [
    ("no_matrix_units", 64, 16), ("no_matrix_units", 48, 16), ("no_matrix_units", 32, 8),
    ("no_matrix_units", 16, 4), ("lavapipe", 32, 16)])
def test_cores_of_a_gpu_have_shared_memory_for_two_workgroups(
    device: str, kilobytes: int, held: int
) -> None:
    assert _spec_of_eight_rows(device, max_shared_memory=kilobytes << 10)["HELD"] == held


def _spec_of_eight_rows(device: str, **traits: Any) -> Mapping[str, int]:
    target = targets()[device]
    target = replace(target, traits=replace(target.traits, **traits))
    d = BlockedGemmDesc(
        a_tensor=dml.TensorDesc("float16", (8, 4096)), output_tensor=dml.TensorDesc(
            "float16", (8, 1024)), b_tensor=dml.TensorDesc("uint4", (4096, 1024), (1, 4096)),
        trans_a=0, trans_b=0, alpha=1.0, beta=0.0, block_size=32,
        b_scale_tensor=dml.TensorDesc("float16", (1024, 128)))
    with tuning.trial({}):
        dispatch, = d.operator.lower(d, target).execute
    return dispatch.spec
