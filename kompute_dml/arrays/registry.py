"""The functions by NumPy's name, and the names of their arguments in other libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from ..tensors.attached import NUMPY, F

_PUBLIC: dict[str, Callable[..., Any]] = {}
_PYTORCHS = {"dim": "axis", "keepdim": "keepdims"}


def spelled(f: F, spellings: dict[str, str] = _PYTORCHS) -> F:
    """``f`` with further names for its arguments, by default PyTorch's."""

    @functools.wraps(f)
    def call(*args: object, **kwargs: object) -> Any:
        for other in spellings.keys() & kwargs.keys():
            kwargs[spellings[other]] = kwargs.pop(other)
        return f(*args, **kwargs)

    return cast(F, call)


def array_function(*names: str, public: bool = True) -> Callable[[F], F]:
    """Implement NumPy's functions of these names (by default the function's own), and publish it as
    ``kompute_dml.<name>``."""

    def register(f: F) -> F:
        f = spelled(f)
        for name in names or (f.__name__,):
            NUMPY[name] = f
            if public:
                _PUBLIC[name] = f
        return f

    return register


def publish(name: str, f: Callable[..., object]) -> None:
    """Publish ``f`` as ``kompute_dml.<name>`` only, not for ``__array_function__``."""
    _PUBLIC[name] = f


def published() -> dict[str, Callable[..., Any]]:
    """The functions published so far, by name."""
    return dict(_PUBLIC)
