"""What is measured of drivers, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import exactness, fragments, measurements, traits
from record_plans import ADAPTERS

H200 = ADAPTERS["h200"]
Measured = Callable[[], int]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """How often functions were measured, of this driver as if it were a GPU's: all are exact."""
    runs: list[exactness.Run] = []

    def wrong(run: exactness.Run) -> list[str]:
        runs.append(run)
        return []

    monkeypatch.setattr(exactness, "wrong", wrong)
    monkeypatch.setattr(traits, "leaves_open", lambda adapter, own, name: name == "exact_units")
    return lambda: len(runs)


def test_a_driver_is_measured_once_and_kept(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Measured
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", str(tmp_path))
    for _ in range(2):
        own = dml.Device(device.adapter)
        assert own.target.traits.exact_units and not own.target.traits.fragments_alike
        own.close()
    assert measured() == 1
    (kept,) = json.loads((tmp_path / "units.json").read_text()).values()
    assert kept == {"exact_units": True}


def test_a_driver_that_fails_stays_unknown(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(run: exactness.Run) -> list[str]:
        raise dml.UnsupportedError("no pipeline")

    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", str(tmp_path))
    monkeypatch.setattr(exactness, "wrong", wrong)
    monkeypatch.setattr(traits, "leaves_open", lambda adapter, own, name: name == "exact_units")
    own = dml.Device(device.adapter)
    assert not own.target.traits.exact_units
    assert not (tmp_path / "units.json").exists()
    own.close()


def test_a_measurement_that_fails_leaves_the_others(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "cooperativeMatrix" in device.features:
        pytest.skip("this driver may have places of elements")
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", str(tmp_path))
    monkeypatch.setattr(exactness, "wrong", lambda run: [])
    monkeypatch.setattr(traits, "leaves_open", lambda adapter, own, name: True)
    own = dml.Device(device.adapter)
    assert own.target.traits.exact_units and not own.target.traits.fragments_alike
    (kept,) = json.loads((tmp_path / "units.json").read_text()).values()
    assert kept == {"exact_units": True}
    own.close()


def test_without_a_cache_a_process_measures_once(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, measured: Measured
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", "")
    monkeypatch.setattr(measurements, "_unkept", {})
    for _ in range(2):
        own = dml.Device(device.adapter)
        assert own.target.traits.exact_units
        own.close()
    assert measured() == 1


def test_what_is_no_measurement_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", str(tmp_path))
    for text in ("", "[]", '{"driver": true}', '{"driver": {"exact_units": 1}}'):
        (tmp_path / "units.json").write_text(text)
        assert measurements.known("driver") == {}
    measurements.keep("driver", exact_units=False)
    measurements.keep("other", exact_units=True)
    measurements.keep("driver", fragments_alike=True)
    assert measurements.known("driver") == {"exact_units": False, "fragments_alike": True}
    assert measurements.known("other") == {"exact_units": True}


@pytest.mark.parametrize("known", [False, True])
def test_a_measurement_leaves_nothing_on_the_device(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    adapter = replace(device.adapter, type="other")
    driver = f"{adapter.name}, {adapter.driver} {adapter.driver_version}"
    kept = {driver: {"exact_units": False}} if known else {}
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", "")
    monkeypatch.setattr(measurements, "_unkept", kept)
    own = dml.Device(adapter)
    assert "exact_units" in measurements.known(driver)
    runtime = own.runtime
    assert not runtime.transfer._uploads and not runtime.transfer._downloads
    assert not runtime.heap.blocks and not runtime.pipelines._cache
    own.close()


@pytest.mark.parametrize("driver", ["radv", "NVIDIA"])
def test_gpus_are_measured(driver: str) -> None:
    gpu = replace(H200, driver=driver)
    own = traits.of(gpu)
    assert not own.exact_units and not own.fragments_alike
    cpu = replace(gpu, type="cpu")
    without = replace(own, cooperative_matrices=())
    for name in ("exact_units", "fragments_alike"):
        assert traits.leaves_open(gpu, own, name)
        assert not traits.leaves_open(cpu, own, name)
    assert traits.leaves_open(gpu, without, "exact_units")
    assert not traits.leaves_open(gpu, without, "fragments_alike")


# Places of elements


def test_each_matrix_and_element_counts() -> None:
    words = fragments.expected().ravel()
    assert fragments.alike(words)
    assert sorted(words[:256]) == sorted(words[256:512]) == list(range(256))
    for at in (0, 256, 767):
        other = words.copy()
        other[at] += 1
        assert not fragments.alike(other)
    left, right, total = np.split(words, 3)
    assert np.array_equal(left, total) and not np.array_equal(left, right)


def test_a_gpu_of_16_x_16_units_tells_where_elements_lie(device: dml.Device) -> None:
    if not traits.leaves_open(device.adapter, device.target.traits, "fragments_alike"):
        pytest.skip("this device has no 16 x 16 matrix units")
    words = device.runtime.own_fragments()
    assert words.size == 768 and words.max() <= 256
    assert fragments.alike(words) == device.target.traits.fragments_alike
    if words.max() < 256:  # eight elements an invocation: each lies somewhere
        assert all(len({*part}) == 256 for part in np.split(words, 3))
