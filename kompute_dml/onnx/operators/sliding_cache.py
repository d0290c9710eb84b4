"""Caches as long as a window or a little longer (GroupQueryAttention's sliding_window_cache): the
newest rows first to last, however many came before. A full cache of C rows for a window of W loses
its oldest C - W + 1 rows at once, so that it holds the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import emit_elementwise
from . import attention_parts
from .gather import gather_elements
from .movement import joined

_INDEX = np.dtype("int32")


class Slid(NamedTuple):
    """Rows of a cache [batch, head, row, element]."""

    keys: Array
    """The rows before and the new ones. Rows that hold nothing are 0."""
    present: Array
    """As long as the rows before: the newest rows, from row 0 on."""


def _of(builder: Builder, operator: str, *arrays: Array | int) -> Array:
    taken = [builder.constant(np.full((), x, _INDEX)) if isinstance(x, int) else x for x in arrays]
    dtype = BOOL if "LOGICAL" in operator else taken[-1].dtype
    return emit_elementwise(builder, f"ELEMENT_WISE_{operator}", taken, dtype, {})


def _gone(builder: Builder, tokens: Array, rows: int, window: int) -> Array:
    """How many of so many tokens have left a cache."""
    over = _of(builder, "SUBTRACT", tokens, _of(builder, "MIN", tokens, rows))
    if (at_once := rows - window + 1) == 1:
        return over
    times = _of(builder, "DIVIDE", _of(builder, "ADD", over, at_once - 1), at_once)
    return _of(builder, "MULTIPLY", times, at_once)


def slid(
    builder: Builder, pasts: Sequence[Array], fresh: Sequence[Array], before: Array, window: int
) -> list[Slid]:
    """Caches of equal rows after their new ones. ``before``: the tokens before these, by batch."""
    rows = pasts[0].shape[2]
    places = _places(builder, before, rows, fresh[0].shape[2], window)
    held = _of(builder, "SUBTRACT", before, _gone(builder, before, rows, window))
    caches = []
    for past, new in zip(pasts, fresh):
        both = joined(builder, [attention_parts.filled(builder, past, held), new], 2)
        (present,) = gather_elements(
            builder, OnnxNode("GatherElements", "", 13, (), (), {"axis": 2}),
            [both, places.broadcast_to(past.shape)])
        caches.append(Slid(both, present))
    return caches


def _places(builder: Builder, before: Array, rows: int, count: int, window: int) -> Array:
    """Where each row of the cache after ``count`` new ones lies now: [batch, 1, row, 1]."""
    batches = before.shape[0]
    counts = builder.reshape(before, (batches, 1))
    row = builder.constant(np.arange(rows, dtype=_INDEX)[None])
    # The token that each row of the new cache holds, and where it lies now.
    total = _of(builder, "ADD", counts, count)
    token = _of(builder, "ADD", row, _gone(builder, total, rows, window))
    ahead = _of(builder, "SUBTRACT", token, counts)
    place = _of(builder, "IF", _of(builder, "LOGICAL_LESS_THAN", token, counts),
                _of(builder, "SUBTRACT", token, _gone(builder, counts, rows, window)),
                _of(builder, "MIN", _of(builder, "ADD", ahead, rows), rows + count - 1))
    return builder.reshape(place, (batches, 1, rows, 1))


def seen(builder: Builder, before: Array, rows: int, count: int, window: int) -> Array:
    """Whether a new token sees a row of :attr:`Slid.keys`: [batch, 1, new token, row]."""
    batches = before.shape[0]
    counts = builder.reshape(before, (batches, 1))
    new = np.arange(rows + count) >= rows
    begin = _of(builder, "IF", builder.constant(new[None]), counts,
                _gone(builder, counts, rows, window))
    number = np.where(new, np.arange(rows + count) - rows, np.arange(rows + count))
    token = _of(builder, "ADD", builder.constant(number.astype(_INDEX)[None]), begin)
    there = _of(builder, "LOGICAL_OR", builder.constant(new[None]),
                _of(builder, "LOGICAL_LESS_THAN", token, counts))
    query = _of(builder, "ADD", builder.constant(np.arange(count, dtype=_INDEX)[None]), counts)
    behind = _of(builder, "SUBTRACT", builder.reshape(query, (batches, count, 1)),
                 builder.reshape(token, (batches, 1, rows + count)))
    near = _of(builder, "LOGICAL_AND",
               _of(builder, "LOGICAL_GREATER_THAN_OR_EQUAL", behind, 0),
               _of(builder, "LOGICAL_LESS_THAN", behind, window))
    near = _of(builder, "LOGICAL_AND", near, builder.reshape(there, (batches, 1, rows + count)))
    return builder.reshape(near, (batches, 1, count, rows + count))
