"""Layouts of operands in memory. A layout is a base array and a view of it.

``view(base, sizes)`` uses only operations that NumPy arrays and Tensors share. So one layout makes
the operand on the device, its NumPy twin, and (from the twin's strides) its TensorDesc. Elements of
the base outside the view are sentinels, which must not be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    name: str
    base_sizes: Callable[[Sizes], Sizes]
    view: Callable[[Any, Sizes], Any]
    fits: Callable[[Sizes], bool] = lambda sizes: True
    """Whether these sizes have a special layout at all."""
    inputs_only: bool = False

    def __str__(self) -> str:
        return self.name


def _product(sizes: Sizes) -> int:
    return int(np.prod(sizes))


def _in_a_line(name: str, guard: int) -> Layout:
    """Packed, ``guard`` elements after the start of the base and before its end."""
    return Layout(
        name,
        lambda sizes: (_product(sizes) + 2 * guard,),
        lambda base, sizes: base[guard : guard + _product(sizes)].reshape(sizes),
    )


def _swapped(sizes: Sizes) -> Sizes:
    return (*sizes[:-2], sizes[-1], sizes[-2])


def _swap(base: Any, sizes: Sizes) -> Any:
    axes = list(range(len(sizes)))
    return base.transpose((*axes[:-2], axes[-1], axes[-2]))


def _has_length(sizes: Sizes) -> bool:
    return any(n > 1 for n in sizes)


def _broadcast(axis: Callable[[Sizes], int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def base_sizes(sizes: Sizes) -> Sizes:
        return tuple(1 if d == axis(sizes) else n for d, n in enumerate(sizes))

    def view(base: Any, sizes: Sizes) -> Any:
        if isinstance(base, np.ndarray):
            return np.broadcast_to(base, sizes)
        return base.broadcast_to(sizes)

    return base_sizes, view


def _longest(sizes: Sizes) -> int:
    return sizes.index(max(sizes))


PACKED = _in_a_line("packed", 16)
SHIFTED = _in_a_line("shifted", 3)
"""Packed, but begins and ends inside a 16-byte vector, and for narrow types inside a word."""

TRANSPOSED = Layout(
    "transposed", _swapped, _swap, lambda sizes: len(sizes) > 1 and min(sizes[-2:]) > 1
)
REVERSED = Layout(
    "reversed",
    lambda sizes: sizes[::-1],
    lambda base, sizes: base.transpose(),
    lambda sizes: sum(n > 1 for n in sizes) > 1 and len(sizes) > 2,
)


def _outer_reversed(name: str, guard: int) -> Layout:
    def view(base: Any, sizes: Sizes) -> Any:
        *outer, inner = range(len(sizes))
        stored = tuple(sizes[d] for d in (*outer[::-1], inner))
        line = base[guard : guard + _product(sizes)]
        return line.reshape(stored).transpose((*outer[::-1], inner))

    return Layout(name, lambda sizes: (_product(sizes) + 2 * guard,), view)


OUTER_REVERSED = _outer_reversed("outer-reversed", 16)
"""The last dimension is contiguous, the others in the opposite order."""
OUTER_REVERSED_SHIFTED = _outer_reversed("outer-reversed-shifted", 3)

SLICED = Layout(
    "sliced",
    lambda sizes: tuple(n + 2 for n in sizes),
    lambda base, sizes: base[tuple(slice(1, 1 + n) for n in sizes)],
)
"""A block in the middle of the base: gaps in every dimension, and an odd offset."""

PADDED = Layout(
    "padded",
    lambda sizes: (*sizes[:-1], sizes[-1] + 5),
    lambda base, sizes: base[..., : sizes[-1]],
)
"""Rows with gaps between them."""

STEPPED = Layout(
    "stepped",
    lambda sizes: (*sizes[:-1], 3 * sizes[-1]),
    lambda base, sizes: base[..., 1::3],
)
"""Gaps between neighbouring elements."""

REPEATED = Layout(
    "repeated", *_broadcast(_longest), fits=_has_length, inputs_only=True
)
"""Stride 0 along the longest dimension."""

REPEATED_FIRST = Layout(
    "repeated-first",
    *_broadcast(lambda sizes: 0),
    fits=lambda sizes: sizes[0] > 1 and _longest(sizes) != 0,
    inputs_only=True,
)
"""Stride 0 along the first dimension: one matrix for all batches."""

ALL = (
    PACKED, SHIFTED, TRANSPOSED, REVERSED, SLICED, PADDED, STEPPED, REPEATED, REPEATED_FIRST,
)
"""Every layout. The first one is packed."""
