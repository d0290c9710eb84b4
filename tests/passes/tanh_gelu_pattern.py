"""A GELU by tanh as it is written out."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(
    lambda x: x * 0.5 * (dml.tanh((x + x * x * x * 0.044715) * (2 / 3.14159265) ** 0.5) + 1),
    normal((4, 24)), close=1e-5, alone="elementwise_fusion,epilogue")
