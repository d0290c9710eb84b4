"""Two softmaxes of the same values."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(
    lambda x: dml.multiply(dml.activation_softmax1(x), dml.activation_softmax1(x)), normal((6, 8)))
