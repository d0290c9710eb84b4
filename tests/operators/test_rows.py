"""Softmax and normalizations with every way to share rows among invocations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.lowering import rows
from kompute_dml.lowering.rows import Teams

WAYS = {
    "quarter": Teams(2, 16, 8, True),
    "half": Teams(4, 16, 4, True),
    "subgroup": Teams(8, 16, 2, True),
    "workgroup": Teams(16, 16, 1, True),
    "workgroup-again": Teams(4, 4, 1, False),
    "parts": Teams(4, 4, 1, False, 3),
}
"""Teams for rows of up to 16 pieces and subgroups of 8. Parts of a subgroup need subgroup
shuffles."""
VARIANTS = {"normalize_rows.tree", "normalize_rows.subgroups"}
SIZES = (5, 16)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _first_largest(x: np.ndarray) -> np.ndarray:
    return np.arange(x.shape[1]) == x.argmax(1)[:, None]


def _centred(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


KINDS: dict[str, tuple[Any, Any]] = {
    "softmax": (lambda x, w: dml.activation_softmax1(x), lambda x, w: _softmax(x)),
    "hardmax": (lambda x, w: dml.activation_hardmax1(x), lambda x, w: _first_largest(x)),
    "layers": (lambda x, w: dml.mean_variance_normalization1(x, w, w, axes=(1,)),
               lambda x, w: _centred(x) * w + w),
}


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Force teams, with or without subgroup arithmetic."""
    name, subgroups = request.param
    device = dml.default_device()
    if subgroups and (
            device.adapter.subgroup_size != 8
            or not device.target.library.find(rows.SHADER, "subgroups")):
        pytest.skip("needs arithmetic and shuffles in subgroups of 8")
    monkeypatch.setattr(rows, "share_rows", lambda *_: WAYS[name])
    monkeypatch.setattr(rows, "uses_subgroups", lambda p: subgroups)
    device.compiled.clear()
    yield name
    device.compiled.clear()


@pytest.mark.parametrize("way", [
    (name, subgroups) for name, teams in WAYS.items() for subgroups in (False, True)
    if subgroups or teams.team == teams.local_size
], indirect=True, ids=lambda p: f"{p[0]}-{'subgroups' if p[1] else 'tree'}")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_rows_are_the_same_however_they_are_shared(
    way: str, kind: str, data_type: str, device: dml.Device, rng: np.random.Generator
) -> None:
    run, reference = KINDS[kind]
    x = np.round(rng.normal(3, 2, SIZES), 1).astype(data_type)
    w = rng.normal(1, 1, (1, SIZES[1])).astype(data_type)
    columns = 16 if data_type == "float16" else 15  # whole vectors, and not
    y = run(device.tensor(x)[:, :columns], device.tensor(w)[:, :columns]).numpy()
    expected = reference(*(a[:, :columns].astype(np.float64) for a in (x, w)))
    unit = np.finfo(data_type).eps
    np.testing.assert_allclose(y, expected, rtol=unit + 2e-6, atol=unit / 8 + 2e-6)
