"""The functions that are written by hand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .call_cache import cached_call

F = TypeVar("F", bound=Callable[..., Any])
_functions: dict[str, Callable[..., Any]] = {}


def function(f: F) -> F:
    """Publish ``f`` as ``kompute_dml.<its name>``. Too many positional arguments raise an error
    that lists the keyword-only ones."""
    code: Any = f.__code__  # inspect.signature takes much longer
    places = code.co_argcount
    named = code.co_varnames[places:places + code.co_kwonlyargcount]
    takes_more = bool(code.co_flags & inspect.CO_VARARGS)

    @functools.wraps(f)
    def call(*args: object, **kwargs: object) -> Any:
        if len(args) > places and not takes_more:
            raise TypeError(f"{f.__name__}() {too_many(named)}")
        return f(*args, **kwargs)

    _functions[f.__name__] = cached = cached_call(call)
    return cached  # type: ignore[return-value]


def too_many(named: Iterable[str]) -> str:
    return f"too many positional arguments; by name only: {', '.join(named)}"


def registered() -> dict[str, Callable[..., Any]]:
    """The functions published so far, by name."""
    return dict(_functions)
