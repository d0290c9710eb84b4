"""A product and its activation."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, small

EXAMPLE = Example(lambda x, w: dml.activation_relu(dml.gemm(x, w)), small((5, 8), (8, 4)),
                  alone="epilogue")
