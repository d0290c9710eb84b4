"""DYNAMIC_QUANTIZE_LINEAR of many elements: workgroups share the range that each of them finds."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml


@pytest.mark.parametrize("count", [4096, 4097, 70_000])
def test_a_range_is_that_of_its_own_run(count: int, own: dml.Device) -> None:
    """The second run's range is smaller: nothing of the first one may be left."""
    with dml.Graph(own) as g:
        run = g.compile(dml.dynamic_quantize_linear(g.input([count])))
    for low, high in ((-300.0, 212.0), (-1.5, 1.0), (0.25, 510.0)):
        x = np.linspace(low, high, count, dtype=np.float32)[::-1].copy()
        y, scale, zero = run(x)
        wanted = np.float32((max(high, 0) - min(low, 0)) / 255)
        assert scale.item() == wanted and zero.item() == round(-min(low, 0) / wanted)
        np.testing.assert_array_equal(y, np.rint(x / wanted) + zero.item())
