"""Errors of the device reach the caller, and no stale results follow. Pipelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import kp_engine, pipelines, recorder
from kompute_dml.runtime.kp_engine import CommandList, Engine, group_grid, translate
from switches import shared_blocks


class _Sequence:
    """kp's sequence with some methods replaced."""

    def __init__(self, real: Any, **methods: Callable[..., Any]) -> None:
        self._real = real
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._real, name)


def raising(text: str) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise RuntimeError(text)

    return method


def replace_sequences(
    monkeypatch: pytest.MonkeyPatch, device: dml.Device, **methods: Callable[..., Any]
) -> None:
    """New command lists use these methods instead of those of kp's sequence."""
    real = Engine.command_list

    def command_list(self: Engine, timestamps: int = 0) -> CommandList:
        commands = real(self, timestamps)
        if self is device.runtime.engine:
            commands._sequence = _Sequence(commands._sequence, **methods)
        return commands

    monkeypatch.setattr(Engine, "command_list", command_list)
    device.synchronize()
    device.runtime.recorder._spare.clear()


def every_call(device: dml.Device, x: dml.Tensor, buffer: dml.Buffer,
               recording: dml.Recording) -> list[Callable[[], Any]]:
    """Every call that uses the device."""
    desc = dml.TensorDesc("float32", [64])
    compiled = device.compile_operator(
        device.create_operator(
            dml.ActivationIdentityOperatorDesc(input_tensor=desc, output_tensor=desc)
        )
    )
    other = device.create_buffer(256)
    table = device.create_binding_table(compiled)
    table.bind_inputs([dml.BufferBinding(buffer)])
    table.bind_outputs([dml.BufferBinding(other)])

    def record() -> None:
        with device.record():
            pass

    return [
        x.numpy,
        lambda: np.asarray(x),
        lambda: x[3:].numpy(),
        lambda: dml.activation_identity(x),
        lambda: dml.activation_identity(x, out=x),
        lambda: dml.diagonal_matrix([8, 8], out=x.reshape(8, 8)),
        lambda: device.tensor(np.zeros(3, np.float32)),
        lambda: device.empty([3]),
        lambda: device.create_buffer(16),
        lambda: buffer.write(np.zeros(4, np.uint8)),
        buffer.read,
        lambda: device.record_dispatch(compiled, table),
        recording.replay,
        record,
        device.synchronize,
    ]


def assert_dead(calls: list[Callable[[], Any]], kind: type[Exception], match: str) -> None:
    for i, call in enumerate(calls):
        with pytest.raises(kind, match=match):
            call()
            pytest.fail(f"call {i} went through")


@pytest.fixture
def victim(own: dml.Device) -> tuple[dml.Device, dml.Tensor, list[Callable[[], Any]]]:
    x = own.tensor(np.arange(64, dtype=np.float32))
    y = own.empty([64])
    buffer = own.create_buffer(256)
    with own.record() as recording:
        dml.activation_identity(x, out=y)
    dml.activation_identity(x, out=y)
    own.synchronize()
    return own, x, every_call(own, x, buffer, recording)


Victim = tuple[dml.Device, dml.Tensor, list[Callable[[], Any]]]


@pytest.mark.parametrize(
    "text,kind",
    [
        ("vkQueueSubmit: VK_ERROR_DEVICE_LOST", dml.DeviceLostError),
        ("vk::Queue::submit: ErrorDeviceLost", dml.DeviceLostError),
        ("vkQueueSubmit: VK_ERROR_OUT_OF_DEVICE_MEMORY", dml.OutOfMemoryError),
        ("vkQueueSubmit: VK_ERROR_OUT_OF_HOST_MEMORY", dml.OutOfMemoryError),
        ("something else entirely", dml.DmlError),
    ],
)
def test_a_failed_submit_ends_the_device(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception]
) -> None:
    device, x, calls = victim
    replace_sequences(monkeypatch, device, eval=raising(text), eval_async=raising(text))
    y = dml.activation_identity(x)
    with pytest.raises(kind, match=text) as caught:
        y.numpy()
    assert device.adapter.name in str(caught.value)
    assert_dead([y.numpy, *calls], kind, text)


def test_a_failed_wait_ends_the_device(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, x, calls = victim
    if not device.runtime.engine.submits_async:
        pytest.skip("this kp waits inside the submit")
    text = "vkWaitForFences: VK_ERROR_DEVICE_LOST"
    replace_sequences(monkeypatch, device, eval_await=raising(text))
    y = dml.activation_identity(x)
    with pytest.raises(dml.DeviceLostError, match=text):
        y.numpy()
    assert_dead([y.numpy, *calls], dml.DeviceLostError, text)


def test_a_failed_replay_ends_the_device(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, x, calls = victim
    with device.record() as recording:
        y = dml.activation_identity(x)
    device.synchronize()
    commands = recording.batches[0].commands
    fail = raising("vkQueueSubmit: VK_ERROR_DEVICE_LOST")
    commands._sequence = _Sequence(commands._sequence, eval=fail, eval_async=fail)
    with pytest.raises(dml.DeviceLostError):
        recording.replay()
    assert_dead([y.numpy, recording.replay, *calls], dml.DeviceLostError, "DEVICE_LOST")


def test_a_submit_that_does_nothing_is_noticed(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock kp after the loss of a device: every call returns without an error."""
    device, x, calls = victim
    if device.runtime.engine.reports_errors:
        pytest.skip("this kp reports errors, so nothing is written to prove a submit")
    replace_sequences(monkeypatch, device, eval=lambda: None)
    y = dml.activation_identity(x)
    with pytest.raises(dml.DeviceLostError, match="ticket"):
        y.numpy()
    assert_dead([y.numpy, *calls], dml.DeviceLostError, "ticket")


def test_a_replay_that_does_nothing_is_noticed(victim: Victim) -> None:
    """Its ticket has the number of the first submit, which must not count as a new one."""
    device, x, calls = victim
    if device.runtime.engine.reports_errors:
        pytest.skip("this kp reports errors, so nothing is written to prove a submit")
    with device.record() as recording:
        y = dml.activation_identity(x)
    recording.replay()
    commands = recording.batches[0].commands
    commands._sequence = _Sequence(commands._sequence, eval=lambda: None)
    with pytest.raises(dml.DeviceLostError, match="ticket"):
        recording.replay()
    assert_dead([y.numpy, *calls], dml.DeviceLostError, "ticket")


def test_the_default_device_is_made_anew_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from kompute_dml import device as module

    monkeypatch.setattr(module, "_shared", {})
    first = dml.default_device()
    assert dml.default_device() is first
    first.close()
    second = dml.default_device()
    assert second is not first
    np.testing.assert_array_equal(dml.diagonal_matrix([2, 2]).numpy(), np.eye(2))
    second.close()


def test_an_error_holds_no_tensors_alive(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    device, x, _ = victim
    text = "vkQueueSubmit: VK_ERROR_DEVICE_LOST"
    replace_sequences(monkeypatch, device, eval=raising(text), eval_async=raising(text))
    for _ in range(50):
        with pytest.raises(dml.DeviceLostError) as caught:
            dml.activation_identity(x)
            device.synchronize()
        depth, trace = 0, caught.value.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        assert depth < 20, "frames of earlier raises pile up"


def test_a_failed_allocation_leaves_the_device_as_it_was(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, x, _ = victim
    engine = device.runtime.engine
    manager = engine.manager
    text = "vkAllocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY"
    engine.manager = _Sequence(manager, tensor_t=raising(text))
    used, reserved = device.memory_used, device.memory_reserved
    with pytest.raises(dml.OutOfMemoryError, match=f"allocating {96 << 20} bytes .*{text}"):
        device.empty([24 << 20])
    engine.manager = manager
    assert (device.memory_used, device.memory_reserved) == (used, reserved)
    np.testing.assert_array_equal(x.numpy(), np.arange(64))
    assert device.empty([24 << 20]).sizes == (24 << 20,)


def test_a_failed_pipeline_leaves_the_device_as_it_was(victim: Victim) -> None:
    device, x, _ = victim
    engine = device.runtime.engine
    manager = engine.manager
    text = "vkCreateComputePipelines: VK_ERROR_OUT_OF_HOST_MEMORY"
    engine.manager = _Sequence(manager, algorithm=raising(text))
    device.runtime.pipelines._cache.clear()
    with pytest.raises(dml.OutOfMemoryError, match="making the pipeline activation_identity"):
        dml.activation_identity(x)
    engine.manager = manager
    np.testing.assert_array_equal(dml.activation_identity(x).numpy(), np.arange(64))


def test_a_closed_device_says_so(victim: Victim) -> None:
    device, _, calls = victim
    device.close()
    device.close()  # a second call is harmless
    assert_dead(calls, dml.DeviceLostError, "closed")


def test_a_device_that_cannot_be_opened(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kp = device.runtime.engine.kp

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(kp, name)

        Manager = staticmethod(raising("vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED"))

    monkeypatch.setattr(kp_engine, "import_kp", Broken)
    with pytest.raises(dml.NoDeviceError, match="INITIALIZATION_FAILED") as caught:
        dml.Device(device.adapter)
    assert device.adapter.name in str(caught.value)


def test_a_kp_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kp = pytest.importorskip("kp")
    monkeypatch.setattr(kp, "__version__", "0.8.1", raising=False)
    with pytest.raises(dml.NoDeviceError, match=r"kp 0\.8\.1 is installed.*0\.9\.0"):
        dml.Device()


@pytest.mark.parametrize(
    "text,kind",
    [
        ("vkCreateFence: VK_ERROR_OUT_OF_HOST_MEMORY", dml.OutOfMemoryError),
        ("vk::Device::allocateMemory: ErrorOutOfDeviceMemory", dml.OutOfMemoryError),
        ("vkQueueSubmit: VK_ERROR_DEVICE_LOST", dml.DeviceLostError),
        ("vkQueueSubmit: VK_ERROR_UNKNOWN", dml.DmlError),
    ],
)
def test_vulkan_results_become_kinds_of_error(text: str, kind: type[Exception]) -> None:
    error = translate(RuntimeError(text), "submit on X")
    assert type(error) is kind
    assert str(error) == f"submit on X: {text}"


# Pipelines


@shared_blocks
def test_a_pipeline_is_made_once_per_key(own: dml.Device) -> None:
    cache = own.runtime.pipelines
    x = own.tensor(np.arange(64, dtype=np.float32))
    dml.activation_identity(x).numpy()
    made = cache.made
    for _ in range(5):  # other tensors and values: only offsets differ
        y = dml.activation_identity(own.tensor(np.arange(64, dtype=np.float32)))
        assert y.numpy()[5] == 5
    assert cache.made == made
    dml.activation_identity(x[::2])  # strides need another specialization
    assert cache.made == made + 1


@shared_blocks
def test_pipelines_are_bounded_and_the_one_used_longest_ago_goes(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "MAX_PIPELINES", 3)
    cache = own.runtime.pipelines
    x = own.tensor(np.arange(64, dtype=np.float32))
    uses: list[Callable[[], dml.Tensor]] = [
        lambda: dml.activation_identity(x),
        lambda: dml.activation_identity(x[::2]),
        lambda: dml.diagonal_matrix([8, 8], out=own.empty([8, 8])),
        lambda: dml.diagonal_matrix([8, 8], data_type="int8", out=own.empty([8, 8], "int8")),
        lambda: dml.diagonal_matrix([8, 8], data_type="int16", out=own.empty([8, 8], "int16")),
    ]
    expected = [np.arange(64), np.arange(0, 64, 2), *[np.eye(8)] * 3]
    results = []
    for _ in range(3):  # evicted while pending, then made again
        for use in uses:
            results.append(use())
            assert len(cache) <= 3
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), expected[i % 5])
    made = cache.made
    uses[4]()
    uses[3]()
    assert cache.made == made, "the newest are still there"
    uses[0]()
    assert cache.made == made + 1


@shared_blocks
def test_pipelines_are_forgotten_with_their_block(own: dml.Device) -> None:
    cache = own.runtime.pipelines
    x = own.tensor(np.arange(64, dtype=np.float32))
    dml.activation_identity(x).numpy()
    count = len(cache)
    big = own.empty([5 << 20])  # a block of its own
    dml.activation_identity(big, out=big[:])
    dml.diagonal_matrix([5 << 10, 1 << 10], out=big.reshape(5 << 10, 1 << 10))
    assert len(cache) > count
    block = big.allocation.block
    del big
    own.synchronize()
    own.runtime.heap.trim()
    assert block not in own.runtime.heap.blocks
    assert not [key for key in cache._cache if block in key[2]]
    assert len(cache) == count


def test_a_grid_launches_at_least_what_is_asked(own: dml.Device) -> None:
    limits = own.adapter.max_workgroup_count
    for groups in (1, 2, 3, 255, 32767, 32768, 32769, 65536, 98305, 10**6, 2**31 // 256):
        x, y, z = group_grid(groups)
        assert groups <= x * y * z < groups + y
        assert x <= limits[0] and y <= limits[1] and z <= limits[2]
        if not own.runtime.engine.resizes_groups:
            key = own.runtime.engine.grid_key(groups)
            x, y, z = group_grid(key)
            assert groups <= x * y * z <= 4 * groups


def test_features_that_kp_did_not_enable_are_not_claimed(own: dml.Device) -> None:
    assert own.features <= own.runtime.engine.features
    if not own.runtime.engine.reports_errors:
        assert own.features == frozenset()


def test_device_times_need_valid_timestamps(own: dml.Device) -> None:
    x = own.tensor(np.arange(64, dtype=np.float32))
    if not own.runtime.engine.timestamps_valid:
        with pytest.raises(dml.UnsupportedError, match="no valid timestamps"):
            own.time(lambda: dml.activation_identity(x))
        return

    def chain() -> None:
        y = dml.activation_identity(x)
        for _ in range(9):
            y = dml.activation_identity(y)

    for limit in (256, 4):  # in one submit, and in several
        times = own.time(chain, limit)
        assert [name for name, _ in times] == ["activation_identity.b32"] * 10
        assert all(0 <= t < 10e9 for _, t in times)
        assert sum(t for _, t in times) > 0


@pytest.mark.parametrize("limit", [8192, 4])
def test_dispatches_are_timed_as_a_whole(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    x = own.tensor(np.ones(1 << 18, np.float32))
    y = dml.activation_identity(x)
    if not own.runtime.engine.timestamps_valid:
        with pytest.raises(dml.UnsupportedError, match="no valid timestamps"):
            own.elapsed(lambda: None)
        return
    monkeypatch.setattr(recorder, "MAX_KEPT_BATCH", limit)

    def copies(count: int) -> Callable[[], Any]:
        return lambda: [dml.activation_identity(x, out=y) for _ in range(count)]

    assert own.elapsed(lambda: None) == 0
    one = min(own.elapsed(copies(1)) for _ in range(5))
    before = own.runtime.recorder.submits
    many = min(own.elapsed(copies(300)) for _ in range(3))
    assert own.runtime.recorder.submits - before == 3 * -(-300 // limit)
    assert many > 30 * one > 0
    assert len(own.time(copies(3))) == 3  # then each has its own again


def test_a_barrier_names_its_own_buffers(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = own.runtime.engine
    if not engine.records_barriers:
        pytest.skip("this kp records no barriers")
    monkeypatch.setattr(engine.kp, "OpMemoryBarrier", lambda *arguments: arguments)
    recorded: list[Any] = []
    commands = engine.command_list()
    commands._sequence = _Sequence(commands._sequence, record=recorded.append)
    device, host = kp_engine._STAGE_COMPUTE, kp_engine._STAGE_HOST
    wanted = [([1], device), ([1], device), ([1], host), ([2], device), ([1, 2], device),
              ([1], host), ([1], device)]
    for buffers, stage in wanted:
        (commands.barrier if stage == device else commands.show_host)(buffers)
    assert [(barrier[0], barrier[-1]) for barrier in recorded] == wanted
    assert commands.operations == len(wanted)


def test_another_device_of_the_same_adapter_is_another_device(device: dml.Device) -> None:
    one, two = (dml.Device(dataclasses.replace(device.adapter)) for _ in range(2))
    a, b = one.tensor(np.ones(3, np.float32)), two.tensor(np.full(3, 2, np.float32))
    with pytest.raises(dml.ValidationError, match="one device"):
        dml.activation_identity(a, out=b)
    one.close()
    np.testing.assert_array_equal(dml.activation_identity(b).numpy(), [2, 2, 2])
    two.close()
