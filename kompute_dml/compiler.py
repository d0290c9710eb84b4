"""DirectML's life cycle: create, compile, initialize, bind, dispatch."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .bindings import BindingProperties, BindingTable, Dispatchable, Need, check_alias
from .desc import TensorDesc, tensor_of
from .errors import ValidationError
from .lowering.plan import PARAMS, PERSISTENT, TEMPORARY, ZEROED, Dispatch, Operand, Plan
from .operators.base import Definition, OperatorDesc
from .runtime.hazards import Access
from .runtime.heap import ALIGNMENT, Place, Slot
from .spec import Field

if TYPE_CHECKING:
    from .device import Device, _Runtime
    from .runtime.shader_library import Variant


class ExecutionFlags(enum.IntFlag):
    """DML_EXECUTION_FLAGS."""

    NONE = 0
    ALLOW_HALF_PRECISION_COMPUTATION = 1
    DISABLE_META_COMMANDS = 2
    DESCRIPTORS_VOLATILE = 4


class Operator:
    """A checked description (IDMLOperator)."""

    def __init__(self, device: Device, desc: OperatorDesc) -> None:
        self.device = device
        self.desc = desc

    @property
    def definition(self) -> Definition:
        """The definition of operators of this kind."""
        return self.desc.operator

    def __repr__(self) -> str:
        return f"<Operator {self.definition.name}>"

    def tensor(self, field: Field) -> TensorDesc | None:
        """The description of a tensor field, or of an element of an array of tensors. None if it is
        absent."""
        return tensor_of(self.desc, field.snake)

    @property
    def slots(self) -> tuple[Field, ...]:
        """Its tensors, inputs first. An array gives a field for each element."""
        return self.definition.slots(self.desc)


Ranges = list[tuple[int, list[tuple[int, int, int]], list[tuple[int, int, bool]]]]
"""By slot: push words that take its place, with an element's bytes and the elements before; and
the bytes that are touched, with whether they are written."""


class Changed(NamedTuple):
    """What changes of a dispatch where sizes do."""

    groups: int
    words: Sequence[tuple[int, int]]
    """Push words, by their places."""
    operands: Sequence[Operand] | None
    """None where these stay."""


class Recordable(NamedTuple):
    """A dispatch, but for where its tensors lie."""

    variant: Variant
    spec: bytes
    groups: int
    push: np.ndarray
    slots: Ranges


class _PackedDispatch:
    """A dispatch of the plan. All that does not depend on bindings is packed beforehand."""

    def __init__(self, operator: str, dispatch: Dispatch, slots: Sequence[str]) -> None:
        variant = dispatch.variant
        self.operator = operator
        self.fields = slots
        self.variant = variant
        same = dispatch.unless_same
        self.unless_same = same and (slots.index(same[0]), slots.index(same[1]))
        self.groups = dispatch.groups
        self.spec = variant.pack_spec(dispatch.spec).tobytes()
        self.push = variant.pack_push(dispatch.push)
        self.words = self.push.data  # faster to set than an array's elements
        bindings = [-1 if o.slot is None else slots.index(o.slot) for o in dispatch.operands]
        present = [at for at in dict.fromkeys(bindings) if at >= 0]
        self._bindings = bindings, present
        self.slots = self._ranges(dispatch.operands)
        self.order = None if bindings == present else [
            present.index(at) if at >= 0 else -1 for at in bindings]
        """The position in ``slots`` of each binding, -1 for none. None if they are the same."""

    def _ranges(self, operands: Sequence[Operand]) -> Ranges:
        variant = self.variant
        bindings, present = self._bindings
        used = [*zip(bindings, operands)]
        # A shader that binds a tensor as words and as vectors has an operand for each.
        return [
            (
                at,
                list({
                    (variant.push_fields[o.offset_field][0], o.itemsize, o.offset + o.first)
                    for slot, o in used
                    if slot == at and o.offset_field is not None
                }),
                list({
                    (o.offset * o.itemsize, (o.offset + o.length) * o.itemsize, o.writes)
                    for slot, o in used
                    if slot == at
                }),
            )
            for at in present
        ]

    def at(
        self, groups: int, words: Sequence[tuple[int, int]], operands: Sequence[Operand] | None
    ) -> _PackedDispatch:
        """The same dispatch with other workgroups, push words by place, and ranges."""
        copy = object.__new__(_PackedDispatch)
        copy.__dict__.update(self.__dict__)
        copy.groups, copy.push = groups, self.push.copy()
        copy.words = copy.push.data
        for place, word in words:
            copy.words[place] = word & 0xFFFFFFFF
        if operands is not None:
            copy.slots = self._ranges(operands)
        return copy

    def record(self, runtime: _Runtime, places: Sequence[Place | None]) -> None:
        same = self.unless_same
        if same and places[same[0]] == places[same[1]]:
            return
        words = self.words
        accesses: list[Access] = []
        blocks: list[Any] = []
        for at, offsets, touches in self.slots:
            place = places[at]
            if place is None:
                blocks.append(None)
                continue
            allocation, byte_offset = place
            block = allocation.block
            blocks.append(block)
            if block is None:
                raise ValidationError(
                    f"{self.operator}: expected {self.fields[at]} to be alive, but it was freed")
            base = allocation.offset + byte_offset
            for word, itemsize, elements in offsets:
                words[word] = base // itemsize + elements
            for first, last, is_written in touches:
                # Shaders touch whole words.
                accesses.append(
                    (allocation, (base + first) & ~3, (base + last + 3) & ~3, is_written)
                )
        if self.order is not None or None in blocks:
            filler = accesses[0][0].block
            order = range(len(blocks)) if self.order is None else self.order
            blocks = [filler if at < 0 else blocks[at] or filler for at in order]
        pipeline = runtime.pipelines.get(self.variant, self.spec, tuple(blocks), self.groups)
        # Recording copies the push words.
        runtime.recorder.dispatch(pipeline, self.groups, self.push, accesses, self.variant.name)


class CompiledOperator(Dispatchable):
    """An operator with its shaders chosen (IDMLCompiledOperator)."""

    def __init__(
        self, operator: Operator, plan: Plan, flags: ExecutionFlags = ExecutionFlags.NONE
    ) -> None:
        self.operator = operator
        self.is_volatile = bool(flags & ExecutionFlags.DESCRIPTORS_VOLATILE)
        self.device = operator.device
        self.definition = operator.definition
        self.name = self.definition.name
        self.plan = plan
        self.tensors = tensors = operator.slots
        """Inputs, then outputs."""
        inputs = sum(f.kind == "input" for f in tensors)
        self.binding_counts = (inputs, len(tensors) - inputs)
        fields = [f.snake for f in tensors]
        self.slots = [*fields, TEMPORARY, PERSISTENT]
        # Inputs that are OWNED_BY_DML and not repacked are copied unchanged, after the plan's own
        # part of the persistent resource.
        self._kept: list[tuple[int, int, int]] = []
        """(slot, offset in the persistent resource, bytes)"""
        self._persistent_bytes = plan.persistent_bytes
        for field in tensors[:inputs]:
            tensor = operator.tensor(field)
            if tensor is None or not tensor.owned_by_dml or field.snake in plan.repacked:
                continue
            begin = -(-self._persistent_bytes // ALIGNMENT) * ALIGNMENT
            size = tensor.total_tensor_size_in_bytes
            self._kept.append((fields.index(field.snake), begin, size))
            self._persistent_bytes = begin + size
        self.needs_initialization = bool(plan.initialize or self._kept)
        self.initialized = not self.needs_initialization
        self.initializer_temporary_bytes = plan.temporary_bytes if plan.initialize else 0
        self.needs = [
            *map(self._need, tensors),
            Need.resource(TEMPORARY, plan.temporary_bytes),
            Need.resource(PERSISTENT, self._persistent_bytes),
        ]
        slots = [*self.slots, ZEROED, PARAMS]
        name = self.definition.name
        self._execute = [_PackedDispatch(name, d, slots) for d in plan.execute]
        self._initialize = [_PackedDispatch(name, d, slots) for d in plan.initialize]
        self._params: Slot | None = None
        self._has_own = bool(plan.zeroed_bytes or plan.params)

    def __repr__(self) -> str:
        return f"<CompiledOperator {self.name}>"

    def unused(self) -> CompiledOperator:
        """The same operator, which has run nothing and holds no memory. It takes a fiftieth of the
        time that compiling does."""
        copy = object.__new__(CompiledOperator)
        # Dispatches are shared: what they write for a binding is copied where it is recorded.
        copy.__dict__ = {**self.__dict__, "_params": None,
                         "initialized": not self.needs_initialization}
        return copy

    def over(self, changes: Sequence[Changed], plan: Plan) -> CompiledOperator:
        """:meth:`unused`, with what changes of each dispatch."""
        copy = self.unused()
        copy._execute = [step.at(*changed) for step, changed in zip(self._execute, changes)]
        copy.plan = plan
        return copy

    @property
    def dispatches(self) -> list[Recordable]:
        """What it records at every run."""
        return [Recordable(step.variant, step.spec, step.groups, step.push.copy(), step.slots)
                for step in self._execute]

    def reads_words_at(self, slot: Slot) -> None:
        """The words of its params lie there already."""
        self._params = slot

    def _need(self, field: Field) -> Need:
        desc = self.operator.tensor(field)
        if desc is None:
            return Need(field.name, field.kind, absent="absent")
        if desc.owned_by_dml:
            return Need(field.name, field.kind,
                        absent="OWNED_BY_DML: it is bound to the initializer")
        return Need.tensor(field.name, field.kind, desc)

    def check_alias(self, a: str, b: str, identical: bool) -> None:
        """Raise unless these two tensors may lie in the same memory."""
        check_alias(self, a, b, identical)

    def initializer_needs(self, prefix: str) -> list[Need]:
        """The bindings of an initialization, by slot. ``prefix`` names the operator in messages."""
        return [
            *[
                Need.tensor(prefix + f.name, "input", desc)
                if (desc := self.operator.tensor(f)) is not None and desc.owned_by_dml
                else Need(prefix + f.name, f.kind, absent="not OWNED_BY_DML")
                for f in self.tensors
            ],
            Need.resource(TEMPORARY, self.initializer_temporary_bytes, prefix),
            Need.resource(PERSISTENT, self._persistent_bytes, prefix),
        ]

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the shader variants that run at every dispatch."""
        return tuple(d.variant.name for d in self.plan.execute)

    def pipelines(self, *, once: bool = False) -> list[tuple[Variant, bytes]]:
        """The shaders and constants of its dispatches. With ``once`` those of its initialization;
        an operator of constants has none, and runs once itself."""
        steps = (self._initialize or self._execute) if once else self._execute
        return [(step.variant, step.spec) for step in steps]

    def run(self, places: Sequence[Place | None]) -> None:
        """Record the dispatches with checked places, one per entry of ``slots``."""
        if self._kept:
            persistent = places[-1]
            assert persistent is not None  # checked with the bindings
            places = list(places)
            for slot, begin, _ in self._kept:
                places[slot] = persistent[0], persistent[1] + begin
        if self._has_own:
            places = [*places, *self.own_memory()]
        runtime = self.device.runtime
        for step in self._execute:
            step.record(runtime, places)

    @property
    def copies_constants(self) -> bool:
        """Whether inputs lie in the persistent resource as they were."""
        return bool(self._kept)

    def own_memory(self) -> tuple[Place | None, Place | None]:
        """Where memory that is zero lies, and the words of the params, if it has any."""
        plan, runtime = self.plan, self.device.runtime
        if plan.params and self._params is None:
            words = np.array([w & 0xFFFFFFFF for w in plan.params], np.uint32)
            held = runtime.allocate(words.nbytes)
            runtime.transfer.upload(words.view(np.uint8), held, 0)
            self._params = Slot(held, 0)
        zeroed = runtime.zeros.take(plan.zeroed_bytes) if plan.zeroed_bytes else None
        return zeroed, self._params

    def initialize(self, places: Sequence[Slot | None]) -> None:
        """Record the dispatches that fill the persistent resource."""
        persistent = places[-1]
        for slot, begin, size in self._kept:
            source = places[slot]
            assert source is not None and persistent is not None  # checked with the bindings
            self.device.runtime.transfer.copy(
                source.allocation, source.byte_offset, persistent.allocation,
                persistent.byte_offset + begin, size,
            )
        runtime = self.device.runtime
        own = [*places, *self.own_memory()]
        for step in self._initialize:
            step.record(runtime, own)
        self.initialized = True


class OperatorInitializer:
    """Initializes compiled operators, each exactly once (IDMLOperatorInitializer)."""

    is_volatile = False

    def __init__(self, device: Device, operators: Sequence[Dispatchable]) -> None:
        self.device = device
        self.operators = tuple(operators)

    def __repr__(self) -> str:
        return f"<OperatorInitializer of {len(self.operators)} operators>"

    def reset(self, operators: Sequence[Dispatchable]) -> None:
        """Target other operators."""
        for compiled in operators:
            self.device.owns(compiled, "reset")
        self.operators = tuple(operators)

    @property
    def binding_properties(self) -> BindingProperties:
        """The resources of the initialization (IDMLDispatchable::GetBindingProperties)."""
        # The persistent resources are the initializer's outputs, so it needs none of its own.
        temporary = max((c.initializer_temporary_bytes for c in self.operators), default=0)
        count = sum(c.binding_counts[0] + 1 for c in self.operators)
        return BindingProperties(count, temporary, 0)

    def record(self, table: BindingTable) -> None:
        """Record the initialization, for :meth:`Device.record_dispatch`."""
        for compiled, places in zip(self.operators, table.initializer_places(self)):
            compiled.initialize(places)
