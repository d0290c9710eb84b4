"""Builds a plan from arrays with known sizes: compiled operators with a place for every tensor.

While a plan is built, an :class:`Array` stands for each value. It is a strided view of a
:class:`Storage`, so reshapes, transpositions and broadcasts cost nothing. Storages get memory when
all operators are known. Inputs share one range, and so do outputs, because for small tensors the
number of transfers counts more than the bytes. Storages that are never alive together share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..compiler import Operator
from ..dtypes import Scalar
from ..errors import OutOfMemoryError, ValidationError
from ..layout import (
    channels_last_strides,
    coalesce,
    extent,
    packed_strides,
    pad_left,
    product,
    reshape_strides,
)
from ..operators import base
from ..operators.base import OperatorDesc
from ..runtime.heap import Allocation
from ..runtime.uploads import Uploads
from ..runtime.windows import SIZE as WINDOW
from ..sizes import SizeTrace, is_open
from .array import BOOL, Array, device_type
from .caches import append_in_place, appends
from .ends import Ends, OuterTensor
from .memory import Storage, aligned, share, side_by_side
from .node import Node, Nodes
from .planner import Planner, Preparations
from .recorded import Allowed, RecordedPlan, check_numbers
from .step import Step, begin, plan_memory
from .switches import CHANNELS_LAST, IN_PLACE, MEMORY, disabled

if TYPE_CHECKING:
    from ..device import Device

_MAX_COUNT = 1 << 62
"""The product of an array's sizes that are not 0, whatever it holds."""
FEW = 256
"""The most bytes of a constant whose values passes may read."""


class Builder(Planner):
    """Collects the operators of a plan, and the values between them."""

    def __init__(
        self, device: Device, prepared: Preparations | None = None, *, trial: bool = False
    ) -> None:
        """``prepared`` are constants that earlier plans have prepared. Who gives them has the
        others recorded, before the first run; else they are recorded with the plan.

        A ``trial`` only checks that everything compiles. It uses no device memory.
        """
        super().__init__(device, prepared)
        self.label = ""
        """The name of the next operators in errors."""
        self._trial = trial
        self._allocated = 0
        """Bytes of the plan's own memory."""
        self._lines: set[Storage] = set()
        self._expected: list[tuple[Array, tuple[Allowed, ...], str]] = []
        self.trace: SizeTrace | None = None
        """Where sizes are open, what their values decide."""

    def new(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """A packed array for a step to write."""
        dtype, shape = np.dtype(dtype), tuple(shape)
        nbytes = product(shape) * dtype.itemsize
        if nbytes > (most := self.device.runtime.engine.max_buffer):
            raise OutOfMemoryError(
                f"expected a tensor to fit a buffer of the device, which holds {most} bytes, "
                f"but got {nbytes} bytes for sizes {list(shape)}")
        if not nbytes and product([n for n in shape if n]) > _MAX_COUNT:
            raise ValidationError(
                f"expected an array that NumPy can have, but got sizes {list(shape)}")
        storage = self.storage((nbytes + 3) & ~3) if nbytes else None
        return Array(dtype, shape, packed_strides(shape), storage)

    def like(self, arrays: Sequence[Array], shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """A new array. It is channels-last if one of ``arrays`` has the same shape and is, or is a
        part of one that is.

        With three dimensions, that layout may be a transposed matrix, unless a convolution made it.
        """
        y = self.new(shape, dtype)
        last = any(a.has_channels_inside and a.shape == y.shape and (
            len(a.shape) > 3 or self._is_line(a)) for a in arrays)
        return self._with_channels_last(y) if last else y

    def for_channels(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """A new array for the output of a convolution, channels-last where convolutions read
        that."""
        y = self.new(shape, dtype)
        if len(y.shape) > 2 and self._puts_channels_last(y.dtype):
            return self._with_channels_last(y)
        return y

    def _with_channels_last(self, y: Array) -> Array:
        if len(y.shape) == 3 and y.storage is not None:
            self._lines.add(y.storage)
        return y.view(y.shape, channels_last_strides(y.shape))

    def _is_line(self, x: Array) -> bool:
        """Whether it is an image of one dimension that a convolution has made."""
        return x.storage is not None and self.is_line(x.storage)

    def is_line(self, storage: Storage) -> bool:
        """Whether an image of one dimension lies there that a convolution has made."""
        return storage.root in self._lines

    def storage_of(self, nbytes: int, line: bool) -> Storage:
        """Memory for a value, which may be such an image."""
        storage = self.storage(nbytes)
        if line:
            self._lines.add(storage)
        return storage

    def checks(self, inputs: Sequence[Array]) -> dict[tuple[int, tuple[Allowed, ...]], str]:
        """What is checked at each run, each once: an input with what its elements may be, and for
        whom. A view has to have each element of the input once, in any order."""
        found: dict[tuple[int, tuple[Allowed, ...]], str] = {}
        for i, a in enumerate(inputs):
            for x, allowed, where in self._expected:
                if x.storage is not a.storage or not x.size == a.size == extent(
                        x.shape, x.strides):
                    continue
                if len(allowed) > 1:
                    allowed = tuple(each._replace(step=x.strides[-1]) for each in allowed)
                found.setdefault((i, allowed), where)
        return found

    @property
    def expectations(self) -> int:
        """How many inputs are checked at each run."""
        return len(self._expected)

    def _puts_channels_last(self, dtype: np.dtype[np.generic]) -> bool:
        if CHANNELS_LAST in disabled():
            return False
        target = self.device.target
        if dtype == np.int32 or (dtype.kind in "iu" and dtype.itemsize == 1):
            return target.traits.multiplies(16, 16, 32, "i8", "i32")
        if dtype == np.float16 and target.traits.multiplies(16, 16, 16, "f16", "f32"):
            return True
        of_lines = target.library.find("convolution_lines", "t64")
        return (dtype in (np.float16, np.float32) and not target.traits.is_cpu
                and of_lines is not None)

    def constant(self, values: np.ndarray, uploads: Uploads | None = None) -> Array:
        """An array with these values, which are uploaded now, or with other ``uploads``."""
        array = self.new(values.shape, values.dtype)
        if array.storage is not None and not self._trial:
            self._hold(array.storage, values, upload(self.device, values, uploads))
        return replace(array, host=values)

    def state(self, owner: object, shape: Sequence[int], begin: Callable[[], np.ndarray]) -> Array:
        """An array in memory that goes on from run to run, the same for the plans of all sizes.
        ``begin`` gives its values, of this shape and of 32-bit words, where ``owner`` has none."""
        x = Array(np.dtype(np.uint32), tuple(shape), packed_strides(shape),
                  Storage(4 * product(shape)))
        if not self._trial and x.storage is not None:
            states = self._prepared.states
            if owner not in states:
                states[owner] = upload(self.device, begin())
            x.storage.allocation = states[owner]
        return x

    def filled(self, shape: Sequence[int], number: int, dtype: npt.DTypeLike) -> Array:
        """An array that repeats a number, which may be an open size."""
        return self.constant(np.full(shape, number, dtype))

    def counted(self, count: int, dtype: npt.DTypeLike) -> Array:
        """The numbers from 0 on. Of an open ``count`` the device makes them."""
        if not is_open(count):
            return self.constant(np.arange(count, dtype=dtype))
        y = self.new((count,), dtype)
        support = supported(self.device, "DML_OPERATOR_FILL_VALUE_SEQUENCE", "OutputTensor")
        rank = support.dimension_counts[0] if support else 1
        self.emit("FILL_VALUE_SEQUENCE", {
            "output_tensor": (y, pad_left(y.shape, rank, 1), pad_left(y.strides, rank, 0))},
            value_data_type=device_type(y.dtype), value_start=scalar(0, y.dtype),
            value_delta=scalar(1, y.dtype))
        return y

    def numbers(self, values: np.ndarray, dtype: npt.DTypeLike) -> Array:
        """An array with these numbers, some of which may be open sizes."""
        return self.constant(np.ascontiguousarray(values, dtype).reshape(values.shape))

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

    def _hold(
        self, storage: Storage, values: np.ndarray, allocation: Allocation | None
    ) -> None:
        if allocation is not None:
            self._own.add(allocation)
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
        **attributes: object,
    ) -> None:
        """Add ``DML_OPERATOR_<name>`` over arrays, each seen under its sizes and strides."""
        definition = base.definitions()["DML_OPERATOR_" + name]
        descs = {f: None if t is None else t[0].desc(*t[1:]) for f, t in tensors.items()}
        arrays = {f: t[0] for f, t in tensors.items() if t is not None}
        desc = definition.desc_class(**_grouped(descs), **attributes)
        self.add(desc, {f: a.storage for f, a in arrays.items() if a.storage is not None})

    def emit_own(
        self, desc_class: Callable[..., OperatorDesc],
        tensors: Mapping[str, tuple[Array, Sequence[int], Sequence[int]] | None],
        **attributes: object,
    ) -> None:
        """:meth:`emit` of an operator that DirectML does not have, see :meth:`add_own`."""
        descs = {f: None if t is None else t[0].desc(*t[1:]) for f, t in tensors.items()}
        self.add_own(desc_class(**_grouped(descs), **attributes), {
            f: t[0].storage for f, t in tensors.items()
            if t is not None and t[0].storage is not None})

    def add(self, desc: OperatorDesc, storages: dict[str, Storage]) -> None:
        """Add an operator whose tensors begin with these storages. Raises if it is not valid."""
        self._add(self.device.validation_cache.operator(self.device, desc), storages)

    def add_own(self, desc: OperatorDesc, storages: dict[str, Storage]) -> None:
        """Add an operator that DirectML does not have, whose description is right."""
        self._add(Operator(self.device, desc), storages)

    def _add(self, operator: Operator, storages: dict[str, Storage]) -> None:
        if self._trial:
            self.device.validation_cache.compile(operator)
            return
        self.nodes.append(Node(operator.desc, storages, self.label))

    def lower(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, runs: bool = False
    ) -> list[Step]:
        """The compiled operators that make ``outputs`` of ``inputs``: see :meth:`plan`."""
        visible = {a.storage.root for a in (*inputs, *outputs) if a.storage is not None}
        return self.plan(visible, runs=runs)

    def finish(
        self, inputs: Sequence[Array], outputs: Sequence[Array], resident: Sequence[Array] = (),
        *, bound: bool = False,
    ) -> RecordedPlan:
        """Allocate memory for every storage. ``resident`` inputs lie on the device, so they take no
        part in the upload of the small inputs. With ``bound`` inputs and outputs have no memory:
        each run brings it (:meth:`RecordedPlan.bind`)."""
        ends = self._ends(inputs, outputs, bound)
        kept = {} if bound else self._append_in_place(inputs, ends)
        steps = self.lower(inputs, ends, runs=True)
        used = [a for i, a in enumerate(inputs)
                if a.storage is not None and a.storage.first >= 0 and i not in kept]
        together = [] if bound else self._fitting([a for a in used if a not in resident])
        ours = {id(a.storage) for a in ends} | {
            id(a.storage.root) for a in inputs if a.storage is not None}
        inner = [s for s in self.storages
                 if s.first >= 0 and not s.constant and id(s) not in ours]
        fresh = [y for j, y in enumerate(ends) if j not in kept.values()]
        groups = () if bound else (together, *[[a] for a in used if a not in together], fresh)
        for group in groups:
            present = [a.storage for a in group if a.storage is not None]
            self.allocate(present, side_by_side(present), side_by_side)
        expected = [(i, allowed, where) for (i, allowed), where in self.checks(inputs).items()]
        inner, memory = plan_memory(steps, inner)
        self.allocate(inner, memory.planned, side_by_side if MEMORY in disabled() else share)
        places = {id(a): i for i, a in enumerate(inputs)}
        plan = RecordedPlan(
            self.device, steps, Ends(
                self.device, [*map(OuterTensor.of, inputs)], [places[id(a)] for a in together],
                [*map(OuterTensor.of, ends)], kept),
            [a.shape for a in (*inputs, *ends)], memory, self._allocated, expected)
        plan.pipelines = begin(self.device, (step.compiled for step in steps))
        return plan

    def _ends(
        self, inputs: Sequence[Array], outputs: Sequence[Array], bound: bool = False
    ) -> list[Array]:
        """The outputs, each packed in memory of its own. That of ``bound`` ones holds nothing else:
        a run brings as many bytes as an output has."""
        owned = {a.storage for a in inputs}
        ends: list[Array] = []
        for y in outputs:
            shared = y.storage is not None and (
                y.storage in owned or y.storage.constant or y.storage.is_part or not y.packed
                or any(y.storage is e.storage for e in ends)  # two outputs need separate memory
                or (bound and y.storage.root.nbytes != (y.size * y.dtype.itemsize + 3) & ~3)
            )
            ends.append(self.copy(y) if shared else y)
        return ends

    def _append_in_place(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> dict[int, int]:
        """Let caches grow where they lie. Returns the outputs that have an input's memory, by
        input."""
        if IN_PLACE in disabled() or not any(map(appends, self.nodes)):
            return {}
        places: dict[Any, list[int]] = {}
        for i, x in enumerate(inputs):
            if x.storage is not None:
                places.setdefault(x.storage, []).append(i)
        outgoing = {y.storage: j for j, y in enumerate(outputs) if y.storage is not None}
        g = Nodes(self.nodes, (), self.device.target)
        sources = append_in_place(g, places.keys(), outgoing.keys())
        self.nodes = [*g]
        return {places[x][0]: outgoing[y] for y, x in sources.items()}

    def _fitting(self, arrays: Sequence[Array]) -> list[Array]:
        """The smallest arrays, as many as fit one transfer."""
        chosen, end = [], 0
        for array in sorted(arrays, key=lambda a: a.size * a.dtype.itemsize):
            end += aligned(array.size * array.dtype.itemsize)
            if end <= WINDOW:
                chosen.append(array)
        return chosen

    def allocate(
        self, storages: Sequence[Storage], nbytes: int,
        place: Callable[[Sequence[Storage]], Any] = share,
    ) -> None:
        """Allocate memory for storages with offsets. Where they exceed one buffer, they are placed
        anew in several, in the order of their first use."""
        if nbytes > self.device.runtime.engine.max_buffer and len(storages) > 1:
            order = sorted(storages, key=lambda s: s.first)
            for half in (order[: len(order) // 2], order[len(order) // 2 :]):
                place(half)
                self.allocate(half, max(s.offset + s.nbytes for s in half), place)
            return
        allocation = self.device.allocate(nbytes) if nbytes else None
        self._allocated += 0 if allocation is None else allocation.nbytes
        for storage in storages:
            storage.allocation = allocation


def _grouped(descs: Mapping[str, object]) -> dict[str, Any]:
    """Descriptions by field: ``field[0]``, ``field[1]`` ... become a tuple."""
    result: dict[str, Any] = {}
    for slot, desc in descs.items():
        field, _, index = slot.partition("[")
        result[field] = (*result.get(field, ()), desc) if index else desc
    return result


def upload(device: Device, values: np.ndarray, uploads: Uploads | None = None) -> Allocation:
    """A new allocation that holds ``values``, or will with other ``uploads``."""
    values = values.view(np.uint8) if values.dtype == BOOL else values
    if uploads is None or device_type(values.dtype).bits < 8:
        return device.tensor(values).allocation
    allocation = device.allocate(values.nbytes, True)  # what is locked takes no keywords
    uploads.add(np.ascontiguousarray(values).reshape(-1).view(np.uint8), allocation)
    return allocation


def supported(device: Device, operator: str, tensor: str) -> Any:
    """The support of ``tensor`` in an operator at the device's feature level, or None."""
    definition = base.definitions().get(operator)
    table = None if definition is None else definition.spec.support_at(device.feature_level)
    return None if table is None else table.get(tensor)


def scalar(value: object, dtype: np.dtype[np.generic]) -> Scalar:
    """An attribute of type SCALAR_UNION."""
    return Scalar.of(value, device_type(dtype))
