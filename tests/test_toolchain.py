"""What builds kp and the shaders: edits, headers, reflection, and words for what is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kompute_dml.runtime.shader_library import manifest
from kompute_dml.toolchain import edits, glslang, kp, native, spirv
from kompute_dml.toolchain.system import PACKAGE, ToolchainError
from workers import sharing

SHADER = """\
#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool FLIP = false;
layout(binding = 0) buffer Words { uint words[]; };
layout(push_constant) uniform Push { uint first; uint sizes[3]; };
void main() { words[first] = FLIP ? sizes[0] : sizes[2]; }
"""


def test_each_fix_says_what_it_repairs() -> None:
    fixes = kp.load_fixes()
    assert {"memory_barrier", "device_features", "vk_results"} <= set(fixes)
    for name, changes in fixes.items():
        module = sys.modules[f"kompute_dml.toolchain.fixes.{name}"]
        assert module.REPAIRS.strip(), name
        assert changes, name
        for edit in changes:
            assert len(edit.anchor.splitlines()) <= 12, f"{name} carries much of kp's own text"


def test_edits_hit_their_anchors() -> None:
    pairs = [("a", edits.after("f", "one", "!")), ("b", edits.replace("f", "two", "2"))]
    assert edits.edited("one two", pairs) == "one! 2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("a", edits.after("f", "three", ""))], "fix a: expected .three. 1 times in f, .* 0"),
        ([("a", edits.after("f", "o", ""))], "found it 2 times"),
        ([("a", edits.replace("f", "one", "")), ("b", edits.replace("f", "ne t", ""))],
         "fixes a and b edit the same text"),
    ],
)
def test_edits_that_do_not_fit_are_refused(changes: list, words: str) -> None:
    with pytest.raises(ToolchainError, match=words):
        edits.edited("one two", changes)


def failed_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a build of kp says that finds nothing in the cache."""
    monkeypatch.setattr(kp, "cache_dir", lambda name: folder / "cache" / name)
    with pytest.raises(ToolchainError) as error:
        kp.wheel()
    assert "pip install kp==0.9.0" in str(error.value), "stock kp serves, too"
    return str(error.value)


@pytest.mark.parametrize("there", [[], ["g++"], ["g++", "cmake"]], ids="-".join)
def test_a_build_without_compiler_says_how_to_get_it(
    there: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in there:
        (tmp_path / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    missing = ["g++", "cmake", "make"][len(there)]
    said = failed_build(tmp_path, monkeypatch)
    assert f"{missing} is missing, needed to compile kp" in said
    assert f"apt install {missing}" in said


builds_kp = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "cmake", "make"))), reason="g++, cmake or make is missing"
)


@builds_kp
@pytest.mark.parametrize("header", kp.SYSTEM_PACKAGES)
def test_a_build_without_a_header_says_how_to_get_it(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in kp.SYSTEM_PACKAGES.keys() - {header}:
        (tmp_path / other).parent.mkdir()
        (tmp_path / other).touch()
    monkeypatch.setenv("CXX", f"g++ -nostdinc -I{tmp_path}")
    said = failed_build(tmp_path, monkeypatch)
    assert f"the header {header} is missing" in said
    assert f"apt install {kp.SYSTEM_PACKAGES[header]}" in said


@builds_kp
def test_a_build_without_pythons_header_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kp, "SYSTEM_PACKAGES", {})
    monkeypatch.setattr(kp, "_ask", lambda python, expression: str(tmp_path))
    said = failed_build(tmp_path, monkeypatch)
    assert "Python.h is missing" in said
    assert "apt install python3-dev" in said


def test_a_build_without_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kp, "_check_requirements", lambda python: None)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert "Is the package index reachable?" in failed_build(tmp_path, monkeypatch)


def test_another_source_distribution_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kp, "cache_dir", lambda name: tmp_path)
    (tmp_path / "kp-0.9.0.tar.gz").write_bytes(b"something else")
    with pytest.raises(ToolchainError, match="SHA-256"):
        kp._sdist([], {})


def build(folder: Path, text: str) -> tuple[spirv.Report, dict]:
    try:
        glslang.find()
    except ToolchainError as error:
        pytest.skip(str(error))
    source, output = folder / "shaders", folder / "spirv"
    source.mkdir(exist_ok=True)
    (source / "trial.comp").write_text(text)
    report = spirv.build(source, output)
    return report, json.loads((output / "manifest.json").read_text())


def test_the_manifest_comes_from_the_shader_itself(tmp_path: Path) -> None:
    report, written = build(tmp_path, "//@ op -\n//@ variants T: a b\n" + SHADER)
    assert report.compiled == 2
    entry = written["shaders"]["trial"]["variants"]["trial.b"]
    assert entry["capabilities"] == ["Shader"]
    assert entry["push"]["sizes"] == {"offset": 1, "count": 3}
    assert entry["spec_constants"]["FLIP"] == {"id": 1, "default": 0}
    assert entry["bindings"] == 1
    assert build(tmp_path, "//@ op -\n//@ variants T: a b\n" + SHADER)[0].compiled == 0
    changed, _ = build(tmp_path, "//@ op -\n//@ variants T: b c\n" + SHADER)
    assert changed.removed == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("//@ operator DML_OPERATOR_CAST\n", r"trial\.comp:1: .*'operator' to be one of"),
        ("//@ op -\n//@ op -\n", r"trial\.comp:2: .*'op' only once"),
        ("//@ op -\n//@ variants T: a a\n", "trial.comp"),
        ("#version 450\n//@ op -\n", r"trial\.comp:2: .*first lines"),
    ],
)
def test_wrong_headers_name_file_and_line(tmp_path: Path, header: str, words: str) -> None:
    with pytest.raises(spirv.ShaderError, match=words):
        build(tmp_path, header + SHADER)


def test_an_error_names_the_authors_line(tmp_path: Path) -> None:
    with pytest.raises(spirv.ShaderError, match=r"trial\.comp:7"):
        build(tmp_path, "//@ op -\n" + SHADER.replace("sizes[0]", "nothing"))


def test_a_shader_for_a_newer_compiler_is_left_out_with_the_reason(tmp_path: Path) -> None:
    _, written = build(tmp_path, "//@ op -\n//@ glslang >= 999\n" + SHADER)
    assert "trial" not in written["shaders"]
    assert "needs glslang >= 999, found glslang" in written["left_out"]["trial"]


def test_the_cooperative_matrix_shader_asks_for_what_it_needs() -> None:
    shader = "matrix_multiply_integer_to_float_coopmat"
    if shader in manifest()["left_out"]:
        assert "needs glslang >= 14" in manifest()["left_out"][shader]
    else:
        for variant in manifest()["shaders"][shader]["variants"].values():
            assert {"CooperativeMatrixKHR", "Int8"} <= set(variant["capabilities"])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_what_is_built_stays_out_of_a_source_distribution() -> None:
    """Hatch leaves out what the topmost .gitignore names."""
    root = Path(__file__).parents[1]
    ignored = (root / ".gitignore").read_text().splitlines()
    for built in (PACKAGE / "spirv", native.library()):
        path = str(built.relative_to(root))
        assert any(fnmatch(path, line.rstrip("/")) for line in ignored), path


def test_make_lists_its_targets() -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run(["make", "-C", str(root), "help"], capture_output=True, text=True)
    assert done.returncode == 0
    for target in ("demo", "test", "validate", "lint", "bench"):
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/test_operators.py::test_operator[element_wise_add1-line-f32-packed]", "add1"),
        ("tests/test_accuracy.py::test_error_in_ulp[f16-sin]", "sin"),
        ("tests/test_bench.py::test_cases[ACTIVATION_IDENTITY f32]", "identity"),
        ("tests/test_transfer.py::test_sizes[4]", "tests/test_transfer.py::test_sizes"),
    ],
)
def test_one_worker_compiles_the_pipelines_of_an_operator(nodeid: str, group: str) -> None:
    assert sharing(nodeid) == group
