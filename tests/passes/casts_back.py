"""A softmax of FLOAT16 whose result is cast to FLOAT32 and back."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Example


def _build(x: Any) -> Any:
    return dml.cast(dml.cast(dml.activation_softmax1(x), "float32"), "float16") * x


EXAMPLE = Example(_build, lambda rng: [rng.normal(0, 3, (4, 24)).astype(np.float16)],
                  alone="epilogue")
