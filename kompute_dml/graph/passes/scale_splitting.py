"""Integer products multiply both scales on their own."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...operators.base import widened
from ...spec import Field
from ..memory import Storage
from ..node import OTHER, Node, Nodes, output_of
from ..rewrite import rewrite

_FIRST = Field("ScalesFirst", "attribute", "BOOL", True)
_SCALES = {"a_scale_tensor": "b_scale_tensor", "b_scale_tensor": "a_scale_tensor"}
_Scale = tuple[Storage, TensorDesc]


@rewrite("scale_splitting", "an integer product multiplies A's scale by B's itself", 130)
def scale_splitting(g: Nodes) -> None:
    """A product of A's scale, one number, and B's is a scale of MATRIX_MULTIPLY_INTEGER_TO_FLOAT,
    whose other scale is 1. The kernel rounds their product, too, so results stay the same."""
    for node in g:
        if node.name != "MATRIX_MULTIPLY_INTEGER_TO_FLOAT" or (
                output_of(node).data_type is not DataType.FLOAT32):
            continue
        factors = next((f for slot in _SCALES if (f := _factors(g, node, slot)) is not None), None)
        if factors is not None:
            values: dict[str, Any] = {
                f.snake: getattr(node.desc, f.snake) for f in node.desc.operator.spec.fields}
            values |= {slot: t for slot, (_, t) in factors.items()} | {"scales_first": True}
            storages = node.storages | {slot: storage for slot, (storage, _) in factors.items()}
            g.replace([node], Node(
                widened(type(node.desc), _FIRST)(**values), storages, node.label))


def _factors(g: Nodes, node: Node, slot: str) -> dict[str, _Scale] | None:
    """Both scales, if the one in ``slot`` is their product; else None."""
    product = g.maker(node, slot)
    if product is None or product.name != "ELEMENT_WISE_MULTIPLY" or (
            node.number(_SCALES[slot]) != 1):
        return None
    rank, columns = len(node.tensor(slot).sizes), output_of(node).sizes[-1]
    # A constant is B's, as its matrix is.
    sides = sorted(OTHER, key=lambda side: product.storages[side].root.constant)
    for a, b in (sides, sides[::-1]):
        one, each = (_as_scale(product, side, rank, columns) for side in (a, b))
        if one is not None and each is not None and one[1].sizes[-1] == 1:
            return {"a_scale_tensor": one, "b_scale_tensor": each}
    return None


def _as_scale(product: Node, side: str, rank: int, columns: int) -> _Scale | None:
    """A factor as one number, or one for each column."""
    t, y = product.tensor(side), output_of(product)
    *before, count = y.sizes
    if any(n > 1 for n in before) or count not in (1, columns) or (
            t.data_type is not DataType.FLOAT32 or (count > 1 and y.strides[-1] != 1)):
        return None
    repeats = count == 1 or t.strides[-1] == 0
    sizes = (*[1] * (rank - 1), 1 if repeats else count)
    return product.storages[side], TensorDesc(
        t.data_type, sizes, (*[0] * (rank - 1), 0 if repeats else t.strides[-1]))
