"""A product of two rows with quantized weights."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Arrays, Example

_COLUMNS, _BLOCKS, _BLOCK = 16, 2, 32


def _arrays(rng: np.random.Generator) -> Arrays:
    return [rng.normal(0, 1, (2, _BLOCKS * _BLOCK)).astype(np.float32),
            rng.integers(-8, 8, (_COLUMNS, _BLOCKS * _BLOCK)).astype(np.int8),
            rng.uniform(0.01, 0.1, (_COLUMNS, _BLOCKS)).astype(np.float32)]


def _build(x: Any, weights: Any, scales: Any) -> Any:
    return dml.gemm(x, dml.dequantize(weights, [scales], quantization_type=1), trans_b=1)


EXAMPLE = Example(_build, _arrays, close=1e-5)
