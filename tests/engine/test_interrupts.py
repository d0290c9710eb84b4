"""An exception at any line of the runtime leaves the device usable, and nothing held.

Ctrl-C and a lack of memory may raise anywhere. These tests raise at each line of device.py and
runtime/ that a small scenario runs, one line at a time.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import heap as heap_module
from switches import shared_blocks

_PACKAGE = Path(dml.__file__).parent
_TRACED = {str(p) for p in [_PACKAGE / "device.py", *(_PACKAGE / "runtime").glob("*.py")]}
_SAMPLED = 250
"""The number of lines of a scenario at which the quick tests raise."""


@dataclasses.dataclass
class Strike:
    """Raises at the ``at``-th line, counted from the start."""

    at: int
    lines: int = 0
    where: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in _TRACED:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise (KeyboardInterrupt if self.at % 2 else MemoryError)(self.where)
        return self


def struck(at: int, work: Callable[[], None]) -> Strike:
    """``work`` with an exception at the ``at``-th line, or at none for 0."""
    strike = Strike(at)
    before = sys.gettrace()
    sys.settrace(strike)
    try:
        work()
    except (KeyboardInterrupt, MemoryError) as error:
        if strike.where not in str(error):
            raise
    finally:
        sys.settrace(before)
    return strike


class Scene:
    """A device with a counter, which every step of the scenario increments."""

    def __init__(self, adapter: Any) -> None:
        self.device = dml.Device(adapter)
        self.device.runtime.heap.keep = 0  # empty blocks go at once
        self.one = self.device.tensor(np.ones(64, np.float32))
        self.count = self.device.tensor(np.zeros(64, np.float32))
        with self.device.record() as self.recording:
            dml.add(self.count, self.one, out=self.count)
        desc = dml.TensorDesc("float32", [64])
        self.operator = self.device.compile_operator(self.device.create_operator(
            dml.ElementWiseAddOperatorDesc(a_tensor=desc, b_tensor=desc, output_tensor=desc)))
        self.expected = 1
        self.scenario()
        self.device.synchronize()
        self.state = self.held()

    def held(self) -> tuple[int, ...]:
        """The memory and batches that the device holds."""
        device, recorder = self.device, self.device.runtime.recorder
        return (device.memory_used, device.memory_reserved, recorder.waiting_to_free,
                device.runtime.engine.reserved, len(device.runtime.heap.live))

    def step(self) -> None:
        dml.add(self.count, self.one, out=self.count)
        self.expected += 1

    def replay(self) -> None:
        self.recording.replay()
        self.expected += 1

    def scenario(self) -> None:
        device = self.device
        self.step()
        dropped = dml.add(self.count, self.one)  # freed while it is in use
        del dropped
        twice = dml.add(dml.add(self.one, self.one), self.one)
        self.replay()
        assert (twice.numpy() == 3).all()
        with device.record() as recording:
            again = dml.add(self.one, self.one)
            dml.add(again, self.one, out=again)
            self.step()
        recording.replay()
        self.expected += 1
        again.free()
        del recording
        buffer = device.create_buffer(256)
        buffer.write(np.ones(64, np.float32))
        table = device.create_binding_table(self.operator)
        counter = dml.BufferBinding(buffer)
        table.bind_inputs([counter, counter])
        table.bind_outputs([counter])
        device.record_dispatch(self.operator, table)
        assert (buffer.read().view(np.float32) == 2).all()
        buffer.free()
        large = device.empty([heap_module._FIRST_BLOCK])  # a block of its own
        large.free()
        for _ in range(3):
            self.step()
            device.runtime.recorder.flush()
        device.synchronize()

    def check(self) -> None:
        """Check that the device computes, that each step ran, and that nothing is held."""
        lock, free = self.device.runtime.lock, []

        def take() -> None:
            free.append(lock.acquire(blocking=False))
            if free[0]:
                lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        assert free[0], "the lock is held"
        self.replay()
        found = set(self.count.numpy())
        # The interrupted call may have run or not.
        assert found in ({self.expected}, {self.expected + 1}), (found, self.expected)
        self.expected = int(found.pop())
        self.scenario()
        self.device.synchronize()
        assert set(self.count.numpy()) == {self.expected}
        assert self.held() == self.state


@pytest.fixture(params=["direct", "staged"])
def scene(
    request: pytest.FixtureRequest, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Scene]]:
    """Makes scenes with small blocks, with and without memory that the host can access."""
    adapter = device.adapter
    if request.param == "direct" and adapter.type != "cpu":
        pytest.skip(f"{adapter.name} is no CPU driver")
    if request.param == "staged":
        adapter = dataclasses.replace(adapter, type="other")
    monkeypatch.setattr(heap_module, "_FIRST_BLOCK", 8192)
    scenes = []

    def make() -> Scene:
        scenes.append(Scene(adapter))
        return scenes[-1]

    yield make
    for made in scenes:
        made.device.close()


def sweep(make: Callable[[], Scene], pick: Callable[[range], Any]) -> None:
    """Raise at each of the lines that ``pick`` selects."""
    at, faults = make(), []
    lines = struck(0, at.scenario).lines
    assert lines > 500
    for line in pick(range(1, lines + 1)):
        strike = struck(line, at.scenario)
        try:
            at.check()
        except Exception as error:
            faults.append(f"line {line}, {strike.where}: {type(error).__name__}: {error}")
            if len(faults) < 500:
                at = make()
    assert not faults, "\n".join(faults)


@shared_blocks
def test_some_lines(scene: Callable[[], Scene], seed: int) -> None:
    sweep(scene, lambda lines: sorted(random.Random(seed).sample(lines, _SAMPLED)))


@shared_blocks
@pytest.mark.slow
def test_every_line(scene: Callable[[], Scene]) -> None:
    sweep(scene, lambda lines: lines)
