"""Convolutions: what DirectML prints, and how they lower where there are matrix units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import PERSISTENT, TEMPORARY, Plan
from kompute_dml.runtime.adapters import CooperativeMatrix
from test_matrix_multiply_kernels import _library_of_everything


def test_values_that_directml_prints(device: dml.Device) -> None:
    """DxDispatch's example: three by three numbers and a diagonal of two."""
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    y = dml.convolution(x, np.eye(2, dtype=np.float32).reshape(1, 1, 2, 2))
    assert y.numpy().tolist() == [[[[6, 8], [12, 14]]]]


def test_one_number_serves_all_axes_and_channels_may_come_last(device: dml.Device) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-4, 5, (2, 7, 8, 6)).astype(np.float32)  # N, H, W, C: exact sums
    w = rng.integers(-4, 5, (5, 3, 3, 6)).astype(np.float32)
    last = [dml.default_device().tensor(v).transpose(0, 3, 1, 2) for v in (x, w)]
    first = [np.ascontiguousarray(v.transpose(0, 3, 1, 2)) for v in (x, w)]
    a, b = (dml.convolution(*v, strides=2, start_padding=1, end_padding=(1, 1)).numpy()
            for v in (last, first))
    assert a.shape == (2, 5, 4, 4) and (a == b).all()


def _plan(x: tuple[int, ...], w: tuple[int, ...], *, owned: bool = False,
          last: bool = False) -> Plan:
    """On an H200's matrix units."""
    every = _library_of_everything()
    if every.find("convolution_coopmat", "t64") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    target = target_of(every, replace(
        dml.default_device().adapter, cores=132, subgroup_size=32,
        max_shared_memory=48 << 10, cooperative_matrices=(CooperativeMatrix(
            16, 16, 16, "f16", "f16", "f32", "f32", "subgroup"),)))
    target = replace(target, traits=replace(target.traits, is_cpu=False))

    def desc(*sizes: int, flags: dml.TensorFlags = dml.TensorFlags.NONE) -> dml.TensorDesc:
        _, c, h, width = sizes
        strides = (h * width * c, 1, width * c, c) if last else None
        return dml.TensorDesc("float16", sizes, strides, flags=flags)

    flags = dml.TensorFlags.OWNED_BY_DML if owned else dml.TensorFlags.NONE
    described = dml.ConvolutionOperatorDesc(
        input_tensor=desc(*x), filter_tensor=desc(*w, flags=flags),
        output_tensor=desc(x[0], w[0], *x[2:]), mode=dml.ConvolutionMode.CROSS_CORRELATION,
        direction=dml.ConvolutionDirection.FORWARD, strides=(1, 1), dilations=(1, 1),
        start_padding=(w[2] // 2,) * 2, end_padding=(w[2] // 2,) * 2, output_padding=(0, 0),
        group_count=x[1] // w[1])
    plan = described.operator.lower(described, target)
    room = {"input_tensor": described.input_tensor, "filter_tensor": described.filter_tensor,
            "output_tensor": described.output_tensor}
    limits = {k: t.total_tensor_size_in_bytes for k, t in room.items()} | {
        TEMPORARY: plan.temporary_bytes, PERSISTENT: plan.persistent_bytes}
    for d in (*plan.initialize, *plan.execute):
        for o in d.operands:
            assert o.slot not in limits or (o.offset + o.length) * o.itemsize <= limits[o.slot]
    return plan


def _names(plan: Plan) -> list[str]:
    return [d.variant.name for d in plan.execute]


def test_matrix_units_get_channels_side_by_side() -> None:
    pack, big = "convolution_pack", "convolution_coopmat.t128"
    shape = (32, 128, 28, 28), (128, 128, 3, 3)
    assert _names(_plan(*shape)) == [pack, pack, big]
    assert _names(_plan(*shape, last=True)) == [big]
    owned = _plan(*shape, owned=True)
    assert _names(owned) == [pack, big] and owned.repacked == {"filter_tensor"}
    assert len(owned.initialize) == 1


def test_matrix_units_share_k_where_there_are_few_tiles() -> None:
    assert _names(_plan((1, 512, 7, 7), (512, 512, 3, 3), last=True)) == [
        "convolution_coopmat.t64", "convolution_sum.float"]


def test_depthwise_convolutions_are_no_products() -> None:
    assert _names(_plan((32, 144, 56, 56), (144, 1, 3, 3))) == ["convolution_direct"]
