"""The functions of torch_directml under their names, for code that was written for it.

    import kompute_dml.torch.directml as torch_directml

https://learn.microsoft.com/windows/ai/directml/pytorch-windows
"""

from __future__ import annotations

import torch

from . import memory


def device(index: int | None = None) -> torch.device:
    """The device of this number, by default :func:`default_device`."""
    return torch.device(memory.NAME, default_device() if index is None else index)


def device_count() -> int:
    """How many devices PyTorch can use here: 1, or 0 without a Vulkan device."""
    return int(torch.kompute.is_available())


def device_name(index: int = 0) -> str:
    """The name of the adapter."""
    return memory.device(index).adapter.name


def default_device() -> int:
    """The number of the device that is taken if none is named."""
    return 0


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def gpu_memory(index: int = 0, mb_per_tile: int = 1) -> list[float]:
    """The parts of the device's memory, of ``mb_per_tile`` MiB each, that are in use: between 0
    and 1. They are filled in order: Vulkan does not say where an allocation lies."""
    used, total = memory.device().memory_used, memory.device(index).adapter.device_memory
    tile = mb_per_tile << 20
    return [min(1.0, max(0.0, (used - i * tile) / tile)) for i in range(-(-total // tile))]
