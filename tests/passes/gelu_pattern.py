"""A GELU as it is written out."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(lambda x: x * (dml.erf(x / 2**0.5) + 1) * 0.5, normal((4, 24)), close=1e-5,
                  alone="elementwise_fusion,epilogue")
