"""Builds the one wheel that needs no compiler: shaders, provider library and kp side by side."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import native, side_by_side
from .system import needed_checkout, run, say
from .targets import HERE, TARGETS

CONTENT = "KOMPUTE_DML_WHEEL_CONTENT"
"""Tells the build hook which folder goes into the package as it is: `_kp` and the provider's
library. The checkout's own library may need a newer C library, and its kp is the installed one."""
PYTHONS = "KOMPUTE_DML_WHEEL_PYTHONS"
"""Tells the build hook the wheel's tag of the CPythons that it has kp for, so that pip installs it
for no other."""


def build(out: Path, versions: Sequence[str] = (), target: str = HERE) -> Path:
    """The wheel for one of TARGETS, in `out`: with kp for `versions`, or for all that there are.

    Raises ToolchainError where it cannot have kp for all of them.
    """
    described = TARGETS[target]
    versions = versions or described.versions
    with tempfile.TemporaryDirectory(prefix="kompute-dml-wheel-") as name:
        scratch = Path(name)
        content = scratch / "content"
        side_by_side.build(versions, content / "_kp", target)
        native.build(
            content / "onnxruntime", side_by_side.compiler("cc", target), described.library)
        # The second is how Python is told of a machine that it does not run on.
        plain = _build("--wheel", "", scratch / "plain", **{
            CONTENT: str(content), PYTHONS: tag(versions),
            "_PYTHON_HOST_PLATFORM": described.platform})
        built = _named_by_symbols(plain, scratch) if described.system == "linux" else plain
        out.mkdir(parents=True, exist_ok=True)
        machine = described.platform.rsplit("-", 1)[-1]
        for old in out.glob(f"kompute_dml-*_{machine}.whl"):
            old.unlink()
        wheel = Path(shutil.copy(built, out))
    say(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB), with kp for CPython "
        f"{', '.join(versions)}")
    return wheel


def _named_by_symbols(wheel: Path, scratch: Path) -> Path:
    """A wheel for Linux under the name of the C library that it needs."""
    run([sys.executable, "-m", "auditwheel", "repair", "--exclude", "libvulkan.so.1",
         "-w", scratch / "repaired", wheel], env=_environment())
    (repaired,) = (scratch / "repaired").glob("*.whl")
    return repaired


def tag(versions: Sequence[str]) -> str:
    """The part of a wheel's name for these CPythons."""
    return ".".join("cp" + version.replace(".", "") for version in versions)


def provider(out: Path) -> Path:
    """The thin wheel under the name that ONNX Runtime's plugins have, in `out`."""
    return _build("--wheel", "packages/onnxruntime-ep-kompute", out)


def sdist(out: Path) -> Path:
    """The source distribution, in `out`."""
    return _build("--sdist", "", out)


def _build(kind: str, project: str, out: Path, **env: str) -> Path:
    """What PEP 517's front end makes of a project of the checkout."""
    root = needed_checkout()
    with tempfile.TemporaryDirectory(prefix="kompute-dml-build-") as scratch:
        run([sys.executable, "-m", "build", kind, "--no-isolation", "-o", scratch,
             root / project],
            env={**_environment(), **env})
        (built,) = Path(scratch).iterdir()
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, out))


def _environment() -> dict[str, str]:
    tools = side_by_side.tools()
    return {**os.environ, "PYTHONPATH": str(tools),
            "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
