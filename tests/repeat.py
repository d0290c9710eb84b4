"""How a test that failed is run again."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

_CHOSEN = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "PYTHONPATH")
"""What chooses drivers and kp, beside this package's own variables."""


def to_repeat(item: pytest.Item) -> str:
    """The line that runs the test again, with all that chooses what it meets."""
    chosen = {name: value for name, value in sorted(os.environ.items()) if name in _CHOSEN
              or (name.startswith("KOMPUTE_DML_") and value)}
    words = [sys.executable, "-m", "pytest", item.nodeid,
             "--seed", str(item.config.getoption("seed"))]
    return shlex.join([*(["env"] if chosen else []),
                       *(f"{name}={value}" for name, value in chosen.items()), *words])
