"""The traits of a device that lowerings know: numbers and truth values, no names of drivers.

Only this module draws conclusions from a driver's name or version. Other facts come from Vulkan's
limits and features (:mod:`.adapters`).
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import expect
from .adapters import Adapter, CooperativeMatrix

_IEEE_UNITS = {"llvmpipe": ("Mesa 22.", "Mesa 25.0.")}
_MASKS_ALL = ("llvmpipe",)
_CHECKS_BOUNDS = ("NVIDIA",)
_HAS_CUDA = ("NVIDIA",)
_SLOW_BARRIERS = ("llvmpipe",)
_FENCES_GATHER = ("llvmpipe",)
_SLOW_COMPILERS = ("SwiftShader driver",)
_LOOPS_AT_UNDEFINED = ("SwiftShader driver",)
_CHOOSES_SIZES = {"subgroupSizeControl", "computeFullSubgroups"}
_SMALL_SUBGROUPS = ("intel", "turnip", "qualcomm")
"""Beginnings of names of drivers, in small letters, that run subgroups of any of their sizes while
shaders read the largest. Pipelines ask for the smallest, which leaves an invocation most
registers."""
LEAST_LOOP_PASSES = 65_000
"""The passes of all loops of an invocation that every device makes. lavapipe silently ends loops
after 65,535. Some are left to the loops of walks. Of other drivers for CPUs nobody knows."""
_NO_LIMIT = 1 << 30
_ASSUMED_CORES = 64
_CORES_BY_NAME = {"H200": 132, "H100": 132, "A100": 108, "L40": 142, "RTX 4090": 128}
"""Multiprocessors of GPUs whose Vulkan driver does not report them."""


class DeviceClass(enum.Enum):
    """Devices for which measurements are kept together (``lowering/measured.json``)."""

    NVIDIA_HOPPER = "NVIDIA Hopper"
    NVIDIA = "NVIDIA"
    AMD_RDNA = "AMD RDNA"
    AMD_GCN = "AMD GCN or CDNA"
    INTEL = "Intel"
    MALI = "Mali"
    MOBILE = "mobile"
    CPU = "CPU"
    UNKNOWN = "unknown"


_REGISTERS = {DeviceClass.NVIDIA_HOPPER: 1 << 16, DeviceClass.NVIDIA: 1 << 16}
"""What is known of multiprocessors' registers, by class."""
_CLASSES = (
    (DeviceClass.NVIDIA_HOPPER, ("nvidia", "nvk"), ("h100", "h200", "h800", "gh200")),
    (DeviceClass.NVIDIA, ("nvidia", "nvk"), ("",)),
    (DeviceClass.AMD_GCN, ("radv", "amd"), ("vega", "polaris", "fiji", "radeon vii", "instinct",
                                            "gfx8", "gfx9", "rx 4", "rx 5")),
    (DeviceClass.AMD_RDNA, ("radv", "amd"), ("",)),
    (DeviceClass.INTEL, ("intel",), ("",)),
    (DeviceClass.MALI, ("panvk", "mali", "arm"), ("",)),
    (DeviceClass.MOBILE, ("turnip", "qualcomm", "v3dv", "powervr", "imagination"), ("",)),
)
"""A class, beginnings of its drivers' names, and parts of its devices' names, in small letters. The
first that fits counts."""
_RDNA = ("rx 5300", "rx 5500", "rx 5600", "rx 5700")
"""Names that look older than they are."""


EMULATION = "KOMPUTE_DML_AS"
"""The environment variable that names one of EMULATED."""
EMULATED: Mapping[str, Mapping[str, Any]] = {
    "unknown-gpu": {"device_class": DeviceClass.UNKNOWN},
    "amd-rdna": {"device_class": DeviceClass.AMD_RDNA, "cores": 96, "max_shared_memory": 64 << 10},
    "amd-gcn": {"device_class": DeviceClass.AMD_GCN, "cores": 64, "max_shared_memory": 64 << 10},
    "intel-xe": {"device_class": DeviceClass.INTEL, "max_shared_memory": 48 << 10},
    "mobile": {"device_class": DeviceClass.MOBILE, "max_shared_memory": 32 << 10,
               "max_range": 1 << 27},
}
"""What the drivers of classes of GPUs say of typical devices, by the names of the classes."""
_LIMITS = ("max_shared_memory", "max_range")


def class_of(adapter: Adapter) -> DeviceClass:
    """The class of a physical device."""
    driver, name = adapter.driver.lower(), adapter.name.lower()
    if adapter.is_cpu:
        return DeviceClass.CPU
    if any(n in name for n in _RDNA):
        return DeviceClass.AMD_RDNA
    return next((kind for kind, drivers, names in _CLASSES
                 if driver.startswith(drivers) and any(n in name for n in names)),
                DeviceClass.UNKNOWN)


@dataclass(frozen=True)
class DeviceTraits:
    """The traits of a device."""

    cores: int
    """Multiprocessors (compute units). They run a small multiple of workgroups at a time."""
    local_size: int
    """Invocations of a workgroup without shared memory: more on a CPU, which is slow to start
    one."""
    subgroup_size: int
    """Invocations of a subgroup. Pipelines with subgroups ask for it."""
    subgroup_sizes: tuple[int, ...]
    """Those that a pipeline may ask for."""
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
    exp2, log2, sqrt, inversesqrt and quotients are accurate to a few ulp and keep NaN. A device of
    a GPU measures it (:mod:`.exactness`)."""
    ieee_units: bool
    """Division, sqrt, floor, ceil, trunc and roundEven are IEEE's, also for denormals. Tests
    confirm it. llvmpipe of Mesa 26 treats denormals as 0."""
    fragments_alike: bool
    """In a 16 x 16 FLOAT16 left operand an invocation holds the same elements as in a sum, and
    invocation l of rows l / 4 and l / 4 + 8 those of columns 2 (l % 4), + 1, + 8 and + 9, in this
    order. In right operands rows and columns are exchanged. Attention uses sums as operands,
    products fill operands from memory. A device of a GPU measures it (:mod:`.fragments`)."""
    masks_all: bool
    """Both sides of a branch are executed, under masks."""
    registers: int
    """32-bit registers of a multiprocessor, which a workgroup's invocations share; 0 if that is not
    known. Recurrent operators keep weights in them."""
    slow_barriers: bool
    """Barriers and shared memory take longer than reading buffers again."""
    device_class: DeviceClass
    """The class whose measurements hold for it."""
    slow_compiler: bool
    """Compiling takes seconds where a shader repeats much code, so that kernels of little code come
    first."""
    fences_gather: bool
    """A barrier of memory is a barrier of the workgroup, too: all its invocations must come to it.
    A test of scans confirms it."""

    @property
    def is_cpu(self) -> bool:
        """Whether the driver runs on the CPU."""
        return self.device_class is DeviceClass.CPU

    @property
    def max_loop_passes(self) -> int:
        """The most passes of all loops of an invocation."""
        return LEAST_LOOP_PASSES if self.is_cpu else _NO_LIMIT

    def multiplies(
        self, m: int, n: int, k: int, element: str, total: str, lanes: int = 32
    ) -> bool:
        """Whether subgroups of ``lanes`` multiply cooperative matrices of this shape and these
        types."""
        shape = CooperativeMatrix(m, n, k, element, element, total, total, "subgroup")
        return shape in self.cooperative_matrices and (
            lanes == self.subgroup_size or lanes in self.subgroup_sizes)


def subgroup_sizes(adapter: Adapter) -> tuple[int, ...]:
    """The sizes of subgroups that pipelines may ask for."""
    least, most = adapter.subgroup_sizes
    if not least or not adapter.features >= _CHOOSES_SIZES:
        return ()
    return tuple(1 << n for n in range(8) if least <= 1 << n <= most)


def usual_subgroup(adapter: Adapter) -> int:
    """The size of the subgroups of pipelines that any size serves."""
    sizes = subgroup_sizes(adapter)
    is_small = adapter.driver.lower().startswith(_SMALL_SUBGROUPS)
    return sizes[0] if sizes and is_small else adapter.subgroup_size


def asked_size(adapter: Adapter, size: int, invocations: int) -> int:
    """The size of subgroups that a pipeline must ask for, whose workgroups are whole subgroups of
    ``size``; 0 for none. Where a driver has several sizes, it may run smaller subgroups than it
    says unless it is asked, and not all of them are full."""
    sizes = subgroup_sizes(adapter)
    return size if len(sizes) > 1 and size in sizes and invocations % size == 0 else 0


def takes_live_code(adapter: Adapter) -> bool:
    """Whether the driver compiles shaders with undefined values in what never runs. One does not
    end now and then."""
    return adapter.driver not in _LOOPS_AT_UNDEFINED


def has_cuda(adapter: Adapter) -> bool:
    """Whether the driver is CUDA's, too: it shares memory with CUDA, and keeps the clock up while a
    CUDA context is held."""
    return adapter.driver in _HAS_CUDA


def leaves_open(adapter: Adapter, own: DeviceTraits, name: str) -> bool:
    """Whether a trait of a device is measured. Drivers for CPUs have no exact units. Only devices
    with 16 x 16 matrix units have places of elements."""
    if name == "fragments_alike" and not own.multiplies(16, 16, 16, "f16", "f32"):
        return False
    return not adapter.is_cpu


def as_measured(own: DeviceTraits, measured: Mapping[str, bool]) -> DeviceTraits:
    """The traits of a device with those that were measured."""
    return replace(
        own, exact_units=measured.get("exact_units", own.exact_units),
        fragments_alike=measured.get("fragments_alike", own.fragments_alike))


def checks_bounds(adapter: Adapter) -> bool:
    """Whether the driver adds bounds checks to shaders, although nobody enabled
    robustBufferAccess."""
    return adapter.driver in _CHECKS_BOUNDS


def emulation() -> str:
    """The name of the class as which devices are taken; "" without emulation. Raises
    ValidationError for a name that is none of EMULATED."""
    name = os.environ.get(EMULATION, "")
    expect(not name or name in EMULATED, EMULATION, "its value",
           f"be one of {', '.join(EMULATED)}", name)
    return name


@contextlib.contextmanager
def emulated(name: str) -> Iterator[None]:
    """Devices that are made inside the block, also by processes that begin there, are taken as
    devices of this class. With "" they are taken as they are."""
    before = os.environ.get(EMULATION)
    os.environ[EMULATION] = name
    try:
        emulation()
        yield
    finally:
        del os.environ[EMULATION]
        if before is not None:
            os.environ[EMULATION] = before


def of(adapter: Adapter) -> DeviceTraits:
    """The traits of a physical device, or those that it has as a device of the class that
    KOMPUTE_DML_AS names."""
    own = _own(adapter)
    name = emulation()
    return _as_class(own, EMULATED[name]) if name else own


def _as_class(own: DeviceTraits, known: Mapping[str, object]) -> DeviceTraits:
    """The traits of a GPU of which no more is known. Its kernels run on the device itself, so its
    subgroups, its barriers and the least of its limits stay."""
    limits = {name: min(getattr(own, name), known[name]) for name in _LIMITS if name in known}
    unknown = replace(
        own, local_size=256, cores=_ASSUMED_CORES, cooperative_matrices=(),
        exact_units=False, ieee_units=False, fragments_alike=False, masks_all=False, registers=0,
        slow_barriers=False)
    return replace(unknown, **{**known, **limits})


def _own(adapter: Adapter) -> DeviceTraits:
    cores = next((n for name, n in _CORES_BY_NAME.items() if name in adapter.name), _ASSUMED_CORES)
    return DeviceTraits(
        cores=adapter.cores or cores,
        local_size=min(1024, adapter.max_workgroup_invocations) if adapter.is_cpu else 256,
        subgroup_size=usual_subgroup(adapter),
        subgroup_sizes=subgroup_sizes(adapter),
        max_invocations=adapter.max_workgroup_invocations,
        max_shared_memory=adapter.max_shared_memory,
        max_range=adapter.max_storage_buffer_range,
        max_bindings=adapter.max_storage_buffers,
        cooperative_matrices=adapter.cooperative_matrices,
        exact_units=False,
        ieee_units=adapter.driver_version.startswith(_IEEE_UNITS.get(adapter.driver, ())),
        fragments_alike=False,
        masks_all=adapter.driver in _MASKS_ALL,
        registers=_REGISTERS.get(class_of(adapter), 0),
        slow_barriers=adapter.driver in _SLOW_BARRIERS,
        device_class=class_of(adapter),
        slow_compiler=adapter.driver in _SLOW_COMPILERS,
        fences_gather=adapter.driver in _FENCES_GATHER,
    )
