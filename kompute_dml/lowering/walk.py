"""Strided tensors as ``include/walk.glsl`` walks them: words for the params buffer."""

from __future__ import annotations

from collections.abc import Sequence

from ..layout import coalesce, product


class Walk:
    """Dimensions of one or more operands, merged to as few as possible.

    It visits ``count`` elements in row-major order of ``sizes``. ``words`` are the shader's params.
    """

    def __init__(self, sizes: Sequence[int], *strides: Sequence[int]) -> None:
        self.sizes, self.strides = coalesce(sizes, *strides)
        self.count = product(self.sizes)
        words = [len(self.sizes)]
        for d in reversed(range(len(self.sizes))):
            words += [self.sizes[d], *reciprocal(self.sizes[d]), *(s[d] for s in self.strides)]
        self.words = tuple(words)

    @property
    def contiguous(self) -> bool:
        """Whether every operand's elements are contiguous and in order."""
        return all(s == (1,) for s in self.strides)


def of_vectors(strides: Sequence[int], each: int, axis: int = -1) -> tuple[int, ...]:
    """The strides of vectors of ``each`` elements along ``axis``."""
    axis %= len(strides)
    return tuple(s * each if i == axis else s for i, s in enumerate(strides))


def reciprocal(size: int) -> tuple[int, int]:
    """Multiplier and shift that divide any 32-bit number by ``size`` (at least 2), rounded down.

    Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), figure 4.1.
    """
    if size < 2:
        return 0, 0
    bits = (size - 1).bit_length()
    return ((1 << 32) * ((1 << bits) - size)) // size + 1, bits - 1


_RUNS, _LANES = 1 << 12, 64
_LENGTHS = (1, 4, 16, 64)
"""Few: a shader is compiled for each."""


def length_of(wanted: int) -> int:
    """How many units an invocation on a CPU takes that should take ``wanted``."""
    return next((n for n in _LENGTHS if n >= wanted), _LENGTHS[-1])


def runs_of(rows: int, size: int, each: int) -> tuple[int, int, int]:
    """How a CPU shares rows of ``size`` contiguous elements, ``each`` to a vector, among
    invocations (include/runs.glsl): vectors of each, invocations of a row, and of a workgroup."""
    vectors = (size + each - 2) // each + 1  # that a row touches at most
    length = length_of(rows * vectors // _RUNS)
    return length, -(-vectors // length), _LANES


def split_dimensions(
    sizes: Sequence[int], axes: Sequence[int], *strides: Sequence[int]
) -> tuple[Walk, Walk]:
    """Two walks: over the dimensions that are not in ``axes`` (rows), and over those that are
    (columns), in the order of the dimensions."""
    def walk(dims: Sequence[int]) -> Walk:
        return Walk([sizes[d] for d in dims], *([s[d] for d in dims] for s in strides))

    kept = [d for d in range(len(sizes)) if d not in axes]
    return walk(kept), walk(sorted(axes))
