"""The benchmark: statistics, cases, rows and the plot."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import re
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml.bench import (
    architectures,
    baseline,
    cases,
    formats,
    limits,
    models,
    peers,
    plot,
    reduction,
    rows,
    sessions,
    start,
    timing,
    training,
    values,
)
from kompute_dml.bench.case import SCALES, Case, Peer, Recipe, scale_for, touched_bytes
from kompute_dml.bench.elementwise import EVERY_TYPE
from kompute_dml.bench.limits import AS_MANY_BYTES, Limit
from kompute_dml.bench.ordinary import ordinary
from kompute_dml.bench.peers import PeerTime
from kompute_dml.bench.timing import Clock, Loop, Stats, Timings, measure, repeats, report
from kompute_dml.cases import TINY
from kompute_dml.cases import case as entries
from kompute_dml.cli import cli
from kompute_dml.cli.bench import _command as command_of
from kompute_dml.operators.base import definitions
from kompute_dml.runtime import adapters

MODELS = Path(__file__).parents[1] / "models"
BASELINES = Path(__file__).parents[2] / "benchmarks" / "baseline"
FIGURES = {"gpu_ms", "spread", "host_ms", "bytes", "operations", "gb_per_s", "tops",
           "share_of_copy"}


def bench(*arguments: object):
    return CliRunner().invoke(
        cli, ["bench", "--scale", "tiny", "-i", "2", *map(str, arguments)]
    )


# -- clocks


def test_statistics():
    stats = Stats.of([4.0, 1.0, 2.0, 3.0])
    assert (stats.count, stats.average, stats.minimum, stats.median, stats.maximum) == \
        (4, 2.5, 1.0, 2.5, 4.0)
    assert stats.spread == pytest.approx(0.5)
    assert Stats.of([3.0]).spread == 0


@pytest.mark.parametrize(
    ("samples", "warmup", "cold"), [(1, 2, 0), (2, 2, 1), (3, 2, 2), (5, 2, 2), (5, 0, 0)]
)
def test_one_sample_is_always_hot(device, samples, warmup, cold):
    timings = measure(device, lambda: None, Loop(samples, warmup=warmup))
    assert timings.cpu.cold_count == cold
    assert timings.cpu.hot.count == samples - cold


def test_repeats_are_divided_out():
    class Slow:
        calls = 0

        def synchronize(self):
            pass

        def elapsed(self, work):
            self.calls = 0
            work()
            return 2e6 * self.calls

        def dispatch(self):
            self.calls += 1

    fake = Slow()
    timings = measure(fake, fake.dispatch, Loop(iterations=3, repeat=5))
    assert timings.gpu.samples == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("gpu_clock", [True, False])
def test_clocks_tell_what_a_dispatch_took(monkeypatch, gpu_clock):
    """Recording takes 1 ms, running 3 ms. The device's clock measures 2 ms."""
    class Device:
        now, recorded = 100.0, 7  # initial values, not measured

        def synchronize(self):
            self.now += 3e-3 * self.recorded
            self.recorded = 0

        def elapsed(self, work):
            if not gpu_clock:
                raise dml.UnsupportedError("no timestamps")
            work()
            count = self.recorded
            self.synchronize()
            return 2e6 * count

        def dispatch(self):
            self.now += 1e-3
            self.recorded += 1

        def bind(self):
            self.now += 0.5

    device = Device()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: device.now))
    timings = measure(device, device.dispatch, Loop(iterations=3, repeat=5), device.bind)
    assert timings.cpu.samples == pytest.approx((4.0, 4.0, 4.0))
    assert timings.gpu == (Clock((2.0, 2.0, 2.0), 1) if gpu_clock else None)
    # Samples take 20 ms, so the third begins after 40 ms.
    timings = measure(device, device.dispatch, Loop(iterations=9, repeat=5, milliseconds=50))
    assert timings.cpu.samples == pytest.approx((4.0, 4.0, 4.0))


@pytest.mark.parametrize(
    ("ms", "count"), [(0.0, 50), (0.01, 50), (0.5, 4), (0.7, 2), (1.9, 1), (9.0, 1)]
)
def test_repeats_fill_a_sample(ms, count):
    assert repeats(ms, 2.0, 50) == count


def test_without_device_timestamps():
    class Blind:
        def synchronize(self):
            pass

        def elapsed(self, work):
            raise dml.UnsupportedError("no timestamps")

    timings = measure(Blind(), lambda: None, Loop(iterations=2))
    assert timings.gpu is None
    assert report("x", timings, 0)[0].endswith(" ms median (CPU)")


def test_printed_line_is_that_of_dxdispatch():
    timings = Timings(Clock((0.5491,), 0), Clock((0.0061,), 0))
    assert report("sum", timings, 0) == [
        "Dispatch 'sum': 1 iterations, 0.5491 ms median (CPU), 0.0061 ms median (GPU)"
    ]


# -- cases


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
            limit.recipe for suite in cases.SUITES for limit in cases.suite(suite))
    ],
    ids=lambda r: f"{r.operator[13:]} {r.types}",
)
def test_cases_compute_what_numpy_does(device, recipe):
    for case in recipe.make(device, TINY):
        output = case.dispatch()
        assert case.check(output) == ""
        if "torch" in case.peers and isinstance(output, dml.Tensor):
            assert case.check(OfCuda(output)) == ""
        assert case.bytes > 0
        for peer in case.peers.get("numpy", lambda _: ())(peers.NumPy()):
            assert not peer.checked or case.check(peer.call()) == ""


@pytest.mark.parametrize("suite", cases.SUITES)
def test_suites_begin_with_a_copy(suite):
    first = cases.suite(suite)[0].recipe
    assert (first.operator, first.types[:3]) == ("DML_OPERATOR_ACTIVATION_IDENTITY", "f32")


def test_cases_of_the_limits_have_names_of_their_own(device):
    products = "MATRIX_MULTIPLY", "GEMM"  # measured in many sizes
    kinds = [limit.recipe for limit in limits.LIMITS
             if not any(product in limit.recipe.operator for product in products)]
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
    (limits.product(limits.Product(full=True), 512, 1024, 2048),
     2 * 4 + 4 * 2 + 4 * 8 + 4 * 8 + 1 + 1 + 4 * 8 + 4 * 16),
    (limits.product(limits.Product(cold=True), 512, 1024, 2048), 4 * 8),
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
    read, sizes = type(device)._read, []
    monkeypatch.setattr(type(device), "_read", lambda self, at, offset, size: (
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
    kind = limits.Product(full=not at[0], batches=2 * -at[0], out=out)
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


# -- rows


def timed(gpu_ms, size=2_000_000, operations=0, **fields):
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", size, operations, **fields)
    return rows.make_row(case, "ok", Timings(Clock((9.0, 5.0), 1), Clock((9.0, gpu_ms), 1)))


def test_figures_of_a_row():
    row = timed(2.0, operations=4_000_000)
    assert (row.gpu_ms, row.host_ms) == (2.0, 5.0)
    assert row.gb_per_s == pytest.approx(1.0)
    assert row.tops == pytest.approx(0.002)
    assert row.with_copy(4.0).share_of_copy == pytest.approx(0.25)
    assert formats.rate(row) == "2 GOPS"


def test_figures_are_those_of_one_dispatch():
    row = timed(2.0, dispatches=10)
    assert (row.gpu_ms, row.host_ms) == (0.2, 0.5)
    assert row.gb_per_s == pytest.approx(10.0)


def test_figures_are_medians_of_the_hot_samples():
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 3_000_000)
    host, gpu = Clock((99.0, 4.0, 5.0, 90.0), 1), Clock((99.0, 2.0, 3.0, 70.0), 1)
    row = rows.make_row(case, "ok", Timings(host, gpu))
    assert (row.gpu_ms, row.host_ms, row.ms) == (3.0, 5.0, 3.0)
    assert row.gb_per_s == pytest.approx(1.0) and row.spread == gpu.hot.spread
    row = rows.make_row(case, "ok", Timings(host, None))
    assert (row.gpu_ms, row.host_ms, row.ms) == (None, 5.0, 5.0)
    assert row.gb_per_s == pytest.approx(0.6) and row.spread == host.hot.spread


@pytest.mark.parametrize(("ms", "loop"), [(0.1, Loop(21, 20)), (20.0, Loop(4, 1))])
def test_samples_follow_from_the_speed(monkeypatch, ms, loop):
    loops = []

    def measure(device, dispatch, loop):
        loops.append(loop)
        return Timings(Clock((50.0,), 0), Clock((ms,), 0))

    monkeypatch.setattr(rows, "measure", measure)
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 1)
    assert rows.run_case(None, case).gpu_ms == ms
    assert loops == [Loop(3), loop]


@pytest.mark.parametrize(("figures", "text"), [
    (dict(tops=0.1), "0.1 TOPS"), (dict(tops=0.0999), "99.9 GOPS"),
    (dict(gb_per_s=999.0), "999 GB/s"), (dict(gb_per_s=2000.0), "2.00 TB/s"), ({}, "-"),
])
def test_rates_have_their_units(figures, text):
    assert formats.rate(rows.Row("X", "f32", "[1]", "ok", **figures)) == text


def test_what_a_table_says():
    row = rows.Row(
        "DML_OPERATOR_X", "f32", "[1]", "ok", gpu_ms=0.25, spread=0.034, host_ms=1.5,
        bytes=2_500_000, gb_per_s=10.0, share_of_copy=0.5, peers={"torch": PeerTime(1.0)},
        goals=(rows.Judged("copy", 0.6, 0.5), rows.Judged("torch", 1.0, 4.0),
               rows.Judged("eye", 1.0, None)),
    )
    wrong = rows.Row("DML_OPERATOR_Y", "f32", "[1]", "off by 1", bytes=2_000_000_000)
    *_, first, second = formats.as_table([row, wrong]).splitlines()
    assert re.split("  +", first) == [
        "X", "f32", "[1]", "250.0 us", "+-3%", "1.500 ms", "2.5 MB", "10 GB/s", "50%",
        "torch 4.00x", "copy 0.50/0.6 MISSED, torch 4.00/1 met, eye -/1 ?", "ok",
    ]
    assert re.split("  +", second) == ["Y", "f32", "[1]", *"---", "2.0 GB", *"--", "WRONG"]
    assert formats.summary([row, wrong]) == ["1 of 2 goals are met."]
    (line,) = formats.summary([rows.dataclasses.replace(row, gpu_ms=None, goals=())])
    assert line.startswith("No device timestamps here")


def with_peers(row, **times):
    return rows.dataclasses.replace(row, peers={n: PeerTime(ms) for n, ms in times.items()})


def test_goals_are_judged():
    row = with_peers(timed(2.0, operations=10**10).with_copy(2.0), torch=3.0, eye=None)
    other = Recipe("X", "other", lambda *_: ())
    absent = Recipe("X", "absent", lambda *_: ())
    limit = Limit(other, (("copy", 0.5), ("torch", 1.6), ("eye", 1.0), ("TOPS", 10.0),
                          ("us", 4000.0), (other, 0.9), (absent, 1.0), (AS_MANY_BYTES, 0.8)))
    goals = row.judged(limit, {other: timed(2.0, operations=2 * 10**10)},
                       {row.bytes: row.gb_per_s / 0.75}).goals
    assert [g.ratio for g in goals] == [0.5, 1.5, None, 0.5, 2.0, 0.5, None, 0.75]
    assert [g.met for g in goals] == [True, False, None, False, True, False, None, False]
    assert goals[4].against == "4000 us" and goals[6].against == "absent"


def test_copying_is_as_fast_as_the_faster_of_both():
    assert rows.copy_bandwidth(timed(2.0)) == pytest.approx(1.0)
    assert rows.copy_bandwidth(with_peers(timed(2.0), torch=1.0)) == pytest.approx(2.0)
    assert rows.copy_bandwidth(with_peers(timed(2.0), torch=4.0)) == pytest.approx(1.0)


# -- peers


def test_peers_are_checked_and_timed():
    def stand_beside(library):
        yield Peer("right", lambda: "good")
        yield Peer("wrong", lambda: "bad")
        yield Peer("partial", lambda: "bad", checked=False)
        yield Peer("broken", lambda: 1 / 0)

    case = Case("X", "f32", "[1]", lambda: None, lambda x: "" if x == "good" else "off", 1,
                peers={"numpy": stand_beside})
    times = peers.measure([peers.NumPy()], case)
    assert times["right"].ms > 0 and times["partial"].ms > 0
    assert times["wrong"] == PeerTime(problem="off")
    assert times["broken"].problem == "ZeroDivisionError: division by zero"


def test_a_peers_time_is_its_median():
    samples = Stats.of([1.0, 2.0, 60.0])
    library = SimpleNamespace(
        name="numpy", close=lambda: None, times=lambda call: [("", samples), (" (graph)", samples)])
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 1,
                peers={"numpy": lambda _: [Peer("x", lambda: None)]})
    assert peers.measure([library], case) == dict.fromkeys(
        ("x", "x (graph)"), PeerTime(2.0, samples.spread))


def test_a_graph_that_fails_leaves_the_time_of_calls():
    def times(call):
        yield "", Stats.of([1.0])
        raise RuntimeError("no capture")

    library = SimpleNamespace(name="numpy", close=lambda: None, times=times)
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 1,
                peers={"numpy": lambda _: [Peer("x", lambda: None)]})
    assert peers.measure([library], case) == {
        "x": PeerTime(1.0, 0), "x (graph)": PeerTime(problem="RuntimeError: no capture")}


@pytest.mark.parametrize(("ms", "count"), [(1.0, 20), (40.0, 3), (300.0, 1)])
def test_a_peer_on_the_host_is_timed_by_its_clock(monkeypatch, ms, count):
    now, calls = [0.0], []
    monkeypatch.setattr(peers, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call():
        calls.append(None)
        now[0] += (ms if len(calls) > 1 or count == 1 else 9 * ms / 2) / 1e3  # slow at first

    (suffix, stats), = peers.NumPy().times(call)
    assert (suffix, stats.count) == ("", count)
    assert stats.minimum == pytest.approx(ms) and stats.maximum == pytest.approx(ms)


@pytest.mark.parametrize(("ms", "graph"), [(0.1, True), (0.3, False)])
def test_a_peer_on_a_gpu_is_timed_by_its_clock(ms, graph):
    """A call from the host takes ``ms``, in a graph a fourth of it."""
    gpu = SimpleNamespace(now=0.0, captured=None)

    class Event:
        def __init__(self, enable_timing):
            self.synchronized = False

        def record(self):
            self.at = gpu.now

        def synchronize(self):
            self.synchronized = True

        def elapsed_time(self, end):
            assert end.synchronized
            return end.at - self.at

    class Graph:
        def replay(self):
            gpu.now += ms / 4 * self.count

    @contextlib.contextmanager
    def capture(graph):
        gpu.captured = 0
        yield
        graph.count, gpu.captured = gpu.captured, None

    def call():
        if gpu.captured is None:
            gpu.now += ms
        else:
            gpu.captured += 1

    stream = SimpleNamespace(wait_stream=lambda other: None)
    library = object.__new__(peers.Torch)
    library.cuda = True
    library.torch = SimpleNamespace(cuda=SimpleNamespace(
        Event=Event, CUDAGraph=Graph, graph=capture, stream=contextlib.nullcontext,
        Stream=lambda: stream, current_stream=lambda: stream))
    times = {suffix: stats.median for suffix, stats in library.times(call)}
    assert times == pytest.approx({"": ms} | ({" (graph)": ms / 4} if graph else {}))


def test_unknown_peers_are_refused(device):
    with pytest.raises(dml.UnsupportedError, match=r"names of torch, .* got 'cupy'"):
        peers.choose("numpy,cupy", device.adapter)


@pytest.mark.parametrize("seen, place", [
    ("ab", 1), ("b", 0), ("a", None), ("", None), ("c", 0), (None, None),
])
def test_torch_runs_on_the_gpu_that_it_stands_beside(device, monkeypatch, seen, place):
    """The GPU with the same UUID, never another one; without one, the CPU."""
    uuids = {letter: str(uuid.UUID(letter * 32)) for letter in "abc"}
    mine, other = (dataclasses.replace(device.adapter, uuid=uuids[letter].replace("-", ""))
                   for letter in "ba")
    monkeypatch.setattr(adapters, "list_devices", lambda: (other, mine))
    chosen = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(
        is_available=lambda: seen is not None, device_count=lambda: len(seen),
        get_device_properties=lambda i: SimpleNamespace(uuid=uuids[seen[i]]),
        set_device=chosen.append)))
    library = peers.Torch(mine)
    assert chosen == ([] if place is None else [place])
    assert library.place == ("cpu" if place is None else "cuda")
    assert library.cuda == (place is not None) == (not library.on_host)


def test_torch_gets_a_swapped_matrix_as_it_is_meant_to_be_stored():
    """With a view's own strides, PyTorch would have another layout than the case names."""
    sent = []
    library = object.__new__(peers.Torch)
    library.place = "cpu"
    library.torch = SimpleNamespace(
        from_numpy=lambda array: SimpleNamespace(to=lambda place: sent.append(array)))
    library.send(np.zeros((2, 3), np.int8).T)
    assert sent[0].shape == (3, 2) and sent[0].flags.c_contiguous


class Array(np.ndarray):
    """A NumPy array with the PyTorch methods that the peers call."""

    def transpose(self, x, y):
        return np.swapaxes(self, x, y)

    def contiguous(self):
        return np.ascontiguousarray(self).view(Array)

    def sum(self, axis, keepdim=False, dtype=None):
        return np.add.reduce(self, axis, dtype, keepdims=keepdim)

    def new_zeros(self, *sizes):
        return np.zeros(sizes, self.dtype).view(Array)

    clone, float = np.ndarray.copy, lambda self: self.astype(np.float32)
    to = np.ndarray.astype


K_CONTIGUOUS, ROW_MAJOR, TRANSPOSED = "K-contiguous B", "row-major B", " (B transposed first)"


@pytest.mark.parametrize("fields, given", [
    (dict(k_contiguous_b=True, full=True), {"": K_CONTIGUOUS}),
    (dict(k_contiguous_b=True, full=True, out=dml.DataType.FLOAT16), {"": K_CONTIGUOUS}),
    (dict(constant_b=True, full=True, compiled=True), {"": K_CONTIGUOUS}),
    (dict(full=True), {"": ROW_MAJOR, TRANSPOSED: K_CONTIGUOUS}),
    (dict(cold=True), {"": ROW_MAJOR, TRANSPOSED: K_CONTIGUOUS}),
    (dict(batches=2, k_contiguous_b=True), {"": K_CONTIGUOUS}),
    (dict(batches=2), {"": ROW_MAJOR, TRANSPOSED: K_CONTIGUOUS}),
], ids=str)
def test_torch_multiplies_what_the_case_says(device, fields, given):
    """NumPy stands in for PyTorch: values, and the layout of B in the product."""
    seen = []

    def int_mm(a, b):
        assert a.flags.c_contiguous
        seen.append(K_CONTIGUOUS if b.flags.f_contiguous else ROW_MAJOR)
        return a.astype(np.int32) @ b

    library = object.__new__(peers.Torch)
    library.send = lambda array: np.array(array, order="C").view(Array)
    library.torch = SimpleNamespace(
        int32=np.int32, float16=np.float16, _int_mm=int_mm, cat=np.concatenate,
        addcmul=lambda sum, x, y: (sum + x * y).astype(np.float32),
        compile=lambda call, dynamic: call, _dynamo=SimpleNamespace(reset=lambda: None))
    kind = limits.Product(**fields)
    m = 6 if kind.cold else 40
    (case,) = limits.product(kind, m, 32, 48).make(device, SCALES["large"])
    assert case.check(case.dispatch()) == ""
    names = [f"torch._int_mm{suffix}" for suffix in given]
    if kind.full:
        names += [f"torch{suffix}" for suffix in given]
    made = {peer.name: peer for peer in case.peers["torch"](library)}
    assert [name for name in made if name != "torch.compile"] == names
    assert ("torch.compile" in made) == kind.compiled
    for name, peer in made.items():
        seen.clear()
        result = peer.call()
        assert not peer.checked or case.check(result) == "", name
        assert set(seen) == {given[TRANSPOSED if name.endswith(TRANSPOSED) else ""]}, name


def test_onnxruntime_stands_beside(device):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    for pattern, name in (("ELEMENT_WISE_ADD", "onnxruntime"),
                          ("MATRIX_MULTIPLY", "onnxruntime (one scale for A)")):
        recipe = next(r for r in cases.RECIPES if pattern in r.operator)
        row = next(rows.run_recipe(
            device, recipe, Loop(), TINY, peers.choose("onnxruntime", device.adapter)))
        assert row.peers[name].problem == "" and row.peers[name].ms > 0


# -- stored runs


def kept(*figures):
    records = [
        {"operator": "DML_OPERATOR_X", "types": "f32", "sizes": f"[{i}]", "gpu_ms": ms,
         "host_ms": 9.0, "spread": 0.05}
        for i, ms in enumerate(figures)
    ]
    return {"rows": records, "date": "2024-02-29"}


def test_what_moved(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(kept(1.0, 1.0, 1.0, 1.0)))
    old = baseline.load(path)
    moved = baseline.against(kept(1.05, 0.5, 2.0, None)["rows"], old)
    assert [(c["case"][-3:], c["speed"], c["moved"]) for c in moved] == [
        ("[0]", pytest.approx(0.952, abs=1e-3), False), ("[1]", 2.0, True), ("[2]", 0.5, True),
        ("[3]", pytest.approx(1.0), False),
    ]
    table = baseline.against_table(kept(1.05, 0.5, 2.0)["rows"], old)
    assert [line.split()[-1] for line in table.splitlines()[2:]] == ["spread", "faster", "SLOWER"]


@pytest.mark.parametrize(("before", "now", "ms", "moved"), [
    (0.0, 0.0, 1.009, False), (0.0, 0.0, 1.011, True), (0.0, 0.0, 0.989, True),
    (0.05, 0.0, 1.04, False), (0.0, 0.05, 1.04, False), (0.03, 0.03, 1.05, False),
    (0.03, 0.03, 1.07, True),
])
def test_what_differs_by_more_than_both_spreads_moved(before, now, ms, moved):
    old, new = kept(1.0), kept(ms)
    old["rows"][0]["spread"], new["rows"][0]["spread"] = before, now
    old["by_key"] = {("DML_OPERATOR_X", "f32", "[0]"): old["rows"][0]}
    assert [case["moved"] for case in baseline.against(new["rows"], old)] == [moved]
    table = baseline.against_table(new["rows"], old)
    assert re.search(f"1000.0 us +{ms * 1e3:.1f} us +{1 / ms:.3f} ", table)


@pytest.mark.parametrize("stem, suite", [
    ("nvidia-h200", "limits"), ("nvidia-h200-elementwise", "elementwise"),
    ("nvidia-h200-families", "families"), ("nvidia-h100", "limits")])
def test_baselines_were_held_to_the_goals_of_their_suites(stem, suite):
    run = baseline.load(BASELINES / f"{stem}.json")
    limits = iter(cases.suite(suite))  # newer cases may stand between those that were measured

    def held_to(row: dict, limit: Limit) -> bool:
        asked = rows.Row("X", "f32", "[1]", "ok").judged(limit, {}).goals
        told = [(g["against"], g["goal"]) for g in row["goals"]]
        # A goal against another case names that case with its sizes.
        return ((row["operator"], row["types"]) == (limit.recipe.operator, limit.recipe.types)
                and [goal for _, goal in told] == [g.goal for g in asked]
                and all(g.against in against for g, (against, _) in zip(asked, told)))

    for row in run["rows"]:
        assert any(held_to(row, limit) for limit in limits), f"{row['operator']} {row['types']}"


def test_what_a_goal_names_is_measured_where_a_filter_leaves_it_out():
    result = bench("--suite", "movement", "--filter", "f16 step 2", "--format", "json")
    (row,) = json.loads(result.stdout)["rows"]
    (copy, _) = row["goals"]
    assert copy["against"] == AS_MANY_BYTES and copy["ratio"] > 0


def test_what_a_table_shows_first_was_measured():
    run = baseline.load(BASELINES / "nvidia-h200.json")
    assert set(baseline.SHOWN) <= {baseline.name(row) for row in run["rows"]}


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "bad.json").write_text('{"rows": 1}')
    for name in ("bad.json", "none.json"):
        with pytest.raises(dml.ValidationError, match=name):
            baseline.load(tmp_path / name)


# -- the command


def test_table_has_the_rows_asked_for():
    result = bench("--filter", "diagonal_matrix1 ".strip())
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Running on '")
    assert len([line for line in lines if line.startswith("DIAGONAL_MATRIX1")]) == 3
    assert not any(line.startswith("ACTIVATION") for line in lines)


def test_csv_and_json_have_the_same_figures():
    table = list(csv.DictReader(io.StringIO(bench("--format", "csv", "--filter", "f16").stdout)))
    document = json.loads(bench("--format", "json", "--filter", "f16").stdout)
    assert document["device"]
    assert FIGURES <= table[0].keys() == document["rows"][0].keys()
    assert [r["types"] for r in table] == [r["types"] for r in document["rows"]]
    assert all(r["values"] == "ok" and r["host_ms"] > 0 for r in document["rows"])


def test_model_rows_are_measured_unchecked():
    result = bench(MODELS / "matrix_multiply_integer_to_float.json", "--format", "json")
    assert result.exit_code == 0, result.output
    copy, product = json.loads(result.stdout)["rows"]
    assert copy["share_of_copy"] == pytest.approx(1)
    assert product["values"] == "unchecked"
    assert product["operations"] == 2 * 2 * 3 * 2
    assert product["bytes"] == 6 + 8 + 6 + 4 + 2 + 8 + 16


@pytest.mark.parametrize(("options", "loop"), [
    ("", None), ("-r 4", Loop(11, 4)), ("-i 3 -r 4 -t 50 -w 2", Loop(3, 4, 50.0, 2))])
def test_what_is_asked_for_is_how_it_is_timed(monkeypatch, options, loop):
    asked = []

    def run_recipe(device, recipe, loop, scale, libraries):
        asked.append((loop, scale))
        # PyTorch copies twice as fast.
        yield with_peers(timed(2.0 if recipe is cases.COPY else 4.0), torch=1.0)

    monkeypatch.setattr(rows, "run_recipe", run_recipe)
    monkeypatch.setattr(rows, "suitable_scale", lambda device, copy: SCALES["middle"])
    result = CliRunner().invoke(cli, [
        "bench", "--filter", "diagonal_matrix u8", "--format", "json", *options.split()])
    assert result.exit_code == 0, result.output
    assert asked == [(loop, SCALES["middle"])] * 2
    run = json.loads(result.stdout)
    assert run["copy_gb_per_s"] == pytest.approx(2.0)
    assert [row["share_of_copy"] for row in run["rows"]] == pytest.approx([0.25])


def test_verbosity_goes_to_stderr():
    result = bench("--filter", "diagonal_matrix u8", "-v", 1)
    assert result.exit_code == 0
    assert "CPU Timings" not in result.stdout


def test_wrong_values_end_with_1(monkeypatch):
    def make(device, scale):
        yield Case("DML_OPERATOR_GEMM", "f32", "[1]", lambda: None, lambda _: "off by 1", 4)

    monkeypatch.setattr(
        cases, "RECIPES", (cases.COPY, Recipe("DML_OPERATOR_GEMM", "f32", make)))
    result = bench()
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert result.stderr.strip() == "error: GEMM f32 [1]: off by 1"


def test_peers_and_goals_are_printed():
    result = bench("--suite", "numpy", "--filter", "element_wise_abs")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "faster than" in lines[1] and "reached/goal" in lines[1]
    (row,) = [line for line in lines if line.startswith("ELEMENT_WISE_ABS")]
    assert "numpy " in row and "/0.1 " in row
    assert any(line.endswith(" of 1 goals are met.") for line in lines)


def test_a_run_is_kept_and_compared(tmp_path):
    path = tmp_path / "runs" / "run.json"
    assert bench("--filter", "diagonal_matrix u8", "--output", path).exit_code == 0
    run = json.loads(path.read_text())
    assert run["command"].startswith("kompute-dml")
    assert {"driver", "date", "version", "copy_gb_per_s"} <= run.keys()
    for row in run["rows"]:
        row.update(gpu_ms=row["gpu_ms"] and row["gpu_ms"] * 1000, host_ms=row["host_ms"] * 1000)
    path.write_text(json.dumps(run))
    result = bench("--filter", "diagonal_matrix u8", "--against", path)
    assert result.exit_code == 0, result.output
    assert f"{run['date']}" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("faster")
    assert "another device" not in result.stdout
    result = bench("--filter", "diagonal_matrix u8", "--against", path, "--json")
    (moved,) = json.loads(result.stdout)["against"]
    assert moved["case"].startswith("DIAGONAL_MATRIX u8 ") and moved["speed"] > 1
    path.write_text(json.dumps({**run, "device": "Maker RTX 4090"}))
    result = bench("--filter", "diagonal_matrix u8", "--against", path)
    assert f"{path} is a run on another device, 'Maker RTX 4090'" in result.stdout


def test_the_command_of_a_run_names_no_file_of_its_machine():
    arguments = ["bench", "--peers", "--output", "/a/b.json", "--suite", "limits"]
    assert command_of(arguments) == "kompute-dml bench --peers --suite limits"
    assert command_of(["bench", "--output=/a/b.json"]) == "kompute-dml bench"


def _circles(svg: str) -> list[str]:
    return re.findall(r'<circle class="c(\d)" cx="([\d.]+)" cy="([\d.]+)" r="4"/>', svg)


def test_plot(tmp_path):
    picture = tmp_path / "run.svg"
    result = bench("--filter", "diagonal_matrix u8", "--plot", picture)
    assert result.exit_code == 0, result.output
    root = ElementTree.fromstring(picture.read_text())
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Bandwidth: GB/s" in texts and "diagonal_matrix u8" in texts


def test_a_kept_run_is_drawn_and_nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(dml, "Device", None)
    picture = tmp_path / "kept.svg"
    kept = ["--kept", BASELINES / "nvidia-h200.json"]
    assert bench(*kept, "--kept", BASELINES / "nvidia-h200-models.json", "--plot",
                 picture).exit_code == 0
    assert picture.read_text() == (
        Path(__file__).parents[2] / "docs/performance/nvidia-h200.svg").read_text()
    assert "expected --plot" in bench(*kept).output
    assert "at most one run" in bench(*kept, *kept, "--plot", picture).output


def test_the_roofline_is_to_scale():
    """A row at the copy bandwidth lies on the line; ten times the rate is as high everywhere."""
    def row(intensity, tops, types="a"):
        return {"operator": "X", "types": types, "sizes": "", "gb_per_s": 1.0, "tops": tops,
                "operations": int(intensity * 1000), "bytes": 1000}
    rows = [row(1, 1.0), row(10, 10.0), row(100, 10.0), row(100, 100.0), row(100, 5.0, "<b>")]
    run = {"device": "D & E", "driver": "", "date": "", "copy_gb_per_s": 1000.0, "rows": rows}
    svg = plot.picture(run)
    assert "D &amp; E" in svg and "&lt;b>" in svg
    *dots, other = [(int(c), float(x), float(y)) for c, x, y in _circles(svg)[2:]]
    assert [dot[0] for dot in dots] == [0] * 4 and other[0] == 1
    (_, x0, y0), (_, x1, y1), (_, x2, y2), (_, _, y3) = dots
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y1 == y2
    assert y0 - y1 == pytest.approx(y1 - y3, abs=0.2) and y0 > y1
    (start_x, start_y, end_x, end_y), = re.findall(
        r'class="roof" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    along = (x0 - float(start_x)) / (float(end_x) - float(start_x))
    assert float(start_y) + along * (float(end_y) - float(start_y)) == pytest.approx(y0, abs=0.3)


# -- whole models


def product_kind(types="FLOAT32", goals=(("ms", 1e6),), off=0.0):
    """A model of one product. The expected result is wrong by ``off``."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime", "1.24")

    def make(folder):
        x, w = np.eye(16, 32, dtype="f4"), np.arange(32 * 8, dtype="f4").reshape(32, 8)
        infos = [onnx.helper.make_tensor_value_info(n, 1, d) for n, d in
                 (("x", x.shape), ("y", (16, 8)))]
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
             onnx.helper.make_node("Relu", ["h"], ["y"])],
            "g", infos[:1], infos[1:], [onnx.numpy_helper.from_array(w, "w")])
        path = folder / f"{types}.onnx"
        onnx.save(onnx.helper.make_model(
            graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
        return models.Model(path, {"x": x, "unread": x}, x @ w + off, 1e-5)

    return models.Kind("product, 16", types, goals, make)


def bench_models(monkeypatch, kinds, *arguments):
    monkeypatch.setattr(architectures, "kinds", lambda: kinds)
    return CliRunner().invoke(cli, ["bench", "--suite", "models", *map(str, arguments)])


def test_models_are_checked_timed_and_kept(monkeypatch, tmp_path):
    """Of three models one is filtered out, and one has a wrong result."""
    kept, starts = tmp_path / "run.json", []

    def started_once(*arguments):
        starts.append(starts[0] if starts else start.started_twice(*arguments))
        return starts[0]

    monkeypatch.setattr(models, "started_twice", started_once)
    kinds = [product_kind(), product_kind("FLOAT16", off=9.0), product_kind("INT8")]
    result = bench_models(monkeypatch, kinds, "--filter", "float", "--peers", "onnxruntime",
                          "-i", 3, "--output", kept, "--plot", tmp_path / "run.svg")
    assert result.exit_code == 1
    assert re.search(r"product, 16 +FLOAT32 .* 2 of 2$", result.stdout, re.MULTILINE)
    assert re.search(r"product, 16 +FLOAT16 .* WRONG$", result.stdout, re.MULTILINE)
    assert "INT8" not in result.stdout
    assert result.stderr.strip().startswith("error: product, 16 FLOAT16: off by ")
    run = baseline.load(kept)
    right, wrong = run["models"]
    assert right["values"] == "ok" and right["off_by"] == 0
    assert right["regions"] == 1 and right["dispatches"] in (None, 1)
    assert right["peers"]["onnxruntime"]["ms"] > 0
    for name in ("ms", "session_ms", "session_first_ms", "first_ms", "cold_session_ms",
                 "cold_first_ms", "warm_session_ms", "warm_first_ms"):
        assert right[name] > 0, name
    beside = right["peers"]["onnxruntime"]
    assert beside["session_ms"] > 0 and beside["session_first_ms"] > 0
    assert wrong["ms"] is None and wrong["peers"] == {}
    assert ">product, 16</text>" in (tmp_path / "run.svg").read_text()
    (moved,) = baseline.against(run["models"], run)
    assert moved["case"] == "product, 16 FLOAT32" and not moved["moved"]
    assert f"| product, 16 | FLOAT32 | {right['ms']:.2f} ms |" in baseline.markdown(run)


@pytest.fixture
def quick_bench(monkeypatch, device):
    """Measures no start in a new process."""
    monkeypatch.setattr(
        models, "started_twice", lambda *_: (start.Start(1.0, 2.0, 1, 3, 4.0, 0.0),) * 2)
    return lambda names="": models.Bench(device.adapter, names, Loop(2))


def test_what_cannot_be_made_or_timed_is_left_out(quick_bench, monkeypatch):
    first = product_kind()

    def fail():
        raise RuntimeError("[somewhere.cc:1] no adapter")

    def missing():
        raise ModuleNotFoundError("x")

    monkeypatch.setitem(sessions.PROVIDERS, "ggml", (fail, "a-package"))
    monkeypatch.setitem(sessions.PROVIDERS, "webgpu", (missing, "a-package"))
    made = quick_bench("webgpu,ggml")
    assert made.left_out == ["webgpu is left out: a-package is not installed",
                             "ggml is left out: [somewhere.cc:1] no adapter"]
    broken = first._replace(types="INT8", make=lambda folder: 1 / 0)
    assert [row.types for row in made.run([broken, first], 60)] == ["FLOAT32"]
    assert made.left_out[2] == (
        "product, 16 INT8 is left out: ZeroDivisionError: division by zero")
    assert list(made.run([first], -1)) == []
    assert made.left_out[3] == "product, 16 FLOAT32 is left out: -1 s are over"
    with pytest.raises(dml.UnsupportedError, match=r"--peers: expected names of torch.* 'numpy'"):
        quick_bench("numpy")


def test_a_peer_that_fails_or_is_wrong_is_a_result(quick_bench, monkeypatch):
    kind = product_kind()

    def wrong():
        session = sessions.PROVIDERS["onnxruntime"][0]()
        return lambda path: SimpleNamespace(
            get_inputs=session(path).get_inputs, run=lambda *_: [np.full((16, 8), np.nan)])

    def lazy():
        def refuse(path):
            if path.name != "product.onnx":
                raise dml.UnsupportedError("it leaves every node to the CPU")
            return sessions.PROVIDERS["onnxruntime"][0]()(path)

        return refuse

    monkeypatch.setitem(sessions.PROVIDERS, "webgpu", (wrong, ""))
    monkeypatch.setitem(sessions.PROVIDERS, "ggml", (lazy, ""))
    (row,) = quick_bench("webgpu,ggml").run([kind], 60)
    assert row.ok and row.ms > 0
    assert row.peers["webgpu"].problem == "off by nan, expected at most 5e-02"
    assert row.peers["ggml"].problem == "UnsupportedError: it leaves every node to the CPU"
    assert {peer.ms for peer in row.peers.values()} == {None}
    table = models.as_table([row])
    assert table.count("failed") == 2


def test_goals_of_models():
    def row(types, ms, **fields):
        cold, warm = (start.Start(90.0, first, 1, 3, 4.0, 0.0) for first in (2000.0, 500.0))
        return models.ModelRow("m", types, "ok", ms, session_ms=50.0, session_first_ms=200.0,
                               first_ms=3000.0, start=cold, warm=warm, **fields)

    peer = models.SessionTime(8.0, session_ms=100.0, session_first_ms=10.0)
    judged = row("INT8", 4.0, peers={"webgpu": peer}).judged(
        (("ms", 2.0), ("webgpu", 1.0), ("FLOAT32", 1.0), ("onnxruntime", 2.0)),
        {"FLOAT32": row("FLOAT32", 6.0)})
    assert [(g.against, g.ratio, g.met) for g in judged.goals] == [
        ("2 ms", 0.5, False), ("webgpu", 2.0, True), ("FLOAT32", 1.5, True),
        ("onnxruntime", None, None), ("warm first run 1000 ms", 2.0, True),
        ("webgpu's session", 2.0, True)]
    assert "4 of 5; 2 ms 0.50/1 MISSED" in models.as_table([judged])
    assert re.search(r" 50 +2000 +500 +4 of 5", models.as_table([judged]))


def test_sessions_are_made_in_turns(monkeypatch):
    """The median counts, garbage is collected before each, and no session outlives its turn."""
    now, events, alive = [0.0], [], []

    class Session:
        def __init__(self, name):
            alive.append(name)
            self.name = name

        def __del__(self):
            alive.remove(self.name)

    def opens(name, seconds):
        takes = iter(seconds)

        def opened(path):
            assert not alive
            events.append(name)
            now[0] += next(takes)
            return Session(name)

        return opened

    monkeypatch.setattr(sessions, "time", SimpleNamespace(
        perf_counter=lambda: now[0], monotonic=lambda: now[0]))
    monkeypatch.setattr(sessions, "gc", SimpleNamespace(collect=lambda: events.append("gc")))

    def took(seconds, *times):
        events.clear()
        return sessions.in_turns(
            {name: opens(name, t) for name, t in zip("ab", times)}, Path(), 5, 3, seconds)

    assert took(99, (1, 9, 2, 3, 4), (5, 1, 1, 1, 1)) == {"a": 3000, "b": 1000}
    assert events == ["gc", "a", "gc", "b"] * 5
    assert took(1, (1, 9, 2, 3, 4)) == {"a": 2000}, "enough of them, and too many seconds"
    assert took(99, (1, 9, 2, 3, 4), (5,)) == {"a": 3000, "b": None}, "the second one fails"


def test_a_new_process_finds_what_the_first_has_kept(monkeypatch):
    """Each model begins with an empty folder, which drivers use, too."""
    seen = []

    def stand_in(command, *, env, **_):
        folder = Path(env["KOMPUTE_DML_PIPELINES"])
        seen.append((folder, bool(list(folder.iterdir()))))
        assert Path(env["__GL_SHADER_DISK_CACHE_PATH"]) == folder
        assert Path(env["MESA_SHADER_CACHE_DIR"]) == folder
        (folder / "kept").touch()
        return SimpleNamespace(returncode=0, stdout=json.dumps(
            dataclasses.asdict(start.Start(float(len(seen)), 2.0, 1, 3, 4.0, 0.0))))

    monkeypatch.setattr(start.subprocess, "run", stand_in)
    cold, warm = start.started_twice(Path("m.onnx"), {"x": np.zeros(1)}, "0")
    assert (cold.session_ms, warm.session_ms) == (1.0, 2.0)
    start.started_twice(Path("m.onnx"), {"x": np.zeros(1)}, "0")
    assert [was for _, was in seen] == [False, True, False, True]
    assert seen[0][0] == seen[1][0] != seen[2][0]


def test_torch_times_calls_and_a_graph_of_the_model():
    """NumPy stands in for PyTorch. A graph's replay writes what its call returned."""
    class Result(np.ndarray):
        cpu = numpy = lambda self: self

    said = np.float32([1, 2])

    class Place:
        def to(self, place):
            return self

        def __call__(self, *inputs):
            return said.view(Result)

    library = SimpleNamespace(
        place="cuda", close=lambda: None, graph=lambda call, repeat: call,
        torch=SimpleNamespace(no_grad=contextlib.nullcontext,
                              cuda=SimpleNamespace(synchronize=lambda: None)))
    model = models.Model(Path(), {}, np.float32([1, 2]), 1e-5, (Place(), (Place(),)))

    def clock(call):
        call()
        return Clock((3.0,), 0)

    found = models._torch(library, model, clock)
    assert {name: time.ms for name, time in found.items()} == {"torch": 3.0, "torch (graph)": 3.0}
    said[1] = 3
    found = models._torch(library, model, clock)
    assert {time.problem for time in found.values()} == {"off by 5.0e-01, expected at most 5e-02"}


def test_a_run_is_told_from_its_trace():
    """Two runs of two regions, the first one cold."""
    def event(kind, name="", us=0):
        return {"cat": kind, "name": name, "dur": us}

    run = [event("region"), event("dispatch", "gemm", 1000), event("dispatch", "transfer", 500),
           event("region"), event("dispatch", "softmax", 2000)]
    cold = [event("region"), event("dispatch", "gemm", 9000), event("region")]
    assert start._of_a_run([{"ph": "M"}, *cold, *run], 2) == (2, 2, 3.0, 0.5)
    assert start._of_a_run([event("region")] * 4, 2) == (2, None, None, None)
    assert start._of_a_run([], 2) == (0, None, None, None)


def test_models_say_what_to_install(monkeypatch):
    monkeypatch.setattr(architectures, "NEEDED", ("numpy", "no_such_torch", "no_such_vision"))
    result = CliRunner().invoke(cli, ["bench", "--suite", "models"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: --suite models makes its models with no_such_torch, no_such_vision: pip install "
        "no_such_torch no_such_vision\n")
    monkeypatch.setattr(architectures, "NEEDED", ())
    result = CliRunner().invoke(cli, ["bench", "--suite", "models", "--filter", "no such"])
    assert "no model has 'no such' in its name or type" in result.stderr


def test_kept_models_are_those_of_the_suite():
    names = {architecture.name for architecture in architectures.ARCHITECTURES}
    run = baseline.load(BASELINES / "nvidia-h200-models.json")
    assert {row["model"] for row in run["models"]} == names
