"""Measuring the kernels that lowerings choose from, for :mod:`kompute_dml.tuning` to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import tuning
from .case import Case, Recipe, Scale
from .products import Product, product
from .rows import run_case
from .timing import Loop

_WORTH = 1.03
"""A kernel replaces the first one if it is so many times as fast: less may be noise."""


@dataclass(frozen=True)
class Choice:
    """What was measured of one piece of work."""

    case: Case
    work: str
    ms: dict[str, float]
    """By kernel, the default first. A kernel whose values are wrong is not among them."""
    wrong: dict[str, str]
    """What is wrong with the values of the others."""

    @property
    def best(self) -> str:
        first = next(iter(self.ms))
        best = min(self.ms, key=lambda name: self.ms[name])
        return best if self.ms[first] / self.ms[best] >= _WORTH else first


def recipes() -> Iterator[Recipe]:
    """The products whose sizes are tuned, at full scale."""
    for along in (True, False):
        kind = Product(b_along_k=along, full=True)
        for m in (1, 4, 16, 128, 512, 2048):
            for k, n in ((1024, 1024), (4096, 4096), (4096, 16384), (16384, 4096)):
                yield product(kind, m, k, n)


def choices(
    device: Any, recipe: Recipe, scale: Scale, loop: Loop | None = None
) -> Iterator[Choice]:
    """Each kernel's time, for each choice that a case's lowering has."""
    for case in recipe.make(device, scale):
        device._compiled.clear()
        with tuning.trial({}) as first:
            case.dispatch()
        for work, names in first.asked.items():
            times: dict[str, float] = {}
            wrong: dict[str, str] = {}
            for name in names if len(names) > 1 else ():
                device._compiled.clear()
                with tuning.trial({work: name}):
                    row = run_case(device, case, loop)
                if row.ok and row.ms:
                    times[name] = row.ms
                else:
                    wrong[name] = row.values
            if times:
                yield Choice(case, work, times, wrong)
    device._compiled.clear()  # what was compiled with other kernels than from now on
