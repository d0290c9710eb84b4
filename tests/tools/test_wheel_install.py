"""The one wheel, in an environment of its own that has no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kompute_dml.toolchain import side_by_side, wheel

_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_PROGRAM = """
import sys
import numpy as np
import kompute_dml as dml

x = dml.asarray(np.float32([1, 2]))
assert (x + x).tolist() == [2, 4]
assert "_kp" in sys.modules["kp"].__file__, sys.modules["kp"].__file__
print(dml.default_device().features and "features")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("dist"), (_HERE,))


@pytest.mark.slow
def test_the_wheel_is_for_any_linux_of_glibc_2_28(built: Path) -> None:
    assert built.name.startswith("kompute_dml-") and "-py3-none-manylinux" in built.name
    names = zipfile.ZipFile(built).namelist()
    assert f"kompute_dml/_kp/kp{side_by_side.suffix(_HERE)}" in names
    assert {"kompute_dml/_kp/NOTICES.txt", "kompute_dml/_kp/FIXES.md",
            "kompute_dml/__init__.pyi"} <= set(names)
    assert any(n.endswith(".spv") for n in names)
    assert any("libkompute_dml_provider" in n for n in names)
    assert not any("libvulkan" in n for n in names)


@pytest.mark.slow
def test_it_installs_without_a_compiler(built: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    programs = tmp_path / "bare" / "bin"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CC", "CXX"))}
    env["PATH"] = str(programs)
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", built], env=env,
                   check=True)
    done = subprocess.run([programs / "python", "-I", "-c", _PROGRAM], env=env, text=True,
                          capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    no_driver = {**env, "VK_DRIVER_FILES": "/nowhere", "VK_ICD_FILENAMES": "/nowhere"}
    told = subprocess.run([programs / "kompute-dml", "selftest"], env=no_driver, text=True,
                          capture_output=True)
    assert told.returncode == 1 and "apt install mesa-vulkan-drivers" in told.stderr
    assert len(told.stderr.splitlines()) == 1
