"""Cases of pooling, resampling and regions of interest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, image_sizes, shape, touched_bytes
from .convolution import TO_NCHW
from .peers import Torch
from .values import Output, host, numbers


def _image(device: Device, data_type: DataType, sizes: tuple[int, ...], channels_last: bool) -> Any:
    if not channels_last:
        return device.empty(sizes, data_type)
    n, c, h, w = sizes
    return device.empty((n, h, w, c), data_type).transpose(*TO_NCHW)


def _close(reference: Callable[[], np.ndarray], room: float) -> Callable[[Any], str]:
    """Compares the first image."""

    def check(output: Output) -> str:
        got = host(output[0:1])
        worst = float(np.abs(got.astype(np.float64) - reference()).max())
        return "" if worst <= room else f"{worst} off"

    return check


def _pooled(x: np.ndarray, maximum: bool) -> np.ndarray:
    """3x3, stride 2, padding 1, which does not count."""
    h, w = ((n - 1) // 2 + 1 for n in x.shape[2:])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    taps = np.stack([padded[:, :, i : i + 2 * h : 2, j : j + 2 * w : 2][:, :, :h, :w]
                     for i in range(3) for j in range(3)])
    return np.asarray(np.nanmax(taps, 0) if maximum else np.nanmean(taps, 0))


def pooling(data_type: DataType, what: str, channels_last: bool = False) -> Recipe:
    """``what`` is max, average or global (the average of a plane)."""
    name = f"DML_OPERATOR_{'MAX' if what == 'max' else 'AVERAGE'}_POOLING"
    types = f"{data_type.family} {what}{' channels-last' if channels_last else ''}"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        n, c, h, w = image_sizes(scale, 7)  # several windows at every scale
        pattern = numbers(data_type.dtype, n * c * h * w, 1, 100, 2)
        image = pattern.host().reshape(n, c, h, w)
        x = _image(device, data_type, (n, c, h, w), channels_last)
        dml.activation_identity(pattern.tensor(device).reshape(n, c, h, w), out=x)
        whole = what == "global"
        size = (1, 1) if whole else ((h - 1) // 2 + 1, (w - 1) // 2 + 1)
        out = _image(device, data_type, (n, c, *size), channels_last)
        arguments: dict[str, Any] = dict(window_size=(h, w)) if whole else dict(
            window_size=3, strides=2, start_padding=1,
            end_padding=tuple(max(2 * (s - 1) + 2 - k, 0) for s, k in zip(size, (h, w))))
        function = dml.max_pooling if what == "max" else dml.average_pooling

        def expected() -> np.ndarray:
            first = image[:1].astype(np.float64)
            return first.mean((2, 3), keepdims=True) if whole else _pooled(first, what == "max")

        def torch_peers(library: Torch) -> Iterator[Peer]:
            torch = library.torch
            f = torch.nn.functional
            x = library.tensor(pattern).reshape(n, c, h, w)
            if channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            yield Peer("torch", {
                "global": lambda: f.adaptive_avg_pool2d(x, 1),
                "max": lambda: f.max_pool2d(x, 3, 2, 1),
                "average": lambda: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            }[what])

        yield Case(name, types, shape(x.sizes), lambda: function(x, out=out, **arguments),
                   _close(expected, 0.2 if data_type is DataType.FLOAT16 else 1e-3),
                   touched_bytes((x.desc, out.desc)), peers={"torch": torch_peers})

    return Recipe(name, types, make)
