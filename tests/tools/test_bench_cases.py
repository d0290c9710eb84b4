"""The benchmark's cases: how they check values and count bytes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.bench import cases, limits, peers, reduction, rows, training, values
from kompute_dml.bench.case import SCALES, Case, Recipe, scale_for, touched_bytes
from kompute_dml.bench.elementwise import EVERY_TYPE
from kompute_dml.bench.ordinary import ordinary
from kompute_dml.bench.timing import Loop
from kompute_dml.cases import TINY
from kompute_dml.cases import case as entries
from kompute_dml.operators.base import definitions


def test_every_operator_has_a_case():
    assert {recipe.operator for recipe in cases.RECIPES} == definitions().keys()


class OfCuda:
    """Behaves like a tensor of PyTorch on CUDA, which NumPy cannot read."""

    def __init__(self, tensor: dml.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> object:
        return getattr(self.tensor, name)

    def __getitem__(self, key: object) -> OfCuda:
        return OfCuda(self.tensor[key])

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    numpy = __array__

    def cpu(self) -> dml.Tensor:
        return self.tensor


@pytest.mark.values
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[pytest.mark.slow] * (recipe in EVERY_TYPE))
        for recipe in dict.fromkeys(
            recipe for suite in cases.SUITES.values() for recipe in suite)
    ],
    ids=lambda r: f"{r.operator[13:]} {r.types}",
)
def test_cases_compute_what_numpy_does(device, recipe):
    for case in recipe.make(device, TINY):
        output = case.dispatch()
        assert case.check(output) == ""
        if "torch" in case.peers and isinstance(output, dml.Tensor):
            assert case.check(OfCuda(output)) == ""
        assert case.bytes > 0 or case.on_host
        for peer in case.peers.get("numpy", lambda _: ())(peers.NumPy()):
            assert not peer.checked or case.check(peer.call()) == ""


@pytest.mark.parametrize("suite", cases.SUITES)
def test_suites_begin_with_a_copy(suite):
    first = cases.SUITES[suite][0]
    assert (first.operator, first.types[:3]) == ("DML_OPERATOR_ACTIVATION_IDENTITY", "f32")


def test_cases_of_the_limits_have_names_of_their_own(device):
    products = "MATRIX_MULTIPLY", "GEMM"  # measured in many sizes
    kinds = [recipe for recipe in limits.LIMITS
             if not any(product in recipe.operator for product in products)]
    assert len({(recipe.operator, recipe.types) for recipe in kinds}) == len(kinds)


def test_a_wrong_value_is_found_and_not_timed(device):
    host = np.zeros(4, np.float32)
    got = np.float32([0, 1, 0, 0])
    case = Case("X", "f32", "[4]", lambda: got, lambda x: values.same_bits(x, host), 4)
    row = rows.run_case(device, case, Loop())
    assert not row.ok and row.gpu_ms is None
    assert row.values.startswith("1 of 4 elements differ, the first at [1]: expected 0.0")


def test_values_of_other_sizes_are_not_close():
    assert values.close(np.ones(3), np.ones(3)) == ""
    assert values.close(np.ones((3, 1)), np.ones(3)) == "expected sizes [3], but got [3, 1]"


@pytest.mark.parametrize("x, y, dtype", [
    (1 + 2e-5, 1.0, "f4"), (2e-6, 0.0, "f4"), (1.002, 1.0, "f2"), (np.nan, 1.0, "f4"),
    (3, 2, "i4")])
def test_values_are_close_by_a_unit_or_so(x, y, dtype):
    assert values.close(np.array([y, x], dtype), np.array([y, y])).startswith("1 of 2 elements")
    near = y if dtype == "i4" else y + (x - y) / 4 if x == x else y
    assert values.close(np.array([near], dtype), np.array([y])) == ""


def test_a_value_that_goes_wrong_while_it_is_timed_is_found(device):
    calls = []

    def dispatch():
        calls.append(None)
        return np.float32([len(calls) > 3])

    case = Case("X", "f32", "[1]", dispatch,
                lambda x: values.same_bits(x, np.zeros(1, np.float32)), 4)
    row = rows.run_case(device, case, Loop(iterations=4))
    assert not row.ok and row.gpu_ms is None
    assert row.values.startswith("after it was timed: 1 of 1 elements differ")


def test_zeros_of_different_sign_are_different():
    assert values.same_bits(np.float32([-0.0]), np.float32([0.0]))


@pytest.mark.parametrize("sizes", [(7,), (3, 5), (100_000,), (70, 1000, 3), (2, 3, 1 << 17)])
def test_samples_hold_the_first_and_the_last_element(sizes):
    array = np.arange(math.prod(sizes)).reshape(sizes)
    parts = [array[key].ravel() for key in values.samples(sizes)]
    assert parts[0][0] == 0 and parts[-1][-1] == array.size - 1
    assert all(0 < part.size <= 1 << 15 for part in parts)
    for key, part in zip(values.samples(sizes), parts):
        steps = np.array(array.strides) // array.itemsize
        assert (values.offsets(key, sizes, steps).ravel() == part).all()


def test_a_wrong_sampled_part_is_named():
    array = np.zeros((4, 1 << 15), np.uint8)
    check = values.sampled(
        array.shape, lambda key: np.zeros((1, 1 << 15), np.uint8), values.same_bits)
    assert check(array) == ""
    array[3, 5] = 1
    assert "the first at [0, 5]: expected 0, but got 1 (in the part [3:4])" in check(array)


def test_patterns_repeat_on_the_device(device):
    pattern = values.Pattern(np.arange(5, dtype=np.int32), 13)
    assert pattern.tensor(device).numpy().tolist() == pattern.host().tolist()
    assert pattern.at(np.array([4, 5, 12])).tolist() == [4, 0, 2]


def test_bytes_count_what_a_stride_repeats_once():
    broadcast = dml.TensorDesc("float16", (4, 8), (0, 1))
    assert touched_bytes((broadcast, dml.TensorDesc("int64", (3,)))) == 16 + 24


def test_bytes_of_a_triangle_leave_out_what_becomes_value(device):
    recipe = limits.diagonal1(dml.DataType.FLOAT16, "upper", limits.packed(256, 256))
    (case,) = recipe.make(device, SCALES["large"])
    assert case.bytes == 2 * (256 * 256 + 256 * 257 // 2)


@pytest.mark.parametrize(("recipe", "size"), [
    (cases.identity(dml.DataType.FLOAT32, "", limits.packed(1024, 1024)), 4 * (16 + 16)),
    (limits.identity(dml.DataType.FLOAT16, "", limits.broadcast(1024, 2048)), 2 * (8 + 32)),
    (limits.identity(dml.DataType.FLOAT32, "", limits.padded(1024, 1024, 8),
                     limits.transposed(1024, 1024)), 4 * (16 + 16)),
    (limits.identity(dml.DataType.FLOAT32, "", limits.eight(6, 2, 4, 0, 5, 1, 3, 7)),
     4 * (1024 + 1024)),
    (limits.diagonal(dml.DataType.INT64, limits.packed(1024, 1024)), 8 * 16),
    (limits.diagonal1(dml.DataType.FLOAT32, "lower", limits.packed(1024, 1024)), 4 * (10 + 16)),
    (limits.diagonal1(dml.DataType.UINT8, "band", limits.packed(2048, 2048)), 52 + 64),
    (limits.product(limits.BenchProduct(full=True), 512, 1024, 2048),
     2 * 4 + 4 * 2 + 4 * 8 + 4 * 8 + 1 + 1 + 4 * 8 + 4 * 16),
    (limits.product(limits.BenchProduct(cold=True), 512, 1024, 2048), 4 * 8),
], ids=lambda x: x.types if isinstance(x, Recipe) else str(x))
def test_bytes_are_those_read_and_written(device, recipe, size):
    (case,) = recipe.make(device, TINY)
    assert case.bytes == size


@pytest.mark.parametrize("nbytes, moved", [(8, 8), (800, 800), (803, 808)])
def test_a_copy_of_as_many_bytes(device, nbytes, moved):
    (copy,) = cases.copy_of(nbytes).make(device, TINY)
    assert copy.bytes == moved and copy.check(copy.dispatch()) == ""


def test_bytes_count_what_is_read_again(device):
    recipes = [r for r in training.GRADIENTS if r.operator.endswith("NORMALIZATION_TRAINING")]
    for recipe, each in zip(recipes, (4, 2), strict=True):
        (case,) = recipe.make(device, TINY)
        assert case.bytes == each * (64 + 64 + 64 + 4)  # the input twice; statistics


@pytest.mark.parametrize("axis", [0, 1])
def test_items_along_any_axis_are_checked(device, axis):
    """The last item is wrong. Items before it, but for the first, are not looked at."""
    recipe = ordinary("DML_OPERATOR_ELEMENT_WISE_ABS", "f32", lambda scale: entries.case(
        np.abs, entries.Given((512, 512), -1, 1)), axis=axis)
    (made,) = recipe.make(device, TINY)
    got = made.dispatch().numpy()
    assert made.check(got) == ""
    np.moveaxis(got, axis, 0)[-1, 7] += 1
    assert made.check(got).endswith("(from item 384)")


@pytest.mark.parametrize(("recipe", "index"), [
    (reduction.reduction(dml.DataType.FLOAT32, "SUM", "all"), (0, 0)),
    (reduction.reduction(dml.DataType.FLOAT32, "ARGMAX", "all"), (0, 0)),
    (reduction.cumulative(0, 16384, 16384), (63, slice(None))),
    (reduction.cumulative(1, 1, 1 << 28), (0, -1))], ids=lambda x: getattr(x, "types", ""))
def test_checks_of_whole_tensors_find_what_is_off(device, recipe, index):
    (made,) = recipe.make(device, TINY)
    got = made.dispatch().numpy()
    assert made.check(got) == ""
    got[index] += 1 + got[index] // 1000
    assert made.check(got)


def test_a_part_between_others_is_packed_before_it_is_read(device, monkeypatch):
    x = device.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    read, sizes = type(device).read, []
    monkeypatch.setattr(type(device), "read", lambda self, at, offset, size: (
        sizes.append(size), read(self, at, offset, size))[1])
    assert values.host(x[:, 1:2]).ravel().tolist() == [1, 5, 9]
    assert sizes == [12]


def test_small_copies_in_one_submit_are_counted(device):
    (case,) = limits.small_identities(8, 30).make(device, TINY)
    assert (case.dispatches, case.bytes) == (30, 2 * 4 * 64)


def test_operands_lie_as_the_case_says():
    scale = SCALES["large"]
    assert limits.packed(3, 5)(scale) == ([3, 5], [5, 1])
    assert limits.transposed(3, 5)(scale) == ([3, 5], [1, 3])
    assert limits.padded(3, 5, 8)(scale) == ([3, 5], [13, 1])
    assert limits.broadcast(3, 5)(scale) == ([3, 5], [0, 1])
    sizes, strides = limits.eight(7, 6, 5, 4, 3, 2, 1, 0)(TINY)
    assert (sizes, strides) == ([4, *[2] * 6, 4], [1, 4, 8, 16, 32, 64, 128, 256])


@pytest.mark.parametrize("at", [(-1, 0, 0), (0, -1, 3), (0, 3, -1)], ids=str)
@pytest.mark.parametrize("out", [dml.DataType.FLOAT32, dml.DataType.FLOAT16], ids=str)
def test_a_product_that_is_off_in_one_element_is_found(device, at, out):
    kind = limits.BenchProduct(full=not at[0], batches=2 * -at[0], out=out)
    (case,) = limits.product(kind, 64, 32, 48).make(device, SCALES["large"])
    result = case.dispatch().numpy()
    assert case.check(result) == ""
    at = at[-result.ndim:]
    result[at] *= 1 + 8 * np.finfo(out.dtype).eps
    assert case.check(result).startswith("1 of ")


def test_scales_follow_the_bandwidth():
    assert scale_for(5.0) is SCALES["small"]
    assert scale_for(50.0) is SCALES["middle"]
    assert scale_for(4000.0) is SCALES["large"]
    assert all(math.prod(p) for s in SCALES.values() for p in s.products)


def test_the_scale_is_that_of_copying_a_little(monkeypatch):
    made = []
    copy = Recipe("X", "f32", lambda device, scale: made.append(scale) or [None])
    monkeypatch.setattr(rows, "run_case", lambda *_: SimpleNamespace(gb_per_s=60.0))
    assert rows.suitable_scale(None, copy) is SCALES["middle"]
    assert made == [SCALES["small"]]
