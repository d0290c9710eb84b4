"""The rows of the mapping table, by family."""

from __future__ import annotations

from . import composed, convolution, elementwise, movement, products, reduction, transformer

FAMILIES = (products, elementwise, movement, reduction, convolution, transformer, composed)
TABLE = tuple(row for family in FAMILIES for row in family.ROWS)
