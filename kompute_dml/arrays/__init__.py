"""NumPy's functions over tensors: its names, its promotion of types, its arguments.

They call the function level (:mod:`~kompute_dml.functions`), which has DirectML's names and does
not promote types. Where both use a name (``max``), ``kompute_dml`` publishes one function for both.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from .registry import published


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """The functions that ``kompute_dml`` publishes besides DirectML's operators, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return published()
