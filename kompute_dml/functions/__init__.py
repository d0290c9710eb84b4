"""The function level: NumPy-like functions over tensors and arrays.

Every implemented operator has a function. Most are made from the registry (:mod:`.generated`,
:mod:`.broadcasting`); the other modules define those whose arguments differ from the structure.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from .. import operators as _operators  # noqa: F401  (registers them)
from ..operators.base import definitions
from .broadcasting import make_broadcasting
from .generated import make_function
from .registry import registered


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """The function level by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    result = registered()
    for definition in definitions().values():
        make = make_broadcasting if definition.broadcasts else make_function
        if definition.function_name not in result:
            result[definition.function_name] = make(definition)
    return result
