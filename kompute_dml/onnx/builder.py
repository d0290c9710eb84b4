"""Turns a region with known sizes into a plan: compiled operators with a place for every tensor.

While a plan is built an :class:`Array` stands for each value. It is a strided view of a
:class:`Storage`, so reshapes, transpositions and broadcasts cost nothing; storages get their
memory when all operators are known. Inputs lie side by side, and so do outputs, because a transfer
costs more than the bytes of a small tensor; storages that are never alive together share memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..desc import TensorFlags
from ..dtypes import Scalar
from ..layout import coalesce, packed_strides, pad_left, product, reshape_strides
from ..lowering.plan import Dispatch
from ..operators import base
from ..runtime.heap import ALIGNMENT, Allocation, Slot
from ..runtime.windows import SIZE as WINDOW
from .array import BOOL, Array, Ints, Storage, device_type
from .plan import Plan, Step

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device

_WORTH_REPACKING = 4 << 10
"""Bytes of a constant from which on an operator may keep it in a form of its own."""


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
        compiled = self._compile_owned(definition, descs, arrays, attributes)
        if compiled is None:
            compiled = self._compile(definition, descs, attributes)
            held, persistent = arrays, None
        else:
            persistent = self._initialize(compiled, arrays)
            held = {f: a for f, a in arrays.items() if f not in compiled.plan.repacked}
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
        """With those large constants OWNED_BY_DML that the operator then keeps in its own form."""
        def own(fields: Iterable[str]) -> CompiledOperator:
            flags = TensorFlags.OWNED_BY_DML
            owned = {f: descs[f].replace(flags=flags) for f in fields}
            return self._compile(definition, {**descs, **owned}, attributes)

        large = {
            f for f, a in arrays.items() if a.storage is not None and a.storage.constant
            and a.storage.nbytes >= _WORTH_REPACKING
        }
        compiled = own(large) if large else None
        if compiled is None or not compiled.plan.repacked:
            return None
        # The others would only be copied.
        return compiled if compiled.plan.repacked == large else own(compiled.plan.repacked)

    def _initialize(
        self, compiled: CompiledOperator, arrays: Mapping[str, Array]
    ) -> Allocation | None:
        """Prepare constants, unless a plan for other sizes has done the very same."""
        device, plan = self.device, compiled.plan
        places = [
            arrays[f].place() if f in plan.repacked else None for f in compiled.slots[:-2]
        ]
        for before in self._prepared:
            if before.places == places and before.dispatches == plan.initialize:
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
        owned = {a.storage for a in inputs}
        ends: list[Array] = []
        for y in outputs:
            shared = y.storage is not None and (
                y.storage in owned or y.storage.constant or not y.packed
                or any(y.storage is e.storage for e in ends)  # else writing to one writes to both
            )
            ends.append(self.copy(y) if shared else y)
        used = [a for a in inputs if a.storage is not None and a.storage.first >= 0]
        together = self._fitting(used)
        ours = {id(a.storage) for a in (*used, *ends)}
        inner = [s for s in self._storages
                 if s.first >= 0 and not s.constant and id(s) not in ours]
        for group in (together, *[[a] for a in used if a not in together], ends):
            self._side_by_side([a.storage for a in group])
        self._share(inner)
        return Plan(self.device, self.steps, inputs, together, ends)

    def _fitting(self, arrays: Sequence[Array]) -> list[Array]:
        """The smallest ones, as many as fit one transfer."""
        chosen, end = [], 0
        for array in sorted(arrays, key=lambda a: a.size * a.dtype.itemsize):
            end += _aligned(array.size * array.dtype.itemsize)
            if end <= WINDOW:
                chosen.append(array)
        return chosen

    def _side_by_side(self, storages: Sequence[Storage | None]) -> None:
        end, present = 0, [s for s in storages if s is not None]
        for storage in present:
            storage.offset = end
            end = _aligned(end + storage.nbytes)
        self._allocate(present, end)

    def _allocate(self, storages: Sequence[Storage], nbytes: int) -> None:
        allocation = self.device._allocate(nbytes) if nbytes else None
        for storage in storages:
            storage.allocation = allocation

    def _share(self, storages: Sequence[Storage]) -> None:
        """Place storages, largest first, where those alive at the same time leave room."""
        placed: list[Storage] = []
        for storage in sorted(storages, key=lambda s: -s.nbytes):
            meets = [p for p in placed if p.first <= storage.last and storage.first <= p.last]
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


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def scalar(value: Any, dtype: np.dtype[Any]) -> Scalar:
    """An attribute of type SCALAR_UNION."""
    return Scalar.of(value, device_type(dtype))
