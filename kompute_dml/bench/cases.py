"""The cases of each suite. At a tiny scale the operators' suite is the self-test."""

from __future__ import annotations

from ..cases import CASES
from ..dtypes import DataType
from .case import Recipe
from .convolution import convolution
from .elementwise import ELEMENTWISE, EVERY_TYPE
from .gather import (
    gather_elements,
    gather_rows,
    nonzero,
    one_hot,
    scatter,
    scatter_rows,
)
from .limits import FAMILIES, LAYERS, LIMITS
from .movement import diagonal, diagonal1, identity, square_transposed
from .ordinary import ordinary
from .pooling import pooling
from .products import BenchProduct, product
from .rearranged import AT_LIMITS
from .variants import VARIANTS

_F32, _F16, _U8, _I8 = DataType.FLOAT32, DataType.FLOAT16, DataType.UINT8, DataType.INT8

COPY = identity(_F32)
"""The row that the bandwidth of others is compared with."""


def copy_of(nbytes: int) -> Recipe:
    """A copy that moves so many bytes, read and written."""
    return identity(_F32, x=lambda _: ([-(-nbytes // 8)], [1]))


_WITH_PEERS: tuple[Recipe, ...] = (
    COPY,
    identity(_F16),
    identity(_F32, "transposed", square_transposed),
    *(diagonal(t) for t in (_F32, _U8, DataType.INT64)),
    *(diagonal1(t, "filled") for t in (_F32, DataType.INT16, _U8)),
    product(BenchProduct()),
    product(BenchProduct(_U8, _I8, full=True)),
    product(BenchProduct(_U8, _U8, _F16)),
    product(BenchProduct(DataType.INT16, DataType.INT16)),
    *ELEMENTWISE,
    *(gather_rows(o, _F32, DataType.INT32) for o in ("GATHER", "GATHER_ND", "GATHER_ND1")),
    gather_elements(DataType.INT64), scatter(DataType.INT64), scatter_rows(),
    one_hot(DataType.INT32), nonzero(),
    pooling(_F32, "max"), pooling(_F32, "average"),
    convolution(_F32, LAYERS[1]), convolution(_F32, LAYERS[-2]),
)

RECIPES: tuple[Recipe, ...] = (*_WITH_PEERS, *(
    ordinary(operator) for operator in CASES
    if operator not in {recipe.operator for recipe in _WITH_PEERS}
))
"""Each operator, in an ordinary case."""

MOVED = {recipe.operator for recipe in VARIANTS}
"""Operators that are timed in several layouts and types beside NumPy."""
_BESIDE_NUMPY: tuple[Recipe, ...] = (
    *(recipe for recipe in RECIPES if recipe.operator not in MOVED),
    *map(ordinary, sorted(MOVED)), *VARIANTS,
)

_TENTH_OF_NUMPY = ("numpy", 0.1)
_EACH_TYPE = {(r.operator, r.types): r for r in (*ELEMENTWISE, *EVERY_TYPE)}.values()

SUITES: dict[str, tuple[Recipe, ...]] = {
    "operators": RECIPES,
    "limits": LIMITS,
    "families": (COPY, *FAMILIES),
    # A dynamic quantization has to read its input twice.
    "elementwise": (COPY, *(recipe if "DYNAMIC" in recipe.operator
                            else recipe.held_to(("copy", 0.95)) for recipe in _EACH_TYPE)),
    "movement": (COPY, *AT_LIMITS),
    "numpy": (*(recipe.held_to(_TENTH_OF_NUMPY) for recipe in _BESIDE_NUMPY),
              product(BenchProduct(), 512, 512, 512, scaled=False).held_to(
                  ("us", 1e6), _TENTH_OF_NUMPY)),
}
"""The cases of each suite, with their goals. The first one copies."""
