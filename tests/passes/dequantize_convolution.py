"""An integer convolution whose sums are scaled."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Arrays, Example


def _arrays(rng: np.random.Generator) -> Arrays:
    return [rng.integers(-9, 9, (1, 8, 5, 6)).astype(np.int8),
            rng.integers(-9, 9, (8, 8, 3, 3)).astype(np.int8)]


def _build(x: Any, w: Any) -> Any:
    sums = dml.cast(dml.convolution_integer(x, w), data_type="float32")
    scale = x.device.constant(np.full((1, 1, 1, 1), 0.3, np.float32))
    return dml.multiply(sums, scale.broadcast_to(sums.sizes))


EXAMPLE = Example(_build, _arrays)
