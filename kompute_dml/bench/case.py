"""A benchmark case: work for a device, a check of its result, and the bytes that it moves."""

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


@dataclass(frozen=True)
class Recipe:
    """Makes cases for a device."""

    operator: str
    types: str
    make: Callable[[Any, Scale], Iterable[Case]]


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
