"""Cases of operators with indices: gathers, scatters, one-hot vectors, non-zero coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from ..layout import packed_strides
from .case import Case, Peer, Recipe, shape, touched_bytes
from .peers import Torch
from .values import Pattern, bits, offsets, same_bits, sampled

if TYPE_CHECKING:
    from torch import Tensor

_PERIOD = 1 << 16


class _Work(NamedTuple):
    dispatch: Callable[[], object]
    sizes: tuple[int, ...]
    """Sizes of the output."""
    expected: Callable[[np.ndarray], np.ndarray]
    """The output's elements at these positions, counted in row-major order."""
    bytes: int
    torch: Callable[[Any, Callable[[Pattern], Any]], Any]
    """(the module, a function that makes vectors) -> the same work."""


def _recipe(operator: str, types: str, work: Callable[[Any, Any, Scale], _Work]) -> Recipe:
    name = "DML_OPERATOR_" + operator

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        w = work(dml, device, scale)
        steps = packed_strides(w.sizes)

        def torch_peers(library: Torch) -> Iterator[Peer]:
            # PyTorch writes any of several duplicates, and its coordinates are int64.
            yield Peer("torch", w.torch(library.torch, library.tensor), checked=False)

        yield Case(
            name, types, shape(w.sizes), w.dispatch,
            sampled(w.sizes, lambda key: w.expected(offsets(key, w.sizes, steps)), same_bits),
            w.bytes, peers={"torch": torch_peers})

    return Recipe(name, types, make)


def _indices(kind: DataType, count: int, size: int) -> Pattern:
    rng = np.random.default_rng(3)
    return Pattern(rng.integers(0, size, min(_PERIOD, count)).astype(kind.dtype), count)


def gather_rows(operator: str, kind: DataType, index: DataType, rows: int = 128256,
                chosen: int = 8192, columns: int = 4096) -> Recipe:
    """Rows of a matrix by index: GATHER, GATHER_ND or GATHER_ND1."""
    def work(dml: ModuleType, device: Device, scale: Scale) -> _Work:
        height, count, width = (scale.of(n) for n in (rows, chosen, columns))
        table, listed = bits(kind, height * width), _indices(index, count, height)
        x = device.tensor(table.host()).reshape(height, width)  # uploaded, as tables are
        out = device.empty([count, width], kind)
        if operator == "GATHER":
            i = listed.tensor(device).reshape(1, count)

            def call() -> Any:
                return dml.gather(x, i, axis=0, index_dimensions=1, out=out)
        else:
            i = listed.tensor(device).reshape(count, 1)

            def call() -> Any:
                return getattr(dml, operator.lower())(
                    x, i, input_dimension_count=2, indices_dimension_count=2, out=out)

        def torch(module: ModuleType, vector: Callable[[Pattern], Tensor]) -> Any:
            a, b = vector(table).reshape(height, width), vector(listed).to(module.int64)
            return lambda: module.index_select(a, 0, b)

        def expected(at: np.ndarray) -> np.ndarray:
            return table.at(listed.at(at // width).astype(np.int64) * width + at % width)

        return _Work(call, (count, width), expected,
                     2 * touched_bytes((out.desc,)) + touched_bytes((i.desc,)), torch)

    return _recipe(operator, f"{kind.family} {index.family} rows", work)


def gather_elements(index: DataType, rows: int = 65536, columns: int = 4096) -> Recipe:
    def work(dml: ModuleType, device: Device, scale: Scale) -> _Work:
        height, width = scale.of(rows), scale.of(columns)
        table = bits(DataType.FLOAT32, height * width)
        listed = _indices(index, height * width, width)
        x, i = (p.tensor(device).reshape(height, width) for p in (table, listed))
        out = device.empty([height, width])

        def torch(module: ModuleType, vector: Callable[[Pattern], Tensor]) -> Any:
            a, b = (vector(p).reshape(height, width) for p in (table, listed))
            b = b.to(module.int64)
            return lambda: module.gather(a, 1, b)

        def expected(at: np.ndarray) -> np.ndarray:
            return table.at(at // width * width + listed.at(at).astype(np.int64))

        return _Work(lambda: dml.gather_elements(x, i, axis=1, out=out), (height, width), expected,
                     touched_bytes((x.desc, i.desc, out.desc)), torch)

    return _recipe("GATHER_ELEMENTS", f"f32 {index.family}", work)


def scatter(index: DataType, rows: int = 65536, columns: int = 4096) -> Recipe:
    """Along the last axis, with duplicates."""
    def work(dml: ModuleType, device: Device, scale: Scale) -> _Work:
        height, width = scale.of(rows), scale.of(columns)
        table, new = (bits(DataType.FLOAT32, height * width, seed) for seed in (1, 2))
        listed = _indices(index, height * width, width)
        x, u, i = (p.tensor(device).reshape(height, width) for p in (table, new, listed))
        out = device.empty([height, width])

        def torch(module: ModuleType, vector: Callable[[Pattern], Tensor]) -> Any:
            a, b, c = (vector(p).reshape(height, width) for p in (table, listed, new))
            b = b.to(module.int64)
            return lambda: module.scatter(a, 1, b, c)

        def expected(at: np.ndarray) -> np.ndarray:
            result = np.empty(at.shape, np.float32)
            for row in np.unique(at // width):
                places = row * width + np.arange(width)
                line = table.at(places)
                line[listed.at(places).astype(np.int64)] = new.at(places)
                here = at // width == row
                result.view(np.uint32)[here] = line.view(np.uint32)[at[here] % width]
            return result

        return _Work(lambda: dml.scatter(x, i, u, axis=1, out=out), (height, width), expected,
                     touched_bytes((x.desc, i.desc, u.desc, out.desc)), torch)

    return _recipe("SCATTER", f"f32 {index.family}", work)


def scatter_rows(rows: int = 65536, chosen: int = 16384, columns: int = 1024) -> Recipe:
    """SCATTER_ND of whole rows."""
    def work(dml: ModuleType, device: Device, scale: Scale) -> _Work:
        height, count, width = (scale.of(n) for n in (rows, chosen, columns))
        kind = DataType.FLOAT32
        table, new = bits(kind, height * width), bits(kind, count * width, 2)
        listed = _indices(DataType.INT64, count, height)
        x, u = table.tensor(device).reshape(height, width), new.tensor(device).reshape(count, width)
        i = listed.tensor(device).reshape(count, 1)
        out = device.empty([height, width])
        last = np.full(height, -1)
        last[listed.host()] = np.arange(count)

        def torch(module: ModuleType, vector: Callable[[Pattern], Tensor]) -> Any:
            a, b, c = vector(table).reshape(height, width), vector(listed), vector(new)
            c = c.reshape(count, width)
            return lambda: module.index_copy(a, 0, b, c)

        def expected(at: np.ndarray) -> np.ndarray:
            update = last[at // width]
            return np.where(update < 0, table.at(at).view(np.uint32),
                            new.at(update * width + at % width).view(np.uint32)).view(np.float32)

        return _Work(
            lambda: dml.scatter_nd(x, i, u, input_dimension_count=2, indices_dimension_count=2,
                                   out=out),
            (height, width), expected, touched_bytes((x.desc, out.desc, i.desc))
            + 2 * touched_bytes((u.desc,)), torch)

    return _recipe("SCATTER_ND", "f32 i64 rows", work)


def one_hot(index: DataType, rows: int = 65536, depth: int = 1000) -> Recipe:
    def work(dml: ModuleType, device: Device, scale: Scale) -> _Work:
        height, width = scale.of(rows), scale.of(depth)
        listed = _indices(index, height, width)
        i, values = listed.tensor(device).reshape(height, 1), device.tensor([[0, 1]], "float32")
        out = device.empty([height, width])

        def torch(module: ModuleType, vector: Callable[[Pattern], Tensor]) -> Any:
            at = vector(listed).to(module.int64).reshape(height, 1)
            return lambda: module.zeros(height, width, device=at.device).scatter_(1, at, 1.0)

        def expected(at: np.ndarray) -> np.ndarray:
            return (listed.at(at // width) == at % width).astype(np.float32)

        return _Work(lambda: dml.one_hot(i, values, axis=1, out=out), (height, width), expected,
                     touched_bytes((i.desc, out.desc)), torch)

    return _recipe("ONE_HOT", f"f32 {index.family}", work)


def nonzero(side: int = 8192) -> Recipe:
    """Half of the elements of a square are zeros."""
    def work(dml: ModuleType, device: Device, scale: Scale) -> _Work:
        n = scale.of(side)
        chosen = np.random.default_rng(5).random(min(_PERIOD, n * n)) < 0.5
        pattern = Pattern(chosen.astype(np.float32), n * n)
        x = pattern.tensor(device).reshape(n, n)
        places = np.flatnonzero(pattern.host())
        count, rows = device.empty([1], "uint32"), device.empty([n * n, 2], "uint32")

        def torch(module: ModuleType, vector: Callable[[Pattern], Tensor]) -> Any:
            a = vector(pattern).reshape(n, n)
            return lambda: module.nonzero(a)

        def expected(at: np.ndarray) -> np.ndarray:
            place = places[at // 2]
            return np.where(at % 2 == 0, place // n, place % n).astype(np.uint32)

        return _Work(lambda: dml.nonzero_coordinates(x, out=(count, rows))[1], (len(places), 2),
                     expected, touched_bytes((x.desc,)) + 8 * len(places), torch)

    return _recipe("NONZERO_COORDINATES", "f32 half of them", work)
