"""Finds glslangValidator, and on Debian gets a newer one without installing it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .system import ToolchainError, cache_dir

PROGRAM = "glslangValidator"
# An older compiler is worth replacing: it lacks GL_KHR_cooperative_matrix.
WANTED = 14


@dataclass(frozen=True)
class Compiler:
    path: str
    version: tuple[int, ...]

    @property
    def name(self) -> str:
        return "glslang " + ".".join(map(str, self.version))


def find() -> Compiler:
    """`$GLSLANG_VALIDATOR`, else the newer one of PATH's and the private one."""
    chosen = os.environ.get("GLSLANG_VALIDATOR")
    if chosen:
        return _asked(chosen)
    private = private_dir() / "bin" / PROGRAM
    candidates = [shutil.which(PROGRAM), str(private) if private.is_file() else None]
    compilers = [_asked(path) for path in candidates if path]
    if not compilers:
        raise ToolchainError(
            f"{PROGRAM} is missing, needed to compile the shaders; on Debian and Ubuntu: "
            "apt install glslang-tools (or set GLSLANG_VALIDATOR to its path)"
        )
    return max(compilers, key=lambda compiler: compiler.version)


def private_dir() -> Path:
    return cache_dir("glslang")


def _asked(path: str) -> Compiler:
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    except OSError as error:
        raise ToolchainError(f"{path} cannot be run: {error.strerror}") from None
    version = re.search(r"Glslang Version: \d+:(\d+)\.(\d+)\.(\d+)", output)
    if version is None:
        raise ToolchainError(f"{path} does not say its version; is it {PROGRAM}?")
    return Compiler(path, tuple(map(int, version.groups())))
