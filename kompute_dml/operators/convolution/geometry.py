"""Sizes of convolutions, and their axes as ``include/convolution.glsl`` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import gcd
from typing import NamedTuple

from ...layout import Ints, pad_left
from ...lowering.walk import reciprocal

AXES = 3
"""Spatial dimensions of the shaders. Missing ones are added in front, with size 1."""


class Window(NamedTuple):
    """How a filter moves along one axis."""

    size: int
    stride: int
    dilation: int
    start: int
    end: int

    @property
    def reach(self) -> int:
        """Elements from the first tap to the last one."""
        return self.dilation * (self.size - 1) + 1

    def blocks(self, size: int) -> int:
        """Positions of the window along a padded input; 0 or less if it does not fit."""
        return (size + self.start + self.end - self.reach) // self.stride + 1


class Axis:
    """An axis, forward or transposed. If ``mirrored``, the filter is read from its end."""

    def __init__(self, in_size: int, out_size: int, window: Window, transposed: bool,
                 mirrored: bool) -> None:
        self.in_size, self.out_size = in_size, out_size
        k, s, d, start, _ = window
        self.filter_size, self.transposed = k, transposed
        phases = []
        if transposed:
            # Output p + q * s reads tap j at input q + (p + start - j * d) / s, if that is a whole
            # number. The last tap comes first, so that inputs ascend.
            self.input_step, self.output_step = 1, s
            common = gcd(s, d)
            self.tap_step, step = d // common, -(s // common)
            inverse = pow(d // common, -1, s // common)
            for p in range(min(s, out_size)):
                whole = (p + start) % common == 0
                first = (p + start) // common * inverse % (s // common)
                count = (k - 1 - first) // -step + 1 if whole and first < k else 0
                last = first - step * (count - 1) if count else 0
                phases.append((last, count, (p + start - last * d) // s))
        else:
            self.input_step, self.output_step = s, 1
            self.tap_step, step = d, 1
            phases.append((0, k, -start))
        if mirrored:
            phases = [(k - 1 - j, count, at) for j, count, at in phases]
            step = -step
        self.filter_step = step
        self.phases = phases
        self.positions = -(-out_size // self.output_step)

    def together(self, taps: int) -> Axis:
        """A forward axis that is not mirrored, with ``taps`` neighbouring taps as one. Its input
        has one element for each place where the first of them may lie."""
        axis = copy(self)
        (_, count, at), = self.phases
        reach = (taps - 1) * self.tap_step
        axis.in_size, axis.filter_size = self.in_size + reach, -(-count // taps)
        axis.tap_step = taps * self.tap_step
        axis.phases = [(0, axis.filter_size, at + reach)]
        return axis

    @classmethod
    def whole(cls) -> Axis:
        """An axis of one element, with a window of one element."""
        return cls(1, 1, Window(1, 1, 1, 0, 0), False, False)

    def words(self, strides: Ints, phases_at: int) -> Ints:
        """Words of the axis. ``strides`` are those of input, filter and output."""
        x, w, y = strides
        return (self.in_size, self.input_step, self.tap_step, self.filter_step * w, self.out_size,
                self.output_step, x, y, len(self.phases), self.positions, phases_at)

    def phase_words(self, filter_stride: int) -> Ints:
        return tuple(word for first, count, at in self.phases for word in (
            first * filter_stride, count, *reciprocal(count), at))


def params_of(axes: Sequence[Axis], in_channels: int, *strides: Sequence[int]) -> Ints:
    """All words. ``strides`` are those of input, filter and output along the axes."""
    by_axis = list(zip(*(pad_left(s, AXES, 0) for s in strides)))
    header = 2 + 11 * AXES
    heads: list[int] = [*reciprocal(in_channels)]
    tails: list[int] = []
    for axis, steps in zip(axes, by_axis):
        heads += axis.words(steps, header + len(tails))
        tails += axis.phase_words(steps[1])
    return (*heads, *tails)
