"""Cases of slices, joins, padding, tiles and blocks, which rearrange elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import kompute_dml as dml

from ..attributes import PaddingMode
from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .case import AS_MANY_BYTES, Case, Peer, Recipe, shape
from .peers import Torch
from .values import Key, bits, offsets, same_bits, sampled

if TYPE_CHECKING:
    import torch

Coordinates = Sequence[np.ndarray]
Source = Callable[[Coordinates, Sequence[int]], np.ndarray]
"""(coordinates of the output, sizes of the input) -> offsets in the input; -1 for a 0."""
Sizes = Callable[[Scale], Sequence[int]]


def rearranged(
    operator: str, what: str, data_type: DataType, sizes: Sizes,
    sizes_of: Callable[[Sequence[int]], Sequence[int]],
    call: Callable[[dml.Tensor, dml.Tensor], object], source: Source,
    torch: Callable[[ModuleType, torch.Tensor], object], *, inputs: int = 1
) -> Recipe:
    """``sizes_of`` is the output's sizes, ``call(x, out)`` our function, ``torch(torch, x)``
    PyTorch's."""
    name, types = "DML_OPERATOR_" + operator, f"{data_type.family} {what}"

    def moved(read: Sequence[int]) -> int:
        """Elements read and written."""
        written = int(np.prod(sizes_of(read)))
        return min(inputs * int(np.prod(read)), written) + written

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        in_sizes = sizes(scale)
        result = sizes_of(in_sizes)
        count = int(np.prod(in_sizes))
        pattern = bits(data_type, count)
        x, out = pattern.tensor(device).reshape(*in_sizes), device.empty(result, data_type)

        def expected(key: Key) -> np.ndarray:
            axes = range(len(result))
            at = [offsets(key, result, [int(d == axis) for d in axes]) for axis in axes]
            at_source = source(at, in_sizes)
            values = pattern.at(np.maximum(at_source, 0))
            return np.where(at_source < 0, data_type.dtype.type(0), values)

        def torch_peers(library: Torch) -> Iterator[Peer]:
            theirs = library.tensor(pattern).reshape(*in_sizes)
            yield Peer("torch", lambda: torch(library.torch, theirs))

        def dispatch() -> Any:
            call(x, out)
            return out

        yield Case(
            name, types, shape(in_sizes), dispatch,
            sampled(result, expected, same_bits),
            moved(in_sizes) * data_type.itemsize, peers={"torch": torch_peers},
        )

    return Recipe(name, types, make)


def _flat(at: Coordinates, sizes: Sequence[int]) -> np.ndarray:
    result: np.ndarray = np.zeros((), np.int64)
    for a, n in zip(at, sizes):
        result = result * n + a
    return result


def _matrix(scale: Scale) -> Sequence[int]:
    return scale.of(8192), scale.of(4096)


def _planes(scale: Scale) -> Sequence[int]:
    return 1, scale.of(8192), 64, 64


def _wider(n: Sequence[int]) -> Sequence[int]:
    return n[0], n[1] // 4, 2 * n[2], 2 * n[3]


def _deeper(n: Sequence[int]) -> Sequence[int]:
    return n[0], 4 * n[1], n[2] // 2, n[3] // 2


def joins(t: DataType, axis: int) -> Recipe:
    """A matrix joined with itself."""
    return rearranged(
        "JOIN", f"axis {axis}", t, _matrix,
        lambda n: [2 * m if d == axis else m for d, m in enumerate(n)],
        lambda x, out: dml.join([x, x], axis=axis, out=out),
        lambda at, n: _flat([a % m for a, m in zip(at, n)], n),
        lambda torch, x: torch.cat([x, x], axis), inputs=2)


def slices(t: DataType, step: int) -> Recipe:
    """Half of the rows, or of the columns."""
    def half(n: Sequence[int]) -> Sequence[int]:
        return (n[0] // 2, n[1]) if step == 1 else (n[0], n[1] // step)

    return rearranged(
        "SLICE", "rows" if step == 1 else f"step {step}", t, _matrix, half,
        lambda x, out: dml.slice(x, offsets=(0, 0), sizes=out.sizes, strides=(1, step), out=out),
        lambda at, n: _flat([at[0], step * at[1]], n),
        lambda torch, x: (x[: x.shape[0] // 2] if step == 1 else x[:, ::step]).clone(
            memory_format=torch.contiguous_format))


def padded_matrix(t: DataType) -> Recipe:
    def source(at: Coordinates, n: Sequence[int]) -> np.ndarray:
        inside = [a - b for a, b in zip(at, (3, 7))]
        there = (inside[0] >= 0) & (inside[0] < n[0]) & (inside[1] >= 0) & (inside[1] < n[1])
        return np.where(there, _flat(inside, n), -1)

    return rearranged(
        "PADDING", "constant", t, _matrix, lambda n: (n[0] + 8, n[1] + 16),
        lambda x, out: dml.padding(x, start_padding=(3, 7), end_padding=(5, 9), out=out), source,
        lambda torch, x: torch.nn.functional.pad(x, (7, 9, 3, 5)))


def padded_planes(t: DataType) -> Recipe:
    around = (0, 0, 3, 3)

    def mirrored(a: np.ndarray, n: int) -> np.ndarray:
        return n - 1 - abs(n - 1 - abs(a - 3))

    return rearranged(
        "PADDING", "reflection", t, _planes, lambda n: [m + 2 * p for m, p in zip(n, around)],
        lambda x, out: dml.padding(x, start_padding=around, end_padding=around,
                                   padding_mode=PaddingMode.REFLECTION, out=out),
        lambda at, n: _flat([*at[:2], mirrored(at[2], n[2]), mirrored(at[3], n[3])], n),
        lambda torch, x: torch.nn.functional.pad(x, (3, 3, 3, 3), "reflect"))


def tiles(t: DataType) -> Recipe:
    repeats = (1, 1, 2, 2)
    return rearranged(
        "TILE", "2x2", t, _planes, lambda n: [m * r for m, r in zip(n, repeats)],
        lambda x, out: dml.tile(x, repeats=repeats, out=out),
        lambda at, n: _flat([a % m for a, m in zip(at, n)], n),
        lambda torch, x: x.repeat(*repeats))


def to_space(t: DataType) -> Recipe:
    def source(at: Coordinates, n: Sequence[int]) -> np.ndarray:
        b, c, h, w = at
        return _flat([b, 4 * c + h % 2 * 2 + w % 2, h // 2, w // 2], n)

    return rearranged(
        "DEPTH_TO_SPACE1", "2x2", t, _planes,
        _wider,
        lambda x, out: dml.depth_to_space1(x, block_size=2, order=1, out=out), source,
        lambda torch, x: torch.nn.functional.pixel_shuffle(x, 2))


def to_depth(t: DataType) -> Recipe:
    def source(at: Coordinates, n: Sequence[int]) -> np.ndarray:
        b, c, h, w = at
        return _flat([b, c // 4, 2 * h + c % 4 // 2, 2 * w + c % 2], n)

    return rearranged(
        "SPACE_TO_DEPTH1", "2x2", t, _planes,
        _deeper,
        lambda x, out: dml.space_to_depth1(x, block_size=2, order=1, out=out), source,
        lambda torch, x: torch.nn.functional.pixel_unshuffle(x, 2))


_F32_F16 = (DataType.FLOAT32, DataType.FLOAT16)
AT_LIMITS: tuple[Recipe, ...] = tuple(
    recipe.held_to((AS_MANY_BYTES, least), ("torch", 1.0))
    for t in _F32_F16 for recipe, least in (
        (joins(t, 0), 0.95), (joins(t, 1), 0.95), (slices(t, 1), 0.95),
        # All bytes of the input are read for half of its elements.
        (slices(t, 2), 0.53), (padded_matrix(t), 0.90), (padded_planes(t), 0.90),
        (tiles(t), 0.90), (to_space(t), 0.85), (to_depth(t), 0.85))
)
