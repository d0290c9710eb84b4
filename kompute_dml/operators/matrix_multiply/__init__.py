"""Matrix products."""

from __future__ import annotations

from . import to_float as _to_float  # noqa: F401  (registers it)
