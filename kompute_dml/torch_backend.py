"""What ``import torch`` loads by the entry point ``torch.backends``: the device ``kompute``.

https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html
"""

from __future__ import annotations

import importlib
import warnings


def load() -> None:
    """Register the device. What prevents that is a warning: PyTorch itself works without it."""
    try:
        importlib.import_module("kompute_dml.torch")
    except ImportError as error:
        warnings.warn(f"the device 'kompute' is not registered: {error}", stacklevel=2)
