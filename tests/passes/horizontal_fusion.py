"""Two products of one matrix with constants."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Example, small


def _build(x: Any) -> Any:
    first, second = (np.arange(256, dtype=np.float32).reshape(16, 16) % n for n in (5, 7))
    return dml.multiply(x @ first, x @ second)


EXAMPLE = Example(_build, small((40, 16)))
