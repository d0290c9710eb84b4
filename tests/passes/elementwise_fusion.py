"""Three elementwise operators."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(lambda x, y: dml.abs(dml.exp(x) * y), normal((4, 24), (4, 24)))
