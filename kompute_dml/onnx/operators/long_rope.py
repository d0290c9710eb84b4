"""Rotary embeddings whose angles differ for long texts, in two caches that are one tensor.

Rows from :data:`ATTRIBUTE` on are the angles of texts that have more tokens than that. The rows
before them are those of shorter texts. ONNX Runtime's WebGPU provider has the number as an option,
for GroupQueryAttention has no attribute of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...attributes import ReduceFunction
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..graph import OnnxNode, OnnxValue, uses
from ..lowerings import emit_elementwise
from . import branches
from .reduction import reduced
from .rotary import following

ATTRIBUTE = "multi_rotary_cache_concat_offset"
TOGETHER = "kompute_dml_longest_text"
"""The attribute where the longest text of a batch tells the angles of all."""


def mark(nodes: Sequence[OnnxNode], offset: int) -> None:
    """Give each GroupQueryAttention the attribute, if there is an offset."""
    for node in nodes if offset else ():
        if node.label == "com.microsoft.GroupQueryAttention":
            node.attributes[ATTRIBUTE] = offset


def follow_lengths(nodes: Sequence[OnnxNode], outputs: Collection[OnnxValue]) -> None:
    """Let the lengths of texts tell the angles where an If compares total_sequence_length with a
    number. This length is the mask's, which is as long as texts may grow if graphs are captured."""
    users = uses(nodes)
    made_by = {y: node for node in nodes for y in node.outputs if y is not None}

    def maker(x: OnnxValue | None, label: str) -> OnnxNode | None:
        node = None if x is None else made_by.get(x)
        return node if node is not None and node.label == label else None

    def takes(reader: OnnxNode, node: OnnxNode, length: OnnxValue | None) -> bool:
        total = reader.input(6)
        cast = maker(total, "Cast")
        return reader.label == "com.microsoft.GroupQueryAttention" and reader.input(9) is None and (
            (reader.input(7), reader.input(8)) == node.outputs) and (
            total if cast is None else cast.input(0)) is length

    for node in nodes:
        if node.label != "If" or branches.CONSTANTS not in node.attributes:
            continue
        question, short = maker(node.inputs[0], "Greater"), node.inputs[-1]
        limit = None if question is None else question.input(1)
        readers = {r: None for y in node.outputs if y is not None for r in users.get(y, ())}
        if question is None or limit is None or limit.constant is None or (
                limit.constant.size != 1 or short is None or short.shape is None
                or not {*outputs}.isdisjoint(node.outputs)):
            continue
        offset = int(limit.constant.reshape(()))
        if short.shape[:1] == (offset,) and all(
                takes(r, node, question.input(0)) for r in readers):
            node.attributes[branches.JOINED] = 1
            mark([*readers], offset)
            for reader in readers:
                reader.attributes[TOGETHER] = 1


def places(
    builder: Builder, node: OnnxNode, lengths: Array, before: Array, count: int
) -> Array:
    """[batch, token]: rows of the angles of ``count`` tokens after those ``before``, of which there
    are ``lengths`` + 1 in all."""
    offset = node.attributes[ATTRIBUTE]
    if TOGETHER in node.attributes:
        (lengths,) = reduced(builder, "REDUCE", lengths, [0], True, lengths.dtype,
                             function=ReduceFunction.MAX)

    def of(operator: str, *arrays: Array) -> Array:
        dtype = BOOL if "LOGICAL" in operator else before.dtype
        return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", list(arrays), dtype, {})

    limit, none = (builder.constant(np.array(n, before.dtype)) for n in (offset, 0))
    first = of("IF", of("LOGICAL_GREATER_THAN_OR_EQUAL", lengths, limit), limit, none)
    first = builder.reshape(of("ADD", before, first), (*before.shape, 1))
    return following(builder, first, count)
