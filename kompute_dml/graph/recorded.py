"""A graph for one set of input sizes: recorded at its first run, then submitted again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import ValidationError
from ..layout import Ints, packed_strides
from ..runtime import lent
from ..runtime.heap import ALIGNMENT, Place, Slot
from ..runtime.pipelines import Compiled
from ..runtime.recorder import Recording
from .array import Array
from .ends import Ends
from .memory import MemoryUse, Storage
from .recordings import Places, Recordings, places_of
from .step import Step, runs_over
from .switches import BRANCHES, disabled

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device
    from .open_plan import OpenPlan


_NOWHERE: Mapping[Storage, Place] = {}


class Allowed(NamedTuple):
    """What numbers may be."""

    name: str
    """What they are."""
    low: int
    end: int
    """One more than the largest."""
    why: str = ""
    """What follows them in a message, with ``{end}`` for that number."""
    step: int = 1
    """Of several ranges, how many elements lie between what the first and the second are for."""


class RecordedPlan:
    """A graph for one set of input sizes."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step] | Callable[[], Sequence[Step]],
        ends: Ends,
        shapes: Sequence[Ints],
        memory: MemoryUse,
        nbytes: int,
        expected: Sequence[tuple[int, Sequence[Allowed], str]] = (),
    ) -> None:
        """``steps`` may be what makes them, where that is asked for. ``shapes`` are those of the
        inputs, and then of the outputs. All take ``nbytes``. ``expected`` are inputs whose
        elements are checked if they come from the host: (input, what they may be, the name of
        their user)."""
        self._ends = ends
        self.kept = ends.kept
        """Outputs that are written where an input lies, by input."""
        self._expected = expected
        self._in_order = BRANCHES in disabled()
        self.device = device
        self.memory = memory
        """The memory of the values between inputs and outputs."""
        self.nbytes = nbytes
        """Bytes of its own memory, without constants."""
        self._steps_of = steps
        self.record_at_once: Callable[[], bool] | None = None
        """What records all steps by one call, or says that it cannot."""
        self.words = ends.words[:0]
        """What steps read beside the inputs."""
        self.pipelines: Sequence[Compiled] = ()
        """What its steps run, held so that a full cache does not let them be compiled anew."""
        self.shapes = shapes[len(ends.inputs):]
        """The sizes of the outputs."""
        self._bound = Recordings(device.runtime.recorder)
        """By the places of inputs and outputs."""
        self._recordings = Recordings(device.runtime.recorder)
        """By the places of the large inputs."""
        self.common: OpenPlan | None = None
        """What has its memory, and that of plans for other sizes."""
        self.results: list[weakref.ref[Result]] = []
        """Results of the last run. Those that are still referenced move before the next run."""
        kept = {*self.kept.values()}
        self._moving = [j for j in range(len(ends.slots)) if j not in kept]
        """Outputs that are not written where an input lies."""
        self._small = [(i, np.ndarray(shapes[i], dtype, ends.staged, begin))
                       for i, dtype, begin in ends.staged_at]
        """Inputs that lie together, and where they are written."""

    @property
    def memory_of(self) -> int:
        """Equal for plans that share memory."""
        return id(self._ends)

    @functools.cached_property
    def _planned(self) -> Sequence[Step]:
        return self._steps_of() if callable(self._steps_of) else self._steps_of

    @property
    def _recording(self) -> Recording | None:
        """The last one."""
        return self._recordings.last

    @functools.cached_property
    def outputs(self) -> list[Array]:
        """The arrays of the outputs, with their shapes and types."""
        return [Array(y.dtype, shape, packed_strides(shape), y.storage)
                for y, shape in zip(self._ends.outputs, self.shapes)]

    @functools.cached_property
    def dtypes(self) -> list[np.dtype[Any]]:
        """The types of the outputs."""
        return [y.dtype for y in self._ends.outputs]

    @property
    def operators(self) -> list[str]:
        """The operators that run, in order, without DirectML's prefix."""
        return [step.compiled.definition.short_name for step in self._planned]

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the shader variants that run."""
        return tuple(v for step in self._planned for v in step.compiled.variants)

    @property
    def _steps(self) -> list[tuple[CompiledOperator, list[Slot | None]]]:
        """The compiled operators, and where their tensors lie now."""
        return [(step.compiled, [None if s is None else s.slot() for s in step.storages])
                for step in self._planned]

    def run(self, inputs: Sequence[Input], *, anew: bool = False) -> list[np.ndarray]:
        """The graph's outputs for contiguous ``inputs`` of the sizes planned for.

        ``anew`` records all dispatches again, which is needed to time them.
        """
        with self.device.runtime.lock:
            results = self.launch(inputs, anew=anew)
            ends = self._ends
            if ends.download is not None or ends.outgoing is None or self.kept:
                return [r.values() for r in results if r is not None]
            transfer = self.device.runtime.transfer
            raw = transfer.download(ends.outgoing, 0, ends.outgoing_bytes)
            return [y.view(shape, raw) for y, shape in zip(ends.outputs, self.shapes)]

    def launch(
        self, inputs: Sequence[Input], *, anew: bool = False, shared: Collection[int] = (),
        places: Places | None = None,
    ) -> list[Result | None]:
        """Start a run without waiting for it.

        An input may lie on the device if the plan was built for it. ``shared`` are those on the
        device that the output which is kept there shall overwrite: its result is None. ``places``
        is what :meth:`places_of` gave for the same large inputs before, all of them shared.
        """
        for i, allowed, where in self._expected:
            if isinstance(x := inputs[i], np.ndarray):
                check_numbers(x, allowed, where)
        runtime, ends = self.device.runtime, self._ends
        with runtime.lock:
            runtime.recorder.check()
            runtime.collect()
            shares = self.common or self
            for last in shares.results:
                if (kept := last()) is not None:
                    kept.settle()
            shares.results = []
            known = not anew and places is not None and places in self._recordings
            if known:
                assert places is not None
                self._write_small(inputs)
                self._recordings.replay(places)
            else:
                self._write(inputs, shared)
                self._recordings.run_at_once([large.slot for large in ends.large], self._record,
                                             anew=anew)
            turn = ends.download.turn() if ends.download else 0
            results: list[Result | None] = [None] * len(ends.slots)
            for j in self._moving:
                results[j] = Result(self, j, ends.slots[j], turn)
            for i, j in () if known else self.kept.items():
                if i not in shared:
                    y = ends.outputs[j].storage
                    results[j] = Result(self, j, None if y is None else y.slot(), None)
            for large in () if known else ends.large:
                large.let_go()
            shares.results = [weakref.ref(r) for r in results if r is not None]
            return results

    def bind(self, inputs: Sequence[Place], outputs: Sequence[Place]) -> None:
        """Start a run that reads and writes these places of the device, with the layouts and
        alignments of the plan's. Runs after the first are recorded, and replayed where their places
        come again."""
        runtime, slots = self.device.runtime, (*inputs, *outputs)
        with runtime.lock:
            runtime.recorder.check()
            self._bound.run(slots, lambda: self._run_at(slots))

    def may_write_over(self, output: int, i: int) -> bool:
        """Whether an output may be bound where an input of the same layout lies: no step reads the
        input after one has written the output. An operator that may run in place may do both, if
        its layouts are known."""
        y, x = self._ends.outputs[output].storage, self._ends.inputs[i].storage
        if y is None or x is None or y.root.first < 0:
            return False
        begins, ends = y.root.first, x.root.last
        return ends < begins or (ends == begins and self.common is None
                                 and runs_over(self._planned[begins], x, y))

    def _run_at(self, slots: Sequence[Place]) -> None:
        """Record the operators, with the inputs and then the outputs at these places."""
        ends = (*self._ends.inputs, *self._ends.outputs)
        at = {x.storage.root: slot for x, slot in zip(ends, slots) if x.storage is not None}
        if self._recorded_at_once(at):
            return
        for step in self._planned:
            if self._in_order:
                self.device.runtime.recorder.order_next()
            step.compiled.run([
                None if s is None else s.slot() if (outer := at.get(s.root)) is None
                else Slot(outer[0], outer[1] + s.begin)
                for s in step.storages])

    def _recorded_at_once(self, at: Mapping[Storage, Place] = _NOWHERE) -> bool:
        """Record all steps by one call, with storages at these places. False if that cannot be."""
        if self._in_order or self.record_at_once is None:
            return False
        try:
            for storage, place in at.items():
                storage.allocation, storage.offset = place
            return self.record_at_once()
        finally:
            for storage in at:
                storage.allocation, storage.offset = None, 0

    def places_of(self, inputs: Sequence[Input], shared: Collection[int]) -> Places | None:
        """Where the large inputs lie, if all of them are shared."""
        slots = [x.slot for large in self._ends.large
                 if large.index in shared and isinstance(x := inputs[large.index], Resident)]
        return places_of(slots) if len(slots) == len(self._ends.large) else None

    def has(self, places: Places) -> bool:
        """Whether there is a recording for large inputs at these places."""
        return places in self._recordings

    def _write_small(self, inputs: Sequence[Input]) -> None:
        ends = self._ends
        if ends.upload:
            ends.upload.wait()
        for i, view in self._small:
            view[...] = inputs[i]
        ends.words[:self.words.size] = self.words
        if ends.incoming and not ends.upload:
            self.device.runtime.transfer.upload(ends.staged, ends.incoming, 0)

    def _write(self, inputs: Sequence[Input], shared: Collection[int] = ()) -> None:
        transfer = self.device.runtime.transfer
        self._write_small(inputs)
        for large in self._ends.large:
            x, slot = inputs[large.index], None
            if isinstance(x, Resident):
                slot = x.slot
                if large.index in shared or (large.index not in self.kept and x.stays
                                             and large.was_at(slot)):
                    large.bind(slot)
                    continue
                large.last = weakref.ref(slot.allocation), slot.byte_offset
            if large.own is None:
                large.own = self.device.allocate(large.storage.nbytes)
            large.let_go()
            if slot is not None:
                transfer.copy(slot.allocation, slot.byte_offset, large.own, 0, x.nbytes)
            else:
                assert isinstance(x, np.ndarray)
                transfer.upload(x.reshape(-1).view(np.uint8), large.own, 0)

    def _record(self) -> None:
        if self._ends.upload:
            self._ends.upload.record_upload()
        if not self._recorded_at_once():
            for compiled, places in self._steps:
                if self._in_order:
                    self.device.runtime.recorder.order_next()
                compiled.run(places)
        if self._ends.download:
            self._ends.download.record_download()

    def read(self, result: Result, out: np.ndarray) -> bool:
        """Wait for a result of the last run and copy its bytes to ``out``. False if it is not
        downloaded."""
        download = self._ends.download
        if download is None or result.turn is None or not download.holds(result.turn):
            return False
        self.device.runtime.recorder.check()
        download.wait()
        # A copy: the next download overwrites this memory.
        begin = self._ends.outputs[result.number].begin
        out[...] = download.bytes[begin : begin + out.nbytes]
        return True


def check_numbers(x: np.ndarray, allowed: Sequence[Allowed], where: str) -> None:
    """Raise ValidationError where an element is out of range. The last dimension counts the ranges
    if there are several, or the one whose elements are a ``step`` apart."""
    if not x.size:
        return
    if x.size == 1 and allowed[0].low <= x.item() < allowed[0].end:
        return
    columns = x.reshape(-1, len(allowed), allowed[0].step)
    for (name, low, end, why, _), *ends in zip(
            allowed, columns.min((0, 2)).tolist(), columns.max((0, 2)).tolist()):
        for value in ends:
            if not low <= value < end:
                raise ValidationError(
                    f"{where}: expected {name} to be in [{low}, {end})"
                    f"{why.format(end=end)}, but got {value}")


class Result:
    """An output of a run. It stays in the plan's memory until the plan's next run begins."""

    __slots__ = ("__weakref__", "_made", "_moved", "_plan", "number", "turn")

    def __init__(
        self, plan: RecordedPlan, number: int, slot: Slot | None, turn: int | None
    ) -> None:
        """It lies in ``slot``, None if it is empty."""
        self._plan = plan
        self.number = number
        """Its place among the outputs."""
        self.turn = turn
        """The number of the download that contains it; None if none does."""
        self._moved: Slot | None = None
        self._made = slot

    @property
    def array(self) -> Array:
        """Its shape and type."""
        return self._plan.outputs[self.number]

    @property
    def device(self) -> Device:
        return self._plan.device

    @property
    def nbytes(self) -> int:
        array = self.array
        return array.size * array.dtype.itemsize

    @property
    def slot(self) -> Slot:
        """Where it lies on the device. It must not be empty."""
        place = self._moved or self._made
        assert place is not None
        return place

    def settle(self) -> None:
        """Move to memory of its own."""
        if self._moved is None and self.nbytes:
            self._moved = Resident(self.device, self.slot, 0, self.nbytes).copied()

    def values(self, out: np.ndarray | None = None) -> np.ndarray:
        """Wait for the run and copy the elements to contiguous ``out``, or to a new array."""
        y, nbytes = self.array, self.nbytes
        out = lent.empty(nbytes).view(y.dtype).reshape(y.shape) if out is None else out
        if not nbytes:
            return out
        self.copy_to(out.reshape(-1).view(np.uint8))
        return out

    def copy_to(self, out: np.ndarray) -> None:
        """:meth:`values`, as bytes."""
        runtime = self.device.runtime
        with runtime.lock:
            if self._moved or not self._plan.read(self, out):
                where = self.slot
                runtime.transfer.download(where.allocation, where.byte_offset, out.nbytes, out)


class Resident(NamedTuple):
    """A tensor that lies on the device already."""

    device: Device
    where: Slot | Result
    offset: int
    """Bytes before the tensor in ``where``."""
    nbytes: int
    shape: Ints = ()

    @property
    def stays(self) -> bool:
        """Whether it lies where it may be bound, in memory that no plan reuses."""
        return isinstance(self.where, Slot) and not (
            (self.where.byte_offset + self.offset) % ALIGNMENT)

    @property
    def slot(self) -> Slot:
        """Where it is now. Hold the device's lock while this place is used."""
        where = self.where.slot if isinstance(self.where, Result) else self.where
        return Slot(where.allocation, where.byte_offset + self.offset)

    def copied(self) -> Slot:
        """A copy in memory of its own."""
        with self.device.runtime.lock:
            allocation, source = self.device.allocate(self.nbytes), self.slot
            self.device.runtime.transfer.copy(
                source.allocation, source.byte_offset, allocation, 0, self.nbytes)
        return Slot(allocation, 0)


Input: TypeAlias = "np.ndarray | Resident"

