"""PyTorch on any Vulkan GPU: the device ``kompute`` and the backend ``kompute_dml``.

    import torch, kompute_dml.torch

    model = model.to("kompute")                          # eager
    fast = torch.compile(model)                          # compiled, on the device
    fast = torch.compile(model, backend="kompute_dml")   # compiled, tensors of the host
"""

from __future__ import annotations

from . import versions

versions.check()

from .register import register  # noqa: E402

register()

__all__ = ["register"]
