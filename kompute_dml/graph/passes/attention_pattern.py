"""Attention that is spelled out: softmax(Q K^T * scale + mask) V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...attributes import MultiheadAttentionMaskType as MaskType
from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import Ints, is_packed, packed_strides
from ...lowering import measured
from ..memory import Storage
from ..node import (
    OTHER,
    SUMS,
    Node,
    Nodes,
    alike,
    changed,
    class_of,
    factor_of,
    fused_by,
    moved,
    output_of,
    seen_as,
)
from ..rewrite import rewrite

_Value = tuple[Storage, TensorDesc]


class _Mask(NamedTuple):
    """What is added to scores."""

    adder: Node
    slot: str
    tensor: TensorDesc
    """It, in the order of the scores."""

    @property
    def value(self) -> _Value:
        return self.adder.storages[self.slot], self.tensor


@rewrite("attention_pattern",
         "softmax(Q K^T) V that is spelled out is MULTIHEAD_ATTENTION. If all scores of a query "
         "are -infinity, it gets 0, where a softmax gives NaN", 90)
def attention_pattern(g: Nodes) -> None:
    for softmax in g:
        if softmax.name != "ACTIVATION_SOFTMAX1" or (scored := _scores(g, softmax)) is None:
            continue
        scores, scale, masks, parts = scored
        user = g.only_user(softmax)
        if user is None or user[1] != "a_tensor" or not _is_product(user[0]):
            continue
        product = user[0]
        sizes = output_of(scores).sizes
        # With many keys, FLOAT32 attention is faster as separate matrix products where values are
        # long: their scores are computed several times.
        known = measured.figures(g.traits.device_class, "attention")
        apart = output_of(product).sizes[-1] > known["fused_values"]
        if output_of(scores).data_type is DataType.FLOAT32 and apart and (
                sizes[-1] > known["fused_keys"]):
            continue
        if product.tensor("a_tensor").sizes != output_of(scores).sizes or not _packed(
                product, "a_tensor"):
            continue
        scores, more, first = _unscaled(g, scores)
        fields = _heads(scores, product)
        if fields is not None:
            mask = _sum(g, masks) if masks else None
            new = _attend(fields, scores, product, scale * more, mask)
            left = [node for node in parts if g.has(node)]
            g.replace([*first, *left, softmax, product], new)


def _unscaled(g: Nodes, scores: Node) -> tuple[Node, float, list[Node]]:
    """The product with unscaled queries and keys, their scale, and the operators that scale them:
    PyTorch's exporter multiplies both by the root of the scale."""
    product, scale, parts = scores, 1.0, []
    for operand in OTHER:
        scaled = g.maker(product, operand)
        if scaled is None or g.only_user(scaled) != (product, operand):
            continue
        for slot in OTHER:
            number = factor_of(scaled, slot)
            x = number and seen_as(scaled, "output_tensor", slot, scores.tensor(operand))
            if number and x:
                scores = changed(scores, {operand: scaled.storages[slot]}, **{operand: x})
                scale *= number
                parts.append(scaled)
                break
    return scores, scale, parts


def _is_product(node: Node) -> bool:
    """Whether it is a GEMM without C, Alpha or activation."""
    d = node.desc
    return node.name == "GEMM" and not d.trans_a and d.alpha == 1 and (
        "c_tensor" not in node.storages and fused_by(node) is None)


def _packed(node: Node, slot: str) -> bool:
    t = node.tensor(slot)
    return is_packed(t.sizes, t.strides)


def _scores(g: Nodes, softmax: Node) -> Any:
    """The product of queries and keys, its scale, the masks as (storage, tensor), and all
    operators."""
    d = softmax.desc
    x = softmax.tensor("input_tensor")
    if len(d.axes) != 1 or not _packed(softmax, "input_tensor") or (
            not _packed(softmax, "output_tensor")):
        return None
    keys = x.sizes[d.axes[0]]
    if any(n > 1 for n in x.sizes[d.axes[0] + 1 :]):
        return None
    parts: list[Node] = []
    adders: list[tuple[Node, str]] = []
    scale, at, slot = 1.0, softmax, "input_tensor"
    while (node := g.maker(at, slot)) is not None and g.only_user(node) == (at, slot):
        parts.append(node)
        if _is_product(node):
            t = output_of(node)
            if t.sizes[-1] != keys or not _packed(node, "output_tensor") or (
                    t.data_type is not x.data_type or t.element_count != x.element_count):
                return None
            masks = [_Mask(total, field, mask) for total, field in adders
                     if (mask := seen_as(total, OTHER[field], field, t)) is not None]
            seen = len(masks) == len(adders) and (len(masks) < 2 or g.folds)
            return (node, scale, masks, parts) if seen else None
        main = _main_operand(g, node)
        if main is None or not alike(node.tensor(main), output_of(node)):
            return None
        if node.name in SUMS:
            if scale != 1 or fused_by(node):
                return None
            adders.append((node, OTHER[main]))
        elif (number := factor_of(node, main)) is not None:
            scale *= number
        else:
            return None
        at, slot = node, main
    return None


def _main_operand(g: Nodes, node: Node) -> str | None:
    """The operand that is a product, scaled or not."""
    for slot, other in OTHER.items():
        if slot in node.storages and other in node.storages:
            maker = g.maker(node, slot)
            if maker is not None and node.number(slot) is None and (
                    maker.name in ("GEMM", "ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_DIVIDE", *SUMS)
                    and g.only_user(maker) == (node, slot)):
                return slot
    return None


def _sum(g: Nodes, masks: Sequence[_Mask]) -> _Value:
    """The sum of masks, of one element along dimensions where each has one. It takes the places of
    sums with scores, which have no more elements. Sums of constants are computed once."""
    *later, earliest = masks
    storage, t = earliest.value
    for mask in reversed(later):
        other, u = mask.value
        sizes = tuple(n if a or b else 1 for n, a, b in zip(t.sizes, t.strides, u.strides))
        y = TensorDesc(t.data_type, sizes, packed_strides(sizes))
        desc = class_of("ELEMENT_WISE_ADD")(
            a_tensor=moved(t, y.sizes, t.strides), b_tensor=moved(u, y.sizes, u.strides),
            output_tensor=y)
        made = g.make(y.total_tensor_size_in_bytes)
        new = Node(desc, {"a_tensor": storage, "b_tensor": other, "output_tensor": made},
                   mask.adder.label)
        g.replace([mask.adder], new)
        storage, t = made, moved(
            y, t.sizes, tuple(0 if n == 1 else s for n, s in zip(y.sizes, y.strides)))
    return storage, t


def _heads(scores: Node, product: Node) -> dict[str, TensorDesc] | None:
    """Queries, keys, values and the output in the layouts of MULTIHEAD_ATTENTION."""
    q, k, v, y = (scores.tensor("a_tensor"), scores.tensor("b_tensor"),
                  product.tensor("b_tensor"), output_of(product))
    of_keys = scores.desc
    of_values = product.desc

    def by_head(t: TensorDesc, transposed: bool) -> TensorDesc | None:
        """[batch, head, position, feature] seen as [batch, position, all features]."""
        sizes, strides = t.sizes, t.strides
        if transposed:
            sizes = (*sizes[:-2], sizes[-1], sizes[-2])
            strides = (*strides[:-2], strides[-1], strides[-2])
        if len(sizes) > 4:
            return None
        (batches, heads, length, size), (a, b, c, d) = _by_batch_and_head(sizes, strides)
        if heads > 1 and b != size * d:
            return None
        a = a if batches > 1 else length * c  # one batch may have any stride: a multiple of c
        return moved(t, (batches, length, heads * size), (a, c, d))

    tensors = {"query_tensor": by_head(q, False),
               "key_tensor": by_head(k, not of_keys.trans_b),
               "value_tensor": by_head(v, bool(of_values.trans_b)),
               "output_tensor": by_head(y, False)}
    fields = {f: t for f, t in tensors.items() if t is not None}
    return fields if len(fields) == len(tensors) else None


def _by_batch_and_head(sizes: Ints, strides: Ints) -> tuple[Ints, Ints]:
    """Sizes and strides of matrices by batch and head: of one head if they are by batch, and of one
    batch if there is one matrix."""
    missing = 4 - len(sizes)
    heads = 2 - missing  # of the dimensions before a matrix
    return ((*sizes[:heads], *[1] * missing, *sizes[heads:]),
            (*strides[:heads], *[0] * missing, *strides[heads:]))


def _attend(fields: dict[str, TensorDesc], scores: Node, product: Node, scale: float,
            mask: _Value | None) -> Node:
    cls = class_of("MULTIHEAD_ATTENTION")
    storages = {"query_tensor": scores.storages["a_tensor"],
                "key_tensor": scores.storages["b_tensor"],
                "value_tensor": product.storages["b_tensor"],
                "output_tensor": product.storages["output_tensor"]}
    more: dict[str, Any] = dict(fields)
    if mask is not None:
        storages["relative_position_bias_tensor"], t = mask
        more["relative_position_bias_tensor"] = moved(t, *_by_batch_and_head(t.sizes, t.strides))
    heads = output_of(scores).sizes[1] if len(output_of(scores).sizes) == 4 else 1
    return Node(cls(**more, scale=scale, head_count=heads, mask_type=MaskType.NONE,
                     mask_filter_value=0.0), storages, product.label)
