"""Structures and enumerations that operators take as attributes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleBias:
    """DML_SCALE_BIAS: the operator is computed of ``x * scale + bias``. Both are FLOAT."""

    scale: float = 1.0
    bias: float = 0.0


class RoundingMode(enum.IntEnum):
    """DML_ROUNDING_MODE."""

    HALVES_TO_NEAREST_EVEN = 0
    TOWARD_ZERO = 1
    TOWARD_INFINITY = 2
    """To the nearest; halves away from zero."""


class IsInfinityMode(enum.IntEnum):
    """DML_IS_INFINITY_MODE."""

    EITHER = 0
    POSITIVE = 1
    NEGATIVE = 2
