"""Caches that an operator appends to where they lie: the output has the input's memory."""

from __future__ import annotations

from collections.abc import Collection

from .memory import Storage
from .node import Node, Nodes, alike, changed

_CACHES = (("past_key_tensor", "output_present_key_tensor"),
           ("past_value_tensor", "output_present_value_tensor"))
_PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "MULTIHEAD_ATTENTION1": _CACHES, "ROTARY_APPEND": _CACHES,
    "ROTARY_ATTENTION": _CACHES,
    "APPEND": (("input_tensor", "output_tensor"),),
}
"""By operator: inputs that it copies to an output before it writes a part of that. Where an input
is absent, the operator takes what lies in the output."""


def appends(node: Node) -> bool:
    """Whether an operator appends to a cache."""
    return any(read in node.storages for read, _ in _PAIRS.get(node.name, ()))


def append_in_place(
    g: Nodes, inputs: Collection[Storage], outputs: Collection[Storage]
) -> dict[Storage, Storage]:
    """Let operators that append to a cache of ``inputs`` write there, if the result is one of
    ``outputs``. Returns the input of each such output. Nothing else may read the old cache."""
    sources: dict[Storage, Storage] = {}
    for node in [*g]:
        pairs = [pair for pair in _PAIRS.get(node.name, ()) if pair[0] in node.storages]
        if not pairs or not _counts_past(node) or not all(
                _shares(node, g, inputs, outputs, *pair) for pair in pairs):
            continue
        roots = {node.storages[y].root: node.storages[x].root for x, y in pairs}
        if len(set(roots.values())) < len(roots) or not sources.keys().isdisjoint(roots):
            continue
        g.replace([node], changed(
            node, {x: None for x, _ in pairs}, **{x: None for x, _ in pairs}))
        sources |= roots
    for y, x in sources.items():
        x.merge(y)
    return sources


def _counts_past(node: Node) -> bool:
    """Whether a tensor says how many rows of a cache are past, so that there is room for more."""
    return any(slot in node.storages for slot in ("past_sequence_lengths_tensor", "indices_tensor"))


def _shares(
    node: Node, g: Nodes, inputs: Collection[Storage], outputs: Collection[Storage], read: str,
    written: str,
) -> bool:
    """Whether a cache and its successor are one in all but their memory."""
    if written not in node.storages:
        return False
    x, y = node.storages[read], node.storages[written]
    return (
        x.root in inputs and y.root in outputs and x.root.nbytes == y.root.nbytes
        and x.begin == y.begin and alike(node.tensor(read), node.tensor(written))
        and all(user is node for user, _ in g.readers(x))
        and all(maker is node for maker, _ in g.writers(y)))
