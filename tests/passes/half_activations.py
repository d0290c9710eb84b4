"""A softmax of FLOAT16 as PyTorch writes it: in FLOAT32 between CASTs."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from passes import Example


def _build(x: Any) -> Any:
    shares = dml.activation_softmax1(dml.cast(x, "float32").reshape(8, 24, 1), axes=(1,))
    return dml.cast(shares.reshape(*x.sizes), "float16")


EXAMPLE = Example(_build, lambda rng: [rng.normal(0, 3, (2, 4, 24)).astype(np.float16)])
