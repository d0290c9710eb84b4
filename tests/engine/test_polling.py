"""A waiter polls for a while before it sleeps, except on a CPU driver, which needs the
processor."""

from __future__ import annotations

from typing import Any

import pytest

import kompute_dml as dml
from kompute_dml.runtime import kp_engine
from kompute_dml.runtime.kp_engine import CommandList, Engine


class Sequence:
    """A stand-in for kp's sequence. It is done after so many polls, or after a wait."""

    def __init__(self, questions: int) -> None:
        self.left = questions
        self.slept = 0
        self.interrupts = False

    def eval_async(self) -> None:
        pass

    def eval_await(self, *timeout: int) -> None:
        if timeout:
            assert timeout == (0,)
            self.left -= 1
        else:
            self.slept += 1
            self.left = 0
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt

    def is_running(self) -> bool:
        return self.left > 0


@pytest.fixture
def engine(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = device.runtime.engine
    if not engine.submits_async:
        pytest.skip("this kp waits inside the submit")
    monkeypatch.setattr(engine, "polls", True)
    return engine


def submitted(engine: Engine, questions: int) -> tuple[CommandList, Any]:
    commands = engine.command_list()
    commands._sequence = Sequence(questions)
    commands.submit()
    return commands, commands._sequence


def test_only_cpu_drivers_need_the_processor(device: dml.Device) -> None:
    engine = device.runtime.engine
    assert engine.polls == (engine.submits_async and device.adapter.type != "cpu")


def test_what_is_done_soon_is_not_slept_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kp_engine, "_POLL_SECONDS", 60.0)
    commands, sequence = submitted(engine, 5)
    commands.wait()
    assert (sequence.left, sequence.slept, commands.running) == (0, 0, False)
    commands.wait()
    assert sequence.left == 0, "nobody asks again"


def test_what_takes_longer_is_slept_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kp_engine, "_POLL_SECONDS", 1e-3)
    commands, sequence = submitted(engine, 10**9)
    commands.wait()
    assert sequence.slept == 1 and not commands.running


def test_without_polling_it_sleeps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "polls", False)
    commands, sequence = submitted(engine, 1)
    commands.wait()
    assert sequence.slept == 1


class Clock:
    """Time that passes where something waits for it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Timed:
    """A sequence that takes 2 ms. Who sleeps is woken so many seconds late."""

    def __init__(self, clock: Clock, late: float = 0.0) -> None:
        self.clock, self.end, self.late = clock, 0.0, late
        self.slept, self.naps = 0, 0

    def eval_async(self) -> None:
        self.end = self.clock.now + 2e-3

    def eval_await(self, nanoseconds: int | None = None) -> None:
        if nanoseconds is None:
            self.slept += 1
            self.clock.now = max(self.clock.now, self.end) + self.late
        else:
            self.naps += nanoseconds > 0
            self.clock.now += nanoseconds / 1e9 + self.late if nanoseconds else 1e-6

    def is_running(self) -> bool:
        return self.clock.now < self.end

    def clear(self) -> None:
        pass


def test_what_took_long_is_polled_for_at_its_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(kp_engine, "time", clock)
    commands = engine.command_list()
    commands._sequence = sequence = Timed(clock)

    def run() -> tuple[int, int]:
        commands.submit()
        commands.wait()
        assert clock.now < sequence.end + 1e-5 and not commands.running
        return sequence.naps, sequence.slept

    assert run() == (0, 1)
    assert run() == (1, 1) and run() == (2, 1)
    assert commands.reset() and run() == (2, 2), "other commands may take less time"


def test_a_waiter_who_was_woken_late_sleeps_less_the_next_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each run would take as long as the one before, long after the device was done."""
    monkeypatch.setattr(engine, "wakes_late", 0.0)
    clock = Clock()
    monkeypatch.setattr(kp_engine, "time", clock)
    commands = engine.command_list()
    commands._sequence = sequence = Timed(clock, late=400e-6)
    overslept = []
    for _ in range(12):
        commands.submit()
        commands.wait()
        overslept.append(clock.now - sequence.end)
    assert overslept[0] > 3e-4 and max(overslept[-4:]) < 1e-5, overslept


@pytest.mark.parametrize("polls", [True, False])
def test_an_interrupted_wait_is_taken_up_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, polls: bool
) -> None:
    monkeypatch.setattr(engine, "polls", polls)
    commands, sequence = submitted(engine, 2)
    sequence.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        commands.wait()
    assert commands.running
    commands.wait()
    assert sequence.left == 0 and not commands.running
