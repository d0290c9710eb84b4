"""A graph for one set of input sizes: recorded at its first run, then submitted again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import ValidationError
from ..layout import Ints
from ..runtime import lent
from ..runtime.heap import ALIGNMENT, Allocation, Place, Slot
from ..runtime.pipelines import Compiled
from ..runtime.recorder import Recording
from .array import Array
from .memory import MemoryUse, Storage
from .recordings import Places, Recordings, places_of
from .step import Step, runs_over
from .switches import BRANCHES, disabled

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device
    from .open_plan import OpenPlan


class Allowed(NamedTuple):
    """What numbers may be."""

    name: str
    """What they are."""
    low: int
    end: int
    """One more than the largest."""
    why: str = ""
    """What follows them in a message, with ``{end}`` for that number."""


@dataclass(eq=False)
class _Large:
    """An input with an allocation of its own. What lies on the device already is read there, or
    copied."""

    index: int
    storage: Storage
    nbytes: int
    own: Allocation | None
    """Where copies lie. None until there is one."""
    last: tuple[weakref.ref[Allocation], int] | None = None
    """Where the input of the last run was, which need not exist any more."""

    @property
    def slot(self) -> Slot:
        """Where it lies in this run."""
        assert self.storage.allocation is not None
        return Slot(self.storage.allocation, self.storage.offset)

    def bind(self, slot: Slot) -> None:
        self.storage.allocation, self.storage.offset = slot

    def let_go(self) -> None:
        """Refer to no memory of others."""
        self.storage.allocation, self.storage.offset = self.own, 0

    def was_at(self, slot: Slot) -> bool:
        return self.last is not None and (self.last[0]() is slot.allocation) and (
            self.last[1] == slot.byte_offset)


class RecordedPlan:
    """A graph for one set of input sizes."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step] | Callable[[], Sequence[Step]],
        inputs: Sequence[Array],
        together: Sequence[Array],
        outputs: Sequence[Array],
        memory: MemoryUse,
        nbytes: int,
        expected: Sequence[tuple[int, Sequence[Allowed], str]] = (),
        kept: Mapping[int, int] | None = None,
    ) -> None:
        """``steps`` may be what makes them, where that is asked for.

        Inputs that lie ``together`` share an allocation, and so do all outputs but those that
        are ``kept`` where an input lies: outputs by input.

        Other inputs have an allocation each. All take ``nbytes``. ``expected`` are inputs whose
        elements are checked if they come from the host: (input, what they may be, the name of
        their user).
        """
        self.kept = kept or {}
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
        self.pipelines: Sequence[Compiled] = ()
        """What its steps run, held so that a full cache does not let them be compiled anew."""
        self.outputs = self._outputs = outputs
        """The arrays of the outputs, with their shapes and types."""
        self._inputs = inputs
        self._bound = Recordings(device.runtime.recorder)
        """By the places of inputs and outputs."""
        self._recordings = Recordings(device.runtime.recorder)
        """By the places of the large inputs."""
        self.common: OpenPlan | None = None
        """What has its memory, and that of plans for other sizes."""
        self.results: list[weakref.ref[Result]] = []
        """Results of the last run. Those that are still referenced move before the next run."""
        windows = device.runtime.windows
        index = {id(a): i for i, a in enumerate(inputs)}
        staged, apart = {id(a) for a in together}, {*self.kept.values()}
        self._incoming, nbytes = _range(together)
        self._upload = self._incoming and windows.upload(self._incoming, nbytes)
        self._staged = self._upload.bytes if self._upload else np.zeros(nbytes, np.uint8)
        self._small = [(index[id(a)], _view(a, self._staged)) for a in together]
        self._large = [
            _Large(i, a.storage, a.size * a.dtype.itemsize, a.storage.allocation)
            for i, a in enumerate(inputs) if id(a) not in staged and a.storage is not None
            and (a.storage.allocation is not None or i in self.kept)
        ]
        fresh = [y for j, y in enumerate(outputs) if j not in apart]
        self._outgoing, self._outgoing_bytes = _range(fresh)
        if any(y.storage and y.storage.allocation is not self._outgoing for y in fresh):
            self._outgoing = None  # they lie in several buffers
        self._download = (
            windows.download(self._outgoing, self._outgoing_bytes) if self._outgoing else None)

    @property
    def memory_of(self) -> int:
        """Equal for plans that share memory."""
        return id(self if self.common is None else self._outgoing or self._incoming)

    @functools.cached_property
    def _planned(self) -> Sequence[Step]:
        return self._steps_of() if callable(self._steps_of) else self._steps_of

    @property
    def _recording(self) -> Recording | None:
        """The last one."""
        return self._recordings.last

    @property
    def shapes(self) -> list[Ints]:
        """The sizes of the outputs."""
        return [y.shape for y in self._outputs]

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """The types of the outputs."""
        return [y.dtype for y in self._outputs]

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
            if self._download is not None or self._outgoing is None or self.kept:
                return [r.values() for r in results if r is not None]
            transfer = self.device.runtime.transfer
            raw = transfer.download(self._outgoing, 0, self._outgoing_bytes)
            return [_view(y, raw) for y in self._outputs]

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
        runtime = self.device.runtime
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
                self._recordings.run_at_once([large.slot for large in self._large], self._record,
                                             anew=anew)
            turn = self._download.turn() if self._download else 0
            apart, gone = self.kept.values(), {self.kept[i] for i in shared}
            results = [None if j in gone else Result(self, y, None if j in apart else turn)
                       for j, y in enumerate(self._outputs)]
            for large in () if known else self._large:
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
        y, x = self.outputs[output].storage, self._inputs[i].storage
        if y is None or x is None or y.root.first < 0:
            return False
        begins, ends = y.root.first, x.root.last
        return ends < begins or (ends == begins and self.common is None
                                 and runs_over(self._planned[begins], x, y))

    def _run_at(self, slots: Sequence[Place]) -> None:
        """Record the operators, with the inputs and then the outputs at these places."""
        at = {a.storage.root: slot for a, slot in zip((*self._inputs, *self._outputs), slots)
              if a.storage is not None}
        for step in self._planned:
            if self._in_order:
                self.device.runtime.recorder.order_next()
            step.compiled.run([
                None if s is None else s.slot() if (outer := at.get(s.root)) is None
                else Slot(outer[0], outer[1] + s.begin)
                for s in step.storages])

    def places_of(self, inputs: Sequence[Input], shared: Collection[int]) -> Places | None:
        """Where the large inputs lie, if all of them are shared."""
        slots = [x.slot for large in self._large
                 if large.index in shared and isinstance(x := inputs[large.index], Resident)]
        return places_of(slots) if len(slots) == len(self._large) else None

    def has(self, places: Places) -> bool:
        """Whether there is a recording for large inputs at these places."""
        return places in self._recordings

    def _write_small(self, inputs: Sequence[Input]) -> None:
        if self._upload:
            self._upload.wait()
        for i, view in self._small:
            view[...] = inputs[i]
        if self._incoming and not self._upload:
            self.device.runtime.transfer.upload(self._staged, self._incoming, 0)

    def _write(self, inputs: Sequence[Input], shared: Collection[int] = ()) -> None:
        transfer = self.device.runtime.transfer
        self._write_small(inputs)
        for large in self._large:
            x, slot = inputs[large.index], None
            if isinstance(x, Resident):
                slot = x.slot
                if large.index in shared or (large.index not in self.kept and x.stays
                                             and large.was_at(slot)):
                    large.bind(slot)
                    continue
                large.last = weakref.ref(slot.allocation), slot.byte_offset
            if large.own is None:
                large.own = self.device.allocate(large.nbytes)
            large.let_go()
            if slot is not None:
                transfer.copy(slot.allocation, slot.byte_offset, large.own, 0, large.nbytes)
            else:
                assert isinstance(x, np.ndarray)
                transfer.upload(x.reshape(-1).view(np.uint8), large.own, 0)

    def _record(self) -> None:
        if self._upload:
            self._upload.record_upload()
        if self._in_order or self.record_at_once is None or not self.record_at_once():
            for compiled, places in self._steps:
                if self._in_order:
                    self.device.runtime.recorder.order_next()
                compiled.run(places)
        if self._download:
            self._download.record_download()

    def read(self, result: Result, out: np.ndarray) -> np.ndarray | None:
        """Wait for a result of the last run and copy it to ``out``. None if it is not
        downloaded."""
        if self._download is None or result.turn is None or (
                not self._download.holds(result.turn)):
            return None
        self.device.runtime.recorder.check()
        self._download.wait()
        # A copy: the next download overwrites this memory.
        out[...] = _view(result.array, self._download.bytes)
        return out


def check_numbers(x: np.ndarray, allowed: Sequence[Allowed], where: str) -> None:
    """Raise ValidationError where an element is out of range. The last dimension counts the ranges
    if there are several."""
    columns = x.reshape(-1, len(allowed)) if x.size else x.reshape(0, len(allowed))
    for column, (name, low, end, why) in zip(columns.T, allowed):
        for value in (column.min(), column.max()) if column.size else ():
            if not low <= value < end:
                raise ValidationError(
                    f"{where}: expected {name} to be in [{low}, {end})"
                    f"{why.format(end=end)}, but got {value}")


class Result:
    """An output of a run. It stays in the plan's memory until the plan's next run begins."""

    def __init__(self, plan: RecordedPlan, array: Array, turn: int | None) -> None:
        self._plan = plan
        self.array = array
        self.turn = turn
        """The number of the download that contains it; None if none does."""
        self.device = plan.device
        self.nbytes = array.size * array.dtype.itemsize
        self._moved: Slot | None = None
        self._made = None if array.storage is None else array.storage.slot()

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
        y, runtime = self.array, self.device.runtime
        out = lent.empty(self.nbytes).view(y.dtype).reshape(y.shape) if out is None else out
        if not self.nbytes:
            return out
        with runtime.lock:
            if self._moved or self._plan.read(self, out) is None:
                where = self.slot
                runtime.transfer.download(where.allocation, where.byte_offset, self.nbytes,
                                          out.reshape(-1).view(np.uint8))
        return out


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


def _range(arrays: Sequence[Array]) -> tuple[Allocation | None, int]:
    """The allocation that the arrays share, and its bytes up to the end of the last array."""
    storages = [a.storage for a in arrays if a.storage is not None]
    if not storages:
        return None, 0
    return storages[0].allocation, max(s.offset + s.nbytes for s in storages)


def _view(x: Array, raw: np.ndarray) -> np.ndarray:
    """The elements of ``x`` in the bytes of its allocation."""
    begin = 0 if x.storage is None else x.storage.offset
    return raw[begin : begin + x.size * x.dtype.itemsize].view(x.dtype).reshape(x.shape)
