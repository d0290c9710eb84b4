"""The properties of each physical device, read from Vulkan before kp is used.

kp crashes the process if no driver is installed, and reports few properties. So they are read
through the ``vulkan`` binding. kp enumerates devices in the same order.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import NoDeviceError, whole


class _System(NamedTuple):
    """What an operating system calls Vulkan's loader, and how one installs it and a driver."""

    loader: str
    gets_loader: str
    gets_driver: str


_SYSTEMS = {
    "win32": _System("vulkan-1.dll", "it comes with a driver",
                     "install the driver of the GPU's vendor"),
    "darwin": _System("libvulkan.dylib", "'brew install vulkan-loader', and set "
                      "DYLD_FALLBACK_LIBRARY_PATH to /opt/homebrew/lib",
                      "install MoltenVK, which is Vulkan over Metal: 'brew install molten-vk'"),
}
_LINUX = _System(
    "libvulkan.so.1", "'apt install libvulkan1'",
    "install the vendor's driver, or Mesa's: 'apt install mesa-vulkan-drivers' (which includes "
    "lavapipe, a driver that runs on the CPU)")


def system() -> _System:
    """This one."""
    return _SYSTEMS.get(sys.platform, _LINUX)


DEVICE_TYPES = ("other", "integrated", "discrete", "virtual", "cpu")
_PREFERENCE = ("discrete", "integrated", "virtual", "cpu", "other")

_PORTABILITY = "VK_KHR_portability_enumeration"
PORTABILITY_EXTENSION = "VK_KHR_portability_subset"
"""A device that lacks some of Vulkan offers this, and whoever opens it must ask for it."""
_SUBGROUP_SIZES = "VK_EXT_subgroup_size_control"
ROBUSTNESS_EXTENSION = "VK_EXT_pipeline_robustness"
# Features that a shader or kompute_dml.cuda may need, by the extension structure that reports them.
FEATURE_STRUCTS = {
    "VK_KHR_8bit_storage": (
        "VkPhysicalDevice8BitStorageFeatures",
        ("storageBuffer8BitAccess", "uniformAndStorageBuffer8BitAccess"),
    ),
    "VK_KHR_16bit_storage": (
        "VkPhysicalDevice16BitStorageFeatures",
        ("storageBuffer16BitAccess", "uniformAndStorageBuffer16BitAccess"),
    ),
    "VK_KHR_shader_float16_int8": (
        "VkPhysicalDeviceShaderFloat16Int8Features",
        ("shaderFloat16", "shaderInt8"),
    ),
    "VK_KHR_shader_atomic_int64": (
        "VkPhysicalDeviceShaderAtomicInt64Features",
        ("shaderBufferInt64Atomics",),
    ),
    "VK_KHR_shader_integer_dot_product": (
        "VkPhysicalDeviceShaderIntegerDotProductFeatures",
        ("shaderIntegerDotProduct",),
    ),
    "VK_KHR_vulkan_memory_model": (
        "VkPhysicalDeviceVulkanMemoryModelFeatures",
        ("vulkanMemoryModel", "vulkanMemoryModelDeviceScope"),
    ),
    "VK_KHR_shader_bfloat16": (
        "VkPhysicalDeviceShaderBfloat16FeaturesKHR",
        ("shaderBFloat16Type", "shaderBFloat16DotProduct", "shaderBFloat16CooperativeMatrix"),
    ),
    "VK_KHR_cooperative_matrix": (
        "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
        ("cooperativeMatrix",),
    ),
    _SUBGROUP_SIZES: (
        "VkPhysicalDeviceSubgroupSizeControlFeatures",
        ("subgroupSizeControl", "computeFullSubgroups"),
    ),
    "VK_KHR_timeline_semaphore": (
        "VkPhysicalDeviceTimelineSemaphoreFeatures",
        ("timelineSemaphore",),
    ),
    ROBUSTNESS_EXTENSION: (
        "VkPhysicalDevicePipelineRobustnessFeaturesEXT",
        ("pipelineRobustness",),
    ),
}
_NEWER_STRUCTS = {"VkPhysicalDeviceShaderBfloat16FeaturesKHR": (
    1000141000, "VkPhysicalDevice8BitStorageFeatures",
    ("storageBuffer8BitAccess", "uniformAndStorageBuffer8BitAccess", "storagePushConstant8"))}
"""Structures that the binding does not have: their types, and others of the same layout with the
names of their members."""
_PIPELINE_HEADER = Struct("<4I16s")
"""VkPipelineCacheHeaderVersionOne: its size and version, then vendor, device and UUID."""
_CORE_FEATURES = ("shaderInt16", "shaderInt64", "shaderFloat64")

UNASKED_FEATURES = frozenset({"subgroupArithmetic", "subgroupShuffle"})
"""Names of our own for properties, which need not be enabled."""
FEATURE_EXTENSIONS = tuple(FEATURE_STRUCTS)
"""Extensions to request at device creation, so that their features can be enabled."""
SHARING_EXTENSIONS = ("VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd")
"""Extensions to request for kompute_dml.cuda. They have no features."""


@dataclass(frozen=True)
class CooperativeMatrix:
    """A shape of matrix multiply-add that the device supports: A(m x k) * B(k x n) + C(m x n)."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    scope: str


@dataclass(frozen=True)
class Adapter:
    """A physical device, as Vulkan describes it."""

    index: int
    """Vulkan's enumeration index, which kp uses too."""
    name: str
    type: str
    """``discrete``, ``integrated``, ``virtual``, ``cpu`` or ``other``."""
    driver: str
    driver_version: str
    vulkan_version: tuple[int, int, int]
    uuid: str
    """In hexadecimal. CUDA and other interfaces report the same."""
    device_memory: int
    """Bytes of the largest device-local heap."""
    max_allocation: int
    max_storage_buffer_range: int
    max_storage_buffers: int
    """Storage buffers that one shader stage may bind."""
    max_workgroup_invocations: int
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_count: tuple[int, int, int]
    max_shared_memory: int
    max_push_constants: int
    subgroup_size: int
    storage_buffer_alignment: int
    timestamp_period: float
    """Nanoseconds per tick; 0 where compute queues take no timestamps."""
    cores: int = 0
    """Multiprocessors or compute units; 0 if the driver does not report them."""
    features: frozenset[str] = frozenset()
    """Vulkan feature names that the device supports (kp may enable fewer)."""
    extensions: frozenset[str] = field(default=frozenset(), repr=False)
    cooperative_matrices: tuple[CooperativeMatrix, ...] = field(default=(), repr=False)
    subgroup_sizes: tuple[int, int] = (0, 0)
    """The least and the largest that a compute pipeline may ask for; 0 where it may not."""
    pipeline_header: bytes = field(default=b"", repr=False)
    """The beginning of the driver's pipeline cache data (VkPipelineCacheHeaderVersionOne)."""

    @property
    def is_cpu(self) -> bool:
        """Whether the driver runs on the CPU."""
        return self.type == "cpu"

    @property
    def vulkan(self) -> str:
        """The version of Vulkan that it supports."""
        return ".".join(map(str, self.vulkan_version))


def _binding() -> Any:
    try:
        import vulkan  # the binding loads libvulkan when it is imported
    except OSError:  # its text speaks of an SDK, which nobody needs
        raise NoDeviceError(
            f"no Vulkan loader was found ({system().loader}): {system().gets_loader}, and "
            f"{system().gets_driver}"
        ) from None
    return vulkan


def _version(value: int) -> tuple[int, int, int]:
    return value >> 22 & 0x7F, value >> 12 & 0x3FF, value & 0xFFF


def _instance(vk: ModuleType) -> Any:
    # vkEnumerateInstanceVersion needs Vulkan 1.1, as this package does. One driver refuses
    # applications for a newer Vulkan than its own.
    version = min(int(vk.vkEnumerateInstanceVersion()), vk.VK_MAKE_VERSION(1, 3, 0))
    application = vk.VkApplicationInfo(apiVersion=version)
    info = vk.VkInstanceCreateInfo(pApplicationInfo=application)
    if sys.platform == "darwin" and _PORTABILITY in {
            e.extensionName for e in vk.vkEnumerateInstanceExtensionProperties(None)}:
        # The loader leaves out what lacks some of Vulkan, unless it is asked for.
        info = vk.VkInstanceCreateInfo(
            pApplicationInfo=application, ppEnabledExtensionNames=[_PORTABILITY],
            flags=vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR)
    try:
        return vk.vkCreateInstance(info, None)
    except vk.VkErrorIncompatibleDriver:
        raise NoDeviceError(f"no Vulkan driver is installed: {system().gets_driver}") from None
    except vk.VkError as error:
        raise NoDeviceError(f"vkCreateInstance failed with {type(error).__name__}") from None


_COMPONENTS = dict(enumerate(
    ("f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")))
_COMPONENTS |= {1000141000: "bf16", 1000491002: "f8e4m3", 1000491003: "f8e5m2"}


def component_name(value: int) -> str:
    """The name of a VkComponentTypeKHR."""
    return _COMPONENTS.get(value, f"type{value}")


def feature_struct(vk: ModuleType, extension: str, chain: object) -> Any:
    """A structure of FEATURE_STRUCTS, before a chain of others."""
    name = FEATURE_STRUCTS[extension][0]
    if name in _NEWER_STRUCTS:
        kind, alike, _ = _NEWER_STRUCTS[name]
        return getattr(vk, alike)(sType=kind, pNext=chain)
    return getattr(vk, name)(pNext=chain)


def _features_in(struct: object, extension: str) -> Iterator[str]:
    """The features of an extension that a device has, from the structure that it filled."""
    name, features = FEATURE_STRUCTS[extension]
    members = _NEWER_STRUCTS[name][2] if name in _NEWER_STRUCTS else features
    return (f for f, member in zip(features, members) if getattr(struct, member))


def _cooperative_matrices(
    vk: ModuleType, instance: object, device: object
) -> tuple[CooperativeMatrix, ...]:
    scopes = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue_family"}
    name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    address = vk.lib.vkGetInstanceProcAddr(instance, name.encode())
    if address == vk.ffi.NULL:
        return ()
    # The binding's own call does not set the types of its structures.
    ask = vk.ffi.cast(f"PFN_{name}", address)
    count = vk.ffi.new("uint32_t *")
    ask(device, count, vk.ffi.NULL)
    rows = vk.ffi.new("VkCooperativeMatrixPropertiesKHR[]", count[0])
    for row in rows:
        row.sType = vk.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
    if ask(device, count, rows) != vk.VK_SUCCESS:
        return ()

    return tuple(
        CooperativeMatrix(
            r.MSize,
            r.NSize,
            r.KSize,
            component_name(r.AType),
            component_name(r.BType),
            component_name(r.CType),
            component_name(r.ResultType),
            scopes.get(r.scope, str(r.scope)),
        )
        for r in rows
    )


def _core_counter(
    vk: ModuleType, extensions: frozenset[str], chain: object
) -> tuple[Any, Callable[[], int]]:
    """The chain of structures to query, and a function that reads the number of cores from it."""
    if "VK_NV_shader_sm_builtins" in extensions:
        sms = vk.VkPhysicalDeviceShaderSMBuiltinsPropertiesNV(pNext=chain)
        return sms, lambda: int(sms.shaderSMCount)
    if "VK_AMD_shader_core_properties2" in extensions:
        units = vk.VkPhysicalDeviceShaderCoreProperties2AMD(pNext=chain)
        return units, lambda: int(units.activeComputeUnitCount)
    return chain, lambda: 0


def _describe(vk: ModuleType, instance: object, index: int, device: object) -> Adapter:
    extensions = frozenset(
        e.extensionName for e in vk.vkEnumerateDeviceExtensionProperties(device, None)
    )
    subgroup = vk.VkPhysicalDeviceSubgroupProperties()
    maintenance = vk.VkPhysicalDeviceMaintenance3Properties(pNext=subgroup)
    driver = vk.VkPhysicalDeviceDriverProperties(pNext=maintenance)
    identity = vk.VkPhysicalDeviceIDProperties(pNext=driver)
    sizes = None
    if _SUBGROUP_SIZES in extensions:
        sizes = vk.VkPhysicalDeviceSubgroupSizeControlProperties(pNext=identity)
    last, cores = _core_counter(vk, extensions, sizes or identity)
    properties2 = vk.VkPhysicalDeviceProperties2(pNext=last)
    vk.vkGetPhysicalDeviceProperties2(device, properties2)
    properties = properties2.properties
    limits = properties.limits

    structs: list[Any] = []
    present = [extension for extension in FEATURE_STRUCTS if extension in extensions]
    for extension in present:
        structs.append(feature_struct(vk, extension, structs[-1] if structs else None))
    features2 = vk.VkPhysicalDeviceFeatures2(pNext=structs[-1] if structs else None)
    vk.vkGetPhysicalDeviceFeatures2(device, features2)
    features = {name for name in _CORE_FEATURES if getattr(features2.features, name)}
    for struct, extension in zip(structs, present):
        features.update(_features_in(struct, extension))
    if subgroup.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
        features.update(name for name, bit in (
            ("subgroupArithmetic", vk.VK_SUBGROUP_FEATURE_ARITHMETIC_BIT),
            ("subgroupShuffle", vk.VK_SUBGROUP_FEATURE_SHUFFLE_BIT),
        ) if subgroup.supportedOperations & bit)

    memory = vk.vkGetPhysicalDeviceMemoryProperties(device)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    local = [h.size for h in heaps if h.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT]

    def text(value: object) -> str:
        return value if isinstance(value, str) else vk.ffi.string(value).decode()

    return Adapter(
        index=index,
        name=text(properties.deviceName),
        type=DEVICE_TYPES[properties.deviceType] if properties.deviceType < 5 else "other",
        driver=text(driver.driverName),
        driver_version=text(driver.driverInfo)
        or ".".join(map(str, _version(properties.driverVersion))),
        vulkan_version=_version(properties.apiVersion),
        uuid=bytes(identity.deviceUUID).hex(),
        device_memory=max(local or [h.size for h in heaps]),
        max_allocation=maintenance.maxMemoryAllocationSize,
        max_storage_buffer_range=limits.maxStorageBufferRange,
        max_storage_buffers=min(limits.maxPerStageDescriptorStorageBuffers,
                                limits.maxDescriptorSetStorageBuffers),
        max_workgroup_invocations=limits.maxComputeWorkGroupInvocations,
        max_workgroup_size=tuple(limits.maxComputeWorkGroupSize),
        max_workgroup_count=tuple(limits.maxComputeWorkGroupCount),
        max_shared_memory=limits.maxComputeSharedMemorySize,
        max_push_constants=limits.maxPushConstantsSize,
        subgroup_size=subgroup.subgroupSize,
        subgroup_sizes=(
            (sizes.minSubgroupSize, sizes.maxSubgroupSize)
            if sizes and sizes.requiredSubgroupSizeStages & vk.VK_SHADER_STAGE_COMPUTE_BIT
            else (0, 0)
        ),
        storage_buffer_alignment=limits.minStorageBufferOffsetAlignment,
        timestamp_period=limits.timestampPeriod if limits.timestampComputeAndGraphics else 0.0,
        cores=cores(),
        features=frozenset(features),
        extensions=extensions,
        cooperative_matrices=(
            _cooperative_matrices(vk, instance, device) if "cooperativeMatrix" in features else ()
        ),
        pipeline_header=_PIPELINE_HEADER.pack(
            _PIPELINE_HEADER.size, vk.VK_PIPELINE_CACHE_HEADER_VERSION_ONE, properties.vendorID,
            properties.deviceID, bytes(properties.pipelineCacheUUID)),
    )


@functools.cache
def list_devices() -> tuple[Adapter, ...]:
    """Every physical device that Vulkan offers, in Vulkan's order.

    Raises :class:`~kompute_dml.NoDeviceError` where there is no loader, driver or device.
    """
    vk = _binding()
    instance = _instance(vk)
    try:
        devices = vk.vkEnumeratePhysicalDevices(instance)
        adapters = tuple(_describe(vk, instance, i, d) for i, d in enumerate(devices))
    except vk.VkError as error:
        raise NoDeviceError(f"Vulkan lists no device ({type(error).__name__})") from None
    finally:
        vk.vkDestroyInstance(instance, None)
    if not adapters:
        raise NoDeviceError(f"Vulkan lists no device: {system().gets_driver}")
    return adapters


def choose(selector: int | str | None = None) -> Adapter:
    """The adapter for an index, a UUID (also as nvidia-smi prints it) or a part of a name, in any
    case. A whole name goes before a part. Digits are no part of a name, only an index.

    The default is ``KOMPUTE_DML_DEVICE``. Of several matches, discrete devices come before
    integrated, virtual and CPU devices; then the first counts.
    """
    adapters = list_devices()
    source = "adapter"
    if selector is None and os.environ.get("KOMPUTE_DML_DEVICE"):
        selector, source = os.environ["KOMPUTE_DML_DEVICE"], "KOMPUTE_DML_DEVICE"
    matches = adapters if selector is None else _matching(adapters, selector, source)
    if not matches:
        there = ", ".join(f"[{a.index}] {a.name}" for a in adapters)
        raise NoDeviceError(f"{source} {selector!r} matches no device; those here: {there}")
    return min(matches, key=lambda a: _PREFERENCE.index(a.type))


def _matching(
    adapters: Sequence[Adapter], selector: int | str, source: str
) -> Sequence[Adapter]:
    if not isinstance(selector, str):
        wanted = whole("Device", source, selector)
        return [a for a in adapters if a.index == wanted]
    text = selector.lower()
    tests: tuple[Callable[[Adapter], bool], ...] = (
        lambda a: text.isdecimal() and a.index == int(text),
        lambda a: a.uuid == _plain(text),
        lambda a: a.name.lower() == text,
        lambda a: not text.isdecimal() and text in a.name.lower(),
    )
    return next((matches for test in tests if (matches := list(filter(test, adapters)))), ())


def _plain(uuid: str) -> str:
    """A UUID as adapters have it. CUDA's tools add the prefix GPU and hyphens."""
    return uuid.lower().removeprefix("gpu-").replace("-", "")


def same_device(adapter: Adapter, uuids: Sequence[str]) -> int | None:
    """The index of the adapter among the UUIDs of another interface's devices.

    It is the device with the same UUID, else the first one that is no other adapter (CUDA gives a
    part of a GPU another UUID).
    """
    plain = [_plain(uuid) for uuid in uuids]
    if adapter.uuid in plain:
        return plain.index(adapter.uuid)
    others = {a.uuid for a in list_devices()}
    return next((i for i, uuid in enumerate(plain) if uuid not in others), None)
