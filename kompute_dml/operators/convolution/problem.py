"""A convolution as its shaders see it: a matrix product of positions and output channels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from ...layout import Ints, pad_left, product
from ..base import OperatorDesc
from .geometry import AXES, Axis, params_of


@dataclass(frozen=True)
class Problem:
    """A convolution of any operator. The strides present filters as {output channel, input channel,
    taps}."""

    batches: int
    groups: int
    in_channels: int
    """Input channels of one group."""
    out_channels: int
    axes: tuple[Axis, ...]
    x_strides: Ints
    """Batch, channel, axes."""
    w_strides: Ints
    """Group, output channel, input channel, axes."""
    y_strides: Ints
    """Batch, channel, axes."""

    @functools.cached_property  # the choice between kernels asks hundreds of times
    def rows(self) -> int:
        """Output positions of a phase, in all batches."""
        return self.batches * product([a.positions for a in self.axes])

    @functools.cached_property
    def phases(self) -> int:
        return product([len(a.phases) for a in self.axes])

    @functools.cached_property
    def k(self) -> int:
        """The longest K of a phase."""
        return self.in_channels * product([max(n for _, n, _ in a.phases) for a in self.axes])

    @functools.cached_property
    def first_taps(self) -> int:
        """The taps of the first phase."""
        return product([a.phases[0][1] for a in self.axes])

    @functools.cached_property
    def output_sizes(self) -> Ints:
        return (self.batches, self.groups * self.out_channels, *(a.out_size for a in self.axes))

    @functools.cached_property
    def reaches(self) -> list[tuple[int, int]]:
        """Along y and x: the first tap of all phases, and how many pixels one position reaches."""
        spans = []
        for a in self.axes[1:]:
            first, last = (f(at for _, _, at in a.phases) for f in (min, max))
            spans.append((first, last - first + (a.phases[0][1] - 1) * a.tap_step + 1))
        return spans

    @property
    def taps_in_line(self) -> bool:
        """Whether the filter's taps lie at equal distances, once channels are vectors."""
        *_, height, width = (a.filter_size for a in self.axes)
        return (self.w_strides[2] != 1 or 1 in (height, width)  # the first are copied
                or self.w_strides[-2] == width * self.w_strides[-1])

    def image_push(self, each: int, y_strides: Ints) -> dict[str, Any]:
        """Push fields of a packed convolution of planes whose taps are in line. Strides of input
        and filter are in vectors of ``each`` channels, those of the output in elements."""
        tap = self.w_strides[-1 if self.axes[-1].filter_size > 1 else -2]
        return {"groups": self.groups, "batches": self.batches, "in_channels": self.in_channels,
                "out_channels": self.out_channels,
                "in_sizes": [a.in_size for a in self.axes[1:]],
                "x_strides": [s // each for s in (self.x_strides[0], *self.x_strides[-2:])],
                "w_strides": [s // each for s in (*self.w_strides[:2], tap)],
                "y_strides": (y_strides[0], *y_strides[-2:])}

    def image_spec(self, *, steps: bool) -> dict[str, int]:
        """Constants of such a convolution: positions and taps along y and x, and ``steps`` of
        both."""
        spec: dict[str, int] = {}
        for name, a in zip("YX", self.axes[1:]):
            spec |= {f"POSITIONS_{name}": a.positions, f"TAPS_{name}": a.filter_size}
            if steps:
                spec |= {f"STEP_{name}": a.input_step, f"TAP_STEP_{name}": a.tap_step}
        return spec

    def tiles(self, rows: int, columns: int) -> int:
        """The number of tiles in all groups and phases."""
        return -(-self.rows // rows) * -(-self.out_channels // columns) * self.groups * self.phases

    def push(self, tile: Ints, splits: int, y_strides: Ints) -> dict[str, int | Sequence[int]]:
        """Push fields of the shaders that make tiles of rows, columns and steps of K."""
        rows, columns, k = tile
        return {
            "row_tiles": -(-self.rows // rows), "column_tiles": -(-self.out_channels // columns),
            "splits": splits, "steps": ceil(ceil(self.k / k) / splits),
            "groups": self.groups, "batches": self.batches, "in_channels": self.in_channels,
            "out_channels": self.out_channels, "x_strides": self.x_strides[:2],
            "w_strides": self.w_strides[:3],
            "y_strides": (self.split_stride, *y_strides[:2]),
        }

    @property
    def split_stride(self) -> int:
        """Elements from the sums of one split to the next, rounded up to whole vectors."""
        return -(-product(self.output_sizes) // 8) * 8

    def words(self, y_strides: Ints) -> Ints:
        return params_of(self.axes, self.in_channels, self.x_strides[2:], self.w_strides[3:],
                         y_strides[2:])


def problem_of(desc: OperatorDesc, axes: list[Axis], transposed: bool) -> Problem:
    """The convolution of a description with InputTensor, FilterTensor and OutputTensor."""
    x, w, y, groups = desc.input_tensor, desc.filter_tensor, desc.output_tensor, desc.group_count
    whole = Axis.whole()
    in_channels = x.sizes[1] // groups
    of_group = w.strides[0] * (w.sizes[0] // groups)
    channels = (w.strides[1], w.strides[0]) if transposed else w.strides[:2]

    def spread(strides: Ints) -> Ints:
        return pad_left(strides, AXES, 0)

    return Problem(
        x.sizes[0], groups, in_channels, y.sizes[1] // groups,
        (*[whole] * (AXES - len(axes)), *axes),
        (*x.strides[:2], *spread(x.strides[2:])),
        (of_group, *channels, *spread(w.strides[2:])),
        (*y.strides[:2], *spread(y.strides[2:])),
    )
