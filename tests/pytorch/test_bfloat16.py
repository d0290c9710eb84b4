"""Products of BFLOAT16: on matrix units for it, and of FLOAT32 where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

import kompute_dml as dml
from emulated_units import multiply_bfloat16

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
functional = torch.nn.functional

# Products are compiled once for each device and sizes, so each way has sizes of its own.
SIZES = {"": 24, "t64": 25}


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")


@pytest.fixture(params=SIZES)
def tile(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param:
        multiply_bfloat16(dml.default_device(), request.param, tmp_path, monkeypatch)
    return str(request.param)


def _near(ours: torch.Tensor, exact: torch.Tensor) -> bool:
    assert ours.dtype == torch.bfloat16
    return torch.allclose(ours.cpu().double(), exact.double(), rtol=2.0 ** -7, atol=1e-3)


def _runs(tile: str) -> bool:
    return any(f"{tile}.bfloat16.emulated" in name
               for compiled in dml.default_device().compiled.values()
               for name in compiled.variants)


def test_products(tile: str) -> None:
    torch.manual_seed(1)
    rows = SIZES[tile]
    x = torch.randn(rows, 40).bfloat16()
    w, bias = torch.randn(16, 40).bfloat16(), torch.randn(16).bfloat16()
    batches = torch.randn(3, rows, 40).bfloat16()
    a, b, c, d = (t.to("kompute") for t in (x, w, bias, batches))
    wide = [t.double() for t in (x, w, bias, batches)]
    assert _near(a @ b.t(), wide[0] @ wide[1].t())
    assert _near(functional.linear(a, b, c), functional.linear(*wide[:3]))
    assert _near(torch.addmm(c, a, b.t(), beta=0.5, alpha=2.0),
                 torch.addmm(wide[2], wide[0], wide[1].t(), beta=0.5, alpha=2.0))
    assert _near(torch.bmm(d, d.transpose(1, 2)), torch.bmm(wide[3], wide[3].transpose(1, 2)))
    assert _near(torch.matmul(d, b.t()), wide[3] @ wide[1].t())
    assert not tile or _runs(tile)


def test_gradients(tile: str) -> None:
    torch.manual_seed(2)
    x = torch.randn(SIZES[tile] + 8, 24).bfloat16()
    w = torch.randn(32, 24).bfloat16()
    ours = [t.to("kompute").requires_grad_() for t in (x, w)]
    functional.linear(*ours).sum().backward()
    exact = [t.double().requires_grad_() for t in (x, w)]
    functional.linear(*exact).sum().backward()
    for t, other in zip(ours, exact):
        assert t.grad is not None and other.grad is not None
        assert _near(t.grad, other.grad)


def test_graphs(tile: str) -> None:
    torch.manual_seed(3)
    x, w = torch.randn(SIZES[tile], 32).bfloat16(), torch.randn(32, 48).bfloat16()
    run = torch.compile(lambda a, b: torch.relu(a @ b), backend="kompute_dml")
    y = run(x.to("kompute"), w.to("kompute"))
    assert _near(y, torch.relu(x.double() @ w.double()))
