"""Rows in groups, and products by the matrix of each one's group, beside NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml
from emulated_units import multiply_bfloat16
from kompute_dml import tuning
from kompute_dml.functions.call import run
from kompute_dml.functions.matrix_multiply import gemm_of_tiles, rows_in_tiles
from kompute_dml.operators.matrix_multiply.grouped import GroupedGemmDesc, RowTiles
from kompute_dml.runtime.traits import DeviceClass
from test_convolution import EveryWork, set_traits

VARIANTS = {"group_rows"}
_GROUPS = 5
_CHOICES = {
    "random": lambda rng: rng.integers(0, _GROUPS, 300), "one": lambda rng: np.full(300, 3),
    "none": lambda rng: rng.integers(0, 2, 40) * 100 - 1, "alone": lambda rng: np.array([4]),
    "strange": lambda rng: rng.integers(-2, _GROUPS + 3, 300),
    "many": lambda rng: rng.integers(1, _GROUPS, 3000)}


def _choices(name: str, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(_CHOICES[name](rng), np.int32)


def _sorted(indices: np.ndarray, tiles: RowTiles, filler: int) -> tuple[np.ndarray, ...]:
    """The group of each tile that has rows, the row at each place, and the place of each row."""
    groups: list[int] = []
    rows, places = [], np.zeros(len(indices), np.int64)
    for g in range(_GROUPS):
        own = np.flatnonzero(indices == g)
        places[own] = len(rows) + np.arange(len(own))
        count = -(-len(own) // tiles.each)
        groups += [g] * count
        rows += [*own, *[filler] * (count * tiles.each - len(own))]
    return np.array(groups), np.array(rows), places


@pytest.mark.parametrize("kind", [DeviceClass.UNKNOWN, DeviceClass.CPU])
@pytest.mark.parametrize("name", _CHOICES)
def test_rows_are_sorted_into_tiles(
    name: str, kind: DeviceClass, own: dml.Device, rng: np.random.Generator
) -> None:
    set_traits(own, device_class=kind)
    indices = _choices(name, rng)
    tiles = rows_in_tiles(own.tensor(indices), _GROUPS, 7)
    groups, rows, places = _sorted(indices, tiles, 7)
    *of_tiles, count = tiles.groups.numpy().tolist()
    assert count == len(groups) <= len(of_tiles) and of_tiles[:count] == groups.tolist()
    assert max(of_tiles) < _GROUPS
    np.testing.assert_array_equal(tiles.rows.numpy()[:len(rows)], rows)
    assert (tiles.rows.numpy()[len(rows):] == 7).all()
    np.testing.assert_array_equal(tiles.places.numpy(), places)


def _exact(a: np.ndarray, b: np.ndarray, indices: np.ndarray, tiles: RowTiles
           ) -> tuple[np.ndarray, np.ndarray]:
    """The products of all rows, and a bound of their sizes."""
    numbers = a.reshape(-1, a.shape[-1])[tiles.places.numpy()].astype(np.float64)
    matrices = b.astype(np.float64)[indices]
    return (np.einsum("rk,rkn->rn", numbers, matrices),
            np.einsum("rk,rkn->rn", abs(numbers), abs(matrices)))


@pytest.mark.parametrize("kernel", [
    "", "gemm-t32", "gemm-t64-split", "gemm-t128", "gemm_blocks-t64",
    "gemm_few_rows-n_contiguous-r8-split", "gemm_few_rows-k_contiguous-r8-split"])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_rows_meet_the_matrices_of_their_groups(
    kernel: str, data_type: str, own: dml.Device, rng: np.random.Generator
) -> None:
    """Tiles of all groups but one, of one row and of eight."""
    indices = rng.integers(1, _GROUPS, 20).astype(np.int32)
    set_traits(own, device_class=DeviceClass.UNKNOWN if "r8" in kernel else DeviceClass.CPU)
    set_traits(own, slow_barriers="blocks" in kernel, slow_compiler=False)
    with tuning.trial(EveryWork(kernel)):
        tiles = rows_in_tiles(own.tensor(indices), _GROUPS)
        assert tiles.each == (8 if "r8" in kernel else 4)
        count, k, n = tiles.rows.sizes[0] // tiles.each, 72, 40
        a = rng.standard_normal((count, tiles.each, k)).astype(data_type)
        b = rng.standard_normal((_GROUPS, k, n)).astype(data_type)
        matrices = own.tensor(b)
        if "k_contiguous" in kernel:
            matrices = own.tensor(np.ascontiguousarray(b.transpose(0, 2, 1))).transpose(0, 2, 1)
        y = gemm_of_tiles(own.tensor(a), matrices, tiles)
    assert y is not None
    ran = [name for c in own.compiled.values() for name in c.variants]
    assert kernel.removesuffix("-split").replace("-", ".") in ("", *ran)
    rows = y.numpy().reshape(-1, n)[tiles.places.numpy()]
    exact, size = _exact(a, b, indices, tiles)
    bound = k * 2.0**-23 * size + (2.0**-11 * abs(exact) if data_type == "float16" else 0)
    assert (abs(rows - exact) <= bound + 2.0**-24).all()


def test_tiles_without_rows_are_left(own: dml.Device, rng: np.random.Generator) -> None:
    """Even one tile alone."""
    for count, filled in ((4, 3), (3, 0), (1, 0), (1, 1)):
        groups = own.tensor(np.array([*[1] * count, filled], np.uint32))
        a, b = (rng.standard_normal((n, 4, 4), np.float32) for n in (count, 2))
        y = own.tensor(np.full((count, 4, 4), 9, np.float32))
        run(GroupedGemmDesc, own, {
            "a_tensor": own.tensor(a), "b_tensor": own.tensor(b), "groups_tensor": groups,
            "output_tensor": y}, trans_a=0, trans_b=0, alpha=1.0, beta=1.0)
        np.testing.assert_allclose(y.numpy()[:filled], a[:filled] @ b[1], atol=1e-5)
        assert (y.numpy()[filled:] == 9).all()


def test_one_group(own: dml.Device, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s, np.float32) for s in ((9, 6), (1, 6, 3)))
    tiles = rows_in_tiles(own.tensor(np.zeros(9, np.int32)), 1)
    rows = dml.take(own.tensor(a), tiles.rows.viewed_as(dml.DataType.INT32), axis=0)
    y = gemm_of_tiles(rows.reshape(-1, tiles.each, 6), own.tensor(b), tiles)
    assert y is not None
    np.testing.assert_allclose(y.numpy().reshape(-1, 3)[tiles.places.numpy()], a @ b[0], atol=1e-5)


@pytest.mark.parametrize("tile", ["t64", "t32m8n8"])
def test_matrix_units(
    tile: str, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of BFLOAT16, whose matrices have odd sizes, so that they are copied first."""
    multiply_bfloat16(own, tile, tmp_path, monkeypatch)
    indices = rng.integers(1, _GROUPS, 20).astype(np.int32)
    tiles = rows_in_tiles(own.tensor(indices), _GROUPS)
    sizes = tiles.rows.sizes[0] // tiles.each, tiles.each, 25
    a, b = (rng.integers(-8, 8, s).astype(np.float32) for s in (sizes, (_GROUPS, 25, 19)))
    halves = [own.tensor((x.view(np.uint32) >> 16).astype(np.uint16)) for x in (a, b)]
    y = gemm_of_tiles(halves[0], halves[1], tiles)
    assert y is not None
    assert any("emulated" in name for c in own.compiled.values() for name in c.variants)
    rows = (y.numpy().astype(np.uint32) << 16).view(np.float32).reshape(-1, 19)
    exact, _ = _exact(a, b, indices, tiles)
    assert (abs(rows[tiles.places.numpy()] - exact) <= abs(exact) * 2.0**-8).all()


def test_a_tail_runs_in_the_kernel(own: dml.Device, rng: np.random.Generator) -> None:
    """Elementwise operators that follow a product of groups are its epilogue."""
    indices = rng.integers(0, _GROUPS, 20).astype(np.int32)
    b = rng.standard_normal((_GROUPS, 16, 24)).astype(np.float32)
    own_tiles = rows_in_tiles(own.tensor(indices), _GROUPS)
    a = rng.standard_normal((own_tiles.rows.sizes[0] // own_tiles.each, own_tiles.each, 16)).astype(
        np.float32)
    with dml.Graph(own) as g:
        tiles = rows_in_tiles(g.input(indices.shape, np.int32, name="indices"), _GROUPS)
        y = gemm_of_tiles(g.input(a.shape, name="a"), g.input(b.shape, name="b"), tiles)
        assert y is not None
        compiled = g.compile(dml.abs(y))
    assert compiled.operators[-1] == "GROUPED_GEMM" and compiled.variants[-1].endswith(".tail")
    rows = np.asarray(compiled(indices, a, b)).reshape(-1, 24)[own_tiles.places.numpy()]
    exact, size = _exact(a, b, indices, own_tiles)
    assert (abs(rows - abs(exact)) <= 16 * 2.0**-23 * size + 2.0**-24).all()
