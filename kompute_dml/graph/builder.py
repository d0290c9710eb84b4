"""Builds a plan from arrays with known sizes: compiled operators with a place for every tensor.

While a plan is built an :class:`Array` stands for each value. It is a strided view of a
:class:`Storage`, so reshapes, transpositions and broadcasts cost nothing; storages get their
memory when all operators are known. Inputs lie side by side, and so do outputs, because a transfer
costs more than the bytes of a small tensor; storages that are never alive together share memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtypes import Scalar
from ..layout import coalesce, packed_strides, pad_left, product, reshape_strides
from ..lowering.plan import PARAMS, PERSISTENT, TEMPORARY, Dispatch
from ..operators import base
from ..runtime.heap import Allocation, Slot
from ..runtime.windows import SIZE as WINDOW
from .array import BOOL, Array, device_type
from .memory import Storage, aligned, share, side_by_side
from .recorded import RecordedPlan
from .step import Step, compile_repacking, run_in_place

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
    params: tuple[int, ...]
    """Words that the dispatches read."""
    result: Allocation | None


class Builder:
    """Collects the operators of a plan, and the values between them."""

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
        constants = {
            f for f, a in arrays.items() if a.storage is not None and a.storage.constant
            and a.storage.nbytes >= _WORTH_REPACKING
        }
        compiled = compile_repacking(self.device, desc, constants)
        bound: dict[str, Storage | None] = {
            f: a.storage for f, a in arrays.items() if f not in compiled.plan.repacked
        }
        if nbytes := compiled.plan.temporary_bytes:
            scratch = bound[TEMPORARY] = Storage(nbytes)
            self._storages.append(scratch)
        if compiled.plan.repacked and (result := self._initialize(compiled, arrays)):
            bound[PERSISTENT] = Storage(result.nbytes, allocation=result, constant=True)
        for storage in bound.values():
            if storage is not None:
                storage.touch(len(self.steps))
        self.steps.append(Step(compiled, [bound.get(slot) for slot in compiled.slots]))

    def _initialize(
        self, compiled: CompiledOperator, arrays: Mapping[str, Array]
    ) -> Allocation | None:
        """Prepare constants, unless a plan for other sizes has done the very same."""
        device, plan = self.device, compiled.plan
        places = [
            s.slot() if f in plan.repacked and (s := arrays[f].storage) is not None else None
            for f in compiled.slots[:-2]
        ]
        reads_params = any(o.slot == PARAMS for d in plan.initialize for o in d.operands)
        key = places, plan.initialize, plan.params if reads_params else ()
        for before in self._prepared:
            if (before.places, before.dispatches, before.params) == key:
                return before.result
        with device._runtime.lock:
            temporary, result = [
                device._allocate(n) if n else None
                for n in (plan.temporary_bytes, plan.persistent_bytes)
            ]
            compiled.initialize(
                [*places, *[None if a is None else Slot(a, 0) for a in (temporary, result)]]
            )
        self._prepared.append(Prepared(*key, result))
        return result

    def finish(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RecordedPlan:
        """Give every storage its memory."""
        owned = {a.storage for a in inputs}
        ends: list[Array] = []
        for y in outputs:
            shared = y.storage is not None and (
                y.storage in owned or y.storage.constant or y.storage.is_part or not y.packed
                or any(y.storage is e.storage for e in ends)  # else writing to one writes to both
            )
            ends.append(self.copy(y) if shared else y)
        used = [a for a in inputs if a.storage is not None and a.storage.first >= 0]
        together = self._fitting(used)
        ours = {id(a.storage) for a in (*used, *ends)}
        inner = [s for s in self._storages
                 if s.first >= 0 and not s.constant and id(s) not in ours]
        for group in (together, *[[a] for a in used if a not in together], ends):
            present = [a.storage for a in group if a.storage is not None]
            self._allocate(present, side_by_side(present))
        run_in_place(self.steps, inner)
        inner = list(dict.fromkeys(s.root for s in inner))
        self._allocate(inner, share(inner))
        return RecordedPlan(self.device, self.steps, inputs, together, ends)

    def _fitting(self, arrays: Sequence[Array]) -> list[Array]:
        """The smallest ones, as many as fit one transfer."""
        chosen, end = [], 0
        for array in sorted(arrays, key=lambda a: a.size * a.dtype.itemsize):
            end += aligned(array.size * array.dtype.itemsize)
            if end <= WINDOW:
                chosen.append(array)
        return chosen

    def _allocate(self, storages: Sequence[Storage], nbytes: int) -> None:
        allocation = self.device._allocate(nbytes) if nbytes else None
        for storage in storages:
            storage.allocation = allocation


def _grouped(descs: Mapping[str, Any]) -> dict[str, Any]:
    """By field: the elements of an array of tensors, ``field[i]``, as a tuple."""
    result: dict[str, Any] = {}
    for slot, desc in descs.items():
        field, _, index = slot.partition("[")
        result[field] = (*result.get(field, ()), desc) if index else desc
    return result


def upload(device: Device, values: np.ndarray) -> Allocation:
    """A new allocation that holds ``values``."""
    return device.tensor(values.view(np.uint8) if values.dtype == BOOL else values).allocation


def supported(device: Device, operator: str, tensor: str) -> Any:
    """What an implemented operator takes as ``tensor`` at the device's feature level, or None."""
    definition = base.definitions().get(operator)
    table = None if definition is None else definition.spec.support_at(device.feature_level)
    return None if table is None else table.get(tensor)


def scalar(value: Any, dtype: np.dtype[Any]) -> Scalar:
    """An attribute of type SCALAR_UNION."""
    return Scalar.of(value, device_type(dtype))
