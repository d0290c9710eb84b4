"""Groups claimed nodes into regions that can run as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .graph import Node


def regions(nodes: Sequence[Node], claimed: Callable[[Node], bool]) -> list[list[Node]]:
    """Regions of neighbouring claimed nodes. No path leaves a region and comes back.

    ``nodes`` are in an order in which they can run, and so are those of each region.
    """
    made_by = {value: i for i, node in enumerate(nodes) for value in node.outputs}
    edges = [
        (made_by[value], i) for i, node in enumerate(nodes) for value in node.inputs
        if value is not None and value in made_by
    ]
    group = list(range(len(nodes)))
    members = {i: [i] for i in group}
    after: dict[int, set[int]] = {i: set() for i in group}
    for maker, user in edges:
        after[maker].add(user)

    def path_around(start: int, end: int) -> bool:
        """Whether a path with other nodes leads from ``start`` to ``end``."""
        last = members[end][-1]
        seen: set[int] = set()
        stack = [g for g in {group[n] for n in after[start]} if g not in (start, end)]
        while stack:
            g = stack.pop()
            if g in seen or members[g][0] > last:
                continue
            seen.add(g)
            following = {group[n] for n in after[g]}
            if end in following:
                return True
            stack.extend(following)
        return False

    for maker, user in edges:
        if not (claimed(nodes[maker]) and claimed(nodes[user])):
            continue
        a, b = group[maker], group[user]
        if a == b or path_around(a, b):
            continue
        for n in members[b]:
            group[n] = a
        members[a] = sorted(members[a] + members.pop(b))
        after[a] |= after.pop(b)
    return [
        [nodes[n] for n in inside]
        for inside in members.values() if claimed(nodes[inside[0]])
    ]
