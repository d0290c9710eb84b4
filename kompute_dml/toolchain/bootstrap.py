"""Sets up a checkout for a job, and prints what it does: `python3 bootstrap.py demo`.

It runs with a bare system Python. A step is skipped if its result exists.
"""

from __future__ import annotations

import os
import sys

if not (3, 10) <= sys.version_info[:2] <= (3, 14):
    sys.exit(
        f"Python 3.10 to 3.14 is needed, this is {sys.version.split()[0]}: "
        "set PYTHON, as in `make demo PYTHON=python3.12`"
    )
# Run by path: replace this folder by the one that contains the package.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolchain import codes, debian, drivers, glslang, kp, side_by_side, spirv
from toolchain.system import ToolchainError, cache_dir, run, run_aloud, say, unavailable

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "kompute-dml.json"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
LAYER = "/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json"
KP_STOCK = os.environ.get("KOMPUTE_DML_KP") == "stock"


@dataclass(frozen=True)
class Job:
    """The needs of a job besides kp, the shaders and a Vulkan driver."""

    extras: tuple[str, ...] = ()
    tests: bool = False
    site: bool = False
    """The pages only, for which nothing is compiled."""
    takes: str = ""
    """How long it takes on two cores, for the first line."""


JOBS = {
    "demo": Job(("demo",), takes="some five minutes the first time, then about one"),
    "bench": Job(("demo",)),
    "docs": Job(site=True),
    "lint": Job(("dev",)),
    "test": Job(("dev",), tests=True, takes="half an hour to an hour"),
    "validate": Job(("dev",), tests=True),
}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in JOBS:
        return _fail(f"usage: bootstrap.py {' | '.join(JOBS)}")
    job = JOBS[sys.argv[1]]
    if job.takes:
        say(f"make {sys.argv[1]}: {job.takes} on two cores")
    steps: list[tuple[str, Callable[[Job], bool]]] = [
        ("system packages", system_packages),
        (".venv", virtual_environment),
        ("newer glslang", newer_glslang),
        ("shaders", shaders),  # pip would compile them, too, but shows no progress
        ("Python packages", python_packages),
        ("kp", install_kp),
    ]
    if job.site:
        steps = [*steps[:2], ("mkdocs", site_generator)]
    if job.tests:
        steps += [("stock kp", stock_kp), ("kp of the wheel", wheel_kp),
                  ("SwiftShader", swiftshader), ("models", sample_models),
                  ("PyTorch", cpu_torch)]
    skipped = []
    try:
        for name, step in steps:
            if not step(job):
                skipped.append(name)
    except (ToolchainError, OSError) as error:
        return _fail(str(error))
    if skipped:
        say(f"up to date: {', '.join(skipped)}")
    return 0


def _fail(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1


def system_packages(job: Job) -> bool:
    """Installs missing system packages with apt."""
    missing = sorted({package for package, there in _probes(job) if not there})
    if not missing:
        return False
    wanted = f"{' '.join(missing)} (names of Debian and Ubuntu packages)"
    if shutil.which("apt-get") is None:
        raise ToolchainError(f"missing, and there is no apt-get to get it: {wanted}")
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    if prefix and shutil.which("sudo") is None:
        raise ToolchainError(f"missing, and this is neither root nor is there sudo: {wanted}")
    say(f"system packages: installing {' '.join(missing)}")
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        try:
            run_aloud([*apt, *words], ("Get:", "Setting up"))
        except ToolchainError as error:
            raise ToolchainError(f"{error}\nmissing: {wanted}") from None
    still = sorted({package for package, there in _probes(job) if not there})
    if still:
        raise ToolchainError(f"missing, though apt-get succeeded: {' '.join(still)}")
    return True


def _probes(job: Job) -> list[tuple[str, bool]]:
    """(system package, whether its contents are installed)."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    venv = (f"python{version}-venv", importlib.util.find_spec("ensurepip") is not None)
    if job.site:
        return [venv]
    python_header = Path(sysconfig.get_path("include"), "Python.h")
    libraries = run(["ldconfig", "-p"], env={**os.environ, "PATH": "/sbin:/usr/sbin:/bin"})
    probes = [
        ("libvulkan1", "libvulkan.so.1" in libraries),
        ("mesa-vulkan-drivers", drivers.lavapipe() is not None),
        ("glslang-tools", _has_program("GLSLANG_VALIDATOR", glslang.PROGRAM)),
        venv,
        (f"python{version}-dev", python_header.is_file()),
        ("g++", _has_program("CXX", "g++")),
        ("make", _has_program("", "make")),
        ("cmake", _has_program("", "cmake")),
        *(
            (package, Path("/usr/include", h).is_file())
            for h, package in kp.SYSTEM_PACKAGES.items()
        ),
    ]
    if job.tests:
        probes += [
            ("vulkan-validationlayers", Path(LAYER).is_file()),
            ("spirv-tools", _has_program("", "spirv-val")),
        ]
        if shutil.which("apt-get"):  # elsewhere tests of their completion are left out
            probes += [(shell, _has_program("", shell)) for shell in ("fish", "zsh")]
    return probes


def _has_program(variable: str, name: str) -> bool:
    return bool(os.environ.get(variable)) or shutil.which(name) is not None


def virtual_environment(_: Job) -> bool:
    """Makes `.venv` for this Python version."""
    here = "{}.{}".format(*sys.version_info[:2])
    program = "import sys; print('{}.{}'.format(*sys.version_info[:2]))"
    # `activate` is written last, after pip. Without it the creation was interrupted.
    whole = (VENV / "bin" / "activate").is_file()
    try:
        if whole and run([VENV_PYTHON, "-c", program]).strip() == here:
            return False
    except ToolchainError:
        pass  # its Python is gone
    say(f".venv: making a virtual environment with Python {here}")
    shutil.rmtree(VENV, ignore_errors=True)
    run([sys.executable, "-m", "venv", VENV])
    return True


def newer_glslang(_: Job) -> bool:
    """Gets a newer glslang if the system's lacks cooperative matrices."""
    compiler = glslang.find()
    if compiler.version[0] >= glslang.WANTED or unavailable("glslang").is_file():
        return False
    say(f"newer glslang: {compiler.name} is older than {glslang.WANTED}, getting one privately")
    try:
        debian.newer_glslang(glslang.private_dir())
    except ToolchainError as error:
        _do_without("glslang", "shaders that need a newer one are left out", error)
    return True


def _do_without(name: str, consequence: str, error: ToolchainError) -> None:
    file = unavailable(name)
    say(f"{name}: not available, {consequence}; remove {file} to try again ({error})")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(str(error))


def python_packages(job: Job) -> bool:
    """Installs the project, editable, with its dependencies from the package index."""
    wanted = (ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()
    project = hashlib.sha256(wanted).hexdigest()
    try:
        stamp = json.loads(STAMP.read_text())
    except (FileNotFoundError, ValueError):
        stamp = {}
    have = set(stamp.get("extras", ())) if stamp.get("project") == project else set()
    if have >= set(job.extras) or "dev" in have:
        return False
    extras = sorted(have | set(job.extras))
    say(f"Python packages: installing kompute-dml[{','.join(extras)}], editable")
    _install("--constraint", CONSTRAINTS, "--editable", f"{ROOT}[{','.join(extras)}]")
    STAMP.write_text(json.dumps({"project": project, "extras": extras}))
    return True


def _install(*what: str | Path) -> None:
    pip = [VENV_PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run_aloud([*pip, "install", "--progress-bar", "off", *what],
              ("Collecting", "Processing", "Building", "Installing"))


def site_generator(_: Job) -> bool:
    """mkdocs with its theme, which make the site."""
    if _is_importable("material"):
        return False
    say("mkdocs: installing mkdocs-material")
    _install("--constraint", CONSTRAINTS, "mkdocs-material>=9.6,<10")
    return True


def _is_importable(package: str) -> bool:
    """Whether .venv has a package."""
    known = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
    return subprocess.run([VENV_PYTHON, "-c", known]).returncode == 0


def install_kp(_: Job) -> bool:
    return kp.install(str(VENV_PYTHON), stock=KP_STOCK)


def stock_kp(_: Job) -> bool:
    """kp as published, beside the environment: a folder for PYTHONPATH."""
    return kp.install(str(VENV_PYTHON), stock=True, folder=cache_dir("kp-stock") / "site")


def wheel_kp(_: Job) -> bool:
    """kp as the wheel holds it. It is compiled here, where no tests run beside it."""
    version = "{}.{}".format(*sys.version_info[:2])
    if side_by_side.module(version).is_file():
        return False
    program = f"from kompute_dml.toolchain import side_by_side as s; s.modules(['{version}'])"
    run_aloud([VENV_PYTHON, "-c", program], ("kp for",))
    return True


def shaders(_: Job) -> bool:
    report = spirv.build()
    codes.write()
    if report.compiled or report.removed:
        say(str(report))
        return True
    return False


def swiftshader(_: Job) -> bool:
    """The second driver that the tests run on."""
    if drivers.swiftshader() is not None or unavailable("SwiftShader").is_file():
        return False
    say("SwiftShader: getting it out of chromium-common")
    try:
        debian.swiftshader(cache_dir("swiftshader"))
    except ToolchainError as error:
        _do_without("SwiftShader", "its tests will be left out", error)
    return True


def sample_models(_: Job) -> bool:
    """A package with a model for the tests, without its dependencies."""
    package, version = "rapidocr", "3.10.0"
    if unavailable(package).is_file():
        return False
    if _is_importable(package):
        return False
    say(f"models: installing {package}, without its dependencies")
    try:
        _install("--no-deps", f"{package}=={version}")
    except ToolchainError as error:
        _do_without(package, "its tests will be left out", error)
    return True


def cpu_torch(_: Job) -> bool:
    """A build of PyTorch for the CPU, in a folder of its own: the other tests run without it."""
    folder = cache_dir("torch")
    if folder.is_dir() or unavailable("PyTorch").is_file():
        return False
    say("PyTorch: installing a build for the CPU, in a folder of its own")
    part = folder.with_suffix(".part")  # an installation that is cut short leaves no folder
    shutil.rmtree(part, ignore_errors=True)
    try:
        _install("--constraint", CONSTRAINTS, "--no-compile", "--target", part,
                 f"torch=={_cpu_build()}", "expecttest")
        part.rename(folder)
    except ToolchainError as error:
        _do_without("PyTorch", "its tests will be left out", error)
    return True


def _cpu_build() -> str:
    """The newest release of PyTorch that an index or a folder of pip's has for the CPU alone.

    Those of PyPI bring CUDA: 0.5 GB, and some GB of libraries.
    """
    known = run([VENV_PYTHON, "-m", "pip", "index", "versions", "torch"])
    releases = re.findall(r"[\w.]+\+cpu\b", known)
    if not releases:
        raise ToolchainError("pip knows builds with CUDA only")
    return str(releases[0])


if __name__ == "__main__":
    sys.exit(main())
