"""The one wheel, built from the source distribution alone, where there is no compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename

import kompute_dml
from kompute_dml.toolchain import native, patches, side_by_side, wheel
from kompute_dml.toolchain.system import ToolchainError, cache_dir
from kompute_dml.toolchain.targets import HERE, TARGETS

_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGE = Path(kompute_dml.__file__).parent
_PROGRAM = """
import sys
import numpy as np
import kompute_dml as dml

x = dml.asarray(np.float32([1, 2]))
assert (x + x).tolist() == [2, 4]
assert "_kp" in sys.modules["kp"].__file__, sys.modules["kp"].__file__
print(dml.default_device().features and "features")
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, in an empty folder."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.unpack_archive(wheel.sdist(folder), folder)
    (root,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return root


@pytest.fixture(scope="module")
def built(unpacked: Path) -> Path:
    # Only what takes long is handed on: shaders, of which each is checked against its source, and
    # what the cache holds.
    shutil.copytree(_PACKAGE / "spirv", unpacked / "kompute_dml" / "spirv")
    (unpacked / ".cache").symlink_to(cache_dir(""))
    subprocess.run([sys.executable, "-m", "kompute_dml.toolchain", "wheel", "--python", _HERE],
                   cwd=unpacked, env={**os.environ, "PYTHONPATH": str(unpacked)}, check=True)
    (found,) = (unpacked / "dist").glob("kompute_dml-*.whl")
    return found


def _metadata(archive: zipfile.ZipFile) -> Metadata:
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    return Metadata.from_email(archive.read(name), validate=True)


def test_a_source_distribution_holds_no_built_file(unpacked: Path) -> None:
    built = {"spirv", "_kp", "__init__.pyi", native.library().name}
    assert not built & {path.name for path in (unpacked / "kompute_dml").rglob("*")}
    assert (unpacked / "shaders").is_dir() and (unpacked / "LICENSE").is_file()


def test_a_wheel_without_a_version_is_not_made(tmp_path: Path) -> None:
    """The headers that are missing are named, and how to get them."""
    with pytest.raises(ToolchainError) as raised:
        wheel.build(tmp_path, ("3.98", "3.99"))
    lines = str(raised.value).splitlines()
    for version, line in zip(("3.98", "3.99"), lines, strict=True):
        assert line.startswith(f"kp for CPython {version}: its headers are missing: ")
        assert f"libpython{version}-dev" in line and side_by_side.HEADERS in line
    assert not list(tmp_path.iterdir())


def test_headers_come_from_packages_before_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(packages: Sequence[str], releases: Sequence[str], folder: Path) -> None:
        asked.append((*packages, *releases))
        (folder / "usr" / "include" / "python3.11").mkdir(parents=True)

    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(side_by_side.debian, "unpack", unpack)
    monkeypatch.setattr(side_by_side.debian, "distribution", lambda: "debian")
    monkeypatch.delenv(side_by_side.HEADERS, raising=False)
    assert side_by_side.headers("3.11", tmp_path) == tmp_path / "python3.11" / "usr" / "include"
    assert asked == [("libpython3.11-dev", "bookworm")]


def test_the_wheel_installs_where_it_has_kp_alone(built: Path) -> None:
    _, _, _, tags = parse_wheel_filename(built.name)
    assert {t.interpreter for t in tags} == {f"cp{_HERE.replace('.', '')}"}
    assert wheel.tag(("3.10", "3.14")) == "cp310.cp314"


def test_the_wheel_is_for_any_linux_of_glibc_2_28(built: Path) -> None:
    tag = re.fullmatch(r"kompute_dml-[^-]+-cp\d+-none-.*manylinux_2_(\d+)_\w+\.whl", built.name)
    assert tag and int(tag[1]) <= 28
    names = set(zipfile.ZipFile(built).namelist())
    files = {p.relative_to(_PACKAGE.parent).as_posix() for p in _PACKAGE.rglob("*")
             if p.is_file() and "__pycache__" not in p.parts}
    assert files | {f"kompute_dml/_kp/kp{TARGETS[HERE].suffix(_HERE)}"} <= names
    assert f"kompute_dml/onnxruntime/{native.library().name}" in names
    assert {"kompute_dml_ort.pth", "_kompute_dml_ort.py"} <= names, "KOMPUTE_DML_ORT needs them"
    assert not any("libvulkan" in n for n in names)


def test_licences_and_fixes_travel_with_it(built: Path) -> None:
    archive = zipfile.ZipFile(built)
    notices = archive.read("kompute_dml/_kp/NOTICES.txt").decode()
    parts = re.split(r"^=== (\S+).* ===$", notices, flags=re.M)[1:]
    assert {"Kompute", "pybind11", "libc++,", "libc++abi,", "libunwind,", "fmt", "Vulkan"} == {
        name for name, text in zip(parts[::2], parts[1::2]) if "copyright" in text.lower()}
    changes = archive.read("kompute_dml/_kp/FIXES.md").decode()
    assert re.findall(r"^- (\w+): \S", changes, re.M) == [patch.name for patch in patches.load()]


@pytest.mark.parametrize("name", ["kompute-dml", "onnxruntime-ep-kompute"])
def test_the_metadata_is_whole(name: str, built: Path) -> None:
    archive = zipfile.ZipFile(next(built.parent.glob(f"{name.replace('-', '_')}-*.whl")))
    found = _metadata(archive)
    assert found.name == name and found.version
    assert found.summary and found.keywords and found.project_urls
    assert found.description_content_type == "text/markdown" and "```python" in found.description
    assert not re.search(r"\]\((?!https://|#)", found.description), "a link within the repository"
    assert found.license_expression == "Apache-2.0" and found.license_files == ["LICENSE"]
    (licence,) = (n for n in archive.namelist() if n.endswith(".dist-info/licenses/LICENSE"))
    assert archive.read(licence) == (_PACKAGE.parent / "LICENSE").read_bytes()
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(found.classifiers)
    minors = {c.rpartition(".")[2] for c in found.classifiers if "Python :: 3." in c}
    assert all(found.requires_python.contains(f"3.{minor}") for minor in minors) and minors


def test_it_installs_without_a_compiler(built: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    programs = tmp_path / "bare" / "bin"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CC", "CXX"))}
    env["PATH"] = str(programs)
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", f"{built}[cli]"],
                   env=env, check=True)
    done = subprocess.run([programs / "python", "-I", "-c", _PROGRAM], env=env, text=True,
                          capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    waits = "import sys; print('_kompute_dml_ort' in sys.modules, 'kompute_dml' in sys.modules)"
    for value, printed in (("", "False False\n"), ("1", "True False\n")):
        assert subprocess.run(
            [programs / "python", "-c", waits], env={**env, "KOMPUTE_DML_ORT": value}, text=True,
            capture_output=True, check=True).stdout == printed
    no_driver = {**env, "VK_DRIVER_FILES": "/nowhere", "VK_ICD_FILENAMES": "/nowhere"}
    told = subprocess.run([programs / "kompute-dml", "selftest"], env=no_driver, text=True,
                          capture_output=True)
    assert told.returncode == 1 and "apt install mesa-vulkan-drivers" in told.stderr
    assert len(told.stderr.splitlines()) == 1
