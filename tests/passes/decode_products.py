"""Two products of one row with quantized weights."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from kompute_dml.runtime.traits import DeviceClass
from passes import Arrays, Example

_COLUMNS, _BLOCKS, _BLOCK = 64, 4, 32


def _arrays(rng: np.random.Generator) -> Arrays:
    weights = [rng.integers(-8, 8, (_COLUMNS, _BLOCKS * _BLOCK)).astype(np.int8) for _ in "ab"]
    scales = [rng.uniform(0.01, 0.03, (_COLUMNS, _BLOCKS)).astype(np.float16) for _ in "ab"]
    return [rng.normal(0, 1, (1, _BLOCKS * _BLOCK)).astype(np.float16), *weights, *scales]


def _build(x: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return [dml.gemm(x, dml.dequantize(w, [scale], quantization_type=1), trans_b=1)
            for w, scale in ((a, scale_a), (b, scale_b))]


EXAMPLE = Example(_build, _arrays, close=2e-3, alone="constant_folding",
                  traits={"device_class": DeviceClass.UNKNOWN}, needs="gemm_decode.floats.r1.p2")
