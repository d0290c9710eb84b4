"""Builds the small C library that ONNX Runtime loads as an execution provider."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .system import PACKAGE, ToolchainError, checkout, run

SOURCE = PACKAGE / "onnxruntime" / "provider.c"
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


def library(folder: Path = SOURCE.parent, suffix: str = _SUFFIX) -> Path:
    """The path of the library."""
    return folder / f"libkompute_dml_provider{suffix}"


def compiler() -> str | None:
    """The C compiler: ``CC``, or the first one that is found."""
    candidates = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((path for name in candidates if name and (path := shutil.which(name))), None)


def build(folder: Path = SOURCE.parent, command: Sequence[str | Path] = (),
          suffix: str = _SUFFIX) -> Path:
    """Compile the library into ``folder`` unless it is newer than its source.

    ``command`` compiles instead of the compiler that is found, for a system whose libraries end
    with ``suffix``.
    """
    target = library(folder, suffix)
    # Where a wheel was installed, the times of files say nothing.
    installed = checkout() is None
    if target.is_file() and (installed or target.stat().st_mtime >= SOURCE.stat().st_mtime):
        return target
    if not command and (cc := compiler()) is not None:
        command = [cc] if sys.platform == "win32" else [cc, "-fPIC"]
    if not command:
        raise ToolchainError(
            "a C compiler is missing, needed for the ONNX Runtime provider; "
            "on Debian and Ubuntu: apt install gcc"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # In a folder of its own: for Windows a linker writes more files beside it.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        linked = Path(scratch) / target.name
        # Otherwise a library of macOS says where it was linked.
        named = [f"-Wl,-install_name,@rpath/{target.name}"] if suffix == ".dylib" else []
        run([*command, "-O2", "-shared", "-fvisibility=hidden", *named, SOURCE, "-o", linked])
        linked.replace(target)
    return target
