"""Builds kp's wheel from its pinned source distribution, with or without the repairs in `fixes/`.

kp's CMake downloads nothing: headers come from the system, pybind11 from the package index. Wheels
are kept under a hash of their inputs, so a second call builds nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from . import patches
from .system import ToolchainError, cache_dir, run, say

VERSION = "0.9.0"
SDIST_SHA256 = "98e583dc6e9731ff6d7a3e3317817e4d93f7b2945929619e29a56325db279949"
# pybind11 before 2.12 cannot pass NumPy 2 arrays.
BUILD_REQUIREMENTS = ("pybind11==2.13.6", "setuptools==84.2.1", "wheel==0.48.0")
BUILD_ENVIRONMENT = {
    "KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_FMT": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_PYBIND11": "OFF",
    "KOMPUTE_OPT_INSTALL": "OFF",
    "KOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK": "ON",
    # Otherwise the validation layer is on wherever it is installed. VK_INSTANCE_LAYERS switches it
    # on if needed.
    "KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS": "ON",
    # kp's setup.py accepts only one digit.
    "KOMPUTE_PYTHON_NUM_PARALLEL_THREADS": str(min(9, os.cpu_count() or 1)),
}
SYSTEM_PACKAGES = {
    "vulkan/vulkan.hpp": "libvulkan-dev",
    "fmt/core.h": "libfmt-dev",
}
STOCK_SERVES = (
    "`python -m kompute_dml.toolchain kp --stock` builds kp without the fixes, which serves too, "
    "more slowly"
)


def _ask(python: str, expression: str) -> str:
    program = f"import sys, sysconfig, json; print({expression})"
    return run([python, "-I", "-c", program]).strip()


def wheel_key(python: str, stock: bool) -> str:
    """The key of a wheel: a hash of all inputs of its build."""
    content = hashlib.sha256(SDIST_SHA256.encode())
    content.update(json.dumps([BUILD_REQUIREMENTS, sorted(BUILD_ENVIRONMENT.items())]).encode())
    for patch in () if stock else patches.load():
        content.update(patch.text.encode())
    tag = _ask(python, "sysconfig.get_config_var('SOABI')")
    return f"{'stock' if stock else 'fixed'}-{tag}-{content.hexdigest()[:16]}"


def wheel(python: str = sys.executable, stock: bool = False) -> Path:
    """The wheel for the interpreter `python`. It is built if it is not in the cache."""
    folder = cache_dir("kp") / wheel_key(python, stock)
    for kept in folder.glob("kp-*.whl"):
        return kept
    kind = "as published" if stock else f"with {len(patches.load())} fixes"
    say(f"kp {VERSION} {kind}: building the wheel (a minute or two)")
    try:
        _check_requirements(python)
        with tempfile.TemporaryDirectory(prefix="kompute-dml-kp-") as scratch:
            built = _build(python, stock, Path(scratch))
            folder.mkdir(parents=True, exist_ok=True)
            # Another process may build the same wheel: move it into place in one step.
            partial = folder / f"{built.name}.{os.getpid()}"
            shutil.copyfile(built, partial)
            return partial.replace(folder / built.name)
    except ToolchainError as error:
        raise ToolchainError(f"kp {VERSION} cannot be built: {error}") from None


def install(python: str = sys.executable, stock: bool = False, folder: Path | None = None) -> bool:
    """Installs the wheel for `python`, or into `folder`, unless the same wheel is installed.

    Returns whether it was installed now.
    """
    key = wheel_key(python, stock)
    if installed_key(python, folder) == key:
        return False
    built = wheel(python, stock)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    place: list[str | Path] = [] if folder is None else ["--target", folder]
    # Without dependencies: kp's bound on NumPy is too low for this build.
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"]
    run([python, "-m", "pip", "install", *options, *place, built])
    say(f"kp {VERSION} {'as published' if stock else 'with fixes'}: installed")
    return True


def installed_key(python: str = sys.executable, folder: Path | None = None) -> str | None:
    """The key of the installed wheel for `python`; None for a kp from elsewhere."""
    program = (
        "import importlib.metadata as m, sys\n"
        "where = {'path': sys.argv[1:]} if len(sys.argv) > 1 else {}\n"
        "found = next(iter(m.distributions(name='kp', **where)), None)\n"
        "print(found and found.read_text('direct_url.json') or '{}')"
    )
    place = [] if folder is None else [folder]
    url = json.loads(run([python, "-I", "-c", program, *place])).get("url", "")
    return url.split("/")[-2] if url.count("/") > 1 else None


def _check_requirements(python: str) -> None:
    """Raises an error that lists everything that is missing."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    needed = {
        "g++": ("g++", compiler is not None),
        **{name: (name, shutil.which(name) is not None) for name in ("cmake", "make")},
        **{header: (package, _has_header(compiler, header))
           for header, package in SYSTEM_PACKAGES.items()},
    }
    version, include = json.loads(_ask(
        python, "json.dumps(['%d.%d' % sys.version_info[:2], sysconfig.get_path('include')])"
    ))
    header = Path(include, "Python.h")
    needed[str(header)] = (f"python{version}-dev", header.is_file())
    missing = {what: package for what, (package, there) in needed.items() if not there}
    if missing:
        raise ToolchainError(
            f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing; on Debian and "
            f"Ubuntu:\n  apt install {' '.join(missing.values())}"
        )


def _has_header(compiler: str | None, header: str) -> bool:
    if compiler is None:
        return Path("/usr/include", header).is_file()
    probe = subprocess.run(
        [*compiler.split(), "-E", "-x", "c++", "-"],
        input=f"#if !__has_include(<{header}>)\n#error missing\n#endif\n",
        text=True, capture_output=True,
    )  # fmt: skip
    return probe.returncode == 0


def _build(python: str, stock: bool, scratch: Path) -> Path:
    tools = scratch / "tools"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    from_index([*pip, "install", "--quiet", "--target", tools, *BUILD_REQUIREMENTS])
    env = {
        **os.environ,
        **BUILD_ENVIRONMENT,
        # kp's CMake takes the first Python on PATH, which must be this one.
        "PATH": os.pathsep.join([str(Path(python).absolute().parent), "/usr/bin", "/bin"]),
        "PYTHONPATH": str(tools),
        "pybind11_DIR": str(tools / "pybind11" / "share" / "cmake" / "pybind11"),
        "PYTHONNOUSERSITE": "1",
    }
    tree = unpack(sdist(pip, env), scratch)
    out = scratch / "out"
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    try:
        if not stock:
            patches.apply(tree, patches.load())
        run([*pip, "wheel", *options, "-w", out, tree], env=env)
    except ToolchainError as error:
        # Only build errors: a missing requirement would be missing for stock kp, too.
        raise ToolchainError(f"{error}\n{STOCK_SERVES}" if not stock else str(error)) from None
    built = next(out.glob("kp-*.whl"))
    suffix = _ask(python, "sysconfig.get_config_var('EXT_SUFFIX')")
    if f"kp{suffix}" not in zipfile.ZipFile(built).namelist():
        raise ToolchainError(f"{built.name} holds no kp{suffix}: CMake found another Python")
    return built


def from_index(command: list[str | Path], env: dict[str, str] | None = None) -> None:
    try:
        run(command, env=env)
    except ToolchainError as error:
        raise ToolchainError(f"{error}\nIs the package index reachable?") from None


def sdist(pip: list[str], env: dict[str, str]) -> Path:
    """The checked source distribution. It is downloaded if it is not in the cache."""
    folder = cache_dir("kp")
    kept = folder / f"kp-{VERSION}.tar.gz"
    if not kept.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            from_index(
                [*pip, "download", "--quiet", "--no-deps", "--no-build-isolation",
                 "--no-binary", ":all:", "-d", fresh, f"kp=={VERSION}"],
                env,
            )  # fmt: skip
            (Path(fresh) / kept.name).replace(kept)
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        kept.unlink()
        raise ToolchainError(
            f"expected {kept.name} to have the SHA-256 {SDIST_SHA256}, but got {digest}"
        )
    return kept


def unpack(sdist: Path, scratch: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch)  # checked against its digest above
    return scratch / f"kp-{VERSION}"
