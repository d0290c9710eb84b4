"""Dynamically quantized convolutions of images of one position, in one dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...layout import is_packed
from ...lowering.activation import fused_activation
from ...lowering.builder import PlanBuilder
from ..base import OperatorDesc

if TYPE_CHECKING:
    from ...desc import TensorDesc

SHADER = "convolution_quantized_pointwise"
_ROWS, _COLUMNS, _INVOCATIONS = 8, 16, 256
"""Images and channels of a workgroup."""
MOST = 4096
"""The most elements of the input, which every workgroup reads."""


def serves(d: OperatorDesc, x: TensorDesc) -> bool:
    """Whether the kernel can compute a description of CONVOLUTION_INTEGER_TO_FLOAT, of ``x``, a
    tensor of numbers that is quantized."""
    w = d.filter_tensor
    channels = w.sizes[1]
    line = (w.sizes[0], channels)
    return (
        d.group_count == 1 and d.filter_zero_point_tensor is None
        and all(n == 1 for t in (d.input_tensor, w, d.output_tensor) for n in t.sizes[2:])
        and not any((*d.start_padding, *d.end_padding))
        and x.data_type.name == "FLOAT32" and x.is_aligned and w.is_aligned
        and x.element_count <= MOST and channels % 4 == 0 and is_packed(x.sizes, x.strides)
        and is_packed(d.input_tensor.sizes[:2], d.input_tensor.strides[:2])
        and is_packed(line, w.strides[:2]))


def lower(d: OperatorDesc, p: PlanBuilder) -> None:
    """DYNAMIC_CONVOLUTION."""
    x, w, y, bias = d.input_tensor, d.filter_tensor, d.output_tensor, d.bias_tensor
    images, channels = x.sizes[:2]
    rows, fused = min(images, _ROWS), fused_activation(d)
    scale = d.filter_scale_tensor
    p.dispatch(
        SHADER, -(-images // rows) * -(-y.sizes[1] // _COLUMNS), x=p.read("input_tensor"),
        w=p.read("filter_tensor"), y=p.write("output_tensor"), bias=p.read("bias_tensor"),
        w_scale=p.read("filter_scale_tensor"), params=fused.words or (0,),
        push={"images": images, "out_channels": y.sizes[1], "w_stride": channels,
              "w_scale_stride": scale.strides[1] if scale.sizes[1] > 1 else 0,
              "bias_stride": bias.strides[1] if bias is not None and bias.sizes[1] > 1 else 0,
              "y_strides": y.strides[:2], "activation_at": 0},
        spec={"LOCAL_SIZE": _INVOCATIONS, "ROWS": rows, "WORDS": channels // 4,
              "HAS_BIAS": bias is not None, "QUANTIZED_TYPE": d.quantized_type,
              "FILTER_SIGNED": w.data_type.is_signed, **fused.spec})
