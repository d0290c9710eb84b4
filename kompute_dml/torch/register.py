"""Makes the device and the backend known to PyTorch."""

from __future__ import annotations

import pkgutil
import warnings

import torch._dynamo
from torch._dynamo import register_backend

import kompute_dml

from ..torch_backend import has_accelerator
from . import attention, autocast, backend, device, patches, storage, versions

_registered: list[object] = []


def register() -> None:
    """Register once: the device type, its operators, and the backend of torch.compile."""
    if _registered:
        return
    if has_accelerator():
        warnings.warn("PyTorch counts one accelerator in a process, which is 'kompute' from here "
                      "on. Backward passes on the other one fail in PyTorch.", stacklevel=2)
    _registered.extend((device.register(), autocast.register()))
    storage.register()
    patches.register()
    attention.register()
    versions.keep_checks()
    register_backend(backend.backend, name="kompute_dml")
    _keep_from_dynamo()


def _keep_from_dynamo() -> None:
    """Else Dynamo compiles this package's own NumPy code where a graph breaks. What is timed in
    ``bench`` is code of PyTorch's, and is compiled."""
    for part in pkgutil.iter_modules(kompute_dml.__path__):
        if part.name != "bench":
            torch._dynamo.trace_rules.add(f"kompute_dml.{part.name}")
