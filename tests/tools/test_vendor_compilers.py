"""The judgement of other vendors' compilers, and of Metal's; neither is run here."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import metal
import vendor_compilers
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.shader_library import manifest
from kompute_dml.runtime.traits import DeviceClass
from kompute_dml.toolchain import patches, vendors
from kompute_dml.toolchain.system import ToolchainError
from record_plans import ADAPTERS
from vendor_compilers import FACTS, Compiled, Job, Results, misdescribed, problems, table

RADEON = ADAPTERS["no_matrix_units"]


def _row(variant: str, problem: str = "", **figures: float) -> Compiled:
    return Compiled(Job(variant, (1,)), problem, {
        name.replace("_", " "): value for name, value in figures.items()})


@pytest.mark.parametrize(("row", "said"), [
    (_row("gemm.t64", VGPRs=96, Subgroups_per_SIMD=10), None),
    (_row("gemm.t64", "VkErrorUnknown"), "VkErrorUnknown"),
    (_row("gemm.t64", Spilled_VGPRs=3), "3 registers spill"),
    (_row("gemm.t64", Spill_Count=0, Fill_Count=0), None),
    (_row("gemm.t64", Spill_Count=79.0, Fill_Count=1), "80 registers spill"),
    (_row("gemm.t64", Spills=2327, Fills=3250), "5577 registers spill"),  # Intel since Mesa 26
    (_row("gemm.t64", STP_Count=4, LDP_Count=5), "9 registers spill"),  # Adreno
    (_row("gemm.t64", Spill_Size=16), "4 registers spill"),  # Mali, in bytes
    (_row("gemm.t64", Subgroups_per_SIMD=3), "3 waves a SIMD, 4 at least"),
    (_row("elementwise_float.sin", Spilled_VGPRs=3, Subgroups_per_SIMD=1), None),
    (_row("elementwise_float.sin", "it crashed"), "it crashed"),
])
def test_what_is_wrong_with_a_pipeline(row: Compiled, said: str | None) -> None:
    found = problems(RADEON, [row])
    assert found == [] if said is None else found[0].endswith(said)


def test_small_devices_may_spill() -> None:
    rows = [_row("gemm.t64", Spill_Size=16), _row("gemm.t32", "VkErrorUnknown")]
    assert len(problems(RADEON, rows)) == 2
    assert problems(RADEON, rows, may_spill=True) == ["gemm.t32 [1]: VkErrorUnknown"]


def test_a_device_says_what_it_is() -> None:
    arc = replace(
        RADEON, name="Intel(R) Arc(tm) A770M Graphics", driver="Intel open-source Mesa driver",
        subgroup_sizes=(8, 32), max_shared_memory=48 << 10, cooperative_matrices=tuple(
            CooperativeMatrix(8, 8, k, of, of, "f32", "f32", "subgroup")
            for of, k in (("f16", 16), ("bf16", 16), ("i8", 32), ("u8", 32))))
    assert misdescribed("dg2", arc) == []
    assert misdescribed("dg2", replace(arc, subgroup_sizes=(16, 32), cooperative_matrices=())) == [
        "sizes: (16, 32), not (8, 32)", "units: (), not ('bf16', 'f16', 'i8', 'u8')",
        "shape: None, not (8, 8, 16)"]
    assert set(FACTS) == {device.name for device in vendors.DEVICES}


def test_shared_memory_is_counted() -> None:
    row = _row("gemm.t64", LDS_size=1 << 11)
    assert problems(RADEON, [row]) == []
    (found,) = problems(replace(RADEON, max_shared_memory=1 << 10), [row])
    assert "bytes of shared memory" in found


def test_subgroups_have_the_size_that_their_shader_reads() -> None:
    row = _row("normalize_rows.subgroups", subgroup=16)
    assert problems(replace(RADEON, subgroup_size=16), [row]) == []
    (found,) = problems(replace(RADEON, subgroup_size=32), [row])
    assert found.endswith("subgroups of 16, not 32")
    assert problems(replace(RADEON, subgroup_size=32), [
        replace(row, job=row.job._replace(lanes=16)), _row("gemm.t64", subgroup=16)]) == []


def test_vega_holds_fewer_subgroups() -> None:
    row = _row("gemm.t64", Subgroups_per_SIMD=2)
    assert row.crowding(DeviceClass.AMD_RDNA) and not row.crowding(DeviceClass.AMD_GCN)


def test_a_table_has_the_worst_figures_of_hot_kernels() -> None:
    lines = table([
        _row("gemm.t64", VGPRs=96, Subgroups_per_SIMD=10, Spilled_VGPRs=0, Inverse_Throughput=7),
        _row("gemm.t64", VGPRs=64, Subgroups_per_SIMD=8, Spilled_VGPRs=2, Inverse_Throughput=9),
        _row("gemm.t32", "it crashed"), _row("join")])
    assert lines[2:] == ["| gemm.t64 | 2 | 96 | 8 | 2 | 9 |"]


def test_a_result_holds_for_one_shader_and_its_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, path = Job("gemm.t64", (1, 2)), tmp_path / "results"
    Results(path).add(job, {"figures": {"VGPRs": 5.0}})
    again = Results(path)
    kept = again.get(job)
    assert kept is not None and kept.registers == 5
    assert again.get(Job("gemm.t64", (1, 3))) is None
    assert again.get(Job("gemm.t64", (1, 2), lanes=8)) is None
    file = manifest()["shaders"]["gemm"]["variants"]["gemm.t64"]["file"]
    (tmp_path / file).write_bytes(b"another shader")
    monkeypatch.setattr(vendor_compilers, "SPIRV", tmp_path)
    assert Results(path).get(job) is None


def test_a_page_keeps_its_words_and_other_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "devices.md"
    page.write_text("# Title\n\nWords.\n\n## One, Mesa 1\n\n| 1 |\n\n## Two, Mesa 1\n\n| 2 |\n")
    monkeypatch.setattr(vendor_compilers, "PAGE", page)
    assert vendor_compilers.page({"One, Mesa 2": ["| 3 |"], "Three, Mesa 2": ["| 4 |"]}) == (
        "# Title\n\nWords.\n\n## One, Mesa 2\n\n| 3 |\n\n## Two, Mesa 1\n\n| 2 |\n"
        "\n## Three, Mesa 2\n\n| 4 |\n")


def test_a_device_is_the_only_one_of_its_process(tmp_path: Path) -> None:
    (tmp_path / "root/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    for device in vendors.DEVICES:
        found = device.environment(tmp_path)
        assert found.get(device.variable, device.name) == (device.number or device.name)
        assert found["VK_DRIVER_FILES"] == str(tmp_path / f"{device.driver}_icd.json")
        assert found["LD_PRELOAD"].startswith(str(tmp_path))


def test_the_drivers_c_library_runs_this_interpreter(tmp_path: Path) -> None:
    libraries = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "ld-linux-x86-64.so.2").touch()
    loader, *options, program = vendors.interpreter(tmp_path)
    assert loader == str(libraries / "ld-linux-x86-64.so.2")
    assert options[1] == str(libraries) and options[-1] == sys.executable
    assert Path(program).samefile(sys.executable)


@pytest.mark.parametrize(("fails", "said", "code"), [
    ("_packages", "left out: E: no package", 0),
    ("_libraries_of", "error: it failed:\nE: no package", 1)])
def test_only_missing_packages_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    fails: str, said: str, code: int,
) -> None:
    def unpack(drivers: Path, tools: Path, *_: object) -> Path:
        for root in (drivers, tools):
            (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        return tmp_path

    def fail(*_: object) -> None:
        raise ToolchainError("it failed:\nE: no package")

    monkeypatch.setattr(vendors, "cache_dir", tmp_path.joinpath)
    monkeypatch.setattr(patches, "apply", lambda *_: None)
    monkeypatch.setattr(vendors, "_packages", unpack)
    monkeypatch.setattr(vendors, fails, fail)
    monkeypatch.setattr(sys, "argv", ["vendor_compilers.py"])
    assert vendor_compilers.main() == code
    assert "".join(capsys.readouterr()) == f"{said}\n"
    assert not (tmp_path / "vendors/ready").exists()


def test_mesas_patches_are_none_of_kps() -> None:
    mesa = patches.load(patches.FOLDER / "mesa")
    assert mesa and not {p.name for p in mesa} & {p.name for p in patches.load()}
    assert all("drm-shim" in p.text and p.repairs for p in mesa)


def test_metal_is_asked_for_what_it_has(tmp_path: Path) -> None:
    """A stand-in for SPIRV-Cross that refuses one shader."""
    program = tmp_path / "spirv-cross"
    file = manifest()["shaders"]["gemm"]["variants"]["gemm.t64"]["file"]
    program.write_text(f'#!/bin/sh\ncase "$4" in */{file}) echo no reason >&2; exit 1;; esac\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    failed, others, passed = metal.sorted_out(str(program))
    assert failed == {"gemm.t64": "no reason"} and passed > 300
    assert any("shaderFloat64" in features for features in others)
