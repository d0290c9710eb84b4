"""Neighbouring elements that one invocation computes (include/each.glsl)."""

from __future__ import annotations

from collections.abc import Sequence

from ..desc import TensorDesc
from ..runtime.traits import DeviceTraits
from .walk import Walk


class Neighbours:
    """Dimensions of an output in the order of its memory. An invocation computes ``each`` elements
    along the ``inner`` one."""

    def __init__(self, y: TensorDesc, device: DeviceTraits, most: int = 8) -> None:
        # Each width is another pipeline, which a CPU's driver compiles longest.
        narrower = most if device.is_cpu else 2
        self.sizes = y.sizes
        self.order = sorted(range(y.dimension_count),
                            key=lambda i: (y.sizes[i] > 1, -y.strides[i]))
        self.inner = self.order[-1]
        self.along_width = self.inner == y.dimension_count - 1
        self.each = 1
        if y.strides[self.inner] == 1 and y.data_type.itemsize < 8:
            self.each = min(16 // y.data_type.itemsize, most)
            while y.sizes[self.inner] % self.each:
                self.each = max(self.each // narrower, 1)

    def share_windows(self, x: TensorDesc) -> bool:
        """Whether neighbours have the same place in their planes, and are contiguous in ``x``."""
        return self.inner < 2 and x.strides[self.inner] == 1

    def are_vectors(self, x: TensorDesc) -> bool:
        """Whether neighbours are vectors of 16 bytes in ``x``, too, if it begins at one."""
        return (self.each * x.data_type.itemsize == 16 and x.strides[self.inner] == 1
                and not any(s % self.each for i, s in enumerate(x.strides) if i != self.inner))

    def walk(self, *strides: Sequence[int]) -> Walk:
        """The first of each invocation's elements."""
        each = [self.each if i == self.inner else 1 for i in self.order]
        return Walk([self.sizes[i] // n for i, n in zip(self.order, each)],
                    *([s[i] * n for i, n in zip(self.order, each)] for s in strides))
