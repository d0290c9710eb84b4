"""Complex numbers and Fourier transforms, eager and compiled, beside the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")

DEVICE = "kompute"
X, Z = torch.randn(3, 12), torch.randn(3, 12, dtype=torch.complex64)
LONG = torch.randn(2, 1200)
"""Longer than what one product transforms."""


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")


def gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    y = torch.fft.fft(x)
    return torch.autograd.grad((y.abs() ** 2 + y.real * y.imag).sum(), x)[0]


EAGER = {
    "copies": (lambda z: z.clone(), Z),
    "conjugates": (lambda z: z.conj().clone(), Z),
    "parts of conjugates": (lambda z: z.conj().imag + 1, Z),
    "writes through conjugates": (lambda z: z.clone().conj().fill_(2 + 1j), Z),
    "one number": (lambda z: torch.tensor(z[0, 0].item()), Z),
    "a few": (lambda z: torch.cat([z[1:, ::2], z[:1, 1::2]]).t(), Z),
    "gradients": (gradient, X),
    "gradients of complex numbers": (gradient, Z),
    "gradients of products of matrices": (lambda z: torch.autograd.functional.jacobian(
        lambda y: (y @ y.t()).abs().sum(), z), Z),
    "to truth values": (lambda z: (z * torch.tensor([0, 1, 2j] * 4, device=z.device)).bool(), Z),
    "from integers": (lambda x: (x * 9).long().to(torch.complex64), X),
}
BOTH = {
    "parts": (lambda z: z.real + z.imag + z.abs() + z.angle(), Z),
    "products of matrices": (lambda z: z @ z.mH + (z[None] @ z.t()[None]).conj(), Z),
    "sums and products": (lambda z: (z * (z - 2) + (1 + 2j)).sum(1) / 3, Z),
    "made of parts": (lambda x: torch.complex(x, x + 1) - torch.polar(x, x), X),
    "equal": (lambda z: (z == z) & (z != 1), Z),
    "fft": (lambda x: torch.fft.fft(x, norm="ortho"), X),
    "there and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), X),
    "two dimensions": (lambda z: torch.fft.ifftn(torch.fft.fft2(z), norm="forward"), Z),
    "long": (lambda x: torch.fft.rfft(x), LONG),
    "all of long": (lambda x: torch.fft.ifft(x), LONG),
}


@pytest.mark.parametrize("name", [*EAGER, *BOTH])
def test_eager(name: str) -> None:
    work, x = {**EAGER, **BOTH}[name]
    for _ in range(3):
        close(work, work(x.to(DEVICE)), x)


@pytest.mark.parametrize("name", BOTH)
def test_graphs(name: str) -> None:
    work, x = BOTH[name]
    close(work, torch.compile(work, backend="kompute_dml")(x.to(DEVICE)), x)


def test_gradients_of_graphs() -> None:
    x = X.to(DEVICE).requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (torch.fft.irfft(torch.fft.rfft(x) * 2) ** 2).sum()

    torch.compile(loss, backend="kompute_dml")(x).backward()
    torch.testing.assert_close(x.grad.cpu(), 8 * X)


def close(work: Callable[[torch.Tensor], torch.Tensor], y: torch.Tensor, x: torch.Tensor) -> None:
    assert y.device.type == DEVICE or not y.ndim
    expected = work(x)
    # A transform rounds sums of all elements: its errors are parts of the largest result.
    counts = expected.is_complex() or expected.is_floating_point()
    largest = expected.abs().max().item() if counts and expected.numel() else 0.0
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-5, atol=max(1e-5, 1e-6 * largest))


@pytest.mark.parametrize("work", [torch.exp, torch.sort, lambda z: z @ z[0], lambda z: 1 / z,
                                  lambda z: torch.fft.fft(z.new_zeros(521))])
def test_what_knows_no_complex_numbers_is_refused(work: Callable[[torch.Tensor], torch.Tensor]
                                                  ) -> None:
    """A lowering of real numbers would take them for integers."""
    with pytest.raises((NotImplementedError, RuntimeError)):
        work(Z.to(DEVICE))


def test_the_cpu_gets_conjugates(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch notes a conjugate, and gives it to some operators with the note."""
    monkeypatch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
    with pytest.warns(UserWarning, match="addmm"):
        found = torch.addmm(Z.to(DEVICE), Z[:, :3].to(DEVICE).conj(), Z.to(DEVICE))
    torch.testing.assert_close(found.cpu(), torch.addmm(Z, Z[:, :3].conj(), Z))
