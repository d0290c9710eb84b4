"""A normalization between convolutions whose channels lie side by side."""

from __future__ import annotations

from typing import Any

import kompute_dml as dml
from passes import Example, normal


def _build(x: Any, w: Any) -> Any:
    y = dml.mean_variance_normalization1(
        dml.identity(x.transpose(0, 3, 1, 2)).reshape(2, 3, 4, 30), axes=(2, 3),
        normalize_variance=True, epsilon=1e-5)
    return dml.convolution(y.reshape(2, 12, 5, 6), w)


EXAMPLE = Example(_build, normal((2, 5, 6, 12), (8, 12, 3, 3)), close=1e-5)
