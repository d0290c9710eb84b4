"""A graph for one set of input sizes: recorded at its first run, then submitted again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..runtime.heap import Allocation
from ..runtime.recorder import Recording
from .array import Array
from .step import Step

if TYPE_CHECKING:
    from ..device import Device


class RecordedPlan:
    """Runs a graph for one set of input sizes."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step],
        inputs: Sequence[Array],
        together: Sequence[Array],
        outputs: Sequence[Array],
    ) -> None:
        """Those inputs that lie ``together``, and all outputs, share a storage's allocation.

        The others have an allocation of their own.
        """
        self._device = device
        self._steps = [
            (step.compiled, [None if s is None else s.slot() for s in step.storages])
            for step in steps
        ]
        self._outputs = outputs
        self._recording: Recording | None = None
        windows = device._runtime.windows
        index = {id(a): i for i, a in enumerate(inputs)}
        self._incoming, nbytes = _range(together)
        self._upload = self._incoming and windows.upload(self._incoming, nbytes)
        self._staged = self._upload.bytes if self._upload else np.zeros(nbytes, np.uint8)
        self._small = [(index[id(a)], _view(a, self._staged)) for a in together]
        self._large = [
            (i, a.storage.allocation) for i, a in enumerate(inputs)
            if a not in together and a.storage is not None and a.storage.allocation is not None
        ]
        self._outgoing, self._outgoing_bytes = _range(outputs)
        self._download = self._outgoing and windows.download(self._outgoing, self._outgoing_bytes)

    def run(self, inputs: Sequence[np.ndarray], *, anew: bool = False) -> list[np.ndarray]:
        """The graph's outputs for contiguous ``inputs`` of the sizes planned for.

        ``anew`` records every dispatch for this run alone, as taking their times needs it.
        """
        runtime = self._device._runtime
        with runtime.lock:
            runtime.recorder.check()
            runtime.collect()
            self._write(inputs)
            recording = self._recording
            if recording is None or anew:
                recording = self._record()
                self._recording = self._recording or recording
            else:
                runtime.recorder.replay(recording)
            if recording.batches:
                runtime.recorder.finish(recording.batches[-1])
            return self._read()

    def _write(self, inputs: Sequence[np.ndarray]) -> None:
        transfer = self._device._runtime.transfer
        if self._upload:
            self._upload.wait()
        for i, view in self._small:
            view[...] = inputs[i]
        if self._incoming and not self._upload:
            transfer.upload(self._staged, self._incoming, 0)
        for i, allocation in self._large:
            transfer.upload(inputs[i].reshape(-1).view(np.uint8), allocation, 0)

    def _record(self) -> Recording:
        recorder = self._device._runtime.recorder
        with recorder.record() as recording:
            if self._upload:
                self._upload.record_upload()
            for compiled, places in self._steps:
                compiled.run(places)
            if self._download:
                self._download.record_download()
        return recording

    def _read(self) -> list[np.ndarray]:
        if self._outgoing is None:
            return [_view(y, np.empty(0, np.uint8)) for y in self._outputs]
        if self._download:
            # Others' results come through the same memory.
            return [_view(y, self._download.bytes).copy() for y in self._outputs]
        transfer = self._device._runtime.transfer
        raw = transfer.download(self._outgoing, 0, self._outgoing_bytes)
        return [_view(y, raw) for y in self._outputs]


def _range(arrays: Sequence[Array]) -> tuple[Allocation | None, int]:
    """The allocation that the arrays share, and the bytes of it up to the last one's end."""
    storages = [a.storage for a in arrays if a.storage is not None]
    if not storages:
        return None, 0
    return storages[0].allocation, max(s.offset + s.nbytes for s in storages)


def _view(x: Array, raw: np.ndarray) -> np.ndarray:
    """``x`` in the bytes of its allocation."""
    begin = 0 if x.storage is None else x.storage.offset
    return raw[begin : begin + x.size * x.dtype.itemsize].view(x.dtype).reshape(x.shape)
