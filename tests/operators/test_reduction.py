"""Rows that several workgroups share, as on a GPU, with the same bits every time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases.reduction import sorted_indices
from kompute_dml import tuning
from kompute_dml.attributes import ReduceFunction
from kompute_dml.operators import scan
from kompute_dml.runtime.traits import DeviceClass
from record_plans import targets
from test_convolution import EveryWork, set_traits, with_figures

VARIANTS = {"top_k_subgroups", "scan_once.float", "scan_once.integer"}
"""Variants that run here, and on no CPU by themselves."""


def _numbers(*sizes: int) -> np.ndarray:
    return np.random.default_rng(4).normal(0, 4, sizes).astype(np.float32)


def _dispatches(device: dml.Device, desc: Any) -> int:
    return len(desc.operator.lower(desc, device.target).execute)


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)], ids=str)
def test_parts_of_a_sum(gpu: dml.Device, axes: tuple[int, ...]) -> None:
    x = _numbers(1240, 1061).T if axes == (0,) else _numbers(3, 100_003)
    given = gpu.tensor(np.ascontiguousarray(x))
    y = dml.reduce(given, function=ReduceFunction.SUM, axes=axes)
    assert _dispatches(gpu, dml.ReduceOperatorDesc(
        function=ReduceFunction.SUM, input_tensor=given.desc, output_tensor=y.desc,
        axes=axes)) == 2
    exact = x.astype(np.float64)
    room = 12 * 2.0**-24 * abs(exact).sum(axes, keepdims=True)
    assert (abs(y.numpy() - exact.sum(axes, keepdims=True)) <= room).all()
    again = dml.reduce(given, function=ReduceFunction.SUM, axes=axes)
    assert again.numpy().tobytes() == y.numpy().tobytes()


def test_parts_of_a_search(gpu: dml.Device) -> None:
    x = _numbers(2, 100_003)
    x[0, [777, 99_999]] = 100
    given = gpu.tensor(x)
    assert dml.argmax(given, axes=-1).numpy().tolist() == x.argmax(-1)[:, None].tolist()
    last = dml.argmax(given, axes=-1, axis_direction=dml.AxisDirection.DECREASING).numpy()
    assert last[0, 0] == 99_999


def _first_of(x: np.ndarray, axis: int, least: bool, last: bool) -> np.ndarray:
    """ARGMAX or ARGMIN: NaN, of either sign, comes first."""
    numbers = -x.astype(np.float64) if least else x.astype(np.float64)
    numbers = np.where(np.isnan(numbers), np.inf, np.clip(numbers, -1e300, 1e300))
    if not last:
        return numbers.argmax(axis)
    return x.shape[axis] - 1 - np.flip(numbers, axis).argmax(axis)


@pytest.mark.parametrize("posing", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("data_type", ["float16", "float32", "int8"])
def test_indices_of_every_share(
    request: pytest.FixtureRequest, posing: bool, data_type: str
) -> None:
    """Few different values: ties within and between what an invocation reads at once."""
    device = request.getfixturevalue("gpu" if posing else "device")
    rng = np.random.default_rng(8)
    values = np.array([0, 1, 2, 3, 100], data_type)
    if values.dtype.kind == "f":
        nan = np.array([np.nan, -np.nan], data_type)
        extremes = np.array([-np.inf, np.inf, 0.0, -0.0, -2, 2, 65504, -65504], data_type)
        pools = [extremes[:1], extremes[2:4], extremes[2:6], extremes, np.append(extremes, nan)]
    else:
        pools = [values[:1], values, np.array([-128, 127], data_type)]
    for sizes, axis in (((1203, 16), 0), ((2, 70, 32), 1), ((2, 40_011), 1)):
        for pool in pools:
            x = rng.choice(pool, sizes)
            for given in (x, x[:, 3:]) if len(sizes) == 2 else (x,):
                tensor = device.tensor(x) if given is x else device.tensor(x)[:, 3:]
                for last in (False, True):
                    more: Any = dict(axes=axis, axis_direction=int(last))
                    for call in (dml.argmax, dml.argmin):
                        got = call(tensor, **more).numpy()
                        wanted = _first_of(given, axis, call is dml.argmin, last)
                        assert (got == np.expand_dims(wanted, axis)).all()


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("sizes, axis", [((2, 100_008), 1), ((30_011, 3), 0)], ids=str)
def test_parts_of_a_scan(
    gpu: dml.Device, sizes: tuple[int, ...], axis: int, backwards: int
) -> None:
    x = np.random.default_rng(5).integers(-(2**40), 2**40, sizes)
    given = gpu.tensor(x)
    y = dml.cumulative_summation(given, axis=axis, axis_direction=backwards)
    turned = np.flip(x, axis) if backwards else x
    expected = turned.cumsum(axis)
    assert (y.numpy() == (np.flip(expected, axis) if backwards else expected)).all()
    assert dml.cumulative_summation(given, axis=axis, axis_direction=backwards, out=given) is given
    assert (given.numpy() == y.numpy()).all()


@pytest.mark.parametrize("data_type", ["float32", "int32", "int64"])
def test_a_row_is_read_once(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch, data_type: str
) -> None:
    """Totals of other tiles are waited for, looked for once, or all made again: with the same
    bits. Three rows have 18 tiles each, in blocks of 4."""
    kind = "float" if data_type == "float32" else "integer"
    subgroup = own.target.traits.subgroup_size
    if own.target.library.find("scan_once", kind) is None or subgroup < 4:
        pytest.skip("needs shuffles in subgroups")
    set_traits(own, device_class=DeviceClass.UNKNOWN, cores=64)
    for field, value in {"_LEAST_SUBGROUP": 2, "_WIDTH_ONCE": 2 * subgroup, "_STRIPES_ONCE": 6,
                         "_BLOCK": 4}.items():
        monkeypatch.setattr(scan, field, value)
    with_figures(monkeypatch, scan_once={"columns": 1, "elements": 1})
    columns = 2 * subgroup * 6 * 16 // np.dtype(data_type).itemsize * 18 - 8
    rng = np.random.default_rng(5)
    x = (rng.normal(0, 1, (3, columns)) if kind == "float"
         else rng.integers(-1000, 1000, (3, columns)) << (32 if data_type == "int64" else 0)
         ).astype(data_type)
    for backwards, patience in ((0, (1 << 20, 1, 0)), (1, (1,))):
        exclusive, forwards = backwards, x[:, ::-1] if backwards else x
        terms = forwards.astype(np.int64 if kind == "integer" else np.float64)
        sums, sizes = (t.cumsum(1) - exclusive * t for t in (terms, abs(terms)))
        made = set()
        for turns in patience:
            monkeypatch.setattr(scan, "_TURNS", turns)
            own.compiled.clear()
            for _ in range(2):
                own.runtime.zeros._next = 0  # the second finds what the first left
                given = own.tensor(x)
                y = dml.cumulative_summation(
                    given, axis=1, axis_direction=backwards, has_exclusive_sum=exclusive,
                    out=given if turns else None).numpy()
                made.add(y.tobytes())
            ring = own.runtime.zeros._ring
            assert ring is not None and not own.read(ring, 0, ring.nbytes).any()
        assert len(made) == 1
        got = y[:, ::-1] if backwards else y
        room = 26 * 2.0**-24 * sizes if kind == "float" else 0 * sizes
        assert (abs(got - sums) <= room).all()
    given = own.tensor(x)
    dml.cumulative_summation(given, axis=1)  # an operator's first call uploads its parameters
    (name, _), = own.time(lambda: dml.cumulative_summation(given, axis=1))
    assert name == f"scan_once.{kind}"


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("cores, side", [(3, 32), (2, 32), (6, 16)], ids=str)
def test_a_core_scans_neighbouring_rows(
    gpu: dml.Device, monkeypatch: pytest.MonkeyPatch, cores: int, side: int, backwards: int
) -> None:
    traits = dataclasses.replace(gpu.target.traits, cores=cores)
    monkeypatch.setattr(scan, "_WIDEST", 512)  # 20 KiB of shared memory instead of 40
    monkeypatch.setattr(gpu, "target", dataclasses.replace(gpu.target, traits=traits))
    columns = 4200
    assert scan._of_a_core(traits, 91, columns, 4, scan._FLOAT) == side
    x = np.random.default_rng(5).integers(-9, 10, (columns, 91)).astype(np.float32)
    y = dml.cumulative_summation(gpu.tensor(x), axis=0, axis_direction=backwards).numpy()
    turned = x[::-1] if backwards else x
    expected = turned.cumsum(0)  # small whole numbers: exact
    assert (y == (expected[::-1] if backwards else expected)).all()


def test_wide_scans_need_shared_memory(device: dml.Device) -> None:
    traits = dataclasses.replace(
        device.target.traits, device_class=DeviceClass.UNKNOWN, cores=64, max_invocations=1024,
        max_shared_memory=40 << 10)
    for kind, side in ((scan._FLOAT, 32), (scan._INTEGER, 0), (scan._HALVES, 0)):
        assert scan._of_a_core(traits, 2048, 10_000, 4, kind) == side


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("sizes, axis, apart", [
    ((4200, 182), 0, 182),  # one workgroup for each core
    ((9000, 6), 0, 6),  # in parts
    ((3, 150, 4, 6), 1, 6),
    ((300, 6), 0, 8),
    ((300, 6), 0, 7),  # words hold halves of two rows
    ((300, 7), 0, 8)], ids=str)  # a word holds what is not the tensor's
def test_neighbouring_rows_of_halves_are_stored_in_words(
    gpu: dml.Device, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], axis: int,
    apart: int, backwards: int,
) -> None:
    """``apart``: elements from a line of the tensor to the next."""
    traits = dataclasses.replace(gpu.target.traits, cores=3)
    monkeypatch.setattr(scan, "_WIDEST", 256)  # 12 KiB of shared memory
    monkeypatch.setattr(gpu, "target", dataclasses.replace(gpu.target, traits=traits))
    x = np.random.default_rng(5).integers(-9, 10, sizes).astype(np.float16)
    turned = np.flip(x, axis) if backwards else x
    expected = turned.astype(np.float64).cumsum(axis)
    exclusive = expected - turned

    def tensor_of_x() -> dml.Tensor:
        more = [(0, 0)] * (x.ndim - 1) + [(0, apart - sizes[-1])]
        return gpu.tensor(np.pad(x, more))[..., :sizes[-1]]

    for given, wanted in ((0, expected), (1, exclusive)):
        tensor = tensor_of_x()
        y = dml.cumulative_summation(
            tensor, axis=axis, axis_direction=backwards, has_exclusive_sum=given, out=tensor)
        rounded = wanted.astype(np.float16)
        assert (y.numpy() == (np.flip(rounded, axis) if backwards else rounded)).all()
    (*_, (name, _)) = gpu.time(
        lambda: dml.cumulative_summation(tensor_of_x(), axis=axis, axis_direction=backwards))
    assert name == ("scan.float" if sizes[-1] % 2 or apart % 2 else "scan.halves")


@pytest.mark.parametrize("columns, data_type", [
    (24, "float16"), (168, "int32"), (1001, "float16"), (20_000, "float16")], ids=str)
def test_scan_with_every_share(gpu: dml.Device, columns: int, data_type: str) -> None:
    x = np.random.default_rng(7).integers(-1, 2, (3, columns)).astype(data_type)
    for backwards, exclusive in ((0, 0), (1, 1)):
        y = dml.cumulative_summation(
            gpu.tensor(x), axis=1, axis_direction=backwards, has_exclusive_sum=exclusive)
        forwards = x[:, ::-1] if backwards else x
        expected = forwards.cumsum(1) - exclusive * forwards  # small whole numbers: exact
        assert (y.numpy() == (expected[:, ::-1] if backwards else expected)).all()


def test_a_long_scan_of_halves_rounds_each_sum_once(device: dml.Device) -> None:
    """Float32 carries the sums. Float16 would be off by steps of 16 and more."""
    x = np.random.default_rng(6).uniform(0, 1, (2, 100_003)).astype(np.float16)
    y = dml.cumulative_summation(device.tensor(x), axis=1).numpy()
    exact = x.astype(np.float64).cumsum(1)
    rounded = exact.astype(np.float16)
    assert np.isfinite(rounded).all()
    half = np.spacing(rounded).astype(np.float64) / 2
    assert (abs(y.astype(np.float64) - exact) <= half + 26 * 2.0**-24 * exact).all()


@pytest.mark.parametrize("k, kernel", [
    (1, "groups"), (50, "groups"), (200, "groups"), (1, "subgroups"), (50, "subgroups")])
def test_parts_of_a_selection(gpu: dml.Device, k: int, kernel: str) -> None:
    x = _numbers(2, 100_003).round()  # many equal ones
    with tuning.trial(EveryWork(kernel)):
        values, indices = dml.top_k(gpu.tensor(x), k=k)
    order = np.argsort(-x, -1, kind="stable")[:, :k]
    assert (indices.numpy() == order).all()
    assert (values.numpy() == np.take_along_axis(x, order, -1)).all()


def _bits(n: int) -> np.ndarray:
    return np.random.default_rng(6).bytes(8 * n)


ROWS: dict[str, Callable[[int], np.ndarray]] = {
    "equal": lambda n: np.zeros(n),
    "rising": lambda n: np.arange(n),
    "falling": lambda n: -np.arange(n),
    "in-one-group": lambda n: np.arange(n) // 16 % 64 == 3,
}
"""Rows of which a bound may leave many."""


@pytest.mark.parametrize("columns, k", [(33, 33), (2048, 50), (16_385, 128)], ids=str)
@pytest.mark.parametrize("data_type, kernel", [
    *itertools.product(["float32", "float16", "uint8"], ["cpu", "groups", "subgroups"]),
    ("uint64", "cpu"), ("uint64", "groups")])  # wide types have one kernel
def test_first_few_of_a_row(
    request: pytest.FixtureRequest, kernel: str, columns: int, k: int, data_type: str
) -> None:
    device = request.getfixturevalue("device" if kernel == "cpu" else "gpu")
    bits = np.frombuffer(_bits(columns), data_type)[:columns]  # NaN, infinities and zeros
    with np.errstate(invalid="ignore", over="ignore"):
        x = np.stack([bits, *(make(columns).astype(data_type) for make in ROWS.values())])
    asked: dict[str, list[str]] = {}
    for direction in dml.AxisDirection:
        # Rows that begin between vectors have elements before and after them.
        for begin in (0, 1):
            given = x[:, begin:] if columns - begin >= k else x
            tensor = device.tensor(x)[:, x.shape[1] - given.shape[1] :]
            with tuning.trial(EveryWork(kernel)) as trial:
                values, indices = dml.top_k1(tensor, k=k, axis_direction=direction)
            asked |= trial.asked
            with np.errstate(invalid="ignore"):
                order = sorted_indices(given, 1, direction == dml.AxisDirection.INCREASING)[:, :k]
            assert (indices.numpy() == order).all()
            assert values.numpy().tobytes() == np.take_along_axis(given, order, 1).tobytes()
    # Subgroups are a choice for types that are not wide, and not on CPUs.
    in_subgroups = not device.target.traits.is_cpu and data_type != "uint64"
    assert asked
    for names in asked.values():
        assert "groups" in names and ("subgroups" in names) == in_subgroups


@pytest.mark.parametrize("k", [3, 50])
def test_rows_of_top_k_are_of_few_kinds(k: int) -> None:
    """Of any length on a GPU. A pipeline is compiled for each number of pieces."""
    target, kinds = targets()["h200"], dict[str, set[int]]()
    for columns in range(60, 20_000, 37):
        x, y = (dml.TensorDesc("float32", (4, n)) for n in (columns, k))
        desc = dml.TopKOperatorDesc(
            input_tensor=x, output_value_tensor=y, axis=1, k=k,
            output_index_tensor=dml.TensorDesc("uint32", (4, k)))
        with tuning.trial({}):
            for dispatch in desc.operator.lower(desc, target).execute:
                if "KEPT" in dispatch.spec:
                    kinds.setdefault(dispatch.variant.name, set()).add(int(dispatch.spec["KEPT"]))
    assert kinds and all(len(values) <= 10 for values in kinds.values()), kinds
