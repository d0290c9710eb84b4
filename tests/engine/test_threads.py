"""One device, many threads: every call on the engine holds the device's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml


def numbers(device: dml.Device) -> dml.Tensor:
    return device.tensor(np.arange(64, dtype=np.float32))


def assert_locked(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Make every method of the engine's parts fail without the device's lock. Returns the names of
    called methods."""
    runtime = device.runtime
    parts: list[Any] = [runtime.recorder, runtime.heap, runtime.transfer, runtime.pipelines,
                        runtime.zeros, runtime.windows]
    called = set()

    def guarded(method: Any) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if any(self is part for part in parts):
                called.add(method.__qualname__)
                assert runtime.lock._is_owned(), f"{method.__qualname__} without the lock"
            return method(self, *args, **kwargs)

        return call

    for part in parts:
        for name, method in vars(type(part)).items():
            if isinstance(method, FunctionType) and not name.startswith("__"):
                monkeypatch.setattr(type(part), name, guarded(method))
    return called


def lives_of_a_buffer(device: dml.Device) -> None:
    owned = dml.TensorDesc("float32", [16], flags=dml.TensorFlags.OWNED_BY_DML)
    compiled = device.compile_operator(device.create_operator(
        dml.ElementWiseAbsOperatorDesc(
            input_tensor=owned, output_tensor=dml.TensorDesc("float32", [16]))))
    source, result, persistent = (
        dml.BufferBinding(device.create_buffer(n))
        for n in (64, 64, compiled.binding_properties.persistent_resource_size))
    source.buffer.write(np.full(16, -1, np.float32))
    source.buffer.write(bytes(5), 4)
    initializer = device.create_operator_initializer([compiled])
    table = device.create_binding_table(initializer)
    table.bind_inputs([[source]])
    table.bind_outputs([persistent])
    device.record_dispatch(initializer, table)
    table = device.create_binding_table(compiled)
    table.bind_inputs([None])
    table.bind_outputs([result])
    table.bind_persistent_resource(persistent)
    device.record_dispatch(compiled, table)
    result.buffer.read()
    source.buffer.free()


def test_every_call_holds_the_lock(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    called = assert_locked(own, monkeypatch)
    x = own.tensor(np.arange(-32, 32, dtype=np.float32))
    y = dml.abs(x, out=own.empty([64]))
    dml.add(x[1:], np.ones(63, np.float32), out=y[1:])
    del x
    assert own.memory_used
    with own.record() as recording:
        z = dml.dynamic_quantize_linear(y)[0]
    recording.replay()
    z.numpy()
    del recording, z
    dml.matrix_multiply_integer_to_float(
        own.tensor(rng.integers(-9, 9, (1, 512), np.int8)), 1.0,
        rng.integers(-9, 9, (512, 32), np.int8), 1.0)
    lives_of_a_buffer(own)
    if own.runtime.engine.timestamps_valid:
        own.time(lambda: dml.abs(y))
        own.elapsed(lambda: dml.abs(y))
    own.synchronize()
    y.free()
    own.close()
    assert {"Recorder.dispatch", "Recorder.replay", "Recorder.free", "Recorder.synchronize",
            "Transfer.upload", "Transfer.download", "Heap.allocate", "Pipelines.get"} <= called


def in_a_thread(work: Callable[[], object]) -> Callable[[], bool]:
    """Start ``work``. The returned function waits a while and tells whether the work has ended."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def ended(seconds: float = 30) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    return ended


def test_a_replay_waits_for_the_recording_of_another_thread(own: dml.Device) -> None:
    x, ones = own.tensor(np.zeros(64, np.float32)), own.tensor(np.ones(64, np.float32))
    with own.record() as recording:
        dml.add(x, ones, out=x)
    with own.record() as other:
        ended = in_a_thread(recording.replay)
        assert not ended(0.2)
        dml.abs(ones)
    assert ended()
    assert len(other) == 1
    np.testing.assert_array_equal(x.numpy(), np.full(64, 2))


@pytest.mark.parametrize("make", [numbers, lambda device: device.create_buffer(256)],
                         ids=["tensor", "buffer"])
def test_memory_that_two_threads_free_comes_back_once(own: dml.Device, make: Any) -> None:
    kept = make(own)
    own.synchronize()
    ended = []

    def dropped(entry: Any) -> None:
        """Another thread frees the same memory: it must wait, and find it freed."""
        if not ended:
            ended.append(in_a_thread(kept.free))
            assert not ended[0](0.2)
        own.runtime.heap.dropped.append(entry)

    kept.allocation.on_drop = dropped
    kept.free()
    assert ended[0]()
    assert len(own.runtime.heap.dropped) == 1


def test_a_write_keeps_what_another_thread_writes_behind_it(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies move whole words, so bytes after the data are read and written again."""
    buffer = own.create_buffer(8)
    buffer.write(bytes(8))
    read, ended = dml.Buffer.read, []

    def read_and_wait(self: dml.Buffer, *args: Any) -> np.ndarray:
        monkeypatch.setattr(dml.Buffer, "read", read)
        tail = read(self, *args)
        ended.append(in_a_thread(lambda: buffer.write(b"abcd")))
        assert not ended[0](0.2)
        return tail

    monkeypatch.setattr(dml.Buffer, "read", read_and_wait)
    buffer.write(b"x")
    assert ended[0]()
    assert bytes(buffer.read(0, 4)) == b"abcd"
