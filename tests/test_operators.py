"""Every case of every operator, in every way it can be asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kompute_dml as dml
from cases import CASES
from harness import Run, check, runs


@pytest.mark.values
@pytest.mark.parametrize("run", [run for case in CASES for run in runs(case)], ids=str)
def test_operator(
    run: Run, device_without: Callable[[str], dml.Device], rng: np.random.Generator
) -> None:
    check(run, device_without(run.disabled), rng)


def test_more_workgroups_than_one_dimension_of_a_grid_holds(device: dml.Device) -> None:
    x = np.arange(4097 * 4099, dtype=np.uint32).astype(np.uint16).view(np.float16)
    t = device.tensor(x.reshape(4097, 4099))
    y = dml.activation_identity(t.T).numpy()
    assert (y.view(np.uint16) == x.view(np.uint16).reshape(4097, 4099).T).all()


@pytest.mark.parametrize("half", [False, True], ids=["f32", "f16"])
@pytest.mark.parametrize("across", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("a_type", "b_type", "zeros", "bias"),
    [("i1", "i1", "", False), ("i1", "i1", "ab", True), ("u1", "i1", "a", True),
     ("u1", "u1", "ab", False), ("i1", "u1", "b", True)],
)  # fmt: skip
def test_products_large_enough_for_cooperative_matrices(
    device: dml.Device, rng: np.random.Generator, a_type: str, b_type: str, zeros: str,
    bias: bool, across: str, half: bool,
) -> None:
    if "cooperativeMatrix" not in device.features:
        pytest.skip(f"{device.adapter.name} has no cooperative matrices")
    m, k, n = 656, 336, 784  # edges of tiles in every direction
    real = np.float16 if half else np.float32

    def integers(kind: str, *sizes: int) -> np.ndarray:
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, sizes, kind, endpoint=True)

    def upload(x: np.ndarray, turned: bool) -> dml.Tensor:
        return device.tensor(np.ascontiguousarray(x.T)).T if turned else device.tensor(x)

    a, b = integers(a_type, m, k), integers(b_type, k, n)
    a_zero = integers(a_type, m, 1) if "a" in zeros else None
    b_zero = integers(b_type, 1, n) if "b" in zeros else None
    a_scale, b_scale = (rng.uniform(0.001, 0.01, s).astype(real) for s in ((m, 1), (1, n)))
    added = rng.normal(size=(m, n)).astype(real) if bias else None
    y = dml.matrix_multiply_integer_to_float(
        upload(a, "a" in across), a_scale, upload(b, "b" not in across), b_scale,
        a_zero_point=a_zero, b_zero_point=b_zero, bias=added, output_data_type=real,
    )
    assert any("coopmat" in v for c in device._compiled.values() for v in c.variants)
    wide_a = a.astype(np.float64) - (0 if a_zero is None else a_zero)
    wide_b = b.astype(np.float64) - (0 if b_zero is None else b_zero)
    expected = (wide_a @ wide_b).astype(np.float32)
    expected = expected * a_scale.astype(np.float32) * b_scale.astype(np.float32)
    if added is not None:
        expected = expected + added.astype(np.float32)
    assert (y.numpy() == expected.astype(real)).all()
