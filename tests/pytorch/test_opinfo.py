"""A part of OpInfo, PyTorch's test database. ``opinfo.py`` runs all of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("expecttest", reason="OpInfo needs expecttest")
pytest.importorskip("kompute_dml.torch")

from opinfo import FORWARD, GRADIENT, cases, outcomes  # noqa: E402

NAMES = ("add", "cumsum", "index_put", "linalg_inv", "masked_fill", "nn_functional_avg_pool2d",
         "nn_functional_embedding", "scatter_reduce_mean", "signbit", "sort",
         "special_bessel_y1")
NO_GRADIENT = ("signbit", "special_bessel_y1")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")


@functools.cache
def operators(mode: str) -> dict[str, Any]:
    return {op.formatted_name: op for op in cases(torch.float32, mode)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [FORWARD, GRADIENT])
def test_operator(name: str, mode: str) -> None:
    if mode == GRADIENT and name in NO_GRADIENT:
        assert name not in operators(mode)
        return
    found = outcomes(operators(mode)[name], torch.float32, mode, 1)
    assert [kind for kind, _ in found] == ["pass"], found
