"""A recurrent network whose weights stay in registers, as on a GPU with many."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kompute_dml as dml

_SIGMOID, _TANH = dml.ActivationSigmoidOperatorDesc, dml.ActivationTanhOperatorDesc


@pytest.mark.parametrize("units", [32, 96, 128])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_registers_keep_what_fits(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str,
    units: int,
) -> None:
    gates, more = (3, {"linear_before_reset": True}) if kind == "gru" else (4, {})
    given = [own.tensor(rng.uniform(-1, 1, sizes).astype(np.float32) / units**0.5)
             for sizes in ((1, 4, 2, units), *2 * [(1, 1, gates * units, units)])]

    def result() -> np.ndarray:
        y = getattr(dml, kind)(
            *given, activation_descs=[_SIGMOID(), _TANH(), _TANH()][: gates - 1],
            output_sequence=True, **more)
        return (y[0] if isinstance(y, tuple) else y).numpy()

    without = result()
    traits = dataclasses.replace(own.target.traits, registers=1 << 16)
    monkeypatch.setattr(own, "target", dataclasses.replace(own.target, traits=traits))
    own.compiled.clear()
    assert np.allclose(result(), without, rtol=0, atol=1e-6)
    assert abs(without).max() > 0.01
