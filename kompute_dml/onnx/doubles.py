"""FLOAT64 that exporters write out of habit. Devices need no FLOAT64 arithmetic for it.

Operators that compute nothing, such as IsInf, read bits: :mod:`.operators.double_bits`. Other
operators compute in FLOAT32 where no FLOAT64 number enters or leaves the model there: the numbers
come from Cast, from sizes or from constants, and go to another type.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ..graph.array import Array
from ..graph.builder import Builder
from .graph import OnnxNode, OnnxValue
from .lowerings import Inputs, converted
from .row import Mapping

_DOUBLE, _SINGLE = np.dtype(np.float64), np.dtype(np.float32)
_COUNTS = ("Range",)
"""Operators whose rounding decides how many elements there are: only the host computes them."""


def has(node: OnnxNode) -> bool:
    return any(map(_is_double, (*node.inputs, *node.outputs)))


def in_singles(node: OnnxNode) -> OnnxNode | None:
    """The node with FLOAT32 for FLOAT64, or None if it has no FLOAT64, or may not round."""
    if node.op in _COUNTS or not has(node):
        return None
    inputs, outputs = ([v if v is None or not _is_double(v) else _single(v) for v in values]
                       for values in (node.inputs, node.outputs))
    attributes = {name: value.astype(_SINGLE) if isinstance(value, np.ndarray)
                  and value.dtype == _DOUBLE else value for name, value in node.attributes.items()}
    return replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)


def _is_double(value: OnnxValue | None) -> bool:
    return value is not None and value.dtype == _DOUBLE


def _single(value: OnnxValue) -> OnnxValue:
    constant = None if value.constant is None else value.constant.astype(_SINGLE)
    return OnnxValue(value.name, _SINGLE, value.shape, constant)


@functools.cache
def rounded(row: Mapping) -> Mapping:
    """The row for FLOAT64 that serves nodes of FLOAT32 by ``row``."""
    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        single = in_singles(node)
        assert single is not None
        results = row.build(builder, single, [
            x if x is None or x.dtype != _DOUBLE else _as_single(builder, x) for x in inputs])
        return [converted(builder, y, _DOUBLE) if _is_double(value) else y
                for y, value in zip(results, node.outputs)]

    return replace(row, build=build)


def _as_single(builder: Builder, x: Array) -> Array:
    if x.host is None:
        return converted(builder, before_widening(builder, x), _SINGLE)
    numbers = x.host.astype(_SINGLE)
    return replace(builder.constant(numbers), host=numbers)


def before_widening(builder: Builder, x: Array) -> Array:
    """The FLOAT32 or FLOAT16 numbers that FLOAT64 ``x`` was cast from. Else ``x``."""
    if x.dtype != _DOUBLE or x.storage is None:
        return x
    maker = next((node for node in reversed(builder.nodes) if any(
        storage is x.storage for _, storage in node.slots("output"))), None)
    if maker is None or maker.name != "CAST":
        return x
    read, written = (maker.tensor(slot) for slot in ("input_tensor", "output_tensor"))
    if not read.data_type.is_float or read.strides != written.strides or not x.packed:
        return x
    return Array(read.data_type.dtype, x.shape, x.strides, maker.storages["input_tensor"])


def exposed(nodes: Sequence[OnnxNode], outputs: Collection[OnnxValue]) -> set[OnnxNode]:
    """Nodes whose FLOAT64 numbers come from outside of ``nodes`` or go there. ``nodes`` are in an
    order in which they can run."""
    results = {v for node in nodes for v in node.outputs}
    from_outside: set[OnnxValue | None] = {
        v for node in nodes for v in node.inputs
        if v is not None and _is_double(v) and v.constant is None and v not in results}
    for node in nodes:
        if not from_outside.isdisjoint(node.inputs):
            from_outside.update(filter(_is_double, node.outputs))
    to_outside: set[OnnxValue | None] = set(filter(_is_double, outputs))
    for node in reversed(nodes):
        if not to_outside.isdisjoint(node.outputs):
            to_outside.update(filter(_is_double, node.inputs))
    return {node for node in nodes if not from_outside.isdisjoint((*node.inputs, *node.outputs))
            or not to_outside.isdisjoint(node.outputs)}
