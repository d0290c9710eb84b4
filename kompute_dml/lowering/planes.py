"""Kernels for planes: each invocation computes a block of a tensor of four dimensions, whose rows
or whose channels are vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..desc import TensorDesc
from ..layout import Ints
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .kernel import Kernel


@dataclass(frozen=True)
class Images:
    """An operator that makes images, such as pooling, as its kernels see it."""

    desc: Any
    kind: str
    """What it does."""
    y: TensorDesc
    """What it makes."""

    @property
    def work(self) -> str:
        """The tuning key."""
        layout = "last" if self.y.dimension_count == 4 and self.y.strides[1] == 1 else "first"
        return work_key(f"{self.kind} {layout} {self.y.data_type.family}", self.y.element_count)


class Planes(Kernel[Images]):
    """A kernel of planes: the fastest where it serves, except on a CPU."""

    name = "planes"

    def estimate(self, problem: Images, traits: DeviceTraits) -> float:
        return 2.0 if traits.is_cpu else 0.0


class General(Kernel[Images]):
    """The kernel of any layout."""

    name = "general"
    cost = 1.0


def block_strides(t: TensorDesc, channels: int) -> Ints:
    """The strides of a tensor of whose channels an invocation computes so many."""
    return (t.strides[0], t.strides[1] * channels, *t.strides[2:])
