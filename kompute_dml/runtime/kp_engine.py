"""The only import of kp. Hides which build of kp is installed, and its faults.

*Fixed* kp (``toolchain/kp.py``) records barriers, enables features, checks every VkResult and
submits asynchronously. *Stock* kp, as on PyPI, does none of that. With stock kp every submit is
waited for, a hazard ends a submit, only core shaders run, and a ticket that the device writes
proves that a submit was carried out. Only this module knows which build is installed; it asks kp
itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import DeviceLostError, DmlError, NoDeviceError, OutOfMemoryError
from ..layout import power_of_two
from .adapters import (
    FEATURE_EXTENSIONS,
    PORTABILITY_EXTENSION,
    ROBUSTNESS_EXTENSION,
    SHARING_EXTENSIONS,
    UNASKED_FEATURES,
    Adapter,
    system,
)
from .live_code import live_code
from .longs import by_longs
from .pipeline_file import PipelineFile
from .shader_library import Variant, disabled_features
from .traits import checks_bounds, takes_live_code

KP_VERSION = "0.9.0"

# VkPipelineStageFlagBits and VkAccessFlagBits
_STAGE_COMPUTE, _STAGE_HOST = 0x800, 0x4000
_ACCESS_SHADER, _ACCESS_HOST_READ = 0x20 | 0x40, 0x2000

# For tests: treat a CPU driver's memory as a graphics card's, which the host cannot access.
_STAGED = "KOMPUTE_DML_TEST_STAGED"
_BOUNDS_CHECKS = "KOMPUTE_DML_BOUNDS_CHECKS"
"""``1`` leaves the driver's bounds checks in all shaders."""

_POLL_SECONDS = 200e-6
"""Seconds of polling before a waiter sleeps. Waking takes about 40 us (H200), as long as a small
submit."""
_EARLY_SECONDS = 150e-6
"""Who waits for a recording that took longer the last time polls from so many seconds before it
will be done again, and longer where the system wakes late."""
_LATEST_SECONDS, _FORGETS = 1e-3, 0.95
"""The most that counts as late, and what is left of it after a wait without it."""

_SIDE_BY_SIDE = Path(__file__).resolve().parents[1] / "_kp"
_GROUPS_PER_LINE = 1 << 15
"""The most groups along x. Every device allows 65,535."""


def _beside_us() -> ModuleType | None:
    """kp from the wheel, for this CPython. It replaces an installed kp under the same name, because
    two modules would register the same types."""
    path = _SIDE_BY_SIDE / f"kp{sysconfig.get_config_var('EXT_SUFFIX')}"
    if "kp" in sys.modules or not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("kp", path)
    assert spec is not None and spec.loader is not None  # it is an extension module
    if sys.platform == "darwin":
        # There it names no library: it finds Vulkan among what all of the process may use.
        ctypes.CDLL(system().loader, ctypes.RTLD_GLOBAL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["kp"] = module
    return module


def import_kp() -> Any:
    """Import kp. Raises NoDeviceError if it is missing or has another version."""
    try:
        if (bundled := _beside_us()) is not None:
            return bundled
        import kp
    except ImportError as error:
        raise NoDeviceError(
            "kp (Kompute) is not installed: run 'python -m kompute_dml.toolchain kp', which builds "
            f"it with its fixes ({error})"
        ) from None
    # A stock build has "0.9.0", a build without the version macro "dev".
    version = getattr(kp, "__version__", "dev")
    if version not in (KP_VERSION, "dev"):
        raise NoDeviceError(
            f"kp {version} is installed, but this package works with kp {KP_VERSION}: run "
            "'python -m kompute_dml.toolchain kp'"
        )
    return kp


def group_grid(groups: int) -> tuple[int, int, int]:
    """A grid (x, y, z) of ``groups`` workgroups, or slightly more. Idle workgroups take time:
    32,768 take about 20 us on an H200."""
    lines = -(-groups // _GROUPS_PER_LINE)
    return -(-groups // lines), lines, 1


def group_grids(groups: np.ndarray) -> np.ndarray:
    """:func:`group_grid` of each, a row each."""
    lines = -(-groups // _GROUPS_PER_LINE)
    grids = np.ones((len(groups), 3), np.uint32)
    grids[:, 0], grids[:, 1] = -(-groups // lines), lines
    return grids


def translate(error: Exception, doing: str) -> DmlError:
    """The package's error for an error of kp. The VkResult in its text decides the class."""
    text = f"{doing}: {error}"
    if re.search(r"OUT_OF_(HOST|DEVICE)_MEMORY|OutOf(Host|Device)Memory", text):
        return OutOfMemoryError(text)
    if re.search(r"DEVICE_LOST|DeviceLost", text):
        return DeviceLostError(text)
    return DmlError(text)


class HostBuffer:
    """A buffer that host and device access. ``words`` is the host's view of it, as uint32."""

    def __init__(self, tensor: Any) -> None:
        self.buffer = tensor
        self.words: np.ndarray = tensor.data()
        self.bytes: np.ndarray = self.words.view(np.uint8)


class Pipeline:
    """A compute pipeline bound to its buffers."""

    __slots__ = ("algorithm", "groups")

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.groups = 0
        """The workgroups that it launches, if kp can change them."""


class Dispatches:
    """Dispatches of some pipelines, one after the other. Those that wait do so for all before. The
    others of them than those that change are recorded once."""

    def __init__(
        self, engine: Engine, pipelines: Sequence[Pipeline], waits: np.ndarray,
        changes: np.ndarray, groups: np.ndarray, push: np.ndarray,
    ) -> None:
        """``groups`` and ``push`` are the workgroups of each and all their push words (UINT32)."""
        self.operation = engine.manager.dispatches(
            [p.algorithm for p in pipelines], waits.tolist(), changes.tolist(),
            group_grids(groups), push)
        self.count = len(pipelines)


class CommandList:
    """One command buffer: recorded once, submitted once or (kept by its owner) again."""

    def __init__(self, engine: Engine, timestamps: int = 0) -> None:
        self._engine = engine
        self._sequence = engine.manager.sequence(0, timestamps)
        self._dispatch = engine.kp.OpAlgoDispatch
        engine.command_lists.add(self)
        self.operations = 0
        self.running = False
        self._submitted = self._took = 0.0
        """When it was submitted, and the seconds until a waiter saw the end of the last submit."""
        self._barriers: dict[int, tuple[list[Any], Any]] = {}
        """(buffers, operation) of the last barrier by stage, for reuse."""

    def _record(self, operation: Any) -> None:
        try:
            self._sequence.record(operation)
        except RuntimeError as error:
            raise translate(error, f"recording on {self._engine.adapter.name}") from None
        self.operations += 1

    def dispatch(self, pipeline: Pipeline, groups: int, push: np.ndarray) -> None:
        """Record a dispatch. ``push`` is copied."""
        algorithm = pipeline.algorithm
        if pipeline.groups != groups and self._engine.resizes_groups:
            algorithm.set_workgroup(group_grid(groups))
            pipeline.groups = groups
        try:
            self._sequence.record(self._dispatch(algorithm, push))
        except RuntimeError as error:
            raise translate(error, f"recording on {self._engine.adapter.name}") from None
        self.operations += 1

    def dispatch_all(self, dispatches: Dispatches, groups: np.ndarray, push: np.ndarray) -> None:
        """Record dispatches by one call, with the workgroups and push words (UINT32) of those that
        change. Both are copied."""
        try:
            dispatches.operation.set(group_grids(groups), push)
        except RuntimeError as error:
            raise translate(error, f"recording on {self._engine.adapter.name}") from None
        self._record(dispatches.operation)

    def _record_barrier(self, buffers: list[Any], access: int, stage: int) -> None:
        last = self._barriers.get(stage)
        if last is None or last[0] != buffers:
            last = buffers, self._engine.kp.OpMemoryBarrier(
                buffers, _ACCESS_SHADER, access, _STAGE_COMPUTE, stage
            )
            self._barriers[stage] = last
        self._record(last[1])

    def barrier(self, buffers: list[Any]) -> None:
        """Order earlier shader accesses to ``buffers`` before later ones."""
        self._record_barrier(buffers, _ACCESS_SHADER, _STAGE_COMPUTE)

    def show_host(self, buffers: list[Any]) -> None:
        """Make what shaders wrote to ``buffers`` visible to the host once this list is done."""
        if self._engine.records_barriers:
            self._record_barrier(buffers, _ACCESS_HOST_READ, _STAGE_HOST)
        else:
            self._record(self._engine.kp.OpTensorSyncLocal(buffers))

    def submit(self) -> None:
        """Submit. Stock kp returns when the device is done, fixed kp at once."""
        try:
            if self._engine.submits_async:
                self.running = True
                self._submitted = time.perf_counter()
                self._sequence.eval_async()
            else:
                self._sequence.eval()
        except RuntimeError as error:
            raise translate(error, f"submit on {self._engine.adapter.name}") from None
        except BaseException:
            self.running = self._sequence.is_running()  # it may be submitted
            raise

    def wait(self) -> None:
        """Wait until the device is done with the last submit."""
        if self.running:
            try:
                if not (self._engine.polls and self._done_soon()):
                    self._sequence.eval_await()
            except RuntimeError as error:
                self.running = False
                raise translate(error, f"waiting for {self._engine.adapter.name}") from None
            self._took = time.perf_counter() - self._submitted
            # After the wait, so that an interrupted wait can be repeated.
            self.running = False

    def _done_soon(self) -> bool:
        now = time.perf_counter()
        expected, late = self._submitted + self._took, self._engine.wakes_late
        sleep = expected - _EARLY_SECONDS - late - now
        end = now + _POLL_SECONDS
        if sleep > 0:
            wanted = now + sleep
            self._sequence.eval_await(int(sleep * 1e9))
            now = time.perf_counter()
            if not self._sequence.is_running():  # perhaps for long
                self._engine.wakes_late = max(late, min(now - wanted, _LATEST_SECONDS))
                return True
            self._engine.wakes_late = _FORGETS * late
            end = max(now, expected) + _POLL_SECONDS
        while self._sequence.is_running() and now < end:
            self._sequence.eval_await(0)
            now = time.perf_counter()
        return not self._sequence.is_running()

    def reset(self) -> bool:
        """Empty the list for another recording. False if kp cannot do so validly."""
        if not self._engine.rerecords:
            return False
        self._sequence.clear()
        self.operations = 0
        self._took = 0.0
        return True

    def timestamps(self) -> list[int]:
        """Device ticks: at the start, after each operation (as far as they fit), and at the end."""
        return list(self._sequence.get_timestamps())


class Engine:
    """A logical device made by kp."""

    def __init__(self, adapter: Adapter) -> None:
        kp = self.kp = import_kp()
        self.adapter = adapter
        fixed = os.environ.get("KOMPUTE_DML_KP") != "stock"
        self.records_barriers = fixed and hasattr(kp, "OpMemoryBarrier")
        self.resizes_groups = fixed and hasattr(kp.Algorithm, "set_workgroup")
        self.records_many = (
            self.records_barriers and self.resizes_groups and hasattr(kp.Manager, "dispatches"))
        # The fix that shows the enabled features also stands for those that kp's interface does not
        # show: checked results, asynchronous submits, reset pools.
        self.reports_errors = fixed and hasattr(kp.Manager, "enabled_features")
        self.submits_async = self.rerecords = self.reports_errors
        # Polling would take the processor from a CPU driver.
        self.polls = self.submits_async and not adapter.is_cpu
        self.wakes_late = 0.0
        """Seconds by which the system woke a waiter late."""
        self.shares_pipelines = self.reports_errors and hasattr(kp, "Pipeline")
        self.timestamps_valid = self.reports_errors and adapter.timestamp_period > 0
        wanted = (*FEATURE_EXTENSIONS, *SHARING_EXTENSIONS, PORTABILITY_EXTENSION)
        extensions = [e for e in wanted if e in adapter.extensions]
        if not checks_bounds(adapter) or os.environ.get(_BOUNDS_CHECKS) == "1":
            extensions = [e for e in extensions if e != ROBUSTNESS_EXTENSION]
        try:
            self.manager = kp.Manager(adapter.index, [], extensions if fixed else [])
        except RuntimeError as error:
            raise NoDeviceError(f"kp cannot open {adapter.name}: {error}") from None
        opened = self.manager.get_device_properties()["device_name"]
        if opened != adapter.name:
            # Vulkan's list has changed, or the adapter comes from another process.
            raise NoDeviceError(
                f"expected Vulkan's device {adapter.index} to be {adapter.name}, but it is {opened}"
            )
        self.features = (
            (adapter.features & UNASKED_FEATURES).union(self.manager.enabled_features())
            if self.reports_errors else frozenset()
        )
        self.chooses_checks = "pipelineRobustness" in self.features
        """Whether a shader's own bounds checks may be all that it has. The others keep the
        driver's, which the feature alone would switch off."""
        self._file = PipelineFile(adapter)
        if self.shares_pipelines:
            self._share_pipelines()
        self._coding = threading.Lock()
        """Several threads are no faster, and the one that plans would wait for each of them."""
        self.moves_longs = adapter.is_cpu and "shaderInt64" in self.features - disabled_features()
        # A CPU driver's device memory is host memory, so copies need no shader.
        self.host_writes_storage = adapter.is_cpu and not os.environ.get(_STAGED)
        self.host_reads_storage = self.host_writes_storage and self.records_barriers
        self.command_lists: weakref.WeakSet[CommandList] = weakref.WeakSet()
        """All command lists, including those of kept recordings."""
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Bytes of each tensor on the device. A tensor that an interrupt orphans disappears from
        it."""
        self.imports: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """What other interfaces made of a tensor's memory, until it is freed."""
        self.at_close = contextlib.ExitStack()
        """What others made on the logical device, which goes before it."""
        # kp counts words in 32 bits and binds whole buffers.
        self.max_buffer = min(
            adapter.max_storage_buffer_range, adapter.max_allocation, 2**32 - 256
        )

    @property
    def description(self) -> str:
        return "fixed" if self.reports_errors else "stock"

    @property
    def reserved(self) -> int:
        """Bytes of device memory taken."""
        return sum(self._taken.values())

    def _device_tensor(self, nbytes: int, kind: Any) -> Any:
        # Stock kp continues with a null handle after a failed allocation, so check beforehand.
        if self.reserved + nbytes > self.adapter.device_memory:
            raise OutOfMemoryError(
                f"{self.adapter.name}: {nbytes} bytes were asked for, but "
                f"{self.reserved} of {self.adapter.device_memory} are taken"
            )
        tensor = self._tensor(nbytes, kind)
        self._taken[tensor] = nbytes
        return tensor

    def _tensor(self, nbytes: int, kind: Any) -> Any:
        try:
            return self.manager.tensor_t(np.zeros(nbytes // 4, np.uint32), kind)
        except RuntimeError as error:
            raise translate(
                error, f"allocating {nbytes} bytes on {self.adapter.name} "
                f"({self.reserved} of {self.adapter.device_memory} taken)"
            ) from None

    def storage(self, nbytes: int, dedicated: bool = False) -> Any:
        """A buffer on the device. The host can access it if ``host_writes_storage``.
        ``dedicated``: its memory is its own, where kp is fixed. Some drivers do not compress
        such memory."""
        kinds = self.kp.TensorTypes
        if self.host_writes_storage:
            return self._device_tensor(nbytes, kinds.host)
        if not (dedicated and self.reports_errors):
            return self._device_tensor(nbytes, kinds.storage)
        self.kp.Tensor.dedicates(True)
        try:
            return self._device_tensor(nbytes, kinds.storage)
        finally:
            self.kp.Tensor.dedicates(False)

    def free_storage(self, tensor: Any) -> None:
        """Free a buffer. Calling it again is harmless."""
        if tensor.is_init():
            tensor.destroy()
        self._taken.pop(tensor, None)
        self.imports.pop(tensor, None)
        if self.reports_errors:
            self.manager.clear()

    def upload_buffer(self, nbytes: int) -> HostBuffer:
        """A buffer in host memory. A few of these serve all transfers."""
        return HostBuffer(self._tensor(nbytes, self.kp.TensorTypes.host))

    def readback_buffer(self, nbytes: int) -> HostBuffer:
        """A buffer for reading results. With stock kp it is a device buffer with a staging copy,
        the only kind that stock kp makes visible to the host."""
        kinds = self.kp.TensorTypes
        if self.records_barriers:
            return HostBuffer(self._tensor(nbytes, kinds.host))
        return HostBuffer(self._device_tensor(nbytes, kinds.device))

    def grid_key(self, groups: int) -> int:
        """The part of a pipeline's key for a group count: 0 if kp can change the count."""
        return 0 if self.resizes_groups else power_of_two(groups)

    def pipeline(
        self, variant: Variant, buffers: list[Any], spec: np.ndarray, grid_key: int
    ) -> Pipeline:
        """Compile ``variant`` for these buffers (in binding order) and constants."""
        grid = group_grid(grid_key) if grid_key else (1, 1, 1)
        push = np.zeros(variant.push_words, np.uint32)
        with self._making(variant):
            return Pipeline(
                self.manager.algorithm(buffers, self._code(variant, spec), grid, spec, push))

    def compile(self, variant: Variant, spec: np.ndarray) -> Any:
        """Compile ``variant`` for any buffers, in any thread, if ``shares_pipelines``."""
        # VkPipelineRobustnessBufferBehavior: none, or those of robustBufferAccess
        checks = ((1 if variant.unchecked else 2),) if self.chooses_checks else ()
        size = variant.asked_subgroup(self.adapter, spec)
        more = {"subgroup_size": size} if size else {}
        with self._making(variant):
            return self.manager.pipeline(
                self._code(variant, spec), variant.bindings, spec, variant.push_words, *checks,
                **more)

    def bound(self, variant: Variant, compiled: Any, buffers: list[Any]) -> Pipeline:
        """What :meth:`compile` made, for these buffers (in binding order)."""
        with self._making(variant):
            return Pipeline(self.manager.algorithm(compiled, buffers, (1, 1, 1)))

    def _code(self, variant: Variant, spec: np.ndarray) -> bytes:
        with self._coding:
            code = by_longs(variant.spirv) if self.moves_longs else variant.spirv
            return live_code(code, spec) if takes_live_code(self.adapter) else code

    @contextlib.contextmanager
    def _making(self, variant: Variant) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise translate(
                error, f"making the pipeline {variant.name} on {self.adapter.name}"
            ) from None

    def _share_pipelines(self) -> None:
        try:
            self.manager.share_pipelines(self._file.load())
        except RuntimeError:  # the driver refuses its own data
            self.manager.share_pipelines()

    def keep_compiled(self) -> None:
        """Write the compiled pipelines to the file, for other processes. In any thread."""
        if not self.shares_pipelines or self._file.path is None:
            return
        with contextlib.suppress(RuntimeError):  # the driver refuses
            self._file.save(self.manager.pipeline_data(self._file.others()))

    def command_list(self, timestamps: int = 0) -> CommandList:
        return CommandList(self, timestamps)

    def handles(self) -> tuple[int, int] | None:
        """The VkDevice and its VkQueue. None if kp does not show them."""
        shown = self.reports_errors and hasattr(self.manager, "handles")
        return self.manager.handles() if shown else None

    def close(self) -> None:
        self.at_close.close()
        self.manager.destroy()
