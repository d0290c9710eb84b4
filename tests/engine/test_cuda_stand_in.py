"""kompute_dml.cuda with a stand-in for CUDA's driver, on memory that a CPU driver exports.

Data, order, structures and life cycle are those of a GPU, except for the export of semaphores.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuda_stand_in
import kompute_dml as dml
import kompute_dml.cuda as kc
from kompute_dml.cuda import dlpack, driver, exports
from kompute_dml.runtime import adapters, heap, libcuda
from threads import in_threads

F32 = np.float32
EXPORT = {"VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd"}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[cuda_stand_in.StandIn]:
    stand_in = cuda_stand_in.StandIn()
    monkeypatch.setattr(libcuda, "library", lambda: stand_in)
    cuda_stand_in.export_semaphores(exports.Exporter, monkeypatch)
    yield stand_in
    stand_in.synchronize()
    assert not stand_in.errors


@pytest.fixture
def nvidia(device: dml.Device) -> adapters.Adapter:
    """The adapter, as if it were the stand-in's GPU."""
    if not device.runtime.engine.reports_errors:
        pytest.skip("stock kp shows no handles")
    if not device.adapter.is_cpu or "VK_KHR_external_memory_fd" not in device.adapter.extensions:
        pytest.skip("needs a CPU driver that exports memory")
    return dataclasses.replace(
        device.adapter, driver="NVIDIA", uuid=cuda_stand_in.UUID.hex(),
        extensions=device.adapter.extensions | EXPORT)


@pytest.fixture
def gpu(
    cuda: cuda_stand_in.StandIn, nvidia: adapters.Adapter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dml.Device]:
    monkeypatch.setenv("KOMPUTE_DML_TEST_STAGED", "1")
    device = dml.Device(nvidia)
    yield device
    device.close()


def host(view: kc.View) -> np.ndarray:
    """A kernel's access to a view: no one waits."""
    x = view.tensor
    return cuda_stand_in.array_of({
        "shape": x.shape, "typestr": x.dtype.str, "data": (view.pointer, False),
        "strides": tuple(x.itemsize * s for s in x.strides)})


# Data


def test_both_sides_see_what_the_other_writes(cuda: Any, gpu: dml.Device) -> None:
    x = gpu.tensor(np.arange(6, dtype=F32).reshape(2, 3))
    view, stream = kc.view(x[:, 1:]), cuda.new_stream()
    array = host(view)
    with kc.stream(x, stream):
        cuda.launch(stream, lambda: np.multiply(array, 10, array))
    assert (dml.add(x, F32([1])).numpy() == [[1, 11, 21], [4, 41, 51]]).all()
    x[:] = 7
    kc.acquire(gpu, stream)
    seen: list[Any] = []
    cuda.launch(stream, lambda: seen.append(array.tolist()))
    cuda.synchronize()
    assert seen == [[[7, 7], [7, 7]]]


def test_large_uploads_have_memory_of_their_own(
    cuda: Any, gpu: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "DEDICATED", 1 << 20)
    data = np.arange(1 << 19, dtype=np.int32)
    large = gpu.tensor(data)
    others = [gpu.tensor(data[:10]), gpu.empty([1 << 19])]
    for x, dedicated in ((large, True), *((x, False) for x in others)):
        assert x.allocation.block.buffer.dedicated() == dedicated
        kc.view(x)
    assert cuda.dedicated[0] and not any(cuda.dedicated[1:])
    np.testing.assert_array_equal((large + 1).numpy(), data + 1)


def test_views_name_their_memory(cuda: Any, gpu: dml.Device) -> None:
    for x in (gpu.tensor(np.arange(24, dtype=np.float16).reshape(2, 3, 4)).transpose(2, 0, 1)[1:],
              gpu.tensor(np.arange(5, dtype=np.int64)), gpu.tensor(np.array([True, False]))):
        interface = kc.view(x).__cuda_array_interface__
        cuda.synchronize()
        assert interface["version"] == 3 and interface["stream"] > 2
        array = cuda_stand_in.array_of(interface)
        assert array.dtype == x.dtype and (array == x.numpy()).all()


@pytest.mark.parametrize("options", [{}, {"stream": 1, "max_version": (1, 0)}, {"stream": -1}])
def test_dlpack_capsules(
    cuda: Any, gpu: dml.Device, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """NumPy takes them, as the pointers are the host's here."""
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    view = kc.view(gpu.tensor(x).transpose(2, 0, 1)[1:])
    assert view.__dlpack_device__() == (2, 0)
    monkeypatch.setattr(dlpack, "CUDA", 1)
    gpu.synchronize()

    class Producer:
        def __dlpack__(self, **_: Any) -> Any:
            return view.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    waits = cuda.calls["cuWaitExternalSemaphoresAsync"]
    array = np.from_dlpack(Producer())
    assert cuda.calls["cuWaitExternalSemaphoresAsync"] - waits == (options.get("stream") != -1)
    assert array.dtype == x.dtype and (array == x.transpose(2, 0, 1)[1:]).all()
    host(view)[0, 0, 0] = -5
    assert array[0, 0, 0] == -5 and len(dlpack._lent) == 1
    del array
    assert not dlpack._lent
    view.__dlpack__()  # no one takes it
    assert not dlpack._lent


@pytest.mark.parametrize("options", [{"copy": True}, {"dl_device": (1, 0)}])
def test_dlpack_refuses_copies(gpu: dml.Device, options: dict[str, Any]) -> None:
    with pytest.raises(BufferError):
        kc.view(gpu.empty([2])).__dlpack__(**options)


class Foreign:
    """A CUDA array of another library."""

    def __init__(self, array: np.ndarray, stream: int | None, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "version": 3, "stream": stream,
            "data": (array.ctypes.data, False), **changes}


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
@pytest.mark.parametrize("named", [True, False])
def test_foreign_arrays_are_copied_after_their_work(
    cuda: Any, gpu: dml.Device, dtype: str, named: bool
) -> None:
    source, stream, gate = np.zeros((3, 5), dtype), cuda.new_stream(), threading.Event()
    cuda.launch(stream, lambda: gate.wait(5) and source.fill(1))
    copy = (kc.tensor(Foreign(source, stream), gpu) if named else
            kc.tensor(Foreign(source, None), gpu, stream=stream))
    threading.Timer(0.05, gate.set).start()
    assert copy.dtype == source.dtype and copy.numpy().all() and copy.shape == (3, 5)


def test_a_copy_waits_for_the_last_use_of_its_memory(cuda: Any, gpu: dml.Device) -> None:
    x, gate = gpu.empty([1000]), threading.Event()
    array, place, stream = host(kc.view(x)), x.allocation.offset, cuda.new_stream()
    with kc.stream(x, stream):
        cuda.launch(stream, lambda: gate.wait(5) and array.fill(3))
    threading.Timer(0.05, gate.set).start()
    del x
    source = np.full(1000, 4, F32)
    copy = kc.tensor(Foreign(source, 1), gpu)
    assert copy.allocation.offset == place
    assert (copy.numpy() == 4).all()


# Order


def test_nobody_waits_but_the_queue(cuda: Any, gpu: dml.Device) -> None:
    """The device waits for one stream. Another stream waits for the device."""
    x = gpu.tensor(np.zeros(1000, F32))
    array, gate, seen = host(kc.view(x)), threading.Event(), []
    first, second = cuda.new_stream(), cuda.new_stream()
    with kc.stream(gpu, first):
        cuda.launch(first, lambda: gate.wait(5) and array.fill(3))
    x += 1  # waits for the first
    named = kc.view(x).__cuda_array_interface__["stream"]
    cuda.launch(named, lambda: seen.append(array.copy()))
    with kc.stream(gpu, second):
        cuda.launch(second, lambda: seen.append(array.copy()))
    time.sleep(0.1)
    assert not gate.is_set() and not seen
    gate.set()
    assert (x.numpy() == 4).all()
    cuda.synchronize()
    assert len(seen) == 2 and (np.array(seen) == 4).all()


def test_streams_end_in_any_order(cuda: Any, gpu: dml.Device) -> None:
    """The values of a timeline semaphore grow all the same."""
    x = gpu.tensor(np.zeros(2, F32))
    array, gate = host(kc.view(x)), threading.Event()
    slow, fast = cuda.new_stream(), cuda.new_stream()
    kc.acquire(x, slow, fast)
    cuda.launch(slow, lambda: gate.wait(5) and array[:1].fill(1))
    cuda.launch(fast, lambda: array[1:].fill(2))
    kc.release(x, slow)
    kc.release(x, fast)
    threading.Timer(0.05, gate.set).start()
    assert x.numpy().tolist() == [1, 2]


def test_several_streams_of_one_block(cuda: Any, gpu: dml.Device) -> None:
    x = gpu.tensor(np.zeros(8, F32))
    array, streams = host(kc.view(x)), [cuda.new_stream() for _ in range(4)]
    with kc.stream(x, *streams):
        for i, stream in enumerate(streams):
            cuda.launch(stream, lambda i=i: time.sleep(0.01 * (4 - i)) or array.__setitem__(i, i))
    assert x.numpy().tolist() == [0, 1, 2, 3, 0, 0, 0, 0]


def test_concurrent_streams_of_threads(
    cuda: Any, gpu: dml.Device, rng: np.random.Generator
) -> None:
    """Each stream and the device take turns with a tensor of their own. Streams end in any order;
    the stand-in fails where a semaphore's values do not grow."""
    turns, naps = 8, rng.uniform(0, 0.004, (4, 8))

    def take_turns(who: int) -> None:
        x = gpu.tensor(np.full(5000, who, np.int32))
        array, stream = host(kc.view(x)), cuda.new_stream()
        for nap in naps[who]:
            with kc.stream(x, stream):
                cuda.launch(stream, lambda nap=nap: time.sleep(nap))
                cuda.launch(stream, lambda: np.multiply(array, 3, array))
            x += 1
        expected = who
        for _ in range(turns):
            expected = 3 * expected + 1
        assert (x.numpy() == expected).all()

    in_threads(4, take_turns)


class _TorchStream:
    cuda_stream = 0


class _CudaCoreStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 77


class _NumbaStream:
    handle = ctypes.c_void_p(78)


@pytest.mark.parametrize("stream, handle", [
    (None, 1), (0, 1), (5, 5), (np.int64(6), 6), (_TorchStream(), 1), (_CudaCoreStream(), 77),
    (_NumbaStream(), 78),
])
def test_streams_of_other_libraries(stream: Any, handle: int) -> None:
    assert kc._handle(stream) == handle


# Structures, as a C compiler lays those of CUDA 12.4's cuda.h out


@pytest.mark.parametrize("structure, size, offsets", [
    (driver.MemoryHandleDesc, 104, {"type": 0, "handle": 8, "size": 24, "flags": 32}),
    (driver.MemoryBufferDesc, 88, {"offset": 0, "size": 8, "flags": 16}),
    (driver.SemaphoreHandleDesc, 96, {"type": 0, "handle": 8, "flags": 24}),
    (driver.SemaphoreParams, 144, {"value": 0, "flags": 72}),
    # dlpack.h
    (dlpack._Tensor, 48, {"data": 0, "device_type": 8, "ndim": 16, "code": 20, "lanes": 22,
                          "shape": 24, "strides": 32, "byte_offset": 40}),
    (dlpack._Managed, 64, {"tensor": 0, "context": 48, "deleter": 56}),
])
def test_structures(structure: Any, size: int, offsets: dict[str, int]) -> None:
    assert ctypes.sizeof(structure) == size
    assert {name: getattr(structure, name).offset for name in offsets} == offsets


# Life cycle


def test_blocks_are_imported_once_and_kept(cuda: Any, gpu: dml.Device) -> None:
    x, y = gpu.tensor(np.full(100, 1, F32)), gpu.tensor(np.full(100, 2, F32))
    views = [kc.view(t) for t in (x, y, x)]
    blocks = {x.allocation.block, y.allocation.block}  # one for each under validation
    assert cuda.calls["cuImportExternalMemory"] == len(blocks)
    del blocks
    assert cuda.calls["cuImportExternalSemaphore"] == 2
    gpu.synchronize()
    assert [host(v)[0] for v in views] == [1, 2, 1]
    capsule = views[2].__dlpack__()
    del x, views
    others = [gpu.tensor(np.full(100, 9, F32)) for _ in range(3)]
    gpu.synchronize()
    lent, = dlpack._lent.values()
    assert (host(lent[-1]) == 1).all(), "the capsule keeps the tensor"
    del others, y, lent, capsule
    gc.collect()
    gpu.synchronize()
    gpu.runtime.heap.trim()
    assert cuda.alive["memory"] == cuda.alive["mapping"] == 0


def test_nothing_is_left(
    cuda: Any, nvidia: adapters.Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_TEST_STAGED", "1")
    before = set(os.listdir("/proc/self/fd"))
    device = dml.Device(nvidia)
    view, gate = kc.view(device.tensor(np.full(100, 5, F32))), threading.Event()
    with kc.stream(view):
        pass
    stream = cuda.new_stream()
    cuda.launch(stream, lambda: gate.wait(5))
    kc.acquire(view, stream)
    threading.Timer(0.05, gate.set).start()
    device.close()
    assert gate.is_set(), "closing waits for CUDA"
    assert {kind for kind, n in cuda.alive.items() if n} == {"context", "memory", "mapping"}
    assert (host(view) == 5).all(), "a view keeps the memory"
    with pytest.raises(dml.DeviceLostError, match="closed"):
        kc.acquire(view)
    del view, device
    gc.collect()
    assert not any(cuda.alive.values())
    left = {os.readlink(f"/proc/self/fd/{fd}") for fd in set(os.listdir("/proc/self/fd")) - before
            if os.path.exists(f"/proc/self/fd/{fd}")}
    assert not any("semaphore" in name for name in left)


def test_cuda_is_not_touched_before_it_is_asked_for() -> None:
    program = ("import sys, kompute_dml as d; d.zeros([4]).numpy(); "
               "sys.exit(any('cuda' in m.split('.')[:2] for m in sys.modules))")
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# Errors


def test_it_is_imported_where_the_process_is_no_library() -> None:
    """Windows opens no library without a name."""
    code = """
import ctypes

class PyDLL(ctypes.PyDLL):
    def __init__(self, name, *rest, handle=None, **more):
        if name is None and handle is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        super().__init__(name, *rest, handle=handle, **more)

ctypes.PyDLL = PyDLL
import kompute_dml.cuda
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_nvidia(device: dml.Device) -> None:
    if device.adapter.driver == "NVIDIA":
        pytest.skip("it is one")
    with pytest.raises(dml.UnsupportedError, match="expected a device of NVIDIA's driver"):
        kc.view(device.empty([2]))


def _no_cuda(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    monkeypatch.setattr(libcuda, "library", lambda: None)


def _old_cuda(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    del cuda._functions["cuImportExternalSemaphore"]


def _hidden(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    cuda.uuid = bytes(16)
    other = dataclasses.replace(adapter, uuid="00" * 16)
    monkeypatch.setattr(adapters, "list_devices", lambda: (adapter, other))


def _no_export(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    return dataclasses.replace(
        adapter, extensions=adapter.extensions - {"VK_KHR_external_semaphore_fd"})


def _no_timelines(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    return dataclasses.replace(
        adapter, extensions=adapter.extensions - {"VK_KHR_timeline_semaphore"})


def _stock(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    monkeypatch.setenv("KOMPUTE_DML_KP", "stock")


def _in_reach(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    monkeypatch.delenv("KOMPUTE_DML_TEST_STAGED")


def _full(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    cuda.failing["cuImportExternalMemory"] = cuda_stand_in.NO_MEMORY


def _unmapped(monkeypatch: Any, cuda: Any, adapter: Any) -> Any:
    cuda.failing["cuExternalMemoryGetMappedBuffer"] = cuda_stand_in.INVALID


@pytest.mark.parametrize("change, error, text", [
    (_no_cuda, dml.UnsupportedError, "CUDA's driver is not installed"),
    (_old_cuda, dml.UnsupportedError, "expected the driver of CUDA 11.2 or later"),
    (_hidden, dml.UnsupportedError, "none of its devices is that one"),
    (_no_export, dml.UnsupportedError, "has no VK_KHR_external_semaphore_fd$"),
    (_no_timelines, dml.UnsupportedError, "has no timelineSemaphore$"),
    (_stock, dml.UnsupportedError, "expected kp with its fixes"),
    (_in_reach, dml.UnsupportedError, "memory cannot be exported"),
    (_full, dml.DmlError, "cuImportExternalMemory: CUDA error 2, out of memory"),
    (_unmapped, dml.DmlError, "cuExternalMemoryGetMappedBuffer: CUDA error 1, invalid argument"),
])
def test_errors(
    cuda: Any, nvidia: adapters.Adapter, monkeypatch: pytest.MonkeyPatch, change: Any, error: Any,
    text: str,
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_TEST_STAGED", "1")
    device = dml.Device(change(monkeypatch, cuda, nvidia) or nvidia)
    x = device.tensor(np.ones(3, F32))
    device.synchronize()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(error, match=text):
            kc.view(x)
    if error is dml.DmlError:
        assert len(os.listdir("/proc/self/fd")) <= before + 1, "a descriptor is left"
    assert x.numpy().tolist() == [1, 1, 1]
    del x
    device.close()


def test_freed_tensors(gpu: dml.Device) -> None:
    x = gpu.empty([4])
    view = kc.view(x)
    x.free()
    for call in (lambda: kc.view(x), lambda: view.pointer, lambda: view.__dlpack__(),
                 lambda: view.__cuda_array_interface__):
        with pytest.raises(dml.ValidationError, match="it was freed"):
            call()


@pytest.mark.parametrize("call, error, text", [
    (lambda gpu: kc.view(np.ones(3)), dml.ValidationError, "expected a Tensor, but got ndarray"),
    (lambda gpu: kc.view(gpu.empty([4], "uint4")), dml.UnsupportedError, "whole bytes"),
    (lambda gpu: kc.acquire(3), dml.ValidationError, "a Device, a Tensor or a view, but got int"),
    (lambda gpu: kc.acquire(gpu, "0"), dml.ValidationError, "a CUDA stream or its handle"),
    (lambda gpu: kc.tensor(np.ones(3), gpu), dml.ValidationError, "but got ndarray"),
    (lambda gpu: kc.tensor(Foreign(np.ones((2, 3)), 1, strides=(8, 16)), gpu),
     dml.ValidationError, "expected a packed array"),
])
def test_arguments(gpu: dml.Device, call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call(gpu)
