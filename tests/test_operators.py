"""Every case of every operator, in every way it can be asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kompute_dml as dml
from cases import CASES
from harness import Run, check, runs


# One worker per operator, so that its shaders are compiled once.
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=str(run), marks=pytest.mark.xdist_group(case.operator))
        for case in CASES
        for run in runs(case)
    ],
)
def test_operator(
    run: Run, device_without: Callable[[str], dml.Device], rng: np.random.Generator
) -> None:
    check(run, device_without(run.disabled), rng)


def test_more_workgroups_than_one_dimension_of_a_grid_holds(device: dml.Device) -> None:
    x = np.arange(4097 * 4099, dtype=np.uint32).astype(np.uint16).view(np.float16)
    t = device.tensor(x.reshape(4097, 4099))
    y = dml.activation_identity(t.T).numpy()
    assert (y.view(np.uint16) == x.view(np.uint16).reshape(4097, 4099).T).all()
