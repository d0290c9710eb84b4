"""Cases of resampling and of regions of interest."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..cases import case as cases
from ..cases.images import TWICE, doubled
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, image_sizes, shape, touched_bytes
from .ordinary import ordinary
from .peers import Torch
from .values import Output, host, numbers, room

if TYPE_CHECKING:
    import torch

_REGIONS = 1000
_CHECKED = 4
"""Regions that are checked at each end."""


def resampled(data_type: DataType) -> Recipe:
    """RESAMPLE to twice the height and width."""

    def entry(s: Scale) -> cases.OperatorCase:
        return cases.case(
            doubled, cases.Given(image_sizes(s), -1, 1, data_type.dtype), **TWICE,
            room=room(data_type.dtype))

    def torch_peers(torch: ModuleType, x: torch.Tensor) -> Iterator[Peer]:
        yield Peer("torch", lambda: torch.nn.functional.interpolate(
            x, scale_factor=2, mode="bilinear"))

    return ordinary("DML_OPERATOR_RESAMPLE", f"{data_type.family} bilinear x 2", entry,
                    torch=torch_peers)


def aligned(data_type: DataType, side: int = 50, cells: int = 7, samples: int = 2) -> Recipe:
    """ROI_ALIGN1 of regions of an image of 256 channels, as ONNX's RoiAlign has it."""
    name = "DML_OPERATOR_ROI_ALIGN1"
    types = f"{data_type.family} {_REGIONS} regions to {cells} x {cells}"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        sizes, count = (1, scale.of(256), side, side), max(scale.of(_REGIONS), 2 * _CHECKED)
        pattern = numbers(data_type.dtype, int(np.prod(sizes)), -1, 1, 4)
        rng = np.random.default_rng(5)
        # Eighths are exact in both types. All samples lie inside the image.
        starts = rng.integers(8, 8 * 30, (count, 2)) / 8
        corners = np.concatenate([starts, starts + rng.integers(32, 8 * 18, (count, 2)) / 8], 1)
        x, roi = pattern.tensor(device).reshape(*sizes), device.tensor(
            corners.astype(data_type.dtype))
        batch = device.tensor(np.zeros(count, np.uint32))
        out = device.empty((count, sizes[1], cells, cells), data_type)

        def means(low: float, high: float) -> np.ndarray:
            """{cells, side}: the weights of an axis."""
            total = cells * samples
            at = low + (np.arange(total) + 0.5) * (high - low) / total - 0.5
            weights = np.maximum(1 - np.abs(at[:, None] - np.arange(side)), 0)
            return np.asarray(weights.reshape(cells, samples, side).mean(1))

        def check(output: Output) -> str:
            image = pattern.host().reshape(sizes[1:]).astype(np.float64)
            for part in (slice(0, _CHECKED), slice(count - _CHECKED, count)):
                got = host(output[part]).astype(np.float64)
                expected = np.stack([means(top, bottom) @ image @ means(left, right).T
                                     for left, top, right, bottom in corners[part]])
                worst = float(np.abs(got - expected).max())
                if not worst <= (1e-3 if data_type is DataType.FLOAT16 else 1e-4):
                    return f"{worst} off"
            return ""

        def torch_peers(library: Torch) -> Iterator[Peer]:
            from torchvision.ops import roi_align

            x = library.tensor(pattern).reshape(*sizes)
            regions = library.send(np.concatenate(
                [np.zeros((count, 1)), corners], 1).astype(data_type.dtype))
            # In FLOAT16, torchvision's coordinates are FLOAT16 numbers, too.
            yield Peer("torchvision", lambda: roi_align(
                x, regions, cells, sampling_ratio=samples, aligned=True),
                checked=data_type is DataType.FLOAT32)

        yield Case(
            name, types, f"{shape(sizes)} -> {shape(out.sizes)}",
            lambda: dml.roi_align1(x, roi, batch, minimum_samples_per_output=samples,
                                   maximum_samples_per_output=samples, out=out),
            check, touched_bytes(t.desc for t in (x, roi, batch, out)),
            peers={"torch": torch_peers})

    return Recipe(name, types, make)
