"""The traits of a device that lowerings know: numbers and truth values, no names of drivers.

Only this module draws conclusions from a driver's name or version. Other facts come from Vulkan's
limits and features (:mod:`.adapters`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .adapters import Adapter, CooperativeMatrix

_EXACT_UNITS = ("NVIDIA",)
_IEEE_UNITS = {"llvmpipe": ("Mesa 22.", "Mesa 25.0.")}
_MASKS_ALL = ("llvmpipe",)
_CHECKS_BOUNDS = ("NVIDIA",)
_SLOW_BARRIERS = ("llvmpipe",)
_FENCES_GATHER = ("llvmpipe",)
_FRAGMENTS_ALIKE = ("NVIDIA",)
_REGISTERS = {"NVIDIA": 1 << 16}
_ASSUMED_CORES = 64
_CORES_BY_NAME = {"H200": 132, "H100": 132, "A100": 108, "L40": 142, "RTX 4090": 128}
"""Multiprocessors of GPUs whose Vulkan driver does not report them."""


@dataclass(frozen=True)
class DeviceTraits:
    """The traits of a device."""

    is_cpu: bool
    """Whether the driver runs on the CPU."""
    cores: int
    """Multiprocessors (compute units). They run a small multiple of workgroups at a time."""
    local_size: int
    """Invocations of a workgroup without shared memory: more on a CPU, which is slow to start
    one."""
    subgroup_size: int
    max_invocations: int
    """Invocations of one workgroup."""
    max_shared_memory: int
    """Bytes of shared memory of one workgroup."""
    max_range: int
    """Bytes of one storage-buffer binding."""
    max_bindings: int
    """Storage buffers that one shader may bind."""
    cooperative_matrices: tuple[CooperativeMatrix, ...]
    exact_units: bool
    """fma rounds once, conversions of float16 are IEEE's, integers become the nearest float32.
    exp2, log2, sqrt, inversesqrt and quotients are accurate to a few ulp and keep NaN. Tests
    confirm it."""
    ieee_units: bool
    """Division, sqrt, floor, ceil, trunc and roundEven are IEEE's, also for denormals. Tests
    confirm it. llvmpipe of Mesa 26 treats denormals as 0."""
    fragments_alike: bool
    """In a 16 x 16 FLOAT16 left operand an invocation holds the same elements as in a sum, and
    invocation l of rows l / 4 and l / 4 + 8 those of columns 2 (l % 4), + 1, + 8 and + 9, in this
    order. In right operands rows and columns are exchanged. Attention uses sums as operands,
    products fill operands from memory. Tests confirm it."""
    masks_all: bool
    """Both sides of a branch are executed, under masks."""
    registers: int
    """32-bit registers that the invocations of a workgroup share; 0 if that is not known."""
    slow_barriers: bool
    """Barriers and shared memory take longer than reading buffers again."""
    fences_gather: bool
    """A barrier of memory is a barrier of the workgroup, too: all its invocations must come to it.
    A test of scans confirms it."""

    def multiplies(self, m: int, n: int, k: int, element: str, total: str) -> bool:
        """Whether subgroups of 32 multiply cooperative matrices of this shape and these types."""
        shape = CooperativeMatrix(m, n, k, element, element, total, total, "subgroup")
        return shape in self.cooperative_matrices and self.subgroup_size == 32


def checks_bounds(adapter: Adapter) -> bool:
    """Whether the driver adds bounds checks to shaders, although nobody enabled
    robustBufferAccess."""
    return adapter.driver in _CHECKS_BOUNDS


def of(adapter: Adapter) -> DeviceTraits:
    """The traits of a physical device."""
    cores = next((n for name, n in _CORES_BY_NAME.items() if name in adapter.name), _ASSUMED_CORES)
    return DeviceTraits(
        is_cpu=adapter.is_cpu,
        cores=adapter.cores or cores,
        local_size=min(1024, adapter.max_workgroup_invocations) if adapter.is_cpu else 256,
        subgroup_size=adapter.subgroup_size,
        max_invocations=adapter.max_workgroup_invocations,
        max_shared_memory=adapter.max_shared_memory,
        max_range=adapter.max_storage_buffer_range,
        max_bindings=adapter.max_storage_buffers,
        cooperative_matrices=adapter.cooperative_matrices,
        exact_units=adapter.driver in _EXACT_UNITS,
        ieee_units=adapter.driver_version.startswith(_IEEE_UNITS.get(adapter.driver, ())),
        fragments_alike=adapter.driver in _FRAGMENTS_ALIKE,
        masks_all=adapter.driver in _MASKS_ALL,
        registers=_REGISTERS.get(adapter.driver, 0),
        slow_barriers=adapter.driver in _SLOW_BARRIERS,
        fences_gather=adapter.driver in _FENCES_GATHER,
    )
