"""Device: a Vulkan device with its memory, shaders and queue."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from .bindings import BindingTable, Buffer, Dispatchable
from .compiler import CompiledOperator, ExecutionFlags, Operator, OperatorInitializer
from .desc import TensorDesc
from .dtypes import DataType, pack_halves
from .errors import (
    DeviceLostError,
    DmlError,
    OutOfMemoryError,
    UnsupportedError,
    ValidationError,
    expect,
    integers,
    whole,
)
from .graph.desc import GraphDesc
from .hints import SnakeCase
from .layout import Ints
from .lowering.builder import target_of
from .lowering.plan import Plan
from .operators.base import OperatorDesc
from .runtime import clock, exactness, fragments, measurements, traits
from .runtime.adapters import Adapter, choose
from .runtime.heap import Allocation, Block, Heap
from .runtime.kp_engine import Engine, HostBuffer, Pipeline
from .runtime.pipelines import Pipelines
from .runtime.recorder import Recorder, Recording, locked
from .runtime.shader_library import ShaderLibrary
from .runtime.transfer import Transfer
from .runtime.windows import Windows
from .runtime.zeros import Zeros
from .spec import FeatureLevel
from .tensors import Tensor
from .tensors.memory import standing_for
from .validation_cache import ValidationCache

if TYPE_CHECKING:
    from .graph.compiled import CompiledGraph
    from .graph.recorded import RecordedPlan
    from .tensors.types import DataTypeLike

MAX_COMPILED = 1024
"""Compiled operators that the function level keeps."""
MAX_PLANS = 64
"""Plans that functions keep."""
MAX_NUMBERS = 256
"""Numbers that a device keeps as tensors, for calls such as ``x + 1``."""
# For validation runs: every tensor is a separate buffer, and every access counts as whole.
_WHOLE_BUFFERS = "KOMPUTE_DML_TEST_WHOLE_BUFFERS"
MAX_IDLE = 1 << 30
"""The most bytes of unused memory that a device keeps for later tensors, ..."""
MAX_IDLE_SHARE = 8
"""... but at most this fraction of the device's memory."""
MAX_WAITING_TO_FREE = 256 << 20
"""The most bytes of dropped tensors that pending work may use. Beyond that, an allocation submits
it."""
_NUMPY_1 = np.__version__.startswith("1.")
_EXIT_SECONDS = 1.0
"""Seconds that the end of the process waits for another thread's call on a device."""


class _Runtime:
    """Parts that live as long as the logical device. They do not refer to the Device."""

    def __init__(self, adapter: Adapter) -> None:
        self.engine = Engine(adapter)
        self.library = ShaderLibrary(self.engine.features, adapter.max_storage_buffers)
        self.pipelines = Pipelines(self.engine, self.library)
        # The validation layer counts accesses to whole buffers, we count bytes.
        whole = bool(os.environ.get(_WHOLE_BUFFERS))
        self.heap = Heap(
            self.engine.storage, self._drop_block, self.engine.max_buffer,
            min(MAX_IDLE, adapter.device_memory // MAX_IDLE_SHARE), shares_blocks=not whole,
        )
        self.recorder = Recorder(self.engine, self._make_ticket, self.heap, whole)
        self.transfer = Transfer(self.recorder, self.pipelines)
        self.windows = Windows(self.recorder, self.transfer)
        self.zeros = Zeros(self.allocate, self.transfer)
        self.closed = False
        self._clock = contextlib.ExitStack()
        if os.environ.get("KOMPUTE_DML_HOLD_CLOCK"):
            self._clock.enter_context(clock.held(adapter))

    @property
    def lock(self) -> threading.RLock:
        """Held during every call on the device."""
        return self.recorder.lock

    def _drop_block(self, block: Block) -> None:
        self.pipelines.forget(block)
        self.engine.free_storage(block.buffer)

    def _make_ticket(self) -> tuple[Pipeline, HostBuffer]:
        readback = self.engine.readback_buffer(256)
        variant = self.library.get("ticket")
        spec = variant.pack_spec({"LOCAL_SIZE": 1})
        key = self.engine.grid_key(1)
        return self.engine.pipeline(variant, [readback.buffer], spec, key), readback

    def own_function(self, name: str, *operands: np.ndarray) -> np.ndarray:
        """One of the device's own functions of words."""
        count = operands[0].size
        return self._measured(
            "units", {"LOCAL_SIZE": 64, "FUNCTION": exactness.FUNCTIONS.index(name)}, count,
            -(-count // 64), dict(zip(("a_offset", "b_offset", "c_offset"), operands)),
            {"count": count})

    def own_fragments(self) -> np.ndarray:
        """Where the device's matrix units hold elements; see :mod:`.fragments`."""
        return self._measured("fragments", {"LOCAL_SIZE": fragments.LANES},
                              fragments.expected().size, 1, {}, {})

    def _measured(
        self, name: str, spec: Mapping[str, int], count: int, groups: int,
        operands: Mapping[str, np.ndarray], push: Mapping[str, int],
    ) -> np.ndarray:
        """The ``count`` words that a shader makes of operands of as many."""
        variant = self.library.get(name)
        with self.lock:
            memory = {field: self.allocate(4 * count) for field in (*operands, "y_offset")}
            for field, words in operands.items():
                self.transfer.upload(words.view(np.uint8), memory[field], 0)
            blocks = tuple(each.block for each in memory.values())
            pipeline = self.pipelines.get(
                variant, variant.pack_spec(spec).tobytes(), blocks, groups)
            accesses = tuple(
                (each, each.offset, each.offset + 4 * count, field not in operands)
                for field, each in memory.items())
            places = {field: each.offset // 4 for field, each in memory.items()}
            self.recorder.dispatch(
                pipeline, groups, variant.pack_push({**push, **places}), accesses, name)
            results = self.transfer.download(memory["y_offset"], 0, 4 * count).view(np.uint32)
            for each in memory.values():
                each.free()
        return results

    def collect(self) -> None:
        """Take dropped ranges back, and drop pipelines that have lost their users."""
        self.pipelines.drop_left()
        dropped = self.heap.dropped
        while dropped:
            self.recorder.free(dropped[0])
            dropped.popleft()  # last, so that an interrupted call can be repeated

    def allocate(self, nbytes: int, uploaded: bool = False) -> Allocation:
        if nbytes > self.heap.max_block:
            raise OutOfMemoryError(
                f"{self.engine.adapter.name}: a tensor of {nbytes} bytes was asked for, but one "
                f"buffer of this device holds {self.heap.max_block} at most"
            )
        if self.heap.dropped:
            self.collect()
        if self.recorder.waiting_to_free > MAX_WAITING_TO_FREE:
            self.recorder.flush()
        try:
            return self.heap.allocate(nbytes, uploaded)
        except OutOfMemoryError:
            # Dropped memory that is in use comes back when the device is done.
            self.recorder.synchronize()
            self.collect()
            self.heap.trim()
            return self.heap.allocate(nbytes, uploaded)

    def abandon(self, reason: str) -> None:
        """Leave the device to the process that made it, or to the end of this one."""
        self.closed = True
        self.recorder.lost = DeviceLostError(f"{self.engine.adapter.name}: {reason}")
        self.pipelines.abandon()
        # kp's destructors would call the driver, which may crash here. So they must never run.
        for kept in (self, *self.engine.command_lists):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with self.lock:
            self.pipelines.stop()
            # kp destroys its objects in the right order, but the device must be idle.
            if self.recorder.lost is None:
                with contextlib.suppress(DmlError):
                    self.recorder.synchronize()
                    self.engine.keep_compiled()
                self.recorder.lost = DeviceLostError(f"{self.engine.adapter.name}: it was closed")
            self.engine.close()
            self._clock.close()

    def close_at_exit(self) -> None:
        # A daemon thread may hold the lock forever, for example inside a recording.
        if not self.lock.acquire(timeout=_EXIT_SECONDS):
            self.pipelines.stop()
            self.abandon("the process ends")
            return
        try:
            self.close()
        finally:
            self.lock.release()


_MEASURED: Mapping[str, Callable[[_Runtime], bool]] = {
    "exact_units": lambda runtime: not exactness.wrong(runtime.own_function),
    "fragments_alike": lambda runtime: fragments.alike(runtime.own_fragments()),
}
"""Traits that are measured, and how."""


def _measured_traits(adapter: Adapter) -> dict[str, bool]:
    """The traits of a device that nobody knows until they are measured. Those that were not are
    measured now: on a logical device that is closed again, so that no memory and no pipeline of the
    measurement stays. Where the driver fails, a trait stays unknown."""
    driver = f"{adapter.name}, {adapter.driver} {adapter.driver_version}"
    own = traits.of(adapter)
    asked = [name for name in _MEASURED if traits.leaves_open(adapter, own, name)]
    known = measurements.known(driver)
    left = [name for name in asked if name not in known]
    if left:
        answers: dict[str, bool] = {}
        with contextlib.suppress(DmlError):
            runtime = _Runtime(adapter)
            try:
                for name in left:
                    with contextlib.suppress(DmlError):
                        answers[name] = _MEASURED[name](runtime)
            finally:
                runtime.close()
        if answers:
            measurements.keep(driver, **answers)
            known |= answers
    return {name: known[name] for name in asked if name in known}


class _Plans:
    """Plans of functions that are graphs, by what they compute. The least recently used one is
    dropped."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Any, RecordedPlan] = OrderedDict()

    def take(self, key: object, make: Callable[[], RecordedPlan]) -> RecordedPlan:
        """The plan kept for ``key``. It is made at first use."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = make()
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return plan

    def clear(self) -> None:
        self._plans.clear()


class _Compiled(OrderedDict[Any, CompiledOperator]):
    """Compiled operators of the function level, by description."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: OrderedDict[Any, Any] = OrderedDict()
        """What functions did with them, by signature; see functions/call_cache.py."""

    def clear(self) -> None:
        super().clear()
        self.calls.clear()


_runtimes: weakref.WeakSet[_Runtime] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child has no device: make every use raise, and end without the driver."""
    runtimes = list(_runtimes)
    for runtime in runtimes:
        runtime.recorder.lock = threading.RLock()  # no thread is left to release it
        runtime.abandon("this Device belongs to the parent process; "
                        "open devices only after fork(), or start processes by spawn")
    libc = ctypes.CDLL(None)
    if runtimes and hasattr(libc, "on_exit"):
        # A driver's exit handler crashes in a child. Handlers run in reverse order: C's streams are
        # flushed, then _exit(status) skips those of the driver.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    for runtime in list(_runtimes):
        runtime.close_at_exit()


def _as_array(array: object, dtype: np.dtype[np.generic] | None) -> np.ndarray:
    """``numpy.asarray``. NumPy 1, too, refuses Python numbers that do not fit."""
    if (_NUMPY_1 and isinstance(array, (int, float, list, tuple))
            and dtype is not None and dtype.kind in "iu"):
        exact = np.asarray(array)
        if exact.dtype.kind in "iuf":
            exact = np.trunc(exact) if exact.dtype.kind == "f" else exact
            with np.errstate(invalid="ignore"):
                wrong = exact[exact.astype(dtype) != exact]
            if wrong.size:
                raise OverflowError(f"{wrong[0]} is out of bounds for {dtype}")
    return np.asarray(array, dtype)


def _host_array(array: object, data_type: DataTypeLike | None) -> np.ndarray:
    """What ``Device.tensor`` uploads."""
    dtype = None if data_type is None else DataType.of(data_type).dtype
    if array is None:  # for NumPy a number that is missing
        raise ValidationError("expected a tensor or an array, but got None")
    try:
        return _as_array(array, dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValidationError(
            "expected a tensor or what NumPy makes an array of, but got "
            f"{type(array).__name__}: {error}"
        ) from None


def _check_alive(allocation: Allocation) -> None:
    if allocation.block is None:
        raise ValidationError("expected a tensor or buffer that is alive, but it was freed")


class Device(SnakeCase):
    """A Vulkan device that runs DirectML's operators (IDMLDevice).

    ``adapter`` is one of :func:`~kompute_dml.list_devices`, or an index, a UUID, a name or a part
    of a name; by default ``KOMPUTE_DML_DEVICE``. Of several matches, discrete GPUs come before
    integrated, virtual and CPU devices. Operators newer than ``feature_level`` are refused.
    ``strict`` refuses the documented extensions to DirectML. A Device is safe to use from several
    threads. ``device.tensor(x)`` copies a tensor from another Device.

    With ``KOMPUTE_DML_HOLD_CLOCK=1`` and a GPU with CUDA, it holds a CUDA context as long as it is
    open. Without one, the driver lowers the GPU's clock whenever the host leaves gaps.

    Raises :class:`~kompute_dml.NoDeviceError` if there is no such device.
    """

    graph_compiler: ClassVar[Callable[[Device, GraphDesc, ExecutionFlags], CompiledGraph]]
    """Compiles graphs, which lie above devices: :mod:`.graph.compiled` sets it."""

    attached = ("kompute_dml.arrays", "kompute_dml.graph.compiled")
    """Modules above this one, which attach functions to tensors and devices. The first device
    imports them."""

    def __init__(
        self,
        adapter: int | str | Adapter | None = None,
        feature_level: FeatureLevel | str = FeatureLevel.FL_6_4,
        *,
        strict: bool = False,
    ) -> None:
        for module in self.attached:
            importlib.import_module(module)
        self.adapter = adapter if isinstance(adapter, Adapter) else choose(adapter)
        self.feature_level = FeatureLevel.of(feature_level)
        self.strict = strict
        measured = _measured_traits(self.adapter)
        self.runtime = _Runtime(self.adapter)
        self.target = target_of(self.runtime.library, self.adapter)
        if measured:
            self.target = replace(
                self.target, traits=traits.as_measured(self.target.traits, measured))
        self.recorder = self.runtime.recorder
        self.compiled = _Compiled()
        self.plans = _Plans()
        self._entered: list[Token[Device | None]] = []
        self.validation_cache = ValidationCache()
        """What need not be checked or compiled again."""
        self._numbers: OrderedDict[Any, Tensor] = OrderedDict()
        self._finalizer = weakref.finalize(self, self.runtime.close)
        self._finalizer.atexit = False  # _close_all() sees to it
        _runtimes.add(self.runtime)

    def __repr__(self) -> str:
        index, name = self.adapter.index, self.adapter.name
        return f"<Device {index} {name!r}, feature level {self.feature_level}>"

    def __enter__(self) -> Device:
        """Inside of the ``with`` block, calls without a device or tensors use this one."""
        self._entered.append(_chosen.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _chosen.reset(self._entered.pop())

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} stays in its process: send device.adapter to others")

    @property
    def features(self) -> frozenset[str]:
        """Vulkan features that are enabled, without those that ``KOMPUTE_DML_DISABLE`` names."""
        return self.runtime.library.features

    @property
    @locked
    def memory_used(self) -> int:
        """Bytes of device memory that tensors and buffers use, including rounding."""
        self.runtime.collect()
        return self.runtime.heap.used

    @property
    def memory_peak(self) -> int:
        """The most bytes that :attr:`memory_used` was, since :meth:`reset_memory_peak`."""
        return self.runtime.heap.peak

    @locked
    def reset_memory_peak(self) -> None:
        """Measure :attr:`memory_peak` from here on."""
        self.runtime.collect()
        self.runtime.heap.peak = self.runtime.heap.used

    @property
    def memory_reserved(self) -> int:
        """Bytes of device memory allocated from Vulkan for tensors."""
        return self.runtime.heap.reserved

    @locked
    def keep_unused(self, nbytes: int) -> None:
        """Keep up to so many bytes of unused memory for later tensors. By default these are
        1 GiB, and an eighth of the device's memory where that is less."""
        self.runtime.heap.keep = nbytes

    @locked
    def release_unused(self) -> None:
        """Finish pending work, and give unused memory back to Vulkan."""
        self.synchronize()
        self.runtime.heap.trim()

    def close(self) -> None:
        """Finish pending work and destroy the device. Every later call raises."""
        self.compiled.clear()
        self.plans.clear()
        self._numbers.clear()
        self._finalizer()

    # Tensors

    def tensor(self, array: object, data_type: DataTypeLike | None = None) -> Tensor:
        """Upload ``array`` (anything NumPy takes, any memory layout) as a packed tensor.

        ``data_type`` converts as ``numpy.asarray(array, dtype)`` does. By default the array's type
        is kept: FLOAT64 for Python floats, UINT8 (bytes of 0 and 1) for truth values. Raises
        ValidationError for data types that DirectML does not have, and more than 8 dimensions.
        """
        host = _host_array(array, data_type)
        truth = host.dtype == np.bool_
        host = host.view(np.uint8) if truth else host
        desc = standing_for(DataType.of(host.dtype), host.shape)
        tensor = self.new(desc, truth, uploaded=True, shape=host.shape)
        if not host.size:
            return tensor
        host = np.ascontiguousarray(host, desc.data_type.dtype).reshape(-1)
        flat = pack_halves(host) if desc.data_type.bits < 8 else host.view(np.uint8)
        self.write(tensor.allocation, 0, flat)
        return tensor

    @locked
    def number(self, value: object, data_type: DataTypeLike | None = None) -> Tensor:
        """:meth:`tensor` of one number, for operands. It is kept, so nothing may write it."""
        host = _host_array(value, data_type)
        key = host.dtype, host.shape, host.tobytes()
        kept = self._numbers.get(key)
        if kept is None:
            kept = self._numbers[key] = self.tensor(host)
            if len(self._numbers) > MAX_NUMBERS:
                self._numbers.popitem(last=False)
        else:
            self._numbers.move_to_end(key)
        return kept

    def empty(self, sizes: Sequence[int], data_type: DataTypeLike = "float32") -> Tensor:
        """A packed tensor of undefined contents."""
        shape = integers("Device.empty", "sizes", sizes)
        return self.new(standing_for(DataType.of(data_type), shape), shape=shape)

    def new(
        self, desc: TensorDesc, truth: bool = False, uploaded: bool = False,
        shape: Ints | None = None,
    ) -> Tensor:
        """A new tensor of undefined contents with this description. ``shape`` is that of a tensor
        which no description says."""
        nbytes = desc.total_tensor_size_in_bytes
        if shape is not None and 0 in shape:
            nbytes = 4  # nothing reads or writes it
        return Tensor(self, self.allocate(nbytes, uploaded), 0, desc, truth, shape)

    @locked
    def allocate(self, nbytes: int, uploaded: bool = False) -> Allocation:
        """Memory of so many bytes. Raises OutOfMemoryError."""
        self.recorder.check()
        return self.runtime.allocate(nbytes, uploaded)

    @locked
    def reserve(self, nbytes: int) -> None:
        """Expect allocations of so many bytes together."""
        self.runtime.collect()
        self.runtime.heap.reserve(nbytes)

    @locked
    def free(self, allocation: Allocation) -> None:
        """Give memory back, which the device may still use until it is done."""
        # No other thread may use it or free it at the same time.
        allocation.free()

    @locked
    def read(
        self, allocation: Allocation, offset: int, nbytes: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Bytes of memory, after what was recorded has run. They are written to ``out`` if it is
        there."""
        self.recorder.check()
        _check_alive(allocation)
        return self.runtime.transfer.download(allocation, offset, nbytes, out)

    @locked
    def write(self, allocation: Allocation, offset: int, data: np.ndarray) -> None:
        """Copy an array's bytes to memory, after what was recorded before."""
        _check_alive(allocation)
        if self.recorder.lost is not None:
            self.recorder.check()
        self.runtime.transfer.upload(data, allocation, offset)

    # Operators

    def create_operator(self, desc: OperatorDesc) -> Operator:
        """Check ``desc`` for this device (IDMLDevice::CreateOperator).

        Raises ValidationError if it breaks a rule, UnsupportedError if this feature level or device
        does not support it.
        """
        if not isinstance(desc, OperatorDesc):
            raise ValidationError(f"create_operator: expected an operator desc, but got {desc!r}")
        desc.operator.validate(desc, self.feature_level, self.strict)
        return Operator(self, desc)

    def compile_operator(
        self, operator: Operator, flags: ExecutionFlags = ExecutionFlags.NONE
    ) -> CompiledOperator:
        """Pick shaders for ``operator`` (IDMLDevice::CompileOperator).

        DISABLE_META_COMMANDS leaves out those that use matrix units.
        ALLOW_HALF_PRECISION_COMPUTATION lets large FLOAT32 products and convolutions round their
        factors to FLOAT16, where the device has matrix units for these. With DESCRIPTORS_VOLATILE
        a recording is replayed with what its tables are bound to then.
        """
        self.owns(operator, "compile_operator")
        flags = _flags("compile_operator", flags)
        return CompiledOperator(operator, self.plan(operator, flags), flags)

    def plan(self, operator: Operator, flags: ExecutionFlags) -> Plan:
        """The dispatches that an operator takes on this device."""
        target = self.target
        if flags & ExecutionFlags.ALLOW_HALF_PRECISION_COMPUTATION:
            target = replace(target, halves=True)
        if flags & ExecutionFlags.DISABLE_META_COMMANDS:
            target = replace(target, traits=replace(target.traits, cooperative_matrices=()))
        return operator.definition.lower(operator.desc, target)

    def compile_graph(
        self, desc: GraphDesc, flags: ExecutionFlags = ExecutionFlags.NONE
    ) -> CompiledGraph:
        """Compile operators that are wired together (IDMLDevice1::CompileGraph).

        The result is initialized, bound and dispatched like a compiled operator. Raises
        ValidationError if ``desc`` breaks a rule, UnsupportedError if this feature level or device
        does not support it. ``flags`` apply to each operator.
        """
        expect(isinstance(desc, GraphDesc), "compile_graph", "desc", "be a GraphDesc", repr(desc))
        flags = _flags("compile_graph", flags)
        compiled = Device.graph_compiler(self, desc, flags)
        compiled.is_volatile = bool(flags & ExecutionFlags.DESCRIPTORS_VOLATILE)
        return compiled

    def create_operator_initializer(
        self, operators: Sequence[Dispatchable] = ()
    ) -> OperatorInitializer:
        """An initializer of these operators (IDMLDevice::CreateOperatorInitializer)."""
        expect(not isinstance(operators, Dispatchable), "create_operator_initializer",
               "the operators", "be a list", operators)
        for compiled in operators:
            self.owns(compiled, "create_operator_initializer")
        return OperatorInitializer(self, operators)

    def create_binding_table(
        self, dispatchable: Dispatchable | OperatorInitializer
    ) -> BindingTable:
        """An empty binding table for one dispatch (IDMLDevice::CreateBindingTable)."""
        self.owns(dispatchable, "create_binding_table")
        return BindingTable(dispatchable)

    def create_buffer(self, size_in_bytes: int) -> Buffer:
        """Device memory whose ranges can be bound. Its contents are undefined."""
        size = whole("create_buffer", "size_in_bytes", size_in_bytes)
        if size < 1:
            raise ValidationError(
                f"create_buffer: expected a size of at least 1 byte, but got {size}"
            )
        return Buffer(self, self.allocate(size), size)

    def record_dispatch(
        self, dispatchable: Dispatchable | OperatorInitializer, table: BindingTable
    ) -> None:
        """Record a dispatch with these bindings (IDMLCommandRecorder::RecordDispatch).

        Everything is checked before anything is recorded. The dispatch runs when something is read,
        when enough work is pending, or at :meth:`synchronize`.
        """
        if getattr(dispatchable, "device", None) is not self:
            self.owns(dispatchable, "record_dispatch")
        if getattr(table, "dispatchable", None) is not dispatchable:
            raise ValidationError(
                "record_dispatch: expected a binding table made for this dispatchable"
            )
        with self.recorder.lock: self._record(dispatchable, table)  # noqa: E701  see locked()

    def _record(self, dispatchable: Dispatchable, table: BindingTable) -> None:
        recorder = self.recorder
        if recorder.lost is not None:
            recorder.check()
        recording = recorder.recording
        if recording is None:
            dispatchable.record(table)
            return
        before = recording.dispatches
        dispatchable.record(table)
        recording.calls.append((dispatchable, table))
        recording.counted += recording.dispatches - before
        if dispatchable.is_volatile:
            recording.watch(functools.partial(table.places, dispatchable))

    def owns(self, child: object, where: str) -> None:
        """Raise if an object belongs to another device."""
        if getattr(child, "device", None) is not self:
            raise ValidationError(f"{where}: expected an object of {self!r}, but got {child!r}")

    @locked
    def compile_cached(self, desc: OperatorDesc, key: object) -> CompiledOperator:
        """The compiled operator for ``desc``, made at the first call with ``key``."""
        compiled = self.compiled.get(key)
        if compiled is None:
            compiled = self.compile_operator(self.create_operator(desc))
            self.compiled[key] = compiled
            if len(self.compiled) > MAX_COMPILED:
                self.compiled.popitem(last=False)
        else:
            self.compiled.move_to_end(key)
        return compiled

    # Order

    @locked
    def synchronize(self) -> None:
        """Submit pending work and wait for the device."""
        self.recorder.synchronize()
        if self.runtime.heap.dropped:
            self.runtime.collect()

    @contextlib.contextmanager
    def record(self) -> Iterator[Recording]:
        """Record the calls inside the block into one submit, which is made when the block ends.

        The :class:`Recording` can replay them. Calls of other threads wait for the end of the
        block.
        """
        recorder = self.recorder
        with recorder.lock, recorder.record() as recording: yield recording  # noqa: E701  see locked()

    def time(self, work: Callable[[], object], dispatches: int = 256) -> list[tuple[str, float]]:
        """Run ``work`` and time its dispatches: (shader variant, nanoseconds) for each.

        Device timestamps take some time themselves. ``dispatches`` is the most dispatches of one
        submit. Raises UnsupportedError if the device or kp has no valid timestamps (stock kp has
        none).
        """
        return self._times(work, dispatches)

    def elapsed(self, work: Callable[[], object]) -> float:
        """Run ``work`` and time all of its dispatches together, in nanoseconds.

        Device timestamps are taken before the first and after the last dispatch of each submit.
        Raises as :meth:`time` does.
        """
        return sum(nanoseconds for _, nanoseconds in self._times(work, 0))

    @locked
    def _times(self, work: Callable[[], object], dispatches: int) -> list[tuple[str, float]]:
        if not self.runtime.engine.timestamps_valid:
            raise UnsupportedError(
                f"{self.adapter.name}: no valid timestamps here; they need kp with its fixes "
                "('python -m kompute_dml.toolchain kp') and a queue that takes them"
            )
        try:
            self.recorder.begin_times(dispatches)
            work()
        finally:
            times = self.recorder.end_times()
        return times


def _flags(operation: str, flags: int) -> ExecutionFlags:
    expect(isinstance(flags, int), operation, "flags", "be dml.ExecutionFlags", repr(flags))
    return ExecutionFlags(flags)


_chosen: ContextVar[Device | None] = ContextVar("device", default=None)
"""The device of the innermost ``with`` block."""
_shared: dict[tuple[int, FeatureLevel] | None, Device] = {}
"""Devices by adapter and feature level; None for the default device."""
_shared_lock = threading.Lock()


def _share(key: tuple[int, FeatureLevel] | None, make: Callable[[], Device]) -> Device:
    """The device kept for ``key``. It is made at first use, and again if it was lost."""
    with _shared_lock:
        device = _shared.get(key)
        if device is None or device.runtime.recorder.lost is not None:
            device = _shared[key] = make()
        return device


def shared_device(
    adapter: int | str | None = None, feature_level: FeatureLevel = FeatureLevel.FL_6_4
) -> Device:
    """The device that all models on this adapter share."""
    chosen = choose(adapter)
    return _share((chosen.index, feature_level), lambda: Device(chosen, feature_level))


def default_device() -> Device:
    """The device of calls without a device or tensors: that of the innermost ``with device``, else
    one that is made at first use."""
    return _chosen.get() or _share(None, Device)
