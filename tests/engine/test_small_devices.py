"""What a device with the least shared memory that Vulkan allows takes, or refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Target
from kompute_dml.runtime.shader_library import ShaderLibrary
from record_plans import ADAPTERS

_LEAST = 16 << 10


@pytest.fixture
def small() -> Target:
    adapter = replace(
        ADAPTERS["no_matrix_units"], max_shared_memory=_LEAST, max_workgroup_invocations=256)
    return target_of(ShaderLibrary(adapter.features, 8), adapter)


def _shaders(desc: Any, target: Target) -> list[str]:
    with tuning.trial({}):
        plan = desc.operator.lower(desc, target)
    steps = (*plan.initialize, *plan.execute)
    assert all(step.variant.shared_bytes <= _LEAST for step in steps)
    return [step.variant.name for step in steps]


def _attention(size: int) -> Any:
    sizes = [(1, 256, 4 * size)] * 3
    query, key, value = (dml.TensorDesc(np.float32, s, guaranteed_base_offset_alignment=16)
                         for s in sizes)
    return dml.MultiheadAttentionOperatorDesc(
        query_tensor=query, key_tensor=key, value_tensor=value,
        output_tensor=dml.TensorDesc(np.float32, sizes[0]), scale=1.0, mask_filter_value=-1.0,
        head_count=4, mask_type=dml.MultiheadAttentionMaskType.NONE)


def test_attention_of_small_heads_is_computed_and_of_large_ones_refused(small: Target) -> None:
    assert any(name.startswith("attention_blocks.h") for name in _shaders(_attention(64), small))
    with pytest.raises(dml.UnsupportedError, match=r"a workgroup takes \d+ bytes of shared memory"):
        _shaders(_attention(128), small)


def test_an_operator_without_another_kernel_is_refused(small: Target) -> None:
    count = dml.TensorDesc(np.uint32, (1,))
    desc = dml.NonzeroCoordinatesOperatorDesc(
        input_tensor=dml.TensorDesc(np.float32, (64, 64)), output_count_tensor=count,
        output_coordinates_tensor=dml.TensorDesc(np.uint32, (4096, 2)))
    with pytest.raises(dml.UnsupportedError,
                       match=r"takes \d+ bytes of shared memory, but the device has 16384"):
        _shaders(desc, small)
    large = replace(small, traits=replace(small.traits, max_shared_memory=32 << 10))
    with tuning.trial({}):
        assert desc.operator.lower(desc, large).execute


def test_top_k_is_sorted(small: Target) -> None:
    sizes = (4, 9000)
    desc = dml.TopK1OperatorDesc(
        input_tensor=dml.TensorDesc(np.float32, sizes),
        output_value_tensor=dml.TensorDesc(np.float32, (4, 500)),
        output_index_tensor=dml.TensorDesc(np.uint32, (4, 500)), axis=1, k=500,
        axis_direction=dml.AxisDirection.DECREASING)
    assert all(name.startswith("top_k_sort") for name in _shaders(desc, small))
