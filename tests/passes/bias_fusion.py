"""A bias is a product's C."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, small

EXAMPLE = Example(lambda x, w, b: dml.gemm(x, w) + b, small((5, 8), (8, 4), (1, 4)),
                  alone="epilogue")
