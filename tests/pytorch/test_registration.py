"""When the device is registered, beside an accelerator that PyTorch drives itself."""

from __future__ import annotations

import importlib
import os

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

from kompute_dml import torch_backend  # noqa: E402


@pytest.mark.parametrize("accelerator", [False, True])
def test_importing_torch_registers_the_device_where_it_is_the_only_accelerator(
    monkeypatch: pytest.MonkeyPatch, accelerator: bool
) -> None:
    """Beside it, backward passes on CUDA fail in PyTorch."""
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    torch_backend.load()
    assert imported == ([] if accelerator else ["kompute_dml.torch"])


@pytest.mark.parametrize("before", [None, "0"])
def test_accelerators_are_asked_for_by_nvml(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """CUDA itself would not work in processes that are forked afterwards."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    asked: list[str | None] = []
    monkeypatch.setattr(torch.accelerator, "is_available",
                        lambda: asked.append(os.environ.get(name)))
    torch_backend.has_accelerator()
    assert asked == ["1"] and os.environ.get(name) == before
