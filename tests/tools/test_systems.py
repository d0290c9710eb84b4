"""Windows and macOS, as far as they can be tried on another system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kompute_dml.runtime import pipeline_file
from kompute_dml.toolchain import folders

_WINDOWS = """
import contextlib, ctypes, importlib, multiprocessing.util, os, pathlib, sys
import sysconfig, tempfile, types

# Other packages have their own code for Windows.
optional = ("cffi", "click", "flatbuffers", "hatchling", "magika", "mkdocs", "onnx", "onnxruntime",
            "onnxruntime_genai", "PIL", "tabulate", "torch", "tqdm")
for name in ("numpy", "vulkan", *optional):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = sysconfig._get_sysconfigdata_name()
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "geteuid",
             "getuid", "mkfifo", "register_at_fork", "sched_getaffinity", "uname"):
    delattr(os, name)
sys.modules["msvcrt"] = msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_LOCK = 1
locked = []
msvcrt.locking = lambda opened, mode, count: locked.append((mode, count))
real = ctypes.CDLL
def load(name, *rest, **more):
    assert name is not None, "Windows has no library of the whole process"
    return real(None if name == "ucrtbase" else name, *rest, **more)
ctypes.CDLL = load
sys.platform = "win32"

import kompute_dml
"""

_ALL = """
root = pathlib.Path(kompute_dml.__file__).parent
for path in sorted(root.rglob("*.py")):
    # These run as programs, on a system that builds.
    if path.stem in ("__main__", "bootstrap", "hatch_build", "site"):
        continue
    name = ".".join(["kompute_dml", *path.relative_to(root).with_suffix("").parts])
    try:
        importlib.import_module(name.removesuffix(".__init__"))
    except ImportError as error:
        assert (error.name or "").split(".")[0] in optional, (name, error)
"""

_FILES = """
from pathlib import Path
from kompute_dml import tuning
from kompute_dml.runtime.pipeline_file import PipelineFile

adapter = types.SimpleNamespace(
    pipeline_header=bytes(32), name="GPU", driver="driver", driver_version="1")
file = PipelineFile(adapter)
assert file.path.parts[-5:-3] == ("AppData", "Local"), file.path
data = bytes(32) + b"pipelines"
file.save(data)
assert PipelineFile(adapter).load() == data
file.save(data + b"more")
assert PipelineFile(adapter).load() == data + b"more"
assert os.listdir(file.path.parent) == [file.path.name]
tuning.keep(adapter, {"work": "kernel"})
assert tuning.pick(tuning.device_key(adapter), "work", ["other", "kernel"]) == 1
assert locked == [(1, 1)]
"""


def _as_windows(program: str, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WINDOWS + program], text=True, capture_output=True,
        env={"PYTHONPATH": str(Path(folders.__file__).parents[2]), "HOME": str(home)})
    assert not done.returncode, done.stderr


def test_no_module_needs_what_windows_lacks(tmp_path: Path) -> None:
    _as_windows(_ALL, tmp_path)


def test_files_of_the_cache_on_windows(tmp_path: Path) -> None:
    _as_windows(_FILES, tmp_path)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def test_windows_follows_no_link(tmp_path: Path) -> None:
    place = tmp_path / "pipelines"
    pipeline_file._WindowsFolder.make(place)
    with pipeline_file._WindowsFolder.opened(place) as inside:
        inside.replace("file", b"data")
        assert inside.read("file") == b"data"
        _link(place / "file")
        assert inside.read("file") == b""
        inside.replace("file", b"new")
    assert (place / "elsewhere").read_bytes() == b"data"
    _link(place)
    with pytest.raises(NotADirectoryError), pipeline_file._WindowsFolder.opened(place):
        pass


@pytest.mark.parametrize("platform, place", [
    ("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")])
def test_each_system_has_its_place_for_caches(
    platform: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert folders.user_cache() == tmp_path / place / "kompute_dml"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    assert folders.user_cache() == tmp_path / "named" / "kompute_dml"
