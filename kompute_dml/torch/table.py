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
COMPLEX: dict[object, Lowering] = {}
"""By overload: those that take or give complex numbers, which others would take for integers."""


_ABSENT: dict[str, Lowering] = {}
"""Lowerings of operators that PyTorch does not know yet, by name."""


def overload(name: str) -> object:
    """``"add.Tensor"`` of ATen, or of the namespace that is written before ``::``. None where this
    release of PyTorch has none."""
    space, _, name = name.rpartition("::")
    packet, _, variant = name.partition(".")
    operator = getattr(getattr(torch.ops, space or "aten"), packet, None)
    return getattr(operator, variant or "default", None)


def lowers(*names: str, takes_complex: bool = False) -> Callable[[_F], _F]:
    """Enter a lowering of these overloads, of complex numbers if the operator has another one of
    real numbers."""
    def enter(function: _F) -> _F:
        for name in names:
            target = overload(name)
            if target is None:
                _ABSENT[name] = function
            elif takes_complex:
                COMPLEX[target] = function
                LOWERINGS.setdefault(target, function)
            else:
                LOWERINGS[target] = function
        return function

    return enter


def enter_others() -> None:
    """Enter lowerings of operators whose libraries were imported meanwhile."""
    for name in [*_ABSENT]:
        target = overload(name)
        if target is not None:
            LOWERINGS[target] = _ABSENT.pop(name)


def lowered(target: object, *args: Any, **kwargs: Any) -> Any:
    """Apply the lowering of an overload. Raises Unsupported where complex numbers come, or would
    come out, and it knows none."""
    lowering = COMPLEX.get(target)
    if lowering is None or not _has_complex((args, kwargs)):
        lowering = LOWERINGS[target]
        if target not in COMPLEX and _has_complex((args, kwargs)):
            raise Unsupported("complex numbers")
    return lowering(*args, **kwargs)


def _has_complex(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any(map(_has_complex, tree))
    if isinstance(tree, dict):
        return any(map(_has_complex, tree.values()))
    dtype = tree if isinstance(tree, torch.dtype) else getattr(tree, "dtype", None)
    return isinstance(tree, complex) or (isinstance(dtype, torch.dtype) and dtype.is_complex)


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Apply the lowering of another operator."""
    target = overload(name)
    if target not in LOWERINGS:
        raise Unsupported(f"no lowering of {name}")
    return lowered(target, *args, **kwargs)
