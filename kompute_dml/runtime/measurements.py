"""What was measured of drivers: traits that are true or false (:class:`.traits.DeviceTraits`).

A driver is measured once. The answers are kept in the user's cache folder. Without such a folder
each process measures it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from ..files import replaced
from . import pipeline_file

_unkept: dict[str, dict[str, bool]] = {}
"""What this process measured of drivers, where there is no folder."""


def file() -> Path | None:
    """Where measurements are kept; None for nowhere."""
    where = pipeline_file.folder()
    return where and where / "units.json"


def known(driver: str) -> dict[str, bool]:
    """The traits that were measured of a driver."""
    path = file()
    row = _unkept.get(driver) if path is None else _kept(path).get(driver)
    return {trait: is_so for trait, is_so in row.items() if isinstance(is_so, bool)} if (
        isinstance(row, dict)) else {}


def keep(driver: str, **traits: bool) -> None:
    """Keep measured traits: in the folder if it can be written, without one for this process."""
    path, row = file(), {**known(driver), **traits}
    if path is None:
        _unkept[driver] = row
        return
    with contextlib.suppress(OSError), replaced(path) as new:
        new.write_text(json.dumps({**_kept(path), driver: row}, indent=1), "utf-8")


def _kept(path: Path) -> Mapping[str, object]:
    with contextlib.suppress(OSError, ValueError):
        table = json.loads(path.read_text("utf-8"))
        return table if isinstance(table, dict) else {}
    return {}
