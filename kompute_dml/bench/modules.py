"""Networks that no package of :data:`.architectures.NEEDED` has, as PyTorch's modules of the usual
sizes. Their weights are random."""

from __future__ import annotations

import math
from typing import Any


def detector() -> Any:
    """A detector like YOLOv8n: an image of 3 channels to [N, 84, boxes], boxes on three grids."""
    import torch
    from torch import nn

    def conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(after), nn.SiLU())

    class Split(nn.Module):
        """A convolution whose second half goes through bottlenecks; all parts are joined."""

        def __init__(self, before: int, after: int, count: int, adds: bool = True) -> None:
            super().__init__()
            half = after // 2
            self.adds = adds
            self.first = conv(before, after, 1)
            self.parts = nn.ModuleList(
                nn.Sequential(conv(half, half), conv(half, half)) for _ in range(count))
            self.last = conv(half * (2 + count), after, 1)

        def forward(self, x: torch.Tensor) -> Any:
            parts = list(self.first(x).chunk(2, 1))
            for part in self.parts:
                y = part(parts[-1])
                parts.append(parts[-1] + y if self.adds else y)
            return self.last(torch.cat(parts, 1))

    class Pools(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = conv(channels, channels // 2, 1)
            self.pool = nn.MaxPool2d(5, 1, 2)
            self.last = conv(2 * channels, channels, 1)

        def forward(self, x: torch.Tensor) -> Any:
            parts = [self.first(x)]
            for _ in range(3):
                parts.append(self.pool(parts[-1]))
            return self.last(torch.cat(parts, 1))

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early = nn.Sequential(
                conv(3, 16, stride=2), conv(16, 32, stride=2), Split(32, 32, 1),
                conv(32, 64, stride=2), Split(64, 64, 2))
            self.middle = nn.Sequential(conv(64, 128, stride=2), Split(128, 128, 2))
            self.late = nn.Sequential(conv(128, 256, stride=2), Split(256, 256, 1), Pools(256))
            self.up = nn.Upsample(scale_factor=2)
            self.joins = nn.ModuleList(Split(before, after, 1, adds=False) for before, after in (
                (384, 128), (192, 64), (192, 128), (384, 256)))
            self.downs = nn.ModuleList(conv(n, n, stride=2) for n in (64, 128))
            self.heads = nn.ModuleList(nn.ModuleList(nn.Sequential(
                conv(n, width), conv(width, width), nn.Conv2d(width, layers, 1))
                for width, layers in ((64, 64), (80, 80))) for n in (64, 128, 256))

        def forward(self, x: torch.Tensor) -> Any:
            a = self.early(x)
            b = self.middle(a)
            c = self.late(b)
            b = self.joins[0](torch.cat([self.up(c), b], 1))
            a = self.joins[1](torch.cat([self.up(b), a], 1))
            b = self.joins[2](torch.cat([self.downs[0](a), b], 1))
            c = self.joins[3](torch.cat([self.downs[1](b), c], 1))
            maps = [torch.cat([head(y) for head in heads], 1).flatten(2)
                    for heads, y in zip(self.heads, (a, b, c))]
            sides, scores = torch.cat(maps, 2).split((64, 80), 1)
            sides = sides.unflatten(1, (4, 16)).softmax(2)
            places = torch.arange(16, dtype=x.dtype, device=x.device).reshape(1, 1, 16, 1)
            return torch.cat([(sides * places).sum(2), scores.sigmoid()], 1)

    return Detector()


def upscaler(blocks: int = 4) -> Any:
    """Like ESRGAN: blocks of dense convolutions, and an image of four times the sides."""
    import torch
    from torch import nn

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Conv2d(64 + 32 * i, 32 if i < 4 else 64, 3, padding=1) for i in range(5))

        def forward(self, x: torch.Tensor) -> Any:
            parts = [x]
            for layer in self.layers:
                y = layer(torch.cat(parts, 1))
                parts.append(nn.functional.leaky_relu(y, 0.2))
            return x + 0.2 * y

    class DenseBlocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(Dense(), Dense(), Dense())

        def forward(self, x: torch.Tensor) -> Any:
            return x + 0.2 * self.parts(x)

    class Upscaler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 64, 3, padding=1)
            self.body = nn.Sequential(*(DenseBlocks() for _ in range(blocks)),
                                      nn.Conv2d(64, 64, 3, padding=1))
            layers: list[Any] = []
            for _ in range(2):
                layers += [nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1),
                           nn.LeakyReLU(0.2)]
            self.last = nn.Sequential(*layers, nn.Conv2d(64, 64, 3, padding=1), nn.LeakyReLU(0.2),
                                      nn.Conv2d(64, 3, 3, padding=1))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.first(x)
            return self.last(y + self.body(y))

    return Upscaler()


def denoiser(width: int = 320, context: int = 768) -> Any:
    """Like Stable Diffusion 1.5's UNet: latents [N, 4, H, W], a time for each of N, and a text
    [N, words, ``context``]."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(32, before), nn.SiLU(),
                                       nn.Conv2d(before, after, 3, padding=1))
            self.time = nn.Sequential(nn.SiLU(), nn.Linear(4 * width, after))
            self.last = nn.Sequential(nn.GroupNorm(32, after), nn.SiLU(),
                                      nn.Conv2d(after, after, 3, padding=1))
            self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

        def forward(self, x: torch.Tensor, time: torch.Tensor) -> Any:
            y = self.first(x) + self.time(time)[:, :, None, None]
            return self.skip(x) + self.last(y)

    class CrossAttention(nn.Module):
        def __init__(self, channels: int, seen: int) -> None:
            super().__init__()
            self.q = nn.Linear(channels, channels, bias=False)
            self.k = nn.Linear(seen, channels, bias=False)
            self.v = nn.Linear(seen, channels, bias=False)
            self.out = nn.Linear(channels, channels)

        def forward(self, x: torch.Tensor, seen: torch.Tensor) -> Any:
            q, k, v = (y.unflatten(2, (8, -1)).transpose(1, 2)
                       for y in (self.q(x), self.k(seen), self.v(seen)))
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.transpose(1, 2).flatten(2))

    class Transformer(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(32, channels)
            self.before = nn.Conv2d(channels, channels, 1)
            self.after = nn.Conv2d(channels, channels, 1)
            self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
            self.own = CrossAttention(channels, channels)
            self.text = CrossAttention(channels, context)
            self.gate = nn.Linear(channels, 8 * channels)
            self.down = nn.Linear(4 * channels, channels)

        def forward(self, x: torch.Tensor, text: torch.Tensor) -> Any:
            y = self.before(self.norm(x)).flatten(2).transpose(1, 2)
            z = self.norms[0](y)
            y = y + self.own(z, z)
            y = y + self.text(self.norms[1](y), text)
            z, gate = self.gate(self.norms[2](y)).chunk(2, -1)
            y = y + self.down(z * nn.functional.gelu(gate))
            return x + self.after(y.transpose(1, 2).unflatten(2, x.shape[2:]))

    class DenoiserLayer(nn.Module):
        """A residual block, and a transformer where the level has them."""

        def __init__(self, before: int, after: int, attends: bool) -> None:
            super().__init__()
            self.block = Residual(before, after)
            self.attention = Transformer(after) if attends else None

        def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> Any:
            x = self.block(x, time)
            return x if self.attention is None else self.attention(x, text)

    widths = [width * n for n in (1, 2, 4, 4)]

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(),
                                      nn.Linear(4 * width, 4 * width))
            self.first = nn.Conv2d(4, width, 3, padding=1)
            self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
            kept, now = [width], width
            for level, n in enumerate(widths):
                for _ in range(2):
                    self.downs.append(DenoiserLayer(now, n, level < 3))
                    kept.append(now := n)
                if level < 3:
                    self.downs.append(nn.Conv2d(n, n, 3, 2, 1))
                    kept.append(n)
            self.middle = nn.ModuleList(DenoiserLayer(now, now, attends)
                                        for attends in (True, False))
            for level, n in reversed(list(enumerate(widths))):
                for _ in range(3):
                    self.ups.append(DenoiserLayer(now + kept.pop(), n, level < 3))
                    now = n
                if level:
                    self.ups.append(nn.Conv2d(n, n, 3, padding=1))
            self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(),
                                      nn.Conv2d(width, 4, 3, padding=1))

        def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> Any:
            half = width // 2
            steps = torch.arange(half, dtype=torch.float32, device=x.device)
            angles = time[:, None].float() * torch.exp(-math.log(10000) / half * steps)
            time = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))
            x = self.first(x)
            kept = [x]
            for layer in self.downs:
                x = layer(x, time, text) if isinstance(layer, DenoiserLayer) else layer(x)
                kept.append(x)
            for layer in self.middle:
                x = layer(x, time, text)
            for layer in self.ups:
                if isinstance(layer, DenoiserLayer):
                    x = layer(torch.cat([x, kept.pop()], 1), time, text)
                else:
                    x = layer(nn.functional.interpolate(x, scale_factor=2.0))
            return self.last(x)

    return Denoiser()
