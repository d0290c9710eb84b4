"""An example of what each pass changes: one module per pass, with an EXAMPLE."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Example:
    """A graph that a pass changes."""

    build: Callable[..., Any]
    """Makes an expression, or several, of those of the inputs."""
    arrays: Callable[[np.random.Generator], Arrays]
    """The inputs."""
    alone: str = ""
    """What is left out with and without the pass, because it would do the same."""
    close: float = 0.0
    """The difference of results, as a part of the largest; 0 for the same bits."""
    traits: Mapping[str, Any] = field(default_factory=dict)
    """Of a device for which the pass is."""
    needs: str = ""
    """The shader variant that the pass is for, if not all devices have it."""


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Inputs of FLOAT32."""
    return lambda rng: [rng.normal(0, 1, s).astype(np.float32) for s in shapes]


def small(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Inputs of FLOAT32 whose sums are exact in any order."""
    return lambda rng: [rng.integers(-4, 5, s).astype(np.float32) for s in shapes]


def examples() -> dict[str, Example]:
    """The examples by pass."""
    return {m.name: importlib.import_module(f"{__name__}.{m.name}").EXAMPLE
            for m in pkgutil.iter_modules(__path__)}
