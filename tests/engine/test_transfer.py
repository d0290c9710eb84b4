"""Uploads and downloads, through the staging ring and directly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import transfer
from switches import SCALE, shared_blocks


@pytest.fixture(params=["direct", "staged"])
def own(request: pytest.FixtureRequest, device: dml.Device) -> Iterator[dml.Device]:
    """A device whose memory the host can access (as with CPU drivers), and one that must stage."""
    adapter = device.adapter
    if request.param == "direct" and adapter.type != "cpu":
        pytest.skip(f"{adapter.name} is no CPU driver")
    if request.param == "staged":
        adapter = dataclasses.replace(adapter, type="other")
    own = dml.Device(adapter)
    yield own
    own.close()


def buffer_of(device: dml.Device, data: np.ndarray) -> dml.Buffer:
    buffer = device.create_buffer(data.nbytes)
    buffer.write(data)
    return buffer


@pytest.mark.parametrize(
    "nbytes",
    [1, 2, 3, 4, 5, 255, 256, 257, transfer._SMALL - 1, transfer._SMALL, transfer._SMALL + 1,
     transfer._LARGE - 4, transfer._LARGE + 4, 3 * transfer._LARGE + 5,
     2 * transfer._LARGE_DOWNLOAD + 5],
)
def test_every_size_round_trips(
    own: dml.Device, rng: np.random.Generator, nbytes: int
) -> None:
    data = rng.integers(0, 256, nbytes, np.uint8)
    assert (own.tensor(data).numpy() == data).all()


@shared_blocks
def test_an_upload_ends_its_last_word_with_zeros(own: dml.Device) -> None:
    own.tensor(np.full(100, -1, np.int8))
    own.synchronize()
    t = own.tensor(np.full(5, -1, np.int8))
    assert t.allocation.offset == 0  # reuses memory with old bytes
    raw = own.read(t.allocation, 0, 12)
    np.testing.assert_array_equal(raw, [255] * 5 + [0] * 3 + [255] * 4)


def test_an_upload_inside_a_recording_comes_after_what_was_recorded(own: dml.Device) -> None:
    source, before, after = own.tensor(np.arange(64, dtype=np.float32)), own.empty([64]), \
        own.empty([64])
    with own.record():
        dml.activation_identity(source, out=before)
        own.write(source.allocation, 0, np.full(64, 7, np.float32).view(np.uint8))
        dml.activation_identity(source, out=after)
    np.testing.assert_array_equal(before.numpy(), np.arange(64))
    np.testing.assert_array_equal(after.numpy(), np.full(64, 7))


def test_more_uploads_than_the_ring_holds(own: dml.Device, rng: np.random.Generator) -> None:
    """Slots are reused while earlier copies from them may be pending."""
    arrays = [rng.integers(0, 2**31, (1 << 20) + i, np.int32) for i in range(14)]  # 4 MiB each
    tensors = [own.tensor(a) for a in arrays]
    for array, tensor in zip(arrays, tensors):
        assert (tensor.numpy() == array).all()


def test_a_second_slot_comes_after_some_waits(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer.HostSlot, "idle", False)  # as beside a slow device
    ring = own.runtime.transfer
    for slots, parts in ((1, 1 + transfer._PATIENCE), (2, 2)):
        data = np.arange(parts * transfer._LARGE // 4, dtype=np.int32)
        assert (own.tensor(data).numpy() == data).all()
        assert len(ring._uploads) in (0, slots)  # none where the host writes to the device


def test_large_uploads_inside_a_recording(own: dml.Device) -> None:
    data = np.arange(3 * transfer._LARGE // 4, dtype=np.int32)
    before, after = own.empty([data.size], "int32"), own.empty([data.size], "int32")
    source = own.tensor(data)
    with own.record():
        dml.identity(source, out=before)
        own.write(source.allocation, 0, (-data).view(np.uint8))
        dml.identity(source, out=after)
    assert (before.numpy() == data).all()
    assert (after.numpy() == -data).all()


def test_many_small_uploads_share_a_slot(own: dml.Device, rng: np.random.Generator) -> None:
    arrays = [rng.random(int(n), np.float32) for n in rng.integers(1, 700, 600 // SCALE)]
    tensors = [own.tensor(a) for a in arrays]
    for array, tensor in zip(arrays, tensors):
        np.testing.assert_array_equal(tensor.numpy(), array)
    # three upload slots, and one for downloads
    ring = own.runtime.transfer
    assert len(ring._uploads) <= 3
    assert sum(map(len, ring._downloads.values())) <= 4


def test_uploads_that_are_done_leave_their_room_to_the_next(own: dml.Device) -> None:
    ring = own.runtime.transfer
    for value in range(2 * transfer._LARGE // transfer._SMALL):
        tensor = own.tensor(np.full(transfer._SMALL, value % 251, np.uint8))
        own.synchronize()
        assert (tensor.numpy() == value % 251).all()
    assert [slot.filled for slot in ring._uploads] in ([], [transfer._SMALL])


def test_the_array_may_change_after_the_call(own: dml.Device) -> None:
    data = np.arange(1000, dtype=np.int32)
    tensor = own.tensor(data)
    data[:] = -1
    np.testing.assert_array_equal(tensor.numpy(), np.arange(1000))


def test_what_was_read_does_not_change_later(own: dml.Device) -> None:
    a = own.tensor(np.arange(100, dtype=np.float32))
    before = a.numpy()
    dml.activation_identity(own.tensor(np.zeros(100, np.float32)), out=a)
    a.numpy()
    np.testing.assert_array_equal(before, np.arange(100))
    before[0] = 5  # the caller may change it
    assert a.numpy()[0] == 0


@pytest.mark.parametrize("offset,nbytes", [(0, 1), (0, 3), (4, 2), (8, 5), (248, 7), (252, 4)])
def test_partial_writes_leave_the_rest(
    own: dml.Device, rng: np.random.Generator, offset: int, nbytes: int
) -> None:
    model = rng.integers(0, 256, 256, np.uint8)
    buffer = buffer_of(own, model)
    data = rng.integers(0, 256, nbytes, np.uint8)
    buffer.write(data, offset)
    model[offset : offset + nbytes] = data
    np.testing.assert_array_equal(buffer.read(), model)


def test_writes_are_ordered_with_dispatches(own: dml.Device) -> None:
    """Each dispatch reads the bytes that were written before it, although all are pending."""
    x = own.tensor(np.zeros(300, np.float32))
    results = []
    for i in range(30):
        own.write(x.allocation, 0, np.full(300, i, np.float32).view(np.uint8))
        results.append(dml.activation_identity(x))
    for i, result in enumerate(results):
        assert (result.numpy() == i).all()


def test_random_writes_and_reads_equal_an_array(
    own: dml.Device, rng: np.random.Generator
) -> None:
    size = 1 << 16
    model = np.zeros(size, np.uint8)
    buffer = buffer_of(own, model)
    for _ in range(60):
        offset = int(rng.integers(0, size // 4)) * 4
        count = int(rng.integers(1, 5000))
        count = min(count, size - offset)
        if rng.random() < 0.6:
            data = rng.integers(0, 256, count, np.uint8)
            buffer.write(data, offset)
            model[offset : offset + count] = data
        else:
            np.testing.assert_array_equal(
                buffer.read(offset, count), model[offset : offset + count]
            )
    np.testing.assert_array_equal(buffer.read(), model)


def test_any_memory_layout_uploads(own: dml.Device, rng: np.random.Generator) -> None:
    base = rng.random((6, 5, 4))
    for array in (
        base.T, base[::2, ::-1], np.asfortranarray(base), base[:, 1],
        np.broadcast_to(base[:1], (3, 5, 4)), base.astype(">f8"), base.astype("<f8"),
    ):
        np.testing.assert_array_equal(own.tensor(array).numpy(), array)


def test_bad_ranges_are_refused_and_change_nothing(own: dml.Device) -> None:
    buffer = buffer_of(own, np.arange(16, dtype=np.uint8))
    for offset, count in ((-4, 4), (2, 4), (12, 8), (16, 4), (20, 1)):
        with pytest.raises(dml.ValidationError, match=f"offset {offset} and size {count}"):
            buffer.write(np.zeros(count, np.uint8), offset)
        with pytest.raises(dml.ValidationError):
            buffer.read(offset, count)
    np.testing.assert_array_equal(buffer.read(), np.arange(16))


class _Threads:
    """A pool of which so many threads are free."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.asked = 0

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        self.asked += 1
        future: Future[None] = Future()
        if self.free:
            self.free -= 1
            future.set_running_or_notify_cancel()
            work(*arguments)
            future.set_result(None)
        return future


@pytest.mark.parametrize("free", range(4))
@pytest.mark.parametrize("extra", [0, 1, 1000])
def test_the_caller_copies_what_no_thread_has_begun(
    own: dml.Device, free: int, extra: int, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    monkeypatch.setattr(transfer, "_THREADS", 4)
    pool = _Threads(free)
    monkeypatch.setattr(own.runtime.transfer, "_pool", pool)
    source = rng.integers(0, 256, transfer._WORTH_THREADS + extra, np.uint8)
    target = np.zeros_like(source)
    own.runtime.transfer.move(target, source)
    np.testing.assert_array_equal(target, source)
    assert pool.asked == 3
