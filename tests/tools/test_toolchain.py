"""The build of kp and the shaders: edits, headers, reflection, and messages for missing parts."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import venv
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kompute_dml import toolchain
from kompute_dml.runtime.shader_library import manifest
from kompute_dml.toolchain import (
    check,
    codes,
    debian,
    glslang,
    kp,
    native,
    patches,
    reflect,
    spirv,
    system,
    validation,
)
from kompute_dml.toolchain.system import PACKAGE, ToolchainError
from repeat import to_repeat
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
    fixes = {patch.name: patch for patch in patches.load()}
    assert {"memory_barrier", "device_features", "vk_results"} <= set(fixes)
    for name, patch in fixes.items():
        assert patch.repairs and not patch.repairs.startswith("---"), name
        assert re.search(r"^[-+][^-+]", patch.text, re.MULTILINE), name
        for hunk in patch.text.split("\n@@ ")[1:]:
            longest = max(map(len, re.findall(r"(?:^ .*\n?)+", hunk, re.MULTILINE)), default=0)
            assert longest < 900, f"{name} carries much of kp's own text"


def _patch(name: str, file: str, hunks: str) -> patches.Patch:
    return patches.Patch(name, "", f"a fault\n\n--- a/{file}\n+++ b/{file}\n{hunks}")


def test_patches_change_what_those_before_them_leave(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\nthree\n")
    patches.apply(tmp_path, [
        _patch("a", "f", "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
        _patch("b", "f", "@@ -0,0 +1 @@\n+zero\n@@ -2,2 +3,2 @@\n 2\n-three\n+3\n")])
    assert (tmp_path / "f").read_text() == "zero\none\n2\n3\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (_patch("a", "f", "@@ -1 +0,0 @@\n-three\n"), "fix a: f, line 1: expected 'three'.*'one'"),
        (_patch("a", "f", "@@ -3 +2,0 @@\n-two\n"), "line 3: .*got 'the end of the file'"),
        (_patch("a", "f", "@@ -1,2 +0,0 @@\n-one\n"), "line 1: a hunk has another length"),
        (_patch("a", "f", "@@ -2 +1,0 @@\n-two\n@@ -1 +1,0 @@\n-one\n"), "line 1: a hunk has"),
        (_patch("a", "g", "@@ -1 +0,0 @@\n-one\n"), "fix a: g is not in the source"),
        (patches.Patch("a", "", "a fault"), "fix a: it changes no file"),
    ],
)
def test_patches_that_do_not_fit_are_refused(
    changes: patches.Patch, words: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    with pytest.raises(ToolchainError, match=words):
        patches.apply(tmp_path, [changes])
    assert (tmp_path / "f").read_text() == "one\ntwo\n"


def failed_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of a build of kp with an empty cache."""
    monkeypatch.setattr(kp, "cache_dir", lambda name: folder / "cache" / name)
    with pytest.raises(ToolchainError) as error:
        kp.wheel()
    assert "pip install kp" not in str(error.value), "it would fail in the same way"
    assert "--stock" not in str(error.value), "so would this"
    return str(error.value)


@pytest.mark.parametrize("there", [[], ["g++"], ["g++", "cmake"]], ids="-".join)
def test_a_build_lists_all_that_is_missing_in_one_line_for_apt(
    there: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in there:
        (tmp_path / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kp, "_has_header", lambda compiler, header: "fmt" not in header)
    monkeypatch.setattr(kp, "_ask", lambda python, _: json.dumps(["3.12", str(tmp_path)]))
    missing = ["g++", "cmake", "make"][len(there):]
    said = failed_build(tmp_path, monkeypatch)
    assert f"{', '.join(missing)}, fmt/core.h, {tmp_path}/Python.h are missing" in said
    assert said.splitlines()[-1].split() == [
        "apt", "install", *missing, "libfmt-dev", "python3.12-dev"]


def test_stock_kp_is_offered_where_only_the_fixes_are_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misfit(*_: object) -> None:
        raise ToolchainError("fix a does not fit")

    monkeypatch.setattr(kp, "cache_dir", lambda name: tmp_path / "cache" / name)
    for step in ("_check_requirements", "from_index", "sdist", "unpack"):
        monkeypatch.setattr(kp, step, lambda *_: tmp_path)
    monkeypatch.setattr(patches, "apply", misfit)
    with pytest.raises(ToolchainError, match=r"(?s)does not fit.*toolchain kp --stock"):
        kp.wheel()


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
    assert f"{header} is missing" in said
    assert f"apt install {kp.SYSTEM_PACKAGES[header]}" in said


@builds_kp
def test_a_build_without_pythons_header_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kp, "SYSTEM_PACKAGES", {})
    monkeypatch.setattr(kp, "_ask", lambda python, _: json.dumps(["3.12", str(tmp_path)]))
    said = failed_build(tmp_path, monkeypatch)
    assert "Python.h is missing" in said
    assert "apt install python3.12-dev" in said


def test_a_build_without_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kp, "_check_requirements", lambda python: None)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert "Is the package index reachable?" in failed_build(tmp_path, monkeypatch)


def test_a_wheel_is_kept_by_all_that_decides_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = kp.wheel_key(sys.executable, stock=False)
    keys = [plain, kp.wheel_key(sys.executable, stock=True)]
    fix, other = (patches.Patch("x", "", text) for text in ("a", "b"))
    for module, name, value in (
        (kp, "SDIST_SHA256", "0"), (kp, "BUILD_REQUIREMENTS", ()), (kp, "BUILD_ENVIRONMENT", {}),
        (patches, "load", lambda: []), (patches, "load", lambda: [fix]),
        (patches, "load", lambda: [other]),
        (kp, "_ask", lambda python, expression: "cpython-314"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            keys.append(kp.wheel_key(sys.executable, stock=False))
    assert len(set(keys)) == len(keys)
    assert kp.wheel_key(sys.executable, stock=False) == plain
    with monkeypatch.context() as patch:
        patch.setattr(patches, "load", lambda: [fix])
        assert kp.wheel_key(sys.executable, stock=True) == keys[1], "stock kp has no fixes"


def test_what_is_installed_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = kp.wheel_key(sys.executable, stock=False)
    site = tmp_path / "site"
    (site / "kp-0.9.0.dist-info").mkdir(parents=True)
    (site / "kp-0.9.0.dist-info" / "METADATA").write_text("Name: kp\nVersion: 0.9.0\n")
    record = site / "kp-0.9.0.dist-info" / "direct_url.json"
    asked = []

    def wheel(python: str, stock: bool) -> Path:
        asked.append(stock)
        raise ToolchainError("no wheel here")

    monkeypatch.setattr(kp, "wheel", wheel)
    record.write_text(json.dumps({"url": f"file:///a%20b/{key}/kp-0.9.0.whl"}))
    assert not kp.install(folder=site)
    for stock, url in ((True, f"file:///a/{key}/kp-0.9.0.whl"), (False, "file:///a/b/kp.whl")):
        record.write_text(json.dumps({"url": url}))
        with pytest.raises(ToolchainError, match="no wheel here"):
            kp.install(stock=stock, folder=site)
    assert asked == [True, False]


def test_another_source_distribution_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kp, "cache_dir", lambda name: tmp_path)
    (tmp_path / "kp-0.9.0.tar.gz").write_bytes(b"something else")
    with pytest.raises(ToolchainError, match="SHA-256"):
        kp.sdist([], {})


def test_codes_of_operators_come_from_the_shader(tmp_path: Path) -> None:
    (tmp_path / codes.SOURCE).parent.mkdir()
    lines = "if (code == {}u) result = op_relu(x, y); \\\n if (code == 2u) result = maximum(x, y);"
    (tmp_path / codes.SOURCE).write_text(lines.format(1))
    codes.write(tmp_path, tmp_path)
    assert json.loads((tmp_path / codes.FILE).read_text()) == {"relu": 1, "max": 2}
    for wrong in (2, 3):
        (tmp_path / codes.SOURCE).write_text(lines.format(wrong))
        with pytest.raises(ToolchainError, match="from 1 on, each once"):
            codes.write(tmp_path, tmp_path)


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
    files = [path.name for path in (tmp_path / "spirv").iterdir()]
    assert sorted(files) == ["manifest.json", "trial.b.spv", "trial.c.spv"]


def test_values_have_sizes_for_the_shader_and_the_manifest(tmp_path: Path) -> None:
    header = ("//@ op -\n//@ variants T: a b ; TILE:\n"
              "//@     t4(rows=4, k=2)\n//@     t8(rows=8, k=3)\n")
    text = SHADER.replace("sizes[3]", "sizes[TILE_rows]").replace("sizes[2]", "sizes[TILE_k]")
    _, written = build(tmp_path, header + "//@ without a.t8\n" + text)
    entries = written["shaders"]["trial"]["variants"]
    assert {name: e["sizes"] for name, e in entries.items()} == {
        "trial.a.t4": {"rows": 4, "k": 2}, "trial.b.t4": {"rows": 4, "k": 2},
        "trial.b.t8": {"rows": 8, "k": 3}}
    assert entries["trial.b.t8"]["push"]["sizes"]["count"] == 8


def test_no_shader_asks_which_tile_it_is() -> None:
    """Its header has the sizes."""
    texts = {p.name: p.read_text("utf-8") for p in (PACKAGE.parent / "shaders").rglob("*.comp")}
    assert [name for name, text in texts.items()
            if re.search(r"defined\(TILE_|ifdef TILE_", text)] == []


def test_shared_vectors_begin_at_whole_vectors() -> None:
    """Else a load of a vector becomes two or more, where compilers pack variables."""
    found = {path.stem: reflect.vectors_in_shared_memory(path.read_bytes())
             for path in (PACKAGE / "spirv").glob("*.spv")}
    assert sum(map(len, found.values())) > 100
    assert [name for name, places in found.items() if any(at % 16 for at in places)] == []


def test_combinations_may_be_left_out(tmp_path: Path) -> None:
    header = "//@ op -\n//@ variants T: a b ; N: x y\n//@ without a.y b.x\n//@ tail y\n"
    _, written = build(tmp_path, header + SHADER)
    assert [*written["shaders"]["trial"]["variants"]] == [
        "trial.a.x", "trial.b.y", "trial.b.y.tail"]


def test_variants_may_go_without_bounds_checks(tmp_path: Path) -> None:
    header = "//@ op -\n//@ variants T: a b ; N: x y\n//@ unchecked b\n//@ tail y\n"
    _, written = build(tmp_path, header + SHADER)
    records = written["shaders"]["trial"]["variants"].items()
    assert [name for name, record in records if record["unchecked"]] == [
        "trial.b.x", "trial.b.y", "trial.b.y.tail"]


_MATRICES = """#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(binding = 0) buffer X { uvec4 x[]; };
#define MATRIX(T, use) coopmat<T, gl_ScopeSubgroup, 16, 16, use>
void main() {
    MATRIX(float16_t, gl_MatrixUseA) a;
    MATRIX(float16_t, gl_MatrixUseB) b;
    MATRIX(float, gl_MatrixUseAccumulator) sum = MATRIX(float, gl_MatrixUseAccumulator)(0.0);
    coopMatLoad(a, x, 0u, 2u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, x, 32u, 2u, gl_CooperativeMatrixLayoutRowMajor);
    sum = coopMatMulAdd(a, b, sum);
    MORE
    coopMatStore(sum, x, 64u, 4u, gl_CooperativeMatrixLayoutRowMajor);
}
"""


def test_matrices_of_bfloat16(tmp_path: Path) -> None:
    header = "//@ op -\n//@ variants T: a b\n//@ bfloat16 b\n//@ glslang >= 14\n"
    report, manifest = build(tmp_path, header + _MATRICES.replace("MORE", ""))
    if report.left_out:
        pytest.skip(report.left_out["trial"])
    variants = manifest["shaders"]["trial"]["variants"]
    assert [*variants] == ["trial.a", "trial.b", "trial.b.bfloat16"]
    own, plain = ({*variants[name]["capabilities"]} for name in ("trial.b.bfloat16", "trial.b"))
    assert own - plain == {"BFloat16TypeKHR", "BFloat16CooperativeMatrixKHR"}
    assert plain - own == {"Float16"}
    code = (tmp_path / "spirv" / "trial.b.bfloat16.spv").read_bytes()
    assert b"SPV_KHR_bfloat16" in code
    widths = [words for words in _instructions(code) if words[0] & 0xFFFF == 22]  # OpTypeFloat
    assert sorted(tuple(words[2:]) for words in widths) == [(16, 0), (32,)]


@pytest.mark.parametrize("more", [
    "a = a + a;", "x[0].x = uint(a[0]);", "float16_t one[2]; one[x[0].y] = float16_t(x[0].x);"])
def test_bfloat16_is_nothing_but_elements_of_matrices(tmp_path: Path, more: str) -> None:
    header = "//@ op -\n//@ variants T: b\n//@ bfloat16 b\n//@ glslang >= 14\n"
    with pytest.raises(spirv.ShaderError, match="expected FLOAT16 only as elements of matrices"):
        build(tmp_path, header + _MATRICES.replace("MORE", more))


def _instructions(code: bytes) -> Iterator[tuple[int, ...]]:
    words, at = struct.unpack(f"<{len(code) // 4}I", code), 5
    while at < len(words):
        yield words[at:at + (words[at] >> 16)]
        at += words[at] >> 16


def test_what_decides_how_shaders_are_compiled_compiles_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "//@ op -\n" + SHADER
    assert build(tmp_path, text)[0].compiled == 1
    text += "// other\n"
    assert build(tmp_path, text)[0].compiled == 1
    monkeypatch.setattr(spirv, "_own_code", lambda shader: "another")
    assert build(tmp_path, text)[0].compiled == 1
    (tmp_path / "spirv" / "trial.spv").unlink()
    assert build(tmp_path, text)[0].compiled == 1
    assert build(tmp_path, text)[0].compiled == 0


def test_an_included_file_compiles_its_shaders_again(tmp_path: Path) -> None:
    folder = tmp_path / "shaders" / "include"
    folder.mkdir(parents=True)
    (folder / "outer.glsl").write_text('#include "inner.glsl"\n')
    inner = folder / "inner.glsl"
    inner.write_text("")
    text = "//@ op -\n" + SHADER.replace(
        "#version 450\n",
        '#version 450\n#extension GL_GOOGLE_include_directive : require\n#include "outer.glsl"\n')
    assert build(tmp_path, text)[0].compiled == 1
    assert build(tmp_path, text)[0].compiled == 0
    inner.write_text("// other\n")
    assert build(tmp_path, text)[0].compiled == 1


def test_a_build_that_was_cut_short_leaves_nothing_old_under_a_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "//@ op -\n//@ variants T: a b\n" + SHADER
    build(tmp_path, text)
    files = [tmp_path / "spirv" / f"trial.{name}.spv" for name in "ab"]
    first = [file.read_bytes() for file in files]
    compile_one = spirv._compile

    def cut(*arguments: object) -> dict:
        if "trial.b" in arguments:
            raise KeyboardInterrupt
        return compile_one(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(spirv, "_compile", cut)
        build(tmp_path, text.replace("sizes[2]", "1"))
    assert files[0].read_bytes() != first[0]
    build(tmp_path, text)  # the change is reverted
    assert [file.read_bytes() for file in files] == first


def test_a_push_block_that_some_device_cannot_take_is_refused(tmp_path: Path) -> None:
    text = "//@ op -\n" + SHADER
    build(tmp_path, text.replace("uint sizes[3]", "uint sizes[31]"))
    with pytest.raises(spirv.ShaderError, match="at most 128 bytes, but it has 132"):
        build(tmp_path, text.replace("uint sizes[3]", "uint sizes[32]"))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("//@ operator DML_OPERATOR_CAST\n", r"trial\.comp:1: .*'operator' to be one of"),
        ("//@ op -\n//@ op -\n", r"trial\.comp:2: .*'op' only once"),
        ("//@ op -\n//@ variants T: a a\n", "trial.comp"),
        ("//@ op -\n//@ variants T: a b\n//@ without c\n", "trial.comp: .*but got c"),
        ("//@ op -\n//@ variants T: a b\n//@ unchecked c\n", "trial.comp: .*but got c"),
        ("//@ op -\n//@ variants T: a b\n//@ bfloat16 c\n", "trial.comp: .*but got c"),
        ("//@ op -\n//@ variants T: a(n=1) b(m=1)\n", "trial.comp:2: .*same sizes"),
        ("//@ op -\n//@ variants T: a(n=x)\n", "trial.comp:2: .*size=1"),
        ("#version 450\n//@ op -\n", r"trial\.comp:2: .*first lines"),
    ],
)
def test_wrong_headers_name_file_and_line(tmp_path: Path, header: str, words: str) -> None:
    with pytest.raises(spirv.ShaderError, match=words):
        build(tmp_path, header + SHADER)


def test_an_error_names_the_authors_line(tmp_path: Path) -> None:
    with pytest.raises(spirv.ShaderError, match=r"trial\.comp:7"):
        build(tmp_path, "//@ op -\n" + SHADER.replace("sizes[0]", "nothing"))


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    text = SHADER.replace("#version 450\n", "#version 450\n#extension GL_unheard_of : enable\n")
    with pytest.raises(spirv.ShaderError, match=r"WARNING: .*GL_unheard_of"):
        build(tmp_path, "//@ op -\n" + text)


def test_the_default_of_a_constant_is_a_number(tmp_path: Path) -> None:
    """Drivers leave it as it is if it is computed from another constant."""
    line = "layout(constant_id = 9) const uint HALF = gl_WorkGroupSize.x / 2u;\n"
    with pytest.raises(spirv.ShaderError, match="a number as the default of constant HALF"):
        build(tmp_path, "//@ op -\n" + SHADER.replace("void main", line + "void main"))


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Paths of compilers: the system's, the cache's, the variable's. Only those a test makes
    exist."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'system'}:/usr/bin:/bin")
    monkeypatch.setattr(glslang, "PROGRAM", "trial-glslang")
    monkeypatch.setattr(glslang, "private_dir", lambda: tmp_path / "private")
    monkeypatch.delenv("GLSLANG_VALIDATOR", raising=False)
    folders = {name: tmp_path / name for name in ("system", "private/bin", "chosen")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    return {name: folder / "trial-glslang" for name, folder in folders.items()}


def compiler(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho 'Glslang Version: 11:{version}'\n")
    path.chmod(0o755)


def test_the_newest_compiler_is_found(
    compilers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolchainError, match="apt install glslang-tools"):
        glslang.find()
    compiler(compilers["system"], "9.9.9")
    assert glslang.find().version == (9, 9, 9)
    compiler(compilers["private/bin"], "14.0.0")
    assert glslang.find() == glslang.Compiler(str(compilers["private/bin"]), (14, 0, 0))
    compiler(compilers["system"], "14.1.0")
    assert glslang.find().path == str(compilers["system"])
    compiler(compilers["chosen"], "8.0.1")
    monkeypatch.setenv("GLSLANG_VALIDATOR", str(compilers["chosen"]))
    assert glslang.find().name == "glslang 8.0.1"


def test_a_shader_is_compiled_by_the_compiler_it_asks_for(tmp_path: Path) -> None:
    build(tmp_path, "//@ op -\n" + SHADER)  # skips without a compiler
    major = glslang.find().version[0]
    _, written = build(tmp_path, f"//@ op -\n//@ glslang >= {major}\n" + SHADER)
    assert "trial" in written["shaders"]


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


def test_a_program_is_heard_while_it_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo Collecting one; echo other; echo Collecting two >&2; exit $0"
    system.run_aloud(["sh", "-c", script, "0"], ("Collecting",))
    assert capsys.readouterr().out == "", "nothing takes ten seconds"
    monkeypatch.setattr(system, "SILENT_SECONDS", 0)
    system.run_aloud(["sh", "-c", script, "0"], ("Collecting",))
    lines = re.sub(r"\d+ s", "0 s", capsys.readouterr().out)
    assert lines == "  0 s: Collecting one\n  0 s: Collecting two\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    system.run_aloud(["sh", "-c", script, "0"], ("Collecting",))
    first, second, last = capsys.readouterr().out.split("\r\033[K")[1:]
    assert (first, second, last) == ("  Collecting one", "  Collecting two", "")
    with pytest.raises(ToolchainError, match=r"(?s)failed \(3\):.*other"):
        system.run_aloud(["sh", "-c", script, "3"], ("Collecting",))


def test_a_wheel_without_the_provider_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler() -> None:
        raise ToolchainError("a C compiler is missing")

    interface = ModuleType("interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    monkeypatch.setitem(sys.modules, "toolchain", toolchain)
    monkeypatch.setattr(native, "build", no_compiler)
    monkeypatch.setattr(spirv, "build", lambda *_: "built")
    hook = runpy.run_path(str(PACKAGE / "toolchain" / "hatch_build.py"))["SpirvBuildHook"]()
    said: list[str] = []
    hook.target_name, hook.root = "wheel", str(PACKAGE.parent)
    hook.app = SimpleNamespace(display_info=str, display_warning=said.append)
    terminal = tmp_path / "tty"
    monkeypatch.setitem(hook.initialize.__globals__, "_TERMINAL", str(terminal))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "path", [*sys.path])
    hook.initialize("standard", {})
    (line,) = said
    assert line.startswith("WARNING: ") and "without its ONNX Runtime provider" in line
    assert "a C compiler is missing" in line
    assert terminal.read_text() == f"{line}\n"


def test_what_is_built_stays_out_of_a_source_distribution() -> None:
    """Hatch leaves out the files that the topmost .gitignore names."""
    root = Path(__file__).parents[2]
    ignored = (root / ".gitignore").read_text().splitlines()
    for built in (PACKAGE / "spirv", native.library()):
        path = str(built.relative_to(root))
        assert any(fnmatch(path, line.rstrip("/")) for line in ignored), path


def test_the_library_is_compiled_again_when_its_source_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.compiler() is None:
        pytest.skip("a C compiler is missing")
    target = native.build(tmp_path)
    os.utime(target, (0, 0))
    native.build(tmp_path)
    built = target.stat().st_mtime
    assert built > 0
    native.build(tmp_path)
    assert target.stat().st_mtime == built
    os.utime(target, (0, 0))
    monkeypatch.setattr(native, "checkout", lambda: None)  # as a wheel's
    native.build(tmp_path)
    assert target.stat().st_mtime == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_lists_its_targets() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(["make", "-C", str(root), "help"], capture_output=True, text=True)
    assert done.returncode == 0
    for target in ("demo", "test", "validate", "lint", "bench"):
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("operators/test_operators.py::test_operator[element_wise_add1-line-f32-packed]", "add1"),
        ("operators/test_accuracy.py::test_error_in_ulp[f16-sin]", "sin"),
        ("tools/test_bench.py::test_cases[ACTIVATION_IDENTITY f32]", "identity"),
        ("engine/test_transfer.py::test_sizes[4]", "engine/test_transfer.py::test_sizes"),
        ("tests/tools/test_wheel_install.py::test_y", "tests/tools/test_wheel_install.py"),
    ],
)
def test_one_worker_compiles_the_pipelines_of_an_operator(nodeid: str, group: str) -> None:
    assert sharing(nodeid) == group


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bootstrap.py as `make` runs it, by path, with its own environment and cache."""
    path = PACKAGE / "toolchain" / "bootstrap.py"
    monkeypatch.syspath_prepend("what gives way to the toolchain's folder")
    spec = importlib.util.spec_from_file_location("bootstrap", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bootstrap", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(module, "cache_dir", lambda name: tmp_path / ".cache" / name)
    monkeypatch.setattr(
        module, "unavailable", lambda name: tmp_path / ".cache" / f"{name}-unavailable")
    return module


HERE = "{}.{}".format(*sys.version_info[:2])


@pytest.mark.parametrize("state", ["none", "cut short", "not executable", "other", "whole"])
def test_an_environment_is_made_where_there_is_no_whole_one(
    state: str, bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = bootstrap.VENV_PYTHON
    if state == "cut short":
        def cut(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(venv.EnvBuilder, "_setup_pip", cut)
        with pytest.raises(KeyboardInterrupt):
            venv.create(tmp_path / ".venv", symlinks=True, with_pip=True)
    elif state != "none":
        version = "3.9" if state == "other" else HERE
        python.parent.mkdir(parents=True)
        python.with_name("activate").touch()
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o644 if state == "not executable" else 0o755)
    made, run = [], bootstrap.run

    def pretend(command: list) -> str:
        if command[1:3] != ["-m", "venv"]:
            return run(command)
        made.append(command[3])
        assert not python.exists()
        return ""

    monkeypatch.setattr(bootstrap, "run", pretend)
    assert bootstrap.virtual_environment(bootstrap.JOBS["demo"]) == (state != "whole")
    assert made == ([] if state == "whole" else [tmp_path / ".venv"])


def test_packages_are_installed_where_a_job_needs_more_or_the_project_changed(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = []
    monkeypatch.setattr(bootstrap, "run_aloud",
                        lambda command, _: installed.append(command[-1]))
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(bootstrap, "CONSTRAINTS", tmp_path / "constraints.txt")
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("")

    def extras(job: str) -> str:
        """The extras that a job installs."""
        installed.clear()
        assert bootstrap.python_packages(bootstrap.JOBS[job]) == bool(installed)
        return "".join(installed).removeprefix(str(tmp_path))

    assert extras("demo") == "[demo]"
    assert extras("bench") == ""
    assert extras("lint") == "[demo,dev]"
    assert extras("test") == extras("demo") == ""
    (tmp_path / "pyproject.toml").write_text("# other\n")
    assert extras("demo") == "[demo]"
    (tmp_path / "constraints.txt").write_text("# other\n")
    assert extras("demo") == "[demo]"
    (tmp_path / "stamp.json").write_text("{")
    assert extras("test") == "[dev]"
    assert extras("demo") == ""


@pytest.mark.parametrize("job", ["docs", "wheel", "sdist"])
def test_what_needs_a_checkout_says_so_in_one_line(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from kompute_dml.toolchain import __main__, system

    monkeypatch.setattr(system, "PACKAGE", Path("/elsewhere/kompute_dml"))
    monkeypatch.setattr(sys, "argv", ["toolchain", job])
    assert __main__.main() == 1
    assert capsys.readouterr().err == (
        "error: this works in a source checkout only, and there is none\n")


def test_the_pages_need_nothing_compiled(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    for step in ("virtual_environment", "newer_glslang", "python_packages", "install_kp",
                 "shaders"):
        monkeypatch.setattr(bootstrap, step, lambda job, step=step: done.append(step) or True)
    monkeypatch.setattr(bootstrap, "_is_importable", lambda package: False)
    monkeypatch.setattr(bootstrap, "_install", lambda *what: done.append(what[-1].split(">")[0]))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "docs"])
    assert bootstrap.main() == 0
    assert done == ["virtual_environment", "mkdocs-material"]
    assert [package for package, _ in bootstrap._probes(bootstrap.JOBS["docs"])] == [
        f"python{HERE}-venv"]


def test_every_package_of_the_environment_has_its_version_pinned() -> None:
    lines = (PACKAGE / "toolchain" / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    here = {canonicalize_name(p.name) for p in pins if p.marker is None or p.marker.evaluate()}
    needed, asked = set(), [Requirement("kompute-dml[dev]")]
    while asked:
        requirement = asked.pop()
        try:
            theirs = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed")
        for extra in ("", *requirement.extras):
            asked += [r for r in map(Requirement, theirs) if str(r) not in needed
                      and (r.marker is None or r.marker.evaluate({"extra": extra}))]
        needed |= set(map(str, asked))
    names = {canonicalize_name(Requirement(text).name) for text in needed}
    assert not names - here - {"kompute-dml"}


def test_what_is_not_available_is_asked_for_once_and_again_when_told(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    asked = []

    def unavailable(folder: Path) -> None:
        asked.append(folder)
        raise bootstrap.ToolchainError("no network")

    monkeypatch.setattr(bootstrap.drivers, "swiftshader", lambda: None)
    monkeypatch.setattr(bootstrap.debian, "swiftshader", unavailable)
    job = bootstrap.JOBS["test"]
    assert bootstrap.swiftshader(job)
    file = tmp_path / ".cache" / "SwiftShader-unavailable"
    assert f"remove {file} to try again (no network)" in capsys.readouterr().out
    assert not bootstrap.swiftshader(job)
    file.unlink()
    assert bootstrap.swiftshader(job)
    assert asked == [tmp_path / ".cache" / "swiftshader"] * 2


@pytest.mark.parametrize("known", ["2.14.1, 2.13.0+cpu, 2.13.0, 2.12.0+cpu", "2.14.1, 2.13.0"])
def test_pytorch_is_installed_beside_the_environment_if_there_is_a_build_for_the_cpu(
    known: str, bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def install(*what: str | Path) -> None:
        assert what[-2:] == ("torch==2.13.0+cpu", "expecttest")
        what[what.index("--target") + 1].mkdir(parents=True)

    monkeypatch.setattr(bootstrap, "run", lambda command: f"Available versions: {known}\n")
    monkeypatch.setattr(bootstrap, "_install", install)
    job = bootstrap.JOBS["test"]
    assert bootstrap.cpu_torch(job)
    folder = tmp_path / ".cache" / "torch"
    assert folder.is_dir() == ("cpu" in known)
    assert ("with CUDA only" in capsys.readouterr().out) == ("cpu" not in known)
    assert not bootstrap.cpu_torch(job)  # nor is it asked for again
    monkeypatch.setattr(check, "cache_dir", bootstrap.cache_dir)
    monkeypatch.setattr(check, "unavailable", bootstrap.unavailable)
    here = check.Configuration("lavapipe", (Path("lavapipe.json"),), stock=False)
    checks = check._torch_checks([here], ["tests/pytorch"], [])
    said = capsys.readouterr().out
    if "cpu" in known:
        assert [name for name, _ in checks] == ["PyTorch: lavapipe, fixed kp"] and not said
        _, environment = checks[0][1].args
        assert environment["PYTHONPATH"] == str(folder)
    else:
        assert not checks
        assert said.endswith("left out (pip knows builds with CUDA only)\n")


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def refuse(job: object) -> bool:
        raise PermissionError(13, "Permission denied", "/a/.cache")

    monkeypatch.setattr(bootstrap, "system_packages", refuse)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "demo"])
    assert bootstrap.main() == 1
    assert capsys.readouterr().err == "error: [Errno 13] Permission denied: '/a/.cache'\n"


def test_swiftshader_may_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(command: list) -> str:
        command[-1].mkdir()
        (command[-1] / "libvk_swiftshader.so").touch()
        return ""

    monkeypatch.setattr(debian, "_download", lambda *_: [Path("chromium-common.deb")])
    monkeypatch.setattr(debian, "run", unpack)
    debian.swiftshader(tmp_path / "before")
    moved = (tmp_path / "before").rename(tmp_path / "after")
    icd = json.loads((moved / "swiftshader_icd.json").read_text())["ICD"]
    # The loader resolves a path with a slash relative to the description.
    assert icd["library_path"].startswith("./")
    assert (moved / icd["library_path"]).is_file()


OLD_STYLE = "VUID-VkBufferCreateInfo-size-00912(ERROR / SPEC): msgNum: 1 - Validation\n"
NEW_STYLE = "Validation Error: [ SYNC-HAZARD-WRITE-AFTER-READ ] Object 0: handle = 0x1\n"
SLOW = "Validation Performance Warning: [ BestPractices-x ] | MessageID = 0x2\n"
OLD_AND_SLOW = "UNASSIGNED-x(PERF / SPEC): msgNum: 2 - Validation\n"
DETAIL = "    Objects: 1\n"


def test_every_message_of_the_layer_is_counted() -> None:
    said = validation.Outcome(0, OLD_STYLE + DETAIL + NEW_STYLE + NEW_STYLE + SLOW + OLD_AND_SLOW)
    assert said.messages == {
        "VUID-VkBufferCreateInfo-size-00912": 1, "SYNC-HAZARD-WRITE-AFTER-READ": 2,
        "BestPractices-x": 1, "UNASSIGNED-x": 1,
    }
    assert said.faults == said.messages


@pytest.mark.parametrize(
    ("canary", "returncode", "log", "allowed", "passed"),
    [
        (True, 0, "", {}, True),
        (True, 0, NEW_STYLE, {}, False),
        (True, 0, NEW_STYLE, {"SYNC-HAZARD-WRITE-AFTER-READ": "why"}, True),
        (True, 1, "", {}, False),
        (False, 0, "", {}, False),
    ],
)
def test_a_message_of_the_layer_fails_the_run(
    canary: bool, returncode: int, log: str, allowed: dict, passed: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "ALLOWED", allowed)
    monkeypatch.setattr(validation, "canary", lambda *_: canary)
    monkeypatch.setattr(validation, "validated", lambda *_: validation.Outcome(returncode, log))
    monkeypatch.setattr(check, "cache_dir", lambda name: tmp_path / name)
    configuration = check.Configuration("lavapipe", (Path("lvp.json"),), stock=False)
    assert check._validate(configuration, []) == passed


@pytest.fixture
def two_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOMPUTE_DML_KP", raising=False)
    monkeypatch.setattr(check, "cache_dir", lambda name: tmp_path / name)
    (tmp_path / "torch").mkdir()
    monkeypatch.setattr(check.drivers, "lavapipe", lambda: Path("lvp.json"))
    monkeypatch.setattr(check.drivers, "swiftshader", lambda: Path("swift.json"))


def test_the_suite_runs_on_both_drivers_and_with_both_states_of_kp(two_drivers: None) -> None:
    checks = {name: what.args for name, what in check.suite_checks(["-k", "x"])}
    both = os.pathsep.join(["lvp.json", "swift.json"])
    assert {
        name: (env["VK_DRIVER_FILES"], env["VK_ICD_FILENAMES"], env.get("KOMPUTE_DML_KP"),
               "not slow" in command, "--sample" in command)
        for name, (command, env) in checks.items()
    } == {
        "tests: lavapipe, fixed kp": ("lvp.json", "lvp.json", None, False, False),
        "tests: SwiftShader, fixed kp": ("swift.json", "swift.json", None, True, True),
        "tests: lavapipe, stock kp": ("lvp.json", "lvp.json", "stock", True, True),
        "engine, memory out of reach: lavapipe, fixed kp":
            ("lvp.json", "lvp.json", None, True, True),
        "several devices: lavapipe and SwiftShader, fixed kp":
            (both, both, None, True, False),
        "PyTorch: lavapipe, fixed kp": ("lvp.json", "lvp.json", None, False, False),
    }
    for name, (command, env) in checks.items():
        assert command[-2:] == ["-k", "x"]
        assert ("kp-stock" in env.get("PYTHONPATH", "")) == ("stock" in name)
        assert ("KOMPUTE_DML_TEST_STAGED" in env) == name.startswith("engine")
        # Kernels of all files run on both drivers, those of the sample with both kps.
        samples = [name.startswith("tests: Swift"), "--sample" in command
                   and name.startswith("tests")]
        assert samples == [f"tests/operators/test_{file}.py" in command
                           for file in ("movement", "operators")]
    added = [what.args for name, what in check.suite_checks([]) if name not in checks]
    assert [(command[2:], env["VK_DRIVER_FILES"]) for command, env in added] == [
        (["kompute_dml", "selftest"], "swift.json")]
    everywhere = [what.args[0] for name, what in check.all_checks([]) if name.startswith("tests")]
    assert len(everywhere) == 4
    named = {arg.removeprefix("--ignore=").partition("::")[0] for _, what in (
        *check.suite_checks([]), *check.all_checks([]), *check._sampled_validation([]))
        for part in what.args if isinstance(part, list) for arg in part
        if arg.startswith(("tests/", "--ignore="))}
    assert len(named) > 30 and [name for name in named if not (
        Path(__file__).parents[2] / name).exists()] == []
    assert not any("--sample" in what.args[0] for _, what in check.all_checks([]))
    assert [name for name, _ in check._sampled_validation([])] == [
        "validation: lavapipe, fixed kp", "validation: SwiftShader, fixed kp"]
    assert [name for name, _ in check.validation_checks([])] == [
        "validation: lavapipe, fixed kp", "validation: SwiftShader, fixed kp",
        "validation: lavapipe, stock kp", "validation: SwiftShader, stock kp"]


@pytest.mark.parametrize("code, passed", [(0, True), (5, True), (1, False), (2, False)])
def test_a_part_without_the_operator_that_is_asked_for_passes(
    two_drivers: None, monkeypatch: pytest.MonkeyPatch, code: int, passed: bool
) -> None:
    monkeypatch.setattr(check.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
    assert {what() for _, what in check.suite_checks(["-k", "x"])} == {passed}


def test_a_failure_says_how_to_run_it_again(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "/a b.json")
    monkeypatch.setenv("KOMPUTE_DML_TEST_STAGED", "1")
    line = shlex.split(to_repeat(request.node))
    assert line[0] == "env" and {"VK_DRIVER_FILES=/a b.json", "KOMPUTE_DML_TEST_STAGED=1"} <= {
        *line[1:-6]}
    assert line[-6:] == [sys.executable, "-m", "pytest", request.node.nodeid, "--seed",
                         str(request.config.getoption("seed"))]


def test_where_there_is_only_stock_kp_nothing_else_is_tested(
    two_drivers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_KP", "stock")
    assert [c.name for c in check.configurations()] == [
        "lavapipe, stock kp", "SwiftShader, stock kp"]


@pytest.mark.parametrize(
    ("job", "results", "code"),
    [("lint", [True, True], 0), ("lint", [True, False], 1), ("lint", [False, True], 1),
     ("other", [], 2)],
)
def test_one_check_that_fails_fails_the_job(
    job: str, results: list[bool], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "lint_checks", lambda: [("x", lambda r=r: r) for r in results])
    monkeypatch.setattr(sys, "argv", ["check", job])
    assert check.main() == code


def _with_includes(path: Path, shaders: Path) -> str:
    lines = []
    for line in path.read_text().splitlines():
        code = line.partition("//")[0].strip()
        if code.startswith("#include"):
            code = _with_includes(shaders / code.split('"')[1], shaders)
        lines.append(code)
    return "\n".join(lines)


def test_shaders_declare_their_local_size_before_they_use_it() -> None:
    """Before, gl_WorkGroupSize is 1 to glslang, without a word."""
    shaders = Path(__file__).parents[2] / "shaders"
    early = []
    for path in sorted(shaders.rglob("*.comp")):
        code = _with_includes(path, shaders)
        if "gl_WorkGroupSize" in code[: code.index("local_size_x")]:
            early.append(path.name)
    assert not early


# The metadata


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The names of the hook, which hatchling alone imports."""
    interface = ModuleType("interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    return SimpleNamespace(**runpy.run_path(str(PACKAGE / "toolchain" / "hatch_metadata.py")))


@pytest.mark.parametrize("named, address", [
    ("https://host.org/a/b.git", "https://host.org/a/b"),
    ("https://host.org/a/b/", "https://host.org/a/b"),
    ("git@host.org:a/b.git", "https://host.org/a/b"), ("/srv/git/b.git", None), ("", None)])
def test_the_address_of_the_repository(
    hook: SimpleNamespace, named: str, address: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(hook.ADDRESS, named)
    assert hook.repository(tmp_path) == address
    assert ("Source" in hook.urls(address)) == (address is not None)
    monkeypatch.delenv(hook.ADDRESS)
    (tmp_path / "PKG-INFO").write_text(
        f"Name: x\nProject-URL: Kompute, https://k.org\nProject-URL: Source, {named}\n\ntext\n")
    assert hook.repository(tmp_path) == address


def test_links_of_the_readme_lead_out_of_the_metadata(hook: SimpleNamespace) -> None:
    text = "[a](docs/a.md#b), ![p\nq](p.svg), [![c](c.svg)](d.md), [e](https://e.org), [f](#f)"
    at = "https://host.org/x"
    assert hook.absolute(text, at) == (
        f"[a]({at}/blob/HEAD/docs/a.md#b), ![p\nq]({at}/raw/HEAD/p.svg), "
        f"[![c]({at}/raw/HEAD/c.svg)]({at}/blob/HEAD/d.md), [e](https://e.org), [f](#f)")
    assert hook.absolute(text, None) == "a, , , [e](https://e.org), [f](#f)"
    readme = hook.absolute((PACKAGE.parent / "README.md").read_text("utf-8"), at)
    assert not re.search(r"\]\((?!https://|#)", readme) and readme.count(f"]({at}/") > 10
