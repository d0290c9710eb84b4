"""Cases of transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import kompute_dml as dml

from ..attributes import ConvolutionDirection, ConvolutionMode
from ..cases import Scale
from ..cases import case as cases
from ..dtypes import DataType
from .case import Peer, Recipe
from .constants import initialized
from .convolution import TO_NCHW, both_formats
from .ordinary import ordinary
from .values import room

if TYPE_CHECKING:
    import torch


def transposed_convolution(
    data_type: DataType, kernel: int, batches: int = 8, channels: int = 256, filters: int = 128,
    side: int = 64,
) -> Recipe:
    """Doubles height and width. Images are channels-last, the filter is OWNED_BY_DML."""
    dtype, start = data_type.dtype, kernel // 2 - 1

    def entry(s: Scale) -> cases.OperatorCase:
        n, c, k, h = s.of(batches), s.of(channels), s.of(filters), max(s.of(side), 4)

        def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
            whole = np.zeros((len(x), 2 * h + kernel, 2 * h + kernel, k))
            for i in range(kernel):
                for j in range(kernel):
                    whole[:, i : i + 2 * h : 2, j : j + 2 * h : 2] += x @ w[:, :, i, j]
            inside = slice(start, start + 2 * h)
            return whole[:, inside, inside].transpose(*TO_NCHW)

        prepared: dict[int, Any] = {}

        def call(
            f: Callable[..., dml.Tensor], x: dml.Tensor, w: dml.Tensor, /,
            out: dml.Tensor | None = None
        ) -> Any:
            if out is None:
                out = x.device.empty((n, 2 * h, 2 * h, k), data_type).transpose(*TO_NCHW)
                prepared[id(out)] = initialized(
                    x.device, dml.ConvolutionOperatorDesc, "filter_tensor",
                    {"input_tensor": x.transpose(*TO_NCHW), "filter_tensor": w,
                     "output_tensor": out},
                    mode=ConvolutionMode.CROSS_CORRELATION,
                    direction=ConvolutionDirection.BACKWARD, strides=(2, 2), dilations=(1, 1),
                    start_padding=(start,) * 2, end_padding=(start,) * 2, output_padding=(0, 0),
                    group_count=1)
            return prepared[id(out)]()

        return cases.case(
            reference, cases.Given((n, h, h, c), -1, 1, dtype),
            cases.Given((c, k, kernel, kernel), -1, 1, dtype, shared=True), call=call,
            room=room(dtype),
            operations=2 * n * h * h * c * k * kernel**2)

    def torch_peers(torch: ModuleType, x: torch.Tensor, w: torch.Tensor) -> Iterator[Peer]:
        return both_formats(torch, torch.nn.functional.conv_transpose2d, x.permute(TO_NCHW), w,
                            stride=2, padding=start)

    return ordinary(
        "DML_OPERATOR_CONVOLUTION",
        f"{data_type.family} channels-last, transposed {kernel} x {kernel} / 2 -> {filters}", entry,
        torch=torch_peers)
