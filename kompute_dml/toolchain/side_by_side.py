"""Builds the fixed kp for several CPythons, for a wheel that needs no compiler: its `_kp/`.

Zig's C++ compiler (`pip install ziglang`) targets glibc 2.28 and links its own C++ library, so
that each module needs libvulkan and libc alone. File suffixes keep the CPythons apart. Only the
headers of a CPython are needed, not the interpreter: those of the running one, of pyenv's, those
that ``KOMPUTE_DML_PYTHON_HEADERS`` names, or those that Debian's archives hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from . import debian, edits, kp
from .system import ToolchainError, cache_dir, run, say

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
HEADERS = "KOMPUTE_DML_PYTHON_HEADERS"
"""Folders that hold `python3.X/Python.h`, with colons between them."""
_DEBIANS = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"}
"""The release whose archive has a CPython's headers."""
TOOLS = ("ziglang>=0.15", "pybind11==2.13.6")
_TARGET = "{machine}-linux-gnu.2.28"
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "CRITICAL", "OFF")
_DEFINES = ("FMT_HEADER_ONLY", "NDEBUG", "KOMPUTE_BUILD_PYTHON=1",
            "KOMPUTE_DISABLE_VK_DEBUG_LAYERS=1", "KOMPUTE_OPT_LOG_LEVEL_DISABLED=1",
            *(f"KOMPUTE_LOG_LEVEL_{name}={i}" for i, name in enumerate(_LEVELS)),
            f"KOMPUTE_OPT_ACTIVE_LOG_LEVEL={_LEVELS.index('OFF')}")


def suffix(version: str, machine: str = platform.machine()) -> str:
    """The end of an extension module's name, for a version of CPython."""
    return f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"


def headers(version: str, scratch: Path) -> Path | None:
    """The folder that holds `pythonX.Y/Python.h`; None where there are none."""
    running = Path(sysconfig.get_path("include"))
    name = f"python{version}"
    candidates = [Path(p) for p in os.environ.get(HEADERS, "").split(":") if p]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates += [running.parent, Path("/usr/include"),
                   *sorted(pyenv.glob(f"versions/{version}.*/include"))]
    for folder in candidates:
        if (folder / name / "Python.h").is_file():
            return folder
    if version in _DEBIANS and debian.distribution() == "debian":
        root = scratch / name
        try:
            debian.unpack(f"lib{name}-dev", _DEBIANS[version], root)
        except ToolchainError:
            return None
        return root / "usr" / "include"
    return None


def tools(folder: Path) -> Path:
    """Zig and pybind11, put into `folder` unless they are there."""
    if not (folder / "pybind11").is_dir():
        kp._from_index([sys.executable, "-m", "pip", "--disable-pip-version-check", "install",
                        "--quiet", "--target", folder, *TOOLS])
    return folder


def compiler(folder: Path, language: str = "c++", machine: str = platform.machine()) -> list[str]:
    """The command that compiles for glibc 2.28, with the tools in `folder`."""
    zig = folder / "ziglang" / "zig"
    return [str(zig), language, "-target", _TARGET.format(machine=machine)]


def build(versions: tuple[str, ...], folder: Path) -> list[str]:
    """Put into `folder` what has headers here; returns the versions."""
    there = []
    with tempfile.TemporaryDirectory(prefix="kompute-dml-kp-") as name:
        scratch = Path(name)
        tree = None
        for version in versions:
            include = headers(version, scratch)
            if include is None:
                say(f"kp for CPython {version}: no headers here ({HEADERS} may name a folder)")
                continue
            kept = cache_dir("kp") / f"zig-{_key(version)}" / f"kp{suffix(version)}"
            if not kept.is_file():
                say(f"kp {kp.VERSION} for CPython {version}: building (minutes)")
                tree = tree or _source(scratch)
                _compile(tree, version, include, tools(cache_dir("zig")), kept)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept, folder / kept.name)
            there.append(version)
        if there:
            _notices(tree or _source(scratch), tools(cache_dir("zig")), folder)
    return there


def _key(version: str) -> str:
    """Names a module by all that decides its content."""
    fixes = [f"{name} {changes}" for name, changes in kp.load_fixes().items()]
    content = json.dumps([kp.SDIST_SHA256, TOOLS, _DEFINES, fixes, version, platform.machine()])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _source(scratch: Path) -> Path:
    """kp's source with the fixes, and the headers that its CMake would have made."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    tree = kp._unpack(kp._sdist(pip, dict(os.environ)), scratch)
    edits.apply(tree, kp.load_fixes())
    made = tree / "made"
    made.mkdir()
    for source in (tree / "src" / "shaders" / "glsl").glob("*.hpp.in"):
        shutil.copyfile(source, made / source.name.removesuffix(".in"))
    # Not all of /usr/include: the C library's headers are Zig's.
    for name in ("vulkan", "vk_video", "fmt"):
        there = Path("/usr/include", name)
        if not there.is_dir():
            raise ToolchainError(f"{there} is missing; on Debian and Ubuntu:\n"
                                 "  apt install libvulkan-dev libfmt-dev")
        (made / name).symlink_to(there)
    return tree


def _compile(tree: Path, version: str, include: Path, tools: Path, target: Path) -> None:
    made, machine = tree / "made", platform.machine()
    python = tree / f"python{version}"
    (python / f"{machine}-linux-gnu").mkdir(parents=True)
    name = f"python{version}"
    (python / name).symlink_to(include / name)
    (python / f"{machine}-linux-gnu" / name).symlink_to(include / f"{machine}-linux-gnu" / name)
    library = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True,
                             env={**os.environ, "PATH": f"{os.environ['PATH']}:/sbin"}).stdout
    vulkan = next((line.split()[-1] for line in library.splitlines() if "libvulkan.so.1" in line),
                  None)
    if vulkan is None:
        raise ToolchainError("libvulkan.so.1 is missing; on Debian and Ubuntu:\n"
                             "  apt install libvulkan1")
    folders = [made, python, python / name, tree / "src" / "include", tree / "python" / "include",
               tools / "pybind11" / "include"]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    sources = sorted([*(tree / "src").glob("*.cpp"), tree / "src" / "logger" / "Logger.cpp",
                      tree / "python" / "src" / "main.cpp"])
    run([*compiler(tools), "-std=c++14", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s",
         "-w", *(f"-D{define}" for define in _DEFINES), *(f"-I{f}" for f in folders), *sources,
         vulkan, "-o", partial])
    partial.replace(target)


def _notices(tree: Path, tools: Path, folder: Path) -> None:
    """The licences of what the modules hold, and the list of fixes."""
    found = {
        "Kompute (kp)": [tree / "LICENSE"],
        "pybind11": tools.glob("pybind11-*.dist-info/**/LICENSE*"),
        "the C++ library of LLVM (libc++, in Zig)": tools.glob("ziglang/lib/libcxx/LICENSE.TXT"),
        "fmt": Path("/usr/share/doc/libfmt-dev").glob("copyright"),
    }
    parts = {name: path for name, paths in found.items() for path in paths}
    text = "".join(f"=== {name} ===\n\n{path.read_text('utf-8')}\n" for name, path in parts.items())
    (folder / "NOTICES.txt").write_text(text, "utf-8")
    changed = "\n".join(f"- {name.replace('_', ' ')}" for name in kp.load_fixes())
    (folder / "FIXES.md").write_text(
        f"kp {kp.VERSION} as on the package index, with these fixes "
        f"(`kompute_dml/toolchain/fixes/`):\n\n{changed}\n", "utf-8")
