"""An integer convolution of images of one position quantizes its input on its own."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...operators.convolution import DynamicConvolutionDesc
from ...operators.convolution.quantized_pointwise import serves
from ..node import Node, Nodes
from ..rewrite import rewrite

_READ = {"input_tensor": "output_tensor", "input_scale_tensor": "output_scale_tensor",
         "input_zero_point_tensor": "output_zero_point_tensor"}
"""What the convolution reads of the quantization."""


@rewrite("dynamic_quantize_convolution",
         "an integer convolution of few images of 1 x 1 quantizes its input itself", 210)
def dynamic_quantize_convolution(g: Nodes) -> None:
    for node in g:
        if node.name != "CONVOLUTION_INTEGER_TO_FLOAT" or getattr(node.desc, "tail", None):
            continue
        maker = g.maker(node, "input_tensor")
        if maker is None or maker.name != "DYNAMIC_QUANTIZE_LINEAR" or not all(
                _reads_alone(g, node, slot, maker, to) for slot, to in _READ.items()):
            continue
        d = node.desc
        m = maker.desc
        if not serves(d, m.input_tensor):
            continue
        x = d.input_tensor
        values: dict[str, Any] = {f.snake: getattr(d, f.snake) for f in d.operator.spec.fields}
        values |= {"input_tensor": TensorDesc(m.input_tensor.data_type, x.sizes, x.strides),
                   "input_scale_tensor": None, "input_zero_point_tensor": None,
                   "quantized_type": x.data_type.code}
        storages = {s: t for s, t in node.storages.items() if s not in _READ}
        storages["input_tensor"] = maker.storages["input_tensor"]
        g.replace([maker, node], Node(DynamicConvolutionDesc(**values), storages, node.label))


def _reads_alone(g: Nodes, node: Node, slot: str, maker: Node, to: str) -> bool:
    storage = node.storages.get(slot)
    return storage is not None and storage is maker.storages[to] and g.is_whole(storage) and (
        g.readers(storage) == [(node, slot)])
