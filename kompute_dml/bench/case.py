"""A benchmark case: work for a device, a check of its result, and the bytes that it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..cases.case import TINY, Scale
from ..desc import TensorDesc

SCALES = {
    "tiny": TINY,
    "small": Scale(1 << 20, 1024, ((256, 256, 256), (1, 1024, 1024)), 16, 4),
    "middle": Scale(1 << 22, 2048, ((1024, 1024, 1024), (1, 2048, 2048)), 4, 6, 50.0),
    "large": Scale(1 << 26, 8192, ((4096, 4096, 4096), (1, 4096, 4096)), 1, 8, 500.0),
}


def scale_for(bandwidth: float) -> Scale:
    """The largest scale (but never the tiny one) for a device that copies so many GB/s."""
    fitting = [s for s in SCALES.values() if s is not TINY and s.bandwidth <= bandwidth]
    return max(fitting, key=lambda s: s.bandwidth)


@dataclass(frozen=True)
class Peer:
    """The same work by another library, in the same process."""

    name: str
    call: Callable[[], object]
    """Does the work. Returns an output that the case's check can read."""
    checked: bool = True
    """False where it does only a part of the work."""


Library = Any
"""A library of :mod:`.peers` that the device is compared with."""


@dataclass(frozen=True)
class Case:
    """Work that is dispatched repeatedly into the same output."""

    operator: str
    types: str
    sizes: str
    dispatch: Callable[[], object]
    """Records the work once, and returns the output."""
    check: Callable[[Any], str]
    """What is wrong with an output (anything that slices like an array), or ""."""
    bytes: int
    """Bytes read and written. Each element that is needed counts once."""
    operations: int = 0
    """Multiplications and additions; 0 where data only moves."""
    dispatches: int = 1
    """Runs of the operator in one ``dispatch``. Figures are for one run."""
    on_host: bool = False
    """Whether the host does the work, so that its clock counts."""
    peers: dict[str, Callable[[Library], Iterable[Peer]]] = field(default_factory=dict)
    """Peers, by the library's name."""


AS_MANY_BYTES = "copy of as many bytes"
"""A copy in the same run that moves as many bytes as the case. What a dispatch waits for the one
before is a part of the time of a small copy, and of a small case."""
AS_IT_IS = "the device as it is"
"""The same case on the same device, without emulation."""


@dataclass(frozen=True)
class Recipe:
    """Makes cases for a device, and has their goals. Recipes of one ``make`` are equal."""

    operator: str
    types: str
    make: Callable[[Any, Scale], Iterable[Case]]
    goals: tuple[Goal, ...] = field(default=(), compare=False)
    without_units: Goal = field(default=(AS_IT_IS, 1 / 1.3), compare=False)
    """The goal of ``bench --as CLASS``, of devices whose matrix units are not known. Numbers of
    operations are for an H100 that is emulated so."""

    def held_to(self, *goals: Goal, without_units: Goal | None = None) -> Recipe:
        """The recipe with these goals."""
        return replace(self, goals=goals, without_units=without_units or self.without_units)


Goal = tuple["str | Recipe", float]
"""What to compare with, and the least ratio: "copy", AS_MANY_BYTES, AS_IT_IS, a peer's name, a
recipe, "TOPS", "us", and "host us" by the host's clock."""


def touched_bytes(descs: Iterable[TensorDesc]) -> int:
    """Bytes of the tensors' elements. Elements repeated by a stride of 0 count once."""
    total = 0
    for desc in descs:
        count = 1
        for size, stride in zip(desc.sizes, desc.strides):
            count *= size if stride else 1
        total += -(-count * desc.data_type.bits // 8)
    return total


def product_operations(a: TensorDesc, output: TensorDesc) -> int:
    """Multiplications and additions of a matrix product."""
    return 2 * output.element_count * a.sizes[-1]


def image_sizes(scale: Scale, least: int = 8) -> tuple[int, ...]:
    """The sizes of images, and at least so many rows and columns at every scale."""
    return scale.of(32), scale.of(64), *(max(scale.of(112), least) for _ in range(2))


def shape(sizes: Iterable[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
