"""Which of several kernels a device does a piece of work with soonest, as was measured.

A lowering that has a choice asks :func:`pick`. Without a measurement the first of its kernels is
taken, which is always valid. ``kompute-dml tune`` measures, and keeps what it found in a file of
the user's cache directory (``KOMPUTE_DML_TUNING`` names another; empty: none). Whatever the file
says, only a kernel that the lowering offered is taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import __version__
from .layout import power_of_two
from .runtime.adapters import Adapter

_FORMAT = 1


def file() -> Path | None:
    """Where choices are kept."""
    named = os.environ.get("KOMPUTE_DML_TUNING")
    if named is not None:
        return Path(named) if named else None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "kompute_dml" / "tuning.json"


def device_key(adapter: Adapter) -> str:
    """Choices hold for one device with one driver, and for the kernels of one version."""
    return f"{adapter.name}, {adapter.driver} {adapter.driver_version}, kompute_dml {__version__}"


def work_key(kind: str, *sizes: int) -> str:
    """Work of one kind whose sizes have the same next power of two shares a choice."""
    return " ".join([kind, *(str(power_of_two(size)) for size in sizes)])


@dataclass
class Trial:
    """Choices that are tried out, and what was asked meanwhile."""

    forced: Mapping[str, str]
    asked: dict[str, list[str]] = field(default_factory=dict)
    """The kernels offered, by the work's key."""


_trial: Trial | None = None


@contextlib.contextmanager
def trial(forced: Mapping[str, str]) -> Iterator[Trial]:
    """Inside, every lowering takes ``forced`` kernels, by the work's key, else the first."""
    global _trial
    before, _trial = _trial, Trial(forced)
    try:
        yield _trial
    finally:
        _trial = before


def pick(device: str, work: str, names: Sequence[str]) -> int:
    """The index among the kernels' ``names`` of the one to take on a device, by its key."""
    if _trial is not None:
        _trial.asked[work] = list(names)
        chosen = _trial.forced.get(work)
    else:
        chosen = _load(file()).get(device, {}).get(work)
    return names.index(chosen) if chosen in names else 0


@functools.lru_cache(maxsize=1)
def _load(path: Path | None) -> dict[str, dict[str, str]]:
    """Choices by device and work; none where the file is not one of ours."""
    if path is None:
        return {}
    try:
        kept = json.loads(path.read_text())
        if kept["format"] != _FORMAT:
            return {}
        return {str(d): dict(works) for d, works in kept["devices"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def keep(adapter: Adapter, choices: Mapping[str, str]) -> Path | None:
    """Add to a device's choices in the file. Where there is none, nothing is kept."""
    path = file()
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        _load.cache_clear()
        devices = _load(path)
        devices.setdefault(device_key(adapter), {}).update(choices)
        # A reader finds the old file or the new one, never a part.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False) as new:
            json.dump({"format": _FORMAT, "devices": devices}, new, indent=1, sort_keys=True)
        os.replace(new.name, path)
    return path


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other thread or process is inside: each may be tuning a device of its own."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
