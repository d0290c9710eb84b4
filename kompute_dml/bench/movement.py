"""Cases that only copy or generate elements: the identity and the diagonal matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from ..layout import extent, memory_order, packed_strides
from .case import Case, Peer, Recipe, shape, touched_bytes
from .peers import NumPy, Torch
from .values import Key, Pattern, bits, numbers, offsets, same_bits, sampled

if TYPE_CHECKING:
    import torch

_IDENTITY = "DML_OPERATOR_ACTIVATION_IDENTITY"
_DIAGONAL = "DML_OPERATOR_DIAGONAL_MATRIX"
_DIAGONAL1 = "DML_OPERATOR_DIAGONAL_MATRIX1"

Layout = Callable[[Scale], tuple[Sequence[int], Sequence[int]]]
"""Sizes and strides, in elements."""


def packed(*sizes: int) -> Layout:
    return lambda scale: _packed([scale.of(n) for n in sizes])


def transposed(rows: int, columns: int) -> Layout:
    return lambda scale: ([scale.of(rows), scale.of(columns)], [1, scale.of(rows)])


def padded(rows: int, columns: int, padding: int) -> Layout:
    return lambda scale: (
        [scale.of(rows), scale.of(columns)], [scale.of(columns) + padding, 1])


def broadcast(rows: int, columns: int) -> Layout:
    return lambda scale: ([scale.of(rows), scale.of(columns)], [0, 1])


def vector(scale: Scale) -> tuple[Sequence[int], Sequence[int]]:
    return [scale.elements], [1]


def square(scale: Scale) -> tuple[Sequence[int], Sequence[int]]:
    return _packed([scale.side] * 2)


def square_transposed(scale: Scale) -> tuple[Sequence[int], Sequence[int]]:
    return [scale.side] * 2, [1, scale.side]


def eight(*axes: int) -> Layout:
    """Eight dimensions, permuted."""

    def make(scale: Scale) -> tuple[Sequence[int], Sequence[int]]:
        sizes, strides = _packed([2 * scale.deep, *[scale.deep] * 6, 2 * scale.deep])
        return [sizes[a] for a in axes], [strides[a] for a in axes]

    return make


def _packed(sizes: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    return sizes, list(packed_strides(sizes))


def _output(
    device: Device, data_type: DataType, sizes: Sequence[int], strides: Sequence[int]
) -> Any:
    return device.empty([extent(sizes, strides)], data_type).strided(sizes, strides)


def identity(
    data_type: DataType, what: str = "", x: Layout = vector, y: Layout | None = None
) -> Recipe:
    """A copy of layout ``x`` into ``y`` (packed by default). ``what`` names the layouts."""
    types = f"{data_type.family} {what}".strip()

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        sizes, strides = x(scale)
        out_sizes, out_strides = (y or (lambda _: _packed(sizes)))(scale)
        pattern = bits(data_type, extent(sizes, strides))
        source = pattern.tensor(device).strided(sizes, strides)
        out = _output(device, data_type, out_sizes, out_strides)
        # Parts are read in the order of memory: a row of a transposed output spans all of it.
        order = memory_order(out_strides)
        read, steps = [sizes[axis] for axis in order], [strides[axis] for axis in order]
        check = sampled(read, lambda key: pattern.at(offsets(key, read, steps)), same_bits)

        def torch_peers(library: Torch) -> Iterator[Peer]:
            x = library.tensor(pattern).as_strided(sizes, strides)
            if y is None:
                yield Peer("torch", x.contiguous if strides != out_strides else x.clone)
            else:
                vector = library.tensor(Pattern(pattern.block, extent(sizes, out_strides)))
                result = vector.as_strided(sizes, out_strides)
                yield Peer("torch", lambda: result.copy_(x))

        def numpy_peers(library: NumPy) -> Iterator[Peer]:
            flat = pattern.host()
            in_bytes = [s * flat.itemsize for s in strides]
            x = np.lib.stride_tricks.as_strided(flat, sizes, in_bytes)
            yield Peer("numpy", lambda: x.copy("C"))

        yield Case(
            _IDENTITY, types, shape(sizes),
            lambda: dml.activation_identity(source, out=out),
            lambda output: check(_permuted(output, order)),
            touched_bytes((source.desc, out.desc)),
            peers={"torch": torch_peers, "numpy": numpy_peers},
        )

    return Recipe(_IDENTITY, types, make)


def _permuted(output: dml.Tensor | torch.Tensor | np.ndarray, order: Sequence[int]) -> Any:
    permute = output.permute if hasattr(output, "permute") else output.transpose
    return permute(tuple(order))


def small_identities(side: int, count: int) -> Recipe:
    """Many small copies in one submit."""
    types = f"f32, {count} in one submit"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        pattern = bits(DataType.FLOAT32, side * side)
        x, out = pattern.tensor(device).reshape(side, side), device.empty([side, side])

        def dispatch() -> Any:
            for _ in range(count):
                dml.activation_identity(x, out=out)
            return out

        strides = (side, 1)
        yield Case(
            _IDENTITY, types, shape(x.sizes), dispatch,
            sampled(x.sizes, lambda key: pattern.at(offsets(key, x.sizes, strides)), same_bits),
            touched_bytes((x.desc, out.desc)), dispatches=count,
        )

    return Recipe(_IDENTITY, types, make)


def _distances(key: Key, sizes: Sequence[int]) -> np.ndarray:
    """Column minus row of the elements that ``key`` selects."""
    flat = offsets(key, sizes, _packed(sizes)[1])
    height, width = sizes[-2:]
    return flat % width - flat // width % height


def diagonal(data_type: DataType, sizes: Layout = square) -> Recipe:
    def make(device: Device, scale: Scale) -> Iterator[Case]:
        out = device.empty(sizes(scale)[0], data_type)
        dtype = data_type.dtype

        def torch_peers(library: Torch) -> Iterator[Peer]:
            torch = library.torch
            kind = getattr(torch, dtype.name)
            filled = torch.empty(tuple(out.sizes), dtype=kind, device=library.place)
            if out.ndim == 2:
                yield Peer("torch.eye", lambda: torch.eye(
                    *out.sizes, dtype=kind, device=library.place))
            yield Peer("torch.fill", lambda: filled.fill_(1), checked=False)

        def numpy_peers(library: NumPy) -> Iterator[Peer]:
            # Existing memory, as on the device: np.eye would map pages of zeros.
            filled = np.empty(out.sizes, dtype)

            def overwritten() -> np.ndarray:
                filled.fill(0)
                np.fill_diagonal(filled, 1)
                return filled

            if out.ndim == 2:
                yield Peer("numpy", overwritten)

        yield Case(
            _DIAGONAL, types, shape(out.sizes),
            lambda: dml.diagonal_matrix(out.sizes, data_type=data_type, out=out),
            sampled(out.sizes, lambda key: (_distances(key, out.sizes) == 0).astype(dtype),
                    same_bits),
            touched_bytes((out.desc,)),
            peers={"torch": torch_peers, "numpy": numpy_peers},
        )

    types = data_type.family + ("" if sizes is square else " batches" if _batched(sizes) else "")
    return Recipe(_DIAGONAL, types, make)


def _batched(sizes: Layout) -> bool:
    return len(sizes(Scale(1, 1, (), 1, 1))[0]) > 2


BAND = 1024
"""Half the width of the ``band``, at full scale."""


def diagonal1(
    data_type: DataType, kept: str, sizes: Layout = square, y: Layout | None = None
) -> Recipe:
    """Keeps the ``upper`` or ``lower`` triangle or the ``band``, or writes ``filled`` diagonals.

    Bytes count what is written, and the elements of the input that are kept.
    """
    types = f"{data_type.family} {kept}" + (", strided output" if y else "")

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        (height, width), strides = sizes(scale)
        half = scale.of(BAND)
        begin, end = {
            "upper": (-height, 0), "lower": (1, width), "band": (half + 1, -half),
            "filled": (-2, 3),
        }[kept]
        value = 7 if kept == "filled" else 0
        dtype = data_type.dtype
        pattern = numbers(dtype, height * width, 1, 100, 2)
        x = pattern.tensor(device).reshape(height, width)
        out = _output(device, data_type, *(y or sizes)(scale))

        def is_filled(distance: np.ndarray) -> np.ndarray:
            if begin <= end:
                return (distance >= begin) & (distance < end)
            return (distance < end) | (distance >= begin)

        def expected(key: Key) -> np.ndarray:
            values = pattern.at(offsets(key, x.sizes, strides))
            return np.where(is_filled(_distances(key, x.sizes)), dtype.type(value), values)

        # The distance of each diagonal, and the number of its elements.
        distance = np.arange(1 - height, width)
        lengths = np.minimum(np.minimum(height, width), np.minimum(height + distance,
                                                                  width - distance))
        read = int(lengths[~is_filled(distance)].sum())

        def torch_peers(library: Torch) -> Iterator[Peer]:
            x = library.tensor(pattern).reshape(height, width)
            yield from {
                "upper": [Peer("torch", x.triu)],
                "lower": [Peer("torch", x.tril)],
                "band": [Peer("torch", lambda: x.triu(-half).tril(half))],
            }.get(kept, [])

        def numpy_peers(library: NumPy) -> Iterator[Peer]:
            x = pattern.host().reshape(height, width)
            at = np.arange(width) - np.arange(height)[:, None]
            yield Peer("numpy", {
                "upper": lambda: np.triu(x), "lower": lambda: np.tril(x),
            }.get(kept, lambda: np.where(is_filled(at), dtype.type(value), x)))

        yield Case(
            _DIAGONAL1, types, shape(x.sizes),
            lambda: dml.diagonal_matrix1(
                x, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end, out=out),
            sampled(x.sizes, expected, same_bits),
            (read + height * width) * dtype.itemsize,
            peers={"torch": torch_peers, "numpy": numpy_peers},
        )

    return Recipe(_DIAGONAL1, types, make)
