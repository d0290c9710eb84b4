"""What a plan's steps record by one call, beside what they record one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph import listed
from kompute_dml.graph.recorded import RecordedPlan
from kompute_dml.runtime.hazards import Access, Hazards
from kompute_dml.runtime.heap import Slot
from kompute_dml.runtime.pipelines import Pipelines
from kompute_dml.runtime.recorder import Recorder
from kompute_dml.runtime.shader_library import Variant
from kompute_dml.runtime.zeros import Zeros


class _Recorded(NamedTuple):
    pipeline: object
    groups: int
    words: list[int]
    accesses: Sequence[Access]


class _Dispatches:
    """In the place of kp's operation, which keeps the words and groups that do not change."""

    def __init__(
        self, engine: object, pipelines: Sequence[tuple[Variant, bytes, object]],
        waits: np.ndarray, changes: np.ndarray, groups: np.ndarray, push: np.ndarray,
    ) -> None:
        self.pipelines, self.waits = pipelines, waits
        self.count = len(pipelines)
        self._changes, self._groups, self._push = changes, groups, push
        self._of_changes = np.repeat(changes, [variant.push_words for variant, *_ in pipelines])

    def all(self, groups: np.ndarray, push: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The groups and words of all, with these of the dispatches that change."""
        all_groups, all_push = self._groups.copy(), self._push.copy()
        all_groups[self._changes], all_push[self._of_changes] = groups, push
        return all_groups, all_push


class AtOnce:
    """Records nothing, on any build of kp, and compares."""

    def __init__(self, device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared = 0
        """Plans that were recorded by one call."""
        self._one_by_one: list[_Recorded] = []
        self._called: list[tuple[_Dispatches, np.ndarray, np.ndarray]] = []
        self._device = device
        zeros = Slot(device.allocate(4 << 20), 0)
        monkeypatch.setattr(device.runtime.engine, "records_many", True)
        monkeypatch.setattr(listed, "Dispatches", _Dispatches)
        monkeypatch.setattr(Zeros, "take", lambda *_: zeros)
        monkeypatch.setattr(
            Pipelines, "get", lambda _, variant, spec, blocks, groups: (variant, spec, blocks))
        monkeypatch.setattr(Recorder, "takes_many", lambda *_: True)
        monkeypatch.setattr(
            Recorder, "dispatch", lambda _, pipeline, groups, push, accesses, name, **__:
            self._one_by_one.append(_Recorded(pipeline, groups, push.tolist(), [*accesses])))
        monkeypatch.setattr(
            Recorder, "dispatch_all", lambda _, dispatches, groups, push, *__:
            self._called.append((dispatches, groups, push)))

    def compare(self, plan: RecordedPlan) -> None:
        """Both ways of recording dispatch the same, and the one call has the waits it needs."""
        if plan.record_at_once is None:
            return
        for large in plan._ends.large:
            large.bind(Slot(self._device.allocate(large.storage.nbytes), 0))
        self._one_by_one, self._called = [], []
        for compiled, places in plan._steps:
            compiled.run(places)
        assert plan.record_at_once()
        ((dispatches, *changing),) = self._called
        groups, push = dispatches.all(*changing)
        at, hazards = 0, Hazards()
        for i, each in enumerate(self._one_by_one):
            words = push[at : at + len(each.words)].tolist()
            assert (dispatches.pipelines[i], groups[i], words) == each[:3], i
            at += len(words)
            if dispatches.waits[i]:
                hazards.clear()
            assert not hazards.conflicts(each.accesses), i
            hazards.add(each.accesses)
        assert at == push.size and dispatches.waits[0]
        self.compared += 1
        for large in plan._ends.large:
            large.let_go()
