"""An integer convolution of images of one position."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Arrays, Example


def _arrays(rng: np.random.Generator) -> Arrays:
    return [rng.normal(0, 3, (4, 96, 1, 1)).astype(np.float32),
            rng.integers(-128, 128, (24, 96, 1, 1)).astype(np.int8)]


def _build(x: Any, w: Any) -> Any:
    quantized, scale, zero = dml.dynamic_quantize_linear(x)
    y = dml.cast(dml.convolution_integer(quantized, w, x_zero_point=zero), data_type="float32")
    of_w = x.device.constant(np.full((1, 24, 1, 1), 0.002, np.float32))
    both = dml.multiply(scale.broadcast_to(of_w.sizes), of_w)
    return dml.multiply(y, both.broadcast_to(y.sizes))


EXAMPLE = Example(_build, _arrays)
