"""Every case of every operator, run in every possible way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases import CASES
from harness import Run, check, runs, target
from kompute_dml.lowering.plan import Dispatch, Target


@pytest.mark.values
@pytest.mark.parametrize("run", [run for case in CASES for run in runs(case)], ids=str)
def test_operator(
    run: Run, device_without: Callable[[str], dml.Device], rng: np.random.Generator
) -> None:
    check(run, device_without(run.disabled), rng)


VARIANTS = {"quantized_linear_add.factors", "quantized_linear_add_factors"}
"""Variants for devices that bind few buffers. The next test runs them."""


def test_sums_on_devices_that_bind_few_buffers(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Six scalars need more than 8 bindings, so a first dispatch combines them."""
    monkeypatch.setattr(device.runtime.library, "max_bindings", 8)
    monkeypatch.setattr(device.runtime.library, "_found", {})  # what was found with more bindings
    made = [run for case in CASES if case.operator == "ELEMENT_WISE_QUANTIZED_LINEAR_ADD"
            for run in runs(case) if run.level == "descriptor" and not run.in_place]
    for run in made[:: max(len(made) // 12, 1)]:
        check(run, device, rng)
    desc = dml.ElementWiseQuantizedLinearAddOperatorDesc(**{
        f"{n}_tensor": dml.TensorDesc("float32" if "scale" in n else "uint8", (1,))
        for n in ("a", "a_scale", "b", "b_scale", "output_scale", "output")})
    few = Target(device.runtime.library, target("").traits)
    dispatches = desc.operator.lower(desc, few).execute
    assert {d.variant.name for d in dispatches} == VARIANTS
    assert [len(d.operands) for d in dispatches] == [7, 4]


# All ways have the same results, so the recorded dispatches show which was taken.


def _only_dispatch(desc: Any) -> Dispatch:
    (only,) = desc.operator.lower(desc, target("")).execute
    return only


def _includes(dispatch: Dispatch, shader: str, **spec: Any) -> bool:
    """``TILE`` has the sides of a tile, of "_tiles" in vectors of four, and its planes."""
    sides = [1 << n for n in dispatch.push.get("tile_bits", ())]
    found = {"TILE": sides, **dispatch.spec}
    chosen = dispatch.variant.name.partition(".")[0], {n: found[n] for n in spec}
    return chosen == (shader, spec)


@pytest.mark.parametrize(("sizes", "source", "made", "shader", "spec"), [
    ([64, 64], None, None, "", {"RANK": 0, "WHOLE": 1, "EVEN": 1}),
    ([64, 63], [64, 1], None, "", {"RANK": 1, "WHOLE": 1, "EVEN": 0}),
    ([64, 64], [0, 1], None, "", {"RANK": 1, "WHOLE": 1, "EVEN": 1, "REPEATS": 0}),
    ([64, 64], [2, 128], [128, 2], "", {"RANK": 1, "WHOLE": 0}),
    ([8, 16, 63], [63, 504, 1], None, "", {"RANK": 2, "WHOLE": 1, "EVEN": 0}),
    ([8, 16, 64], [64, 512, 1], None, "_pieces", {"TILE": [16, 8, 8]}),
    ([256, 256], [1, 256], None, "_tiles", {"TILE": [16, 16, 1]}),
    ([4, 3, 300], [1, 4, 12], None, "_tiles", {"TILE": [4, 64, 1]}),
    # Two short dimensions form one side of a tile.
    ([8, 8, 8, 8], [1, 8, 64, 512], None, "_tiles", {"RANK": 0, "TILE": [16, 16, 1]}),
    ([5, 16, 16], [256, 1, 16], None, "_tiles", {"TILE": [4, 4, 8]}),
], ids=str)
def test_a_copy_moves_as_much_at_once_as_its_layouts_allow(
    sizes: list[int], source: Any, made: Any, shader: str, spec: dict[str, Any]
) -> None:
    x, y = (dml.TensorDesc("float32", sizes, strides) for strides in (source, made))
    dispatch = _only_dispatch(dml.ActivationIdentityOperatorDesc(input_tensor=x, output_tensor=y))
    assert _includes(dispatch, f"activation_identity{shader}", **spec), dispatch


@pytest.mark.parametrize(("sizes", "source", "made", "layout", "rank"), [
    ([64, 64], None, None, 3, 1), ([64, 64], [0, 1], None, 3, 2), ([5, 13], None, None, 2, 1),
    ([64, 63], [64, 1], [64, 1], 2, 2), ([64, 63], [63, 1], [64, 1], 1, 2),
    ([64, 64], [1, 64], None, 1, 2), ([64, 64], None, [128, 2], 0, 1),
], ids=str)
def test_elementwise_operators_walk_the_fewest_dimensions_by_vectors_where_they_can(
    sizes: list[int], source: Any, made: Any, layout: int, rank: int
) -> None:
    x, y = (dml.TensorDesc("float32", sizes, strides) for strides in (source, made))
    dispatch = _only_dispatch(dml.ElementWiseAbsOperatorDesc(input_tensor=x, output_tensor=y))
    assert (dispatch.spec["LAYOUT"], dispatch.spec["RANK"]) == (layout, rank)


@pytest.mark.parametrize(("sizes", "source", "made", "path", "even"), [
    ([64, 64], None, None, 1, True), ([64, 64], None, [1, 64], 1, True),
    ([64, 63], None, [64, 1], 1, False), ([64, 63], None, None, 2, False),
    ([64, 63], [64, 1], None, 1, False), ([64, 64], None, [128, 2], 0, False),
], ids=str)
def test_diagonals_are_filled_by_rows_or_vectors_where_they_are_contiguous(
    sizes: list[int], source: Any, made: Any, path: int, even: bool
) -> None:
    y = dml.TensorDesc("float32", sizes, made)
    dispatch = _only_dispatch(dml.DiagonalMatrix1OperatorDesc(
        input_tensor=None if source is None else dml.TensorDesc("float32", sizes, source),
        output_tensor=y, value_data_type=y.data_type, value=1,
        diagonal_fill_begin=0, diagonal_fill_end=3))
    assert (dispatch.spec["PATH"], dispatch.spec["EVEN"]) == (path, even)


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
    elements = {s.a for s in device.adapter.cooperative_matrices}
    if "cooperativeMatrix" not in device.features or (elements and "i8" not in elements):
        pytest.skip(f"{device.adapter.name} has no cooperative matrices of bytes")
    m, k, n = 656, 336, 784  # edges of tiles in every direction
    real = np.float16 if half else np.float32

    def integers(kind: str, *sizes: int) -> np.ndarray:
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, sizes, kind, endpoint=True)

    def upload(x: np.ndarray, transposed: bool) -> dml.Tensor:
        return device.tensor(np.ascontiguousarray(x.T)).T if transposed else device.tensor(x)

    a, b = integers(a_type, m, k), integers(b_type, k, n)
    a_zero = integers(a_type, m, 1) if "a" in zeros else None
    b_zero = integers(b_type, 1, n) if "b" in zeros else None
    a_scale, b_scale = (rng.uniform(0.001, 0.01, s).astype(real) for s in ((m, 1), (1, n)))
    added = rng.normal(size=(m, n)).astype(real) if bias else None
    y = dml.matrix_multiply_integer_to_float(
        upload(a, "a" in across), a_scale, upload(b, "b" not in across), b_scale,
        a_zero_point=a_zero, b_zero_point=b_zero, bias=added, output_data_type=real,
    )
    assert any("coopmat" in v for c in device.compiled.values() for v in c.variants)
    wide_a = a.astype(np.float64) - (0 if a_zero is None else a_zero)
    wide_b = b.astype(np.float64) - (0 if b_zero is None else b_zero)
    expected = (wide_a @ wide_b).astype(np.float32)
    expected = expected * a_scale.astype(np.float32) * b_scale.astype(np.float32)
    if added is not None:
        expected = expected + added.astype(np.float32)
    assert (y.numpy() == expected.astype(real)).all()
