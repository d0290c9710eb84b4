"""Finds quantized products that consist of several nodes of a graph.

    MatMulInteger -> Cast -> Mul [-> Mul] [-> Add]   becomes one MatMulIntegerToFloat

the chains of :mod:`.qdq` and :mod:`.weights`, the sums of :mod:`.mixtures`, and the products of
:mod:`.sorted_rows`. ONNX Runtime fuses such chains, too, but only for nodes that its own providers
claim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.switches import INTEGERS, MIXTURES, QDQ, disabled
from .graph import OnnxGraph, OnnxNode, OnnxValue, Shape, makers, topological, uses
from .mixtures import fuse_mixtures
from .qdq import OnlyUser, of_bytes
from .sorted_rows import fuse_sorted_rows
from .weights import in_bytes, of_blocks, rows_of_blocks

FLOATS = (np.dtype("float32"), np.dtype("float16"))


def fuse(graph: OnnxGraph, most: int = 1 << 31, *, sharing: bool = True) -> list[OnnxNode]:
    """The graph's nodes with all chains replaced, in an order in which they can run. ``most`` is
    the most bytes of a buffer. ``sharing``: several nodes may take the place of one, if all of them
    run together, see :func:`.partition.tears`."""
    users = uses(graph.nodes)
    visible = set(graph.outputs)
    made_by = makers(graph.nodes)
    fused: dict[OnnxNode, OnnxNode] = {}

    def only_user(node: OnnxNode, ops: Sequence[str]) -> OnnxNode | None:
        value = node.outputs[0]
        readers = users.get(value, []) if value is not None and value not in visible else []
        return readers[0] if len(readers) == 1 and readers[0].label in ops else None

    left_out = disabled()
    for node in graph.nodes:
        chain = None
        if node.label == "MatMulInteger" and INTEGERS not in left_out:
            chain = _chain(node, only_user)
        if chain is None and QDQ not in left_out:
            chain = (of_bytes(node, made_by, only_user, _is_bias)
                     or of_blocks(node, made_by, only_user, _is_bias))
        if chain is not None and not fused.keys().isdisjoint(chain.parts):
            chain = None  # a sum of two products is fused with one of them
        if chain is not None:
            fused.update(dict.fromkeys(chain.parts, chain))
    for node in graph.nodes:
        if node not in fused and (stored := rows_of_blocks(node) or in_bytes(node)):
            fused[node] = stored
    nodes = topological(list(dict.fromkeys(fused.get(n, n) for n in graph.nodes)))
    if MIXTURES in left_out:
        return nodes
    nodes = fuse_mixtures(nodes, visible, most)
    return fuse_sorted_rows(nodes, visible, most) if sharing else nodes


def _chain(product: OnnxNode, only_user: OnlyUser) -> OnnxNode | None:
    cast = only_user(product, ("Cast",))
    if cast is None or (floats := cast.outputs[0]) is None or floats.dtype not in FLOATS:
        return None
    a, b = product.inputs[:2]
    if a is None or b is None or a.shape is None or b.shape is None or floats.shape is None:
        return None
    rank = len(floats.shape)
    matrices = {"a": (-2, a.shape), "b": (-1, b.shape)}
    parts = [product, cast]
    scales: dict[str, OnnxValue] = {}
    bias: OnnxValue | None = None
    while bias is None and (user := only_user(parts[-1], ("Mul", "Add"))) is not None:
        left, right = user.inputs
        other = right if left is parts[-1].outputs[0] else left
        if other is None:
            break
        if user.op == "Mul":
            # A's scale comes first, as in the chain. Results are equal, except that float16 is
            # rounded only once, at the end.
            side = next(
                (s for s in matrices if s not in scales and "b" not in scales
                 and _scales(other, rank, *matrices[s])),
                None,
            )
            if side is None:
                break
            scales[side] = other
        elif not _is_bias(other, parts[-1].outputs[0]):
            break
        else:
            bias = other
        parts.append(user)
    if not scales:
        return None
    one = OnnxValue("1", floats.dtype, (), np.ones((), floats.dtype))
    return OnnxNode(
        "MatMulIntegerToFloat", "com.microsoft", 1,
        (a, b, scales.get("a", one), scales.get("b", one), product.input(2), product.input(3),
         bias),
        parts[-1].outputs, {}, product.name, tuple(parts),
    )


def _scales(value: OnnxValue, rank: int, axis: int, matrix: Shape) -> bool:
    """Whether there is surely one element, or one per row (axis -2) or column (axis -1).

    ``rank`` is the product's, which has one dimension less for each vector.
    """
    if value.shape is None or len(matrix) < 2 or len(value.shape) > rank:
        return False
    return all(
        n == 1 or (d == axis and n is not None and n == matrix[axis])
        for d, n in enumerate(value.shape, -len(value.shape))
    )


def _is_bias(value: OnnxValue, product: OnnxValue | None) -> bool:
    """Whether the sum has the product's sizes."""
    if value.shape is None or product is None or product.shape is None:
        return False
    if len(value.shape) > len(product.shape):
        return False
    sizes = zip(reversed(value.shape), reversed(product.shape))
    return all(n == 1 or (n is not None and n == m) for n, m in sizes)

