"""Quantized rows that are no whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Example, normal
from test_convolution import H200_MATRICES


def _build(x: Any) -> Any:
    quantized, scale, zero = dml.dynamic_quantize_linear(x)
    b = (np.arange(100 * 24) % 11 - 5).reshape(100, 24).astype(np.int8)
    return dml.matrix_multiply_integer_to_float(
        quantized, scale, b, np.full((1, 24), 0.25, np.float32), a_zero_point=zero)


EXAMPLE = Example(_build, normal((40, 100)),
                  traits={"cooperative_matrices": H200_MATRICES, "subgroup_size": 32})
