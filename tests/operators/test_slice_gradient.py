"""The gradient of a slice by whole vectors, as on a GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.dtypes import DataType
from kompute_dml.runtime.traits import DeviceClass

TYPES = ("float32", "float16", "int8", "float64")
VARIANTS = {f"slice_grad.{DataType[name.upper()].width}" for name in TYPES}


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("sizes, offsets, windows, steps", [
    ((3, 5, 32), (1, 1, 3), (2, 4, 28), (-1, 1, 3)),
    ((4, 3, 48), (0, 0, 5), (4, 3, 41), (2, 1, -2)),
    ((2, 3, 64), (0, 0, 1), (2, 3, 63), (1, 1, 21)),
    ((2, 2, 3, 64), (0, 0, 1, 3), (2, 2, 2, 57), (1, 1, 1, 1)),
    ((3, 4, 16), (0, 1, 0), (3, 3, 16), (1, -2, 1)),
    ((64,), (0,), (64,), (2,)),
    ((4, 64), (0, 9), (4, 55), (1, 2)),
    ((2, 96), (0, 2), (2, 61), (1, 4)),
    ((5, 16), (0, 5), (5, 1), (3, 7)),
], ids=str)
def test_zeros_and_elements_in_one_store(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, data_type: str,
    sizes: tuple[int, ...], offsets: tuple[int, ...], windows: tuple[int, ...],
    steps: tuple[int, ...],
) -> None:
    traits = dataclasses.replace(own.target.traits, device_class=DeviceClass.UNKNOWN)
    monkeypatch.setattr(own, "target", dataclasses.replace(own.target, traits=traits))
    expected = np.zeros(sizes, data_type)
    key = tuple(slice(o, o + w) for o, w in zip(offsets, windows))
    part = expected[key][tuple(slice(None, None, s) for s in steps)]
    part[...] = rng.integers(-100, 100, part.shape)
    # Rows that are contiguous, and elements that lie apart.
    turned = own.tensor(part.T.copy()).transpose(*range(part.ndim)[::-1])
    for dy in (own.tensor(part.copy()), turned):
        dx = dml.slice_grad(
            dy, output_sizes=sizes, input_window_offsets=offsets, input_window_sizes=windows,
            input_window_strides=steps)
        assert dx.numpy().tobytes() == expected.tobytes()
