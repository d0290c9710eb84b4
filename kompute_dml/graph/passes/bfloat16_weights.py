"""Products of few rows read weights of BFLOAT16 as they are."""

from __future__ import annotations

from ...layout import product
from ...operators.matrix_multiply.bfloat16 import MOST_ROWS, WidenDesc, WideningGemmDesc, serves
from ..node import Node, Nodes, class_of, fused_by
from ..rewrite import rewrite
from .blocked_weights import keeps


@rewrite("bfloat16_weights",
         "constants of FLOAT32 that are BFLOAT16 take half the memory. A product of up to 8 rows "
         "reads them as they are. One of more rows does so if there is no room for them as FLOAT32",
         101)
def bfloat16_weights(g: Nodes) -> None:
    """What widens a constant, then GEMM."""
    widened: set[Node] = set()
    for gemm in g:
        weights = None if type(gemm.desc) is not class_of("GEMM") else g.maker(gemm, "b_tensor")
        if weights is None or type(weights.desc) is not WidenDesc or weights in widened:
            continue
        fused = fused_by(gemm)
        if fused is not None and "SOFTMAX" in fused.operator.name:
            continue
        d, b = gemm.desc, gemm.tensor("b_tensor")
        values = {f.snake: getattr(d, f.snake) for f in d.operator.spec.fields}
        halves = weights.tensor("input_tensor").replace(sizes=b.sizes, strides=b.strides)
        desc = WideningGemmDesc(**values | {"b_tensor": halves})
        few = product(gemm.tensor("output_tensor").sizes[:-1]) <= MOST_ROWS
        if (few and serves(desc, g.target)) or not keeps(g, weights):
            g.replace([gemm], Node(desc, gemm.storages | {
                "b_tensor": weights.storages["input_tensor"]}, gemm.label))
        else:
            widened.add(weights)
