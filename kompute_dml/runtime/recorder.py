"""Pending dispatches: hazards, barriers, submits, and batches in flight.

There are two kinds of batch. The *open* batch takes ordinary calls. It is submitted when something
is read, when it is long enough, or on request. While a :class:`Recording` is active, its own batch
takes the dispatches. That batch is kept, so that it can be submitted again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from ..errors import DeviceLostError, DmlError, ValidationError
from .hazards import Access, Hazards
from .heap import Allocation, Block, Heap, Range
from .kp_engine import CommandList, Dispatches, Engine, HostBuffer, Pipeline

MAX_BATCH = 256
"""A batch is submitted after so many dispatches, so that the device starts early."""
MAX_KEPT_BATCH = 8192
"""The same for a recording, which should be one submit."""
MAX_IN_FLIGHT = 4
"""Submits in flight before recording waits for the oldest."""

# For a test which shows that the validation run can fail.
_NO_BARRIERS = "KOMPUTE_DML_TEST_NO_BARRIERS"


_Method = TypeVar("_Method", bound=Callable[..., Any])


def locked(method: _Method) -> _Method:
    """Make ``method`` of a Device or a Recording hold the device's lock. It takes no keywords.

    The call is on the line of the ``with``. On a line of its own, an exception that is raised
    between the call and the release would leave the lock held.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        with self.recorder.lock: return method(self, *args)  # noqa: E701

    return cast(_Method, call)


class Batch:
    """Dispatches that are submitted together."""

    __slots__ = (
        "__weakref__", "allocations", "blocks", "commands", "count", "done", "freed",
        "freed_bytes", "hazards", "kept", "limit", "names", "order", "ticket",
    )

    def __init__(self, commands: CommandList, kept: bool, limit: int) -> None:
        self.commands: Any = commands
        self.kept = kept
        self.limit = limit
        """It is submitted after so many dispatches."""
        self.hazards = Hazards()
        self.blocks: set[Block] = set()
        """The byte ranges that it touches."""
        self.count = 0
        self.done = False
        """Whether the device has finished it."""
        self.order = 0
        """The number of its last submit. 0 before the first."""
        self.ticket = 0
        """The number that the device writes at its end, if kp reports no errors."""
        self.freed: list[Range] = []
        """Ranges that were dropped before the batch was submitted. They are free once it is: later
        batches wait for it."""
        self.freed_bytes = 0
        self.allocations: set[Allocation] = set()
        """Memory that a kept batch uses. The references keep it allocated."""
        self.names: list[tuple[int, str]] = []
        """(operation, shader variant) of each dispatch, if each is timed."""


class Recording:
    """Dispatches that were recorded inside ``with device.record() as recording``.

    They were submitted once when the block ended. ``recording.replay()`` submits the same commands
    again, on the same memory. Uploads and reads inside the block are not repeated.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.batches: list[Batch] = []
        self.dispatches = 0
        """Dispatches recorded so far."""
        self.calls: list[tuple[Any, Any]] = []
        """(dispatchable, binding table) of each call of record_dispatch, to record them anew."""
        self.counted = 0
        """Dispatches that these recorded."""
        self._watched: list[tuple[Callable[[], Any], Any]] = []
        """What may change, and what it was when it was recorded."""

    def watch(self, look: Callable[[], object]) -> None:
        """Record anew if ``look()`` is another object when the recording is replayed."""
        self._watched.append((look, look()))

    @locked
    def replay(self) -> None:
        """Submit the recorded dispatches once more. They are recorded anew where one of them is
        DESCRIPTORS_VOLATILE and its table was bound to something else meanwhile."""
        now = [(look, look()) for look, _ in self._watched] if self._watched else []
        if not now or all(a is b for (_, a), (_, b) in zip(now, self._watched)):
            self.recorder.replay(self)
            return
        if self.counted != self.dispatches:
            raise ValidationError(
                "expected a recording with a DESCRIPTORS_VOLATILE dispatch, whose bindings "
                "changed, to hold nothing but record_dispatch, but got one with other calls")
        with self.recorder.record() as anew:
            for dispatchable, table in self.calls:
                dispatchable.record(table)
        self.batches, self._watched = anew.batches, now
        self.counted = self.dispatches = anew.dispatches

    def __len__(self) -> int:
        return self.dispatches


class Recorder:
    """Orders everything that runs on one device. Callers hold its lock, which is the device's."""

    def __init__(
        self,
        engine: Engine,
        make_ticket: Callable[[], tuple[Pipeline, HostBuffer]],
        heap: Heap,
        whole_blocks: bool = False,
    ) -> None:
        """``heap`` takes freed ranges back. With ``whole_blocks`` every access counts as one to
        the whole block, as for the validation layer."""
        self.engine = engine
        self.lock = threading.RLock()
        self.lost: DmlError | None = None
        self.submits = 0
        """Submits so far."""
        self.dispatches = 0
        """Dispatches recorded so far. What is replayed does not count."""
        self.replays = 0
        """Recordings submitted again so far."""
        self.replayed = 0
        """Dispatches of these."""
        self.waiting_to_free = 0
        """Freed bytes that batches which are not submitted yet use."""
        self._ticket = None if engine.reports_errors else make_ticket()
        self._heap = heap
        self._whole_blocks = whole_blocks
        self._open: Batch | None = None
        self.recording: Recording | None = None
        """The one that is active."""
        self._recorded: Batch | None = None
        self._in_flight: deque[Batch] = deque()
        self._most_in_flight = MAX_IN_FLIGHT if engine.submits_async else 1
        self._spare: list[CommandList] = []
        self._left: deque[CommandList] = deque()
        """Those of recordings that are gone."""
        self._timed: list[Batch] | None = None
        """Batches with timestamps; None if there are none to take."""
        self._timed_dispatches = 0
        """The dispatches of a batch that have timestamps of their own; 0 for none."""
        self._barriers = engine.records_barriers and not os.environ.get(_NO_BARRIERS)
        self._test_no_barriers = engine.records_barriers and not self._barriers
        self._waits = False

    # Recording

    def check(self) -> None:
        """Raise the error that ended this device, if there was one."""
        if self.lost is not None:
            # Without earlier tracebacks, which would keep tensors alive.
            raise self.lost.with_traceback(None)

    def order_next(self) -> None:
        """Let the next dispatch wait for all earlier ones of its batch."""
        self._waits = True

    def dispatch(
        self,
        pipeline: Pipeline,
        groups: int,
        push: np.ndarray,
        accesses: Sequence[Access],
        name: str,
        *,
        aside: bool = False,
    ) -> None:
        """Record one dispatch. ``aside`` keeps it out of an active recording (transfers)."""
        if self.lost is not None:
            self.check()
        self.dispatches += 1
        if self._whole_blocks:
            accesses = [(a, 0, a.block.size, writes) for a, _, _, writes in accesses]
        recorded = self._recorded if aside else None
        # The open batch is submitted before the recorded one, but this comes after it.
        if recorded and any(access[0] in recorded.allocations for access in accesses):
            self.flush()
        batch = self._recorded
        if batch is None or aside or self.recording is None:
            batch = self._batch(aside)
        conflict = batch.hazards.conflicts(accesses) or self._waits
        self._waits = False
        if self._barriers:
            self._order(batch, accesses, conflict)
        elif conflict and not self._test_no_barriers:
            self.flush()
            batch = self._batch(aside)
        # Ranges are noted before the dispatch is recorded, and stay noted until a barrier is
        # recorded. So an interrupt may cause too many barriers, never too few.
        batch.hazards.add(accesses)
        kept = batch.kept
        for allocation, _, _, _ in accesses:
            allocation.range.last_use = batch
            if kept:
                batch.allocations.add(allocation)
        batch.commands.dispatch(pipeline, groups, push)
        batch.count += 1
        if kept and self.recording is not None:
            self.recording.dispatches += 1
        if self._timed_dispatches:
            batch.names.append((batch.commands.operations, name))
        if batch.count >= batch.limit:
            self.flush()

    def takes_many(self, count: int) -> bool:
        """Whether :meth:`dispatch_all` records so many dispatches."""
        return (self._timed is None and self._barriers
                and self.engine.records_many and count < MAX_KEPT_BATCH)

    def dispatch_all(
        self, dispatches: Dispatches, groups: np.ndarray, push: np.ndarray,
        allocations: Collection[Allocation], whole: Collection[Allocation],
    ) -> None:
        """Record dispatches of ``allocations`` by one call, with what :meth:`.CommandList
        .dispatch_all` takes. ``whole`` are their blocks. The first dispatch waits for all before,
        and what follows for all of them."""
        self.check()
        batch = self._batch(aside=False)
        if batch.count and batch.count + dispatches.count > batch.limit:
            self.flush()
            batch = self._batch(aside=False)
        self.dispatches += dispatches.count
        batch.blocks.update([a.block for a in whole])
        batch.hazards.add([(a, 0, a.nbytes, True) for a in whole])
        for allocation in allocations:
            allocation.range.last_use = batch
        batch.commands.dispatch_all(dispatches, groups, push)
        batch.count += dispatches.count
        if self.recording is not None:
            batch.allocations.update(allocations)
            self.recording.dispatches += dispatches.count
        if batch.count >= batch.limit:
            self.flush()

    @property
    def counts_blocks(self) -> bool:
        """Whether every access counts as one to the whole block."""
        return self._whole_blocks

    def _batch(self, aside: bool) -> Batch:
        if self.recording is None:
            if self._recorded is not None:
                self.flush()  # left by an interrupted end of a recording
        elif not aside:
            if self._recorded is None:
                batch = self._new_batch(kept=True)
                self.recording.batches.append(batch)
                self._recorded = batch
            return self._recorded
        if self._open is None:
            self._open = self._new_batch(kept=False)
        return self._open

    def _new_batch(self, kept: bool) -> Batch:
        if self._timed is not None:
            # Each dispatch may have a barrier before it. The last timestamp is the end's.
            commands = self.engine.command_list(2 * self._timed_dispatches + 1)
            batch = Batch(commands, kept, self._timed_dispatches or MAX_KEPT_BATCH)
            self._timed.append(batch)
            return batch
        # A driver takes a while to make memory for commands, and to free it.
        while self._left:
            self._spare_of(self._left.popleft())
        commands = self._spare.pop() if self._spare else self.engine.command_list()
        batch = Batch(commands, kept, MAX_KEPT_BATCH if kept else MAX_BATCH)
        if kept and self.engine.rerecords:  # its end may come in any thread
            weakref.finalize(batch, self._left.append, commands).atexit = False
        return batch

    def _spare_of(self, commands: CommandList) -> None:
        """Keep a list that nobody uses any more, unless there are enough."""
        if len(self._spare) < MAX_IN_FLIGHT and commands.reset():
            self._spare.append(commands)

    def _order(self, batch: Batch, accesses: Sequence[Access], conflict: bool) -> None:
        """Record a barrier if the next dispatch must wait for earlier ones.

        ``conflict`` says so for dispatches of the batch. Submits on one queue start in order but
        overlap, so the first access to a block waits, too. The barrier names only blocks that the
        batch uses: these exist until it is done.
        """
        fresh = []
        for allocation, _, _, _ in accesses:
            if allocation.block not in batch.blocks:
                fresh.append(allocation.block)
        if conflict or fresh:
            blocks = batch.hazards.blocks() if conflict else set()
            if batch.kept or self._in_flight:
                blocks.update(fresh)
            if blocks:
                batch.commands.barrier([b.buffer for b in blocks])
            if conflict:
                batch.hazards.clear()
            batch.blocks.update(fresh)

    # Submitting

    def flush(self) -> None:
        """Submit what is pending."""
        for batch in (self._open, self._recorded):
            if batch is not None:
                self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        self.check()
        try:
            if not self.engine.reports_errors:
                self._record_ticket(batch)
            if self.engine.host_reads_storage and batch.blocks:
                batch.commands.show_host([b.buffer for b in batch.blocks])
        except DmlError as error:
            raise self._lose(error) from None
        self._launch(batch)

    def _launch(self, batch: Batch) -> None:
        while len(self._in_flight) >= self._most_in_flight or batch in self._in_flight:
            self._retire()
        if self._ticket is not None:
            # Clear it: a replay writes the same number as the first submit.
            self._ticket[1].words[0] = 0
        self.submits += 1
        try:
            if batch.commands.operations:  # empty if the only dispatch was interrupted
                batch.commands.submit()
            self._note_submit(batch)
        except DmlError as error:
            raise self._lose(error) from None
        except BaseException:  # an interrupt, before the submit or after it
            if self._was_submitted(batch):
                self._note_submit(batch)
            raise
        if not self.engine.submits_async:
            self._retire()

    def _was_submitted(self, batch: Batch) -> bool:
        running: bool = batch.commands.running
        return running if self.engine.reports_errors else self._ticket_arrived(batch)

    def _note_submit(self, batch: Batch) -> None:
        """Move the batch from pending to in flight. Calling it again changes nothing."""
        batch.done = False
        if batch not in self._in_flight:
            self._in_flight.append(batch)
        if batch is self._open:
            self._open = None
        elif batch is self._recorded:
            self._recorded = None
        batch.order = self.submits
        for allocation in batch.allocations:
            allocation.range.last_use = batch
        for dropped in batch.freed:
            self._heap.release(dropped)
        waiting = self.waiting_to_free - batch.freed_bytes
        self.waiting_to_free, batch.freed_bytes, batch.freed = waiting, 0, []

    def _retire(self) -> None:
        """Wait for the oldest submit and take its memory back.

        The batch leaves the queue last, so that an interrupted call can be repeated."""
        batch = self._in_flight[0]
        try:
            batch.commands.wait()
            if not self.engine.reports_errors:
                self._check_ticket(batch)
        except DmlError as error:
            raise self._lose(error) from None
        batch.done = True
        if self._heap.emptied_in_use:
            self._heap.shed()
        # Allocations refer to the batch, and the batch to allocations: break the cycle.
        for allocation in batch.allocations:
            if allocation.range.last_use is batch:
                allocation.range.last_use = None
        self._in_flight.popleft()
        if not batch.kept and (self._timed is None or batch not in self._timed):
            commands, batch.commands = batch.commands, None
            batch.hazards.clear()
            self._spare_of(commands)

    def wait(self) -> None:
        """Wait for all batches in flight."""
        self.check()
        while self._in_flight:
            self._retire()

    def finish(self, batch: Batch) -> None:
        """Submit ``batch`` if it is pending, and wait for it."""
        self.check()
        if batch is self._open or batch is self._recorded:
            self.flush()
        while not batch.done:
            self._retire()

    def read(self, readback: HostBuffer) -> Batch:
        """Make ``readback`` visible to the host and submit. Returns the batch, for finish()."""
        if self._recorded is not None:
            self.flush()
        batch = self._batch(aside=True)
        batch.commands.show_host([readback.buffer])
        self.flush()
        return batch

    def show_host(self, buffer: object) -> None:
        """Make the recorded writes to ``buffer`` visible to the host once they are done."""
        self._batch(aside=False).commands.show_host([buffer])

    def free(self, dropped: Range) -> None:
        """Release a range now, or once the batch that used it last is submitted."""
        batch: Batch | None = dropped.last_use
        if batch is None or (batch is not self._open and batch is not self._recorded):
            self._heap.release(dropped)
        else:
            waiting = self.waiting_to_free + dropped.nbytes
            batch.freed.append(dropped)
            # One statement, so that an interrupted call can be repeated.
            self.waiting_to_free, batch.freed_bytes = waiting, batch.freed_bytes + dropped.nbytes

    def synchronize(self) -> None:
        """Submit what is pending and wait for all of it."""
        self.check()
        self.flush()
        self.wait()

    def _lose(self, error: DmlError) -> DmlError:
        self.lost = error
        self._in_flight.clear()
        self._open = self._recorded = None
        return error

    # Tickets: stock kp does not report a lost device

    def _record_ticket(self, batch: Batch) -> None:
        assert self._ticket is not None
        pipeline, readback = self._ticket
        batch.ticket = self.submits % 0xFFFFFFFF + 1
        batch.commands.dispatch(pipeline, 1, np.array([batch.ticket], np.uint32))
        batch.commands.show_host([readback.buffer])

    def _ticket_arrived(self, batch: Batch) -> bool:
        assert self._ticket is not None
        return bool(self._ticket[1].words[0] == batch.ticket)

    def _check_ticket(self, batch: Batch) -> None:
        if not self._ticket_arrived(batch):
            raise DeviceLostError(
                f"{self.engine.adapter.name}: a submit was not carried out (its ticket did not "
                "come back): the device is lost"
            )

    # Recordings

    @contextlib.contextmanager
    def record(self) -> Iterator[Recording]:
        """Record the dispatches inside the block, and submit them at its end."""
        recording = Recording(self)
        try:
            self._begin(recording)
            yield recording
            self._end(recording)
        except BaseException:
            self._end(recording)
            raise

    def _begin(self, recording: Recording) -> None:
        self.check()
        if self.recording is not None:
            raise DmlError("a recording is active on this device already: recordings do not nest")
        self.flush()
        self.recording = recording

    def _end(self, recording: Recording) -> None:
        """End a recording. Does nothing if it has not begun or has ended."""
        if self.recording is not recording:
            return
        try:
            if self.lost is None:
                self.flush()
            self.recording = None
        except BaseException:
            self.recording = None
            raise

    def replay(self, recording: Recording) -> None:
        self.check()
        self.replays += 1
        self.replayed += recording.dispatches
        if self.recording is not None:
            raise DmlError("a recording cannot be replayed while another is active")
        for batch in recording.batches:
            for allocation in batch.allocations:
                if allocation.block is None:
                    raise ValidationError(
                        "expected a recording whose tensors are alive, but one was freed")
        self.flush()
        for batch in recording.batches:
            self._launch(batch)

    def release_outer(self, recording: Recording, allocations: Sequence[Allocation]) -> None:
        """Let a recording no longer keep these allocations. Who replays it has memory at their
        places, and calls :meth:`note_use`."""
        for batch in recording.batches:
            batch.allocations.difference_update(allocations)

    def note_use(self, recording: Recording, allocations: Sequence[Allocation]) -> None:
        """Note that the run of ``recording`` uses these allocations, which it does not keep."""
        for batch in recording.batches:
            for allocation in allocations:
                allocation.range.last_use = batch

    # Times

    def begin_times(self, dispatches: int) -> None:
        """Take timestamps from here on: around each of up to ``dispatches`` of a batch, or for 0
        around the whole batch."""
        self.synchronize()
        self._timed, self._timed_dispatches = [], dispatches

    def end_times(self) -> list[tuple[str, float]]:
        """(shader variant, nanoseconds) of each dispatch since begin_times(), or of each batch with
        an empty name."""
        try:
            self.synchronize()
            period = self.engine.adapter.timestamp_period
            times: list[tuple[str, float]] = []
            for batch in self._timed or ():
                ticks = batch.commands.timestamps() if batch.count else []
                spans = [(name, end - 1, end) for end, name in batch.names] or [("", 0, -1)]
                times += [
                    (name, (ticks[end] - ticks[begin]) * period)
                    for name, begin, end in spans if ticks
                ]
            return times
        finally:
            self._timed, self._timed_dispatches = None, 0
