"""Buffers, and tables that bind ranges of them to operators (IDMLBindingTable)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .desc import MINIMUM_ALIGNMENT, TensorDesc
from .errors import ValidationError, expect, refuse, whole
from .hints import SnakeCase
from .runtime.heap import ALIGNMENT, Allocation, Slot

if TYPE_CHECKING:
    from .compiler import CompiledOperator, OperatorInitializer
    from .device import Device


class Buffer(SnakeCase):
    """A resource: device memory whose ranges are bound to operators."""

    def __init__(self, device: Device, allocation: Allocation, size_in_bytes: int) -> None:
        self.device = device
        self.allocation = allocation
        self.size_in_bytes = size_in_bytes

    def __repr__(self) -> str:
        return f"<Buffer of {self.size_in_bytes} bytes on {self.device.adapter.name!r}>"

    def write(self, data: object, offset: int = 0) -> None:
        """Copy an array's bytes (or a bytes object) to ``offset``, a multiple of 4."""
        if isinstance(data, (bytes, bytearray, memoryview)):
            raw = np.frombuffer(data, np.uint8)
        else:
            array = np.ascontiguousarray(data)
            if array.dtype.hasobject:
                refuse("Buffer.write", "data", "be an array of numbers or bytes", data)
            raw = array.reshape(-1).view(np.uint8)
        offset = whole("Buffer.write", "offset", offset)
        self._check_range("write", offset, raw.nbytes)
        with self.device.runtime.lock:
            if raw.nbytes % 4 and offset + raw.nbytes != self.size_in_bytes:
                # Copies move whole words, so the bytes after the data are kept.
                end = offset + raw.nbytes
                tail = self.read(end // 4 * 4, min(4, self.size_in_bytes - end // 4 * 4))
                raw = np.concatenate([raw, tail[end % 4 :]])
            if raw.nbytes:
                self.device.write(self.allocation, offset, raw)

    def free(self) -> None:
        """Give the memory back now. Every later use raises ValidationError."""
        self.device.free(self.allocation)

    def read(self, offset: int = 0, size: int | None = None) -> np.ndarray:
        """The bytes from ``offset`` (a multiple of 4) on. Waits for all work recorded before."""
        offset = whole("Buffer.read", "offset", offset)
        size = self.size_in_bytes - offset if size is None else whole("Buffer.read", "size", size)
        self._check_range("read", offset, size)
        return self.device.read(self.allocation, offset, size)

    def _check_range(self, what: str, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size_in_bytes or offset % 4:
            raise ValidationError(
                f"Buffer.{what}: expected a range inside {self.size_in_bytes} bytes that starts "
                f"at a multiple of 4, but got offset {offset} and size {size}"
            )


@dataclass(frozen=True)
class BufferBinding:
    """A range of a buffer (DML_BUFFER_BINDING). The size defaults to the rest of the buffer."""

    buffer: Buffer
    offset: int = 0
    size_in_bytes: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Buffer):
            raise ValidationError(
                f"BufferBinding: expected Buffer to be a Buffer, but got {self.buffer!r}"
            )
        most = self.buffer.size_in_bytes
        offset = whole("BufferBinding", "Offset", self.offset)
        size = self.size_in_bytes
        size = most - offset if size is None else whole("BufferBinding", "SizeInBytes", size)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "size_in_bytes", size)
        if offset < 0 or size < 1 or offset + size > most:
            raise ValidationError(
                f"BufferBinding: expected a range inside {self.buffer!r}, "
                f"but got Offset {offset} and SizeInBytes {size}"
            )


class BindingProperties(NamedTuple):
    """DML_BINDING_PROPERTIES. Sizes in bytes."""

    required_descriptor_count: int
    temporary_resource_size: int
    persistent_resource_size: int


Binding = BufferBinding | None


class Need(NamedTuple):
    """What must be bound in a slot. It is computed once, so that repeated binding is cheap."""

    path: str
    kind: str
    """``input``, ``output``, ``temporary`` or ``persistent``."""
    size: int = 0
    """Bytes; 0 if nothing must be bound."""
    alignment: int = 1
    absent: str = ""
    """Why nothing may be bound."""

    @classmethod
    def tensor(cls, path: str, kind: str, desc: TensorDesc) -> Need:
        alignment = max(MINIMUM_ALIGNMENT, desc.guaranteed_base_offset_alignment)
        return cls(path, kind, desc.total_tensor_size_in_bytes, alignment)

    @classmethod
    def resource(cls, kind: str, size: int, prefix: str = "") -> Need:
        return cls(f"{prefix}{kind} resource", kind, size, ALIGNMENT)


class Dispatchable(SnakeCase):
    """An operator or a graph that is initialized, bound and dispatched (IDMLCompiledOperator)."""

    device: Device
    name: str
    """Its name in messages."""
    binding_counts: tuple[int, int]
    """The number of inputs and of outputs."""
    needs: Sequence[Need]
    """The bindings of a dispatch, by slot: inputs, outputs, temporary and persistent resource."""
    needs_initialization: bool
    initialized: bool
    initializer_temporary_bytes: int
    """Bytes of scratch memory for an initialization."""
    is_volatile = False
    """Whether its bindings may change between recording and replaying (DESCRIPTORS_VOLATILE)."""

    @property
    def binding_properties(self) -> BindingProperties:
        """The resources of a dispatch (IDMLDispatchable::GetBindingProperties)."""
        temporary, persistent = self.needs[-2:]
        return BindingProperties(sum(self.binding_counts), temporary.size, persistent.size)

    def initializer_needs(self, prefix: str) -> list[Need]:
        """The bindings of an initialization, by slot. ``prefix`` names this target in messages."""
        raise NotImplementedError

    def check_alias(self, a: str, b: str, identical: bool) -> None:
        """Raise unless an input and an output may lie in the same memory."""
        raise NotImplementedError

    def run(self, places: Sequence[Slot | None]) -> None:
        """Record the dispatches with checked places, by slot."""
        raise NotImplementedError

    def initialize(self, places: Sequence[Slot | None]) -> None:
        """Record the dispatches that fill the persistent resource."""
        raise NotImplementedError

    def record(self, table: BindingTable) -> None:
        """Record a dispatch, for :meth:`Device.record_dispatch`."""
        self.run(table.places(self))


def _find(
    device: Device, name: str, needs: Sequence[Need], bindings: Sequence[object]
) -> list[Slot | None]:
    """The place of each need. Raises if the bindings do not meet it."""
    places: list[Slot | None] = []
    for need, binding in zip(needs, bindings):
        if not need.size:
            if need.absent and binding is not None:
                refuse(name, f"the binding of {need.path}",
                       f"be None (the tensor is {need.absent})", binding)
            places.append(None)
            continue
        if not isinstance(binding, BufferBinding):
            expect(binding is not None, name, need.path, f"be bound ({need.size} bytes)", None)
            refuse(name, f"the binding of {need.path}", "be a BufferBinding", binding)
        buffer, begin = binding.buffer, binding.offset
        allocation = buffer.allocation
        if buffer.device is not device:
            refuse(name, f"the binding of {need.path}",
                   f"lie on the operator's own {device!r}", f"one of another {buffer.device!r}")
        if allocation.block is None:
            refuse(name, f"the Buffer of {need.path}", "not be freed", buffer)
        if begin % need.alignment:
            refuse(name, f"the Offset of {need.path}",
                   f"be a multiple of {need.alignment}", begin)
        if binding.size_in_bytes < need.size:
            refuse(name, f"the SizeInBytes of {need.path}",
                   f"be at least {need.size}", binding.size_in_bytes)
        places.append(Slot(allocation, begin))
    return places


def _expect_count(name: str, what: str, bindings: Sequence[object], count: int, each: str) -> None:
    expect(len(bindings) == count, name, what, f"be {count} (one for each {each})", len(bindings))


def _listed(what: str, bindings: Any) -> tuple[Any, ...]:
    try:
        return tuple(bindings)
    except TypeError:
        refuse(what, "the bindings", "be a list, with one entry for each tensor", bindings)


class BindingTable(SnakeCase):
    """The buffers of one dispatch (IDMLBindingTable).

    Inputs and outputs are bound in the order of the operator's structure; None for an absent
    tensor, or one that is OWNED_BY_DML. For an initializer, inputs are one list per target operator
    (or None), with bindings for its OWNED_BY_DML tensors only. Its outputs are one persistent
    resource per target. The table is checked when the dispatch is recorded.
    """

    def __init__(self, dispatchable: Dispatchable | OperatorInitializer) -> None:
        self.dispatchable = dispatchable
        self._inputs: Sequence[Any] = ()
        self._outputs: Sequence[Binding] = ()
        self._temporary: Binding = None
        self._persistent: Binding = None
        self._places: list[Slot | None] | None = None
        """The result of places(), until the next binding."""

    def bind_inputs(self, bindings: Sequence[object]) -> None:
        """One :class:`BufferBinding` or None for each input (IDMLBindingTable::BindInputs)."""
        self._inputs, self._places = _listed("bind_inputs", bindings), None

    def bind_outputs(self, bindings: Sequence[Binding]) -> None:
        """One :class:`BufferBinding` or None for each output (IDMLBindingTable::BindOutputs)."""
        self._outputs, self._places = _listed("bind_outputs", bindings), None

    def bind_temporary_resource(self, binding: Binding) -> None:
        """Scratch memory of the size in ``binding_properties``."""
        self._temporary, self._places = binding, None

    def bind_persistent_resource(self, binding: Binding) -> None:
        """The memory that the initializer filled, of the size in ``binding_properties``."""
        self._persistent, self._places = binding, None

    # Checks

    def places(self, compiled: Dispatchable) -> list[Slot | None]:
        """The place of each slot of the table's operator. Raises ValidationError."""
        if self._places is not None:
            return self._places
        name = compiled.name
        if not compiled.initialized:
            refuse(name, "the operator",
                   "be initialized before it is dispatched (it has OWNED_BY_DML inputs)",
                   "one that is not")
        counts = compiled.binding_counts
        if (len(self._inputs), len(self._outputs)) != counts:
            for what, bound, count in zip(("input", "output"), (self._inputs, self._outputs),
                                          counts):
                _expect_count(name, f"the number of {what} bindings", bound, count,
                              f"{what} tensor")
        bindings = (*self._inputs, *self._outputs, self._temporary, self._persistent)
        places = _find(compiled.device, name, compiled.needs, bindings)
        _check_overlaps(name, compiled.needs, places, compiled)
        self._places = places
        return places

    def initializer_places(self, initializer: OperatorInitializer) -> list[list[Slot | None]]:
        """The places of the slots of each target operator."""
        targets = initializer.operators
        name = "DML_OPERATOR_INITIALIZER"
        inputs = self._inputs or (None,) * len(targets)
        outputs = self._outputs or (None,) * len(targets)
        for what, bindings in (("input", inputs), ("output", outputs)):
            _expect_count(name, f"the number of {what} bindings", bindings, len(targets),
                          "operator")
        result: list[list[Slot | None]] = []
        all_needs: list[Need] = []
        for i, (compiled, bound, persistent) in enumerate(zip(targets, inputs, outputs)):
            expect(
                not (compiled.needs_initialization and compiled.initialized), name, f"operator {i}",
                "be initialized once", f"{compiled.name}, which is already",
            )
            count, written = compiled.binding_counts
            bound = (None,) * count if bound is None else _listed(
                f"{name}: the inputs of operator {i}", bound)
            _expect_count(name, f"the input bindings of operator {i}", bound, count,
                          "input tensor")
            bindings = (*bound, *(None,) * written, self._temporary, persistent)
            needs = compiled.initializer_needs(f"operators[{i}].")
            result.append(_find(initializer.device, name, needs, bindings))
            all_needs += needs
        _check_overlaps(name, all_needs, [place for places in result for place in places], None)
        return result


class _Range(NamedTuple):
    need: Need
    allocation: Allocation
    begin: int
    end: int


def _check_overlaps(
    name: str, needs: Sequence[Need], places: Sequence[Slot | None],
    compiled: Dispatchable | None,
) -> None:
    """Raise if a written range overlaps another one, except an input that may alias an output."""
    allocations = [place.allocation for place in places if place is not None]
    if len(set(allocations)) == len(allocations):
        return
    ranges = [
        _Range(need, place.allocation, place.byte_offset, place.byte_offset + need.size)
        for need, place in zip(needs, places)
        if place is not None
    ]
    for i, a in enumerate(ranges):
        for b in ranges[i + 1 :]:
            if a.allocation is b.allocation and a.begin < b.end and b.begin < a.end:
                _check_overlap(name, a, b, compiled)


def _check_overlap(name: str, a: _Range, b: _Range, compiled: Dispatchable | None) -> None:
    writable = {"output", "temporary"} if compiled else {"temporary", "persistent"}
    kinds = {a.need.kind, b.need.kind}
    if not kinds & writable:
        return
    if compiled is None and kinds == {"temporary"}:
        return  # targets are initialized one after another
    if compiled is not None and kinds == {"input", "output"}:
        compiled.check_alias(a.need.path, b.need.path, (a.begin, a.end) == (b.begin, b.end))
        return
    raise ValidationError(
        f"{name}: expected the ranges of {a.need.path} and {b.need.path} not to overlap, but "
        f"got bytes [{a.begin}, {a.end}) and [{b.begin}, {b.end}) of one buffer"
    )


def check_alias(compiled: CompiledOperator, a: str, b: str, identical: bool) -> None:
    """Raise unless the operator may run with these two tensors in the same memory."""
    name = compiled.definition.name
    expect(compiled.definition.in_place, name, f"the ranges of {a} and {b}",
           "not overlap (the operator does not run in place)", "ranges that do")
    expect(identical, name, f"the ranges of {a} and {b}",
           "be identical where they overlap", "ranges that differ")
    layouts = [
        (t.sizes, t.strides, t.data_type.itemsize)
        for f in compiled.tensors
        if f.name in (a, b) and (t := compiled.operator.tensor(f)) is not None
    ]
    expect(layouts[0] == layouts[-1], name, f"the layouts of {a} and {b}",
           "be equal where they share memory", layouts[0], layouts[-1])
