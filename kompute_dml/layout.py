"""Index arithmetic with sizes and strides: pure functions that know no GPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import index as integer
from typing import Any

Ints = tuple[int, ...]


def product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length()


def packed_strides(sizes: Sequence[int]) -> Ints:
    """Row-major, contiguous strides."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def memory_order(strides: Sequence[int]) -> list[int]:
    """The dimensions in the order of memory, those of the largest stride first."""
    return sorted(range(len(strides)), key=lambda d: -strides[d])


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first address to the last one."""
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides))


def is_packed(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for n, s in zip(reversed(sizes), reversed(strides)):
        if n != 1 and s != step:
            return False
        step *= n
    return True


def begin_with_vectors(each: int, strides: Ints, axis: int = -1, start: int = 0) -> bool:
    """Whether all rows along ``axis`` are contiguous and aligned to vectors of ``each``
    elements."""
    others = strides[:axis] + strides[axis:][1:]
    return strides[axis] == 1 and not any(n % each for n in (start, *others))


def are_of_vectors(each: int, size: int, *strides: Ints) -> bool:
    """Whether all rows of ``size`` elements along the last dimension are whole vectors of
    ``each``."""
    return size % each == 0 and all(begin_with_vectors(each, s) for s in strides)


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two coordinates may share an address.

    Dimensions are sorted by stride. One does not overlap if its stride exceeds the reach of all
    smaller ones. Other layouts without overlap are rare: if they are small, addresses are counted;
    else they count as overlapping.
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
    """Drop dimensions of size 1 and merge neighbours that are one dimension in every operand.

    Returns the sizes and the strides of each operand. At least one dimension is left.
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
    """``values`` with ``fill`` in front, up to ``count`` values."""
    return (fill,) * (count - len(values)) + tuple(values)


def broadcast_sizes(*shapes: Sequence[int]) -> Ints:
    """NumPy's broadcasting rule. Raises ValueError if the shapes do not broadcast."""
    rank = max(len(s) for s in shapes)
    result = [1] * rank
    for shape in shapes:
        for d, n in enumerate(pad_left(shape, rank, 1)):
            if n != 1:
                if result[d] not in (1, n):
                    raise ValueError(f"sizes {[list(s) for s in shapes]} do not broadcast")
                result[d] = n
    return tuple(result)


def broadcast_strides(sizes: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> Ints:
    """Strides that repeat dimensions of size 1, so that ``sizes`` become ``wanted``.

    Raises ValueError if ``sizes`` do not broadcast.
    """
    old = pad_left(sizes, len(wanted), 1)
    if len(old) > len(wanted) or any(n not in (1, m) for n, m in zip(old, wanted)):
        raise ValueError(f"{list(sizes)} does not broadcast to {list(wanted)}")
    steps = pad_left(strides, len(wanted), 0)
    return tuple(s if n == m else 0 for n, m, s in zip(old, wanted, steps))


def transpose(
    sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]
) -> tuple[Ints, Ints]:
    """Sizes and strides in another order. Negative dimensions count from the last.

    Raises ValueError if ``order`` is not a permutation of the dimensions.
    """
    rank = len(sizes)
    order = [d % rank if -rank <= d < rank else d for d in order]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"expected a permutation of {rank} dimensions (swapaxes exchanges "
                         f"two), but got {order}")
    return tuple(sizes[d] for d in order), tuple(strides[d] for d in order)


def index(sizes: Sequence[int], strides: Sequence[int], key: Any) -> tuple[Ints, Ints, int]:
    """Sizes, strides and first element of the view that a NumPy index selects: integers, slices of
    positive step, Ellipsis and None.

    Raises IndexError as NumPy does, ValueError for slices that no description can express.
    """
    rank = len(sizes)
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > rank or sum(k is Ellipsis for k in keys) > 1:
        raise IndexError(f"too many indices for {rank} dimensions: {key!r}")
    rest = [slice(None)] * (rank - used)
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), None)
    keys = [*keys, *rest] if at is None else [*keys[:at], *rest, *keys[at + 1 :]]
    new_sizes, new_strides, first, d = [], [], 0, 0
    for k in keys:
        if k is None:
            new_sizes.append(1)
            new_strides.append(0)
            continue
        n, s = sizes[d], strides[d]
        if isinstance(k, slice):
            start, count, step = bounds(k, n)
            if step < 0:
                raise ValueError("expected slices of positive step (strides are unsigned; "
                                 f"dml.flip copies in reverse), but got step {step}")
            new_sizes.append(count)
            new_strides.append(s * step)
            first += start * s
        else:
            try:
                if isinstance(k, bool):  # a mask, for NumPy
                    raise TypeError
                i = integer(k)
            except TypeError:
                raise IndexError(
                    f"only integers, slices, Ellipsis and None index a tensor, not {k!r}"
                ) from None
            if not -n <= i < n:
                raise IndexError(f"index {i} is out of range for dimension {d} of size {n}")
            first += (i % n) * s
        d += 1
    return tuple(new_sizes), tuple(new_strides), first


def bounds(part: slice, n: int) -> tuple[int, int, int]:
    """The first element that a slice takes of ``n``, their count, and the step between them."""
    step = 1 if part.step is None else part.step
    if step < 1:
        start, stop, step = part.indices(n)
        return start, len(range(start, stop, step)), step

    def within(at: int) -> int:
        at = at if getattr(at, "stays_open", False) else integer(at)
        at = at + n if at < 0 else at
        return 0 if at < 0 else n if at > n else at

    start = 0 if part.start is None else within(part.start)
    stop = n if part.stop is None else within(part.stop)
    return start, -(-(stop - start) // step) if stop > start else 0, step


def reshape_strides(
    sizes: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> Ints | None:
    """Strides for the same elements with ``new`` sizes, or None if that needs a copy."""
    if 0 in sizes or is_packed(sizes, strides):
        return packed_strides(new)
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


@functools.lru_cache(1024)  # layers repeat
def rewalked(
    sizes: Ints, steps: Ints, other: Ints, wanted: Ints, wanted_steps: Ints
) -> Ints | None:
    """Two tensors have ``sizes``, with strides ``steps`` and ``other``. Returns strides of the
    second for the order in which ``wanted_steps`` and sizes ``wanted`` walk the first.

    Both walks must cover the same memory without gaps. None if they do not, or no strides exist.
    """
    walked = sorted(((s, n, o) for n, s, o in zip(sizes, steps, other) if n > 1), reverse=True)
    dims = sorted((-s, d) for d, (n, s) in enumerate(zip(wanted, wanted_steps)) if n > 1)
    from_sizes, to_sizes = [n for _, n, _ in walked], [wanted[d] for _, d in dims]
    if (product(from_sizes) != product(to_sizes)
            or not is_packed(from_sizes, [s for s, _, _ in walked])
            or not is_packed(to_sizes, [-s for s, _ in dims])):
        return None
    strides = reshape_strides(from_sizes, [o for _, _, o in walked], to_sizes)
    if strides is None:
        return None
    by_dim = dict(zip((d for _, d in dims), strides))
    return tuple(by_dim.get(d, 0) for d in range(len(wanted)))


def channels_last_strides(sizes: Sequence[int]) -> Ints:
    """Strides of a contiguous tensor whose second dimension is innermost."""
    n, c, *plane = sizes
    by_n, *by_plane, by_c = packed_strides((n, *plane, c))
    return (by_n, by_c, *by_plane)
