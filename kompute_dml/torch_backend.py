"""What ``import torch`` loads by the entry point ``torch.backends``: the device ``kompute``.

https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html
"""

from __future__ import annotations

import importlib
import os
import warnings

import torch

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def has_accelerator() -> bool:
    """Whether PyTorch itself drives a GPU here, such as one of CUDA's. NVML says it: CUDA's own
    answer would keep CUDA from processes that are forked later."""
    before = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = "1"
    try:
        return torch.accelerator.is_available()
    finally:
        del os.environ[_BY_NVML]
        if before is not None:
            os.environ[_BY_NVML] = before


def load() -> None:
    """Register the device, unless PyTorch drives a GPU here itself.

    PyTorch counts one accelerator in a process. Once this device is it, backward passes on CUDA
    fail (https://github.com/pytorch/pytorch/issues/161129). So who has CUDA imports
    ``kompute_dml.torch`` where this device is wanted. What prevents registering is a warning:
    PyTorch itself works without it.
    """
    if has_accelerator():
        return
    try:
        importlib.import_module("kompute_dml.torch")
    except ImportError as error:
        warnings.warn(f"the device 'kompute' is not registered: {error}", stacklevel=2)
