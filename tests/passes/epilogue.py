"""A product with another tensor."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, small

EXAMPLE = Example(lambda x, w, y: dml.gemm(x, w) * y, small((5, 8), (8, 4), (5, 4)))
