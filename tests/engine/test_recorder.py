"""Submits of dispatches, replays of recordings, and the return of memory."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import recorder as recorder_module
from kompute_dml.runtime.kp_engine import CommandList
from kompute_dml.runtime.recorder import MAX_BATCH, MAX_IN_FLIGHT
from switches import shared_blocks


def numbers(device: dml.Device, count: int = 64, start: float = 0) -> dml.Tensor:
    return device.tensor(np.arange(start, start + count, dtype=np.float32))


def submits(device: dml.Device) -> int:
    return device.runtime.recorder.submits


# Submits


def test_calls_record_and_reading_submits_once(own: dml.Device) -> None:
    x = numbers(own)
    own.synchronize()
    before = submits(own)
    results = [dml.activation_identity(x) for _ in range(20)]
    assert submits(own) == before
    for r in results:
        np.testing.assert_array_equal(r.numpy(), np.arange(64))
    if own.runtime.engine.host_reads_storage:
        assert submits(own) == before + 1


def test_synchronize_submits_and_waits(own: dml.Device) -> None:
    x = numbers(own)
    own.synchronize()
    before = submits(own)
    y = dml.activation_identity(x)
    own.synchronize()
    assert submits(own) == before + 1
    assert y.allocation.last_use.done
    own.synchronize()
    assert submits(own) == before + 1, "nothing was pending"


def test_a_long_batch_is_submitted_unasked(own: dml.Device) -> None:
    x = numbers(own)
    outs = [own.empty([64]) for _ in range(MAX_BATCH)]
    own.synchronize()
    before = submits(own)
    for out in outs[:-1]:
        dml.activation_identity(x, out=out)
    assert submits(own) == before
    dml.activation_identity(x, out=outs[-1])
    assert submits(own) == before + 1


def test_several_submits_are_in_flight_and_no_more_than_the_limit(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own.runtime.engine.submits_async:
        pytest.skip("this kp waits for every submit")
    recorder = own.runtime.recorder
    seen = []
    real = CommandList.submit

    def submit(self: CommandList) -> None:
        real(self)
        seen.append(len(recorder._in_flight) + 1)  # this one, too

    x, *outs = [numbers(own) for _ in range(9)]
    own.synchronize()
    monkeypatch.setattr(CommandList, "submit", submit)
    monkeypatch.setattr(recorder_module, "MAX_BATCH", 2)
    for i in range(40):
        dml.activation_identity(x, out=outs[i % 8])
    assert len(seen) == 20
    assert max(seen) == MAX_IN_FLIGHT
    own.synchronize()
    assert not recorder._in_flight


def test_a_batch_waits_for_those_in_flight_where_it_first_touches_their_memory(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own.runtime.engine.records_barriers:
        pytest.skip("this kp waits for every submit")
    named = []
    real = CommandList.barrier

    def barrier(self: CommandList, buffers: list[Any]) -> None:
        named.append(set(buffers))
        real(self, buffers)

    monkeypatch.setattr(CommandList, "barrier", barrier)
    x, y, z, w = (numbers(own) for _ in range(4))
    block = x.allocation.block.buffer
    own.synchronize()
    dml.activation_identity(x, out=y)
    assert not named, "nothing is in flight"
    own.runtime.recorder.flush()
    dml.activation_identity(x, out=z)
    assert [block in n for n in named] == [True]
    dml.activation_identity(x, out=w)
    assert len(named) == 1 + own.runtime.recorder._whole_blocks
    own.synchronize()
    named.clear()
    with own.record():  # a replay may follow any work
        dml.activation_identity(x, out=y)
    assert [block in n for n in named] == [True]


# Ctrl-C


def interrupted_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next call of a command list's method raises KeyboardInterrupt."""
    real = getattr(CommandList, name)

    def method(self: CommandList) -> None:
        if name == "submit":
            real(self)
        monkeypatch.setattr(CommandList, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(CommandList, name, method)


@pytest.mark.parametrize("name", ["wait", "submit"])
def test_what_was_recorded_before_an_interrupt_is_computed(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Ctrl-C interrupts the wait for an earlier submit, or stock kp's wait inside the submit."""
    monkeypatch.setattr(recorder_module, "MAX_BATCH", 2)
    x, ones = own.tensor(np.zeros(64, np.float32)), own.tensor(np.ones(64, np.float32))
    own.synchronize()
    interrupted_once(monkeypatch, name)
    calls = 0
    with pytest.raises(KeyboardInterrupt):
        while calls < 100:
            dml.add(x, ones, out=x)
            calls += 1
    dml.add(x, ones, out=x)
    counted = set(x.numpy())
    assert counted in ({calls + 1}, {calls + 2}), "of the interrupted call either will do"
    own.synchronize()
    assert own.memory_used == 2 * 256


@pytest.mark.parametrize("name", ["wait", "submit"])
def test_a_recording_whose_end_is_interrupted_is_whole(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    x, ones = own.tensor(np.zeros(64, np.float32)), own.tensor(np.ones(64, np.float32))
    y = own.empty([64])
    own.synchronize()
    for _ in range(MAX_IN_FLIGHT):
        dml.add(x, ones, out=x)
        own.runtime.recorder.flush()
    with pytest.raises(KeyboardInterrupt), own.record() as recording:
        dml.add(x, ones, out=y)
        dml.add(y, ones, out=x)
        interrupted_once(monkeypatch, name if own.runtime.engine.submits_async else "submit")
    dml.add(x, ones, out=x)
    recording.replay()
    assert len(recording) == 2
    np.testing.assert_array_equal(x.numpy(), np.full(64, MAX_IN_FLIGHT + 2 + 1 + 2))


# Memory


@shared_blocks
def test_ranges_freed_in_use_are_not_handed_out_before_their_submit_is_done(
    own: dml.Device,
) -> None:
    x = numbers(own)
    own.synchronize()
    y = dml.activation_identity(x)
    place = (y.allocation.block, y.allocation.offset)
    del y
    z = own.empty([64])
    assert (z.allocation.block, z.allocation.offset) != place, "y is still pending"
    assert own.memory_used == 3 * 256
    del z
    assert own.runtime.recorder.waiting_to_free == 256  # of y: z was never used
    own.synchronize()
    assert own.memory_used == 256 and own.runtime.recorder.waiting_to_free == 0
    again = own.empty([64])
    assert (again.allocation.block, again.allocation.offset) == place


@shared_blocks
def test_ranges_freed_after_their_submit_are_handed_out_and_the_host_waits(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, recorder = numbers(own), own.runtime.recorder
    own.synchronize()
    y = dml.activation_identity(x)
    recorder.flush()
    batch, place = y.allocation.last_use, (y.allocation.block, y.allocation.offset)
    if batch.done:
        pytest.skip("a submit that is waited for")
    del y
    waited = []
    monkeypatch.setattr(recorder, "finish", waited.append)
    z = own.empty([64])
    assert (z.allocation.block, z.allocation.offset) == place and own.memory_used == 2 * 256
    assert z.allocation.last_use is batch
    if own.runtime.engine.host_writes_storage:
        own.runtime.transfer._idle(z.allocation)
        assert waited == [batch], "before the host may write there"


@shared_blocks
def test_a_block_that_a_submit_uses_goes_when_that_is_done(own: dml.Device) -> None:
    own.runtime.heap.keep = 0
    kept = own.empty([64])
    own.synchronize()
    large = own.empty([(4 << 20) + 64])  # more than a first block
    dml.activation_relu(large, out=large)
    own.runtime.recorder.flush()
    if large.allocation.last_use.done:
        pytest.skip("a submit that is waited for")
    before = own.memory_reserved
    del large
    own.runtime.collect()
    assert own.memory_used == 256 and own.memory_reserved == before
    own.synchronize()
    assert own.memory_reserved < before and kept.allocation.block is not None


def test_a_range_used_by_a_pending_recording_and_by_a_later_call_stays_taken(
    own: dml.Device,
) -> None:
    """The end of the recording must not clear the mark of the later call."""
    x, y = numbers(own), own.empty([64])
    with own.record() as recording:
        dml.activation_identity(x, out=y)
    z = dml.activation_identity(y)  # pending: the last use of y
    own.runtime.recorder.wait()  # the recording is done, the call is not
    pending = y.allocation.last_use
    assert pending is not None and not pending.done
    del recording
    own.synchronize()
    np.testing.assert_array_equal(z.numpy(), np.arange(64))


def test_dispatches_and_batches_make_no_cycles(own: dml.Device) -> None:
    x = numbers(own)
    gc.collect()
    gc.disable()
    try:
        y = dml.activation_identity(x)
        with own.record() as recording:
            z = dml.activation_identity(y)
        recording.replay()
        own.synchronize()
        del y, z, recording
        own.synchronize()
        assert own.memory_used == 256, "reference counts alone free everything"
    finally:
        gc.enable()


# Recordings


def test_a_replay_is_one_submit_and_records_nothing(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, z = numbers(own), own.empty([64]), own.empty([64])
    own.synchronize()
    before = submits(own)
    with own.record() as recording:
        dml.activation_identity(x, out=y)
        dml.diagonal_matrix([8, 8], out=z.reshape(8, 8))
        assert submits(own) == before
    assert submits(own) == before + 1
    assert len(recording) == 2
    own.synchronize()

    def never(*_: Any) -> None:
        raise AssertionError("a replay records nothing")

    monkeypatch.setattr(CommandList, "dispatch", never)
    monkeypatch.setattr(CommandList, "barrier", never)
    for i in range(3):
        before = submits(own)
        recording.replay()
        assert submits(own) == before + 1, i


def test_a_replay_computes_with_changed_inputs(own: dml.Device) -> None:
    desc = dml.TensorDesc("float32", [64])
    compiled = own.compile_operator(
        own.create_operator(
            dml.ActivationIdentityOperatorDesc(input_tensor=desc, output_tensor=desc)
        )
    )
    buffers = [own.create_buffer(256) for _ in range(4)]
    with own.record() as recording:
        for source, target in itertools.pairwise(buffers):  # a chain
            table = own.create_binding_table(compiled)
            table.bind_inputs([dml.BufferBinding(source)])
            table.bind_outputs([dml.BufferBinding(target)])
            own.record_dispatch(compiled, table)
    for i in range(5):
        data = np.full(64, i, np.float32)
        buffers[0].write(data)
        recording.replay()
        np.testing.assert_array_equal(buffers[-1].read().view(np.float32), data)
    # Several replays before one read, with writes between them
    for i in range(10):
        buffers[0].write(np.full(64, 100 + i, np.float32))
        recording.replay()
    np.testing.assert_array_equal(buffers[-1].read().view(np.float32), np.full(64, 109))


def test_a_recording_keeps_its_memory(own: dml.Device) -> None:
    x = numbers(own)
    with own.record() as recording:
        y = dml.activation_identity(x)
        z = dml.activation_identity(y)
    del y
    own.synchronize()
    others = [own.tensor(np.full(64, -1, np.float32)) for _ in range(10)]
    recording.replay()
    np.testing.assert_array_equal(z.numpy(), np.arange(64))
    for other in others:
        assert (other.numpy() == -1).all(), "a replay writes only what is its own"
    used = own.memory_used
    del recording
    own.synchronize()
    assert own.memory_used == used - 256, "y was held by the recording alone"


def test_a_replay_survives_that_unrelated_memory_goes(own: dml.Device) -> None:
    big = own.empty([5 << 20])  # a block of its own
    big = dml.activation_identity(big)
    x = numbers(own)
    own.synchronize()
    with own.record() as recording:
        y = dml.activation_identity(x)
    own.synchronize()
    blocks = len(own.runtime.heap.blocks)
    del big
    own.synchronize()
    own.runtime.heap.trim()
    assert len(own.runtime.heap.blocks) < blocks
    recording.replay()
    np.testing.assert_array_equal(y.numpy(), np.arange(64))


def test_a_replay_after_its_memory_was_freed_is_refused(own: dml.Device) -> None:
    x = numbers(own)
    with own.record() as recording:
        y = dml.activation_identity(x)
        z = dml.activation_identity(y)
    own.synchronize()
    y.free()
    other = own.tensor(np.full(64, -1, np.float32))
    with pytest.raises(dml.ValidationError, match="freed"):
        recording.replay()
    assert (other.numpy() == -1).all()
    np.testing.assert_array_equal(z.numpy(), np.arange(64))


def test_recordings_do_not_nest(own: dml.Device) -> None:
    x = numbers(own)
    with own.record() as outer:
        y = dml.activation_identity(x)
        with pytest.raises(dml.DmlError, match="do not nest"), own.record():
            pass
        with pytest.raises(dml.DmlError, match="while another is active"):
            outer.replay()
        z = dml.activation_identity(y)
    assert len(outer) == 2
    np.testing.assert_array_equal(z.numpy(), np.arange(64))


def test_reading_inside_a_recording_sees_what_was_recorded(own: dml.Device) -> None:
    x, y = numbers(own), numbers(own, start=100)
    own.synchronize()
    with own.record() as recording:
        dml.activation_identity(x, out=y)
        np.testing.assert_array_equal(y.numpy(), np.arange(64))
        z = dml.activation_identity(y)
    np.testing.assert_array_equal(z.numpy(), np.arange(64))
    assert len(recording) == 2
    own.synchronize()
    recording.replay()
    np.testing.assert_array_equal(z.numpy(), np.arange(64))


def test_new_memory_inside_a_recording_is_ordered_too(own: dml.Device) -> None:
    x = numbers(own)
    own.synchronize()
    with own.record() as recording:
        y = dml.activation_identity(x)
        big = own.tensor(np.arange(5 << 20, dtype=np.float32))  # brings a block
        z = dml.activation_identity(big)
    assert len(recording) == 2
    for _ in range(2):
        np.testing.assert_array_equal(y.numpy(), np.arange(64))
        assert (z.numpy()[::4099] == np.arange(5 << 20, dtype=np.float32)[::4099]).all()
        recording.replay()


def test_an_exception_inside_a_recording_ends_it(own: dml.Device) -> None:
    x = numbers(own)
    with pytest.raises(ZeroDivisionError), own.record() as recording:
        y = dml.activation_identity(x)
        raise ZeroDivisionError
    assert len(recording) == 1
    np.testing.assert_array_equal(y.numpy(), np.arange(64))
    recording.replay()
    with own.record() as another:
        dml.activation_identity(x)
    assert len(another) == 1


def test_an_empty_recording_submits_nothing(own: dml.Device) -> None:
    own.synchronize()
    before = submits(own)
    with own.record() as recording:
        pass
    recording.replay()
    assert (len(recording), submits(own)) == (0, before)


def test_a_dropped_recording_in_flight_does_no_harm(own: dml.Device) -> None:
    x, y = numbers(own), own.empty([64])
    for _ in range(10):
        with own.record() as recording:
            dml.activation_identity(x, out=y)
        recording.replay()
        del recording
    np.testing.assert_array_equal(y.numpy(), np.arange(64))


def test_a_recording_longer_than_a_batch_is_split_and_replays_whole(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_KEPT_BATCH", 3)
    chain = [own.empty([64]) for _ in range(8)]
    with own.record() as recording:
        for a, b in itertools.pairwise(chain):
            dml.activation_identity(a, out=b)
    assert len(recording) == 7
    assert len(recording.batches) >= 3
    dml.activation_identity(numbers(own), out=chain[0])
    recording.replay()
    np.testing.assert_array_equal(chain[-1].numpy(), np.arange(64))


def test_recordings_that_are_gone_leave_their_command_lists_to_others(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own.runtime.engine.rerecords:
        pytest.skip("this kp records a list once")
    made = []
    new = own.runtime.engine.command_list
    monkeypatch.setattr(own.runtime.engine, "command_list",
                        lambda *args: made.append(None) or new(*args))
    x, y = numbers(own), own.empty([64])
    dml.activation_identity(x, out=y)
    own.synchronize()
    for turn in range(4 * MAX_IN_FLIGHT):
        with own.record() as recording:
            dml.add(x, x, out=y)
        recording.replay()
        del recording
        np.testing.assert_array_equal(y.numpy(), 2 * x.numpy(), err_msg=str(turn))
    assert len(made) <= MAX_IN_FLIGHT, len(made)
