"""Discrete Fourier transforms, computed on the device in FLOAT32.

DirectML has no complex numbers. Results that are complex come back as arrays of NumPy's on the
host, complex64; real ones are tensors. :func:`pairs` keeps complex results on the device, as a last
dimension of real and imaginary parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays.operand import as_tensor, cast
from .device import Device
from .errors import expect
from .functions.call import device_of
from .graph.builder import Builder
from .graph.recorded import RecordedPlan
from .onnx.operators.fourier import transform
from .runtime.heap import Slot
from .tensors import Tensor
from .tensors.attached import NUMPY
from .tensors.types import TensorLike

__all__ = ["fft", "fft2", "fftfreq", "fftn", "fftshift", "ifft", "ifft2", "ifftn", "ifftshift",
           "irfft", "pairs", "rfft", "rfftfreq"]

FLOAT32 = np.dtype(np.float32)


def _plan(
    device: Device, shape: tuple[int, ...], length: int, inverse: bool, one_sided: bool
) -> RecordedPlan:
    """The plan of a transform of the middle one of three dimensions."""
    def make() -> RecordedPlan:
        builder = Builder(device)
        x = builder.new(shape, FLOAT32)
        y = builder.pack(transform(builder, x, length, inverse, one_sided))
        return builder.finish([x], [y])

    return device.plans.take(("fft", shape, length, inverse, one_sided), make)


def _transformed(
    x: Tensor, n: int | None, axis: int, inverse: bool, one_sided: bool, norm: str | None
) -> Tensor:
    """The transform along ``axis`` of pairs, or of real numbers in a last dimension of 1."""
    rank = x.ndim - 1
    expect(-rank <= axis < rank, "fft", "axis", f"be in [-{rank}, {rank})", axis)
    at = axis % rank
    size = x.shape[at]
    back = inverse and one_sided
    length = n if n is not None else 2 * (size - 1) if back else size
    expect(length > 0, "fft", "the length", "be at least 1", length)
    count = min(size, length // 2 + 1 if back else length)
    order = [*(d for d in range(rank) if d != at), at, rank]
    lines = x.transpose(*order)[..., :count, :]
    front = lines.shape[:-2]
    packed = cast(lines, FLOAT32).reshape(-1, *lines.shape[-2:]).contiguous()
    packed = packed if packed.byte_offset % 16 == 0 else packed.copy()
    plan = _plan(x.device, packed.shape, length, inverse, one_sided)
    y = x.device.empty(plan.outputs[0].shape)
    plan.bind([Slot(packed.allocation, packed.byte_offset)], [Slot(y.allocation, y.byte_offset)])
    expect(norm in (None, "backward", "forward", "ortho"), "fft", "norm",
           "be backward, forward or ortho", norm)
    if norm in ("forward", "ortho"):
        factor = length**0.5 if norm == "ortho" else length
        y = y * (factor if inverse else 1 / factor)
    y = y.reshape(*front, *y.shape[1:])
    return y.transpose(*(order.index(d) for d in range(rank + 1)))


def pairs(x: TensorLike) -> Tensor:
    """Real and imaginary parts in a new last dimension, on the device."""
    if isinstance(x, Tensor):
        return cast(x, FLOAT32)[..., None]
    array = np.asarray(x)
    if not np.iscomplexobj(array):
        return device_of().tensor(array.astype(np.float32))[..., None]
    return device_of().tensor(
        np.ascontiguousarray(array, np.complex64).view(np.float32).reshape(*array.shape, 2))


def _host(x: Tensor) -> np.ndarray:
    """Pairs of the device as complex numbers of the host."""
    values: np.ndarray = np.ascontiguousarray(x.numpy()).view(np.complex64)[..., 0]
    return values


def fft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> np.ndarray:
    """numpy.fft.fft. The result is complex64, on the host."""
    return _host(_transformed(pairs(a), n, axis, False, False, norm))


def ifft(a: TensorLike, n: int | None = None, axis: int = -1,
         norm: str | None = None) -> np.ndarray:
    """numpy.fft.ifft. The result is complex64, on the host."""
    return _host(_transformed(pairs(a), n, axis, True, False, norm))


def rfft(a: TensorLike, n: int | None = None, axis: int = -1,
         norm: str | None = None) -> np.ndarray:
    """numpy.fft.rfft of real numbers. The result is complex64, on the host."""
    return _host(_transformed(pairs(a), n, axis, False, True, norm))


def irfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """numpy.fft.irfft: half a spectrum back to real numbers, on the device."""
    x = pairs(a)
    zero = x if x.shape[-1] == 2 else _with_zeros(x)
    return _transformed(zero, n, axis, True, True, norm)[..., 0]


def _with_zeros(x: Tensor) -> Tensor:
    """Pairs of real numbers."""
    joined: Tensor = NUMPY["concatenate"]([x, x * 0.0], -1)
    return joined


def _several(a: TensorLike, axes: Sequence[int] | None, inverse: bool,
             norm: str | None) -> np.ndarray:
    x = pairs(a)
    for axis in range(x.ndim - 1) if axes is None else axes:
        x = _transformed(x, None, axis % (x.ndim - 1), inverse, False, norm)
    return _host(x)


def fft2(a: TensorLike, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> np.ndarray:
    """numpy.fft.fft2. The result is complex64, on the host."""
    return _several(a, axes, False, norm)


def ifft2(a: TensorLike, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> np.ndarray:
    """numpy.fft.ifft2. The result is complex64, on the host."""
    return _several(a, axes, True, norm)


def fftn(a: TensorLike, axes: Sequence[int] | None = None, norm: str | None = None) -> np.ndarray:
    """numpy.fft.fftn. The result is complex64, on the host."""
    return _several(a, axes, False, norm)


def ifftn(a: TensorLike, axes: Sequence[int] | None = None, norm: str | None = None) -> np.ndarray:
    """numpy.fft.ifftn. The result is complex64, on the host."""
    return _several(a, axes, True, norm)


def fftfreq(n: int, d: float = 1.0) -> Tensor:
    """The frequencies of :func:`fft` (numpy.fft.fftfreq)."""
    return device_of().tensor(np.fft.fftfreq(n, d).astype(np.float32))


def rfftfreq(n: int, d: float = 1.0) -> Tensor:
    """The frequencies of :func:`rfft` (numpy.fft.rfftfreq)."""
    return device_of().tensor(np.fft.rfftfreq(n, d).astype(np.float32))


def _shifted(x: Any, axes: Any, sign: int) -> Any:
    if not isinstance(x, Tensor):
        return np.fft.fftshift(x, axes) if sign > 0 else np.fft.ifftshift(x, axes)
    chosen = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    shifts = [sign * (x.shape[d] // 2) for d in chosen]
    return NUMPY["roll"](as_tensor(x), shifts, tuple(chosen))


def fftshift(x: TensorLike, axes: object = None) -> Any:
    """The zero frequency in the middle (numpy.fft.fftshift)."""
    return _shifted(x, axes, 1)


def ifftshift(x: TensorLike, axes: object = None) -> Any:
    """The inverse of :func:`fftshift`."""
    return _shifted(x, axes, -1)
