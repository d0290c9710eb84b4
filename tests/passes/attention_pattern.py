"""Attention as it is written out."""

from __future__ import annotations

from typing import Any

import kompute_dml as dml
from passes import Example, normal


def _build(*arrays: Any) -> Any:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in arrays)
    return dml.gemm(dml.activation_softmax1(dml.gemm(q, k, trans_b=1) * 0.25), v,
                    out=q.device.empty((2, 5, 3, 16)).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


EXAMPLE = Example(_build, normal((2, 5, 3, 16), (2, 7, 3, 16), (2, 7, 3, 16)), close=1e-5)
