"""Tensors and CUDA arrays that share memory, on NVIDIA GPUs.

>>> import kompute_dml.cuda as kc
>>> array = torch.from_dlpack(kc.view(tensor))        # the same memory
>>> with kc.stream(tensor, torch.cuda.current_stream()):
...     array.mul_(2)                                 # after the device's work, and before its next

Nothing is copied, and the host waits for nothing. It needs CUDA 11.2's driver API or later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import index
from typing import Any, NoReturn

import numpy as np

from .. import arrays  # noqa: F401  (attaches NumPy's functions to tensors)
from ..desc import TensorDesc
from ..device import Device, default_device
from ..errors import UnsupportedError, ValidationError
from ..layout import product
from ..tensors import Tensor
from . import dlpack
from .driver import LEGACY_STREAM, Context, MemoryMapping
from .link import link_of

__all__ = ["View", "acquire", "release", "stream", "tensor", "view"]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; dml.list_devices() names "
                         "the devices")


class View:
    """A tensor's memory as a CUDA array. It keeps the tensor and the memory.

    ``torch.from_dlpack(view)``, ``cupy.asarray(view)``, ``numba.cuda.as_cuda_array(view)`` and the
    like make arrays of it. The streams that they name wait for the device's work so far. What CUDA
    does with the memory later belongs inside ``with kompute_dml.cuda.stream(tensor)``.
    ``tensor.free()`` ends it: the memory may be used for another tensor then.
    """

    __slots__ = ("__weakref__", "_mapping", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise ValidationError(
                f"kompute_dml.cuda: expected a Tensor, but got {type(tensor).__name__}")
        if tensor.data_type.bits < 8:
            raise UnsupportedError(
                "kompute_dml.cuda: expected elements of whole bytes, as CUDA arrays have, but got "
                f"{tensor.summary()}")
        self.tensor = tensor
        device = tensor.device
        with device.recorder.lock:
            self._check_alive()
            self._mapping: MemoryMapping = link_of(device).mapping(tensor.allocation.block.buffer)

    def __repr__(self) -> str:
        return f"<CUDA view of {self.tensor.summary()}>"

    def _check_alive(self) -> None:
        if self.tensor.allocation.freed:
            raise ValidationError("kompute_dml.cuda: expected a tensor that is alive, but it was "
                                  "freed")

    @property
    def context(self) -> Context:
        """The CUDA context that has the memory."""
        return self._mapping.context

    @property
    def pointer(self) -> int:
        """Where the first element lies, for CUDA."""
        self._check_alive()
        return self._mapping.address + self.tensor.allocation.offset + self.tensor.byte_offset

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. It names a stream that waits for the device's work so far."""
        x, pointer = self.tensor, self.pointer
        with x.device.recorder.lock:
            own = link_of(x.device).stream
        acquire(x, own)
        strides = tuple(x.itemsize * stride for stride in x.strides)
        return {
            "shape": x.shape, "typestr": x.dtype.str, "data": (pointer, False),
            "strides": None if x.desc.is_packed else strides, "version": 3, "stream": own,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.context.ordinal

    def __dlpack__(
        self, *, stream: object = None, max_version: object = None, dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule. The stream waits for the device's work so far; for -1 none does."""
        here = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != here:
            raise BufferError(f"expected DLPack's device {here}, but got {dl_device}")
        if copy:
            raise BufferError("a view shares its memory: DLPack takes no copy of it")
        x, pointer = self.tensor, self.pointer
        if stream != -1:
            acquire(x, stream)
        return dlpack.capsule(pointer, here[1], x.dtype, x.shape, x.strides, self)


def view(tensor: Tensor) -> View:
    """A tensor's memory as a CUDA array, without a copy.

    The first view of a block of memory imports the block into CUDA. Raises UnsupportedError where
    CUDA is missing, does not see the device, or its Vulkan driver exports no memory.
    """
    return View(tensor)


def _handle(stream: Any) -> int:
    """The handle of a stream of PyTorch, CuPy, Numba or cuda.core; None is the default stream."""
    if stream is None:
        return LEGACY_STREAM
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr", "handle", "value"):
        stream = getattr(stream, name, stream)
    try:
        return index(stream or LEGACY_STREAM)
    except TypeError:
        raise ValidationError(
            f"kompute_dml.cuda: expected a CUDA stream or its handle, but got {stream!r}") from None


def _device(of: Device | Tensor | View) -> Device:
    if isinstance(of, View):
        of = of.tensor
    if isinstance(of, (Device, Tensor)):
        return of if isinstance(of, Device) else of.device
    raise ValidationError(
        f"kompute_dml.cuda: expected a Device, a Tensor or a view, but got {type(of).__name__}")


def acquire(of: Device | Tensor | View, *streams: object) -> None:
    """Make these streams (by default CUDA's default stream) wait for the device's work so far."""
    device, handles = _device(of), [_handle(s) for s in streams or (None,)]
    with device.recorder.lock:
        link = link_of(device)
        value = link.signal_ready(device.recorder)
    link.wait_ready(value, handles)


def release(of: Device | Tensor | View, *streams: object) -> None:
    """Make the device's later work wait for what these streams (by default CUDA's default stream)
    were given so far."""
    device, handles = _device(of), [_handle(s) for s in streams or (None,)]
    with device.recorder.lock:
        link_of(device).wait_done(device.recorder, handles)


@contextlib.contextmanager
def stream(of: Device | Tensor | View, *streams: object) -> Iterator[None]:
    """Inside the block these streams may use memory of the device; by default CUDA's default
    stream. They wait for the device's work before the block, and its work after the block waits
    for them. Inside the block the device must not use the same tensors.
    """
    acquire(of, *streams)
    try:
        yield
    finally:
        release(of, *streams)


def tensor(array: object, device: Device | None = None, stream: object = None) -> Tensor:
    """A copy of a CUDA array, made on the GPU.

    Vulkan cannot import memory that CUDA allocated without a way to export it. So ``array``
    (anything with ``__cuda_array_interface__``, packed) is copied once. To do without, let CUDA
    write to a view of a tensor. ``stream`` is where the array is written and where the copy runs;
    by default the one that the array names, or CUDA's default stream.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise ValidationError("kompute_dml.cuda: expected an array with __cuda_array_interface__, "
                              f"but got {type(array).__name__}")
    dtype, sizes = np.dtype(interface["typestr"]), tuple(interface["shape"]) or (1,)
    truth = dtype == np.bool_
    desc = TensorDesc.packed(np.uint8 if truth else dtype, sizes)
    strides = interface.get("strides")
    packed = tuple(dtype.itemsize * product(sizes[i + 1 :]) for i in range(len(sizes)))
    if strides is not None and tuple(strides) not in ((), packed):
        raise ValidationError(
            f"kompute_dml.cuda: expected a packed array, but got sizes {sizes} with strides of "
            f"{tuple(strides)} bytes; let the array's library copy it first")
    device = device or default_device()
    result = device.new(desc, truth)
    handle = _handle(interface.get("stream") if stream is None else stream)
    target = View(result)
    acquire(device, handle)
    with target.context as context:
        context.call("cuMemcpyDtoDAsync_v2", target.pointer, interface["data"][0],
                     dtype.itemsize * product(sizes), handle)
    release(device, handle)
    return result
