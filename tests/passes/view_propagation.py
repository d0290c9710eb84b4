"""A softmax reads rows of its input."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(
    lambda x: dml.activation_softmax1(dml.slice(x, offsets=(2, 0), sizes=(4, 8), strides=(2, 1))),
    normal((10, 8)))
