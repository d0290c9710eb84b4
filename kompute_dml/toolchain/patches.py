"""The repairs of kp in `fixes/`: unified diffs, applied in the order of their names.

A file begins with the fault that it repairs. Its diff is of the source that the patches before it
leave, so every line is where the diff says, and one that is not is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .system import ToolchainError

FOLDER = Path(__file__).parent / "fixes"
_FILE = re.compile(r"^--- a/(.+)\n\+\+\+ b/\1\n", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n", re.MULTILINE)


class Patch(NamedTuple):
    name: str
    repairs: str
    """The fault, in one sentence."""
    text: str


def load(folder: Path = FOLDER) -> list[Patch]:
    """The patches in a folder, kp's by default, in the order in which they are applied."""
    patches = []
    for path in sorted(folder.glob("*.patch")):
        text = path.read_text("utf-8")
        patches.append(Patch(path.stem, " ".join(text.split("\n\n")[0].split()), text))
    return patches


def apply(tree: Path, patches: Sequence[Patch]) -> None:
    """Applies patches to the files under `tree`. Raises ToolchainError where one does not fit."""
    for patch in patches:
        _, *parts = _FILE.split(patch.text)
        if not parts:
            raise ToolchainError(f"fix {patch.name}: it changes no file")
        for file, hunks in zip(parts[::2], parts[1::2]):
            path = tree / file
            if not path.is_file():
                raise ToolchainError(f"fix {patch.name}: {file} is not in the source distribution")
            lines = path.read_text("utf-8").splitlines(keepends=True)
            try:
                changed = _changed(lines, hunks)
            except ValueError as error:
                raise ToolchainError(f"fix {patch.name}: {file}, {error}") from None
            path.write_text("".join(changed), "utf-8")


def _changed(lines: Sequence[str], hunks: str) -> list[str]:
    """The lines after a file's hunks. Raises ValueError where they are others."""
    result: list[str] = []
    done = 0
    _, *parts = _HUNK.split(hunks)
    for first, count, body in zip(parts[::3], parts[1::3], parts[2::3]):
        # A hunk that only adds names the line before.
        begin = int(first) - (count != "0")
        changes = [line for line in body.splitlines(keepends=True) if line[0] in " -+"]
        old = [line[1:] for line in changes if line[0] != "+"]
        for number, line in enumerate(old, begin):
            there = lines[number] if number < len(lines) else "the end of the file"
            if there.rstrip("\n") != line.rstrip("\n"):
                raise ValueError(f"line {number + 1}: expected {line.rstrip()!r}, but got "
                                 f"{there.rstrip()!r}")
        if len(old) != int(count or 1) or begin < done:
            raise ValueError(f"line {begin + 1}: a hunk has another length or place than it says")
        result += [*lines[done:begin], *[line[1:] for line in changes if line[0] != "-"]]
        done = begin + len(old)
    return [*result, *lines[done:]]
