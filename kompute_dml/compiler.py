"""DirectML's life cycle: create, compile, initialize, bind, dispatch."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .desc import MINIMUM_ALIGNMENT, TensorDesc
from .errors import DmlError, ValidationError, expect
from .operators.base import Definition, OperatorDesc
from .operators.plan import PERSISTENT, TEMPORARY, Dispatch, Plan
from .runtime.hazards import Access
from .runtime.heap import ALIGNMENT, Allocation, Slot
from .spec import Field

if TYPE_CHECKING:
    from .device import Device


class ExecutionFlags(enum.IntFlag):
    """DML_EXECUTION_FLAGS."""

    NONE = 0
    ALLOW_HALF_PRECISION_COMPUTATION = 1
    DISABLE_META_COMMANDS = 2
    DESCRIPTORS_VOLATILE = 4


class Buffer:
    """A resource: device memory whose ranges are bound to operators."""

    def __init__(self, device: Device, allocation: Allocation, size_in_bytes: int) -> None:
        self.device = device
        self.allocation = allocation
        self.size_in_bytes = size_in_bytes

    def __repr__(self) -> str:
        return f"<Buffer of {self.size_in_bytes} bytes on {self.device.adapter.name!r}>"

    def write(self, data: Any, offset: int = 0) -> None:
        """Copy an array's bytes (or a bytes object) to ``offset``, a multiple of 4."""
        if isinstance(data, (bytes, bytearray, memoryview)):
            raw = np.frombuffer(data, np.uint8)
        else:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._check_range("write", offset, raw.nbytes)
        if raw.nbytes % 4 and offset + raw.nbytes != self.size_in_bytes:
            # Copies move whole words: keep the bytes that follow in the last one.
            end = offset + raw.nbytes
            tail = self.read(end // 4 * 4, min(4, self.size_in_bytes - end // 4 * 4))
            raw = np.concatenate([raw, tail[end % 4 :]])
        if raw.nbytes:
            self.device._write(self.allocation, offset, raw)

    def free(self) -> None:
        """Give the memory back now. Every later use raises ValidationError."""
        self.allocation.free()

    def read(self, offset: int = 0, size: int | None = None) -> np.ndarray:
        """The bytes from ``offset`` (a multiple of 4) on, once what is recorded is computed."""
        size = self.size_in_bytes - offset if size is None else size
        self._check_range("read", offset, size)
        return self.device._read(self.allocation, offset, size)

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
        whole = self.buffer.size_in_bytes
        if self.size_in_bytes is None:
            object.__setattr__(self, "size_in_bytes", whole - self.offset)
        if self.offset < 0 or self.size_in_bytes < 1 or self.offset + self.size_in_bytes > whole:
            raise ValidationError(
                f"BufferBinding: expected a range inside {self.buffer!r}, "
                f"but got Offset {self.offset} and SizeInBytes {self.size_in_bytes}"
            )


class BindingProperties(NamedTuple):
    """DML_BINDING_PROPERTIES. Sizes in bytes."""

    required_descriptor_count: int
    temporary_resource_size: int
    persistent_resource_size: int


class Operator:
    """A checked description (IDMLOperator)."""

    def __init__(self, device: Device, desc: OperatorDesc) -> None:
        self.device = device
        self.desc = desc

    @property
    def definition(self) -> Definition:
        return self.desc.operator

    def __repr__(self) -> str:
        return f"<Operator {self.definition.name}>"

    def tensor(self, field: Field) -> TensorDesc | None:
        result: TensorDesc | None = getattr(self.desc, field.snake)
        return result


class _Step:
    """A dispatch of the plan with everything that does not depend on the bindings packed."""

    def __init__(self, dispatch: Dispatch, slots: Sequence[str]) -> None:
        variant = dispatch.variant
        if len(dispatch.operands) != variant.bindings:
            raise DmlError(
                f"{variant.name} has {variant.bindings} bindings, "
                f"but {len(dispatch.operands)} operands were given"
            )
        self.variant = variant
        self.groups = dispatch.groups
        self.spec = variant.pack_spec(dispatch.spec).tobytes()
        self.push = variant.pack_push(dispatch.push)
        used = [(-1 if o.slot is None else slots.index(o.slot), o) for o in dispatch.operands]
        self.bindings = [at for at, _ in used]
        # By slot: a shader that binds one tensor as words and as vectors has an operand for each.
        self.slots = [
            (
                at,
                list({
                    (variant.push_fields[o.offset_field][0], o.itemsize, o.offset)
                    for slot, o in used
                    if slot == at and o.offset_field is not None
                }),
                list({
                    (o.offset * o.itemsize, (o.offset + o.length) * o.itemsize, o.writes)
                    for slot, o in used
                    if slot == at
                }),
            )
            for at in dict.fromkeys(self.bindings)
            if at >= 0
        ]

    def record(self, device: Device, places: Sequence[Slot | None]) -> None:
        push = self.push.copy()
        accesses: list[Access] = []
        for at, offsets, touches in self.slots:
            place = places[at]
            if place is None:
                continue
            allocation, byte_offset = place
            if allocation.freed:
                raise ValidationError(f"{self.variant.name}: a tensor or buffer was freed")
            base = allocation.offset + byte_offset
            for word, itemsize, elements in offsets:
                push[word] = base // itemsize + elements
            for first, last, is_written in touches:
                # Shaders touch whole words.
                accesses.append(
                    Access(allocation, (base + first) & ~3, (base + last + 3) & ~3, is_written)
                )
        filler = accesses[0].allocation.block
        blocks = tuple([
            filler if at < 0 or (place := places[at]) is None else place.allocation.block
            for at in self.bindings
        ])
        runtime = device._runtime
        pipeline = runtime.pipelines.get(self.variant, self.spec, blocks, self.groups)
        runtime.recorder.dispatch(pipeline, self.groups, push, accesses, self.variant.name)


class CompiledOperator:
    """An operator with its shaders chosen (IDMLCompiledOperator)."""

    def __init__(self, operator: Operator, plan: Plan) -> None:
        self.operator = operator
        self.device = operator.device
        self.definition = operator.definition
        self.plan = plan
        fields = [f.snake for f in self.definition.spec.tensors]
        self.slots = [*fields, TEMPORARY, PERSISTENT]
        # Inputs that are OWNED_BY_DML and that the plan does not take care of are kept as they
        # are, behind the plan's own part of the persistent resource.
        self._kept: list[tuple[int, int, int]] = []
        """(slot, offset in the persistent resource, bytes)"""
        self._persistent_bytes = plan.persistent_bytes
        for field in self.definition.spec.inputs:
            tensor = operator.tensor(field)
            if tensor is None or not tensor.owned_by_dml or field.snake in plan.repacked:
                continue
            begin = -(-self._persistent_bytes // ALIGNMENT) * ALIGNMENT
            size = tensor.total_tensor_size_in_bytes
            self._kept.append((fields.index(field.snake), begin, size))
            self._persistent_bytes = begin + size
        self.needs_initialization = bool(plan.initialize or self._kept)
        self.initialized = not self.needs_initialization
        self._execute = [_Step(d, self.slots) for d in plan.execute]
        self._initialize = [_Step(d, self.slots) for d in plan.initialize]

    def __repr__(self) -> str:
        return f"<CompiledOperator {self.definition.name}>"

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the shader variants that run at every dispatch."""
        return tuple(d.variant.name for d in self.plan.execute)

    @property
    def binding_properties(self) -> BindingProperties:
        return BindingProperties(
            len(self.definition.spec.tensors),
            self.plan.temporary_bytes,
            self._persistent_bytes,
        )

    def run(self, places: Sequence[Slot | None]) -> None:
        """Record the dispatches with checked places, one per entry of ``slots``."""
        if self._kept:
            persistent = places[-1]
            assert persistent is not None  # checked with the bindings
            places = list(places)
            for slot, begin, _ in self._kept:
                places[slot] = Slot(persistent.allocation, persistent.byte_offset + begin)
        if self.plan.nothing_in_place and places[0] == places[1]:
            return
        for step in self._execute:
            step.record(self.device, places)

    def initialize(self, places: Sequence[Slot | None]) -> None:
        """Record what fills the persistent resource."""
        persistent = places[-1]
        for slot, begin, size in self._kept:
            source = places[slot]
            assert source is not None and persistent is not None  # checked with the bindings
            self.device._runtime.transfer.copy(
                source.allocation, source.byte_offset, persistent.allocation,
                persistent.byte_offset + begin, size,
            )
        for step in self._initialize:
            step.record(self.device, places)
        self.initialized = True

    def record(self, table: BindingTable) -> None:
        self.run(table.places())


class OperatorInitializer:
    """Initializes compiled operators, each exactly once (IDMLOperatorInitializer)."""

    def __init__(self, device: Device, operators: Sequence[CompiledOperator]) -> None:
        self.device = device
        self.operators = tuple(operators)

    def __repr__(self) -> str:
        return f"<OperatorInitializer of {len(self.operators)} operators>"

    def reset(self, operators: Sequence[CompiledOperator]) -> None:
        """Target other operators."""
        for compiled in operators:
            self.device._own(compiled, "reset")
        self.operators = tuple(operators)

    @property
    def binding_properties(self) -> BindingProperties:
        # Persistent memory is bound as the initializer's outputs, so it needs none of its own.
        temporary = max((c.plan.temporary_bytes for c in self.operators if c.plan.initialize),
                        default=0)
        count = sum(len(c.definition.spec.inputs) + 1 for c in self.operators)
        return BindingProperties(count, temporary, 0)

    def record(self, table: BindingTable) -> None:
        for compiled, places in zip(self.operators, table.initializer_places()):
            compiled.initialize(places)


Binding = BufferBinding | None


class _Range(NamedTuple):
    path: str
    allocation: Allocation
    begin: int
    end: int
    kind: str
    """``input``, ``output``, ``temporary`` or ``persistent``."""


class BindingTable:
    """The buffers of one dispatch (IDMLBindingTable).

    Inputs and outputs are bound in the order of the operator's structure, None for an absent
    optional tensor or one that is OWNED_BY_DML. For an initializer, inputs are one list per
    target operator (only its OWNED_BY_DML tensors filled; or None), outputs one persistent
    resource per target. Checked as a whole when the dispatch is recorded.
    """

    def __init__(self, dispatchable: CompiledOperator | OperatorInitializer) -> None:
        self.dispatchable = dispatchable
        self._inputs: Sequence[Any] = ()
        self._outputs: Sequence[Binding] = ()
        self._temporary: Binding = None
        self._persistent: Binding = None
        self._places: list[Slot | None] | None = None
        """What places() found, until something else is bound."""

    def bind_inputs(self, bindings: Sequence[Any]) -> None:
        self._inputs, self._places = tuple(bindings), None

    def bind_outputs(self, bindings: Sequence[Binding]) -> None:
        self._outputs, self._places = tuple(bindings), None

    def bind_temporary_resource(self, binding: Binding) -> None:
        self._temporary, self._places = binding, None

    def bind_persistent_resource(self, binding: Binding) -> None:
        self._persistent, self._places = binding, None

    # Checks

    def places(self) -> list[Slot | None]:
        """Where each slot of a compiled operator lies. Raises ValidationError."""
        compiled = self.dispatchable
        if not isinstance(compiled, CompiledOperator):
            raise TypeError("places() is for compiled operators")
        name, spec = compiled.definition.name, compiled.definition.spec
        if self._places is not None:
            return self._places
        expect(
            compiled.initialized, name, "the operator",
            "be initialized before it is dispatched (it has OWNED_BY_DML inputs)",
            "one that is not",
        )
        ranges: list[_Range] = []
        places: list[Slot | None] = []
        for kind, fields, bindings in (
            ("input", spec.inputs, self._inputs),
            ("output", spec.outputs, self._outputs),
        ):
            expect(
                len(bindings) == len(fields), name, f"the number of {kind} bindings",
                f"be {len(fields)} (one for each {kind} tensor)", len(bindings),
            )
        bound = dict(zip([f.name for f in (*spec.inputs, *spec.outputs)],
                         (*self._inputs, *self._outputs)))
        for field in spec.tensors:
            desc = compiled.operator.tensor(field)
            binding = bound[field.name]
            if desc is None or desc.owned_by_dml:
                why = "absent" if desc is None else "OWNED_BY_DML: it is bound to the initializer"
                expect(binding is None, name, f"the binding of {field.name}",
                       f"be None (the tensor is {why})", binding)
                places.append(None)
            else:
                places.append(self._place(ranges, name, field.name, binding, desc, field.kind))
        places.extend(self._resources(
            ranges, name, compiled.binding_properties, self._temporary, self._persistent
        ))
        self._check_overlaps(name, ranges, compiled)
        self._places = places
        return places

    def initializer_places(self) -> list[list[Slot | None]]:
        """Where the slots of each target operator lie."""
        initializer = self.dispatchable
        if not isinstance(initializer, OperatorInitializer):
            raise TypeError("initializer_places() is for initializers")
        targets = initializer.operators
        name = "DML_OPERATOR_INITIALIZER"
        inputs = self._inputs or (None,) * len(targets)
        outputs = self._outputs or (None,) * len(targets)
        for what, bindings in (("input", inputs), ("output", outputs)):
            expect(len(bindings) == len(targets), name, f"the number of {what} bindings",
                   f"be {len(targets)} (one for each operator)", len(bindings))
        result = []
        ranges: list[_Range] = []
        for i, (compiled, given, persistent) in enumerate(zip(targets, inputs, outputs)):
            expect(
                not (compiled.needs_initialization and compiled.initialized), name, f"operator {i}",
                "be initialized once", f"{compiled.definition.name}, which is already",
            )
            fields = compiled.definition.spec.inputs
            given = (None,) * len(fields) if given is None else tuple(given)
            expect(len(given) == len(fields), name, f"the input bindings of operator {i}",
                   f"be {len(fields)} (one for each input tensor)", len(given))
            by_name = dict(zip([f.name for f in fields], given))
            places: list[Slot | None] = []
            for field in compiled.definition.spec.tensors:
                desc = compiled.operator.tensor(field)
                binding = by_name.get(field.name)
                path = f"operators[{i}].{field.name}"
                if desc is None or not desc.owned_by_dml:
                    expect(binding is None, name, f"the binding of {path}",
                           "be None (the tensor is not OWNED_BY_DML)", binding)
                    places.append(None)
                else:
                    places.append(self._place(ranges, name, path, binding, desc, "input"))
            needs = compiled.binding_properties
            if not compiled.plan.initialize:
                needs = needs._replace(temporary_resource_size=0)
            places.extend(self._resources(
                ranges, name, needs, self._temporary, persistent, f"operators[{i}]."
            ))
            result.append(places)
        self._check_overlaps(name, ranges, None)
        return result

    def _place(
        self, ranges: list[_Range], name: str, path: str, binding: Any, desc: TensorDesc,
        kind: str,
    ) -> Slot:
        expect(binding is not None, name, path, "be bound", None)
        alignment = max(MINIMUM_ALIGNMENT, desc.guaranteed_base_offset_alignment)
        return self._range(ranges, name, path, binding, desc.total_tensor_size_in_bytes,
                           alignment, kind)

    def _resources(
        self, ranges: list[_Range], name: str, needs: BindingProperties, temporary: Binding,
        persistent: Binding, prefix: str = "",
    ) -> list[Slot | None]:
        result: list[Slot | None] = []
        for kind, binding, size in (
            ("temporary", temporary, needs.temporary_resource_size),
            ("persistent", persistent, needs.persistent_resource_size),
        ):
            if not size:
                result.append(None)
                continue
            path = f"{prefix}{kind} resource"
            expect(binding is not None, name, f"the {path}", f"be bound ({size} bytes)", None)
            result.append(self._range(ranges, name, path, binding, size, ALIGNMENT, kind))
        return result

    def _range(
        self, ranges: list[_Range], name: str, path: str, binding: Any, size: int,
        alignment: int, kind: str,
    ) -> Slot:
        expect(isinstance(binding, BufferBinding), name, f"the binding of {path}",
               "be a BufferBinding", binding)
        device = self.dispatchable.device
        if binding.buffer.device is not device:
            expect(False, name, f"the binding of {path}", f"lie on {device!r}",
                   binding.buffer.device)
        expect(not binding.buffer.allocation.freed, name, f"the Buffer of {path}",
               "not be freed", binding.buffer)
        expect(binding.offset % alignment == 0, name, f"the Offset of {path}",
               f"be a multiple of {alignment}", binding.offset)
        expect(binding.size_in_bytes >= size, name, f"the SizeInBytes of {path}",
               f"be at least {size}", binding.size_in_bytes)
        begin = binding.offset
        ranges.append(_Range(path, binding.buffer.allocation, begin, begin + size, kind))
        return Slot(binding.buffer.allocation, begin)

    def _check_overlaps(
        self, name: str, ranges: list[_Range], compiled: CompiledOperator | None
    ) -> None:
        """No range that is written may meet another, but for an input that aliases an output."""
        writable = {"output", "temporary"} if compiled else {"temporary", "persistent"}
        for i, a in enumerate(ranges):
            for b in ranges[i + 1 :]:
                if a.allocation is not b.allocation or a.end <= b.begin or b.end <= a.begin:
                    continue
                if a.kind not in writable and b.kind not in writable:
                    continue
                if a.kind == b.kind == "temporary" and compiled is None:
                    continue  # targets are initialized one after another
                if compiled is not None and {a.kind, b.kind} == {"input", "output"}:
                    check_alias(compiled, a.path, b.path, (a.begin, a.end) == (b.begin, b.end))
                    continue
                raise ValidationError(
                    f"{name}: expected the ranges of {a.path} and {b.path} not to overlap, but "
                    f"got bytes [{a.begin}, {a.end}) and [{b.begin}, {b.end}) of one buffer"
                )


def check_alias(compiled: CompiledOperator, a: str, b: str, identical: bool) -> None:
    """Raise unless the operator may compute with these two tensors in the same memory."""
    name = compiled.definition.name
    expect(compiled.definition.in_place, name, f"the ranges of {a} and {b}",
           "not overlap (the operator does not run in place)", "ranges that do")
    expect(identical, name, f"the ranges of {a} and {b}",
           "be identical where they overlap", "ranges that differ")
    layouts = [
        (t.sizes, t.strides, t.data_type.itemsize)
        for f in compiled.definition.spec.tensors
        if f.name in (a, b) and (t := compiled.operator.tensor(f)) is not None
    ]
    expect(layouts[0] == layouts[-1], name, f"the layouts of {a} and {b}",
           "be equal where they share memory", layouts[0], layouts[-1])
