"""Shared by all tests: the device, seeded random numbers, and devices with features disabled."""

from __future__ import annotations

import dataclasses
import gc
import os
import zlib
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import kompute_dml as dml
from kompute_dml.runtime.adapters import choose
from kompute_dml.runtime.traits import DeviceClass
from repeat import to_repeat
from switches import SWIFTSHADER
from workers import by_pipelines

_SEED = 20240229
_TURN = 739945
"""The same every day, so that a run's result depends on what is tested alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=_SEED, help="of every random number in the tests")
    parser.addoption("--hostile", type=int, default=400, help="random gathers of each kind")
    parser.addoption("--wrong-models", type=int, default=60,
                     help="ONNX models changed at random, other ones for each --turn")
    parser.addoption("--random-models", type=int, default=60,
                     help="random ONNX models of one node, and as many of several")
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="run one in N of the tests marked values, chosen by name (all others run)",
    )
    parser.addoption(
        "--turn", type=_turn, default=_TURN, metavar="T",
        help="which one in N, and which random models; 'today' is another one every day",
    )


def _turn(text: str) -> int:
    return date.today().toordinal() if text == "today" else int(text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return by_pipelines(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    n, turn = config.getoption("--sample"), config.getoption("--turn")
    values = [i for i in items if i.get_closest_marker("values")]
    left_out = {i for i in values if (zlib.crc32(i.nodeid.encode()) + turn) % n}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [i for i in items if i not in left_out]


def pytest_collection_finish() -> None:
    # Ten thousand tests stay alive, so the garbage collector need not visit them.
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Hypothesis uses the same seed, and stores no examples.
    config.option.hypothesis_seed = str(config.getoption("seed"))
    settings.register_profile("repeatable", database=None, deadline=None, print_blob=True)
    settings.load_profile("repeatable")
    # What this machine measured and compiled must not affect the tests.
    os.environ["KOMPUTE_DML_TUNING"] = ""
    os.environ["KOMPUTE_DML_PIPELINES"] = ""
    config.addinivalue_line("markers", "slow: seconds long, on any driver with any kp the same")
    config.addinivalue_line("markers", "values: of what shaders compute, however kp records them")
    config.addinivalue_line("markers", "stress: many calls, threads or much memory")


def pytest_report_header(config: pytest.Config) -> list[str]:
    adapter = choose(None)
    return [
        f"seed: {config.getoption('seed')} (repeat with --seed)",
        f"sample: one in {config.getoption('sample')}, turn {config.getoption('turn')} "
        "(repeat with --sample and --turn)",
        f"device: {adapter.name} (choose with KOMPUTE_DML_DEVICE)",
    ]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        report.sections.append(("to repeat", to_repeat(item)))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("seed"))


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> np.random.Generator:
    """Random numbers that depend only on the seed and the test's id."""
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture(scope="session")
def device() -> dml.Device:
    """The default device (``KOMPUTE_DML_DEVICE`` chooses it)."""
    return dml.default_device()


@pytest.fixture
def own(device: dml.Device) -> Iterator[dml.Device]:
    """A device of the test's own, so that nothing else is pending on it."""
    own = dml.Device(device.adapter)
    yield own
    own.close()


@pytest.fixture(scope="module")
def _of_file(device: dml.Device) -> Iterator[dml.Device]:
    own = dml.Device(device.adapter)
    yield own
    own.close()


@pytest.fixture
def reused(_of_file: dml.Device) -> Iterator[dml.Device]:
    """A device whose traits and kernels a test may choose. Nothing is pending on it. The tests of a
    file share its pipelines, which take a driver long to compile, and no description's kernels."""
    target = _of_file.target
    yield _of_file
    _of_file.target = target
    _of_file.compiled.clear()
    _of_file.plans.clear()
    _of_file.synchronize()


@pytest.fixture(scope="session")
def device_without(device: dml.Device) -> Iterator[Callable[[str], dml.Device]]:
    """Makes a device for which ``KOMPUTE_DML_DISABLE`` names these features ("" for none)."""
    devices = {"": device}

    def make(disabled: str) -> dml.Device:
        if disabled not in devices:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("KOMPUTE_DML_DISABLE", disabled)
                devices[disabled] = dml.Device()
        return devices[disabled]

    yield make
    for disabled, other in devices.items():
        if disabled:
            other.close()


@pytest.fixture
def gpu(own: dml.Device, monkeypatch: pytest.MonkeyPatch) -> dml.Device:
    """A device that lowerings treat as a GPU. SwiftShader compiles what GPUs take for minutes."""
    if SWIFTSHADER:
        pytest.skip("lavapipe runs what GPUs take")
    traits = dataclasses.replace(own.target.traits, device_class=DeviceClass.UNKNOWN)
    monkeypatch.setattr(own, "target", dataclasses.replace(own.target, traits=traits))
    return own
