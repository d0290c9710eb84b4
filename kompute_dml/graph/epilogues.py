"""Passes over a graph's operators that merge an operator with the next one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..desc import MINIMUM_ALIGNMENT, TensorDesc
from ..layout import rewalked
from ..operators.base import definitions, widened
from ..spec import Field
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
    output_of,
    seen_as,
)
from .memory import Storage

_COPIES = ("ELEMENT_WISE_IDENTITY", "ACTIVATION_IDENTITY")
_CLIPS = ("ELEMENT_WISE_CLIP", "ELEMENT_WISE_CLIP1")

# Copies: the operator writes directly to the copy's output


def copies(g: Drafts) -> None:
    for draft in g:
        while (user := g.only_user(draft)) is not None:
            copy, _ = user
            if copy.name not in _COPIES or has_scale_bias(copy) or not _takes_strides(draft):
                break
            slot, _ = next(draft.slots("output"))
            y = seen_as(copy, "input_tensor", "output_tensor", draft.tensor(slot))
            if y is None or y.data_type is not draft.tensor(slot).data_type or (
                    _is_transposed(draft.tensor(slot), y)):
                break
            new = changed(draft, {slot: copy.storages["output_tensor"]}, **{slot: y})
            g.replace([draft, copy], new)
            draft = new


def _takes_strides(draft: Draft) -> bool:
    """Whether it has one output, which may have any strides."""
    outputs = [f for f in draft.desc.operator.spec.outputs if not f.optional]
    return len(outputs) == 1 and not outputs[0].is_array and draft.name not in _COPIES


def _is_transposed(x: TensorDesc, y: TensorDesc) -> bool:
    """Whether a contiguous dimension of ``x`` has gaps in ``y``, which is slow to write."""
    return any(a == 1 and b != 1 and n > 1 for a, b, n in zip(x.strides, y.strides, x.sizes))


# Sums become GEMM's C and a convolution's bias, scales GEMM's Alpha


_SUMMED = ("GEMM", "CONVOLUTION", "CONVOLUTION_INTEGER_TO_FLOAT")


def sums(g: Drafts) -> None:
    for draft in g:
        made: Draft | None = draft
        while made is not None and made.name in _SUMMED and not fused_by(made):
            user = g.only_user(made)
            made = user and (_with_sum(g, made, *user) or _with_scale(g, made, *user))


def _with_sum(g: Drafts, draft: Draft, total: Draft, slot: str) -> Draft | None:
    if total.name not in SUMS:
        return None
    y = seen_as(total, slot, "output_tensor", output_of(draft))
    other = seen_as(total, slot, OTHER[slot], output_of(draft))
    if y is None or other is None or y.data_type is not other.data_type:
        return None
    more: dict[str, Any] = {"output_tensor": y, "fused_activation": fused_by(total)}
    d: Any = draft.desc
    if draft.name == "GEMM":
        if "c_tensor" in draft.storages or not _is_power_of_two(d.alpha):
            return None
        field, more["c_tensor"], more["beta"] = "c_tensor", other, 1.0
    else:
        if "bias_tensor" in draft.storages or any(
                s for i, (s, n) in enumerate(zip(other.strides, other.sizes))
                if i != 1 and n > 1):
            return None
        field = "bias_tensor"
        sizes = (1, other.sizes[1], *[1] * (len(other.sizes) - 2))
        more[field] = moved(other, sizes, (0, other.strides[1], *[0] * (len(sizes) - 2)))
    new = changed(draft, {field: total.storages[OTHER[slot]],
                          "output_tensor": total.storages["output_tensor"]}, **more)
    g.replace([draft, total], new)
    return new


def _with_scale(g: Drafts, draft: Draft, scaled: Draft, slot: str) -> Draft | None:
    number = factor_of(scaled, slot) if slot in OTHER else None
    if number is None or draft.name != "GEMM" or not _is_power_of_two(number):
        return None
    y = seen_as(scaled, slot, "output_tensor", output_of(draft))
    if y is None or y.data_type is not output_of(draft).data_type:
        return None
    d: Any = draft.desc
    new = changed(draft, {"output_tensor": scaled.storages["output_tensor"]}, output_tensor=y,
                  alpha=d.alpha * number, beta=d.beta * number)
    g.replace([draft, scaled], new)
    return new


def _is_power_of_two(scale: float) -> bool:
    """Whether scaling is exact, so that it does not change how a sum is rounded."""
    return math.frexp(scale)[0] == 0.5


# Normalizations of a sum

_RESIDUAL = (Field("AddendTensor", "input", "TENSOR_DESC", True),
             Field("TotalTensor", "output", "TENSOR_DESC", True))


def residuals(g: Drafts) -> None:
    for draft in g:
        if not draft.name.startswith("MEAN_VARIANCE_NORMALIZATION"):
            continue
        total = g.maker(draft, "input_tensor")
        if total is None or total.name != "ELEMENT_WISE_ADD":
            continue
        x = draft.tensor("input_tensor")
        operands = [seen_as(total, "output_tensor", slot, x) for slot in OTHER]
        if not all(t is not None and alike(t, x) for t in operands):
            continue
        alone = g.only_user(total) is not None
        others = [s for s, _ in draft.slots("input") if s != "input_tensor"]
        if not alone and not all(g.is_given(draft, s) for s in others):
            continue  # readers of the sum might come earlier
        values = {f.snake: getattr(draft.desc, f.snake) for f in draft.desc.operator.spec.fields}
        values |= {"input_tensor": operands[0], "addend_tensor": operands[1],
                   "total_tensor": None if alone else seen_as(
                       total, "output_tensor", "output_tensor", x)}
        storages = draft.storages | {"input_tensor": total.storages["a_tensor"],
                                     "addend_tensor": total.storages["b_tensor"]}
        if not alone:
            storages["total_tensor"] = total.storages["output_tensor"]
        desc = widened(type(draft.desc), *_RESIDUAL)(**values)
        g.replace([total, draft], Draft(desc, storages, draft.label), first=not alone)


# Activations

_MORE = {f"DML_OPERATOR_ACTIVATION_{name}" for name in ("HARD_SWISH", "SWISH")}
"""Activations that shaders can fuse, but DirectML's operators cannot."""


def activations(g: Drafts) -> None:
    for draft in g:
        user = g.only_user(draft)
        if user is None or fused_by(draft) is not None:
            continue
        after = user[0]
        activation = _activation(draft, after)
        if activation is None:
            continue
        y = seen_as(after, "input_tensor", "output_tensor", output_of(draft))
        if y is None or y.data_type is not output_of(draft).data_type:
            continue
        to = {"output_tensor": after.storages["output_tensor"]}
        if draft.name == "ELEMENT_WISE_ADD":
            d: Any = draft.desc
            add1 = class_of("ELEMENT_WISE_ADD1")(
                a_tensor=d.a_tensor, b_tensor=d.b_tensor, output_tensor=y,
                fused_activation=activation)
            new = Draft(add1, draft.storages | to, draft.label)
        else:
            new = changed(draft, dict(to), output_tensor=y, fused_activation=activation)
        g.replace([draft, after], new)


def _activation(draft: Draft, after: Draft) -> Any:
    """The description of ``after`` without tensors, where ``draft`` may fuse it; else None."""
    definition = definitions()["DML_OPERATOR_ELEMENT_WISE_ADD1"] if (
        draft.name == "ELEMENT_WISE_ADD") else draft.desc.operator
    fused = definition.spec.fuses
    if not fused or "output_tensor" not in draft.storages or not output_of(
            draft).data_type.is_float:
        return None
    d: Any = after.desc
    if after.name in _CLIPS:
        if "DML_OPERATOR_ELEMENT_WISE_CLIP" not in fused or has_scale_bias(after):
            return None
        low, high = (b if isinstance(b, (int, float)) else b.item() for b in (d.min, d.max))
        return class_of("ELEMENT_WISE_CLIP")(
            input_tensor=None, output_tensor=None, min=float(low), max=float(high))
    name = after.desc.operator.name
    more = () if definition.name.endswith("_ADD1") else _MORE
    if (name not in fused and name not in more) or "SOFTMAX" in name:
        return None
    absent = {f.snake: None for f in after.desc.operator.spec.tensors}
    return replace(after.desc, **absent)


# Joined tensors: operators write their parts in place


def joins(g: Drafts) -> None:
    for join in g:
        if join.name != "JOIN":
            continue
        parts = list(join.slots("input"))
        made = [_in_place(g, join, slot, at) for (slot, _), at in zip(parts, _begins(join))]
        left = [i for i, new in enumerate(made) if new is None]
        if len(left) > 1 or len(left) == len(parts):
            continue
        for (slot, _), new in zip(parts, made):
            if new is not None and (maker := g.maker(join, slot)) is not None:
                g.replace([maker], new)
        if left:
            slot, storage = parts[left[0]]
            y, into = _part(join, slot, _begins(join)[left[0]])
            copy = class_of("ELEMENT_WISE_IDENTITY")(
                input_tensor=join.tensor(slot), output_tensor=y, scale_bias=None)
            g.replace([join], Draft(copy, {"input_tensor": storage, "output_tensor": into},
                                    join.label))
        else:
            g.remove(join)


def _begins(join: Draft) -> list[int]:
    """The first byte of each part in the joined tensor."""
    d: Any = join.desc
    y = d.output_tensor
    lengths = [t.sizes[d.axis] for t in d.input_tensors]
    return [sum(lengths[:i]) * y.strides[d.axis] * y.data_type.itemsize
            for i in range(len(lengths))]


def _part(join: Draft, slot: str, begin: int) -> tuple[TensorDesc, Storage]:
    """The description of a part inside the joined tensor, and its storage."""
    y, storage = output_of(join), join.storages["output_tensor"]
    at = (storage.begin + begin) % MINIMUM_ALIGNMENT
    return TensorDesc(y.data_type, join.tensor(slot).sizes, y.strides,
                      guaranteed_base_offset_alignment=at & -at), (
        storage.part(begin) if begin else storage)


def _in_place(g: Drafts, join: Draft, slot: str, begin: int) -> Draft | None:
    """The operator of a part, with its output inside the joined tensor; None where it cannot."""
    maker = g.maker(join, slot)
    if maker is None or g.only_user(maker) != (join, slot) or not _takes_strides(maker):
        return None
    field, _ = next(maker.slots("output"))
    made, seen = maker.tensor(field), join.tensor(slot)
    part, storage = _part(join, slot, begin)
    strides = rewalked(seen.sizes, seen.strides, part.strides, made.sizes, made.strides)
    if strides is None or made.data_type is not part.data_type or begin % 4:
        return None
    y = moved(part, made.sizes, strides)
    if _is_transposed(made, y):
        return None
    return changed(maker, {field: storage}, **{field: y})
