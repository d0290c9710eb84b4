"""Which sizes of a graph's inputs may vary, and how they depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..layout import Ints


class SizePattern(NamedTuple):
    """Which sizes of a graph's inputs are the same, or follow from variables."""

    shapes: tuple[tuple[int | tuple[int, int], ...], ...]
    """Each size: a number, or a variable's number and what is added to it."""
    values: Ints
    """The variables' values for now."""

    def over(self, variables: Ints) -> list[Ints]:
        """The shapes, of these variables."""
        return [tuple([n if isinstance(n, int) else variables[n[0]] + n[1]
                       for n in shape]) for shape in self.shapes]

    def read(self, shapes: Sequence[Ints]) -> list[int] | None:
        """The variables' values for these sizes. None if they are not of this pattern."""
        values: list[int | None] = [None] * len(self.values)
        for sizes, shape in zip(shapes, self.shapes):
            if len(sizes) != len(shape):
                return None
            for n, known in zip(sizes, shape):
                if isinstance(known, int):
                    if n != known:
                        return None
                    continue
                i, more = known
                if values[i] is None:
                    values[i] = n - more
                elif values[i] != n - more:
                    return None
        return values  # type: ignore[return-value]  # each variable has a size
