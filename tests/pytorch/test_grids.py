"""Images that are sampled anew or pooled, and their gradients, against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
functional = torch.nn.functional


def same(function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor],
         compiled: bool) -> None:
    """The results and gradients on both devices."""
    theirs = [x.clone().requires_grad_() for x in inputs]
    ours = [x.to("kompute").requires_grad_() for x in inputs]
    run = torch.compile(function, dynamic=False) if compiled else function
    expected, y = function(*theirs), run(*ours)
    g = torch.randn_like(expected)
    torch.testing.assert_close(y.detach().cpu(), expected.detach(), rtol=1e-4, atol=2e-5)
    for p, q in zip(torch.autograd.grad(expected, theirs, g),
                    torch.autograd.grad(y, ours, g.to("kompute"))):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-4, atol=2e-5)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("rank", [2, 3])
def test_samples_of_a_grid(rank: int, mode: str, padding: str) -> None:
    for corners, sizes in itertools.product((True, False), ((5, 4, 3), (4, 1, 1))):
        grid = torch.randn(2, *(3, 4, 2)[:rank], rank) * 1.3
        same(lambda x, at: functional.grid_sample(x, at, mode, padding, corners),  # noqa: B023
             [torch.randn(2, 3, *sizes[:rank]), grid], compiled=corners and sizes[1] > 1)


def test_samples_in_float16() -> None:
    x, grid = torch.randn(1, 2, 5, 4, 3), torch.randn(1, 3, 4, 2, 3)
    half = functional.grid_sample(x.half().to("kompute"), grid.half().to("kompute"),
                                  align_corners=False)
    expected = functional.grid_sample(x.half().float(), grid.half().float(), align_corners=False)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.cpu().float(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [True, False])
def test_images_resampled_without_aliases(mode: str, corners: bool) -> None:
    for size in ((3, 4), (11, 5), (7, 9)):
        same(lambda x: functional.interpolate(
            x, size=size, mode=mode, align_corners=corners, antialias=True),  # noqa: B023
            [torch.randn(2, 3, 7, 9)], compiled=size == (3, 4))
    same(lambda x: functional.interpolate(x, scale_factor=(0.4, 1.7), mode=mode, antialias=True),
         [torch.randn(2, 3, 7, 9)], compiled=False)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_pools(rank: int) -> None:
    pool = getattr(functional, f"fractional_max_pool{rank}d")
    samples = torch.rand(2, 3, rank)
    for outer in ([4, 3, 3], [3, 1, 2], [6, 5, 4]):
        def run(x: torch.Tensor, outer: Sequence[int] = outer) -> torch.Tensor:
            here = samples.to(x.device)
            y, at = pool(x, 2, outer[:rank], return_indices=True, _random_samples=here)
            return y + at

        same(run, [torch.randn(2, 3, *(9, 8, 7)[:rank])], compiled=outer[0] == 4)
