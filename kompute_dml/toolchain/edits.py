"""Anchored edits of a source tree.

An edit names a file, a short text (the anchor) that the file contains an exact number of times, and
a change there. All anchors are looked up in the unedited text, so the edits of several fixes are
independent of one another and of their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .system import ToolchainError


@dataclass(frozen=True)
class Edit:
    file: str
    anchor: str
    text: str
    times: int = 1
    #: "replace" replaces the anchor. "after" and "before" keep it.
    place: str = "replace"

    def span(self, start: int) -> tuple[int, int]:
        end = start + len(self.anchor)
        return {"before": (start, start), "after": (end, end), "replace": (start, end)}[self.place]


def after(file: str, anchor: str, text: str, times: int = 1) -> Edit:
    return Edit(file, anchor, text, times, "after")


def before(file: str, anchor: str, text: str, times: int = 1) -> Edit:
    return Edit(file, anchor, text, times, "before")


def replace(file: str, anchor: str, text: str, times: int = 1) -> Edit:
    return Edit(file, anchor, text, times)


def _positions(source: str, anchor: str) -> list[int]:
    found, at = [], source.find(anchor)
    while at >= 0:
        found.append(at)
        at = source.find(anchor, at + len(anchor))
    return found


def edited(source: str, edits: Iterable[tuple[str, Edit]]) -> str:
    """The text after the (fix name, edit) pairs."""
    spans = []
    for fix, edit in edits:
        positions = _positions(source, edit.anchor)
        if len(positions) != edit.times:
            raise ToolchainError(
                f"fix {fix}: expected {edit.anchor!r} {edit.times} times in {edit.file}, "
                f"but found it {len(positions)} times"
            )
        spans += [(*edit.span(at), fix, edit.text) for at in positions]
    spans.sort(key=lambda span: span[:2])
    parts, done, owner = [], 0, ""
    for start, end, fix, text in spans:
        if start < done:
            raise ToolchainError(f"fixes {owner} and {fix} edit the same text")
        parts += [source[done:start], text]
        done, owner = end, fix
    return "".join([*parts, source[done:]])


def apply(tree: Path, fixes: dict[str, list[Edit]]) -> None:
    """Applies {fix name: edits} to the files under `tree`."""
    by_file: dict[str, list[tuple[str, Edit]]] = {}
    for fix, edits in fixes.items():
        for edit in edits:
            by_file.setdefault(edit.file, []).append((fix, edit))
    for file, pairs in by_file.items():
        path = tree / file
        if not path.is_file():
            raise ToolchainError(f"fix {pairs[0][0]}: {file} is not in the source distribution")
        path.write_text(edited(path.read_text(encoding="utf-8"), pairs), encoding="utf-8")
