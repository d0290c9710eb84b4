"""Cases of convolutions of quantized images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..cases import case as cases
from .case import Recipe
from .convolution import TO_NCHW, BenchLayer
from .ordinary import ordinary


def quantized_convolution(layer: BenchLayer) -> Recipe:
    """QUANTIZED_LINEAR_CONVOLUTION of INT8 for a layer of stride 1. Images and filters are
    channels-last."""
    edge = layer.kernel // 2

    def entry(s: Scale) -> cases.OperatorCase:
        n, side = s.of(layer.batches), max(s.of(layer.side), layer.kernel)
        x = cases.Given((n, side, side, layer.channels), -128, 128, np.int8)
        w = cases.Given((layer.filters, layer.kernel, layer.kernel, layer.channels), -128, 128,
                        np.int8, shared=True)
        taps = layer.kernel**2 * layer.channels
        # A power of two, by which sums seldom leave the range.
        step = cases.one(2.0 ** round(np.log2(taps**0.5 * 74 * 74 / 40)))

        def reference(
            x: np.ndarray, _: object, w: np.ndarray, __: object, y: np.ndarray
        ) -> np.ndarray:
            padded = np.pad(x.astype(np.float64), ((0, 0), (edge, edge), (edge, edge), (0, 0)))
            total = sum(
                padded[:, i : i + side, j : j + side] @ w[:, i, j].T.astype(np.float64)
                for i in range(layer.kernel) for j in range(layer.kernel))
            return np.clip(np.rint(total / y), -128, 127).transpose(TO_NCHW)

        def call(
            f: Callable[..., dml.Tensor], x: dml.Tensor, x_scale: dml.Tensor, w: dml.Tensor,
            w_scale: dml.Tensor, y_scale: dml.Tensor, /, out: dml.Tensor | None = None,
            **more: object
        ) -> Any:
            if out is None:
                out = x.device.empty((n, side, side, layer.filters), "int8").transpose(*TO_NCHW)
            return f(x.transpose(*TO_NCHW), x_scale, None, w.transpose(*TO_NCHW), w_scale, None,
                     y_scale, out=out, **more)

        return cases.case(
            reference, x, cases.one(1), w, cases.one(1), step, call=call,
            start_padding=edge, end_padding=edge,
            operations=2 * n * side * side * layer.filters * taps)

    return ordinary("DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION",
                    f"i8 channels-last, {layer}", entry)
