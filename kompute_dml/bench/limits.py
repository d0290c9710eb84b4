"""The operators at a large GPU's limits, and what each case is to reach.

A target is a ratio of speeds: to copying the bytes that the case needs, to a peer of the same run,
or to another case; or a number of operations, or of microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..dtypes import DataType
from .case import Recipe
from .gather import gather_elements, gather_rows, nonzero, one_hot, scatter, scatter_rows
from .movement import (
    broadcast,
    diagonal,
    diagonal1,
    eight,
    identity,
    packed,
    padded,
    small_identities,
    transposed,
)
from .pooling import pooling
from .products import Product, product

Goal = tuple[str | Recipe, float]
"""What to compare with, and the least ratio: "copy", a peer's name, a recipe, "TOPS", "us"."""


@dataclass(frozen=True)
class Limit:
    recipe: Recipe
    goals: tuple[Goal, ...] = ()


_SIDE = 16384
_F32, _F16 = DataType.FLOAT32, DataType.FLOAT16
_WIDTHS = (DataType.UINT8, DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64)


def _movement() -> Iterator[Limit]:
    for t, columns in ((_F32, _SIDE), (_F16, 2 * _SIDE)):
        yield Limit(identity(t, "packed", packed(_SIDE, columns)), (("copy", 0.97), ("torch", 1.0)))
    for t in (_F32, _F16):
        turned, straight = transposed(_SIDE, _SIDE), packed(_SIDE, _SIDE)
        for what, x, y in (("transposed in", turned, None), ("transposed out", straight, turned)):
            yield Limit(identity(t, what, x, y), (("copy", 0.80), ("torch", 2.5)))
    for t in (_F32, _F16):
        apart = padded(_SIDE, _SIDE, 8)
        for what, x, y in (
            ("padded rows", apart, apart),
            ("broadcast rows", broadcast(_SIDE, _SIDE), None),
            ("outer axes permuted", eight(6, 2, 4, 0, 5, 1, 3, 7), None),
            ("axes reversed", eight(7, 6, 5, 4, 3, 2, 1, 0), None),
        ):
            yield Limit(identity(t, what, x, y), (("copy", 0.70),))
    for t in _WIDTHS:
        yield Limit(diagonal(t, packed(_SIDE, _SIDE)), (("torch.fill", 0.95), ("torch.eye", 1.0)))
    for t in _WIDTHS:
        yield Limit(diagonal(t, packed(4, _SIDE // 2, _SIDE // 2)), (("torch.fill", 0.95),))
    for t in _WIDTHS:
        for kept in ("upper", "lower", "band"):
            recipe = diagonal1(t, kept, packed(_SIDE, _SIDE))
            yield Limit(recipe, (("torch", 1.2), ("copy", 0.90)))
            if t is _F16:
                apart = padded(_SIDE, _SIDE, 8)
                yield Limit(diagonal1(t, kept, packed(_SIDE, _SIDE), apart), ((recipe, 0.5),))
    yield Limit(small_identities(64, 1000), (("us", 5.0),))


def _products() -> Iterator[Limit]:
    def full(out: DataType = _F32, b_along_k: bool = True, compiled: bool = False) -> Product:
        return Product(out=out, b_along_k=b_along_k, full=True, compiled=compiled)

    cubes: dict[int, tuple[Goal, ...]] = {
        8192: (("torch", 1.5), ("torch.compile", 0.7)),
        4096: (("torch", 2.3), ("torch.compile", 0.8)),
        2048: (("torch.compile", 1.0),),
        1024: (("torch.compile", 1.0),),
    }
    usual: dict[bool, Recipe] = {}
    for side, goals in cubes.items():
        for out in (_F32, _F16):
            yield Limit(product(full(out, compiled=True), side, side, side), goals)
        for out in (_F32, _F16):
            yield Limit(product(full(out, b_along_k=False), side, side, side), (("torch", 4.0),))
        constant = Product(full=True, constant_b=True, compiled=True)
        yield Limit(product(constant, side, side, side), goals)

    side = 4096
    for along in (True, False):
        usual[along] = product(Product(b_along_k=along), side, side, side)
        yield Limit(usual[along])
    for kind in (
        Product(DataType.UINT8, DataType.INT8, b_along_k=True),
        Product(DataType.UINT8, DataType.UINT8, b_along_k=True),
    ):
        yield Limit(product(kind, side, side, side), ((usual[True], 0.95),))
    for along in (True, False):
        for kind, sizes in (
            (Product(b_along_k=along), (4095, 4097, 4093)),
            (Product(b_along_k=along, a_across=True), (side,) * 3),
            (Product(b_along_k=along, padding=16), (side,) * 3),
            (Product(b_along_k=along, padding=3), (side,) * 3),
        ):
            yield Limit(product(kind, *sizes), ((usual[along], 0.7),))
    for along in (True, False):
        for k, n in ((4096, 4096), (4096, 11008), (4096, 14336), (14336, 4096)):
            for m in (1, 4, 16):
                for apart in (False, True):
                    kind = Product(b_along_k=along, cold=True, apart=apart)
                    yield Limit(product(kind, m, k, n), (("copy", 0.80),))
    for k, n in ((384, 384), (384, 1536), (1536, 384), (768, 768), (1536, 1536), (4096, 4096)):
        for m in (128, 384, 512):
            yield Limit(product(Product(b_along_k=True), m, k, n), (("torch._int_mm", 1.0),))
    for along in (True, False):
        kind = Product(b_along_k=along, batches=12)
        yield Limit(product(kind, 128, 64, 128), (("torch._int_mm", 1.0),))
    yield Limit(product(Product(DataType.INT16, DataType.INT16), *(4096,) * 3), (("TOPS", 3.0),))
    yield Limit(product(Product(DataType.INT32, DataType.INT32), *(2048,) * 3), (("TOPS", 1.0),))


def _gathers() -> Iterator[Limit]:
    i32, i64 = DataType.INT32, DataType.INT64
    for t in (_F32, _F16):
        yield Limit(gather_rows("GATHER", t, i32), (("copy", 0.9),))
    for index, torch in ((i64, 1.0), (i32, 1.3)):
        yield Limit(gather_elements(index), (("torch", torch),))
        yield Limit(scatter(index), (("torch", 2.0),))
        yield Limit(one_hot(index), (("torch", 1.0),))
    yield Limit(scatter_rows(), (("torch", 1.0),))
    yield Limit(nonzero(), (("torch", 2.0),))
def _pooling() -> Iterator[Limit]:
    for t in (_F32, _F16):
        for last in (False, True):
            for what in ("max", "average"):
                yield Limit(pooling(t, what, last), (("copy", 0.85),))
            # Copying counts what it reads and what it writes; this one only reads.
            yield Limit(pooling(t, "global", last), (("copy", 0.9),))


def _all(*parts: Callable[[], Iterator[Limit]]) -> tuple[Limit, ...]:
    return tuple(limit for part in parts for limit in part())


LIMITS = _all(_movement, _products, _gathers)
LIMITS = _all(_movement, _products, _pooling)
