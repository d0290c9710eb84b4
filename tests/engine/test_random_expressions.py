"""Random graphs compile, and compute what their operators compute one by one."""

from __future__ import annotations

import pytest

import kompute_dml as dml
import random_expressions
from plans import checked, without_pipelines

_PLANNED, _COMPUTED = 1000, 8
"""Programs. Those that are computed have pipelines of their own, each of which takes a second."""
_SHARES = 4
_OTHERS = [pytest.param(share, marks=pytest.mark.slow) for share in range(1, _SHARES)]


@pytest.mark.parametrize("share", [0, *_OTHERS])
def test_random_graphs_compile(
    share: int, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators of the plan read and write within their tensors."""
    without_pipelines(monkeypatch)
    for seed in range(share, _PLANNED, _SHARES):
        _, graph, inputs, outputs = random_expressions.drawn(device, seed)
        made = device.compile_graph(graph.described(inputs, outputs))
        assert made.variants, seed
        for operator, _ in made._steps:
            checked(operator.operator.desc, operator.plan)


@pytest.mark.parametrize("seed", range(_COMPUTED))
def test_random_graphs_compute_what_their_operators_do(seed: int, device: dml.Device) -> None:
    assert not random_expressions.differs(device, seed)
