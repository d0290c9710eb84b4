"""PyTorch's own decompositions of operators that the table has no lowering of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._decomp import core_aten_decompositions, decomposition_table

from . import rows  # noqa: F401  fills the table
from .table import LOWERINGS


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By overload: all of PyTorch's but for those into prims, and for what is lowered whole."""
    plain = {target: function for target, function in decomposition_table.items()
             if not getattr(function, "__module__", "").startswith("torch._refs")}
    return {target: function for target, function in {**plain, **core_aten_decompositions()}.items()
            if target not in LOWERINGS and "lift" not in str(target)}


@functools.cache
def references() -> dict[Any, Callable[..., Any]]:
    """By overload: PyTorch's Python definitions (``torch._refs``) of what has neither a lowering
    nor a decomposition. For eager calls only: graphs would hold prims."""
    return {target: function for target, function in decomposition_table.items()
            if getattr(function, "__module__", "").startswith("torch._refs")
            and target not in LOWERINGS and target not in decompositions()}
