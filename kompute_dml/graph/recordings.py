"""Recordings of one list of operators, by where the tensors of others lie."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..runtime.heap import Allocation, Block, Place
from ..runtime.recorder import Recorder, Recording


class Places(tuple[tuple[Block, int], ...]):
    """Where tensors lie: blocks of memory, and the bytes before a tensor in each. It is hashed
    once."""

    _hashed: int

    def __hash__(self) -> int:
        try:
            return self._hashed
        except AttributeError:
            self._hashed = super().__hash__()
            return self._hashed


MAX_RECORDINGS = 32
"""The most recordings. The least recently used one is dropped."""


def places_of(slots: Sequence[Place]) -> Places:
    """Where tensors lie, for as long as they live. Another tensor may come to lie there later."""
    return Places([(a.block, a.offset + begin) for a, begin in slots])


@dataclass(eq=False)
class _Recorded:
    recording: Recording
    lying: list[weakref.ref[Allocation]] = field(default_factory=list)
    """What lay at the places in the last run, for runs that name the places only."""


class Recordings:
    """Recordings by places. They do not keep the memory there: who runs one has tensors there."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: OrderedDict[Places, _Recorded | None] = OrderedDict()
        """None for the first places."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, places: Places) -> bool:
        return self._known.get(places) is not None

    @property
    def last(self) -> Recording | None:
        """The one that was run last."""
        newest = next(reversed(self._known.values()), None)
        return None if newest is None else newest.recording

    def run(self, slots: Sequence[Place], record: Callable[[], None]) -> None:
        """Start a run over the tensors at ``slots``, which ``record`` records.

        The first run is not kept: it may be the only one. Each later one is recorded, and submitted
        again where its places come again. Inside of another recording the run is a part of that.
        """
        if self._recorder.recording is not None:
            record()
            return
        key = places_of(slots)
        known = self._known.get(key)
        if known is not None:
            self._submit(key, known)
            self._recorder.note_use(known.recording, [a for a, _ in slots])
            return
        # What a recording frees comes back after few submits, so the same places come again. What
        # pending dispatches free does not.
        if self._known:
            known = self._record(slots, record)
        else:
            record()
        self._keep(key, known)

    def run_at_once(self, slots: Sequence[Place], record: Callable[[], None], *,
                    anew: bool = False) -> None:
        """:meth:`run`, but the first run is recorded, too. ``anew`` records what is
        known once more. The places can be named to :meth:`replay` afterwards."""
        key = places_of(slots)
        known = self._known.get(key)
        if known is not None and not anew:
            self._submit(key, known)
            self._recorder.note_use(known.recording, [a for a, _ in slots])
        else:
            recorded = self._record(slots, record)
            known = known or recorded
            self._keep(key, known)
        known.lying = [weakref.ref(a) for a, _ in slots]

    def replay(self, places: Places) -> None:
        """Submit the recording for these places, over the tensors of its last run, which live."""
        known = self._known[places]
        assert known is not None
        self._submit(places, known)
        # After the submit: the device has work meanwhile.
        self._recorder.note_use(
            known.recording, [a for r in known.lying if (a := r()) is not None])

    def _record(self, slots: Sequence[Place], record: Callable[[], None]) -> _Recorded:
        with self._recorder.record() as recording:
            record()
        self._recorder.release_outer(recording, [a for a, _ in slots])
        return _Recorded(recording)

    def _submit(self, places: Places, known: _Recorded) -> None:
        self._recorder.replay(known.recording)
        self._known.move_to_end(places)

    def _keep(self, places: Places, known: _Recorded | None) -> None:
        self._known[places] = known
        self._known.move_to_end(places)
        if len(self._known) > MAX_RECORDINGS:
            self._known.popitem(last=False)
