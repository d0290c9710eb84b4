"""The fastest kernel for some work on a device, by measurement.

A lowering with several kernels calls :func:`pick`. Without a measurement it gets the first kernel.
``kompute-dml tune`` measures, and stores choices in a file in the user's cache directory
(``KOMPUTE_DML_TUNING`` names another one; empty: none). A lowering only gets kernels that it
offers, whatever the file contains.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import __version__
from .layout import power_of_two
from .runtime.adapters import Adapter
from .toolchain.folders import user_cache

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FORMAT = 1


def file() -> Path | None:
    """The file of choices."""
    return _named(os.environ.get("KOMPUTE_DML_TUNING"), os.environ.get("XDG_CACHE_HOME"))


@functools.lru_cache(maxsize=1)
def _named(named: str | None, cache: str | None) -> Path | None:
    """The file while the environment has these values."""
    if named is not None:
        return Path(named) if named else None
    return user_cache() / "tuning.json"


def device_key(adapter: Adapter) -> str:
    """The key of a device. Choices are valid for one device, driver and version of the package."""
    return f"{adapter.name}, {adapter.driver} {adapter.driver_version}, kompute_dml {__version__}"


def work_key(kind: str, *sizes: int) -> str:
    """The key of some work. Work of one kind shares a choice if its sizes round up to the same
    powers of two."""
    return " ".join([kind, *(str(power_of_two(size)) for size in sizes)])


@dataclass
class Trial:
    """Choices under trial, and the choices that lowerings ask for meanwhile."""

    forced: Mapping[str, str]
    asked: dict[str, list[str]] = field(default_factory=dict)
    """The offered kernels, by the work's key."""


_trial: Trial | None = None


@contextlib.contextmanager
def trial(forced: Mapping[str, str]) -> Iterator[Trial]:
    """Inside the block, lowerings get ``forced`` kernels by the work's key, else the first one."""
    global _trial
    before, _trial = _trial, Trial(forced)
    try:
        yield _trial
    finally:
        _trial = before


def choices() -> object:
    """What :func:`pick` goes by at present: another object once it may choose otherwise."""
    return _load(file()) if _trial is None else _trial


def has(device: str, work: str) -> bool:
    """Whether :func:`pick` may choose another kernel than the first, or is watched."""
    return _trial is not None or work in _load(file()).get(device, ())


def pick(device: str, work: str, names: Sequence[str]) -> int:
    """The index of the chosen kernel among ``names``, on the device of a key."""
    if _trial is not None:
        _trial.asked[work] = list(names)
        chosen = _trial.forced.get(work)
    else:
        chosen = _load(file()).get(device, {}).get(work)
    return names.index(chosen) if chosen in names else 0


@functools.lru_cache(maxsize=1)
def _load(path: Path | None) -> dict[str, dict[str, str]]:
    """Choices by device and work; none if the file is not valid."""
    if path is None:
        return {}
    try:
        kept = json.loads(path.read_text("utf-8"))
        if kept["format"] != _FORMAT:
            return {}
        return {str(d): dict(works) for d, works in kept["devices"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def keep(adapter: Adapter, choices: Mapping[str, str]) -> Path | None:
    """Add choices of a device to the file, if there is one. Returns its path."""
    path = file()
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        _load.cache_clear()
        devices = _load(path)
        devices.setdefault(device_key(adapter), {}).update(choices)
        # Readers see the old file or the new one, never a part.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".json", delete=False, encoding="utf-8"
        ) as new:
            json.dump({"format": _FORMAT, "devices": devices}, new, indent=1, sort_keys=True)
        os.replace(new.name, path)
    return path


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Exclude other threads and processes, which may tune other devices."""
    if sys.platform == "win32":
        # Windows locks bytes of files, and opens no folder. Closing unlocks them.
        opened = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    else:
        opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            if sys.platform == "win32":
                msvcrt.locking(opened, msvcrt.LK_LOCK, 1)
            else:
                fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
