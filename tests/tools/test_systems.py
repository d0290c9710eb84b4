"""Windows and macOS, as far as they can be tried on another system."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.tags import mac_platforms, parse_tag

from kompute_dml import NoDeviceError
from kompute_dml.runtime import adapters, pipeline_file
from kompute_dml.toolchain import folders, kp, patches, side_by_side, wheel
from kompute_dml.toolchain.system import cache_dir, run
from kompute_dml.toolchain.targets import HERE, TARGETS, definition, undefined_names

_WINDOWS = """
import concurrent.futures.process, contextlib, ctypes, importlib, multiprocessing.util, os, pathlib
import sys, sysconfig, tempfile, types

# Other packages have their own code for Windows.
optional = ("cffi", "click", "flatbuffers", "hatchling", "magika", "mkdocs", "onnx", "onnxruntime",
            "onnxruntime_genai", "PIL", "tabulate", "torch", "tqdm")
for name in ("filelock", "numpy", "vulkan", *optional):
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


@pytest.mark.parametrize("platform, words", [
    ("linux", ("libvulkan.so.1", "apt install")), ("win32", ("vulkan-1.dll", "vendor")),
    ("darwin", ("libvulkan.dylib", "brew install", "MoltenVK"))])
def test_a_missing_loader_is_named_as_the_system_does(
    platform: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, *rest: object, **more: object) -> object:
        raise OSError("Cannot find Vulkan SDK version")

    monkeypatch.setattr(adapters, "sys", SimpleNamespace(platform=platform))
    monkeypatch.delitem(sys.modules, "vulkan")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(NoDeviceError, match="no Vulkan loader was found") as raised:
        adapters._binding()
    assert all(word in str(raised.value) for word in words)


def test_devices_that_lack_some_of_vulkan_are_asked_for_on_macos(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader here takes the same words, and lists the same devices."""
    import vulkan as vk

    if adapters._PORTABILITY not in {
            e.extensionName for e in vk.vkEnumerateInstanceExtensionProperties(None)}:
        pytest.skip("an older loader")
    asked = []
    make = vk.vkCreateInstance
    monkeypatch.setattr(vk, "vkCreateInstance",
                        lambda info, _: asked.append(info) or make(info, _))
    before = adapters.list_devices.__wrapped__()
    monkeypatch.setattr(adapters, "sys", SimpleNamespace(platform="darwin"))
    assert adapters.list_devices.__wrapped__() == before
    assert [(info.flags, info.enabledExtensionCount) for info in asked] == [
        (0, 0), (vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR, 1)]


@pytest.mark.parametrize("target, platform, suffix", [
    ("x86_64", "linux_x86_64", ".cpython-313-x86_64-linux-gnu.so"),
    ("aarch64", "linux_aarch64", ".cpython-313-aarch64-linux-gnu.so"),
    ("windows", "win_amd64", ".cp313-win_amd64.pyd"),
    ("macos", "macosx_11_0_arm64", ".cpython-313-darwin.so")])
def test_a_target_has_the_names_that_python_looks_for(
    target: str, platform: str, suffix: str
) -> None:
    described = TARGETS[target]
    assert described.suffix("3.13") == suffix
    assert re.sub(r"[-.]", "_", described.platform) == platform
    tags = parse_tag(f"{wheel.tag(('3.11', '3.13'))}-none-{platform}")
    assert {tag.interpreter for tag in tags} == {"cp311", "cp313"}
    if target == "macos":
        assert platform in mac_platforms((14, 0), "arm64")


def test_the_target_here_is_what_this_python_looks_for() -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    assert TARGETS[HERE].suffix(version) == sysconfig.get_config_var("EXT_SUFFIX")
    assert TARGETS[HERE].platform == sysconfig.get_platform()


def test_fixes_of_one_system_fit_after_all_others() -> None:
    """Their lines are of kp's source with the other fixes, and no other system gets them."""
    ours = {patch.name for patch in side_by_side._fixes("macos")}
    assert ours - {patch.name for patch in side_by_side._fixes("windows")} == {"portability"}
    assert side_by_side._fixes("windows") == side_by_side._fixes(HERE)


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_fixes_fit_kps_source(system: str, tmp_path: Path) -> None:
    archive = cache_dir("kp") / f"kp-{kp.VERSION}.tar.gz"
    if not archive.is_file():
        pytest.skip("kp's source was not downloaded here")
    patches.apply(kp.unpack(archive, tmp_path), side_by_side._fixes(system))


@pytest.mark.slow
def test_an_import_library_has_what_an_object_leaves_to_others(tmp_path: Path) -> None:
    source, built = tmp_path / "a.c", tmp_path / "a.o"
    source.write_text("""
        __declspec(dllimport) extern int Py_a_name_of_more_than_eight_letters, PyShort;
        int vkDo(int), own(int), other(int);
        static int hidden(int x) { return x + 1; }
        int own(int x) { return vkDo(x) + PyShort + hidden(x) + other(x); }
        int last(void) { return Py_a_name_of_more_than_eight_letters; }
    """)
    run([*side_by_side.compiler("cc", "windows"), "-O2", "-c", source, "-o", built])
    names = undefined_names(built.read_bytes())
    assert names == {"Py_a_name_of_more_than_eight_letters", "PyShort", "vkDo", "other"}
    assert definition("python313.dll", "_?Py", names).split() == [
        "LIBRARY", '"python313.dll"', "EXPORTS", "PyShort", "Py_a_name_of_more_than_eight_letters"]
