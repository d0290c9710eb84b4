"""The graph that takes operators instead of a device.

Functions need no more of graphs than this. The rest is imported when a graph is made.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import Device
    from .operators.base import OperatorDesc
    from .tensors import Tensor


class Tracer:
    """Takes the operators of functions, for later."""

    device: Device

    def add(self, desc: OperatorDesc, tensors: Mapping[str, Tensor]) -> None:
        """Take an operator over these expressions and tensors, by slot."""
        raise NotImplementedError


tracing: contextvars.ContextVar[Tracer | None] = contextvars.ContextVar("graph", default=None)
"""The graph of the innermost ``with`` block."""
