"""Which sizes of a graph's inputs may vary, and how they depend on each other."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ..layout import Ints


@dataclass(frozen=True, eq=False)
class SizePattern:
    """Which sizes of a graph's inputs are the same, or follow from variables."""

    shapes: tuple[tuple[int | tuple[int, int], ...], ...]
    """Each size: a number, or a variable's number and what is added to it."""
    values: Ints
    """The variables' values for now."""

    def over(self, variables: Ints) -> list[Ints]:
        """The shapes, of these variables."""
        return [tuple([n if isinstance(n, int) else variables[n[0]] + n[1]
                       for n in shape]) for shape in self.shapes]

    @functools.cached_property
    def _each_once(self) -> dict[tuple[int | tuple[int, int], ...], int]:
        """The different shapes. Caches of many layers have the same."""
        return {shape: i for i, shape in enumerate(dict.fromkeys(self.shapes))}

    @functools.cached_property
    def _which(self) -> list[int]:
        """Of each input, which of the different shapes it has."""
        return [self._each_once[shape] for shape in self.shapes]

    @functools.cached_property
    def _firsts(self) -> list[tuple[int, int, int]]:
        """Where each variable comes first: input, dimension, and what is added to it."""
        firsts: dict[int, tuple[int, int, int]] = {}
        for i, shape in enumerate(self.shapes):
            for d, n in enumerate(shape):
                if not isinstance(n, int):
                    firsts.setdefault(n[0], (i, d, n[1]))
        return [firsts[variable] for variable in range(len(self.values))]

    def read(self, shapes: Sequence[Ints]) -> list[int] | None:
        """The variables' values for these sizes. None if they are not of this pattern."""
        if any(len(shapes[i]) <= d for i, d, _ in self._firsts):
            return None
        values = [shapes[i][d] - more for i, d, more in self._firsts]
        each = [tuple([n if isinstance(n, int) else values[n[0]] + n[1] for n in shape])
                for shape in self._each_once]
        return values if [each[i] for i in self._which] == [*shapes] else None
