"""A SWISH as it is written out."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(lambda x: x * dml.activation_sigmoid(x), normal((4, 24)), close=1e-5,
                  alone="elementwise_fusion,epilogue")
