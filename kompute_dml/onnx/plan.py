"""A region with known sizes becomes a plan: compiled operators with a place for every tensor.

While a plan is built an :class:`Array` stands for each value. It is a strided view of a
:class:`Storage`, so reshapes, transpositions and broadcasts cost nothing; storages get their
memory when all operators are known. Inputs lie side by side, and so do outputs, because a transfer
costs more than the bytes of a small tensor; storages that are never alive together share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..desc import TensorDesc, TensorFlags
from ..dtypes import DataType, Scalar
from ..errors import UnsupportedError, ValidationError
from ..layout import coalesce, is_packed, packed_strides, pad_left, product, reshape_strides
from ..operators import base
from ..operators.plan import Dispatch
from ..runtime.heap import ALIGNMENT, Allocation, Slot

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device

Ints = tuple[int, ...]
BOOL = np.dtype("bool")
_TOGETHER = 64 << 10
"""Inputs up to this size are uploaded as one."""
_WORTH_REPACKING = 4 << 10


def device_type(dtype: np.dtype[Any]) -> DataType:
    """How values of an ONNX type lie on the device: bool as UINT8, the others as they are."""
    return DataType.UINT8 if dtype == BOOL else DataType.of(dtype)


@dataclass(eq=False)
class Storage:
    """A range of memory that the plan will need."""

    nbytes: int
    first: int = -1
    """The step that first touches it; -1 before any."""
    last: int = -1
    allocation: Allocation | None = None
    offset: int = 0
    constant: bool = False


@dataclass(frozen=True, eq=False)
class Array:
    """A value while the plan is built. ``shape`` may be empty, or hold a 0; then no ``storage``."""

    dtype: np.dtype[Any]
    shape: Ints
    strides: Ints
    storage: Storage | None
    offset: int = 0
    """In elements."""
    host: np.ndarray | None = None
    """What it holds, where the host knows."""

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def packed(self) -> bool:
        return is_packed(self.shape, self.strides)

    def desc(self, sizes: Sequence[int], strides: Sequence[int]) -> TensorDesc:
        return TensorDesc(device_type(self.dtype), tuple(sizes) or (1,), tuple(strides) or (1,))

    def view(self, shape: Sequence[int], strides: Sequence[int]) -> Array:
        return replace(self, shape=tuple(shape), strides=tuple(strides), host=None)

    def broadcast_to(self, shape: Sequence[int]) -> Array:
        sizes = pad_left(self.shape, len(shape), 1)
        strides = pad_left(self.strides, len(shape), 0)
        if len(sizes) > len(shape) or any(n not in (1, m) for n, m in zip(sizes, shape)):
            raise ValidationError(f"{list(self.shape)} does not broadcast to {list(shape)}")
        if tuple(shape) == self.shape:
            return self
        return self.view(shape, [s if n == m else 0 for n, m, s in zip(sizes, shape, strides)])

    def transpose(self, order: Sequence[int]) -> Array:
        return self.view([self.shape[d] for d in order], [self.strides[d] for d in order])


@dataclass(frozen=True, eq=False)
class Prepared:
    """What an operator's initialization made of constants."""

    places: list[Slot | None]
    dispatches: tuple[Dispatch, ...]
    result: Allocation | None


class Builder:
    """What mapping rows build with."""

    def __init__(
        self, device: Device, prepared: list[Prepared] | None = None, *, trial: bool = False
    ) -> None:
        """``prepared`` is what earlier plans made of the same constants.

        A ``trial`` finds out whether everything compiles, and puts nothing on the device.
        """
        self.device = device
        self.steps: list[Step] = []
        self._prepared = [] if prepared is None else prepared
        self._trial = trial
        self._storages: list[Storage] = []

    def new(self, shape: Sequence[int], dtype: Any) -> Array:
        """A packed array that a step is going to write."""
        dtype, shape = np.dtype(dtype), tuple(shape)
        storage = None
        if nbytes := product(shape) * dtype.itemsize:
            storage = Storage((nbytes + 3) & ~3)
            self._storages.append(storage)
        return Array(dtype, shape, packed_strides(shape), storage)

    def constant(self, values: np.ndarray) -> Array:
        """An array with these values, uploaded now."""
        array = self.new(values.shape, values.dtype)
        if array.storage is not None and not self._trial:
            array.storage.constant = True
            array.storage.allocation = upload(self.device, values)
        return replace(array, host=values)

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        if x.packed or not x.size:
            strides: Ints | None = packed_strides(shape)
        else:
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
        for name, reinterpret in _COPIES:
            given, made = reinterpret(x), reinterpret(y)
            if given is None or made is None:
                continue
            support = supported(self.device, "DML_OPERATOR_" + name, "InputTensor")
            sizes, strides = coalesce(given.shape, given.strides, made.strides)
            if support is None or device_type(given.dtype) not in support.data_types:
                continue
            low, high = support.dimension_counts
            if len(sizes) > high:
                continue
            rank = max(low, len(sizes))
            fields = zip(("input_tensor", "output_tensor"), (given, made), strides)
            self.emit(name, {
                f: (array, pad_left(sizes, rank, 1), pad_left(steps, rank, 0))
                for f, array, steps in fields
            }, **_copy_attributes(name, given.dtype))
            return y
        raise UnsupportedError(
            f"a copy of {x.dtype} {list(x.shape)} with strides {list(x.strides)} needs "
            "DML_OPERATOR_ELEMENT_WISE_IDENTITY"
        )

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
        compiled = self._compile_owned(definition, descs, arrays, attributes)
        if compiled is None:
            compiled = self._compile(definition, descs, attributes)
            held, persistent = arrays, None
        else:
            persistent = self._initialize(compiled, arrays)
            held = {f: a for f, a in arrays.items() if not _owned(compiled, f)}
        scratch = None
        if nbytes := compiled.plan.temporary_bytes:
            scratch = Storage(nbytes)
            self._storages.append(scratch)
        self._touch(*[a.storage for a in held.values()], scratch)
        self.steps.append(Step(compiled, held, scratch, persistent))

    def _compile(
        self, definition: Any, descs: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> CompiledOperator:
        desc = definition.desc_class(**descs, **attributes)
        return self.device.compile_operator(self.device.create_operator(desc))

    def _compile_owned(
        self,
        definition: Any,
        descs: Mapping[str, Any],
        arrays: Mapping[str, Array],
        attributes: Mapping[str, Any],
    ) -> CompiledOperator | None:
        """With large constants OWNED_BY_DML, if the operator then has something to prepare."""
        owned = {
            f: descs[f].replace(flags=TensorFlags.OWNED_BY_DML) for f, a in arrays.items()
            if a.storage is not None and a.storage.constant
            and a.storage.nbytes >= _WORTH_REPACKING
        }
        if not owned:
            return None
        compiled = self._compile(definition, {**descs, **owned}, attributes)
        return compiled if compiled.plan.initialize else None

    def _initialize(
        self, compiled: CompiledOperator, arrays: Mapping[str, Array]
    ) -> Allocation | None:
        """Prepare constants, unless a plan for other sizes has done the very same."""
        device, plan = self.device, compiled.plan
        constants = {f: a for f, a in arrays.items() if _owned(compiled, f)}
        places = [_place(constants[f]) if f in constants else None for f in compiled.slots[:-2]]
        for before in self._prepared:
            if before.places == places and before.dispatches == plan.initialize:
                compiled.initialized = True
                return before.result
        with device._runtime.lock:
            temporary, result = [
                device._allocate(n) if n else None
                for n in (plan.temporary_bytes, plan.persistent_bytes)
            ]
            compiled.initialize(
                [*places, *[None if a is None else Slot(a, 0) for a in (temporary, result)]]
            )
        self._prepared.append(Prepared(places, plan.initialize, result))
        return result

    def _touch(self, *storages: Storage | None) -> None:
        step = len(self.steps)
        for storage in storages:
            if storage is not None:
                storage.first = step if storage.first < 0 else storage.first
                storage.last = step

    def finish(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Plan:
        """Give every storage its memory."""
        owned = {a.storage for a in inputs if a.storage is not None}
        ends: list[Array] = []
        for y in outputs:
            shared = y.storage is not None and (
                y.storage in owned or y.storage.constant or not y.packed or y.offset
                or any(y.storage is e.storage for e in ends)
            )
            ends.append(self.copy(y) if shared else y)
        self._touch(*[e.storage for e in ends])
        used = [a for a in inputs if a.storage is not None and a.storage.first >= 0]
        small = [a for a in used if a.size * a.dtype.itemsize <= _TOGETHER]
        large = [a for a in used if a not in small]
        first, last = {id(a.storage) for a in used}, {id(e.storage) for e in ends}
        inner = [s for s in self._storages
                 if s.first >= 0 and not s.constant and id(s) not in first | last]
        incoming = self._side_by_side([a.storage for a in small])
        for a in large:
            self._side_by_side([a.storage])
        outgoing = self._side_by_side([e.storage for e in ends])
        self._share(inner)
        return Plan(self.device, self.steps, inputs, small, large, incoming, ends, outgoing)

    def _allocate(self, storages: Sequence[Storage], nbytes: int) -> Allocation | None:
        allocation = self.device._allocate(nbytes) if nbytes else None
        for storage in storages:
            storage.allocation = allocation
        return allocation

    def _side_by_side(self, storages: Sequence[Storage | None]) -> Allocation | None:
        end, present = 0, [s for s in storages if s is not None]
        for storage in present:
            storage.offset = end
            end = _aligned(end + storage.nbytes)
        return self._allocate(present, end)

    def _share(self, storages: Sequence[Storage]) -> None:
        """Place storages, largest first, where those alive at the same time leave room."""
        placed: list[Storage] = []
        for storage in sorted(storages, key=lambda s: -s.nbytes):
            meets = [p for p in placed if p.first <= storage.last and storage.first <= p.last]
            storage.offset = 0
            for p in sorted(meets, key=lambda p: p.offset):
                if storage.offset + storage.nbytes <= p.offset:
                    break
                storage.offset = max(storage.offset, _aligned(p.offset + p.nbytes))
            placed.append(storage)
        self._allocate(placed, max((s.offset + s.nbytes for s in placed), default=0))


def upload(device: Device, values: np.ndarray) -> Allocation:
    """A new allocation that holds ``values``."""
    return device.tensor(values.view(np.uint8) if values.dtype == BOOL else values).allocation


def supported(device: Device, operator: str, tensor: str) -> Any:
    """What an implemented operator takes as ``tensor`` at the device's feature level, or None."""
    definition = base.definitions().get(operator)
    table = None if definition is None else definition.spec.support_at(device.feature_level)
    return None if table is None else table.get(tensor)


def _owned(compiled: CompiledOperator, field: str) -> bool:
    desc = getattr(compiled.operator.desc, field)
    return desc is not None and desc.owned_by_dml


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _as(kind: str) -> Callable[[Array], Array | None]:
    """See elements as ones of a type with the same width."""
    dtype = np.dtype(kind)

    def reinterpret(x: Array) -> Array | None:
        return replace(x, dtype=dtype) if x.dtype.itemsize == dtype.itemsize else None

    return reinterpret


def _in_halves(x: Array) -> Array | None:
    """See 8-byte elements as pairs of floats."""
    if x.dtype.itemsize != 8:
        return None
    strides = (*[2 * s for s in x.strides], 1)
    return replace(x, dtype=np.dtype("float32"), shape=(*x.shape, 2), strides=strides,
                   offset=2 * x.offset)


# Ways to copy bits, best first: the operators differ in data types and dimension counts.
_COPIES: tuple[tuple[str, Callable[[Array], Array | None]], ...] = (
    ("ELEMENT_WISE_IDENTITY", lambda x: x),
    ("ACTIVATION_IDENTITY", _as("float32")),
    ("ACTIVATION_IDENTITY", _as("float16")),
    ("ACTIVATION_IDENTITY", _in_halves),
    ("DIAGONAL_MATRIX1", lambda x: x),
)


def _copy_attributes(operator: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    if operator != "DIAGONAL_MATRIX1":
        return {}
    # An empty range of diagonals: nothing is filled.
    return dict(value_data_type=device_type(dtype), value=scalar(0, dtype),
                diagonal_fill_begin=0, diagonal_fill_end=0)


def scalar(value: Any, dtype: np.dtype[Any]) -> Scalar:
    """An attribute of type SCALAR_UNION."""
    return Scalar.of(value, device_type(dtype))


class Step:
    """A compiled operator and, once finished, where its tensors lie."""

    def __init__(
        self, compiled: CompiledOperator, arrays: Mapping[str, Array], scratch: Storage | None,
        persistent: Allocation | None,
    ) -> None:
        self._compiled = compiled
        self._arrays = arrays
        self._scratch = scratch
        self._persistent = persistent
        self._places: list[Slot | None] = []

    def finish(self) -> None:
        slots = self._compiled.slots[:-2]
        self._places = [_place(self._arrays[f]) if f in self._arrays else None for f in slots]
        scratch = self._scratch
        self._places.append(None if scratch is None else _slot(scratch, 0))
        self._places.append(None if self._persistent is None else Slot(self._persistent, 0))

    def run(self) -> None:
        self._compiled.run(self._places)


def _place(x: Array) -> Slot | None:
    return None if x.storage is None else _slot(x.storage, x.offset * x.dtype.itemsize)


def _slot(storage: Storage, nbytes: int) -> Slot:
    assert storage.allocation is not None
    return Slot(storage.allocation, storage.offset + nbytes)


class Plan:
    """Runs a region for one set of input sizes."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step],
        inputs: Sequence[Array],
        small: Sequence[Array],
        large: Sequence[Array],
        incoming: Allocation | None,
        outputs: Sequence[Array],
        outgoing: Allocation | None,
    ) -> None:
        for step in steps:
            step.finish()
        self._device = device
        self._steps = steps
        index = {id(a.storage): i for i, a in enumerate(inputs) if a.storage is not None}
        self._small = [
            (index[id(a.storage)], a.storage.offset, a.size * a.dtype.itemsize)
            for a in small if a.storage is not None
        ]
        self._large = [
            (index[id(a.storage)], a.storage.allocation)
            for a in large if a.storage is not None and a.storage.allocation is not None
        ]
        self._incoming = incoming
        end = max((offset + nbytes for _, offset, nbytes in self._small), default=0)
        self._staged = np.zeros(end, np.uint8)
        self._outputs = outputs
        self._outgoing = outgoing
        self._outgoing_bytes = max(
            (e.storage.offset + e.storage.nbytes for e in outputs if e.storage is not None),
            default=0,
        )

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The region's outputs for contiguous ``inputs`` of the sizes planned for."""
        runtime = self._device._runtime
        with runtime.lock:
            runtime.recorder.check()
            runtime.collect()
            for i, offset, nbytes in self._small:
                self._staged[offset : offset + nbytes] = _bytes(inputs[i])
            if self._incoming is not None:
                runtime.transfer.upload(self._staged, self._incoming, 0)
            for i, allocation in self._large:
                runtime.transfer.upload(_bytes(inputs[i]), allocation, 0)
            for step in self._steps:
                step.run()
            raw = np.empty(0, np.uint8)
            if self._outgoing is not None:
                raw = runtime.transfer.download(self._outgoing, 0, self._outgoing_bytes)
        return [self._output(e, raw) for e in self._outputs]

    def _output(self, end: Array, raw: np.ndarray) -> np.ndarray:
        begin = 0 if end.storage is None else end.storage.offset
        nbytes = end.size * end.dtype.itemsize
        return raw[begin : begin + nbytes].view(end.dtype).reshape(end.shape)


def _bytes(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(np.uint8)


