"""A group normalization as PyTorch exports it."""

from __future__ import annotations

from typing import Any

import kompute_dml as dml
from passes import Example, normal


def _build(x: Any, scale: Any, bias: Any) -> Any:
    y = dml.mean_variance_normalization1(
        x.reshape(2, 3, 2 * 30), axes=(2,), normalize_variance=True, epsilon=1e-5)
    return y.reshape(2, 6, 5, 6) * scale.broadcast_to((2, 6, 5, 6)) + bias.broadcast_to(
        (2, 6, 5, 6))


EXAMPLE = Example(_build, normal((2, 6, 5, 6), (1, 6, 1, 1), (1, 6, 1, 1)), close=1e-5,
                  alone="elementwise_fusion,epilogue")
