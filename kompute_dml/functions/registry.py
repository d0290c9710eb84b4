"""The functions that are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_functions: dict[str, Callable[..., Any]] = {}


def function(f: F) -> F:
    """Publish ``f`` as ``kompute_dml.<its name>``."""
    _functions[f.__name__] = f
    return f


def registered() -> dict[str, Callable[..., Any]]:
    """What was published so far, by name."""
    return dict(_functions)
