"""NumPy's functions over tensors: its names, its promotion of types, its arguments.

They compute with the function level (:mod:`~kompute_dml.functions`), which has DirectML's names
and promotes nothing. Where both have a name (``max``), ``kompute_dml`` publishes a function that
serves both.
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
    """What ``kompute_dml`` publishes beside DirectML's operators, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return published()
