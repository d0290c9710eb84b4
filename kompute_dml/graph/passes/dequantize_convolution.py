"""Integer convolutions scale their sums on their own."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...operators.convolution import ConvolutionIntegerToFloatDesc
from ..memory import Storage
from ..node import OTHER, Node, Nodes, has_scale_bias, moved, output_of, seen_as
from ..rewrite import rewrite

_Scale = tuple[Storage, TensorDesc]


@rewrite("dequantize_convolution",
         "an integer convolution scales its sums to FLOAT32 on its own, so that bias, activation "
         "and epilogue are fused, too", 110)
def dequantize_convolution(g: Nodes) -> None:
    """CONVOLUTION_INTEGER, CAST to FLOAT32 and a scale, or the product of one for the input and one
    for the filter, become one operator. The kernel rounds as these do."""
    for node in g:
        if node.name != "CONVOLUTION_INTEGER" or (match := _found(g, node)) is None:
            continue
        scaled = match[0][-1]
        products = [g.maker(scaled, slot) for slot in OTHER]
        g.replace(*match)
        for product in products:  # of the scales
            if product is not None and g.has(product) and not g.users(product) and g.is_whole(
                    product.storages["output_tensor"]):
                g.remove(product)


def _found(g: Nodes, node: Node) -> tuple[list[Node], Node] | None:
    cast = g.only_user(node)
    if cast is None or cast[0].name != "CAST":
        return None
    user = g.only_user(cast[0])
    summed = seen_as(cast[0], "input_tensor", "output_tensor", output_of(node))
    if (summed is None or user is None or summed.data_type is not DataType.FLOAT32
            or user[0].name != "ELEMENT_WISE_MULTIPLY" or has_scale_bias(user[0])):
        return None
    scaled, slot = user
    y, scale = (seen_as(scaled, slot, to, summed) for to in ("output_tensor", OTHER[slot]))
    if y is None or scale is None or scale.data_type is not DataType.FLOAT32 or any(
            s for i, (s, n) in enumerate(zip(scale.strides, scale.sizes)) if i != 1 and n > 1):
        return None
    storages = node.storages | {"output_tensor": scaled.storages["output_tensor"]}
    own = scaled.storages[OTHER[slot]], _by_channel(scale, scale.sizes, scale.strides[1])
    factors = {"filter_scale_tensor": own} | (_factors(g, scaled, OTHER[slot], own[1]) or {})
    values: dict[str, Any] = {
        f.snake: getattr(node.desc, f.snake) for f in node.desc.operator.spec.fields}
    values |= {f: t for f, (_, t) in factors.items()} | {"output_tensor": y}
    return [node, cast[0], scaled], Node(
        ConvolutionIntegerToFloatDesc(**values),
        storages | {f: s for f, (s, _) in factors.items()}, node.label)


def _factors(g: Nodes, scaled: Node, slot: str, scale: TensorDesc) -> dict[str, _Scale] | None:
    """Both scales, if the one in ``slot`` is their product; else None."""
    product = g.maker(scaled, slot)
    if product is None or product.name != "ELEMENT_WISE_MULTIPLY" or has_scale_bias(product):
        return None
    y = output_of(product)
    count = y.element_count
    if max(y.sizes) != count or (count > 1 and (scale.strides[1], scale.sizes[1]) != (1, count)):
        return None
    for a, b in (("a_tensor", "b_tensor"), ("b_tensor", "a_tensor")):
        if not _along(product.tensor(a)):
            return {f: (product.storages[side], _by_channel(
                product.tensor(side), sizes, _along(product.tensor(side))))
                for f, side, sizes in (("input_scale_tensor", a, (1,) * len(scale.sizes)),
                                       ("filter_scale_tensor", b, scale.sizes))}
    return None


def _along(t: TensorDesc) -> int:
    """The stride of a line of numbers, or 0 where all are the same one."""
    return next((s for s, n in zip(t.strides, t.sizes) if n > 1), 0)


def _by_channel(t: TensorDesc, sizes: tuple[int, ...], stride: int) -> TensorDesc:
    """The numbers of an image's channels, in its dimensions."""
    rank = len(sizes)
    return moved(t, (1, sizes[1], *[1] * (rank - 2)),
                 (0, stride if sizes[1] > 1 else 0, *[0] * (rank - 2)))
