"""Choices between kernels: their storage, validity and measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.bench import tune
from kompute_dml.bench.case import TINY, Case, Recipe
from kompute_dml.bench.products import BenchProduct, product
from kompute_dml.bench.timing import Clock, Loop, Timings, has_gpu_clock
from kompute_dml.cli import cli
from kompute_dml.runtime.traits import DeviceClass

KERNELS = ("first", "second", "third")


@pytest.fixture
def adapter(device):
    return device.adapter


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "cache" / "folder" / "tuning.json"
    monkeypatch.setenv("KOMPUTE_DML_TUNING", str(path))
    yield path
    tuning._load.cache_clear()


def test_the_file_lies_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("KOMPUTE_DML_TUNING")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning.file() == tmp_path / "kompute_dml" / "tuning.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.file() == tmp_path / ".cache" / "kompute_dml" / "tuning.json"
    monkeypatch.setenv("KOMPUTE_DML_TUNING", "")
    assert tuning.file() is None


def test_without_a_measurement_the_first_is_taken(adapter, path):
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 0


def test_what_was_kept_is_taken(adapter, path):
    assert tuning.keep(adapter, {"work": "third", "other": "second"}) == path
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 2
    assert tuning.keep(adapter, {"work": "second"}) == path
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 1
    assert tuning.pick(tuning.device_key(adapter), "other", KERNELS) == 1
    assert tuning.pick(tuning.device_key(adapter), "unheard of", KERNELS) == 0
    assert [p.name for p in path.parent.iterdir()] == ["tuning.json"]


def test_what_another_process_kept_stays(adapter, path):
    tuning.keep(adapter, {"work": "third"})
    theirs = json.loads(path.read_text())
    theirs["devices"][tuning.device_key(adapter)]["other"] = "second"
    path.write_text(json.dumps(theirs))
    tuning.keep(adapter, {"work": "second"})
    (kept,) = json.loads(path.read_text())["devices"].values()
    assert kept == {"work": "second", "other": "second"}


def test_a_kernel_that_is_not_offered_is_not_taken(adapter, path):
    tuning.keep(adapter, {"work": "third"})
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS[:2]) == 0


@pytest.mark.parametrize("field", ["name", "driver", "driver_version"])
def test_choices_hold_for_one_device_and_driver(adapter, path, field):
    tuning.keep(adapter, {"work": "third"})
    assert tuning.pick(dataclasses.replace(adapter, **{field: "x"}), "work", KERNELS) == 0


def test_choices_hold_for_one_version(adapter, path, monkeypatch):
    tuning.keep(adapter, {"work": "third"})
    monkeypatch.setattr(tuning, "__version__", "99")
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 99, "devices": {}}', '{"format": 1, "devices": [1]}']
)
def test_a_file_that_is_not_ours_is_as_none(adapter, path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 0
    tuning.keep(adapter, {"work": "second"})
    assert json.loads(path.read_text())["format"] == 1
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 1


def test_nothing_is_kept_without_a_file(adapter):
    assert tuning.keep(adapter, {"work": "third"}) is None
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 0


def test_a_trial_forces_and_listens(adapter, path):
    tuning.keep(adapter, {"work": "third"})
    with tuning.trial({"work": "second"}) as trial:
        assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 1
        assert tuning.pick(tuning.device_key(adapter), "other", KERNELS) == 0
    assert trial.asked == {"work": list(KERNELS), "other": list(KERNELS)}
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 2


def test_sizes_share_their_next_power_of_two():
    assert tuning.work_key("i8", 1, 3, 4, 5) == "i8 1 4 4 8"


MS = {"first": 4.0, "second": 2.0, "third": 1.0}


@pytest.fixture
def stopwatch(monkeypatch):
    """Dispatches return their kernel and take the times in ``MS``, because real times would vary.
    Returns the measured kernels."""
    loops = []

    def measure(device, dispatch, loop):
        kernel = dispatch()
        loops.append((kernel, loop.iterations))
        clock = Clock((100.0, MS[kernel]), 1)  # the first is cold
        without_gpu_clock = kernel == "third"
        return Timings(clock, None) if without_gpu_clock else Timings(Clock((0.0,), 0), clock)

    monkeypatch.setattr(tune, "measure", measure)
    return loops


def fake(device, wrong=()):
    """Work with the kernels ``KERNELS``. Those in ``wrong`` have wrong values."""
    def dispatch():
        return KERNELS[tuning.pick(device.adapter, "work", KERNELS)]

    case = Case("X", "f32", "[1]", dispatch, lambda got: "off" if got in wrong else "", 4)
    return Recipe("X", "f32", lambda *_: [case])


@pytest.mark.parametrize(
    ("wrong", "best"), [((), "third"), (("third",), "second"), (("second", "third"), "first")]
)
def test_the_fastest_right_kernel_is_found(device, stopwatch, wrong, best):
    (choice,) = tune.choices(device, fake(device, wrong), TINY, Loop(iterations=5))
    right = [name for name in KERNELS if name not in wrong]
    assert choice.work == "work"
    assert list(choice.ms.items()) == [(name, MS[name]) for name in right]
    assert choice.best == best
    assert choice.wrong == dict.fromkeys(wrong, "off")
    assert stopwatch == [(name, 5) for name in right]


@pytest.mark.parametrize(("second", "third", "hopeless"), [
    (8.1, 7.9, "second"), (1.0, 2.1, "third")])
def test_of_a_hopeless_kernel_no_more_is_measured(
    device, stopwatch, monkeypatch, second, third, hopeless
):
    monkeypatch.setitem(MS, "second", second)
    monkeypatch.setitem(MS, "third", third)
    (choice,) = tune.choices(device, fake(device), TINY)
    assert choice.ms == {"first": 4.0, "second": second, "third": third}
    taken = [kernel for kernel, _ in stopwatch]
    assert taken == [n for name in KERNELS for n in [name] * (1 if name == hopeless else 2)]


def test_each_time_is_of_the_kernel_it_is_said_to_be_of(device, monkeypatch):
    ran = []

    def measure(device, dispatch, loop):
        dispatch()
        ran.append(" ".join(v for c in device.compiled.values() for v in c.variants))
        return Timings(Clock((1.0,), 0), None)

    monkeypatch.setattr(tune, "measure", measure)
    recipe = product(BenchProduct(k_contiguous_b=True), 4, 64, 32, scaled=False)
    for choice in tune.choices(device, recipe, TINY, Loop()):
        for name, variants in zip(choice.ms, ran, strict=True):
            assert name.split("-")[0] in variants
    assert len(ran) > 1 or not device.features, "core alone leaves one"


def test_what_was_measured_before_a_cut_is_kept(adapter, path, stopwatch, monkeypatch):
    def cut(*_):
        raise KeyboardInterrupt

    first = Recipe("X", "f32", lambda device, scale: fake(device).make(device, scale))
    monkeypatch.setattr(tune, "recipes", lambda: [first, Recipe("X", "f32", cut)])
    result = CliRunner().invoke(cli, ["tune", "--scale", "tiny", "-a", str(adapter.index)])
    assert result.exit_code == 130
    assert tuning.pick(tuning.device_key(adapter), "work", KERNELS) == 2


def test_tuning_says_what_it_measured_and_what_was_wrong(adapter, path, stopwatch, monkeypatch):
    monkeypatch.setattr(tune, "recipes", lambda: [
        Recipe("X", "f32", lambda device, scale: fake(device, ("third",)).make(device, scale))])
    result = CliRunner().invoke(cli, ["tune", "--scale", "tiny", "-a", str(adapter.index)])
    assert result.exit_code == 1
    assert re.search("f32 +.1. +second +first 4000.0 us, second 2000.0 us", result.stdout)
    assert "error: third for f32 [1]: off" in result.stderr


def test_no_work_is_begun_after_the_time_given(adapter, path):
    arguments = ["tune", "--scale", "tiny", "--seconds", "0", "-a", str(adapter.index)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert f"0 of {len(list(tune.recipes()))} cases were measured in 0 seconds." in result.output
    assert not path.exists()


class _Asked(Exception):
    """A lowering asks which kernel to take."""


@pytest.mark.parametrize("operator, kind", [
    ("MATRIX_MULTIPLY_INTEGER_TO_FLOAT", "b8"), ("GEMM", "gemm f16"),
    ("CONVOLUTION", "convolution f32"), ("CONVOLUTION", "convolution f32 depthwise"),
    ("TOP_K", "top_k"),
    ("MULTIHEAD_ATTENTION1", "attention f16"),
    ("MAX_POOLING", "pooling first f32"), ("MAX_POOLING", "pooling last f32"),
    ("MAX_POOLING_GRAD", "pooling_grad max first f32"),
    ("AVERAGE_POOLING_GRAD", "pooling_grad average first f32"),
    ("RESAMPLE", "resample first f32"), ("RESAMPLE_GRAD", "resample_grad first f32"),
], ids=str)
def test_every_kind_of_kernels_is_measured(operator, kind, own, monkeypatch):
    """On a GPU with a choice. Nothing is dispatched."""
    if kind in ("b8", "top_k") and not own.features:
        pytest.skip("core alone leaves one kernel")
    traits = dataclasses.replace(
        own.target.traits, device_class=DeviceClass.UNKNOWN, slow_barriers=False, exact_units=True)
    monkeypatch.setattr(own, "target", dataclasses.replace(own.target, traits=traits))

    asked = []

    def pick(device, work, names):
        asked.append((work, len(names)))
        if kind in work:
            raise _Asked
        return 0

    monkeypatch.setattr(tuning, "pick", pick)
    monkeypatch.setattr(tuning, "has", lambda *_: True)
    # Images of rows of whole vectors, and of as many channels.
    images = "POOL" in operator or "SAMPLE" in operator
    scale = dataclasses.replace(TINY, side=16, shrink=2 if images else 16)
    for recipe in tune.recipes():
        if recipe.operator == "DML_OPERATOR_" + operator:
            with contextlib.suppress(_Asked):
                for case in recipe.make(own, scale):
                    case.dispatch()
            if any(kind in work and n > 1 for work, n in asked):
                return
    raise AssertionError(f"only {asked}")


def test_little_is_not_worth_another_kernel():
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 4)
    assert tune.TuningChoice(case, "work", {"first": 1.02, "second": 1.0}, {}).best == "first"
    assert tune.TuningChoice(case, "work", {"first": 1.04, "second": 1.0}, {}).best == "second"


def test_a_product_asks_which_kernel_to_take(device, rng, path):
    a, b = (rng.integers(-128, 128, sizes, np.int8) for sizes in ((3, 64), (64, 32)))
    expected = a.astype(np.float32) @ b.astype(np.float32)
    with tuning.trial({}) as trial:
        device.compiled.clear()
        dml.matrix_multiply_integer_to_float(device.tensor(a), 1.0, device.tensor(b), 1.0)
    ((work, kernels),) = trial.asked.items()
    assert "b8 b8 strided 4 64 32 1" in work
    assert len(kernels) > 1 or not device.features, "core alone leaves one"
    for kernel in kernels:
        tuning.keep(device.adapter, {work: kernel})
        device.compiled.clear()
        times = device.time(lambda: dml.matrix_multiply_integer_to_float(
            device.tensor(a), 1.0, device.tensor(b), 1.0)) if has_gpu_clock(device) else []
        got = dml.matrix_multiply_integer_to_float(device.tensor(a), 1.0, device.tensor(b), 1.0)
        assert (got.numpy() == expected).all()
        shader = kernel.split("-")[0]
        assert not times or any(shader in name for name, _ in times), (kernel, times)
    device.compiled.clear()
