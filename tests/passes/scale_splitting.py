"""A product of two scales."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Arrays, Example


def _arrays(rng: np.random.Generator) -> Arrays:
    return [rng.integers(0, 256, (3, 32)).astype(np.uint8),
            rng.integers(-128, 128, (32, 24)).astype(np.int8),
            rng.random((1, 1)).astype(np.float32), rng.random((1, 24)).astype(np.float32)]


def _build(a: Any, b: Any, of_a: Any, of_b: Any) -> Any:
    scale = dml.multiply(of_a.broadcast_to(of_b.sizes), of_b)
    return dml.matrix_multiply_integer_to_float(a, np.ones((1, 1), np.float32), b, scale)


EXAMPLE = Example(_build, _arrays)
