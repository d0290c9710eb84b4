"""The range by which a tensor is quantized is found by the operator that makes it."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...layout import extent, is_packed
from ..node import Node, Nodes, class_of, output_of
from ..rewrite import rewrite

_FIND_RANGES = ("CONVOLUTION_INTEGER_TO_FLOAT",)
"""Operators whose kernels do, if they make all of a tensor."""


@rewrite("quantization_range",
         "the operator that computes a tensor also finds the range by which it is quantized", 220)
def quantization_range(g: Nodes) -> None:
    """DYNAMIC_QUANTIZE_LINEAR becomes ELEMENT_WISE_QUANTIZE_LINEAR."""
    for node in g:
        if node.name != "DYNAMIC_QUANTIZE_LINEAR":
            continue
        maker = g.maker(node, "input_tensor")
        if maker is None or maker.name not in _FIND_RANGES or not _is_all(node, maker):
            continue
        d = node.desc
        storages = {"range_scale_tensor": node.storages["output_scale_tensor"],
                    "range_zero_point_tensor": node.storages["output_zero_point_tensor"]}
        values: dict[str, Any] = {
            f.snake: getattr(maker.desc, f.snake) for f in maker.desc.operator.spec.fields}
        values |= {"range_scale_tensor": d.output_scale_tensor,
                   "range_zero_point_tensor": d.output_zero_point_tensor}
        g.replace([maker], Node(type(maker.desc)(**values), maker.storages | storages,
                                 maker.label))
        x = d.input_tensor
        scale, zero = (TensorDesc(t.data_type, x.sizes, (0,) * len(x.sizes)) for t in (
            d.output_scale_tensor, d.output_zero_point_tensor))
        g.replace([node], Node(
            class_of("ELEMENT_WISE_QUANTIZE_LINEAR")(
                input_tensor=x, scale_tensor=scale, zero_point_tensor=zero,
                output_tensor=d.output_tensor),
            {"input_tensor": node.storages["input_tensor"],
             "scale_tensor": storages["range_scale_tensor"],
             "zero_point_tensor": storages["range_zero_point_tensor"],
             "output_tensor": node.storages["output_tensor"]}, node.label))


def _is_all(node: Node, maker: Node) -> bool:
    """Whether ``node`` quantizes all that ``maker`` makes, and nothing else."""
    x, y = node.tensor("input_tensor"), output_of(maker)
    return (
        getattr(maker.desc, "range_scale_tensor", None) is None
        and maker.storages["output_tensor"].begin == 0 and is_packed(x.sizes, x.strides)
        and x.data_type is y.data_type
        and x.element_count == y.element_count == extent(y.sizes, y.strides))
