"""What was measured on devices: one table by class of device, ``measured.json``.

``figures`` are what kernels estimate their time by, by shader variant, in microseconds unless a
kernel says otherwise. ``choices`` are the fastest kernels by work, as ``kompute-dml tune --table``
writes them. ``crowded`` are shader variants that have too many registers for a class, by its
compilers, as ``make vendor-compilers ARGS=--keep`` writes them. A figure that a class does not have
is that of unknown GPUs, or else Hopper's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import replaced
from ..runtime.traits import DeviceClass, DeviceTraits

FILE = Path(__file__).with_suffix(".json")
_USUAL = (DeviceClass.UNKNOWN, DeviceClass.NVIDIA_HOPPER)

Table = dict[str, dict[str, Any]]


@functools.cache
def _table() -> Table:
    table: Table = json.loads(FILE.read_text("utf-8"))
    return table


@functools.cache
def figures(kind: DeviceClass, variant: str) -> Mapping[str, float]:
    """The figures of a shader, or of one of its variants, on devices of a class. Raises KeyError if
    no class has any."""
    every = _table()["figures"]
    known = [every.get(k.value, {}).get(variant, {}) for k in (*reversed(_USUAL), kind)]
    if not any(known):
        raise KeyError(variant)
    return {name: number for table in known for name, number in table.items()}


def figure(traits: DeviceTraits, variant: str, name: str) -> float:
    """One of these figures, on a device."""
    return figures(traits.device_class, variant)[name]


def count(traits: DeviceTraits, variant: str, name: str) -> int:
    """The same of a whole number."""
    return int(figure(traits, variant, name))


@functools.cache
def crowded(kind: DeviceClass) -> frozenset[str]:
    """The shader variants whose registers spill, or leave too few subgroups, on devices of a
    class."""
    return frozenset(_table()["crowded"].get(kind.value, ()))


def roomy(kind: DeviceClass, variants: Sequence[str]) -> str:
    """The first of shader variants that is not crowded on devices of a class; without one the
    last."""
    return next((v for v in variants if v not in crowded(kind)), variants[-1])


@functools.cache
def choices(kind: DeviceClass) -> Mapping[str, str]:
    """The fastest kernels by work, on devices of a class."""
    kept: dict[str, str] = _table()["choices"].get(kind.value, {})
    return kept


def keep(path: Path, kind: DeviceClass, chosen: Mapping[str, str]) -> None:
    """Add choices of a class to a table in a file, which may not be there yet."""
    table = _in_file(path)
    table["choices"].setdefault(kind.value, {}).update(chosen)
    _write(path, table)


def keep_crowded(path: Path, kind: DeviceClass, variants: Collection[str]) -> None:
    """Replace the crowded variants of a class in a table in a file."""
    table = _in_file(path)
    table["crowded"][kind.value] = sorted(variants)
    _write(path, table)


def _in_file(path: Path) -> Table:
    table: Table = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {"figures": {}, "choices": {}, "crowded": {}, **table}


def _write(path: Path, table: Table) -> None:
    with replaced(path) as new:
        new.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", "utf-8")
