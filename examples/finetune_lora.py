"""Finetune a small language model by LoRA with PyTorch on a Vulkan GPU, compiled, beside the CPU.

    pip install 'kompute-dml[torch]'
    python examples/finetune_lora.py [--steps 40] [--picture losses.svg]

The model has Llama's form and random weights, which stay as they are. Each linear layer of its
blocks gets a product of two small matrices beside it (https://arxiv.org/abs/2106.09685), and these
learn the bytes of this file. The picture has the losses of both devices.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

import kompute_dml.torch  # noqa: F401  registers the device and the backend

BYTES = 256
DEVICES = {"cpu": "#888888", "kompute": "#c0392b"}


class Sizes(NamedTuple):
    """How large the model and what it reads are."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    rank: int = 8
    batch: int = 8
    length: int = 64


class Lora(nn.Module):
    """A linear layer that stays, and a product of two small matrices that learn. The product is
    zero at first."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float = 2.0) -> None:
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.scale * self.up(self.down(x))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Queries or keys [batch, heads, length, width], turned by their places."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Block(nn.Module):
    """Llama's block: attention with rotated queries and keys, and a gated layer."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.heads = s.heads
        self.norms = nn.ModuleList([nn.RMSNorm(s.width), nn.RMSNorm(s.width)])
        self.q, self.k, self.v, self.o = (
            Lora(nn.Linear(s.width, s.width, bias=False), s.rank) for _ in range(4))
        self.gate, self.up = (
            Lora(nn.Linear(s.width, 3 * s.width, bias=False), s.rank) for _ in range(2))
        self.down = Lora(nn.Linear(3 * s.width, s.width, bias=False), s.rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        y = self.norms[0](x)
        q, k, v = (layer(y).view(n, t, self.heads, -1).transpose(1, 2)
                   for layer in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, t, width))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A language model of bytes. Only what LoRA adds is trained."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(BYTES, s.width)
        self.blocks = nn.Sequential(*[Block(s) for _ in range(s.layers)])
        self.norm, self.last = nn.RMSNorm(s.width), nn.Linear(s.width, BYTES, bias=False)
        for part in (self.words, self.norm, self.last, *[b.norms for b in self.blocks]):
            part.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.blocks(self.words(tokens))))


def finetune(model: Llama, windows: torch.Tensor, steps: int) -> list[float]:
    """The loss of each step. ``windows`` [steps, batch, length + 1] holds bytes."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1),
                                        tokens[:, 1:].flatten())

    run = torch.compile(forward) if windows.device.type == "kompute" else forward
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = run(windows[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def windows_of(text: bytes, steps: int, s: Sizes) -> torch.Tensor:
    """Random windows of a text, [steps, batch, length + 1]."""
    data = torch.tensor([*text])
    begins = torch.randint(0, len(text) - s.length - 1, (steps, s.batch, 1))
    return data[begins + torch.arange(s.length + 1)]


def compare(steps: int, s: Sizes) -> dict[str, list[float]]:
    """The losses of the same training on each device."""
    torch.manual_seed(0)
    model, windows = Llama(s), windows_of(Path(__file__).read_bytes(), steps, s)
    losses = {}
    for device in DEVICES:
        began = time.perf_counter()
        here = copy.deepcopy(model).to(device)
        losses[device] = seen = finetune(here, windows.to(device), steps)
        print(f"{device:8} first loss {seen[0]:.6f}, last {seen[-1]:.6f}, "
              f"{time.perf_counter() - began:.1f} s")
    return losses


def picture(losses: dict[str, list[float]]) -> str:
    """The losses as SVG: a broad line for the CPU, a thin one over it for the device."""
    width, height, edge = 640, 300, 40
    every = [x for values in losses.values() for x in values]
    low, high = min(every), max(every)
    body = []
    for i, (device, values) in enumerate(losses.items()):
        points = " ".join(
            f"{edge + (width - 2 * edge) * step / max(1, len(values) - 1):.1f},"
            f"{edge + (height - 2 * edge) * (high - x) / max(high - low, 1e-9):.1f}"
            for step, x in enumerate(values))
        body.append(f'<polyline points="{points}" fill="none" stroke="{DEVICES[device]}" '
                    f'stroke-width="{2 if i else 7}"/>')
        body.append(f'<text x="{width - edge}" y="{edge + 18 * i}" text-anchor="end" '
                    f'fill="{DEVICES[device]}">{device}: {values[-1]:.4f}</text>')
    for y, x in ((edge, high), (height - edge, low)):
        body.append(f'<text x="4" y="{y}">{x:.2f}</text>')
    body.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">'
                f'{len(every) // len(losses)} steps</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="13">\n'
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
            + "\n".join(body) + "\n</svg>\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--picture", type=Path, default=Path("losses.svg"))
    options = parser.parse_args()
    losses = compare(options.steps, Sizes())
    pairs = zip(losses["cpu"], losses["kompute"])
    print(f"largest difference {max(abs(a - b) / a for a, b in pairs):.1e} of the loss")
    options.picture.write_text(picture(losses), "utf-8")
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
