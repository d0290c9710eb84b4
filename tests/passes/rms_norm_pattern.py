"""An RMS normalization as it is written out, in FLOAT32 between CASTs of FLOAT16."""

from __future__ import annotations

from typing import Any

import kompute_dml as dml
from passes import Example, normal


def _build(x: Any) -> Any:
    half = dml.cast(x, "float16")
    single = dml.cast(half, "float32")
    mean = dml.reduce(single * single, axes=(1,), function="AVERAGE")
    share = dml.recip(dml.sqrt(mean + 1e-3))
    return dml.cast(single * share.broadcast_to(x.sizes), "float16") * half


EXAMPLE = Example(_build, normal((4, 24)), close=2e-3)
