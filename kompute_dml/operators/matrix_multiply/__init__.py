"""Matrix products."""

from __future__ import annotations

from . import gemm as _gemm  # noqa: F401
from . import integer as _integer  # noqa: F401
from . import quantized as _quantized  # noqa: F401
from . import to_float as _to_float  # noqa: F401  (registers it)
