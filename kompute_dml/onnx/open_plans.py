"""The plans of a region that serve many sizes, and which sizes those are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..graph.open_plan import OpenPlan
from ..graph.recorded import RecordedPlan
from ..graph.size_pattern import SizePattern
from ..layout import Ints

MAX_OPEN = 8
"""The most plans for many sizes of a region. The least recently used one is dropped."""


class OpenPlans:
    """The plans of a region for many sizes."""

    def __init__(self) -> None:
        self._last: Sequence[Ints] | None = None
        """The sizes of the last call, ..."""
        self._vary: set[tuple[int, int]] = set()
        """... and what sizes have changed so far: (input, dimension)."""
        self._plans: list[tuple[SizePattern, Hashable, OpenPlan]] = []
        """The last used one first."""
        self._said: set[str] = set()
        self.declined: dict[Hashable, str] = {}
        """Patterns for which there is no such plan, and why."""

    @property
    def plans(self) -> list[OpenPlan]:
        """All of them."""
        return [plan for _, _, plan in self._plans]

    def at(self, shapes: Sequence[Ints], more: Hashable) -> RecordedPlan | None:
        """The plan for these sizes, if there is one. ``more`` is what else it depends on."""
        for i, (pattern, known, opened) in enumerate(self._plans):
            if known == more and (values := pattern.read(shapes)) is not None:
                plan = opened.at(values)
                if plan is not None:
                    self._plans.insert(0, self._plans.pop(i))
                    return plan
        return None

    def serves(self, pattern: SizePattern, values: Sequence[int]) -> bool:
        """Whether a plan serves these values of a pattern's variables."""
        return any(opened.serves(values) for known, _, opened in self._plans
                   if known.shapes == pattern.shapes)

    def pattern(self, shapes: Sequence[Ints]) -> SizePattern | None:
        """The pattern of these sizes and of those before. None if no other ones came so far."""
        last, self._last = self._last, [*shapes]
        if last is None or any(len(a) != len(b) for a, b in zip(last, shapes)):
            return None
        places = [(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))]
        self._vary.update((i, d) for i, d in places if last[i][d] != shapes[i][d])
        variables: list[tuple[int, int]] = []
        written: list[list[int | tuple[int, int]]] = [[*shape] for shape in shapes]
        for i, d in places:
            if (i, d) not in self._vary:
                continue
            now, before = shapes[i][d], last[i][d]
            for k, (n, m) in enumerate(variables):
                if now - n == before - m and now != before:
                    written[i][d] = k, now - n
                    break
            else:
                variables.append((now, before))
                written[i][d] = len(variables) - 1, 0
        if not variables:
            return None
        return SizePattern(tuple(map(tuple, written)), tuple(n for n, _ in variables))

    def reasons(self) -> list[str]:
        """What keeps plans from serving all sizes, each said once."""
        lines = [f"no plan for many sizes: {why}" for why in self.declined.values()]
        for plan in self.plans:
            lines += [f"lowered anew for each size: {why}" for why in plan.sized]
            lines += [f"{label or 'the graph'}: {place} takes {expression} as a number"
                      for expression, place, label in plan.settled]
        new = [line for line in dict.fromkeys(lines) if line not in self._said]
        self._said.update(new)
        return new

    def add(self, pattern: SizePattern, more: Hashable, plan: OpenPlan) -> None:
        """Keep a plan for these sizes, and others of their pattern."""
        self._plans.insert(0, (pattern, more, plan))
        del self._plans[MAX_OPEN:]

    def declines(self, pattern: SizePattern, why: str) -> None:
        """Note that there is no such plan."""
        if len(self.declined) < MAX_OPEN * MAX_OPEN:
            self.declined[pattern.shapes] = why
