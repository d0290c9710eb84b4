"""What this package needs of each release of PyTorch, in one place.

======== ==========================================================================================
release  what is needed
======== ==========================================================================================
2.10     ``_setup_privateuseone_for_python_backend``: the first that registers a device from Python
2.14     nothing else; the newest that the tests have run
======== ==========================================================================================
"""

from __future__ import annotations

import re

import torch

OLDEST = (2, 10)


def check() -> None:
    """Raise ImportError for a release that is too old."""
    version = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST:
        raise ImportError(f"kompute_dml.torch: expected PyTorch {OLDEST[0]}.{OLDEST[1]} or later, "
                          f"but got {torch.__version__}")
