"""Products of FLOAT32 by constants whose numbers are BFLOAT16."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph import planner
from passes.bfloat16_weights import widened

VARIANTS = {f"gemm_few_rows.{axis}_bfloat16.r{rows}" for axis in "kn" for rows in (1, 2, 4, 8)}
"""What the test below runs."""


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("transposes", [False, True])
@pytest.mark.parametrize(("k", "columns"), [(8, 8), (520, 264), (4096, 24), (40, 1032)])
def test_numbers_are_read_as_they_are(
    k: int, columns: int, transposes: bool, rows: int, device: dml.Device,
    rng: np.random.Generator,
) -> None:
    """With a bias, an activation and another operator after them."""
    w = rng.standard_normal((columns, k) if transposes else (k, columns), np.float32)
    x, bias, more = (rng.standard_normal(s, np.float32)
                     for s in ((rows, k), (1, columns), (rows, columns)))
    halves = (w.view(np.uint32) >> 16).astype(np.uint16)
    exact = (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with dml.Graph(device) as g:
        b = dml.gemm(g.input((rows, k)), widened(g.constant(halves)), trans_b=int(transposes))
        y = dml.activation_relu(b + g.constant(bias)) * g.input((rows, columns))
        run = g.compile(y)
    axis, height = "k" if transposes else "n", {3: 4}.get(rows, rows)
    if not device.target.traits.slow_compiler:
        assert f"gemm_few_rows.{axis}_bfloat16.r{height}" in {
            name.removesuffix(".tail") for name in run.variants}
    wanted = np.maximum(x @ (exact.T if transposes else exact) + bias, 0) * more
    np.testing.assert_allclose(run(x, more), wanted, rtol=0, atol=1e-5 * k**0.5)


@pytest.mark.parametrize(("sizes", "rows"), [((64, 30), 2), ((64, 20), 1), ((64, 128), 20)])
def test_other_products_widen_them(
    sizes: tuple[int, int], rows: int, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Columns that are no whole vectors, and more rows. Where there is no room to keep FLOAT32
    numbers, each run makes them."""
    x, w = (rng.standard_normal(s, np.float32) for s in ((rows, sizes[0]), sizes))
    halves = (w.view(np.uint32) >> 16).astype(np.uint16)
    exact = (halves.astype(np.uint32) << 16).view(np.float32)
    for room in (None, 0):
        if room is not None:
            monkeypatch.setattr(planner, "room_for_weights", lambda *_: 0)
            monkeypatch.setattr("kompute_dml.graph.fusion._LITTLE_WEIGHTS", 0)
        with dml.Graph(device) as g:
            run = g.compile(dml.gemm(g.input(x.shape), widened(g.constant(halves))))
        assert ("widen_bfloat16" in run.variants) == (room is not None)
        np.testing.assert_allclose(run(x), x @ exact, rtol=0, atol=1e-4)
