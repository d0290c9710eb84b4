"""A layer normalization as it is written out."""

from __future__ import annotations

from typing import Any

import kompute_dml as dml
from passes import Example, normal


def _build(x: Any) -> Any:
    difference = x - dml.reduce(x, axes=(1,), function="AVERAGE").broadcast_to(x.sizes)
    variance = dml.reduce(difference * difference, axes=(1,), function="AVERAGE")
    return difference / dml.sqrt(variance + 1e-3).broadcast_to(x.sizes)


EXAMPLE = Example(_build, normal((4, 24)), close=1e-5)
