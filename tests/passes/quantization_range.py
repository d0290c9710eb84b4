"""An integer convolution whose results are quantized."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Arrays, Example


def _arrays(rng: np.random.Generator) -> Arrays:
    return [rng.integers(0, 256, (1, 36, 26, 17)).astype(np.uint8),
            rng.integers(-128, 128, (36, 1, 3, 3)).astype(np.int8)]


def _build(x: Any, w: Any) -> Any:
    sums = dml.cast(dml.convolution_integer(x, w, group_count=36), data_type="float32")
    scale = x.device.constant(np.full((1, 1, 1, 1), 0.3, np.float32))
    y = dml.multiply(sums, scale.broadcast_to(sums.sizes))
    return [y, *dml.dynamic_quantize_linear(y)]


EXAMPLE = Example(_build, _arrays)
