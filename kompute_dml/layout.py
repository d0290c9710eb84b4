"""Index mathematics on sizes and strides. Pure functions; nothing here knows a GPU."""

from __future__ import annotations

from collections.abc import Sequence

Ints = tuple[int, ...]


def product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def power_of_two(n: int) -> int:
    """The smallest that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def packed_strides(sizes: Sequence[int]) -> Ints:
    """Row-major strides without gaps."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first address to one past the last."""
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides))


def is_packed(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for n, s in zip(reversed(sizes), reversed(strides)):
        if n != 1 and s != step:
            return False
        step *= n
    return True


def begin_with_vectors(each: int, strides: Ints, axis: int = -1, start: int = 0) -> bool:
    """Whether all lines along ``axis`` lie gapless, from the beginning of a vector of ``each``
    elements on."""
    others = strides[:axis] + strides[axis:][1:]
    return strides[axis] == 1 and not any(n % each for n in (start, *others))


def are_of_vectors(each: int, size: int, *strides: Ints) -> bool:
    """Whether all lines of ``size`` along the last dimension are whole vectors of ``each``."""
    return size % each == 0 and all(begin_with_vectors(each, s) for s in strides)


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two coordinates may share an address.

    Dimensions are nested by stride: one is free of overlap when its stride passes everything the
    smaller ones reach. Layouts that interleave without colliding are rare, and are settled by
    counting addresses when they are small, refused otherwise.
    """
    dims = sorted((s, n) for n, s in zip(sizes, strides) if n > 1)
    reach, nested = 0, True
    for s, n in dims:
        if s == 0:
            return True
        nested = nested and s > reach
        reach += (n - 1) * s
    if nested:
        return False
    elements = product([n for _, n in dims])
    if elements > reach + 1:
        return True
    if elements > 1 << 16:
        return True
    addresses = {0}
    for s, n in dims:
        addresses = {a + i * s for a in addresses for i in range(n)}
    return len(addresses) < elements


def coalesce(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[Ints, list[Ints]]:
    """Drop dimensions of size 1 and merge neighbours that every operand walks as one.

    Returns the shorter sizes and, per operand, its strides. There is always one dimension left.
    """
    out_sizes: list[int] = []
    out_strides: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(sizes):
        if n == 1:
            continue
        steps = [s[d] for s in strides]
        if out_sizes and all(o[-1] == n * s for o, s in zip(out_strides, steps)):
            out_sizes[-1] *= n
            for o, s in zip(out_strides, steps):
                o[-1] = s
        else:
            out_sizes.append(n)
            for o, s in zip(out_strides, steps):
                o.append(s)
    if not out_sizes:
        return (1,), [(1,) for _ in strides]
    return tuple(out_sizes), [tuple(o) for o in out_strides]


def pad_left(values: Sequence[int], count: int, fill: int) -> Ints:
    """``values`` with ``fill`` put in front until there are ``count``."""
    return (fill,) * (count - len(values)) + tuple(values)


def broadcast_sizes(*shapes: Sequence[int]) -> Ints:
    """NumPy's broadcasting rule. Raises ValueError when the shapes do not fit."""
    rank = max(len(s) for s in shapes)
    result = [1] * rank
    for shape in shapes:
        for d, n in enumerate(pad_left(shape, rank, 1)):
            if n != 1:
                if result[d] not in (1, n):
                    raise ValueError(f"sizes {[list(s) for s in shapes]} do not broadcast")
                result[d] = n
    return tuple(result)


def reshape_strides(
    sizes: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> Ints | None:
    """Strides that show the same elements under ``new`` sizes, or None when a copy is needed."""
    merged, (steps,) = coalesce(sizes, strides)
    result: list[int] = []
    remaining = list(new)
    for n, s in zip(reversed(merged), reversed(steps)):
        covered, step = 1, s
        while remaining and covered < n:
            last = remaining.pop()
            result.append(step)
            covered *= last
            step *= last
        if covered != n:
            return None
    while remaining:
        if remaining.pop() != 1:
            return None
        result.append(1)
    return tuple(reversed(result))
