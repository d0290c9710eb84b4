"""Builds a plan from arrays with known sizes: compiled operators with a place for every tensor.

While a plan is built, an :class:`Array` stands for each value. It is a strided view of a
:class:`Storage`, so reshapes, transpositions and broadcasts cost nothing. Storages get memory when
all operators are known. Inputs share one range, and so do outputs, because for small tensors the
number of transfers counts more than the bytes. Storages that are never alive together share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiler import Operator
from ..dtypes import Scalar
from ..errors import DmlError, OutOfMemoryError, ValidationError
from ..layout import (
    channels_last_strides,
    coalesce,
    packed_strides,
    pad_left,
    product,
    reshape_strides,
)
from ..lowering.plan import PARAMS, PERSISTENT, TEMPORARY, Dispatch
from ..operators import base
from ..operators.base import OperatorDesc, bits
from ..runtime.heap import Allocation, Slot
from ..runtime.windows import SIZE as WINDOW
from .array import BOOL, Array, device_type
from .draft import Draft
from .fusion import (
    CHANNELS_LAST,
    MEMORY,
    fuse,
    is_of_constants,
    left_out,
    room_for_weights,
)
from .memory import Storage, aligned, share, side_by_side
from .recorded import Allowed, RecordedPlan, check_numbers
from .step import Step, begin, begin_slow, compile_repacking, plan_memory

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device

_WORTH_REPACKING = 4 << 10
"""The least bytes of a constant that an operator may repack."""
_MAX_COUNT = 1 << 62
"""The product of an array's sizes that are not 0, whatever it holds."""
FEW = 64
"""The most bytes of a constant whose values passes may read."""


class Preparations(list["Prepared"]):
    """Constants that operators' initializations have prepared, or will before the next run."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Callable[[], None]] = []
        """What records those that are left, in this order."""

    def record(self, device: Device) -> None:
        """Record what is left."""
        with device._runtime.lock:
            while self.pending:
                self.pending[0]()
                del self.pending[0]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Constants that an operator's initialization has prepared."""

    places: list[Slot | None]
    dispatches: tuple[Dispatch, ...]
    params: tuple[int, ...]
    """Words of the params buffer that the dispatches read."""
    result: Allocation | None


class Builder:
    """Collects the operators of a plan, and the values between them."""

    def __init__(
        self, device: Device, prepared: Preparations | None = None, *, trial: bool = False
    ) -> None:
        """``prepared`` are constants that earlier plans have prepared. Who gives them has the
        others recorded, before the first run; else they are recorded with the plan.

        A ``trial`` only checks that everything compiles. It uses no device memory.
        """
        self.device = device
        self.label = ""
        """The name of the next operators in errors."""
        self.drafts: list[Draft] = []
        self._prepared = Preparations() if prepared is None else prepared
        self._records = prepared is None
        self._trial = trial
        self._storages: list[Storage] = []
        self._lines: set[Storage] = set()
        self._expected: list[tuple[Array, Sequence[Allowed], str]] = []
        self._compiled_before: dict[Any, CompiledOperator] = {}
        self._preparing: list[tuple[Prepared, CompiledOperator, Callable[[], None]]] = []
        """Constants to prepare once all operators are compiled, by which operators, and what
        records that."""

    def new(self, shape: Sequence[int], dtype: Any) -> Array:
        """A packed array for a step to write."""
        dtype, shape = np.dtype(dtype), tuple(shape)
        nbytes = product(shape) * dtype.itemsize
        if nbytes > (most := self.device._runtime.engine.max_buffer):
            raise OutOfMemoryError(
                f"expected a tensor to fit a buffer of the device, which holds {most} bytes, "
                f"but got {nbytes} bytes for sizes {list(shape)}")
        if not nbytes and product([n for n in shape if n]) > _MAX_COUNT:
            raise ValidationError(
                f"expected an array that NumPy can have, but got sizes {list(shape)}")
        storage = self.storage((nbytes + 3) & ~3) if nbytes else None
        return Array(dtype, shape, packed_strides(shape), storage)

    def storage(self, nbytes: int) -> Storage:
        """Memory for a value."""
        made = Storage(nbytes)
        self._storages.append(made)
        return made

    def like(self, arrays: Sequence[Array], shape: Sequence[int], dtype: Any) -> Array:
        """A new array. It is channels-last if one of ``arrays`` has the same shape and is.

        With three dimensions, that layout may be a transposed matrix, unless a convolution made it.
        """
        made = self.new(shape, dtype)
        last = any(a.is_channels_last and a.shape == made.shape and (
            len(a.shape) > 3 or self._is_line(a)) for a in arrays)
        return self._with_channels_last(made) if last else made

    def for_channels(self, shape: Sequence[int], dtype: Any) -> Array:
        """A new array for the output of a convolution, channels-last where convolutions read
        that."""
        made = self.new(shape, dtype)
        if len(made.shape) > 2 and self._puts_channels_last(made.dtype):
            return self._with_channels_last(made)
        return made

    def _with_channels_last(self, made: Array) -> Array:
        if len(made.shape) == 3 and made.storage is not None:
            self._lines.add(made.storage)
        return made.view(made.shape, channels_last_strides(made.shape))

    def _is_line(self, x: Array) -> bool:
        """Whether it is an image of one dimension that a convolution has made."""
        return x.storage is not None and x.storage.root in self._lines

    def _puts_channels_last(self, dtype: np.dtype[Any]) -> bool:
        if CHANNELS_LAST in left_out():
            return False
        target = self.device._target
        if dtype == np.float16:
            return target.traits.multiplies(16, 16, 16, "f16", "f32")
        if dtype == np.int32 or (dtype.kind in "iu" and dtype.itemsize == 1):
            return target.traits.multiplies(16, 16, 32, "i8", "i32")
        of_lines = target.library.find("convolution_lines", "t64")
        return dtype == np.float32 and not target.traits.is_cpu and of_lines is not None

    def constant(self, values: np.ndarray) -> Array:
        """An array with these values, which are uploaded now."""
        array = self.new(values.shape, values.dtype)
        if array.storage is not None and not self._trial:
            self._hold(array.storage, values, upload(self.device, values))
        return replace(array, host=values)

    def constants(self, values: Sequence[np.ndarray]) -> list[Array]:
        """Arrays with these values, none of them empty or of parts of bytes, which are uploaded
        now as one."""
        arrays = [self.new(x.shape, x.dtype) for x in values]
        storages = [a.storage for a in arrays if a.storage is not None]
        together = np.zeros(side_by_side(storages), np.uint8)
        for storage, x in zip(storages, values):
            raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            together[storage.offset : storage.offset + x.nbytes] = raw
        allocation = upload(self.device, together)
        for storage, x in zip(storages, values):
            self._hold(storage, x, allocation)
        return [replace(a, host=x) for a, x in zip(arrays, values)]

    @staticmethod
    def _hold(storage: Storage, values: np.ndarray, allocation: Allocation) -> None:
        storage.constant, storage.allocation = True, allocation
        if values.nbytes <= FEW:
            # A copy: ONNX Runtime frees its own memory once a session is made.
            storage.values = values.flatten().view(np.uint8)

    def expect(self, x: Array, allowed: Sequence[Allowed], where: str) -> None:
        """Raise where an element of ``x`` is out of range: now, or at each run if ``x`` is an
        input. The last dimension of ``x`` counts the ranges if there are several."""
        if x.host is not None:
            check_numbers(x.host, allowed, where)
        elif x.storage is not None:
            self._expected.append((x, tuple(allowed), where))

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        strides = reshape_strides(x.shape, x.strides, shape)
        if strides is None:
            x, strides = self.copy(x), packed_strides(shape)
        return x.view(shape, strides)

    def pack(self, x: Array) -> Array:
        return x if x.packed else self.copy(x)

    def copy(self, x: Array) -> Array:
        """The same elements, packed, in memory of their own."""
        y = self.new(x.shape, x.dtype)
        if x.storage is None:
            return y
        sizes, strides = coalesce(x.shape, x.strides, y.strides)
        support = supported(self.device, "DML_OPERATOR_ELEMENT_WISE_IDENTITY", "InputTensor")
        rank = max(len(sizes), support.dimension_counts[0])
        sizes = pad_left(sizes, rank, 1)
        source, target = (pad_left(s, rank, 0) for s in strides)
        self.emit("ELEMENT_WISE_IDENTITY", {
            "input_tensor": (x, sizes, source), "output_tensor": (y, sizes, target)
        })
        return y

    def emit(
        self,
        name: str,
        tensors: Mapping[str, tuple[Array, Sequence[int], Sequence[int]] | None],
        **attributes: Any,
    ) -> None:
        """Add ``DML_OPERATOR_<name>`` over arrays, each seen under its sizes and strides."""
        definition = base.definitions()["DML_OPERATOR_" + name]
        descs = {f: None if t is None else t[0].desc(*t[1:]) for f, t in tensors.items()}
        arrays = {f: t[0] for f, t in tensors.items() if t is not None}
        desc = definition.desc_class(**_grouped(descs), **attributes)
        self.add(desc, {f: a.storage for f, a in arrays.items() if a.storage is not None})

    def add(self, desc: OperatorDesc, storages: dict[str, Storage]) -> None:
        """Add an operator whose tensors begin with these storages. Raises if it is not valid."""
        self._add(self.device._checked.operator(self.device, desc), storages)

    def add_own(self, desc: OperatorDesc, storages: dict[str, Storage]) -> None:
        """Add an operator that DirectML does not have, whose description is right."""
        self._add(Operator(self.device, desc), storages)

    def _add(self, operator: Operator, storages: dict[str, Storage]) -> None:
        if self._trial:
            self.device._checked.compile(operator)
            return
        self.drafts.append(Draft(operator.desc, storages, self.label))

    def lower(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, runs: bool = False
    ) -> list[Step]:
        """Run the fusion passes, and compile the operators that are left. If the steps are those
        that a plan ``runs``, threads begin to compile slow shaders."""
        seen = {id(a.storage.root) for a in (*inputs, *outputs) if a.storage is not None}
        free = [s for s in self._storages if not s.constant and id(s.root) not in seen]
        steps: list[Step] = []
        room = room_for_weights(self.device, self.device._runtime.engine.reserved)
        for draft in fuse(self.drafts, free, self.device._target.traits, self.storage, room):
            try:
                if self._fold(draft, seen):
                    continue
                step = self._compiled(draft)
            except DmlError as error:
                raise type(error)(f"{draft.label}: {error}") from None
            if runs:
                begin_slow(self.device, step.compiled)
            for storage in step.storages:
                if storage is not None:
                    storage.touch(len(steps))
            steps.append(step)
        self._prepare()
        return steps

    def _prepare(self) -> None:
        """Let threads compile what prepares constants."""
        begin(self.device, (compiled for _, compiled, _ in self._preparing), once=True)
        for prepared, _, record in self._preparing:
            self._prepared.append(prepared)
            self._prepared.pending.append(record)
        self._preparing.clear()
        if self._records:
            self._prepared.record(self.device)

    def _found(self, *key: Any) -> Prepared | None:
        """Constants that are prepared already, or are to be."""
        known = (*self._prepared, *[prepared for prepared, _, _ in self._preparing])
        return next((p for p in known if (p.places, p.dispatches, p.params) == key), None)

    def _fold(self, draft: Draft, seen: Collection[int]) -> bool:
        """Run an operator of constants now, so that its result is a constant. Not if the result is
        large or ``seen`` from outside."""
        inputs = dict(draft.slots("input"))
        slot, storage = next(draft.slots("output"))
        device = self.device
        if id(storage) in seen or not is_of_constants(draft, storage.nbytes):
            return False
        compiled = self._compile(draft.desc, frozenset())
        places = [inputs[f].slot() if f in inputs else None for f in compiled.slots[:-2]]
        key = places, compiled.plan.execute, compiled.plan.params
        found = self._found(*key)
        if found is None:
            room = room_for_weights(device, device._runtime.engine.reserved)
            if not is_of_constants(draft, room):
                return False
            found = Prepared(*key, device._allocate(storage.nbytes))
            temporary, result = compiled.plan.temporary_bytes, found.result

            def record() -> None:
                assert result is not None
                scratch = Slot(device._allocate(temporary), 0) if temporary else None
                compiled.run([*(Slot(result, 0) if f == slot else place
                                for f, place in zip(compiled.slots, places)), scratch, None])

            self._preparing.append((found, compiled, record))
        storage.allocation, storage.constant = found.result, True
        return True

    def _compile(self, desc: OperatorDesc, constants: frozenset[str]) -> CompiledOperator:
        """Compile an operator. Equal operators are compiled once."""
        key = bits(desc), constants
        if key not in self._compiled_before:
            self._compiled_before[key] = compile_repacking(self.device, desc, constants)
        return self._compiled_before[key]

    def _compiled(self, draft: Draft) -> Step:
        storages = draft.storages
        compiled = self._compile(draft.desc, frozenset(
            f for f, s in storages.items()
            if s.root.constant and s.nbytes >= _WORTH_REPACKING))
        bound: dict[str, Storage | None] = {
            f: s for f, s in storages.items() if f not in compiled.plan.repacked
        }
        if nbytes := compiled.plan.temporary_bytes:
            scratch = bound[TEMPORARY] = Storage(nbytes)
            self._storages.append(scratch)
        if compiled.plan.repacked and (result := self._initialize(compiled, storages)):
            bound[PERSISTENT] = Storage(result.nbytes, allocation=result, constant=True)
        return Step(compiled, [bound.get(slot) for slot in compiled.slots])

    def _initialize(
        self, compiled: CompiledOperator, storages: Mapping[str, Storage]
    ) -> Allocation | None:
        """Prepare constants, unless a plan for other sizes has prepared them already."""
        device, plan = self.device, compiled.plan
        places = [
            storages[f].slot() if f in plan.repacked and f in storages else None
            for f in compiled.slots[:-2]
        ]
        reads_params = any(o.slot == PARAMS for d in plan.initialize for o in d.operands)
        key = places, plan.initialize, plan.params if reads_params else ()
        found = self._found(*key)
        if found is None:
            nbytes = plan.persistent_bytes
            found = Prepared(*key, device._allocate(nbytes) if nbytes else None)
            result = found.result

            def record() -> None:
                temporary = device._allocate(plan.temporary_bytes) if plan.temporary_bytes else None
                compiled.initialize(
                    [*places, *[None if a is None else Slot(a, 0) for a in (temporary, result)]])

            self._preparing.append((found, compiled, record))
        return found.result

    def finish(
        self, inputs: Sequence[Array], outputs: Sequence[Array], resident: Sequence[Array] = ()
    ) -> RecordedPlan:
        """Allocate memory for every storage. ``resident`` inputs lie on the device, so they take no
        part in the upload of the small inputs."""
        owned = {a.storage for a in inputs}
        ends: list[Array] = []
        for y in outputs:
            shared = y.storage is not None and (
                y.storage in owned or y.storage.constant or y.storage.is_part or not y.packed
                or any(y.storage is e.storage for e in ends)  # two outputs need separate memory
            )
            ends.append(self.copy(y) if shared else y)
        steps = self.lower(inputs, ends, runs=True)
        used = [a for a in inputs if a.storage is not None and a.storage.first >= 0]
        together = self._fitting([a for a in used if a not in resident])
        ours = {id(a.storage) for a in (*used, *ends)}
        inner = [s for s in self._storages
                 if s.first >= 0 and not s.constant and id(s) not in ours]
        for group in (together, *[[a] for a in used if a not in together], ends):
            present = [a.storage for a in group if a.storage is not None]
            self._allocate(present, side_by_side(present), side_by_side)
        expected = [
            (i, allowed, where)
            for i, a in enumerate(inputs) for x, allowed, where in self._expected
            if x.storage is a.storage and x.size == a.size
        ]
        inner, memory = plan_memory(steps, inner)
        self._allocate(inner, memory.planned, side_by_side if MEMORY in left_out() else share)
        plan = RecordedPlan(self.device, steps, inputs, together, ends, memory, expected)
        begin(self.device, (step.compiled for step in steps))
        return plan

    def _fitting(self, arrays: Sequence[Array]) -> list[Array]:
        """The smallest arrays, as many as fit one transfer."""
        chosen, end = [], 0
        for array in sorted(arrays, key=lambda a: a.size * a.dtype.itemsize):
            end += aligned(array.size * array.dtype.itemsize)
            if end <= WINDOW:
                chosen.append(array)
        return chosen

    def _allocate(
        self, storages: Sequence[Storage], nbytes: int,
        place: Callable[[Sequence[Storage]], Any] = share,
    ) -> None:
        """Allocate memory for storages with offsets. Where they exceed one buffer, they are placed
        anew in several, in the order of their first use."""
        if nbytes > self.device._runtime.engine.max_buffer and len(storages) > 1:
            order = sorted(storages, key=lambda s: s.first)
            for half in (order[: len(order) // 2], order[len(order) // 2 :]):
                place(half)
                self._allocate(half, max(s.offset + s.nbytes for s in half), place)
            return
        allocation = self.device._allocate(nbytes) if nbytes else None
        for storage in storages:
            storage.allocation = allocation


def _grouped(descs: Mapping[str, Any]) -> dict[str, Any]:
    """Descriptions by field: ``field[0]``, ``field[1]`` ... become a tuple."""
    result: dict[str, Any] = {}
    for slot, desc in descs.items():
        field, _, index = slot.partition("[")
        result[field] = (*result.get(field, ()), desc) if index else desc
    return result


def upload(device: Device, values: np.ndarray) -> Allocation:
    """A new allocation that holds ``values``."""
    return device.tensor(values.view(np.uint8) if values.dtype == BOOL else values).allocation


def supported(device: Device, operator: str, tensor: str) -> Any:
    """The support of ``tensor`` in an operator at the device's feature level, or None."""
    definition = base.definitions().get(operator)
    table = None if definition is None else definition.spec.support_at(device.feature_level)
    return None if table is None else table.get(tensor)


def scalar(value: Any, dtype: np.dtype[Any]) -> Scalar:
    """An attribute of type SCALAR_UNION."""
    return Scalar.of(value, device_type(dtype))
