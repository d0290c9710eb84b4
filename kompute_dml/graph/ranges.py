"""A pass over a graph's operators: the range by which a tensor is quantized is found by the
operator that makes it."""

from __future__ import annotations

from typing import Any

from ..desc import TensorDesc
from ..layout import extent, is_packed
from .draft import Draft, Drafts, class_of, output_of

_FIND_RANGES = ("CONVOLUTION_INTEGER_TO_FLOAT",)
"""Operators whose kernels do, if they make all of a tensor."""


def ranges(g: Drafts) -> None:
    """DYNAMIC_QUANTIZE_LINEAR becomes ELEMENT_WISE_QUANTIZE_LINEAR."""
    for draft in g:
        if draft.name != "DYNAMIC_QUANTIZE_LINEAR":
            continue
        maker = g.maker(draft, "input_tensor")
        if maker is None or maker.name not in _FIND_RANGES or not _is_all(draft, maker):
            continue
        d: Any = draft.desc
        storages = {"range_scale_tensor": draft.storages["output_scale_tensor"],
                    "range_zero_point_tensor": draft.storages["output_zero_point_tensor"]}
        values: dict[str, Any] = {
            f.snake: getattr(maker.desc, f.snake) for f in maker.desc.operator.spec.fields}
        values |= {"range_scale_tensor": d.output_scale_tensor,
                   "range_zero_point_tensor": d.output_zero_point_tensor}
        g.replace([maker], Draft(type(maker.desc)(**values), maker.storages | storages,
                                 maker.label))
        x = d.input_tensor
        scale, zero = (TensorDesc(t.data_type, x.sizes, (0,) * len(x.sizes)) for t in (
            d.output_scale_tensor, d.output_zero_point_tensor))
        g.replace([draft], Draft(
            class_of("ELEMENT_WISE_QUANTIZE_LINEAR")(
                input_tensor=x, scale_tensor=scale, zero_point_tensor=zero,
                output_tensor=d.output_tensor),
            {"input_tensor": draft.storages["input_tensor"],
             "scale_tensor": storages["range_scale_tensor"],
             "zero_point_tensor": storages["range_zero_point_tensor"],
             "output_tensor": draft.storages["output_tensor"]}, draft.label))


def _is_all(draft: Draft, maker: Draft) -> bool:
    """Whether ``draft`` quantizes all that ``maker`` makes, and nothing else."""
    x, y = draft.tensor("input_tensor"), output_of(maker)
    return (
        getattr(maker.desc, "range_scale_tensor", None) is None
        and maker.storages["output_tensor"].begin == 0 and is_packed(x.sizes, x.strides)
        and x.data_type is y.data_type
        and x.element_count == y.element_count == extent(y.sizes, y.strides))
