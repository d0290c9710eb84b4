"""Memory that no tensor uses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import kompute_dml.torch  # noqa: E402, F401
from kompute_dml.torch import memory  # noqa: E402

DEVICE = "kompute"


def test_unused_memory_stays_until_the_cache_is_emptied() -> None:
    """Blocks of the heap stay, so that the next step finds its memory at the same places."""
    torch.kompute.empty_cache()
    before = torch.kompute.memory_reserved()
    heap = memory.device().runtime.heap
    blocks = [*heap.blocks]
    x = [torch.empty(24 << 20, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
    held = torch.kompute.memory_reserved()
    assert held >= before + (96 << 20) - heap.used
    added = [b for b in heap.blocks if b not in blocks]
    del x
    torch.kompute.synchronize()
    assert torch.kompute.memory_reserved() == held
    assert added and all(b in heap.blocks for b in added)
    torch.kompute.empty_cache()
    assert torch.kompute.memory_reserved() == before
