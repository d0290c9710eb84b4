"""Small and usual networks of PyTorch with random weights, for the suite torch and for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Workload(NamedTuple):
    """A network and what it is trained with."""

    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def to(self, device: str) -> Workload:
        """The same on a device. The model itself moves."""
        return self._replace(model=self.model.to(device), inputs=self.inputs.to(device),
                             labels=self.labels.to(device))


class NetworkSizes(NamedTuple):
    """How large a network is."""

    batch: int
    length: int
    """Tokens of a text, or pixels of an image's side."""
    width: int
    """Channels of the first layer."""
    layers: int
    words: int = 64
    """Words of a vocabulary, or classes."""


class Bottleneck(nn.Module):
    """ResNet-50's block: 1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def _resnet(s: NetworkSizes) -> nn.Module:
    depths = (3, 4, 6, 3)[: s.layers] if s.layers > 2 else (1,) * s.layers
    parts: list[nn.Module] = [nn.Conv2d(3, s.width, 7, 2, 3, bias=False), nn.BatchNorm2d(s.width),
                              nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = s.width
    for i, depth in enumerate(depths):
        width = s.width << i
        for j in range(depth):
            parts.append(Bottleneck(channels, width, 2 if i and not j else 1))
            channels = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, s.words))


class TransformerLayer(nn.Module):
    """A transformer's layer, with norms before, as GPT-2's, or after, as BERT's."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = max(1, width // 64) if width >= 64 else 2, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        q, k, v = (y.view(n, t, self.heads, width // self.heads).transpose(1, 2)
                   for y in self.qkv(x).split(width, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.merge(y.transpose(1, 2).reshape(n, t, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.causal:
            x = x + self.attend(self.norms[0](x))
            return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        x = self.norms[0](x + self.attend(x))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class LanguageNetwork(nn.Module):
    """A language model whose embedding and last layer have the same weights."""

    def __init__(self, s: NetworkSizes, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(s.words, s.width), nn.Embedding(s.length, s.width)
        self.layers = nn.Sequential(*[TransformerLayer(s.width, causal) for _ in range(s.layers)])
        self.norm, self.last = nn.LayerNorm(s.width), nn.Linear(s.width, s.words, bias=False)
        self.last.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.last(self.norm(self.layers(self.words(tokens) + self.places(places))))


class Recurrent(nn.Module):
    """A language model of an LSTM."""

    def __init__(self, s: NetworkSizes) -> None:
        super().__init__()
        self.words = nn.Embedding(s.words, s.width)
        self.cell = nn.LSTM(s.width, s.width, s.layers, batch_first=True)
        self.last = nn.Linear(s.width, s.words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.cell(self.words(tokens))[0])


class StepBlock(nn.Module):
    """A block of a UNet: group norms, convolutions, and the step's embedding added."""

    def __init__(self, channels: int, out: int, steps: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, channels), nn.GroupNorm(4, out)])
        self.convolutions = nn.ModuleList([nn.Conv2d(channels, out, 3, 1, 1),
                                           nn.Conv2d(out, out, 3, 1, 1)])
        self.step, self.shortcut = nn.Linear(steps, out), nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        y = self.convolutions[0](functional.silu(self.norms[0](x)))
        y = y + self.step(functional.silu(step))[:, :, None, None]
        return self.shortcut(x) + self.convolutions[1](functional.silu(self.norms[1](y)))


class UNet(nn.Module):
    """Two scales of a diffusion model's network."""

    def __init__(self, s: NetworkSizes) -> None:
        super().__init__()
        w = s.width
        self.first, self.step = nn.Conv2d(3, w, 3, 1, 1), nn.Linear(8, 4 * w)
        self.down = nn.ModuleList([StepBlock(w, w, 4 * w) for _ in range(s.layers)])
        self.smaller = nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.middle = StepBlock(2 * w, 2 * w, 4 * w)
        self.up = nn.ModuleList([StepBlock(3 * w if not i else w, w, 4 * w)
                                 for i in range(s.layers)])
        self.last = nn.Conv2d(w, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        times = torch.linspace(0, 1, x.shape[0] * 8, device=x.device).view(x.shape[0], 8)
        step = self.step(times.cos())
        y = self.first(x)
        for block in self.down:
            y = block(y, step)
        z = functional.interpolate(self.middle(self.smaller(y), step), scale_factor=2)
        y = torch.cat([y, z], 1)
        for block in self.up:
            y = block(y, step)
        return self.last(y)


class Addition(nn.Module):
    """One operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def _mlp(s: NetworkSizes) -> nn.Module:
    layers = [nn.Linear(s.width, s.width) for _ in range(s.layers)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.GELU())],
                         nn.Linear(s.width, s.words))


def _classes(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(y.flatten(0, -2), labels.flatten())


_S = NetworkSizes
NETWORKS: dict[str, tuple[Callable[[NetworkSizes], nn.Module], NetworkSizes, NetworkSizes]] = {
    "mlp": (_mlp, _S(8, 0, 64, 3, 8), _S(4096, 0, 2048, 8, 1024)),
    "resnet": (_resnet, _S(2, 16, 4, 1, 8), _S(32, 224, 64, 4, 1000)),
    "bert": (lambda s: LanguageNetwork(s, False), _S(2, 12, 32, 2), _S(8, 512, 768, 12, 30522)),
    "gpt2": (lambda s: LanguageNetwork(s, True), _S(2, 12, 32, 2), _S(8, 512, 768, 12, 50257)),
    "lstm": (Recurrent, _S(2, 6, 16, 1), _S(32, 64, 512, 2, 10000)),
    "unet": (UNet, _S(2, 4, 4, 1), _S(1, 64, 320, 2)),
}
"""How each is made, and its sizes on a CPU driver and on a GPU."""


ONE = "add"
"""A network of one operator, whose time is the host's."""


def workload(name: str, large: bool = False, seed: int = 0) -> Workload:
    """A network on the CPU with random weights and data. Equal seeds give equal ones."""
    sizes = (None, None) if name == ONE else NETWORKS[name][1:]
    return sized(name, sizes[large], seed)


def sized(name: str, s: NetworkSizes | None, seed: int = 0) -> Workload:
    """:func:`workload` of other sizes. :data:`ONE` has none."""
    torch.manual_seed(seed)
    if s is None:
        return Workload(Addition(), torch.randn(8, 64), torch.zeros(()), _classes)
    model = NETWORKS[name][0](s)
    if name == "unet":
        x = torch.randn(s.batch, 3, s.length, s.length)
        return Workload(model, x, torch.randn_like(x), functional.mse_loss)
    if name in ("mlp", "resnet"):
        shape: Any = (s.batch, s.width) if name == "mlp" else (s.batch, 3, s.length, s.length)
        return Workload(model, torch.randn(shape), torch.randint(0, s.words, (s.batch,)), _classes)
    tokens = torch.randint(0, s.words, (s.batch, s.length))
    return Workload(model, tokens, tokens.roll(-1, 1), _classes)
