"""Convolutions whose filter is one element wide are products of matrices. Their rows are positions,
so channels must be contiguous."""

from __future__ import annotations

from typing import Any

from ...attributes import ConvolutionDirection, MatrixTransform
from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import coalesce
from ...lowering import measured
from ...operators.base import widened
from ..node import Node, Nodes, class_of, fused_by, moved, output_of
from ..rewrite import rewrite
from .epilogue import FIELDS


@rewrite("conv1x1_as_gemm",
         "a convolution whose filter is one element wide, of contiguous channels, is a product. "
         "A CPU driver keeps the convolution", 200)
def conv1x1_as_gemm(g: Nodes) -> None:
    """It runs after the passes that fuse operators: these walk outputs in the order of images."""
    if g.traits.is_cpu:
        return  # convolutions have blocks of their own there
    for node in g:
        if node.name != "CONVOLUTION":
            continue
        y = output_of(node)
        on_units = y.data_type is DataType.FLOAT16 and g.traits.multiplies(16, 16, 16, "f16", "f32")
        # With more results for each core, convolutions are as fast or faster. On matrix units those
        # with fewer divide K among workgroups, and add up in a dispatch of its own what a product
        # adds up in the same one.
        most = measured.figure(g.traits, "gemm_coopmat" if on_units else "gemm", "conv1x1_results")
        few = y.element_count <= most * g.traits.cores
        if few and (new := _product(node)) is not None:
            g.replace([node], new)


def _product(node: Node) -> Node | None:
    d = node.desc
    x, w, y = node.tensor("input_tensor"), node.tensor("filter_tensor"), output_of(node)
    if (d.direction != ConvolutionDirection.FORWARD or d.group_count != 1
            or any(n > 1 for n in w.sizes[2:]) or any((*d.start_padding, *d.end_padding))
            or any(s > 1 and n > 1 for s, n in zip(d.strides, y.sizes[2:]))
            or x.strides[1] != 1 or y.strides[1] != 1):
        return None
    tail: TensorDesc | None = getattr(d, "tail_tensor", None)
    walked = [t for t in (x, y, tail) if t is not None]
    sizes, steps = coalesce((y.sizes[0], *y.sizes[2:]),
                            *((t.strides[0], *t.strides[2:]) for t in walked))
    if len(sizes) > 1:
        return None
    rows, columns = sizes[0], y.sizes[1]

    def matrix(t: TensorDesc, width: int) -> TensorDesc:
        row = next(step[0] for seen, step in zip(walked, steps) if seen is t)
        return moved(t, (rows, width), (row, 1))

    slots = {"a_tensor": "input_tensor", "b_tensor": "filter_tensor", "c_tensor": "bias_tensor",
             "output_tensor": "output_tensor", "tail_tensor": "tail_tensor"}
    bias = d.bias_tensor
    values: dict[str, Any] = {
        "a_tensor": matrix(x, x.sizes[1]),
        "b_tensor": moved(w, w.sizes[:2], w.strides[:2]), "trans_b": MatrixTransform.TRANSPOSE,
        "c_tensor": bias and moved(bias, (rows, columns), (0, bias.strides[1])),
        "output_tensor": matrix(y, columns), "trans_a": MatrixTransform.NONE,
        "alpha": 1.0, "beta": 1.0, "fused_activation": fused_by(node)}
    cls = class_of("GEMM")
    if getattr(d, "tail", None):
        cls = widened(cls, *FIELDS)
        values |= {"tail": d.tail, "tail_tensor": tail and matrix(tail, columns)}
    storages = {to: node.storages[of] for to, of in slots.items() if of in node.storages}
    return Node(cls(**values), storages, node.label)
