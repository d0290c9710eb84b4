"""What lowerings know of a device: its own traits, and those of a class that is emulated."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.bench import limits, rows
from kompute_dml.bench.case import AS_IT_IS
from kompute_dml.cli import cli
from kompute_dml.lowering.builder import target_of
from kompute_dml.operators.matrix_multiply.float_kernels import multiplies_bfloat16
from kompute_dml.runtime import traits
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.shader_library import SWITCHES, ShaderLibrary
from record_plans import ADAPTERS

H200 = ADAPTERS["h200"]
MAY_BE_LACKING = ("registers", "cooperative_matrices")
_ROOT = Path(__file__).parents[2]
_VENDORS = re.compile(
    r"\b(nvidia|amd|radeon|radv|intel|anv|qualcomm|adreno|turnip|mali|panvk|swiftshader)\b(?!-)",
    re.I)
_MAY_NAME_VENDORS = ("runtime/traits.py", "cuda/", "toolchain/")
"""What knows drivers, CUDA's own interface, and what compiles with other vendors' drivers."""


def test_no_code_names_a_vendor() -> None:
    files = [*(_ROOT / "shaders").rglob("*.comp"), *(_ROOT / "shaders").rglob("*.glsl"),
             *(p for p in (_ROOT / "kompute_dml").rglob("*.py") if not p.relative_to(
                 _ROOT / "kompute_dml").as_posix().startswith(_MAY_NAME_VENDORS))]
    assert len(files) > 500
    assert [f"{path.relative_to(_ROOT)}:{at}: {line.strip()}" for path in files
            for at, line in enumerate(path.read_text("utf-8").splitlines(), 1)
            if _VENDORS.search(line)] == []


@pytest.mark.parametrize("name", traits.EMULATED)
def test_an_emulated_device_has_nothing_that_its_class_may_lack(name: str) -> None:
    own = traits.of(H200)
    with traits.emulated(name):
        found = traits.of(H200)
    assert all(getattr(own, each) for each in MAY_BE_LACKING)
    assert not any(getattr(found, each) for each in MAY_BE_LACKING)
    assert found.subgroup_size == own.subgroup_size
    assert found.max_shared_memory <= own.max_shared_memory
    assert traits.of(H200) == own


def test_each_class_is_its_own() -> None:
    kinds = set()
    for name in traits.EMULATED:
        with traits.emulated(name):
            kinds.add(traits.of(H200).device_class)
    assert len(kinds) == len(traits.EMULATED)


def test_units_of_bfloat16_take_their_feature() -> None:
    shape = CooperativeMatrix(8, 16, 16, "bf16", "bf16", "f32", "f32", "subgroup")
    adapter = replace(H200, cooperative_matrices=(shape,), subgroup_size=16)
    for features in (H200.features, H200.features - {*SWITCHES["bfloat16"]}):
        target = target_of(ShaderLibrary(features, adapter.max_storage_buffers), adapter)
        assert multiplies_bfloat16(target.traits) == (features == H200.features)


def test_a_limit_of_the_device_stays_where_it_is_less(device: dml.Device) -> None:
    small = replace(H200, max_shared_memory=16 << 10)
    with traits.emulated("mobile"):
        assert traits.of(small).max_shared_memory == 16 << 10
        assert traits.of(H200).max_shared_memory == 32 << 10
        assert traits.of(H200).max_range == 128 << 20


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(dml.ValidationError, match=r"unknown-gpu, amd-rdna.* radeon"), \
            traits.emulated("radeon"):
        pass
    assert traits.emulation() == ""


def test_values_on_an_emulated_device(own: dml.Device) -> None:
    x = np.random.default_rng(1).standard_normal((33, 65)).astype(np.float16)
    for name in traits.EMULATED:
        with traits.emulated(name):
            device = dml.Device(own.adapter)
        assert not device.target.traits.is_cpu
        assert device.target.device_key == f"{tuning.device_key(own.adapter)}, as {name}"
        result = np.asarray(device.tensor(x) @ device.tensor(x.T), np.float64)
        exact = x.astype(np.float64) @ x.T.astype(np.float64)
        assert np.abs(result - exact).max() <= 2e-3 * np.abs(exact).max()
        device.close()


def test_families_have_goals_for_devices_without_matrix_units() -> None:
    def goals(part: str) -> list[tuple[object, float]]:
        return [recipe.without_units for recipe in limits.FAMILIES
                if part in f"{recipe.operator} {recipe.types}"]

    assert ("TOPS", 34.0) in goals("ATTENTION")
    assert set(goals("QUANTIZED_LINEAR_CONVOLUTION")) == {("TOPS", 45.0)}
    assert set(goals("LOCAL_RESPONSE_NORMALIZATION_GRAD")) == {(AS_IT_IS, 1 / 1.3)}
    for against, _ in (recipe.without_units for recipe in limits.FAMILIES):
        assert not isinstance(against, str) or "torch" not in against


def test_bench_measures_the_device_as_it_is_beside_a_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated = []

    def run_recipe(device, recipe, *_):  # type: ignore[no-untyped-def]
        is_own = device.target.device_key == tuning.device_key(device.adapter)
        emulated.append(not is_own)
        yield rows.BenchRow(recipe.operator, recipe.types, "[1]", "ok", host_ms=1.0, spread=0.0,
                            gb_per_s=100.0 if is_own else 50.0)

    monkeypatch.setattr(rows, "run_recipe", run_recipe)
    result = CliRunner().invoke(cli, [
        "bench", "--as", "amd-gcn", "--suite", "families", "--scale", "tiny", "--format", "json",
        "--filter", "average_pooling_grad f16"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert [(g["against"], g["ratio"]) for g in row["goals"]] == [(AS_IT_IS, 0.5)]
    assert set(emulated) == {True, False}


def test_explain_lists_the_kernels_of_a_class(device: dml.Device) -> None:
    def taken(*options: str) -> str:
        result = CliRunner().invoke(cli, ["explain", "--kernels", "gemm f16 nn bias", *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert taken("--as", "mobile") != taken()


