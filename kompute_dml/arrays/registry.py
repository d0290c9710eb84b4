"""The functions by NumPy's name, and how other libraries spell their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
NUMPY: dict[str, Callable[..., Any]] = {}
"""What ``__array_function__`` answers: a function of this name for NumPy's."""
_PUBLIC: dict[str, Callable[..., Any]] = {}
_PYTORCHS = {"dim": "axis", "keepdim": "keepdims"}


def spelled(f: F, spellings: dict[str, str] = _PYTORCHS) -> F:
    """``f``, which takes arguments under other names, too; by default PyTorch's."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        for other in spellings.keys() & kwargs.keys():
            kwargs[spellings[other]] = kwargs.pop(other)
        return f(*args, **kwargs)

    return cast(F, call)


def array_function(*names: str, public: bool = True) -> Callable[[F], F]:
    """Answer NumPy's functions of these names, by default the function's own, and publish it as
    ``kompute_dml.<name>``."""

    def register(f: F) -> F:
        f = spelled(f)
        for name in names or (f.__name__,):
            NUMPY[name] = f
            if public:
                _PUBLIC[name] = f
        return f

    return register


def publish(name: str, f: Callable[..., Any]) -> None:
    """Publish ``f``, which NumPy calls by other means or not at all, as ``kompute_dml.<name>``."""
    _PUBLIC[name] = f


def published() -> dict[str, Callable[..., Any]]:
    """What was published so far, by name."""
    return dict(_PUBLIC)
