"""What has no kernel: one warning for each operator that names it, or an error."""

from __future__ import annotations

import os
import warnings

from .types import Unsupported

VARIABLE = "KOMPUTE_DML_TORCH_FALLBACK"
_warned: set[str] = set()


class FallbackWarning(UserWarning):
    """An operator ran on the CPU."""


def report(operator: str, reason: str) -> None:
    """Say once that an operator runs on the CPU, or raise where the environment variable
    KOMPUTE_DML_TORCH_FALLBACK is 0."""
    if os.environ.get(VARIABLE) == "0":
        raise Unsupported(f"kompute: {operator} has no kernel here ({reason}), and {VARIABLE}=0 "
                          "forbids the CPU")
    if operator not in _warned:
        _warned.add(operator)
        warnings.warn(f"kompute: {operator} runs on the CPU: {reason}", FallbackWarning,
                      stacklevel=3)
