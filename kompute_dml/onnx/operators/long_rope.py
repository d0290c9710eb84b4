"""Rotary embeddings whose angles differ for long texts, in two caches that are one tensor.

Rows from :data:`ATTRIBUTE` on are the angles of texts that have more tokens than that. The rows
before them are those of shorter texts. ONNX Runtime's WebGPU provider has the number as an option,
for GroupQueryAttention has no attribute of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import emit_elementwise
from .rotary import following

ATTRIBUTE = "multi_rotary_cache_concat_offset"


def mark(nodes: Sequence[OnnxNode], offset: int) -> None:
    """Give each GroupQueryAttention the attribute, if there is an offset."""
    for node in nodes if offset else ():
        if node.label == "com.microsoft.GroupQueryAttention":
            node.attributes[ATTRIBUTE] = offset


def places(builder: Builder, lengths: Array, before: Array, count: int, offset: int) -> Array:
    """[batch, token]: rows of the angles of ``count`` tokens after those ``before``, of which there
    are ``lengths`` + 1 in all."""
    def of(operator: str, *arrays: Array) -> Array:
        dtype = BOOL if "LOGICAL" in operator else before.dtype
        return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", list(arrays), dtype, {})

    limit, none = (builder.constant(np.array(n, before.dtype)) for n in (offset, 0))
    first = of("IF", of("LOGICAL_GREATER_THAN_OR_EQUAL", lengths, limit), limit, none)
    first = builder.reshape(of("ADD", before, first), (*before.shape, 1))
    return following(builder, first, count)
