"""A graph for one set of input sizes: recorded at its first run, then submitted again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ..errors import ValidationError
from ..layout import Ints
from ..runtime.heap import Allocation, Slot
from ..runtime.recorder import Recording
from .array import Array
from .fusion import BRANCHES, left_out
from .memory import MemoryUse
from .step import Step

if TYPE_CHECKING:
    from ..device import Device


class Allowed(NamedTuple):
    """What numbers may be."""

    name: str
    """What they are."""
    low: int
    end: int
    """One more than the largest."""
    why: str = ""


class RecordedPlan:
    """A graph for one set of input sizes."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step],
        inputs: Sequence[Array],
        together: Sequence[Array],
        outputs: Sequence[Array],
        memory: MemoryUse,
        expected: Sequence[tuple[int, Sequence[Allowed], str]] = (),
    ) -> None:
        """Inputs that lie ``together`` share an allocation, and so do all outputs.

        Other inputs have an allocation each. ``expected`` are inputs whose elements are checked
        if they come from the host: (input, what they may be, the name of their user).
        """
        self._expected = expected
        self._in_order = BRANCHES in left_out()
        self._device = device
        self.memory = memory
        """The memory of the values between inputs and outputs."""
        self._steps = [
            (step.compiled, [None if s is None else s.slot() for s in step.storages])
            for step in steps
        ]
        self._outputs = outputs
        self._recording: Recording | None = None
        self._results: list[weakref.ref[Result]] = []
        """Results of the last run. Those that are still referenced move before the next run."""
        windows = device._runtime.windows
        index = {id(a): i for i, a in enumerate(inputs)}
        self._incoming, nbytes = _range(together)
        self._upload = self._incoming and windows.upload(self._incoming, nbytes)
        self._staged = self._upload.bytes if self._upload else np.zeros(nbytes, np.uint8)
        self._small = [(index[id(a)], _view(a, self._staged)) for a in together]
        self._large = [
            (i, a.storage.allocation, a.size * a.dtype.itemsize) for i, a in enumerate(inputs)
            if a not in together and a.storage is not None and a.storage.allocation is not None
        ]
        self._outgoing, self._outgoing_bytes = _range(outputs)
        if any(y.storage and y.storage.allocation is not self._outgoing for y in outputs):
            self._outgoing = None  # they lie in several buffers
        self._download = (
            windows.download(self._outgoing, self._outgoing_bytes) if self._outgoing else None)

    @property
    def operators(self) -> list[str]:
        """The operators that run, in order, without DirectML's prefix."""
        return [c.definition.short_name for c, _ in self._steps]

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the shader variants that run."""
        return tuple(v for c, _ in self._steps for v in c.variants)

    def run(self, inputs: Sequence[Input], *, anew: bool = False) -> list[np.ndarray]:
        """The graph's outputs for contiguous ``inputs`` of the sizes planned for.

        ``anew`` records all dispatches again, which is needed to time them.
        """
        with self._device._runtime.lock:
            results = self.launch(inputs, anew=anew)
            if self._download is not None or self._outgoing is None:
                return [r.values() for r in results]
            transfer = self._device._runtime.transfer
            raw = transfer.download(self._outgoing, 0, self._outgoing_bytes)
            return [_view(y, raw) for y in self._outputs]

    def launch(self, inputs: Sequence[Input], *, anew: bool = False) -> list[Result]:
        """Start a run without waiting for it.

        An input may lie on the device if the plan was built for it.
        """
        for i, allowed, where in self._expected:
            if isinstance(x := inputs[i], np.ndarray):
                check_numbers(x, allowed, where)
        runtime = self._device._runtime
        with runtime.lock:
            runtime.recorder.check()
            runtime.collect()
            for last in self._results:
                if (kept := last()) is not None:
                    kept.settle()
            self._results = []
            self._write(inputs)
            recording = self._recording
            if recording is None or anew:
                recording = self._record()
                self._recording = self._recording or recording
            else:
                runtime.recorder.replay(recording)
            turn = self._download.turn() if self._download else 0
            results = [Result(self, y, turn) for y in self._outputs]
            self._results = [weakref.ref(r) for r in results]
            return results

    def _write(self, inputs: Sequence[Input]) -> None:
        transfer = self._device._runtime.transfer
        if self._upload:
            self._upload.wait()
        for i, view in self._small:
            view[...] = inputs[i]
        if self._incoming and not self._upload:
            transfer.upload(self._staged, self._incoming, 0)
        for i, allocation, nbytes in self._large:
            x = inputs[i]
            if isinstance(x, Resident):
                transfer.copy(x.slot.allocation, x.slot.byte_offset, allocation, 0, nbytes)
            else:
                transfer.upload(x.reshape(-1).view(np.uint8), allocation, 0)

    def _record(self) -> Recording:
        recorder = self._device._runtime.recorder
        with recorder.record() as recording:
            if self._upload:
                self._upload.record_upload()
            for compiled, places in self._steps:
                if self._in_order:
                    recorder.order_next()
                compiled.run(places)
            if self._download:
                self._download.record_download()
        return recording

    def read(self, result: Result, out: np.ndarray) -> np.ndarray | None:
        """Wait for a result of the last run and copy it to ``out``. None if it is not
        downloaded."""
        if self._download is None or not self._download.holds(result.turn):
            return None
        self._device._runtime.recorder.check()
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
                    f"{where}: expected {name} to be in [{low}, {end}){why}, but got {value}")


class Result:
    """An output of a run. It stays in the plan's memory until the plan's next run begins."""

    def __init__(self, plan: RecordedPlan, array: Array, turn: int) -> None:
        self._plan = plan
        self.array = array
        self.turn = turn
        """The number of the download that contains it."""
        self.device = plan._device
        self.nbytes = array.size * array.dtype.itemsize
        self._moved: Slot | None = None

    @property
    def slot(self) -> Slot:
        """Where it lies on the device. It must not be empty."""
        if self._moved is not None:
            return self._moved
        assert self.array.storage is not None
        return self.array.storage.slot()

    def settle(self) -> None:
        """Move to memory of its own."""
        if self._moved is None and self.nbytes:
            self._moved = Resident(self.device, self.slot, 0, self.nbytes).copied()

    def values(self, out: np.ndarray | None = None) -> np.ndarray:
        """Wait for the run and copy the elements to contiguous ``out``, or to a new array."""
        y, runtime = self.array, self.device._runtime
        out = np.empty(y.shape, y.dtype) if out is None else out
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
    def slot(self) -> Slot:
        """Where it is now. Hold the device's lock while this place is used."""
        where = self.where.slot if isinstance(self.where, Result) else self.where
        return Slot(where.allocation, where.byte_offset + self.offset)

    def copied(self) -> Slot:
        """A copy in memory of its own."""
        with self.device._runtime.lock:
            allocation, source = self.device._allocate(self.nbytes), self.slot
            self.device._runtime.transfer.copy(
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
