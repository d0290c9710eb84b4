"""Upload and download through a few host buffers that all tensors share.

A copy shader moves words between a host buffer and the heap, so the recorder orders transfers like
any dispatch. If the host can access the heap itself, it copies.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from . import lent
from .heap import ALIGNMENT, Allocation, Block
from .kp_engine import HostBuffer
from .pipelines import Pipelines
from .recorder import Batch, Recorder

_SMALL = 64 << 10
_LARGE = 8 << 20
# Bytes of a part of a download. Each part waits for a submit: about 300 us on a virtual machine.
_LARGE_DOWNLOAD = 16 << 20
_SLOTS = 2
_PATIENCE = 4
"""How often the host waits for a slot before there is another one, which takes 5 ms to make: the
bus moves a hundred megabytes meanwhile."""
_THREADS = min(4, os.cpu_count() or 1)
"""Threads that copy on the host, with the caller's. One alone is slower than the bus."""
_WORTH_THREADS = 4 << 20
"""The least bytes of a copy that several threads share: they take 0.1 ms to begin, and more beside
ONNX Runtime's."""


class HostSlot:
    """A host buffer, and the batch that used it last."""

    def __init__(self, host: HostBuffer) -> None:
        self.host = host
        block = Block(host.buffer, host.bytes.nbytes)
        self.allocation = Allocation(block, 0, block.size)
        self.filled = 0

    @property
    def idle(self) -> bool:
        """Whether the device is done with it."""
        batch = self.allocation.last_use
        return batch is None or batch.done


class UploadPart(NamedTuple):
    """Bytes of an upload, and where they lie in a slot."""

    data: np.ndarray
    at: int
    to: Allocation
    offset: int
    """Bytes before them in ``to``."""


class Transfer:
    """Copies bytes to and from allocations. Callers hold the device's lock."""

    def __init__(self, recorder: Recorder, pipelines: Pipelines) -> None:
        self._recorder = recorder
        self._engine = recorder.engine
        self._pipelines = pipelines
        self._variant = pipelines.library.get("activation_identity", "b32")
        self._spec = self._variant.pack_spec({"LOCAL_SIZE": 256, "WHOLE": 1}).tobytes()
        self._push = self._variant.pack_push(
            {"count": 1, "in_strides": 1, "out_strides": 1})
        fields = self._variant.push_fields
        self._words = [fields[name][0] for name in ("in_offset", "out_offset", "sizes")]
        self._uploads: list[HostSlot] = []
        self._waits = 0
        """For a slot to upload."""
        self._downloads: dict[int, list[HostSlot]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.moves = 0
        """Uploads and downloads so far."""

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy bytes on the host. The caller copies its part, and those that no thread has begun
        by then."""
        nbytes = source.nbytes
        if nbytes < _WORTH_THREADS or _THREADS == 1:
            target[:] = source
            return
        self._pool = self._pool or ThreadPoolExecutor(_THREADS - 1, "kompute_dml-copy")
        each = -(-nbytes // _THREADS // ALIGNMENT) * ALIGNMENT
        own, *others = (slice(begin, min(begin + each, nbytes)) for begin in range(0, nbytes, each))
        copies: list[Future[None]] = []
        try:
            try:
                for part in others:
                    copies.append(self._pool.submit(np.copyto, target[part], source[part]))
            except RuntimeError:  # no thread can start while the interpreter ends
                target[others[len(copies)].start:] = source[others[len(copies)].start:]
            target[own] = source[own]
            for copy, part in zip(reversed(copies), reversed(others[:len(copies)])):
                if copy.cancel():
                    target[part] = source[part]
                else:
                    copy.result()
        finally:
            wait([copy for copy in copies if not copy.cancelled()])  # also after an interrupt

    @property
    def lock(self) -> threading.RLock:
        """The device's."""
        return self._recorder.lock

    @property
    def reaches_storage(self) -> bool:
        """Whether the host writes to the device's memory itself."""
        return self._engine.host_writes_storage

    @contextlib.contextmanager
    def slots_apart(self) -> Iterator[list[HostSlot]]:
        """Slots that no other upload uses meanwhile, for a thread that does not hold the lock."""
        with self.lock:
            slots, self._uploads = self._uploads[:_SLOTS], self._uploads[_SLOTS:]
            slots += [HostSlot(self._engine.upload_buffer(_LARGE))
                      for _ in range(_SLOTS - len(slots))]
        try:
            yield slots
        finally:
            with self.lock:
                for slot in slots:
                    slot.filled = slot.allocation.nbytes  # until the device is done with it
                self._uploads[:0] = slots

    def wait_for(self, slot: HostSlot) -> None:
        """Wait until the device is done with a slot."""
        with self.lock:
            if slot.allocation.last_use is not None:
                self._recorder.finish(slot.allocation.last_use)

    def send(self, slot: HostSlot, parts: Sequence[UploadPart]) -> None:
        """Submit the copies of a slot's parts."""
        with self.lock:
            for part in parts:
                self.moves += not part.offset
                self._copy(slot.allocation, part.at // 4, part.to,
                           (part.to.offset + part.offset) // 4, (part.data.nbytes + 3) // 4)
            self._recorder.flush()

    def upload(self, data: np.ndarray, to: Allocation, offset: int) -> None:
        """Record a copy of ``data`` (uint8, contiguous) to ``to`` at a multiple of 4 bytes.

        The bytes after it, up to a multiple of 4, become zero. ``data`` may change afterwards.
        """
        self.moves += 1
        if self._engine.host_writes_storage:
            begin = to.offset + offset
            end = begin + data.nbytes
            host = self._idle(to)
            if end % 4:
                host.words[end // 4] = 0
            host.bytes[begin:end] = data
            return
        done, total = 0, data.nbytes
        while done < total:
            slot = self._upload_slot(min(total - done, _LARGE))
            begin = slot.filled
            n = min(total - done, slot.allocation.nbytes - begin)
            words = (n + 3) // 4
            if n % 4:
                slot.host.words[begin // 4 + words - 1] = 0
            self.move(slot.host.bytes[begin : begin + n], data[done : done + n])
            # Before the copy, because an interrupted call may have recorded it.
            slot.filled = (begin + n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            self._copy(slot.allocation, begin // 4, to, (to.offset + offset + done) // 4, words)
            done += n
            if done < total and self._recorder.recording is None:
                self._recorder.flush()  # the bus takes this part while the host copies the next

    def download(
        self, source: Allocation, offset: int, nbytes: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Wait for the bytes of ``source`` from ``offset`` (a multiple of 4) on, and copy them to
        ``out`` or a new array."""
        self.moves += 1
        result = lent.empty(nbytes) if out is None else out
        if self._engine.host_reads_storage:
            begin = source.offset + offset
            result[:] = self._idle(source).bytes[begin : begin + nbytes]
            return result
        size = _SMALL if nbytes <= _SMALL else _LARGE_DOWNLOAD
        under_way: list[tuple[Batch, HostSlot, int, int]] = []
        for turn, begin in enumerate(range(0, nbytes, size)):
            if len(under_way) == 2:
                self._collect(result, *under_way.pop(0))
            n = min(size, nbytes - begin)
            slot = self._download_slot(size, turn % 2)
            words = (n + 3) // 4
            self._copy(source, (source.offset + offset + begin) // 4, slot.allocation, 0, words)
            under_way.append((self._recorder.read(slot.host), slot, begin, n))
        for pending in under_way:
            self._collect(result, *pending)
        return result

    def _idle(self, allocation: Allocation) -> HostBuffer:
        """Wait until the device is done with an allocation. Returns its block, for the host's
        access."""
        batch = allocation.range.last_use
        if batch is not None and not batch.done:
            self._recorder.finish(batch)
        return HostBuffer(allocation.block.buffer)

    def _collect(
        self, result: np.ndarray, batch: Batch, slot: HostSlot, begin: int, nbytes: int
    ) -> None:
        self._recorder.finish(batch)
        self.move(result[begin : begin + nbytes], slot.host.bytes[:nbytes])

    def _upload_slot(self, wanted: int) -> HostSlot:
        """A slot with room: the current one, a new one, or the least recently used one."""
        if self._uploads:
            slot = self._uploads[-1]
            if slot.idle:
                slot.filled = 0  # the last bytes written are still in the processor's cache
            if slot.allocation.nbytes - slot.filled >= min(wanted, _SMALL):
                return slot
        if not self._uploads or (
                len(self._uploads) < _SLOTS and self._waits >= _PATIENCE):
            slot = HostSlot(self._engine.upload_buffer(_LARGE))
        else:
            self._waits += 1
            slot = self._uploads[0]
            if slot.allocation.last_use is not None:
                self._recorder.finish(slot.allocation.last_use)
            del self._uploads[0]
            slot.filled = 0
        self._uploads.append(slot)
        return slot

    def _download_slot(self, size: int, turn: int) -> HostSlot:
        slots = self._downloads.setdefault(size, [])
        if turn == len(slots):
            slots.append(HostSlot(self._engine.readback_buffer(size)))
        return slots[turn]

    def copy(
        self, source: Allocation, offset: int, to: Allocation, to_offset: int, nbytes: int
    ) -> None:
        """Record a copy on the device, of whole words at multiples of 4 bytes."""
        self._copy(source, (source.offset + offset) // 4, to, (to.offset + to_offset) // 4,
                   (nbytes + 3) // 4, aside=False)

    def _copy(
        self, source: Allocation, first: int, to: Allocation, at: int, words: int,
        aside: bool = True,
    ) -> None:
        """Copy words; ``first`` and ``at`` count from the start of the blocks."""
        for word, value in zip(self._words, (first, at, words)):
            self._push[word] = value
        groups = -(-(words // 4 + 2) // 256)
        buffers = (source.block, to.block)
        pipeline = self._pipelines.get(self._variant, self._spec, buffers, groups)
        accesses = (
            (source, 4 * first, 4 * (first + words), False),
            (to, 4 * at, 4 * (at + words), True),
        )
        self._recorder.dispatch(pipeline, groups, self._push, accesses, "transfer", aside=aside)
