"""Passes that replace several operators by the one that they spell out."""

from __future__ import annotations

import math
from typing import Any

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..desc import TensorDesc
from ..dtypes import DataType
from ..layout import is_packed
from .draft import (
    OTHER,
    SUMS,
    Draft,
    Drafts,
    alike,
    changed,
    class_of,
    factor_of,
    fused_by,
    has_scale_bias,
    moved,
    next_user,
    output_of,
    seen_as,
)
from .memory import Storage

_MANY_KEYS = 256
"""With more keys, FLOAT32 attention is faster as separate matrix products on CPUs, and elsewhere if
values have more than _WIDE elements: their scores are computed several times."""
_WIDE = 128
_CLOSE = 1e-3
"""The relative error of a constant that stands for a number, as FLOAT16 rounds it."""

# GELU: x / sqrt(2), erf, + 1, times x, times 1/2


def gelu(g: Drafts) -> None:
    for erf in g:
        if erf.name != "ELEMENT_WISE_ERF" or has_scale_bias(erf):
            continue
        scaled = g.maker(erf, "input_tensor")
        if scaled is None or g.only_user(scaled) != (erf, "input_tensor"):
            continue
        slot = _times(scaled, math.sqrt(0.5))
        parts, halves = [scaled, erf], False
        x = None if slot is None else (scaled.storages[slot], scaled.tensor(slot))
        plus = next_user(g, erf, SUMS)
        if x is None or plus is None or fused_by(plus[0]) or _constant(plus) != 1:
            continue
        parts.append(plus[0])
        times_x = False
        while not (times_x and halves) and (
                user := next_user(g, parts[-1], ("ELEMENT_WISE_MULTIPLY",))) is not None:
            draft, at = user
            number = _constant(user)
            other = OTHER[at]
            if number == 0.5 and not halves:
                halves = True
            elif not times_x and _reads(draft, other, x):
                times_x = True
            elif not (times_x or halves) and (half := _half(g, draft, other, x)) is not None:
                times_x = halves = True
                parts.append(half)
            else:
                break
            parts.append(draft)
        if times_x and halves:
            y = output_of(parts[-1])
            g.replace(parts, Draft(
                class_of("ACTIVATION_GELU")(input_tensor=x[1], output_tensor=y),
                {"input_tensor": x[0], "output_tensor": parts[-1].storages["output_tensor"]},
                erf.label))


def _reads(draft: Draft, slot: str, x: tuple[Storage, TensorDesc]) -> bool:
    storage = draft.storages[slot]
    return (storage.root, storage.begin) == (x[0].root, x[0].begin) and draft.tensor(slot) == x[1]


def _half(g: Drafts, draft: Draft, slot: str, x: tuple[Storage, TensorDesc]) -> Draft | None:
    """What makes half of x for this operator alone."""
    half = g.maker(draft, slot)
    if half is None or g.only_user(half) != (draft, slot) or not alike(
            output_of(half), draft.tensor(slot)):
        return None
    of = _times(half, 0.5)
    return half if of is not None and _reads(half, of, x) else None


# SWISH and HARD_SWISH: x times the sigmoid of x

_GATES = ("ACTIVATION_SIGMOID", "ACTIVATION_HARD_SIGMOID")


def gates(g: Drafts) -> None:
    for gate in g:
        user = next_user(g, gate, ("ELEMENT_WISE_MULTIPLY",)) if gate.name in _GATES else None
        if user is None:
            continue
        product, slot = user
        x, other = gate.storages["input_tensor"], product.storages[OTHER[slot]]
        same = (x.root, x.begin) == (other.root, other.begin) and alike(
            gate.tensor("input_tensor"), product.tensor(OTHER[slot]))
        if not same or not alike(gate.tensor("input_tensor"), product.tensor(slot)):
            continue
        d: Any = gate.desc
        hard = gate.name == _GATES[1]
        more = {"alpha": d.alpha, "beta": d.beta} if hard else {"sigmoid_input_scale": 1.0}
        swish = class_of("ACTIVATION_HARD_SWISH" if hard else "ACTIVATION_SWISH")(
            input_tensor=gate.tensor("input_tensor"), output_tensor=output_of(product), **more)
        g.replace([gate, product], Draft(
            swish, {"input_tensor": x, "output_tensor": product.storages["output_tensor"]},
            product.label))


def _constant(user: tuple[Draft, str]) -> float | None:
    """The other operand, if it is a number."""
    return user[0].number(OTHER[user[1]])


def _times(draft: Draft, factor: float) -> str | None:
    """The slot that an operator multiplies by ``factor``, or None."""
    for slot in OTHER:
        number = factor_of(draft, slot)
        if number is not None and math.isclose(number, factor, rel_tol=_CLOSE):
            return slot
    return None


# Attention: softmax(Q K^T * scale + mask) V


def attention(g: Drafts) -> None:
    for softmax in g:
        if softmax.name != "ACTIVATION_SOFTMAX1" or (made := _scores(g, softmax)) is None:
            continue
        scores, scale, mask, parts = made
        user = g.only_user(softmax)
        if user is None or user[1] != "a_tensor" or not _is_product(user[0]):
            continue
        product = user[0]
        sizes = output_of(scores).sizes
        apart = g.traits.is_cpu or output_of(product).sizes[-1] > _WIDE
        if output_of(scores).data_type is DataType.FLOAT32 and sizes[-1] > _MANY_KEYS and apart:
            continue
        if product.tensor("a_tensor").sizes != output_of(scores).sizes or not _packed(
                product, "a_tensor"):
            continue
        scores, more, first = _unscaled(g, scores)
        fields = _heads(scores, product)
        if fields is not None:
            new = _attend(fields, scores, product, scale * more, mask)
            g.replace([*first, *parts, softmax, product], new)


def _unscaled(g: Drafts, scores: Draft) -> tuple[Draft, float, list[Draft]]:
    """The product with unscaled queries, their scale, and the operator that scales them."""
    scaled = g.maker(scores, "a_tensor")
    if scaled is not None and g.only_user(scaled) == (scores, "a_tensor"):
        for slot in OTHER:
            number = factor_of(scaled, slot)
            q = number and seen_as(scaled, "output_tensor", slot, scores.tensor("a_tensor"))
            if number and q:
                storages = {"a_tensor": scaled.storages[slot]}
                return changed(scores, dict(storages), a_tensor=q), number, [scaled]
    return scores, 1.0, []


def _is_product(draft: Draft) -> bool:
    """Whether it is a GEMM without C, Alpha or activation."""
    d: Any = draft.desc
    return draft.name == "GEMM" and not d.trans_a and d.alpha == 1 and (
        "c_tensor" not in draft.storages and fused_by(draft) is None)


def _packed(draft: Draft, slot: str) -> bool:
    t = draft.tensor(slot)
    return is_packed(t.sizes, t.strides)


def _scores(g: Drafts, softmax: Draft) -> Any:
    """The product of queries and keys, its scale, the mask as (storage, tensor), and all
    operators."""
    d: Any = softmax.desc
    x = softmax.tensor("input_tensor")
    if len(d.axes) != 1 or not _packed(softmax, "input_tensor") or (
            not _packed(softmax, "output_tensor")):
        return None
    keys = x.sizes[d.axes[0]]
    if any(n > 1 for n in x.sizes[d.axes[0] + 1 :]):
        return None
    parts: list[Draft] = []
    adder: tuple[Draft, str] | None = None
    scale, at, slot = 1.0, softmax, "input_tensor"
    while (draft := g.maker(at, slot)) is not None and g.only_user(draft) == (at, slot):
        parts.append(draft)
        if _is_product(draft):
            t = output_of(draft)
            if t.sizes[-1] != keys or not _packed(draft, "output_tensor") or (
                    t.data_type is not x.data_type or t.element_count != x.element_count):
                return None
            if adder is None:
                return draft, scale, None, parts
            total, field = adder
            mask = seen_as(total, OTHER[field], field, t)
            return mask and (draft, scale, (total.storages[field], mask), parts)
        made = _main_operand(g, draft)
        if made is None or not alike(draft.tensor(made), output_of(draft)):
            return None
        if draft.name in SUMS:
            if adder is not None or scale != 1 or fused_by(draft):
                return None
            adder = draft, OTHER[made]
        elif (number := factor_of(draft, made)) is not None:
            scale *= number
        else:
            return None
        at, slot = draft, made
    return None


def _main_operand(g: Drafts, draft: Draft) -> str | None:
    """The operand that is a product, scaled or not."""
    for slot, other in OTHER.items():
        if slot in draft.storages and other in draft.storages:
            maker = g.maker(draft, slot)
            if maker is not None and draft.number(slot) is None and (
                    maker.name in ("GEMM", "ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_DIVIDE")
                    and g.only_user(maker) == (draft, slot)):
                return slot
    return None


def _heads(scores: Draft, product: Draft) -> dict[str, TensorDesc] | None:
    """Queries, keys, values and the output in the layouts of MULTIHEAD_ATTENTION."""
    q, k, v, y = (scores.tensor("a_tensor"), scores.tensor("b_tensor"),
                  product.tensor("b_tensor"), output_of(product))
    of_keys: Any = scores.desc
    of_values: Any = product.desc

    def by_head(t: TensorDesc, transposed: bool) -> TensorDesc | None:
        """[batch, head, position, feature] seen as [batch, position, all features]."""
        sizes, strides = t.sizes, t.strides
        if transposed:
            sizes = (*sizes[:-2], sizes[-1], sizes[-2])
            strides = (*strides[:-2], strides[-1], strides[-2])
        if len(sizes) == 3:
            sizes, strides = (sizes[0], 1, *sizes[1:]), (strides[0], 0, *strides[1:])
        if len(sizes) != 4:
            return None
        (batches, heads, length, size), (a, b, c, d) = sizes, strides
        if heads > 1 and b != size * d:
            return None
        a = a if batches > 1 else length * c  # one batch may have any stride: a multiple of c
        return moved(t, (batches, length, heads * size), (a, c, d))

    found = {"query_tensor": by_head(q, False),
             "key_tensor": by_head(k, not of_keys.trans_b),
             "value_tensor": by_head(v, bool(of_values.trans_b)),
             "output_tensor": by_head(y, False)}
    fields = {f: t for f, t in found.items() if t is not None}
    return fields if len(fields) == len(found) else None


def _attend(fields: dict[str, TensorDesc], scores: Draft, product: Draft, scale: float,
            mask: tuple[Storage, TensorDesc] | None) -> Draft:
    cls = class_of("MULTIHEAD_ATTENTION")
    storages = {"query_tensor": scores.storages["a_tensor"],
                "key_tensor": scores.storages["b_tensor"],
                "value_tensor": product.storages["b_tensor"],
                "output_tensor": product.storages["output_tensor"]}
    more: dict[str, Any] = dict(fields)
    if mask is not None:
        storages["relative_position_bias_tensor"], t = mask
        sizes, strides = t.sizes, t.strides
        if len(sizes) == 3:
            t = moved(t, (sizes[0], 1, *sizes[1:]), (strides[0], 0, *strides[1:]))
        more["relative_position_bias_tensor"] = t
    heads = output_of(scores).sizes[1] if len(output_of(scores).sizes) == 4 else 1
    return Draft(cls(**more, scale=scale, head_count=heads, mask_type=MaskType.NONE,
                     mask_filter_value=0.0), storages, product.label)
