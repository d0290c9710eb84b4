"""GEMM's kernels, each forced to products that another one would serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.desc import TensorDesc
from kompute_dml.graph.passes import epilogue
from kompute_dml.lowering.builder import PlanBuilder, target_of
from kompute_dml.lowering.copy import CopyView, copied
from kompute_dml.lowering.plan import TEMPORARY, Dispatch, Plan, Target
from kompute_dml.operators import chain
from kompute_dml.operators.base import widened
from kompute_dml.operators.matrix_multiply import float_kernels, gemm
from kompute_dml.operators.matrix_multiply.float_dispatch import Alike
from kompute_dml.operators.matrix_multiply.float_product import FloatLaunch, FloatProduct
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.shader_library import sizes
from kompute_dml.runtime.traits import DeviceClass, DeviceTraits
from plans import shaders_of
from switches import long_pipelines
from test_convolution import (
    EveryWork,
    _matrix_units,
    set_slow_barriers,
    set_traits,
    with_figures,
)
from test_matrix_multiply_kernels import _library_of_everything

_CASES: list[tuple[str, str, tuple[int, ...], int, int, bool]] = [
    ("gemm_blocks-t64", "float32", (2, 70, 36, 132), 0, 1, True),
    ("gemm_blocks-t64", "float32", (2, 76, 37, 68), 1, 0, False),  # K ends inside of a vector
    ("gemm_blocks-t64", "float16", (1, 33, 19, 67), 0, 0, False),  # no vectors
    ("gemm_blocks-t32", "float32", (2, 70, 36, 132), 0, 1, True),
    ("gemm_blocks-t32", "float32", (2, 76, 37, 68), 1, 0, False),
    ("gemm_blocks-t32", "float16", (1, 33, 19, 67), 0, 0, False),
    ("gemm_blocks-t32", "float32", (1, 1, 40, 35), 1, 1, True),
    ("gemm_blocks-t128", "float32", (1, 132, 40, 140), 1, 0, False),
    ("gemm-t128", "float32", (1, 130, 17, 140), 0, 0, False),
    ("gemm-t64", "float16", (2, 66, 40, 72), 0, 1, False),
    ("gemm-t128-split", "float32", (1, 130, 300, 140), 0, 0, False),
    ("gemm-t64-split", "float16", (3, 66, 70, 67), 0, 1, True),  # edges in parts of K
    ("gemm_few_rows-k_contiguous-r8-split", "float32", (1, 7, 1032, 24), 0, 1, True),
    ("gemm_few_rows-n_contiguous-r8-split", "float32", (1, 7, 1031, 264), 0, 0, True),
    ("gemm_few_rows-n_contiguous-r1-split", "float32", (1, 1, 2700, 140), 0, 0, True),
    ("gemm_few_rows-n_contiguous-r4-split", "float16", (2, 3, 90, 136), 0, 0, False),
    ("gemm_short-t512", "float32", (1, 7, 1031, 264), 0, 0, True),
    ("gemm_short-t512", "float16", (3, 1, 5, 1028), 0, 0, True),
    ("gemm_short-t512", "float32", (2, 8, 4, 516), 1, 0, False),
    # K ends inside a step or not, for few columns of all batches, and for many.
    ("gemm_few_rows_coopmat-k-r1-split", "float16", (1, 1, 2312, 72), 0, 1, True),
    ("gemm_few_rows_coopmat-k-r1-split", "float16", (3, 1, 72, 131), 0, 1, False),
    ("gemm_few_rows_coopmat-k-r8-split", "float16", (2, 5, 1024, 72), 0, 1, False),
    ("gemm_few_rows_coopmat-k-r8-split", "float16", (1, 7, 1032, 205), 0, 1, True),
    ("gemm_few_rows_coopmat-k-r16-split", "float16", (1, 13, 2056, 72), 0, 1, True),
    ("gemm_few_rows_coopmat-k-r16-split", "float16", (2, 16, 1096, 131), 0, 1, False),
    ("gemm_few_rows_coopmat-k-r8-split", "float16", (2, 5, 1032, 72), 1, 1, True),  # A is copied
    ("gemm_few_rows_coopmat-n4-r1-split", "float16", (2, 1, 512, 72), 0, 0, False),
    ("gemm_few_rows_coopmat-n4-r8-split", "float16", (1, 7, 2312, 72), 0, 0, True),
    ("gemm_few_rows_coopmat-n4-r16-split", "float16", (1, 13, 1032, 136), 0, 0, True),
    ("gemm_few_rows_coopmat-n-r1-split", "float16", (2, 1, 512, 136), 0, 0, False),
    ("gemm_few_rows_coopmat-n-r8-split", "float16", (1, 7, 1032, 264), 0, 0, True),
    ("gemm_few_rows_coopmat-n4-r16-split", "float16", (3, 16, 1096, 136), 0, 0, True),
    # K, or columns, are no whole vectors: multiples of four, of two, odd.
    ("gemm_few_rows_coopmat-k-r1-split", "float16", (1, 1, 1028, 72), 0, 1, False),
    ("gemm_few_rows_coopmat-k-r16-split", "float16", (2, 16, 1030, 131), 0, 1, True),
    ("gemm_few_rows_coopmat-k-r8-split", "float16", (1, 7, 1025, 205), 0, 1, True),
    ("gemm_few_rows_coopmat-k-r8-split", "float16", (2, 3, 9, 67), 0, 1, False),
    ("gemm_few_rows_coopmat-k-r8-split", "float16", (1, 5, 1029, 72), 1, 1, False),  # A is copied
    ("gemm_few_rows_coopmat-n-r1-split", "float16", (2, 1, 516, 132), 0, 0, False),
    ("gemm_few_rows_coopmat-n-r8-split", "float16", (1, 7, 1031, 268), 0, 0, True),
    ("gemm_few_rows_coopmat-n4-r1-split", "float16", (2, 1, 516, 131), 0, 0, True),
    ("gemm_few_rows_coopmat-n4-r8-split", "float16", (1, 7, 1031, 262), 0, 0, True),
    ("gemm_few_rows_coopmat-n4-r8-split", "float16", (3, 8, 331, 101), 0, 0, False),
    ("gemm_few_rows_coopmat-n4-r16-split", "float16", (1, 13, 1034, 70), 0, 0, True),
    ("gemm_few_rows_coopmat-n4-r16-split", "float16", (2, 13, 1034, 135), 0, 0, False),
    ("gemm_few_rows_coopmat-n4-r16-split", "float16", (1, 16, 1031, 204), 0, 0, False),
    ("gemm_few_rows_coopmat-n4-r8-split", "float16", (1, 7, 2311, 67), 0, 0, False),
    ("gemm_few_rows_coopmat-n4-r8-split", "float16", (1, 2, 8, 5), 0, 0, False),
    ("gemm_coopmat-t64x256p", "float16", (1, 128, 96, 256), 0, 0, False),
    ("gemm_coopmat-t64x256p", "float16", (2, 130, 203, 141), 1, 0, True),  # edges, no vectors
    ("gemm_coopmat-t64x256p", "float16", (2, 72, 72, 264), 0, 1, True),
    ("gemm_coopmat-t64x256p", "float16", (1, 150, 24, 320), 1, 1, False),  # less than a slice
    ("gemm_direct_coopmat-t32n", "float16", (6, 130, 64, 136), 0, 0, False),  # K at once
    ("gemm_direct_coopmat-t32n", "float16", (1, 72, 840, 40), 0, 0, True),
    ("gemm_direct_coopmat-t32k", "float16", (2, 70, 1096, 67), 0, 1, True),
    ("gemm_direct_coopmat-t64k", "float16", (2, 130, 520, 141), 0, 1, True),
    ("gemm_direct_coopmat-t64s", "float16", (2, 130, 328, 136), 0, 0, True),
    ("gemm_direct_coopmat-t64s", "float16", (1, 64, 256, 64), 0, 0, False),
    ("gemm_direct_coopmat-t128x64s", "float16", (2, 264, 200, 72), 0, 0, True),
]
_OTHER_UNITS = ("t64m8n16", "t32m8n8", "t16m8n8d8")
"""Tiles for matrix units of other shapes than 16 x 16 x 16, or smaller subgroups."""
VARIANTS = {kernel.removesuffix("-split").replace("-", ".") for kernel, *_ in _CASES} | {
    "gemm_pack", *(f"gemm_coopmat.{tile}" for tile in _OTHER_UNITS),
    *shaders_of(k for k in float_kernels.KERNELS if k.variant.startswith("gemm."))}


def runs_fragments(device: dml.Device) -> bool:
    traits = device.target.traits
    return traits.fragments_alike and all(
        traits.multiplies(16, n, 16, "f16", "f32") for n in (8, 16))


@pytest.mark.parametrize(
    ("kernel", "data_type", "sizes", "trans_a", "trans_b", "whole"),
    [pytest.param(*case, marks=long_pipelines) if "blocks" in case[0] else case
     for case in _CASES])
def test_kernels_compute_the_same(
    kernel: str, data_type: str, sizes: tuple[int, ...], trans_a: int, trans_b: int,
    whole: bool, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``whole``: with C and an activation, which take long to compile."""
    batches, m, k, n = sizes
    a, b, c = (rng.integers(-4, 5, (batches, *size)).astype(data_type)
               for size in ((m, k), (k, n), (m, n)))

    def given(x: np.ndarray, transposed: int) -> dml.Tensor:
        return own.tensor(np.ascontiguousarray(x.swapaxes(1, 2)) if transposed else x)

    set_slow_barriers(own, "blocks" in kernel)
    set_traits(own, slow_compiler=kernel == "gemm_blocks-t32")
    if "coopmat" in kernel and not runs_fragments(own):
        pytest.skip("it needs matrix units, and to know where their elements lie")
    with_figures(monkeypatch, **{
        # Also offered for small products of an A without vectors.
        "gemm_coopmat": {"worth": 0}, "gemm_coopmat.t64x256p": {"k": 0},
        "gemm_few_rows_coopmat": {"columns": 200}})
    # A GPU's tiles say in how many parts they split K.
    parts = "2" if kernel.startswith("gemm-") and kernel.endswith("-split") and (
        not own.target.traits.is_cpu) else ""
    with tuning.trial(EveryWork(kernel + parts)):
        y = dml.gemm(
            given(a, trans_a), given(b, trans_b), own.tensor(c) if whole else None,
            trans_a=trans_a, trans_b=trans_b, alpha=0.5, beta=2.0,
            fused_activation=dml.ActivationReluOperatorDesc() if whole else None).numpy()
    expected = a.astype(np.float64) @ b.astype(np.float64) / 2
    assert (y == (np.maximum(expected + 2.0 * c, 0) if whole else expected)).all()
    names = {name for each in own.compiled.values() for name in each.variants}
    assert kernel.removesuffix("-split").replace("-", ".") in names & VARIANTS


def _unit(tile: str) -> dict[str, int]:
    every = sizes(f"gemm_coopmat.{tile}")
    return {name: every[name] for name in ("m", "n", "depth", "lanes")}


@pytest.mark.parametrize(("size", "trans_a", "trans_b", "whole"), [
    ((2, 66, 96, 72), 0, 0, True), ((1, 70, 133, 141), 0, 1, False),
    ((3, 33, 24, 200), 1, 0, False)])
@pytest.mark.parametrize("tile", _OTHER_UNITS)
def test_units_of_any_shape_compute_the_same(
    tile: str, size: tuple[int, ...], trans_a: int, trans_b: int, whole: bool, own: dml.Device,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mesa's lavapipe since 26 has those of 8 x 8 x 8."""
    m, n, depth, lanes = _unit(tile).values()
    if not own.target.traits.multiplies(m, n, depth, "f16", "f32", lanes):
        pytest.skip("the device lists no such matrix units")
    set_slow_barriers(own, False)
    with_figures(monkeypatch, gemm_coopmat={"worth": 0})
    batches, rows, k, columns = size
    a, b, c = (rng.integers(-4, 5, (batches, *each)).astype(np.float16)
               for each in ((rows, k), (k, columns), (rows, columns)))
    given = [own.tensor(np.ascontiguousarray(x.swapaxes(1, 2)) if transposed else x)
             for x, transposed in ((a, trans_a), (b, trans_b))]
    with tuning.trial(EveryWork(f"gemm_coopmat-{tile}")):
        y = dml.gemm(*given, own.tensor(c) if whole else None, trans_a=trans_a, trans_b=trans_b,
                     alpha=0.5, beta=2.0)
    expected = a.astype(np.float64) @ b.astype(np.float64) / 2 + (2.0 * c if whole else 0)
    np.testing.assert_array_equal(y.numpy(), expected)
    names = {name for each in own.compiled.values() for name in each.variants}
    assert any(name.startswith(f"gemm_coopmat.{tile}") for name in names)


def _lists(m: int, n: int, depth: int, own: int, sizes: tuple[int, int]) -> Target:
    """A GPU with matrix units of a shape, subgroups of ``own``, and others that may be asked
    for."""
    return target_of(_library_of_everything(), replace(
        dml.default_device().adapter, type="discrete", driver="a driver", name="a GPU", cores=64,
        features=frozenset({"subgroupSizeControl", "computeFullSubgroups"}), subgroup_size=own,
        subgroup_sizes=sizes, max_shared_memory=48 << 10, max_workgroup_invocations=1024,
        cooperative_matrices=(CooperativeMatrix(
            m, n, depth, "f16", "f16", "f32", "f32", "subgroup"),)))


@pytest.mark.parametrize(("shape", "own", "asked", "variant"), [
    ((16, 16, 16), 64, (32, 64), "gemm_coopmat.t64"),
    ((16, 16, 16), 64, (64, 64), "gemm.t64"),  # nothing is made for 64
    ((16, 16, 16), 64, (0, 0), "gemm.t64"),
    ((8, 16, 16), 32, (16, 32), "gemm_coopmat.t64m8n16"),
    ((8, 8, 16), 32, (8, 32), "gemm_coopmat.t32m8n8"),
    ((8, 8, 8), 8, (8, 8), "gemm_coopmat.t16m8n8d8"),
    ((16, 8, 8), 32, (32, 32), "gemm.t64"),  # a shape that no kernel has
])
def test_matrix_units_are_those_that_the_device_lists(
    shape: tuple[int, int, int], own: int, asked: tuple[int, int], variant: str
) -> None:
    target = _lists(*shape, own, asked)
    if target.library.find("gemm_coopmat", "t64") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    a, b, y = (dml.TensorDesc("float16", s) for s in ((512, 512), (512, 512), (512, 512)))
    desc = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0, trans_b=0,
                                alpha=1.0, beta=0.0)
    with tuning.trial({}):
        (dispatch,) = desc.operator.lower(desc, target).execute
    assert dispatch.variant.name == variant
    asks = dispatch.variant.subgroup_size
    assert asks == 0 or asks == own or asks in range(asked[0], asked[1] + 1)


def _as_gpu(device: dml.Device, cores: int) -> None:
    traits = replace(device.target.traits, device_class=DeviceClass.UNKNOWN,
                     slow_barriers=False, cores=cores)
    device.target = replace(device.target, traits=traits)


@pytest.mark.parametrize(("k", "columns", "transposed"), [
    (96, 72, 0), (192, 72, 1), (100, 72, 0), (96, 70, 0)],
    ids=["whole slices", "transposed", "K ends inside", "no vectors"])
@pytest.mark.parametrize("kernel", [
    "t128", "t128x64", "t128x64d", "t32x64", "t32", "t64-split3", "t128x64-split2"])
def test_kernels_of_a_gpu_compute_the_same(
    kernel: str, k: int, columns: int, transposed: int, own: dml.Device,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    _as_gpu(own, 132)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((2, 140, k), (2, k, columns)))
    given = [np.ascontiguousarray(x.swapaxes(1, 2)) if transposed else x for x in (a, b)]
    with tuning.trial(EveryWork(f"gemm-{kernel}")):
        y = dml.gemm(*map(own.tensor, given), trans_a=transposed, trans_b=transposed)
    np.testing.assert_array_equal(y.numpy(), a @ b)
    (compiled,) = own.compiled.values()
    (dispatch,) = compiled.plan.execute
    name, _, parts = kernel.partition("-split")
    assert dispatch.variant.name == f"gemm.{name}"
    assert dispatch.push["parts"] == int(parts or 1)
    assert bool(dispatch.push["alike"] & Alike.SUM_VECTORS) == (columns == 72)
    assert dispatch.spec["ENDS_INSIDE"] == (k == 100 or dispatch.spec["VECTORS"] < 2)


@pytest.mark.parametrize(("rows", "columns", "beside"), [
    (140, 72, ""), (140, 70, "row"), (140, 72, "rows"), (139, 70, ""), (139, 71, "row")])
@pytest.mark.parametrize("parts", [3, 8])
def test_another_dispatch_adds_up_many_parts(
    parts: int, rows: int, columns: int, beside: str, own: dml.Device, rng: np.random.Generator
) -> None:
    """Where no more than a row is added to them, and the sums of each part are whole vectors."""
    _as_gpu(own, 132)
    a, b, c = (rng.integers(-4, 5, s).astype(np.float32)
               for s in ((rows, 512), (512, columns), (rows if beside == "rows" else 1, columns)))
    added = own.tensor(c).broadcast_to((rows, columns)) if beside else None
    with tuning.trial(EveryWork(f"gemm-t32-split{parts}")):
        y = dml.gemm(own.tensor(a), own.tensor(b), added,
                     fused_activation=dml.ActivationReluOperatorDesc())
    expected = np.maximum(a @ b + (c if beside else 0), 0)
    np.testing.assert_array_equal(y.numpy(), expected)
    (compiled,) = own.compiled.values()
    apart = parts == 8 and beside != "rows" and rows * columns % 4 == 0
    assert compiled.variants == ("gemm.t32", *["convolution_sum.float"] * apart)
    assert bool(compiled.plan.zeroed_bytes) != apart


@pytest.mark.parametrize(("sizes", "kernel", "parts"), [
    ((2048, 2048, 2048), "t128", 1), ((4096, 768, 768), "t128x64", 1),
    ((1024, 1024, 1024), "t128x64d", 1), ((512, 768, 768), "t32x64", 2),
    ((1500, 384, 384), "t32x64", 1), ((1500, 1536, 384), "t128x64", 3),
    ((128, 384, 384), "t32x64", 4)])
def test_tiles_that_fill_all_cores(
    sizes: tuple[int, int, int], kernel: str, parts: int, own: dml.Device
) -> None:
    """Of an H200: (rows, K, columns)."""
    _as_gpu(own, 132)
    m, k, n = sizes
    a, b, y = (dml.TensorDesc("float32", s) for s in ((m, k), (k, n), (m, n)))
    compiled = own.compile_operator(own.create_operator(dml.GemmOperatorDesc(
        a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0, trans_b=0, alpha=1.0, beta=0.0)))
    (dispatch,) = compiled.plan.execute
    assert (dispatch.variant.name, dispatch.push["parts"]) == (f"gemm.{kernel}", parts)


@pytest.mark.parametrize(("sizes", "rows", "vectors"), [
    ((1, 64), False, True), ((48, 64), True, True), ((48, 1), True, False), ((1, 1), False, False)])
def test_c_is_read_in_vectors_where_it_consists_of_them(
    sizes: tuple[int, int], rows: bool, vectors: bool, own: dml.Device
) -> None:
    """A bias is one vector for all rows."""
    a, b, c = (dml.TensorDesc("float32", s) for s in ((48, 32), (32, 64), sizes))
    c = dml.TensorDesc("float32", (48, 64), [s if n > 1 else 0
                                             for n, s in zip(sizes, (sizes[1], 1))])
    compiled = own.compile_operator(own.create_operator(dml.GemmOperatorDesc(
        a_tensor=a, b_tensor=b, c_tensor=c, output_tensor=dml.TensorDesc("float32", (48, 64)),
        trans_a=0, trans_b=0, alpha=1.0, beta=1.0)))
    (dispatch,) = compiled.plan.execute
    assert dispatch.spec["C_ROWS"] == rows
    assert bool(dispatch.push["alike"] & Alike.C_VECTORS) == vectors


@pytest.mark.parametrize(("data_type", "sizes", "kernel", "workgroups"), [
    ("float16", (128, 3072, 768), "gemm_coopmat.t64d", 24 * 5),  # five parts of K
    ("float16", (512, 3072, 768), "gemm_coopmat.t64d", 96),
    ("float16", (512, 512, 512), "gemm_coopmat.t32x64", 128),
    ("float16", (1024, 1024, 1024), "gemm_coopmat.t64", 256),
    ("float16 direct", (128, 3072, 768), "gemm_direct_coopmat.t32n", 96),
    ("float16 direct", (512, 3072, 768), "gemm_direct_coopmat.t64s", 96),
    ("float16 direct", (512, 512, 512), "gemm_coopmat.t32x64", 128),
    ("float16 direct", (1024, 1024, 1024), "gemm_direct_coopmat.t128x64s", 128),
    ("float16 direct", (96, 1024, 1024), "gemm_direct_coopmat.t32n", 96),
    ("float16 direct", (32, 4096, 4096), "gemm_coopmat.t32", 128 * 4),  # a large B
    ("float16 direct", (96, 128, 64, 128), "gemm_direct_coopmat.t32n", 96 * 16),
    ("float16 direct", (1024, 64, 1024), "gemm_coopmat.t64", 256),
    ("float16 direct", (4096, 64, 4096), "gemm_coopmat.t128", 1024),
])
def test_products_of_few_tiles_keep_the_cores_of_an_h200_busy(
    data_type: str, sizes: tuple[int, ...], kernel: str, workgroups: int
) -> None:
    """"direct": the places of elements are known."""
    (*lead, m, k, n), (data_type, _, direct) = sizes, data_type.partition(" ")
    target = h200() if direct else _matrix_units()
    a, b, y = (dml.TensorDesc(data_type, (*lead, *s)) for s in ((m, k), (k, n), (m, n)))
    d = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0, trans_b=0,
                             alpha=1.0, beta=0.0)
    plan = d.operator.lower(d, target)
    assert [(x.variant.name, x.groups) for x in plan.execute] == [(kernel, workgroups)]
    for x in plan.execute:
        x.variant.pack_spec(x.spec)
        x.variant.pack_push(x.push)
    used = [o for x in plan.execute for o in x.operands if o.slot == TEMPORARY]
    assert all((o.offset + o.length) * o.itemsize <= plan.temporary_bytes for o in used)


def h200(known: bool = True) -> Target:
    """An H200 with its matrix units. ``known``: where their elements lie."""
    every = _library_of_everything()
    if every.find("gemm_coopmat", "t64") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    target = target_of(every, replace(
        dml.default_device().adapter, cores=132, subgroup_size=32, max_shared_memory=48 << 10,
        max_workgroup_invocations=1024,
        cooperative_matrices=tuple(CooperativeMatrix(
            16, n, 16, "f16", "f16", "f32", "f32", "subgroup") for n in (8, 16))))
    return replace(target, traits=replace(
        target.traits, device_class=DeviceClass.UNKNOWN,
        slow_barriers=False, fragments_alike=known))


def _plan(kind: str, rows: int, columns: int, trans_b: int, known: bool = True) -> Plan:
    target = h200(known)
    b = (columns, 4096) if trans_b else (4096, columns)
    a, b, y = (dml.TensorDesc(kind, s) for s in ((rows, 4096), b, (rows, columns)))
    desc = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0,
                                trans_b=trans_b, alpha=1.0, beta=1.0)
    with tuning.trial({}):
        return desc.operator.lower(desc, target)


@pytest.mark.parametrize(("kind", "rows", "columns", "trans_b", "known", "variant", "groups"), [
    ("float16", 1, 4096, 1, True, "gemm_few_rows_coopmat.k.r1", 128),
    ("float16", 1, 11008, 1, True, "gemm_few_rows_coopmat.k.r1", 344),
    ("float16", 1, 11008, 0, True, "gemm_few_rows_coopmat.n.r1", 172),
    ("float16", 2, 4096, 0, True, "gemm_few_rows_coopmat.n4.r8", 128),
    ("float16", 8, 11008, 1, True, "gemm_few_rows_coopmat.k.r8", 344),
    ("float16", 8, 11008, 0, True, "gemm_few_rows_coopmat.n.r8", 172),
    ("float16", 9, 4096, 1, True, "gemm_few_rows_coopmat.k.r16", 128),
    ("float16", 9, 11008, 1, True, "gemm_few_rows_coopmat.k.r16", 344),
    ("float16", 16, 11008, 0, True, "gemm_few_rows_coopmat.n4.r16", 344),
    ("float16", 16, 2048, 0, True, "gemm_few_rows_coopmat.n4.r16", 2 * 64),  # two parts of K
    ("float16", 17, 11008, 1, True, "gemm_coopmat.t32", 0),
    ("float16", 1, 1024, 1, True, "gemm_few_rows.k_contiguous.r1", 512),
    ("float16", 8, 11008, 1, False, "gemm_coopmat.t16", 344),
    ("float32", 4, 11008, 0, True, "gemm_few_rows.n_contiguous.r4", 516),
    ("float32", 8, 11008, 0, True, "gemm.t32x64", 0),
    ("float32", 8, 11008, 1, True, "gemm_few_rows.k_contiguous.r8", 1376),
])
def test_few_rows_on_matrix_units(
    kind: str, rows: int, columns: int, trans_b: int, known: bool, variant: str, groups: int
) -> None:
    """``groups``: 0 if tiles are chosen by their estimated time."""
    dispatch, = _plan(kind, rows, columns, trans_b, known).execute
    dispatch.variant.pack_spec(dispatch.spec)
    dispatch.variant.pack_push(dispatch.push)
    assert (dispatch.variant.name, dispatch.groups) == (variant, groups or dispatch.groups)


@pytest.mark.parametrize(("k", "trans_a", "variants"), [
    (4096, 0, ["gemm_few_rows_coopmat.n4.r16"]),
    (4096, 1, ["activation_identity_tiles.b16", "gemm_few_rows_coopmat.n4.r16"]),
    (4095, 0, ["gemm_few_rows_coopmat.n4.r16"]),
    (4095, 1, ["activation_identity_tiles.b16", "gemm_few_rows_coopmat.n4.r16"])])
def test_few_rows_are_copied_where_they_have_no_vectors(
    k: int, trans_a: int, variants: list[str]
) -> None:
    a, b, y = (dml.TensorDesc("float16", s) for s in (
        (k, 16) if trans_a else (16, k), (k, 4096), (16, 4096)))
    desc = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=trans_a,
                                trans_b=0, alpha=1.0, beta=1.0)
    with tuning.trial({}):
        plan = desc.operator.lower(desc, h200())
    assert [x.variant.name for x in plan.execute][-len(variants):] == variants
    x = plan.execute[-1]
    if "few_rows" in x.variant.name:
        assert (x.push["a_row"], x.push["a_k"]) == (k + -k % 8 if trans_a else k, 1)


def _reads_only_operands(x: Dispatch, trans_b: int) -> None:
    """The dispatch has all operands, constants and push fields of its shader. The product reads the
    whole of A and B and nothing else, in pieces that begin at multiples of their elements."""
    x.variant.pack_spec(x.spec)
    push = dict(zip(x.variant.push_fields, (
        int(x.variant.pack_push(x.push)[at]) for at, _ in x.variant.push_fields.values())))
    assert len(x.operands) == x.variant.bindings
    fields = [o.offset_field for o in x.operands if o.offset_field]
    assert set(fields) <= set(push) and len(set(fields)) == len(fields)
    a, b, c, y, *_ = x.operands
    assert [o.offset_field for o in (a, b, y)] == ["a_offset", "b_offset", "y_offset"]
    assert not c.slot and y.writes and not a.writes and not b.writes
    rows, k, columns = push["rows"], push["K"], push["columns"]
    for one, (count, step), along, each in (
            (a, (rows, push["a_row"]), push["a_k"], x.spec["A_EACH"]),
            (b, (columns, push["b_column"]), push["b_k"], x.spec["B_EACH"])):
        assert (count - 1) * step + (k - 1) * along + 1 == one.length
        assert one.itemsize == 2 and one.offset % each == 0
        lines, length, apart = (k, count, along) if one is b and not trans_b else (count, k, step)
        assert min(along, step or 1) == 1  # of one row the step is 0
        assert length % each == 0 and (lines == 1 or apart % each == 0)
    assert k >= 8


@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize(("k", "columns", "trans_b", "shift", "base", "a_each", "b_each"), [
    (4096, 11008, 0, 0, 0, 8, 8), (4100, 11012, 0, 0, 0, 4, 4), (4104, 11007, 0, 0, 0, 8, 1),
    (4096, 11012, 0, 0, 0, 8, 4), (4096, 11010, 0, 0, 0, 8, 2), (4096, 11007, 0, 0, 0, 8, 1),
    (4096, 4100, 0, 0, 0, 8, 4), (4096, 4104, 0, 0, 0, 8, 8), (4096, 4102, 0, 0, 0, 8, 2),
    (4096, 11007, 1, 0, 0, 8, 8), (4100, 11008, 1, 0, 0, 4, 4), (4102, 11008, 1, 0, 0, 2, 2),
    (4095, 11008, 1, 0, 0, 1, 1), (4095, 11007, 0, 0, 0, 1, 1), (4096, 11008, 1, 4, 0, 4, 4),
    (4096, 11008, 0, 2, 0, 2, 2), (4096, 11008, 1, 1, 0, 1, 1), (4096, 11008, 0, 0, 2, 1, 1),
    (4096, 4096, 0, 0, 8, 4, 4), (4096, 11008, 1, 0, 4, 2, 2), (4097, 4096, 1, 8, 0, 1, 1)])
def test_few_rows_are_read_in_the_longest_vectors_there_are(
    rows: int, k: int, columns: int, trans_b: int, shift: int, base: int, a_each: int, b_each: int
) -> None:
    """``shift``: elements behind each row of A and B. ``base``: bytes to whose multiples their
    first elements are aligned."""
    b = (columns, k) if trans_b else (k, columns)
    a, b = (TensorDesc("float16", s, (s[1] + shift, 1), guaranteed_base_offset_alignment=base)
            for s in ((rows, k), b))
    desc = dml.GemmOperatorDesc(
        a_tensor=a, b_tensor=b, output_tensor=TensorDesc("float16", (rows, columns)), trans_a=0,
        trans_b=trans_b, alpha=1.0, beta=1.0)
    with tuning.trial({}):
        x, = desc.operator.lower(desc, h200()).execute
    assert x.variant.name.startswith("gemm_few_rows_coopmat")
    _reads_only_operands(x, trans_b)
    if rows == 1 and shift and not k % 8:  # its one row has none behind it
        a_each = 8
    if ".n4." in x.variant.name:
        b_each = min(b_each, 4)
    assert (x.spec["A_EACH"], x.spec["B_EACH"], x.spec["ENDS_ODDLY"]) == (
        a_each, b_each, k % 8 != 0)


@pytest.mark.parametrize(("rows", "k", "columns", "axis", "subgroups", "steps"), [
    (8, 4096, 11008, "n.r8", 8, 1), (8, 4096, 11012, "n.r8", 8, 1),
    (8, 4096, 11010, "n4.r8", 8, 1), (8, 4095, 11007, "n4.r8", 8, 1),
    (1, 4096, 11007, "n4.r1", 8, 1), (16, 4096, 4096, "n4.r16", 16, 2),
    (16, 4096, 8192, "n4.r16", 6, 3), (9, 4096, 11008, "n4.r16", 6, 3),
    (16, 4095, 12672, "n4.r16", 6, 3), (16, 4096, 12676, "n4.r16", 4, 4),  # a fourth strip
    (16, 4096, 14336, "n4.r16", 4, 4), (16, 4096, 11007, "n4.r16", 4, 4)])
def test_subgroups_of_few_rows_share_the_places_of_a_core(
    rows: int, k: int, columns: int, axis: str, subgroups: int, steps: int
) -> None:
    a, b, y = (dml.TensorDesc("float16", s) for s in ((rows, k), (k, columns), (rows, columns)))
    desc = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0, trans_b=0,
                                alpha=1.0, beta=1.0)
    with tuning.trial({}):
        x, = desc.operator.lower(desc, h200()).execute
    _reads_only_operands(x, 0)
    assert x.variant.name == f"gemm_few_rows_coopmat.{axis}"
    assert (x.spec["LOCAL_SIZE"], x.spec["STEPS"]) == (32 * subgroups, steps)
    assert x.spec["ENDS_INSIDE"] == (k % (32 * steps) != 0)
    assert x.groups == -(-columns // (64 if axis == "n.r8" else 32))


@pytest.mark.parametrize(("rows", "k", "columns", "trans_b", "kernel"), [
    (1, 4096, 11008, 0, "gemm_few_rows_coopmat.n.r1"),
    (1, 4095, 11008, 0, "gemm_few_rows.n_contiguous.r1"),
    (1, 4095, 11007, 0, "gemm_few_rows_coopmat.n4.r1"),
    (1, 4095, 11008, 1, "gemm_few_rows_coopmat.k.r1"),
    (1, 1001, 1024, 1, "gemm_few_rows_coopmat.k.r1"),
    (1, 1001, 1024, 0, "gemm_few_rows.n_contiguous.r1"),
    (8, 1001, 1024, 0, "gemm_few_rows_coopmat.n4.r8"),
    (16, 2047, 2048, 1, "gemm_few_rows_coopmat.k.r16"),
    (8, 333, 500, 1, "gemm_few_rows_coopmat.k.r8")])
def test_the_kernel_of_few_rows_of_any_k(
    rows: int, k: int, columns: int, trans_b: int, kernel: str
) -> None:
    b = (columns, k) if trans_b else (k, columns)
    a, b, y = (dml.TensorDesc("float16", s) for s in ((rows, k), b, (rows, columns)))
    desc = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0,
                                trans_b=trans_b, alpha=1.0, beta=1.0)
    with tuning.trial({}):
        x, = desc.operator.lower(desc, h200()).execute
    assert x.variant.name == kernel


@pytest.mark.parametrize(("k", "trans_a", "rows"), [(333, 1, 8), (61, 0, 8)])
def test_small_products_stay_without_matrix_units(k: int, trans_a: int, rows: int) -> None:
    """Where A would be copied, or there is too little of B."""
    a, b, y = (dml.TensorDesc("float16", s) for s in (
        (k, rows) if trans_a else (rows, k), (k, 500), (rows, 500)))
    desc = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=trans_a,
                                trans_b=0, alpha=1.0, beta=1.0)
    with tuning.trial({}):
        dispatches = desc.operator.lower(desc, h200()).execute
    assert dispatches and not any("coopmat" in x.variant.name for x in dispatches)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(("kernel", "sizes", "trans_b"), [
    ("k-r1", (3, 1, 72, 131), 1), ("k-r8", (1, 7, 1032, 205), 1), ("k-r16", (2, 16, 1096, 131), 1),
    ("n-r1", (2, 1, 512, 136), 0), ("n-r8", (1, 7, 1032, 264), 0),
    ("n4-r8", (1, 7, 2312, 72), 0), ("n4-r16", (3, 16, 1096, 136), 0),
    ("k-r8", (2, 7, 1029, 205), 1), ("n4-r8", (2, 7, 1029, 203), 0)])
def test_few_rows_of_any_strides_and_with_a_tail(
    kernel: str, sizes: tuple[int, ...], trans_b: int, step: int, own: dml.Device,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C and the output are parts of larger tensors, whose other elements stay."""
    if not runs_fragments(own):
        pytest.skip("it needs matrix units, and to know where their elements lie")
    with_figures(monkeypatch, gemm_few_rows_coopmat={"columns": 200})
    batches, m, k, n = sizes
    a, b, c, r = (rng.integers(-4, 5, (batches, *size)).astype(np.float16)
                  for size in ((m, k), (k, n), (m + 1, step * n + 1), (m, n)))
    inner = np.s_[:, :m, 1:1 + step * n:step]
    given = np.ascontiguousarray(b.swapaxes(1, 2)) if trans_b else b
    factors: dict[str, Any] = dict(trans_b=trans_b, alpha=0.5, beta=2.0)
    expected = a.astype(np.float64) @ b.astype(np.float64) / 2 + 2.0 * c[inner]
    name = f"gemm_few_rows_coopmat.{kernel.replace('-', '.')}"
    with tuning.trial(EveryWork(f"gemm_few_rows_coopmat-{kernel}-split")):
        whole = own.tensor(np.full(c.shape, 7, np.float16))
        own.compiled.clear()
        dml.gemm(own.tensor(a), own.tensor(given), own.tensor(c)[inner], **factors,
                 out=whole[inner])
        assert {v for x in own.compiled.values() for v in x.variants} == {name}
        with dml.Graph(own) as g:
            x, w, bias, other = (g.input(t.shape, t.dtype) for t in (a, given, c[inner], r))
            y = dml.gemm(x, w, bias, **factors)
            run = g.compile(dml.subtract(other, dml.abs(y)))
        assert run.variants == (f"{name}.tail",)
        found = run(a, given, np.ascontiguousarray(c[inner]), r)
    y = whole.numpy()
    assert (y[inner] == expected).all()
    y[inner] = 7
    assert (y == 7).all()
    assert (found == r - np.abs(expected)).all()


@pytest.mark.parametrize(("kernel", "k", "columns", "trans_b"), [
    ("k-r8", 1029, 72, 1), ("k-r8", 1030, 72, 1), ("k-r16", 1028, 72, 1), ("k-r1", 1032, 72, 1),
    ("n-r8", 1029, 264, 0), ("n4-r8", 1031, 201, 0), ("n4-r16", 1030, 71, 0), ("n4-r8", 9, 68, 0)])
@pytest.mark.parametrize("beside", [1, 2, 4])
def test_few_rows_keep_infinities_and_read_nothing_beside_them(
    kernel: str, k: int, columns: int, trans_b: int, beside: int, own: dml.Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A and B are parts of larger tensors of NaN. The last elements along K are infinite."""
    if not runs_fragments(own):
        pytest.skip("it needs matrix units, and to know where their elements lie")
    with_figures(monkeypatch, gemm_coopmat={"worth": 0}, gemm_few_rows_coopmat={"columns": 200})
    if kernel == "n-r8" and beside < 4:  # it reads four columns or eight
        kernel = "n4-r8"
    rows = min(int(kernel.partition("-r")[2]), 13)
    a, b = np.ones((2, rows, k), np.float16), np.ones((2, k, columns), np.float16)
    a[:, 0, -1] = b[:, -1, 3] = np.inf
    expected = np.full((2, rows, columns), k, np.float16)
    expected[:, 0] = expected[:, :, 3] = np.inf

    def given(x: np.ndarray) -> dml.Tensor:
        whole = np.full([n + beside for n in x.shape], np.nan, np.float16)
        part = tuple(slice(beside, beside + n) for n in x.shape)
        whole[part] = x
        return own.tensor(whole)[part]

    with tuning.trial(EveryWork(f"gemm_few_rows_coopmat-{kernel}-split")):
        y = dml.gemm(given(a), given(b.swapaxes(1, 2) if trans_b else b), trans_b=trans_b)
    assert (y.numpy() == expected).all()
    names = {name for each in own.compiled.values() for name in each.variants}
    assert f"gemm_few_rows_coopmat.{kernel.replace('-', '.')}" in names


@pytest.mark.parametrize(("rows", "columns", "trans_b", "variant"), [
    (16, 11008, 0, "n4.r16"), (8, 11008, 0, "n.r8"), (16, 4096, 1, "k.r16"), (2, 4096, 0, "n4.r8")])
@pytest.mark.parametrize("step", [1, 2])
def test_the_plan_of_few_rows_of_any_strides_with_a_tail(
    rows: int, columns: int, trans_b: int, variant: str, step: int
) -> None:
    pitch = step * columns + 1
    strided = TensorDesc("float16", (rows, columns), (pitch, step))
    b = (columns, 4096) if trans_b else (4096, columns)
    subtract = dml.ElementWiseSubtractOperatorDesc(
        a_tensor=strided, b_tensor=strided, output_tensor=strided)
    desc = widened(dml.GemmOperatorDesc, *epilogue.FIELDS)(
        a_tensor=TensorDesc("float16", (rows, 4096)), b_tensor=TensorDesc("float16", b),
        c_tensor=strided, output_tensor=strided, tail_tensor=strided, trans_a=0, trans_b=trans_b,
        alpha=0.5, beta=2.0, tail=tuple(chain.steps_of(subtract, [1, 0], chain.MOST_TENSORS) or ()))
    with tuning.trial({}):
        dispatch, = desc.operator.lower(desc, h200()).execute
    dispatch.variant.pack_spec(dispatch.spec)
    dispatch.variant.pack_push(dispatch.push)
    assert dispatch.variant.name == f"gemm_few_rows_coopmat.{variant}.tail"
    assert dispatch.variant.unchecked
    assert dispatch.push["c_row"] == dispatch.push["y_row"] == pitch
    assert dispatch.push["c_column"] == dispatch.push["y_column"] == step
    assert dispatch.spec["HAS_C"] and dispatch.spec["HAS_TAIL_TENSOR"]
    assert not dispatch.push["alike"] & (Alike.C_VECTORS | Alike.Y_VECTORS)


@pytest.mark.parametrize(("batches", "trans_a"), [(1, 1), (3, 1), (3, 0)])
def test_a_is_copied_along_k(
    batches: int, trans_a: int, own: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a kernel that would not need it. Rows of an A that is not transposed begin anywhere, and
    are read where they are."""
    class AlongK(float_kernels._Sums):
        prepared = float_kernels._Fragments.prepared

    monkeypatch.setattr(gemm, "KERNELS", (AlongK("gemm.t32", 8),))
    a, b = (rng.integers(-4, 5, (batches, *s)).astype(np.float16) for s in ((13, 72), (72, 40)))
    if trans_a:
        x = own.tensor(np.ascontiguousarray(a.swapaxes(1, 2)))
    else:
        x = own.tensor(np.pad(a, ((0, 0), (0, 0), (0, 1))))[..., :72]
    y = dml.gemm(x, own.tensor(b), trans_a=trans_a)
    assert (y.numpy() == a.astype(np.float32) @ b.astype(np.float32)).all()
    (compiled,) = own.compiled.values()
    *copies, product = compiled.plan.execute
    assert len(copies) == trans_a
    assert (product.push["a_row"], product.push["a_k"]) == (72 if trans_a else 73, 1)


class AlwaysPacked(float_kernels._PackedB):
    """Also without matrix units: nothing is multiplied."""

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        return None

    def shader(self, g: FloatProduct) -> str:
        return ""


def _packed(b: np.ndarray) -> np.ndarray:
    """K x columns in the order of matrix units, by the places of elements."""
    k, n = b.shape
    whole = np.zeros((-(-k // 64) * 64, -(-n // 64) * 64), b.dtype)
    whole[:k, :n] = b
    strips = whole.reshape(-1, 2, 4, 2, whole.shape[1] // 64, 4, 2, 8)
    # step, half, quad, element | strip, fragment, half, column
    return strips.transpose(4, 0, 5, 7, 2, 6, 1, 3).reshape(-1)


@pytest.mark.parametrize(("sizes", "trans_b", "step", "way"), [
    ((2, 70, 72), 0, 1, (2, False)), ((3, 72, 75), 1, 1, (1, False)),
    ((1, 129, 67), 0, 1, (2, True)), ((3, 67, 131), 1, 1, (1, True)),
    ((2, 65, 66), 0, 3, (0, False)), ((2, 66, 65), 1, 3, (0, False))])
def test_b_is_packed(
    sizes: tuple[int, int, int], trans_b: int, step: int, way: tuple[int, bool], own: dml.Device,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The packed B, instead of the product."""
    batches, k, n = sizes
    b = rng.integers(-999, 999, sizes).astype(np.float16)
    expected = np.concatenate([_packed(x) for x in b])
    seen = []

    def copy_b(p: PlanBuilder, g: FloatProduct, launch: FloatLaunch, **more: Any) -> None:
        seen.extend((x.spec["VECTORS"], x.spec["SHIFTED"]) for x in p._execute
                    if x.variant.name == "gemm_pack")
        x = TensorDesc("float16", (len(expected),))
        p.add(copied(p, x.sizes, CopyView(TEMPORARY, x, x.strides, g.views["b"].operand.offset),
                     CopyView("output_tensor", x, x.strides)))

    monkeypatch.setattr(gemm, "KERNELS", (AlwaysPacked(),))
    monkeypatch.setattr(float_kernels, "dispatch_product", copy_b)
    given = own.tensor(np.repeat(b.swapaxes(1, 2) if trans_b else b, step, 2))[..., ::step]
    rows = -(-len(expected) // (batches * n))
    y = dml.gemm(own.tensor(np.zeros((batches, rows, k), np.float16)), given, trans_b=trans_b)
    assert (y.numpy().reshape(-1)[:len(expected)] == expected).all()
    assert seen == [way]


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize(("sizes", "columns", "filled"), [
    ((2, 70, 72), 2048, 96), ((2, 70, 75), 136, 96), ((1, 70, 128), 2048, 128)])
def test_k_of_a_is_filled_up(
    sizes: tuple[int, int, int], columns: int, filled: int, trans_a: int, own: dml.Device,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A as the kernel reads it, instead of the product. ``filled``: K in whole slices."""
    batches, m, k = sizes
    a = rng.integers(1, 999, sizes).astype(np.float16)

    def copy_a(p: PlanBuilder, g: FloatProduct, launch: FloatLaunch, **more: Any) -> None:
        assert g.k == filled and g.k % launch.k == 0
        view, to = g.views["a"], (batches, m, filled)
        x = TensorDesc("float16", to, view.strides)
        p.add(copied(p, to, CopyView(view.operand.slot, x, view.strides, view.operand.offset),
                     CopyView("output_tensor", x, dml.TensorDesc("float16", to).strides)))

    monkeypatch.setattr(gemm, "KERNELS", (AlwaysPacked(),))
    monkeypatch.setattr(float_kernels, "dispatch_product", copy_a)
    given = own.tensor(np.ascontiguousarray(a.swapaxes(1, 2)) if trans_a else a)
    b = own.tensor(np.zeros((1, k, columns), np.float16)).broadcast_to((batches, k, columns))
    y = dml.gemm(given, b, trans_a=trans_a)
    got = y.numpy().reshape(-1)[:batches * m * filled].reshape(batches, m, filled)
    assert (got[..., :k] == a).all() and (got[..., k:] == 0).all()


@pytest.mark.parametrize(("owned", "sizes", "known", "once", "shaders"), [
    # K is filled up to whole slices.
    (True, (2048, 1000, 2048), True, ["gemm_pack"], ["padding.b16", "gemm_coopmat.t64x256p"]),
    (False, (2048, 1001, 2048), True, [], ["gemm_pack", "padding.b16", "gemm_coopmat.t64x256p"]),
    (False, (2048, 1000, 1024), True, [], ["gemm_pack", "gemm_coopmat.t64x256p"]),
    (False, (2048, 1024, 2048), True, [], ["gemm_pack", "gemm_coopmat.t64x256p"]),
    (True, (512, 4096, 4096), True, ["gemm_pack"], ["gemm_coopmat.t64x256p"]),
    (False, (512, 4096, 4096), True, [], ["gemm_direct_coopmat.t128x64s"]),
    (True, (2048, 256, 2048), True, [], ["gemm_coopmat.t128"]),  # little K
    (True, (8192, 1024, 320), True, [], ["gemm_coopmat.t128"]),  # wide tiles waste columns
    (True, (1024, 1024, 1024), True, [], ["gemm_direct_coopmat.t128x64s"]),  # few tiles
    (True, (2048, 1000, 2048), False, [], ["gemm_coopmat.t128"]),
])
def test_large_b_is_packed_for_matrix_units(
    owned: bool, sizes: tuple[int, int, int], known: bool, once: list[str], shaders: list[str]
) -> None:
    """``known``: where their elements lie."""
    m, k, n = sizes
    flags = dml.TensorFlags.OWNED_BY_DML if owned else dml.TensorFlags.NONE
    target = _matrix_units()
    target = replace(target, traits=replace(target.traits, fragments_alike=known))
    a, y = dml.TensorDesc("float16", (m, k)), dml.TensorDesc("float16", (m, n))
    b = dml.TensorDesc("float16", (k, n), flags=flags)
    d = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=y, trans_a=0, trans_b=0,
                             alpha=1.0, beta=0.0)
    with tuning.trial({}):
        plan = d.operator.lower(d, target)
    assert [x.variant.name for x in plan.initialize] == once
    assert [x.variant.name for x in plan.execute] == shaders
    assert plan.repacked == ({"b_tensor"} if once else set())
    for x in (*plan.initialize, *plan.execute):
        x.variant.pack_spec(x.spec)
        x.variant.pack_push(x.push)
