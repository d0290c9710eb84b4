"""Passes over a graph's operators, which make one of several. Each registers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .node import Nodes

_Run = Callable[[Nodes], None]


class Rewrite(NamedTuple):
    """A pass. Passes run by ascending ``order``."""

    order: int
    name: str
    """Its name as a switch."""
    summary: str
    """What it does, for users."""
    run: _Run


REWRITES: dict[str, Rewrite] = {}
"""The passes by name, in the order in which they run."""


def rewrite(name: str, summary: str, order: int) -> Callable[[_Run], _Run]:
    """Register a function as a pass. It fuses two operators only if nothing else reads the value
    between them."""
    def register(run: _Run) -> _Run:
        assert name not in REWRITES and all(order != r.order for r in REWRITES.values()), name
        known = sorted((*REWRITES.values(), Rewrite(order, name, summary, run)))
        REWRITES.clear()
        REWRITES.update((r.name, r) for r in known)
        return run

    return register
