"""Small networks of many families on the device ``kompute``, compiled and eager, beside the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("kompute_dml.torch")

nn, functional = torch.nn, torch.nn.functional
STEPS = 10
Inputs = dict[str, torch.Tensor]
Maker = Callable[[], tuple[nn.Module, Inputs]]
MAKERS: dict[str, Maker] = {}
"""Each makes a network, whose result is a loss, and its inputs."""


def network(maker: Maker) -> Maker:
    return MAKERS.setdefault(maker.__name__, maker)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch._dynamo.reset()


class Loss(nn.Module):
    """The loss that a model of transformers gives for labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, use_cache=False).loss


@network
def t5() -> tuple[nn.Module, Inputs]:
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=19, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1,
        num_heads=2, dropout_rate=0.0, decoder_start_token_id=0,
        relative_attention_num_buckets=8))
    tokens = torch.randint(1, 19, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return Loss(model), {"input_ids": tokens, "attention_mask": mask,
                         "labels": torch.randint(1, 19, (2, 5))}


@network
def mixture() -> tuple[nn.Module, Inputs]:
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        vocab_size=19, hidden_size=16, intermediate_size=32, moe_intermediate_size=8,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        num_experts=4, num_experts_per_tok=2))
    tokens = torch.randint(0, 19, (2, 7))
    return Loss(model), {"input_ids": tokens, "labels": tokens}


@network
def whisper() -> tuple[nn.Module, Inputs]:
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        vocab_size=19, num_mel_bins=6, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_source_positions=10, max_target_positions=8, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None))
    return Loss(model), {"input_features": torch.randn(2, 6, 20),
                         "labels": torch.randint(1, 19, (2, 5))}


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.ViTForImageClassification(transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, image_size=12, patch_size=4,
            num_labels=5))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.model(x).logits, labels)


@network
def vit() -> tuple[nn.Module, Inputs]:
    return ViT(), {"x": torch.randn(3, 3, 12, 12), "labels": torch.randint(0, 5, (3,))}


class UNet(nn.Module):
    """A step down and up, group norms, attention between, and a skip, told the time of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 8) for _ in range(3)])
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.last = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(4, device=x.device))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        skip = self.first(x + noise * t[:, None, None, None])
        y = functional.silu(self.norms[0](self.down(functional.silu(self.norms[1](skip)))) + time)
        y = functional.interpolate(y, scale_factor=2.0, mode="nearest")
        y = functional.avg_pool2d(self.middle(y), 2)
        tokens = self.norms[2](y).flatten(2).transpose(1, 2)
        tokens, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        y = y + tokens.transpose(1, 2).reshape(y.shape)
        return functional.mse_loss(self.last(torch.cat([skip, self.up(y)], 1)), noise)


@network
def unet() -> tuple[nn.Module, Inputs]:
    return UNet(), {"x": torch.randn(2, 3, 8, 8), "t": torch.rand(2),
                    "noise": torch.randn(2, 3, 8, 8)}


def losses(name: str, device: str, compiled: bool) -> list[float]:
    """Of ten steps of AdamW."""
    torch.manual_seed(0)
    model, inputs = MAKERS[name]()
    model = model.train().to(device)
    inputs = {k: x.to(device) for k, x in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    run = torch.compile(model) if compiled else model
    with torch.no_grad():
        values = [run(**inputs).item()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run(**inputs)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


on_cpu = functools.cache(functools.partial(losses, device="cpu", compiled=False))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", MAKERS)
def test_forward_and_ten_steps(name: str, compiled: bool) -> None:
    values, expected = losses(name, "kompute", compiled), on_cpu(name)
    assert values == pytest.approx(expected, rel=1e-4)
    assert values[-1] < values[0]


def gan(device: str, compiled: bool) -> list[float]:
    """The losses of both networks in ten steps of Adam."""
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 2, 4, 2, 1, bias=False), nn.Tanh())
    critic = nn.Sequential(nn.Conv2d(2, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4),
                           nn.Flatten(), nn.Sigmoid())
    truth, noise = torch.randn(4, 2, 8, 8), torch.randn(STEPS, 4, 6, 1, 1)
    truth, noise = truth.to(device), noise.to(device)
    makes, judges = generator.to(device), critic.to(device)
    optimizers = [torch.optim.Adam(m.parameters(), 2e-3, betas=(0.5, 0.999))
                  for m in (critic, generator)]
    if compiled:
        makes, judges = torch.compile(makes), torch.compile(judges)
    ones, zeros = torch.ones(4, 1, device=device), torch.zeros(4, 1, device=device)
    values = []
    for z in noise:
        images = makes(z)
        optimizers[0].zero_grad()
        loss = (functional.binary_cross_entropy(judges(truth), ones)
                + functional.binary_cross_entropy(judges(images.detach()), zeros))
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        cheated = functional.binary_cross_entropy(judges(images), ones)
        cheated.backward()
        optimizers[1].step()
        values += [loss.item(), cheated.item()]
    return values


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_ten_steps_of_a_gan(compiled: bool) -> None:
    assert gan("kompute", compiled) == pytest.approx(gan("cpu", False), rel=1e-4)
