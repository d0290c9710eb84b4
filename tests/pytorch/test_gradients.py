"""Operators that come with their own gradients, on the device ``kompute`` beside the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")

DEVICE = "kompute"
functional = torch.nn.functional
Results = tuple[Any, ...]
CASES: dict[str, Callable[[str], Results]] = {}
"""Each gives results and gradients on a device."""


def case(function: Callable[..., Results], *args: Any) -> Any:
    name = " ".join([function.__name__, *map(str, args)])
    CASES[name] = functools.partial(function, *args)
    return function


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help, and every test draws the same numbers."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch.manual_seed(0)


def numbers(*sizes: int, device: str) -> Any:
    return torch.randn(*sizes).to(device).requires_grad_()


def with_gradients(y: Any, *inputs: Any) -> Results:
    weights = torch.linspace(0.5, 2, y.numel()).view(y.shape).to(y.device)
    return (y, *torch.autograd.grad((y * weights).sum(), inputs))


def whole(values: Any, device: str) -> Any:
    return torch.tensor(values, device=device)


def of_tensor(least: int, most: int, device: str) -> Results:
    x = numbers(5, 7, device=device)
    return with_gradients(torch.fake_quantize_per_tensor_affine(x, 0.07, 3, least, most), x)


case(of_tensor, 0, 255)
case(of_tensor, -8, 7)


def of_tensor_by_tensors(device: str) -> Results:
    x = numbers(5, 7, device=device)
    y = torch.fake_quantize_per_tensor_affine(
        x, whole(0.1, device), whole(3, device).int(), 0, 15)
    off = torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, whole([0.1], device), whole([3], device).int(), whole([0], device), 0, 15)
    return (*with_gradients(y, x), *off)


case(of_tensor_by_tensors)


def of_channels(axis: int, device: str) -> Results:
    x = numbers(4, 3, 4, device=device)
    scale = torch.tensor([0.1, 0.02, 0.3, 0.05][:x.shape[axis]]).to(device)
    zero = torch.tensor([0, 3, -2, 1][:x.shape[axis]]).to(device)
    return with_gradients(torch.fake_quantize_per_channel_affine(
        x, scale, zero.int(), axis, -8, 7), x)


case(of_channels, 0)
case(of_channels, 1)


def learnable(device: str) -> Results:
    x, share = numbers(4, 6, device=device), 0.3
    scale = whole([0.2], device).requires_grad_()
    zero = whole([1.4], device).requires_grad_()
    y = torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -4, 3, share)
    return with_gradients(y, x, scale, zero)


case(learnable)


def learnable_of_channels(axis: int, device: str) -> Results:
    x = numbers(4, 4, 3, device=device)
    scale = whole([0.2, 0.4, 0.1, 0.9], device).requires_grad_()
    zero = whole([0.4, -1.0, 2.6, 0.0], device).requires_grad_()
    y = torch._fake_quantize_learnable_per_channel_affine(x, scale, zero, axis, -4, 3, 0.5)
    return with_gradients(y, x, scale, zero)


case(learnable_of_channels, 0)
case(learnable_of_channels, 1)


def paths(zero_infinity: bool, device: str) -> Results:
    """Labels that repeat, none at all, more than there are steps, and steps after the end."""
    x = numbers(9, 5, 6, device=device)
    labels = whole([[1, 2, 2, 3], [4, 5, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 2, 2]], device)
    y = functional.ctc_loss(
        x.log_softmax(-1), labels, whole([9, 7, 8, 4, 3], device), whole([4, 2, 3, 0, 4], device),
        reduction="none", zero_infinity=zero_infinity)
    return with_gradients(y, x)


case(paths, True)
case(paths, False)


def paths_side_by_side(reduction: str, device: str) -> Results:
    x = numbers(7, 2, 5, device=device)
    y = functional.ctc_loss(x.log_softmax(-1), whole([1, 2, 2, 4, 3], device), (7, 5), (3, 2),
                            blank=0, reduction=reduction)
    return with_gradients(y, x)


def long_paths(device: str) -> Results:
    """Logarithms of chances far below 0 lose no digits."""
    x = numbers(50, 3, 20, device=device)
    labels = torch.randint(1, 20, (3, 30)).to(device)
    y = functional.ctc_loss(x.log_softmax(-1), labels, (50, 50, 48), (29, 12, 20), reduction="sum")
    return with_gradients(y, x)


case(long_paths)
case(paths_side_by_side, "mean")
case(paths_side_by_side, "sum")


def segments(reduce: str, device: str) -> Results:
    data = torch.randn(6, 3).round(decimals=0)  # equal ones share a gradient
    x = data.to(device).requires_grad_()
    full = with_gradients(torch.segment_reduce(x, reduce, lengths=whole([2, 3, 1], device)), x)
    gaps = torch.segment_reduce(x, reduce, lengths=whole([2, 0, 4], device))
    from_one = with_gradients(torch.segment_reduce(
        x, reduce, offsets=whole([0, 2, 2, 6], device), initial=0.25), x)
    return (*full, gaps, *from_one)


for reduction in ("sum", "mean", "max", "min"):
    case(segments, reduction)


def norms_of_rows(order: float, device: str) -> Results:
    table = torch.nn.Embedding(6, 4, max_norm=1.0, norm_type=order)
    torch.nn.init.normal_(table.weight)
    table = table.to(device)
    y = table(whole([[1, 2], [2, 5]], device))
    return (*with_gradients(y, table.weight), table.weight)


for order in (2.0, 1.0, 3.0, float("inf")):
    case(norms_of_rows, order)


def jagged(device: str) -> Results:
    x = numbers(8, 4, device=device)
    y = torch.nested.nested_tensor_from_jagged(x, whole([0, 3, 3, 8], device))
    padded = torch.nested.to_padded_tensor(functional.gelu(y) * 2, -1.0)
    more = (y + 1).softmax(-1)
    return (*with_gradients(padded, x), more.values(), y.sum(1), y.mean(1))


case(jagged)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    expected = CASES[name]("cpu")
    torch.manual_seed(0)
    found = CASES[name](DEVICE)
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == DEVICE
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-5,
                                   equal_nan=True)


def test_lengths_of_segments_fill_the_rows() -> None:
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="to sum to data"):
            torch.segment_reduce(torch.ones(4, device=device), "sum",
                                 lengths=whole([2, 1], device))


def test_numbers_that_are_none_are_quantized() -> None:
    x = torch.tensor([float("nan"), 1e30, -1e30])
    results = [torch.fake_quantize_per_tensor_affine(y, 0.1, 3, 0, 15).tolist()
               for y in (x[:1], x[:1].to(DEVICE))]
    assert results[0] == results[1]


def attention_of_jagged(causal: bool, device: str) -> Results:
    parts = [numbers(8, 2, 8, device=device) for _ in range(3)]
    q, k, v = (torch.nested.nested_tensor_from_jagged(x, whole([0, 3, 8], device)).transpose(1, 2)
               for x in parts)
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return with_gradients(y.transpose(1, 2).values(), *parts)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_jagged_tensors(causal: bool) -> None:
    """Each pair of rows is a text of its own. Some releases have no such attention on the CPU."""
    found = attention_of_jagged(causal, DEVICE)
    torch.manual_seed(0)
    parts = [numbers(8, 2, 8, device="cpu") for _ in range(3)]
    texts = [functional.scaled_dot_product_attention(
        *[x[a:b].transpose(0, 1) for x in parts], is_causal=causal).transpose(0, 1)
        for a, b in ((0, 3), (3, 8))]
    for a, b in zip(found, with_gradients(torch.cat(texts), *parts), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention(compiled: bool) -> None:
    """By a bias of each head, a mask, and a row that sees nothing."""
    flex = torch.nn.attention.flex_attention
    torch._dynamo.reset()
    host = [torch.randn(1, heads, 16, 8).requires_grad_() for heads in (4, 2, 2)]
    bias = torch.randn(4)
    places = torch.arange(16)
    seen = (places[:, None] >= places) & (places != 5)[:, None]
    scores = host[0] @ host[1].repeat_interleave(2, 1).transpose(2, 3) / 8 ** 0.5
    scores = scores + bias[:, None, None] * (places[:, None] - places)
    weights = scores.where(seen, -1e30).softmax(-1) * seen
    expected = with_gradients(weights @ host[2].repeat_interleave(2, 1), *host)

    ours = [x.detach().to(DEVICE).requires_grad_() for x in host]
    head_bias = bias.to(DEVICE)
    mask = flex.create_block_mask(lambda b, h, i, j: (i >= j) & (i != 5), None, None, 16, 16,
                                  device=DEVICE)
    run = torch.compile(flex.flex_attention, fullgraph=True) if compiled else flex.flex_attention
    y = run(*ours, score_mod=lambda s, b, h, i, j: s + head_bias[h] * (i - j), block_mask=mask,
            enable_gqa=True)
    for a, b in zip(with_gradients(y, *ours), expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-5)
