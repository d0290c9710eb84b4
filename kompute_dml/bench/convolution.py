"""Cases of convolutions: layers of well-known networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, shape, touched_bytes
from .constants import initialized
from .peers import OnnxRuntime, Torch
from .values import Output, host

if TYPE_CHECKING:
    import torch

_NAME = "DML_OPERATOR_CONVOLUTION"
TO_NCHW = (0, 3, 1, 2)
"""Permutes channels-last tensors."""
_CHECKED = 64
"""Elements of an output that are checked."""


@dataclass(frozen=True)
class BenchLayer:
    """A square convolution. Its padding keeps the image's size, except for the stride."""

    batches: int
    channels: int
    filters: int
    side: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def out_side(self) -> int:
        return (self.side - 1) // self.stride + 1

    def __str__(self) -> str:
        return (f"{shape((self.batches, self.channels, self.side, self.side))} {self.kernel} x "
                f"{self.kernel} / {self.stride} -> {self.filters}"
                + (f", {self.groups} groups" if self.groups > 1 else ""))


def both_formats(
    torch: ModuleType, function: Callable[..., object], *given: torch.Tensor, **more: object
) -> Iterator[Peer]:
    """PyTorch's function of tensors in both of its memory formats."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    for name, form in (("torch", torch.contiguous_format),
                       ("torch channels-last", torch.channels_last)):
        yield Peer(name, partial(
            function, *(t.contiguous(memory_format=form) for t in given), **more))


def convolution(
    data_type: DataType, layer: BenchLayer, channels_last: bool = True, constant: bool = True
) -> Recipe:
    """A layer. Smaller scales have fewer images of fewer pixels. ``constant``: the filter is
    OWNED_BY_DML, as a network's is, so its preparation is not timed. PyTorch gets it in its own
    format."""
    types = f"{data_type.family}{' channels-last' if channels_last else ''}, {layer}"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        yield _case(device, types, data_type, BenchLayer(
            scale.of(layer.batches), layer.channels, layer.filters,
            max(scale.of(layer.side), layer.kernel), layer.kernel, layer.stride, layer.groups),
            channels_last, constant)

    return Recipe(_NAME, types, make)


def _case(device: Device, types: str, data_type: DataType, layer: BenchLayer, last: bool,
          constant: bool) -> Case:
    rng = np.random.default_rng(4)
    n, side, out_side, start = layer.batches, layer.side, layer.out_side, layer.kernel // 2
    end = max((out_side - 1) * layer.stride + layer.kernel - side - start, 0)
    channels = layer.channels // layer.groups
    x = rng.uniform(-1, 1, (n, side, side, layer.channels)).astype(data_type.dtype)
    w = rng.uniform(-1, 1, (layer.filters, layer.kernel, layer.kernel, channels)).astype(
        data_type.dtype)

    def tensor(values: np.ndarray) -> Any:
        if last:
            return device.tensor(values).transpose(*TO_NCHW)
        return device.tensor(np.ascontiguousarray(values.transpose(*TO_NCHW)))

    image, taps = tensor(x), tensor(w)
    sizes = (n, layer.filters, out_side, out_side)
    out = device.empty(sizes, data_type)
    if last:
        out = device.empty((n, out_side, out_side, layer.filters), data_type).transpose(*TO_NCHW)

    def check(output: Output) -> str:
        got = host(output)
        padded = np.pad(x, ((0, 0), (start, end), (start, end), (0, 0)))
        picks = np.random.default_rng(5)
        for _ in range(_CHECKED):
            b, f, i, j = (int(picks.integers(size)) for size in sizes)
            window = padded[b, i * layer.stride :][: layer.kernel, j * layer.stride :][
                :, : layer.kernel]
            group = f // (layer.filters // layer.groups) * channels
            products = window[..., group : group + channels].astype(np.float64) * w[f]
            room = products.size * 2.0**-24 * np.abs(products).sum() + 2.0**-10 * abs(
                products.sum())
            if not abs(float(got[b, f, i, j]) - products.sum()) <= room:
                return f"{got[b, f, i, j]} at {b, f, i, j}, which must be {products.sum()}"
        return ""

    window: dict[str, Any] = {
        "strides": (layer.stride,) * 2, "start_padding": (start,) * 2, "end_padding": (end,) * 2,
        "group_count": layer.groups}

    def dispatch() -> Any:
        return dml.convolution(image, taps, **window, out=out)

    if constant:
        dispatch = initialized(
            device, dml.ConvolutionOperatorDesc, "filter_tensor",
            {"input_tensor": image, "filter_tensor": taps, "output_tensor": out}, **window,
            mode=dml.ConvolutionMode.CROSS_CORRELATION,
            direction=dml.ConvolutionDirection.FORWARD, dilations=(1, 1), output_padding=(0, 0))

    def torch_peers(library: Torch) -> Iterator[Peer]:
        torch = library.torch
        pair = (library.send(np.ascontiguousarray(v.transpose(*TO_NCHW))) for v in (x, w))
        return both_formats(torch, torch.nn.functional.conv2d, *pair, stride=layer.stride,
                            padding=start, groups=layer.groups)

    def onnxruntime_peers(library: OnnxRuntime) -> Iterator[Peer]:
        if data_type is DataType.FLOAT32:
            yield Peer("onnxruntime", library.session(
                "Conv", [np.ascontiguousarray(v.transpose(*TO_NCHW)) for v in (x, w)],
                strides=[layer.stride] * 2, pads=[start, start, end, end], group=layer.groups))

    return Case(_NAME, types, str(layer), dispatch, check,
                touched_bytes((image.desc, taps.desc, out.desc)),
                2 * out.desc.element_count * channels * layer.kernel**2,
                peers={"torch": torch_peers, "onnxruntime": onnxruntime_peers})
