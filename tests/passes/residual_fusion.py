"""A normalization of a sum."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(
    lambda x, y: dml.mean_variance_normalization1(
        dml.add(x, y), axes=(1,), normalize_variance=True, epsilon=1e-5),
    normal((4, 24), (4, 24)))
