"""What :mod:`kompute_dml.arrays` attaches to tensors, which lie below it.

The first device imports the arrays: see :attr:`kompute_dml.Device.attached`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
NUMPY: dict[str, Callable[..., Any]] = {}
"""The functions for ``__array_function__``, by NumPy's name."""
UFUNCS: dict[str, Callable[..., Any]] = {}
"""Functions ``f(*operands, out=None, dtype=None)``, by NumPy's name."""
METHODS: dict[str, Callable[..., Any]] = {}
"""What else methods of tensors call, by the function's name."""


def attached(function: F) -> F:
    """Let methods of tensors call a function."""
    METHODS[function.__name__] = function
    return function
