"""The command that repeats a failed test."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

_CHOSEN = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "PYTHONPATH")
"""Variables that choose drivers and kp, besides this package's own."""


def to_repeat(item: pytest.Item) -> str:
    """The command line that repeats the test, with all variables that affect it."""
    chosen = {name: value for name, value in sorted(os.environ.items()) if name in _CHOSEN
              or (name.startswith("KOMPUTE_DML_") and value)}
    words = [sys.executable, "-m", "pytest", item.nodeid,
             "--seed", str(item.config.getoption("seed"))]
    return shlex.join([*(["env"] if chosen else []),
                       *(f"{name}={value}" for name, value in chosen.items()), *words])
