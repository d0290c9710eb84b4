"""Where each node of a graph runs: on the device, on the host while planning, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import product
from ..operators.base import bits
from . import doubles, mapping, shapes
from .graph import OnnxNode, OnnxValue
from .row import Mapping

if TYPE_CHECKING:
    from ..device import Device

_FEW = 1024
"""The most elements of an input whose values a plan may depend on."""
_SIZES = ("group",)
"""Attributes that are sizes."""

_COUNTS = tuple(map(np.dtype, ("int64", "int32", "bool")))
COUNTS = "the host has to know what it counts"
_UNKNOWN = "the host would have to know a value that only the device does"

Rows = dict[OnnxNode, Mapping]


@dataclass
class Placement:
    rows: Rows = field(default_factory=dict)
    """Nodes that the device can run."""
    host: set[OnnxNode] = field(default_factory=set)
    """Nodes that are evaluated while planning. Some of them also have a row."""
    reasons: dict[OnnxNode, str] = field(default_factory=dict)
    """Why nodes run elsewhere."""
    wanted: set[OnnxValue] = field(default_factory=set)
    """Values that the host must know."""

    def __contains__(self, node: OnnxNode) -> bool:
        return node in self.rows or node in self.host


def place(
    nodes: Sequence[OnnxNode], device: Device,
    claimed: Callable[[OnnxNode], bool] = lambda node: True,
    outputs: Collection[OnnxValue] | None = None, *, is_nested: bool = False,
) -> Placement:
    """Place ``nodes``, which are in an order in which they can run. ``outputs`` are the values that
    leave the graph; None if any may. ONNX Runtime reads those of a nested graph."""
    rows = {node: mapping.candidate(node, device) for node in nodes if claimed(node)}
    doubtful = [node for node, row in rows.items() if isinstance(row, str) and doubles.has(node)]
    if doubtful:
        leave = outputs if outputs is not None else {
            v for node in nodes for v in node.outputs if v is not None}
        exposed = doubles.exposed(nodes, leave)
        rows.update({node: mapping.rounding(node, device) for node in doubtful
                     if node not in exposed})
    candidates = {node: row for node, row in rows.items() if isinstance(row, Mapping)}
    result = Placement(wanted=_wanted(nodes, candidates, set()))
    known: set[OnnxValue] = set()
    computed: set[OnnxValue] = set()
    tried: dict[Any, str | None] = {}
    for node in nodes:
        if node not in rows:
            result.reasons[node] = "the claim leaves it out"
            continue
        if shapes.can(node) and all(
            _knows(v, known, computed, result.wanted) for v in shapes.reads(node)
        ):
            result.host.add(node)
            known.update(v for v in node.outputs if v is not None)
        else:
            row = rows[node]
            refused = row if isinstance(row, str) else _tried(row, node, device, tried)
            if isinstance(row, str) or refused is not None:
                result.reasons[node] = str(refused)
                continue
            if any((v := node.input(i)) is not None
                   and not _knows(v, known, computed, result.wanted) for i in row.host):
                result.reasons[node] = _UNKNOWN
                continue
        if node in candidates:
            result.rows[node] = candidates[node]
        computed.update(v for v in node.outputs if v is not None)
    left = _leave_counting(nodes, result, outputs if is_nested and outputs is not None else ())
    if left and _UNKNOWN in result.reasons.values():
        result = place(nodes, device, lambda node: node not in left and claimed(node), outputs,
                       is_nested=is_nested)
        result.reasons.update(dict.fromkeys(left, COUNTS))
    return result


def _leave_counting(
    nodes: Sequence[OnnxNode], placed: Placement, read: Collection[OnnxValue]
) -> set[OnnxNode]:
    """Leave to ONNX Runtime what counts for a node that it runs, or for values that it has to
    ``read``: whole numbers that follow from inputs of the graph and from nodes of ONNX Runtime's.
    A path from a region to such a node and back would cut the region in two. Returns the nodes."""
    makers = {v: node for node in nodes for v in node.outputs if v is not None}
    counting: set[OnnxNode] = set()
    """Nodes of the device whose inputs the host has."""
    for node in nodes:
        row = placed.rows.get(node)
        if node in placed and not (row is not None and row.multiplies) and all(
                v is None or v.dtype in _COUNTS for v in node.outputs) and all(
                v is None or v.constant is not None or (maker := makers.get(v)) is None
                or maker in counting or maker not in placed for v in node.inputs):
            counting.add(node)
    left: set[OnnxNode] = set()
    read_by_others: set[OnnxValue | None] = {*read}
    for node in reversed(nodes):
        if node not in placed:
            read_by_others.update(node.inputs)
        elif node in counting and not read_by_others.isdisjoint(node.outputs):
            placed.rows.pop(node, None)
            placed.host.discard(node)
            placed.reasons[node] = COUNTS
            left.add(node)
            read_by_others.update(node.inputs)
    return left


def _tried(
    row: Mapping, node: OnnxNode, device: Device, before: dict[Any, str | None]
) -> str | None:
    """:func:`.mapping.trial` of a node. A model repeats its layers: what it said ``before`` of one
    that is alike, it says of this one."""
    attributes = [(name, as_key(value)) for name, value in node.attributes.items()
                  if not (row.any_size and name in _SIZES)]
    if row.any_size:
        tensors = [_rank(v) for v in (*node.inputs, *node.outputs)]
        tensors += [as_key(v.constant) for i in row.host if (v := node.input(i)) is not None]
    else:
        tensors = [v and (v.dtype, v.shape, as_key(v.constant, i not in row.host))
                   for i, v in enumerate(node.inputs)]
        tensors += [v and (v.dtype, v.shape) for v in node.outputs]
    key = id(row), node.op, node.since, *attributes, None, *tensors
    if key not in before:
        before[key] = mapping.trial(row, node, device)
    return before[key]


def _rank(value: OnnxValue | None) -> Any:
    """What a device may refuse of a valid node's tensor, whatever its sizes are."""
    if value is None or value.shape is None:
        return value and (value.dtype, None)
    return value.dtype, len(value.shape), None in value.shape, 0 in value.shape


def as_key(value: Any, is_weight: bool = False) -> Any:
    """An attribute or a constant as part of a key. Of the many numbers of a weight, no plan reads
    one."""
    if isinstance(value, np.ndarray):
        many = is_weight and value.nbytes > shapes.HOST_BYTES and value.dtype.kind == "f"
        return value.shape, value.dtype, None if many else value.tobytes()
    return tuple(map(as_key, value)) if isinstance(value, (list, tuple)) else bits(value)


def within(
    nodes: Sequence[OnnxNode], device: Device, before: Rows | None = None
) -> Placement:
    """The placement of a region's nodes, which were placed before; ``before`` has what is still
    known of that."""
    known = before or {}
    rows, host = {}, set()
    for node in nodes:
        if isinstance(row := known.get(node) or mapping.rounding(node, device), Mapping):
            rows[node] = row
        if shapes.can(node):
            host.add(node)
        elif isinstance(row, str):
            mapping.find(node, device)  # raises
    return Placement(rows, host, wanted=_wanted(nodes, rows, host - rows.keys()))


def _wanted(
    nodes: Sequence[OnnxNode], rows: dict[OnnxNode, Mapping], always: set[OnnxNode]
) -> set[OnnxValue]:
    """Values that a plan depends on, and those that they follow from. ``always`` are evaluated."""
    wanted: set[OnnxValue] = set()
    for node in reversed(nodes):
        if node in rows:
            wanted.update(v for i in rows[node].host if (v := node.input(i)) is not None)
        if node in always or (shapes.can(node) and not wanted.isdisjoint(node.outputs)):
            wanted.update(shapes.reads(node))
    return wanted


def _knows(
    value: OnnxValue, known: set[OnnxValue], computed: set[OnnxValue], wanted: set[OnnxValue]
) -> bool:
    """Whether the host knows a value: it follows from sizes, is a small constant, or an input."""
    if value.constant is not None:
        return value.constant.nbytes <= shapes.HOST_BYTES
    if value in known:
        return True
    few = value.shape is None or product([n or 1 for n in value.shape]) <= _FEW
    return value not in computed and value in wanted and few
