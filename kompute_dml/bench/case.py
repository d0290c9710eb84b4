"""What a benchmark case is: work for a device, how to know that it was done, and what it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
    call: Callable[[], Any]
    """Does the work, and returns what the case's check can read."""
    checked: bool = True
    """False where it only does a part of the work."""


Library = Any
"""A library of :mod:`.peers` that stands beside the device."""


@dataclass(frozen=True)
class Case:
    """Something to dispatch, again and again, into the same output."""

    operator: str
    types: str
    sizes: str
    dispatch: Callable[[], Any]
    """Records the work once, and returns the output."""
    check: Callable[[Any], str]
    """What is wrong with such an output (anything that slices like an array), or nothing."""
    bytes: int
    """Read and written, each element once, and only those that are needed."""
    operations: int = 0
    """Multiplications and additions; 0 where data only moves."""
    dispatches: int = 1
    """Of the operator, in one ``dispatch``; the figures are one's."""
    peers: dict[str, Callable[[Library], Iterable[Peer]]] = field(default_factory=dict)
    """By the library's name."""


@dataclass(frozen=True)
class Recipe:
    """How to make cases once there is a device."""

    operator: str
    types: str
    make: Callable[[Any, Scale], Iterable[Case]]


def touched_bytes(descs: Iterable[TensorDesc]) -> int:
    """Bytes of the tensors' elements, those repeated by a stride of 0 counted once."""
    total = 0
    for desc in descs:
        count = 1
        for size, stride in zip(desc.sizes, desc.strides):
            count *= size if stride else 1
        total += count * desc.data_type.itemsize
    return total


def product_operations(a: TensorDesc, output: TensorDesc) -> int:
    """Multiplications and additions of a matrix product."""
    return 2 * output.element_count * a.sizes[-1]


def shape(sizes: Iterable[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
