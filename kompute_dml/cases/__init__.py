"""An ordinary case of each operator: what the benchmark times and the self-test and tests compute.

Corner cases, layouts and refusals belong to the tests.
"""

from __future__ import annotations

from . import (
    elementwise,
    gradients,
    images,
    movement,
    products,
    quantize,
    random,
    reduction,
    sequences,
)
from .case import TINY, Entry, OperatorCase, Scale

__all__ = ["CASES", "TINY", "Entry", "OperatorCase", "Scale"]

CASES: dict[str, Entry] = {
    "DML_OPERATOR_" + name: entry
    for family in (
        elementwise, gradients, images, movement, products, quantize, random, reduction,
        sequences)
    for name, entry in family.CASES.items()
}
"""Cases by DirectML's name."""
