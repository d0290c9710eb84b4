"""Compiles our shaders with other vendors' compilers, without their GPUs (toolchain/vendors.py).

    make vendor-compilers ARGS="[--device NAME] [--document] [--keep] [--all]"

For each device it asks the lowerings what they would choose for the cases of the benchmark's
families and of `kompute-dml selftest`, and compiles that. It prints a table, and fails on what does
not compile; on kernels of products, attention, convolutions, reductions and norms that spill or
have too few waves; on subgroups of another size than their shader reads; on more shared memory than
the device has; and on a device that is described in another way than ``FACTS``. ``--document``
writes docs/performance/devices.md. ``--keep`` keeps the variants that spill or have too few waves
in lowering/measured.json, for the devices' classes: lowerings then take others where they can. With
``--all`` also what the tests' cases take is compiled, and all suites' cases. What was compiled is
kept in the folder of the drivers, so that only what changed is compiled again.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from kompute_dml.desc import TensorDesc
from kompute_dml.dtypes import DataType
from kompute_dml.lowering import measured
from kompute_dml.operators.matrix_multiply.bfloat16 import NarrowGemmDesc
from kompute_dml.operators.matrix_multiply.gemm import GemmOperatorDesc
from kompute_dml.operators.matrix_multiply.grouped import (
    GroupedGemmDesc,
    GroupRowsDesc,
    tile_count,
)
from kompute_dml.runtime.adapters import (
    FEATURE_EXTENSIONS,
    UNASKED_FEATURES,
    feature_struct,
)
from kompute_dml.runtime.shader_library import described, manifest
from kompute_dml.runtime.traits import DeviceClass, class_of
from kompute_dml.toolchain import vendors
from kompute_dml.toolchain.system import ToolchainError

ROOT = Path(__file__).parents[1]
SPIRV = ROOT / "kompute_dml" / "spirv"
PAGE = ROOT / "docs" / "performance" / "devices.md"
HOT = ("gemm", "matrix_multiply", "attention", "convolution", "reduce", "normalize",
       "batch_normalization", "local_response")
"""The beginnings of names of kernels that must not spill."""
LEAST_WAVES = {DeviceClass.AMD_RDNA: 4, DeviceClass.AMD_GCN: 2}
"""The least waves of a SIMD of hot kernels, of 16 and of 10. Other drivers do not say."""
MAY_SPILL = ("g610", "v3d")
"""Devices of at most 64 registers. Many kernels have no variant that is small enough, so spills are
figures of their tables only."""
NO_GUIDE = ("v3d",)
"""Devices on which nearly all kernels spill, which says nothing of others of their class."""
_STATISTICS_EXTENSION = "VK_KHR_pipeline_executable_properties"
MOST = 400
"""The most pipelines of a process: a shim has memory for some 500."""
_SECONDS = 300
"""The most seconds until a driver has described its device."""


class Job(NamedTuple):
    """A pipeline: a shader variant, and its constants by id."""

    variant: str
    spec: tuple[int, ...]
    lanes: int = 0
    """The size of subgroups that it asks for, if any."""

    def lanes_on(self, adapter: Any) -> int:
        """The size of subgroups that its shader reads."""
        return self.lanes or adapter.subgroup_size


@dataclass(frozen=True)
class Compiled:
    """What a compiler says of a pipeline."""

    job: Job
    problem: str
    """Why there is none."""
    figures: Mapping[str, float]

    def of(self, *names: str) -> int | None:
        """The first of these figures that there is."""
        return next((int(self.figures[n]) for n in names if n in self.figures), None)

    @property
    def registers(self) -> int | None:
        """Registers of an invocation, or of a thread."""
        return self.of("VGPRs", "Max live registers", "Registers used")

    @property
    def spills(self) -> int:
        """Registers that go to memory, or their loads and stores."""
        return (self.of("Spill Size") or 0) // 4 + sum(self.of(*names) or 0 for names in (
            ("Spilled VGPRs",), ("Spills", "Spill Count"), ("Fills", "Fill Count"),
            ("STP Count",), ("LDP Count",)))

    @property
    def waves(self) -> int | None:
        """Waves that a SIMD, or an Adreno's core, runs at a time."""
        return self.of("Subgroups per SIMD", "Max Waves Per Core")

    @property
    def lanes(self) -> int | None:
        """The invocations of a subgroup, if the shader has subgroups."""
        variant = described(self.job.variant)
        features = variant.features if variant is not None else None
        return self.of("subgroup") if UNASKED_FEATURES & (features or frozenset()) else None

    @property
    def shared(self) -> int:
        """Bytes of shared memory; 0 if the driver does not say it."""
        return self.of("LDS size", "Workgroup Memory Size") or 0

    @property
    def cycles(self) -> int | None:
        """Cycles of a workgroup's invocation, or the inverse throughput, as estimated."""
        return self.of("Cycles", "Cycle Count", "Inverse Throughput")

    @property
    def is_hot(self) -> bool:
        """Whether it is among the kernels that must not spill."""
        return self.job.variant.startswith(HOT)

    def crowding(self, kind: DeviceClass) -> str:
        """What is wrong with its registers on devices of a class, or ""."""
        least = LEAST_WAVES.get(kind, 0)
        if self.spills:
            return f"{self.spills} registers spill"
        if self.waves is not None and self.waves < least:
            return f"{self.waves} waves a SIMD, {least} at least"
        return ""


# In a process of the device


def _describe() -> None:
    from kompute_dml.runtime.adapters import list_devices

    (adapter,) = list_devices()
    sys.stdout.buffer.write(pickle.dumps(adapter))


def _device(vk: Any) -> Any:
    """A Vulkan device with the features that kp enables, and statistics of pipelines."""
    version = vk.VK_MAKE_VERSION(1, 3, 0)
    instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(
        pApplicationInfo=vk.VkApplicationInfo(apiVersion=version)), None)
    (physical,) = vk.vkEnumeratePhysicalDevices(instance)
    there = {e.extensionName for e in vk.vkEnumerateDeviceExtensionProperties(physical, None)}
    enabled = [e for e in FEATURE_EXTENSIONS if e in there]
    chain = vk.VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR()
    for extension in enabled:
        chain = feature_struct(vk, extension, chain)
    features = vk.VkPhysicalDeviceFeatures2(pNext=chain)
    vk.vkGetPhysicalDeviceFeatures2(physical, features)
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, pQueuePriorities=[1.0])
    return vk.vkCreateDevice(physical, vk.VkDeviceCreateInfo(
        pNext=features, pQueueCreateInfos=[queue],
        ppEnabledExtensionNames=[*enabled, _STATISTICS_EXTENSION]), None)


def _statistics(vk: Any, device: Any, pipeline: Any) -> dict[str, float]:
    """The driver's figures of a pipeline's only executable."""
    ffi = vk.ffi

    def ask(name: str, info: Any, row: str, kind: str) -> Any:
        address = vk.lib.vkGetDeviceProcAddr(device, name.encode())
        call, count = ffi.cast(f"PFN_{name}", address), ffi.new("uint32_t *")
        call(device, info, count, ffi.NULL)
        rows = ffi.new(f"{row}[]", count[0])
        for each in rows:
            each.sType = getattr(vk, f"VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_{kind}_KHR")
        call(device, info, count, rows)
        return rows

    whole = ffi.new("VkPipelineInfoKHR *")
    whole.sType, whole.pipeline = vk.VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, pipeline
    executables = ask("vkGetPipelineExecutablePropertiesKHR", whole,
                      "VkPipelineExecutablePropertiesKHR", "PROPERTIES")
    # Of several, such as one for each size of subgroups, the last is the widest.
    info = ffi.new("VkPipelineExecutableInfoKHR *")
    info.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR
    info.pipeline, info.executableIndex = pipeline, len(executables) - 1
    rows = ask("vkGetPipelineExecutableStatisticsKHR", info, "VkPipelineExecutableStatisticKHR",
               "STATISTIC")
    fields = ("b32", "i64", "u64", "f64")
    found = {ffi.string(row.name).decode(): float(getattr(row.value, fields[row.format]))
             for row in rows}
    return {"subgroup": float(executables[len(executables) - 1].subgroupSize), **found}


def _pipeline(
    vk: Any, device: Any, variant: Any, spec: Sequence[int], size: int
) -> dict[str, float]:
    slots = [vk.VkDescriptorSetLayoutBinding(
        binding=i, descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=1,
        stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT) for i in range(variant.bindings)]
    of_set = vk.vkCreateDescriptorSetLayout(
        device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=slots), None)
    words = [vk.VkPushConstantRange(
        stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=4 * variant.push_words)]
    layout = vk.vkCreatePipelineLayout(device, vk.VkPipelineLayoutCreateInfo(
        pSetLayouts=[of_set], pPushConstantRanges=words if variant.push_words else []), None)
    module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(
        codeSize=len(variant.spirv), pCode=variant.spirv), None)
    data = vk.ffi.new("uint32_t[]", list(spec) or [0])
    entries = [vk.VkSpecializationMapEntry(constantID=i, offset=4 * i, size=4)
               for i in range(len(spec))]
    constants = vk.VkSpecializationInfo(
        pMapEntries=entries, dataSize=4 * len(spec), pData=data)
    asked = vk.VkPipelineShaderStageRequiredSubgroupSizeCreateInfo(requiredSubgroupSize=size)
    full = vk.VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT
    stage = vk.VkPipelineShaderStageCreateInfo(
        pNext=asked if size else None,
        flags=full if size else 0,
        stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName="main",
        pSpecializationInfo=constants if spec else None)
    info = vk.VkComputePipelineCreateInfo(
        flags=vk.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, stage=stage, layout=layout)
    (pipeline,) = vk.vkCreateComputePipelines(device, vk.VK_NULL_HANDLE, 1, [info], None)
    try:
        return _statistics(vk, device, pipeline)
    finally:
        vk.vkDestroyPipeline(device, pipeline, None)
        vk.vkDestroyShaderModule(device, module, None)
        vk.vkDestroyPipelineLayout(device, layout, None)
        vk.vkDestroyDescriptorSetLayout(device, of_set, None)


def _compile(path: Path, first: int, most: int) -> None:
    """Print the figures of jobs of a file as lines of JSON."""
    import vulkan as vk

    from kompute_dml.runtime.adapters import list_devices
    from kompute_dml.runtime.shader_library import ShaderLibrary

    (adapter,) = list_devices()
    library = ShaderLibrary(adapter.features, adapter.max_storage_buffers)
    device = _device(vk)
    for at, line in enumerate(path.read_text().splitlines()[:first + most]):
        if at < first:
            continue
        variant, spec, lanes = json.loads(line)
        print(json.dumps({"begun": at}), flush=True)
        try:
            found = library.get(*variant.split("."))
            figures = _pipeline(vk, device, found, spec, lanes)
        except vk.VkError as error:
            print(json.dumps({"at": at, "problem": type(error).__name__}), flush=True)
        else:
            print(json.dumps({"at": at, "figures": figures}), flush=True)


# In the process that judges


def _product(kind: Any, data_type: DataType, m: int, k: int, n: int) -> Any:
    a, b, c, y = (_aligned(data_type, sizes) for sizes in ((m, k), (k, n), (m, n), (m, n)))
    return kind(a_tensor=a, b_tensor=b, c_tensor=c, output_tensor=y, trans_a=0, trans_b=0,
                alpha=1.0, beta=1.0, fused_activation=None)


_EXPERTS, _WIDTHS = 32, (2048, 1024)


def _of_groups(data_type: DataType, tiles: int, each: int, along_k: bool, bits: int = 16) -> Any:
    """A product of tiles of ``each`` rows by the matrices of experts, which are contiguous along K
    or along columns, or have blocks of 4 bits."""
    k, n = _WIDTHS
    strides = (k * n, 1, k) if along_k else (k * n, n, 1)
    of_blocks: dict[str, Any] = {}
    if bits == 4:
        scales = _aligned(data_type, (_EXPERTS, n, k // 32))
        zeros = _aligned(DataType.UINT4, scales.sizes)
        of_blocks = {"b_scale_tensor": scales, "b_zero_point_tensor": zeros, "block_size": 32}
    return GroupedGemmDesc(
        a_tensor=_aligned(data_type, (tiles, each, k)),
        b_tensor=_aligned(DataType.UINT4 if bits == 4 else data_type, (_EXPERTS, k, n), strides),
        output_tensor=_aligned(data_type, (tiles, each, n)),
        groups_tensor=_aligned(DataType.UINT32, (tiles + 1,)),
        trans_a=0, trans_b=0, alpha=1.0, beta=1.0, **of_blocks)


def _rows_in_tiles(each: int) -> Any:
    rows = 4 * _EXPERTS * each
    tiles = tile_count(rows, _EXPERTS, each)
    indices, of_tiles, coordinates, places = (
        _aligned(DataType.UINT32, (count,)) for count in (rows, tiles + 1, tiles * each, rows))
    return GroupRowsDesc(
        input_tensor=indices, output_count_tensor=of_tiles, output_coordinates_tensor=coordinates,
        output_places_tensor=places, groups=_EXPERTS, each=each, per=1, filler=0)


def _aligned(data_type: DataType, sizes: tuple[int, ...], strides: Any = None) -> TensorDesc:
    return TensorDesc(data_type, sizes, strides, guaranteed_base_offset_alignment=16)


_MORE_PRODUCTS = (
    *(_product(kind, data_type, m, 4096, n)
      for kind, data_type in ((NarrowGemmDesc, DataType.UINT16),
                              (GemmOperatorDesc, DataType.FLOAT16))
      for m, n in ((4096, 4096), (1024, 1024), (512, 512), (256, 4096), (128, 512), (16, 4096),
                   (16, 96), (512, 513), (128, 511), (16, 97))),
    *(_of_groups(data_type, tiles, each, along_k, bits)
      for data_type, bits in ((DataType.FLOAT32, 32), (DataType.FLOAT16, 16),
                              (DataType.UINT16, 16), (DataType.FLOAT16, 4), (DataType.FLOAT32, 4))
      for tiles, each in ((8, 1), (64, 8), (64, 64), (64, 128))
      for along_k in ((True,) if bits == 4 else (True, False))),
    _rows_in_tiles(1), _rows_in_tiles(8))
"""Products that no suite has: with C, some with K in parts, with columns that are no vectors, and
of rows in groups. BFLOAT16 is described as UINT16."""


def _run(device: vendors.VendorDevice, folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    env = {**device.environment(folder), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [*vendors.interpreter(folder), __file__, *map(str, arguments)]
    return subprocess.Popen(command, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def adapter_of(device: vendors.VendorDevice, folder: Path) -> Any:
    """The adapter that the device's driver describes."""
    out, _ = _run(device, folder, "describe").communicate(timeout=_SECONDS)
    return pickle.loads(out)


def chosen(adapters: Mapping[str, Any], every: bool) -> dict[str, list[Job]]:
    """What the lowerings choose on each device."""
    import record_plans
    from kompute_dml.lowering.builder import target_of
    from kompute_dml.operators.matrix_multiply import decode
    from kompute_dml.runtime.shader_library import ShaderLibrary

    if not every:
        record_plans.SUITES = ("families", record_plans.SELFTEST)
        record_plans._of_tests = lambda: iter(())
        record_plans.tune.recipes = lambda: ()
    targets = {name: target_of(ShaderLibrary(a.features, a.max_storage_buffers), a)
               for name, a in adapters.items()}
    found: dict[str, dict[Job, None]] = {name: {} for name in adapters}
    last = next(iter(adapters))
    known = record_plans.descs(targets[last], adapters[last])
    for desc in (*_MORE_PRODUCTS, *(desc for _, desc in known)):
        for name, target in targets.items():
            if isinstance(desc, decode.DecodeProductDesc) and not decode.serves(target, [desc]):
                continue  # the graph's pass leaves it alone on this device
            try:
                plan = desc.operator.lower(desc, target)
            except record_plans.dml.DmlError:
                continue
            for step in (*plan.initialize, *plan.execute):
                spec = tuple(map(int, step.variant.pack_spec(step.spec)))
                lanes = step.variant.asked_subgroup(adapters[name], spec)
                found[name].setdefault(Job(step.variant.name, spec, lanes))
    return {name: sorted(jobs) for name, jobs in found.items()}


class Results:
    """What was compiled before, in a file: a driver and a shader give the same figures again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path.is_file():
            self._known = dict(map(json.loads, path.read_text().splitlines()))

    def _key(self, job: Job) -> str:
        name = next(f for v in manifest()["shaders"].values() for n, e in v["variants"].items()
                    for f in [e["file"]] if n == job.variant)
        code = (SPIRV / name).read_bytes()
        return f"{job.variant} {[*job.spec]} {job.lanes} {zlib.crc32(code):08x}"

    def get(self, job: Job) -> Compiled | None:
        """The result of a job, if it is known."""
        row = self._known.get(self._key(job))
        return row and Compiled(job, row.get("problem", ""), row.get("figures", {}))

    def add(self, job: Job, row: Mapping[str, Any], lasts: bool = True) -> None:
        """Take the result of a job. It is kept in the file if it ``lasts``."""
        if lasts:
            with self._path.open("a") as file:
                file.write(json.dumps([self._key(job), row]) + "\n")
        self._known[self._key(job)] = row


def compiled(
    device: vendors.VendorDevice, folder: Path, jobs: Sequence[Job]
) -> list[Compiled]:
    """The jobs, compiled now or before. A driver's crash is a problem of the job."""
    results = Results(folder / f"{device.name}.results")
    new, at = [job for job in jobs if results.get(job) is None], 0
    path = folder / f"{device.name}.jobs"
    path.write_text("".join(json.dumps(job) + "\n" for job in new))
    while at < len(new):
        process = _run(device, folder, "compile", path, at, MOST)
        assert process.stdout is not None
        begun, end = None, min(at + MOST, len(new))
        for line in process.stdout:
            row = json.loads(line)
            if "begun" in row:
                begun = row["begun"]
                continue
            results.add(new[row["at"]], {k: v for k, v in row.items() if k != "at"})
            at = row["at"] + 1
        if process.wait() and at < end:
            if begun is None:
                raise RuntimeError(f"{device.name}: the process ended with {process.returncode}")
            row = {"problem": f"the compiler ended with {process.returncode}"}
            results.add(new[begun], row, lasts=process.returncode < 0)  # else Python's error
            at = begun + 1
    return [row for job in jobs if (row := results.get(job)) is not None]


@dataclass(frozen=True)
class Facts:
    """What a device must say of itself."""

    kind: DeviceClass
    type: str
    sizes: tuple[int, int]
    """The least and the most lanes of a subgroup; 0 without a choice."""
    shared: int
    """KiB of a workgroup."""
    units: tuple[str, ...] = ()
    """The types of left operands of its matrix units."""
    shape: tuple[int, int, int] | None = None
    """Of its matrix units for FLOAT16."""


_FLOATS, _BYTES = ("bf16", "f16"), ("i8", "u8")
FACTS = {
    "navi31": Facts(DeviceClass.AMD_RDNA, "discrete", (32, 64), 64, ("f16", *_BYTES),
                    (16, 16, 16)),
    "gfx1201": Facts(DeviceClass.AMD_RDNA, "discrete", (32, 64), 64,
                     ("bf16", "f16", "f8e4m3", "f8e5m2", *_BYTES), (16, 16, 16)),
    "navi21": Facts(DeviceClass.AMD_RDNA, "discrete", (32, 64), 64),
    "vega10": Facts(DeviceClass.AMD_GCN, "discrete", (0, 0), 64),
    "bmg": Facts(DeviceClass.INTEL, "discrete", (16, 32), 48, (*_FLOATS, *_BYTES), (8, 16, 16)),
    "dg2": Facts(DeviceClass.INTEL, "discrete", (8, 32), 48, (*_FLOATS, *_BYTES), (8, 8, 16)),
    "lnl": Facts(DeviceClass.INTEL, "integrated", (16, 32), 48, (*_FLOATS, *_BYTES), (8, 16, 16)),
    "tgl": Facts(DeviceClass.INTEL, "integrated", (8, 32), 48),
    "a740": Facts(DeviceClass.MOBILE, "integrated", (64, 128), 32),
    "g610": Facts(DeviceClass.MALI, "integrated", (16, 16), 32),
    "v3d": Facts(DeviceClass.MOBILE, "integrated", (16, 16), 16)}


def misdescribed(name: str, adapter: Any) -> list[str]:
    """Facts of a device that its adapter, and so `kompute-dml devices`, has in another way."""
    halves = {(u.m, u.n, u.k) for u in adapter.cooperative_matrices if u.a == "f16"}
    found = Facts(
        class_of(adapter), adapter.type, adapter.subgroup_sizes, adapter.max_shared_memory >> 10,
        tuple(sorted({unit.a for unit in adapter.cooperative_matrices})), next(iter(halves), None))
    return [f"{field.name}: {getattr(found, field.name)}, not {getattr(FACTS[name], field.name)}"
            for field in fields(Facts)
            if getattr(found, field.name) != getattr(FACTS[name], field.name)]


def problems(adapter: Any, rows: Sequence[Compiled], may_spill: bool = False) -> list[str]:
    """What is wrong with pipelines of a device, which may spill or not."""
    found = []
    for row in rows:
        name = f"{row.job.variant} {list(row.job.spec)}"
        if row.problem:
            found.append(f"{name}: {row.problem}")
            continue
        if row.lanes is not None and row.lanes != (planned := row.job.lanes_on(adapter)):
            found.append(f"{name}: subgroups of {row.lanes}, not {planned}")
        if row.shared > adapter.max_shared_memory:
            found.append(f"{name}: {row.shared} bytes of shared memory")
        if row.is_hot and not may_spill and (problem := row.crowding(class_of(adapter))):
            found.append(f"{name}: {problem}")
    return found


def table(rows: Sequence[Compiled]) -> list[str]:
    """A line for each hot kernel: its worst figures."""
    by: dict[str, list[Compiled]] = collections.defaultdict(list)
    for row in rows:
        if row.is_hot and not row.problem:
            by[row.job.variant].append(row)

    def most(values: Sequence[int | None], worst: Any = max) -> str:
        known = [v for v in values if v is not None]
        return str(worst(known)) if known else ""

    return [
        "| kernel | pipelines | registers | waves | spills | cycles |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(f"| {name} | {len(rows)} | {most([r.registers for r in rows])} "
          f"| {most([r.waves for r in rows], min)} | {most([r.spills for r in rows])} "
          f"| {most([r.cycles for r in rows])} |" for name, rows in sorted(by.items()))]


def page(parts: Mapping[str, Sequence[str]]) -> str:
    """docs/performance/devices.md with new tables. Those of other devices stay."""
    text = PAGE.read_text("utf-8") if PAGE.is_file() else ""
    head, *kept = text.rstrip().split("\n## ")
    tables = {}
    for part in kept:
        title, _, rest = part.partition("\n")
        tables[_device_of(title)] = title, rest.strip().splitlines()
    tables |= {_device_of(title): (title, list(rows)) for title, rows in parts.items()}
    lines = [head.rstrip()]
    for title, rows in tables.values():
        lines += ["", f"## {title}", "", *rows]
    return "\n".join(lines) + "\n"


def _device_of(title: str) -> str:
    """The device of a table, without the driver's version."""
    return title.rpartition(", ")[0]


def main() -> int:
    if sys.argv[1:2] == ["describe"]:
        _describe()
        return 0
    if sys.argv[1:2] == ["compile"]:
        _compile(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append",
                        help="only this one; may be repeated. g610 and v3d take long, so they are "
                             "left out otherwise")
    parser.add_argument("--document", action="store_true", help="write the page of figures")
    parser.add_argument("--keep", action="store_true", help="keep which variants are too large")
    parser.add_argument("--all", action="store_true", help="the cases of all suites and tests")
    asked = parser.parse_args()
    try:
        folder = vendors.ready()
    except vendors.PackagesMissing as error:
        print(f"left out: {str(error).splitlines()[-1]}")
        return 0
    except ToolchainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    named = asked.device or [d.name for d in vendors.DEVICES if not d.is_slow]
    devices = [d for d in vendors.DEVICES if d.name in named]
    adapters = {d.name: adapter_of(d, folder) for d in devices}
    jobs = chosen(adapters, asked.all)
    wrong, parts = 0, {}
    crowded: dict[DeviceClass, set[str]] = collections.defaultdict(set)
    tried: dict[DeviceClass, set[str]] = collections.defaultdict(set)
    for device in devices:
        adapter = adapters[device.name]
        rows = compiled(device, folder, jobs[device.name])
        found = [*misdescribed(device.name, adapter),
                 *problems(adapter, rows, device.name in MAY_SPILL)]
        wrong += len(found)
        print(f"{adapter.name}: {len(rows)} pipelines, {len(found)} problems")
        print("\n".join(f"  {line}" for line in found))
        kind = class_of(adapter)
        if device.name not in NO_GUIDE:
            crowded[kind] |= {r.job.variant for r in rows if r.is_hot and r.crowding(kind)}
            tried[kind] |= {r.job.variant for r in rows}
        parts[f"{adapter.name}, {adapter.driver_version.split('-')[0]}"] = table(rows)
    if asked.document:
        PAGE.write_text(page(parts), "utf-8")
    if asked.keep:
        for kind, variants in crowded.items():
            others = measured.crowded(kind) - tried[kind]  # which nobody chooses any more
            if variants or others != measured.crowded(kind):
                measured.keep_crowded(measured.FILE, kind, others | variants)
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("KOMPUTE_DML_TUNING", "")
    sys.exit(main())
