"""Uploads that a thread makes while the caller goes on: weights, while a model is planned."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from .heap import ALIGNMENT, Allocation
from .transfer import Transfer, UploadPart

LEAST = 16 << 20
"""Fewer bytes are copied before a thread has begun."""
_KEEPS_INTERPRETER = 256 << 10
"""The most bytes of a copy beside which no other thread runs Python. It takes less time than to get
the interpreter back."""
_TURN_SECONDS = 0.5e-3
"""After so many seconds the thread that plans lets the other one begin the next copy."""


class Uploads:
    """Copies arrays to allocations from :meth:`begin` to :meth:`finish`. Arrays must not change
    meanwhile, nothing that was recorded before may use the allocations, and the device's lock must
    not be held."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._reached = transfer.reaches_storage
        self._waiting: list[tuple[np.ndarray, Allocation]] = []
        self._thread: threading.Thread | None = None
        self._turns = contextlib.ExitStack()
        self._error: BaseException | None = None
        self._alone = False
        """Whether the caller waits for the end, so that other threads may copy, too."""

    def add(self, data: np.ndarray, to: Allocation) -> None:
        """Let ``data`` (uint8, contiguous) be copied to ``to``."""
        self._waiting.append((data, to))

    def begin(self) -> None:
        """Start to copy what was added. Little is copied at once."""
        waiting, self._waiting = self._waiting, []
        if self._thread is not None or self._reached or (
                sum(data.nbytes for data, _ in waiting) < LEAST):
            self._copy(waiting)
            return
        self._alone = False
        thread = threading.Thread(
            target=self._copy_apart, args=(waiting,), name="kompute_dml-upload", daemon=True)
        self._turns.enter_context(_short_turns())
        try:
            thread.start()
        except RuntimeError:  # no thread can start while the interpreter ends
            self._copy(waiting)
        else:
            self._thread = thread

    def finish(self) -> None:
        """Wait until all copies are recorded. Raises what the thread has raised."""
        try:
            self._alone = True
            waiting, self._waiting = self._waiting, []
            self._copy(waiting)
        finally:
            self._join()
            self._turns.close()
        if (error := self._error) is not None:
            self._error = None
            raise error

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        interrupt: BaseException | None = None
        while thread is not None and thread.is_alive():
            try:
                thread.join()
            except BaseException as error:  # first the end: it reads the caller's memory
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _copy(self, waiting: Sequence[tuple[np.ndarray, Allocation]]) -> None:
        with self._transfer.lock:
            for data, to in waiting:
                self._transfer.upload(data, to, 0)

    def _copy_apart(self, waiting: Sequence[tuple[np.ndarray, Allocation]]) -> None:
        try:
            transfer = self._transfer
            with transfer.slots_apart() as slots:
                for turn, parts in enumerate(_filled(waiting, slots[0].allocation.nbytes)):
                    slot = slots[turn % len(slots)]
                    transfer.wait_for(slot)
                    for part in parts:
                        self._fill(slot.host.bytes[part.at :], part.data)
                    transfer.send(slot, parts)
        except BaseException as error:
            self._error = error

    def _fill(self, room: np.ndarray, data: np.ndarray) -> None:
        n = data.nbytes
        room[n : (n + 3) // 4 * 4] = 0
        if self._alone:
            self._transfer.move(room[:n], data)
        elif n <= _KEEPS_INTERPRETER:
            room.data[:n] = data.data
        else:
            room[:n] = data


def _filled(
    waiting: Sequence[tuple[np.ndarray, Allocation]], room: int
) -> Iterator[list[UploadPart]]:
    """The parts that one slot after the other holds."""
    parts: list[UploadPart] = []
    at = 0
    for data, to in waiting:
        done = 0
        while done < data.nbytes:
            if at >= room:
                yield parts
                parts, at = [], 0
            n = min(data.nbytes - done, room - at)
            parts.append(UploadPart(data[done : done + n], at, to, done))
            done += n
            at += -(-n // ALIGNMENT) * ALIGNMENT
    if parts:
        yield parts


_lock = threading.Lock()
_short = 0
_usual = 0.0


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Let a thread that waits for the interpreter get it soon."""
    global _short, _usual
    with _lock:
        if not _short:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, _TURN_SECONDS))
        _short += 1
    try:
        yield
    finally:
        with _lock:
            _short -= 1
            if not _short:
                sys.setswitchinterval(_usual)
