"""Integer products multiply A's scale and B's on their own, and round that product as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

_K = 32


@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize(("side", "by_column"), [("a", False), ("b", False), ("b", True)])
def test_a_product_of_scales(
    rows: int, side: str, by_column: bool, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``side``: the scale that the product of both is."""
    columns = 24
    a = rng.integers(0, 256, (rows, _K)).astype(np.uint8)
    b = rng.integers(-128, 128, (_K, columns)).astype(np.int8)
    scale = rng.random((1, 1)).astype(np.float32)
    of_b = rng.random((1, columns if by_column else 1)).astype(np.float32)
    zero, one = np.array([[117]], np.uint8), np.ones((1, 1), np.float32)

    def build(a: Any, scale: Any) -> Any:
        wide = scale.broadcast_to(of_b.shape)
        both = dml.multiply(wide, of_b)
        scales = (both, one) if side == "a" else (one, both)
        return dml.matrix_multiply_integer_to_float(a, scales[0], b, scales[1], a_zero_point=zero)

    found = []
    for name in ("", "scale_splitting"):
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", name)
        with dml.Graph(device) as g:
            run = g.compile(build(g.input(a.shape, a.dtype), g.input(scale.shape)))
        found.append((run.operators, run(a, scale)))
    assert [operators for operators, _ in found] == [
        ["MATRIX_MULTIPLY_INTEGER_TO_FLOAT"],
        ["ELEMENT_WISE_MULTIPLY", "MATRIX_MULTIPLY_INTEGER_TO_FLOAT"]]
    sums = (a.astype(np.int32) - 117) @ b.astype(np.int32)
    for _, result in found:
        np.testing.assert_array_equal(result, sums.astype(np.float32) * (scale * of_b))


def test_scales_by_row_stay(device: dml.Device, rng: np.random.Generator) -> None:
    """The kernel takes one number for A. Here there is one for each row."""
    a = rng.integers(0, 256, (4, _K)).astype(np.uint8)
    b = rng.integers(-128, 128, (_K, 8)).astype(np.int8)
    scales = rng.random((4, 1)).astype(np.float32)
    with dml.Graph(device) as g:
        x, s = g.input(a.shape, a.dtype), g.input(scales.shape)
        run = g.compile(dml.matrix_multiply_integer_to_float(
            x, dml.multiply(s, scales), b, np.ones((1, 1), np.float32)))
    assert run.operators[0] == "ELEMENT_WISE_MULTIPLY"
    sums = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(run(a, scales), sums.astype(np.float32) * (scales * scales))
