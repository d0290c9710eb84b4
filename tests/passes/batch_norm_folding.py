"""A batch normalization of constants after a convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Example, normal


def _build(x: Any) -> Any:
    w = (np.arange(4 * 27, dtype=np.float32) % 7 - 3).reshape(4, 3, 3, 3)
    y = dml.convolution(x, w)
    mean, variance, scale, bias = (
        x.device.constant(np.array(n, np.float32).reshape(1, 4, 1, 1)).broadcast_to(y.sizes)
        for n in ((1, 2, 3, 4), (1, 2, 1, 2), (2, 1, 2, 1), (0, 1, 0, 1)))
    return dml.batch_normalization(y, mean, variance, scale, bias, spatial=True, epsilon=1e-3)


EXAMPLE = Example(_build, normal((1, 3, 8, 8)), close=1e-5)
