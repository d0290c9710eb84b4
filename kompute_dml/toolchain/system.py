"""Runs programs, and reports what is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .folders import user_cache

PACKAGE = Path(__file__).resolve().parents[1]
SILENT_SECONDS = 10.0


class ToolchainError(RuntimeError):
    """A build failed. The text names what is missing and how to get it."""


def checkout() -> Path | None:
    """The folder of the source checkout; None in an installed package."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "shaders").is_dir() else None


def needed_checkout() -> Path:
    """The folder of the source checkout. Raises ToolchainError in an installed package."""
    root = checkout()
    if root is None:
        raise ToolchainError("this works in a source checkout only, and there is none")
    return root


def cache_dir(name: str) -> Path:
    """The cache folder: `.cache/` of a checkout, else the user's."""
    root = checkout()
    if root is not None:
        return root / ".cache" / name
    return user_cache() / name


def unavailable(name: str) -> Path:
    """The file that notes that this cannot be had here, and why."""
    return cache_dir(f"{name}-unavailable")


def say(text: str) -> None:
    print(text, flush=True)


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Runs a program quietly and returns its output. A failure raises with the end of the
    output."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError:
        raise ToolchainError(f"{words[0]} is not installed") from None
    except OSError as error:
        raise ToolchainError(f"{words[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise ToolchainError(f"`{' '.join(words)}` failed ({done.returncode}):\n{tail}")
    return done.stdout


class Progress:
    """Shows how far something is: in one line of a terminal, else in a line every ten seconds."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def show(self, text: str) -> None:
        """Show ``text`` in the place of what was shown before."""
        now = time.monotonic()
        if sys.stdout.isatty():
            columns = shutil.get_terminal_size().columns
            print(f"\r\033[K  {text}"[:columns + 3], end="", flush=True)
        elif now - self._last >= SILENT_SECONDS:
            self._last = now
            say(f"  {now - self._start:.0f} s: {text}")

    def end(self) -> None:
        """Remove what is shown."""
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)


def run_aloud(command: Sequence[str | Path], shown: tuple[str, ...]) -> None:
    """As :func:`run`, but shows the lines that begin with one of ``shown`` as its progress."""
    words = [str(word) for word in command]
    lines: list[str] = []
    progress = Progress()
    with subprocess.Popen(
        words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.lstrip().startswith(shown):
                progress.show(line.strip())
    progress.end()
    if process.returncode:
        tail = "\n".join(lines[-25:])
        raise ToolchainError(f"`{' '.join(words)}` failed ({process.returncode}):\n{tail}")


def require_program(name: str, package: str, purpose: str) -> str:
    """The path of a program. Raises an error that names its system package if it is missing."""
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(
            f"{name} is missing, needed {purpose}; on Debian and Ubuntu: apt install {package}"
        )
    return path
