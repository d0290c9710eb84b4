"""Queries of Vulkan about a physical device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import vulkan

from kompute_dml.runtime.adapters import (
    CooperativeMatrix,
    _cooperative_matrices,
    _features_in,
    component_name,
    feature_struct,
)

_I8, _U8, _I32, _U32 = 3, 7, 5, 9  # VkComponentTypeKHR
_STRUCT = "VkCooperativeMatrixPropertiesKHR"
_ASK = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"


@pytest.fixture
def driver() -> Any:
    """A stand-in for the binding and a driver with two matrix shapes. It checks its arguments."""
    ffi = vulkan.ffi

    @ffi.callback(f"VkResult(VkPhysicalDevice, uint32_t *, {_STRUCT} *)")
    def answer(device: Any, count: Any, rows: Any) -> int:
        if rows == ffi.NULL:
            count[0] = 2
            return int(vulkan.VK_SUCCESS)
        for row, (element, total) in zip(ffi.unpack(rows, 2), ((_I8, _I32), (_U8, _U32))):
            if row.sType != vulkan.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR:
                return int(vulkan.VK_ERROR_UNKNOWN)
            row.MSize, row.NSize, row.KSize, row.scope = 16, 8, 32, vulkan.VK_SCOPE_SUBGROUP_KHR
            row.AType = row.BType = element
            row.CType = row.ResultType = total
        return int(vulkan.VK_SUCCESS)

    def address(instance: Any, name: bytes) -> Any:
        return ffi.cast("PFN_vkVoidFunction", answer if name.decode() == _ASK else ffi.NULL)

    names = {n: getattr(vulkan, n) for n in dir(vulkan) if n.startswith("VK_")}
    yield SimpleNamespace(ffi=ffi, lib=SimpleNamespace(vkGetInstanceProcAddr=address), **names)


def test_shapes_of_cooperative_matrices(driver: Any) -> None:
    null = vulkan.ffi.NULL
    shapes = [("i8", "i8", "i32", "i32"), ("u8", "u8", "u32", "u32")]
    assert _cooperative_matrices(driver, null, null) == tuple(
        CooperativeMatrix(16, 8, 32, *types, "subgroup") for types in shapes)


def test_a_loader_without_cooperative_matrices(driver: Any) -> None:
    driver.lib.vkGetInstanceProcAddr = lambda *_: vulkan.ffi.NULL
    assert _cooperative_matrices(driver, vulkan.ffi.NULL, vulkan.ffi.NULL) == ()


@pytest.mark.parametrize(("value", "name"), [
    (vulkan.VK_COMPONENT_TYPE_FLOAT16_KHR, "f16"), (vulkan.VK_COMPONENT_TYPE_UINT64_KHR, "u64"),
    (1000141000, "bf16"), (1000491002, "f8e4m3"), (1000491003, "f8e5m2"), (77, "type77"),
])
def test_types_of_matrices_have_names(value: int, name: str) -> None:
    assert component_name(value) == name


def test_a_structure_that_the_binding_does_not_have() -> None:
    ffi = vulkan.ffi
    last = vulkan.VkPhysicalDevice16BitStorageFeatures()
    struct = feature_struct(vulkan, "VK_KHR_shader_bfloat16", last)
    assert struct.sType == 1000141000
    assert ffi.cast("uintptr_t", struct.pNext) == ffi.cast(
        "uintptr_t", ffi.addressof(last))
    # The type and the chain take four words.
    words = ffi.cast("uint32_t *", ffi.addressof(struct))
    words[4], words[6] = 1, 1
    assert [*_features_in(struct, "VK_KHR_shader_bfloat16")] == [
        "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix"]
