"""Specification, registry, shaders, cases and README agree."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases import CASES, ERRORS
from cases.fold import summed
from harness import Run, runs, switches, target
from kompute_dml import spec
from kompute_dml.arrays.registry import published as arrays
from kompute_dml.functions import functions
from kompute_dml.lowering import builder
from kompute_dml.lowering import elementwise as elementwise_lowering
from kompute_dml.lowering.plan import PARAMS, PERSISTENT, TEMPORARY, ZEROED, Plan
from kompute_dml.operators.base import definitions
from kompute_dml.operators.convolution.packing import PACK
from kompute_dml.operators.elementwise import TABLE
from kompute_dml.operators.matrix_multiply.kernels import REPACK, SUMS
from kompute_dml.operators.matrix_multiply.kernels import SHADER as PRODUCTS
from kompute_dml.operators.matrix_multiply.product import SLOTS
from kompute_dml.runtime.adapters import Adapter
from kompute_dml.runtime.live_code import live_code
from kompute_dml.runtime.longs import by_longs
from kompute_dml.runtime.shader_library import ShaderLibrary, manifest, shaders
from layouts import PACKED
from test_convolution import H200_MATRICES
from test_epilogue import TAILED
from test_matrix_multiply_kernels import (
    PAIRS,
    SHAPES,
    _desc,
    _with_matrix_units,
    plans_of,
    variants_tested,
)

_ROOT = Path(__file__).parents[2]
_DEFINITIONS = definitions()
_RUNS: dict[str, list[Run]] = {name: [] for name in _DEFINITIONS}
for _case in CASES:
    _RUNS["DML_OPERATOR_" + _case.operator].extend(runs(_case))

each_operator = pytest.mark.parametrize("name", _DEFINITIONS)


@pytest.mark.parametrize("ours", [
    dml.FeatureLevel, dml.IsInfinityMode, dml.RoundingMode, dml.TensorFlags,
])
def test_enumerations_have_directmls_values(ours: Any) -> None:
    name = "DML_" + spec.snake_case(ours.__name__).upper()
    prefix = name.removesuffix("S") + "_"
    theirs = {n.removeprefix(prefix): v for n, v in spec.document()["enums"][name].items()}
    assert {n.removeprefix("FL_"): m.value for n, m in ours.__members__.items()} == theirs


def _of(slot: str, field: spec.Field) -> bool:
    """Whether the slot is the field's tensor, or an element of its array."""
    return slot.partition("[")[0] == field.snake


@each_operator
def test_is_tested(name: str) -> None:
    assert _RUNS[name], "no case"
    assert any(layout is not PACKED for run in _RUNS[name] for layout in run.layouts.values())
    assert {run.level for run in _RUNS[name]} >= {"descriptor", "function"}
    assert any("DML_OPERATOR_" + e.operator == name for e in ERRORS), "no error case"
    assert any(run.in_place for run in _RUNS[name]) == _DEFINITIONS[name].in_place


@each_operator
def test_every_documented_data_type_is_tested(name: str) -> None:
    entry = _DEFINITIONS[name].spec
    table = entry.support_at(max(dml.FeatureLevel))
    assert table is not None
    for field in entry.tensors:
        tested = {t for run in _RUNS[name] for slot, t in run.types.items()
                  if _of(slot, field)}
        # test_four_bits.py tests the others. Some sums need a device's FLOAT64.
        wanted = {t for t in table[field.name].data_types if t.bits >= 8}
        assert tested == wanted & set(summed() if name == "DML_OPERATOR_FOLD" else wanted), \
            field.name


@each_operator
def test_every_dimension_count_at_the_ends_is_tested(name: str) -> None:
    entry = _DEFINITIONS[name].spec
    table = entry.support_at(max(dml.FeatureLevel))
    assert table is not None
    for field in entry.tensors:
        ranks = {len(sizes) for c in CASES if c.definition.name == name
                 for slot, sizes in c.sizes.items() if _of(slot, field)}
        assert set(table[field.name].dimension_counts) <= ranks, field.name


@each_operator
def test_optional_tensors_are_tested_with_and_without(name: str) -> None:
    for field in _DEFINITIONS[name].spec.tensors:
        present = {any(_of(slot, field) for slot in c.sizes) for c in CASES
                   if c.definition.name == name}
        assert present == ({True, False} if field.optional else {True}), field.name


@each_operator
def test_function(name: str) -> None:
    definition = _DEFINITIONS[name]
    function = functions()[definition.function_name]
    published = getattr(dml, definition.function_name)
    assert published in (function, arrays().get(definition.function_name))
    assert (function.__doc__ or "") in (published.__doc__ or "")
    assert definition.function_name in dir(dml)
    assert getattr(dml, definition.desc_class.__name__) is definition.desc_class
    assert "out" in inspect.signature(function).parameters
    text = inspect.getdoc(function) or ""
    assert name.removeprefix("DML_OPERATOR_") + "_OPERATOR_DESC" in text, "the page's name"
    assert "Raises" in text


@each_operator
def test_descriptor_has_the_structures_fields(name: str) -> None:
    definition = _DEFINITIONS[name]
    fields = set(definition.desc_class.__dataclass_fields__)
    assert fields == {f.snake for f in definition.spec.fields}


def _outside(plan: Plan, descs: dict[str, dml.TensorDesc]) -> list[str]:
    """Accesses of a plan's dispatches outside its tensors and its memory."""
    room = {name: desc.total_tensor_size_in_bytes for name, desc in descs.items()}
    room |= {TEMPORARY: plan.temporary_bytes, PERSISTENT: plan.persistent_bytes,
             ZEROED: plan.zeroed_bytes, PARAMS: 4 * len(plan.params)}
    return [
        f"{d.variant.name}: {operand} of {room[operand.slot]} bytes"
        for d in (*plan.initialize, *plan.execute) for operand in d.operands
        if operand.slot is not None
        and (operand.offset + operand.length) * operand.itemsize > room[operand.slot]
    ]


@pytest.mark.parametrize("as_gpu", [False, True], ids=["as-it-is", "as-a-gpu"])
@each_operator
def test_plans_stay_within_the_memory_that_they_ask_for(
    name: str, as_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver does not detect it, because one block holds many ranges."""
    if as_gpu:
        monkeypatch.setattr(Adapter, "is_cpu", False)
        monkeypatch.setattr(elementwise_lowering, "_MANY", 1)
        # It has matrix units, though kp may not have enabled their features.
        real = builder.traits.of
        monkeypatch.setattr(builder.traits, "of", lambda a: replace(
            real(a), slow_barriers=False, subgroup_size=32, cooperative_matrices=H200_MATRICES))
    for run in _RUNS[name]:
        if run.level != "descriptor" or run.in_place:
            continue  # another case has the same plan
        descs = {n: run._desc(n, tuple(s)) for n, s in run.case.sizes.items()}
        assert _outside(run.plan(), descs) == [], str(run)


def _transposed(t: str) -> dml.TensorDesc:
    return dml.TensorDesc(t, [256, 260], [1, 256])


@pytest.mark.parametrize("desc", [
    dml.ElementWiseAddOperatorDesc(
        a_tensor=_transposed("float16"), b_tensor=_transposed("float16"),
        output_tensor=dml.TensorDesc("float16", [256, 260])),
    dml.ElementWisePowOperatorDesc(
        input_tensor=_transposed("int16"), exponent_tensor=_transposed("float32"),
        output_tensor=dml.TensorDesc("int16", [256, 260])),
    dml.DynamicQuantizeLinearOperatorDesc(
        input_tensor=dml.TensorDesc("float32", [1 << 24]),
        output_tensor=dml.TensorDesc("int8", [1 << 24]),
        output_scale_tensor=dml.TensorDesc("float32", [1]),
        output_zero_point_tensor=dml.TensorDesc("int8", [1])),
], ids=lambda desc: desc.operator.function_name)
def test_large_plans_stay_within_the_memory_that_they_ask_for(
    desc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adapter, "is_cpu", False)
    plan = desc.operator.lower(desc, target(""))
    assert len(plan.execute) > 1 and plan.temporary_bytes + plan.zeroed_bytes
    assert _outside(plan, {f.snake: t for f in desc.operator.spec.tensors
                           if (t := getattr(desc, f.snake)) is not None}) == []


@pytest.mark.parametrize("units", [False, True], ids=["as-it-is", "with-matrix-units"])
def test_every_kernels_plan_stays_within_the_memory_that_it_asks_for(units: bool) -> None:
    device = _with_matrix_units(kinds="iu") if units else target("")
    for shape in (*SHAPES, (2, 3, 100_000, 37), (1, 20, 70_000, 130)):
        for pair in PAIRS:
            desc = _desc(shape, *pair)
            descs = {name: t for name in SLOTS.values() if (t := getattr(desc, name)) is not None}
            for plan in plans_of(desc, device):
                found = _outside(plan, descs)
                assert found == [], f"{plan.execute[-1].variant.name} of {shape} {pair}"


def test_ids_are_unique() -> None:
    """Each id reruns one case."""
    ids = Counter(str(run) for of_operator in _RUNS.values() for run in of_operator)
    assert [i for i, n in ids.items() if n > 1] == []
    errors = Counter(map(str, ERRORS))
    assert [i for i, n in errors.items() if n > 1] == []


# Shaders


def _headers() -> Iterator[tuple[str, list[str]]]:
    """(shader, operators that its header names)."""
    for path in sorted((_ROOT / "shaders").rglob("*.comp")):
        line = re.match(r"//@ op (.+)\n", path.read_text())
        assert line, f"{path.name} has no '//@ op' line"
        yield path.stem, [n for n in line[1].split() if n != "-"]


def test_shaders_and_operators_name_each_other() -> None:
    headers = dict(_headers())
    for shader, operators in headers.items():
        for name in operators:
            assert name in (*spec.operator_names(), *spec.extension_names()), (
                f"{shader} names {name}")
            assert shader in _DEFINITIONS[name].shaders, f"{name} does not use {shader}"
    for name, definition in _DEFINITIONS.items():
        assert definition.shaders, name
        assert set(definition.shaders) <= set(headers), name


def test_manifest_holds_every_shader_or_says_why_not() -> None:
    assert set(shaders()) | set(manifest().get("left_out", {})) == {s for s, _ in _headers()}


def test_files_are_what_the_manifest_lists() -> None:
    listed = {v["file"] for e in manifest()["shaders"].values() for v in e["variants"].values()}
    there = {f.name for f in resources.files("kompute_dml").joinpath("spirv").iterdir()
             if f.name.endswith(".spv")}
    assert listed == there


def test_every_shader_runs_without_optional_features() -> None:
    """Every operator works with core variants alone."""
    core = ShaderLibrary(frozenset())
    for shader in {s for d in _DEFINITIONS.values() for s in d.shaders[:1]}:
        names = shaders()[shader]
        assert any(core.find(*name.split(".")) for name in names), shader


def _forced() -> dict[str, set[str]]:
    """What the tests of a module run beside what cases choose: its ``VARIANTS``."""
    tests = [path for folder in ("operators", "engine")
             for path in sorted((_ROOT / "tests" / folder).glob("test_*.py"))]
    return {path.stem: {*importlib.import_module(path.stem).VARIANTS} for path in tests
            if re.search(r"^VARIANTS\b", path.read_text("utf-8"), re.MULTILINE)}


def test_modules_force_variants_that_there_are() -> None:
    """A renamed variant is not tested any more."""
    known = {name for names in shaders().values() for name in names}
    left_out = tuple(manifest().get("left_out", {}))
    assert [f"{module}: {v}" for module, variants in _forced().items()
            for v in sorted(variants - known) if v.partition(".")[0] not in left_out] == []


def test_every_variant_that_this_device_may_run_is_tested() -> None:
    chosen: set[str] = set()
    seen: set[Any] = set()
    for run in (run for of_operator in _RUNS.values() for run in of_operator):
        key = (id(run.case), tuple(run.types.values()), tuple(map(str, run.layouts.values())),
               run.disabled)
        if key not in seen:
            seen.add(key)
            chosen.update(d.variant.name for d in run.plan().execute)
    for disabled in switches():
        chosen |= variants_tested(target(disabled))
    chosen = chosen.union(*_forced().values())
    allowed = {
        variant
        for definition in _DEFINITIONS.values()
        for shader in set(definition.shaders) - {TABLE}  # test_elementwise.py runs each
        for variant in shaders().get(shader, ())
        for disabled in switches() if target(disabled).library.find(*variant.split("."))
        # A tail is the same lines in all variants of a shader.
        if not (variant.endswith(".tail") and shader in TAILED)
    }
    if not target("").library.find("matrix_multiply_integer_to_float_coopmat", "t128"):
        # Kernels take these only where there are matrix units.
        allowed -= {variant for shader in (
            REPACK, SUMS, f"{PRODUCTS}_few_rows_subgroups", PACK)
                    for variant in shaders().get(shader, ())}
    assert sorted(allowed - chosen) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="spirv-val is not installed")
@pytest.mark.parametrize("shader", manifest()["shaders"])
def test_spirv_is_valid(shader: str) -> None:
    """Also as drivers get it, whatever its specialization constants are."""
    entry = manifest()["shaders"][shader]
    rng = np.random.default_rng(len(shader))
    folder = resources.files("kompute_dml").joinpath("spirv")
    for variant in entry["variants"].values():
        code = folder.joinpath(variant["file"]).read_bytes()
        spec = rng.integers(0, 3, 64, np.uint32)
        for module in (code, by_longs(code), live_code(by_longs(code), spec)):
            done = subprocess.run(
                ["spirv-val", "--target-env", entry["target"], "-"],
                input=module, capture_output=True, check=False,
            )
            said = (done.stdout + done.stderr).decode()
            if "Invalid capability operand" in said:
                pytest.skip(f"this spirv-val is too old for {shader}")
            assert done.returncode == 0, f"{variant['file']}: {said}"


# Docstrings


def test_public_names_have_docstrings() -> None:
    assert [n for n in dml.__all__ if not inspect.getdoc(getattr(dml, n))] == []
    members = {
        f"{n}.{member}": value
        for n in dml.__all__ if isinstance(kind := getattr(dml, n), type)
        for base in kind.__mro__ if base.__module__.startswith("kompute_dml")
        for member, value in vars(base).items()
        if not member.startswith("_")
        and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
    }
    assert "Tensor.numpy" in members
    assert [n for n, value in members.items() if not inspect.getdoc(value)] == []


def test_public_names_are_all_imported() -> None:
    names: dict[str, Any] = {}
    exec("from kompute_dml import *", names)
    assert {*names, "__version__"} - {"__builtins__"} == set(dir(dml))


@pytest.mark.parametrize("name", ["add", "is_infinity", "fill_value_sequence"])
def test_docstrings_name_classes_and_pages(name: str) -> None:
    desc = next(d for d in _DEFINITIONS.values() if d.function_name == name)
    assert f"https://learn.microsoft.com/windows/win32/api/directml/{desc.spec.page}" in \
        inspect.getdoc(desc.desc_class)  # type: ignore[operator]
    assert "TensorDesc" in inspect.getdoc(desc.desc_class)  # type: ignore[operator]
