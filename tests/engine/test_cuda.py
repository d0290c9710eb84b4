"""kompute_dml.cuda on an NVIDIA GPU, with PyTorch. test_cuda_stand_in.py needs neither."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import libcuda
from threads import in_threads

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if libcuda.library() is None or not torch.cuda.is_available():
    pytest.skip("no CUDA here", allow_module_level=True)

import kompute_dml.cuda as kc  # noqa: E402

F32 = np.float32


@pytest.fixture
def gpu(device: dml.Device) -> Iterator[dml.Device]:
    if device.adapter.driver != "NVIDIA":
        pytest.skip("the default device is none of NVIDIA's")
    own = dml.Device(device.adapter)
    with torch.cuda.device(kc.view(own.empty([1])).__dlpack_device__()[1]):
        yield own
    torch.cuda.synchronize()
    own.close()


def _keep_busy() -> None:
    """Some milliseconds of work on PyTorch's current stream."""
    torch.cuda._sleep(20_000_000)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_both_sides_see_what_the_other_writes(gpu: dml.Device, dtype: str) -> None:
    values = (np.arange(24) % 2).astype(dtype).reshape(2, 3, 4)
    x = gpu.tensor(values)
    view = kc.view(x.transpose(2, 0, 1)[1:])
    for array in (torch.from_dlpack(view), torch.as_tensor(view, device="cuda")):
        assert (array.cpu().numpy() == values.transpose(2, 0, 1)[1:]).all()
        assert array.data_ptr() == view.pointer
    with kc.stream(x, torch.cuda.current_stream()):
        torch.from_dlpack(view).zero_()
    values.transpose(2, 0, 1)[1:] = 0
    assert (x.numpy() == values).all()


def test_nobody_waits_but_the_gpu(gpu: dml.Device) -> None:
    x, stream = gpu.tensor(np.zeros(1 << 20, F32)), torch.cuda.Stream()
    array = torch.from_dlpack(kc.view(x))
    x += 1  # compiles the shader, which takes as long as the work below
    with kc.stream(x, stream), torch.cuda.stream(stream):
        array.add_(1).mul_(1)  # loads PyTorch's kernels
    with kc.stream(x, stream), torch.cuda.stream(stream):
        for _ in range(10):
            _keep_busy()
        array.add_(1)
    x += 1
    with kc.stream(x, stream), torch.cuda.stream(stream):
        array.mul_(3)
    assert not stream.query(), "the host came here before the stream's end"
    assert (x.numpy() == 12).all()


def test_concurrent_streams(gpu: dml.Device) -> None:
    """In four threads, each stream and the device take turns with a tensor of their own."""

    def take_turns(who: int) -> None:
        x = gpu.tensor(np.full(100_003, who, np.int32))
        view = kc.view(x)
        stream = torch.cuda.Stream(view.__dlpack_device__()[1])
        with torch.cuda.stream(stream):
            for turn in range(12):
                with kc.stream(x, stream):
                    if (turn + who) % 3 == 0:
                        _keep_busy()
                    torch.from_dlpack(view).mul_(3)
                x += 1
        expected = who
        for _ in range(12):
            expected = 3 * expected + 1
        assert (x.numpy() == expected).all()

    in_threads(4, take_turns)


def test_one_tensor_on_several_streams(gpu: dml.Device) -> None:
    x, streams = gpu.tensor(np.zeros((4, 1 << 18), F32)), [torch.cuda.Stream() for _ in range(4)]
    array = torch.from_dlpack(kc.view(x))
    with kc.stream(x, *streams):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                _keep_busy()
                array[i] = i + 1
    assert (x.numpy() == np.arange(1, 5, dtype=F32)[:, None]).all()


def test_arrays_of_pytorch_are_copied_on_the_gpu(gpu: dml.Device) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        _keep_busy()
        source = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
        copy = kc.tensor(source, gpu, stream=stream)
    assert (copy.numpy() == np.arange(1 << 20, dtype=F32)).all()


def test_a_capsule_keeps_the_memory(gpu: dml.Device) -> None:
    array = torch.from_dlpack(kc.view(gpu.tensor(np.full(1 << 20, 5, F32))))
    others = [gpu.tensor(np.full(1 << 20, 9, F32)) for _ in range(4)]
    gpu.synchronize()
    assert bool((array == 5).all()) and len(others) == 4


def test_a_gibibyte_is_handed_over_without_a_copy(gpu: dml.Device) -> None:
    """How long that takes is a row of the benchmarks (bench/handover.py)."""
    x = gpu.empty([1 << 28])
    pointer, free = kc.view(x).pointer, torch.cuda.mem_get_info()[0]
    array = torch.from_dlpack(kc.view(x))
    assert (array.data_ptr(), array.numel()) == (pointer, 1 << 28)
    assert torch.cuda.mem_get_info()[0] > free - (1 << 28), "no room for a copy was taken"
    kc.release(x, torch.cuda.current_stream())
