"""Pixels roll along both axes."""

from __future__ import annotations

from typing import Any

import kompute_dml as dml
from passes import Example, normal


def _build(x: Any) -> Any:
    x = dml.exp(x)
    x = dml.join([x[:, 2:], x[:, :2]], axis=1)
    return dml.negate(dml.join([x[:, :, 3:], x[:, :, :3]], axis=2))


EXAMPLE = Example(_build, normal((2, 6, 10, 8)))
