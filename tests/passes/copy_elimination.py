"""A product writes to where its heads would be copied."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, small

EXAMPLE = Example(
    lambda x, w: dml.activation_softmax1(dml.identity(dml.gemm(x, w).transpose(0, 2, 1, 3))),
    small((2, 3, 5, 8), (2, 3, 8, 4)))
