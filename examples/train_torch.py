"""Train a small network with PyTorch on a Vulkan GPU, compiled, and compare with the CPU.

    pip install '.[torch]'
    python examples/train_torch.py
"""

from __future__ import annotations

import copy
import time

import torch

import kompute_dml.torch  # noqa: F401  registers the device and the backend

STEPS = 20


def train(model: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = torch.compile(model) if x.device.type == "kompute" else model
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(step(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                          nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    x, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    for device in ("cpu", "kompute"):
        began = time.perf_counter()
        losses = train(copy.deepcopy(model).to(device), x.to(device), labels.to(device))
        print(f"{device:8} first loss {losses[0]:.6f}, last {losses[-1]:.6f}, "
              f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
