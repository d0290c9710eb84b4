"""What sizes around those that came take is compiled before they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")

import kompute_dml as dml
from kompute_dml.graph import ahead
from kompute_dml.graph.ahead import Survey, sizes_around
from kompute_dml.graph.open_operator import OpenOperator
from kompute_dml.onnx import region as region_module
from kompute_dml.onnx.region import Region
from test_new_sizes import CASES, CROP, Begun, Case, as_gpu, plan, region_of, shapes_of

_SIZES, _NEXT = (20, 36, 52), (24, 40, 56)
_SOFTMAX = Case("Softmax", "f 1 8 h w", axis=3)


def test_sizes_around_are_longer_and_shorter_and_of_vectors_or_not() -> None:
    around = sizes_around((100, 30))
    assert len(around) == len(set(around)) and min(map(min, around)) > 0
    assert {(100, 28), (101, 29), (102, 30), (101, 28), (100, 29), (96, 16)} <= {*around}
    assert {(200, 60), (48, 12), (50, 14), (400, 120), (25, 5)} <= {*around}
    assert {(200, 28), (49, 29)} <= {*around}, "one is longer or shorter"
    assert {(1,), (2,), (4,), (8,), (200,), (26,)} <= {*sizes_around((101,))}, "few rows, too"
    assert (102, 30) not in sizes_around((102, 30)), "these came"
    assert sizes_around((1,))[0] == (4,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_survey_tells_the_shaders_of_a_plan_and_takes_no_memory(
    case: Case, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Begun(device, monkeypatch)
    region = region_of(case, device)
    shapes = shapes_of(case, dict(zip("hwt", _SIZES)))
    begun.needed.clear()
    region._build(shapes, {})
    taken: list[int] = []
    real = type(device).allocate
    monkeypatch.setattr(type(device), "allocate", lambda self, nbytes, *rest, **more: (
        taken.append(nbytes), real(self, nbytes, *rest, **more))[1])
    survey = Survey(device, region._prepared)
    assert survey.shaders_of(*region._emit(survey, shapes, {})) >= begun.needed
    assert not taken


def _first_two(
    case: Case, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> tuple[Region, Begun]:
    """A region whose sizes have come and changed."""
    begun = Begun(device, monkeypatch)
    region = region_of(case, device)
    plan(case, region, _SIZES)
    assert not begun.ahead, "sizes may never change"
    plan(case, region, _NEXT)
    return region, begun


@pytest.mark.parametrize("case", [_SOFTMAX, CROP], ids=str)
def test_second_sizes_show_that_sizes_change(
    case: Case, reused: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one plan serves many sizes or none does."""
    reused.target = as_gpu("h200", reused)
    region, begun = _first_two(case, reused, monkeypatch)
    assert bool(region._open.plans) == (case is _SOFTMAX)
    expected = {*begun.ahead}
    assert expected - begun.needed
    assert expected <= region._shaders, "they go with the region"
    for sizes in (_SIZES, _NEXT):
        plan(case, region, sizes)
    assert begun.ahead == expected, "these sizes came before"


@pytest.mark.parametrize("case", [_SOFTMAX, CROP], ids=str)
@pytest.mark.parametrize("switch", ["", "ahead"])
def test_a_cpu_compiles_nothing_ahead_nor_does_who_leaves_that_out(
    case: Case, switch: str, reused: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", switch)
    reused.target = as_gpu("h200" if switch else "lavapipe", reused)
    assert not _first_two(case, reused, monkeypatch)[1].ahead


@pytest.mark.parametrize("case", [_SOFTMAX, CROP], ids=str)
def test_what_goes_wrong_for_sizes_that_did_not_come_is_nobodys_error(
    case: Case, reused: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reused.target = as_gpu("h200", reused)
    begun, region = Begun(reused, monkeypatch), region_of(case, reused)
    plan(case, region, _SIZES)
    failed = []

    def fails(*arguments: Any) -> Any:
        failed.append(arguments)
        raise ArithmeticError("such sizes do not come")

    looks = OpenOperator.shaders_at

    def looks_in_vain(self: OpenOperator, sizes_to_come: Any) -> Any:
        with pytest.MonkeyPatch.context() as context:
            context.setattr(reused, "plan", fails)
            return looks(self, sizes_to_come)

    monkeypatch.setattr(Survey, "shaders_of", fails)
    monkeypatch.setattr(OpenOperator, "shaders_at", looks_in_vain)
    plan(case, region, _NEXT)
    assert region.planned == 2 and failed and not begun.ahead


def test_a_large_region_looks_at_few_sizes_or_none(
    reused: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time at others."""
    reused.target = as_gpu("h200", reused)
    looked: list[tuple[int, ...]] = []
    real = Survey.shaders_of

    def noted(self: Survey, inputs: Any, outputs: Any) -> Any:
        looked.append(inputs[0].shape)
        return real(self, inputs, outputs)

    monkeypatch.setattr(Survey, "shaders_of", noted)
    counts = []
    for most in (2, 0):
        monkeypatch.setattr(region_module, "_NODES_AHEAD", most)
        region, _ = _first_two(CROP, reused, monkeypatch)
        for n in range(1, 5):
            plan(CROP, region, (20 + 16 * n, 36 + 16 * n, 52))
        counts.append(len(looked))
    assert counts == [2 * ahead.FIRST_SIZES] * 2
    assert len({*looked}) == len(looked)


def test_an_operator_that_takes_what_nobody_expected_is_looked_at_again(
    reused: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the first sizes."""
    reused.target = as_gpu("h200", reused)
    region, begun = _first_two(_SOFTMAX, reused, monkeypatch)
    for n in range(4):
        plan(_SOFTMAX, region, (22 + n, 38, 54))
    expected, needed = {*begun.ahead}, {*begun.needed}
    plan(_SOFTMAX, region, (9, 5000, 9))
    assert begun.needed - needed - expected, "long rows took a shader that nobody expected"
    assert begun.ahead - expected, "so rows around them are looked at"
    assert np.all([s in region._shaders for s in begun.ahead])
