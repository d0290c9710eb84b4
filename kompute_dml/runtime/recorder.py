"""Pending dispatches: hazards, barriers, submits, and what is in flight.

Two kinds of batch fill side by side. The *open* batch takes ordinary calls and is submitted when
something is read, when it is long enough, or on request. While a :class:`Recording` is active its
own batch takes the dispatches, and is kept so that it can be submitted again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from ..errors import DeviceLostError, DmlError, ValidationError
from .hazards import Access, Hazards
from .heap import Allocation, Block, Range
from .kp_engine import CommandList, Engine, HostBuffer, Pipeline

MAX_BATCH = 256
"""Dispatches after which a batch is submitted, so that the device starts early."""
MAX_KEPT_BATCH = 8192
"""The same for a recording, which may be replayed and should be one submit."""
MAX_IN_FLIGHT = 4
"""Submits in flight before recording waits for the oldest."""

# For a test which shows that the validation run can fail.
_NO_BARRIERS = "KOMPUTE_DML_TEST_NO_BARRIERS"


_Method = TypeVar("_Method", bound=Callable[..., Any])


def locked(method: _Method) -> _Method:
    """``method`` of a Device or a Recording, with the device's lock held.

    The call is on the line of the ``with``. A line of its own would end after the call and before
    the release, and an exception raised there would keep the lock held.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._recorder.lock: return method(self, *args, **kwargs)  # noqa: E701

    return cast(_Method, call)


class Batch:
    """Dispatches that are submitted together."""

    __slots__ = (
        "allocations", "blocks", "commands", "count", "done", "freed", "freed_bytes", "hazards",
        "kept", "limit", "names", "ticket",
    )

    def __init__(self, commands: CommandList, kept: bool, limit: int) -> None:
        self.commands: Any = commands
        self.kept = kept
        self.limit = limit
        """Dispatches after which it is submitted."""
        self.hazards = Hazards()
        self.blocks: set[Block] = set()
        """The byte ranges that it touches."""
        self.count = 0
        self.done = False
        """Whether the device has finished it."""
        self.ticket = 0
        """The number that the device writes last, where kp reports no errors."""
        self.freed: list[Range] = []
        """Ranges dropped while the batch was using them: free once it is done."""
        self.freed_bytes = 0
        self.allocations: set[Allocation] = set()
        """Memory that a kept batch touches. It is held, so that nothing else gets it."""
        self.names: list[tuple[int, str]] = []
        """(operation, shader variant) of each dispatch, where the time of each was asked for."""


class Recording:
    """Dispatches that were recorded inside ``with device.record() as recording``.

    They were submitted once when the block ended. ``recording.replay()`` submits the same commands
    again, on the same memory, without recording them anew; uploads and reads inside the block are
    not repeated.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.batches: list[Batch] = []
        self._calls: list[Callable[[], None]] = []
        self._counted = 0
        """Dispatches that these recorded."""
        self._watched: list[tuple[Callable[[], Any], Any]] = []
        """What may change, and what it was when it was recorded."""

    def remember(
        self, call: Callable[[], None], dispatches: int, watched: Callable[[], Any] | None
    ) -> None:
        """``call`` recorded the last so many ``dispatches``, for what ``watched`` returns."""
        self._calls.append(call)
        self._counted += dispatches
        if watched is not None:
            self._watched.append((watched, watched()))

    @locked
    def replay(self) -> None:
        """Submit the recorded dispatches once more. They are recorded anew where one of them is
        DESCRIPTORS_VOLATILE and its table was bound to something else meanwhile."""
        now = [(look, look()) for look, _ in self._watched]
        if all(a is b for (_, a), (_, b) in zip(now, self._watched)):
            self._recorder.replay(self)
            return
        if self._counted != len(self):
            raise ValidationError(
                "expected a recording with a DESCRIPTORS_VOLATILE dispatch, whose bindings "
                "changed, to hold nothing but record_dispatch, but got one with other calls")
        with self._recorder.record() as anew:
            for call in self._calls:
                call()
        self.batches, self._watched = anew.batches, now

    def __len__(self) -> int:
        """Dispatches recorded."""
        return sum(b.count for b in self.batches)


class Recorder:
    """Orders everything that runs on one device. Callers hold its lock, which is the device's."""

    def __init__(
        self,
        engine: Engine,
        make_ticket: Callable[[], tuple[Pipeline, HostBuffer]],
        release: Callable[[Range], None],
        whole_blocks: bool = False,
    ) -> None:
        """``release`` takes freed ranges back; ``whole_blocks`` counts every access as one to the
        whole block, which is what the validation layer sees."""
        self.engine = engine
        self.lock = threading.RLock()
        self.lost: DmlError | None = None
        self.submits = 0
        """Submits so far."""
        self.waiting_to_free = 0
        """Bytes freed that come back when the batch that uses them is done."""
        self._ticket = None if engine.reports_errors else make_ticket()
        self._release = release
        self._whole_blocks = whole_blocks
        self._open: Batch | None = None
        self._recording: Recording | None = None
        self._recorded: Batch | None = None
        self._in_flight: deque[Batch] = deque()
        self._most_in_flight = MAX_IN_FLIGHT if engine.submits_async else 1
        self._spare: list[CommandList] = []
        self._timed: list[Batch] | None = None
        """Batches that take timestamps, while they are asked for."""
        self._timed_dispatches = 0
        """How many of such a batch have timestamps of their own; 0 for none."""
        self._barriers = engine.records_barriers and not os.environ.get(_NO_BARRIERS)
        self._test_no_barriers = engine.records_barriers and not self._barriers

    # Recording

    @property
    def recording(self) -> Recording | None:
        """The one that is active."""
        return self._recording

    def check(self) -> None:
        """Raise what ended this device, if anything did."""
        if self.lost is not None:
            # Without the frames of earlier raises, which would keep their tensors alive.
            raise self.lost.with_traceback(None)

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
        if self._whole_blocks:
            accesses = [(a, 0, a.block.size, writes) for a, _, _, writes in accesses]
        recorded = self._recorded if aside else None
        # The open batch is submitted before the recorded one, but this comes after it.
        if recorded and any(access[0] in recorded.allocations for access in accesses):
            self.flush()
        batch = self._batch(aside)
        conflict = batch.hazards.conflicts(accesses)
        if self._barriers:
            self._order(batch, accesses, conflict)
        elif conflict and not self._test_no_barriers:
            self.flush()
            batch = self._batch(aside)
        # A dispatch's ranges are noted before it is recorded. Ranges that wait for a barrier stay
        # noted until the barrier is recorded. So an interrupt may cause too many barriers, never
        # too few.
        batch.hazards.add(accesses)
        for allocation, _, _, _ in accesses:
            allocation.range.last_use = batch
            if batch.kept:
                batch.allocations.add(allocation)
        batch.commands.dispatch(pipeline, groups, push)
        batch.count += 1
        if self._timed_dispatches:
            batch.names.append((batch.commands.operations, name))
        if batch.count >= batch.limit:
            self.flush()

    def _batch(self, aside: bool) -> Batch:
        if self._recording is None:
            if self._recorded is not None:
                self.flush()  # left by the end of a recording whose wait was interrupted
        elif not aside:
            if self._recorded is None:
                batch = self._new_batch(kept=True)
                self._recording.batches.append(batch)
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
        if kept:
            return Batch(self.engine.command_list(), kept, MAX_KEPT_BATCH)
        commands = self._spare.pop() if self._spare else self.engine.command_list()
        return Batch(commands, kept, MAX_BATCH)

    def _order(self, batch: Batch, accesses: Sequence[Access], conflict: bool) -> None:
        """Put one barrier where the dispatch to come must wait for earlier ones.

        For those of the batch there are the hazards. Submits on one queue start in order but
        overlap, so the first touch of a block waits as well. Only blocks that the batch touches
        are named: they cannot go away before it is done.
        """
        touched = {allocation.block for allocation, _, _, _ in accesses}
        blocks = touched - batch.blocks if batch.kept or self._in_flight else set()
        if conflict:
            blocks |= batch.hazards.blocks()
        if blocks:
            batch.commands.barrier([b.buffer for b in blocks])
        if conflict:
            batch.hazards.clear()
        batch.blocks |= touched

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
        self._clear_ticket()
        self.submits += 1
        try:
            if batch.commands.operations:  # none where the only dispatch was interrupted
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
        """The batch is no longer pending but in flight; to be told again changes nothing."""
        batch.done = False
        if batch not in self._in_flight:
            self._in_flight.append(batch)
        if batch is self._open:
            self._open = None
        elif batch is self._recorded:
            self._recorded = None
        for allocation in batch.allocations:
            allocation.range.last_use = batch

    def _retire(self) -> None:
        """Wait for the oldest submit and take its memory back.

        What is interrupted is done again: the batch leaves the queue last."""
        batch = self._in_flight[0]
        try:
            batch.commands.wait()
            if not self.engine.reports_errors:
                self._check_ticket(batch)
        except DmlError as error:
            raise self._lose(error) from None
        batch.done = True
        for dropped in batch.freed:
            self._release(dropped)
        waiting = self.waiting_to_free - batch.freed_bytes
        self.waiting_to_free, batch.freed_bytes, batch.freed = waiting, 0, []
        # Marks point at the batch, and the batch at allocations. The cycle is broken here.
        for allocation in batch.allocations:
            if allocation.range.last_use is batch:
                allocation.range.last_use = None
        self._in_flight.popleft()
        if not batch.kept and (self._timed is None or batch not in self._timed):
            commands, batch.commands = batch.commands, None
            batch.hazards.clear()
            if len(self._spare) < MAX_IN_FLIGHT and commands.reset():
                self._spare.append(commands)

    def wait(self) -> None:
        """Wait for all that is in flight."""
        self.check()
        while self._in_flight:
            self._retire()

    def finish(self, batch: Batch) -> None:
        """See that ``batch`` is submitted and done."""
        self.check()
        if batch is self._open or batch is self._recorded:
            self.flush()
        while not batch.done:
            self._retire()

    def read(self, readback: HostBuffer) -> Batch:
        """Submit what is pending, and with it the wish to read ``readback``; finish() it later."""
        if self._recorded is not None:
            self.flush()
        batch = self._batch(aside=True)
        batch.commands.show_host([readback.buffer])
        self.flush()
        return batch

    def show_host(self, buffer: Any) -> None:
        """Let the host see what is recorded so far to write to ``buffer``, once it is done."""
        self._batch(aside=False).commands.show_host([buffer])

    def free(self, dropped: Range) -> None:
        """Release a range now, or once the batch that touched it last is done."""
        batch: Batch | None = dropped.last_use
        if batch is None or batch.done:
            self._release(dropped)
        else:
            waiting = self.waiting_to_free + dropped.nbytes
            batch.freed.append(dropped)
            # One step, so that both counts agree even if an interrupted call is done again.
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

    # Tickets: with stock kp a lost device goes unreported

    def _record_ticket(self, batch: Batch) -> None:
        assert self._ticket is not None
        pipeline, readback = self._ticket
        batch.ticket = self.submits % 0xFFFFFFFF + 1
        batch.commands.dispatch(pipeline, 1, np.array([batch.ticket], np.uint32))
        batch.commands.show_host([readback.buffer])

    def _clear_ticket(self) -> None:
        """A replay's ticket has the number of the first submit. It must not count as a new one."""
        if self._ticket is not None:
            self._ticket[1].words[0] = 0

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
        """Record what is dispatched inside, and submit it at the end."""
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
        if self._recording is not None:
            raise DmlError("a recording is active on this device already: recordings do not nest")
        self.flush()
        self._recording = recording

    def _end(self, recording: Recording) -> None:
        """Nothing, where it did not begin or has ended."""
        if self._recording is not recording:
            return
        try:
            if self.lost is None:
                self.flush()
            self._recording = None
        except BaseException:
            self._recording = None
            raise

    def replay(self, recording: Recording) -> None:
        self.check()
        if self._recording is not None:
            raise DmlError("a recording cannot be replayed while another is active")
        if any(a.freed for batch in recording.batches for a in batch.allocations):
            raise ValidationError("expected a recording whose tensors are alive, but one was freed")
        self.flush()
        for batch in recording.batches:
            self._launch(batch)

    # Times

    def begin_times(self, dispatches: int) -> None:
        """From here on every batch takes timestamps: around each of at most ``dispatches``, or
        for 0 only around them all."""
        self.synchronize()
        self._timed, self._timed_dispatches = [], dispatches

    def end_times(self) -> list[tuple[str, float]]:
        """(shader variant, nanoseconds on the device) of each dispatch since begin_times(); or of
        each batch, without a name."""
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
