"""The table of lowerings: ATen's operators as functions of this package.

A lowering takes and returns :class:`~kompute_dml.torch.values.Value`. What it cannot do, it says by
:class:`Unsupported`, before it computes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .types import Unsupported

Lowering = Callable[..., Any]  # of an operator's own arguments
_F = TypeVar("_F", bound=Lowering)
LOWERINGS: dict[object, Lowering] = {}
"""By overload."""


def overload(name: str) -> object:
    """``"add.Tensor"`` of ATen, or of the namespace that is written before ``::``. None where this
    release of PyTorch has none."""
    space, _, name = name.rpartition("::")
    packet, _, variant = name.partition(".")
    operator = getattr(getattr(torch.ops, space or "aten"), packet, None)
    return getattr(operator, variant or "default", None)


def lowers(*names: str) -> Callable[[_F], _F]:
    """Enter a lowering of these overloads."""
    def enter(function: _F) -> _F:
        for name in names:
            target = overload(name)
            if target is not None:
                LOWERINGS[target] = function
        return function

    return enter


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Apply the lowering of another operator."""
    target = overload(name)
    if target not in LOWERINGS:
        raise Unsupported(f"no lowering of {name}")
    return LOWERINGS[target](*args, **kwargs)
