"""Groups claimed nodes into regions that can run as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .graph import OnnxNode, makers


def regions(nodes: Sequence[OnnxNode], claimed: Callable[[OnnxNode], bool]) -> list[list[OnnxNode]]:
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
    first, last = group[:], group[:]
    """Of each group, its first and last node."""
    after: dict[int, set[int]] = {i: set() for i in group}
    """Nodes of other groups that read what a group makes."""
    for maker, user in edges:
        after[maker].add(user)

    def path_around(start: int, end: int) -> bool:
        """Whether a path with other nodes leads from ``start`` to ``end``."""
        seen: set[int] = set()
        stack = [g for g in {group[n] for n in after[start]} if g not in (start, end)]
        while stack:
            g = stack.pop()
            if g in seen or first[g] > last[end]:
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
        members[a] += members.pop(b)
        first[a], last[a] = min(first[a], first[b]), max(last[a], last[b])
        after[a] = {n for n in after[a] | after.pop(b) if group[n] != a}
    return [
        [nodes[n] for n in sorted(inside)]
        for inside in members.values() if claimed(nodes[inside[0]])
    ]


def joined(nodes: Sequence[OnnxNode], parts: Sequence[list[OnnxNode]]) -> list[list[OnnxNode]]:
    """Regions in as few as can run: those that no path connects become one."""
    number = {node: i for i, part in enumerate(parts) for node in part}
    readers: dict[OnnxNode, set[OnnxNode]] = {node: set() for node in nodes}
    made_by = makers(nodes)
    for node in nodes:
        for value in node.inputs:
            if value in made_by:
                readers[made_by[value]].add(node)
    # Which regions come after each region and each node, as bits. A path enters a region at one
    # node and may leave it at an earlier one, so one pass over the nodes may not be enough.
    after: dict[int | OnnxNode, int] = dict.fromkeys([*range(len(parts)), *nodes], 0)
    changed = True
    while changed:
        changed = False
        for node in reversed(nodes):
            own = number.get(node, node)
            reached = after[own]
            for reader in readers[node]:
                other = number.get(reader, reader)
                if other != own:
                    reached |= after[other] | (1 << other if isinstance(other, int) else 0)
            changed |= reached != after[own]
            after[own] = reached
    bits = {i: 1 << i for i in range(len(parts))}  # of what each region that is left consists
    for i in range(len(parts)):
        for first in [n for n in bits if n < i]:
            if after[first] & bits[i] or after[i] & bits[first]:
                continue
            bits[first] |= bits.pop(i)
            after[first] |= after[i]
            for n in bits:
                if after[n] & bits[first]:
                    after[n] |= bits[first] | after[first]
            break
    place = {node: i for i, node in enumerate(nodes)}
    return [sorted((node for i, part in enumerate(parts) if held >> i & 1 for node in part),
                   key=place.__getitem__) for held in bits.values()]


def tears(nodes: Sequence[OnnxNode], parts: Sequence[Sequence[OnnxNode]]) -> bool:
    """Whether a region would have to hand on a value that a fused node of it does not make, to what
    another node stands for."""
    number = {node: i for i, part in enumerate(parts) for node in part}
    made = {value for node in nodes for value in node.outputs}
    of_original = {original: number.get(node) for node in nodes for original in node.originals}
    missing = {value: of_original[original] for original in of_original
               for value in original.outputs if value is not None and value not in made}
    return any(missing[value] is not None and missing[value] != where
               for original, where in of_original.items()
               for value in original.inputs if value in missing)
