"""The DirectML operator for each ONNX operator, and the row of the table that serves a node.

A row is active if its DirectML operator is implemented at the device's feature level for the
data types. So a new operator needs only its lowering and its row, in a module of
:mod:`.operators`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import DmlError, UnsupportedError
from ..graph.array import Array
from ..graph.builder import Builder
from . import doubles
from .graph import OnnxNode
from .operators import (
    activations,
    attention,
    attention_parts,
    branches,
    convolution,
    diagonals,
    double_bits,
    einsum,
    elementwise,
    experts,
    fourier,
    gated,
    gather,
    grouped_attention,
    legacy,
    linear_attention,
    losses,
    microsoft,
    mixture,
    movement,
    normalization,
    pooling,
    products,
    projected_attention,
    quantization,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    rotary,
    sampling,
    shared_caches,
    views,
)
from .row import Mapping

if TYPE_CHECKING:
    from ..device import Device

FAMILIES = (
    double_bits, elementwise, activations, views, diagonals, gather, movement, products,
    quantization, quantized, reduction, normalization, pooling, resize, sampling, convolution,
    shared_caches, attention, attention_parts, projected_attention, grouped_attention, rotary,
    linear_attention, recurrent, random, fourier, einsum, experts, gated, losses, microsoft,
    legacy, branches)
"""Of several rows of an operator, the first that serves a node is taken."""
TABLE = (*[row for family in FAMILIES for row in family.ROWS],
         *mixture.rows(lambda node, device: find(node, device)))


def match(node: OnnxNode, device: Device) -> Mapping | str:
    """The mapping of ``node`` on ``device``, or why there is none."""
    mapping = candidate(node, device)
    return mapping if isinstance(mapping, str) else trial(mapping, node, device) or mapping


def find(node: OnnxNode, device: Device) -> Mapping:
    """The mapping of a node that was matched before. Raises UnsupportedError."""
    mapping = candidate(node, device)
    if isinstance(mapping, str):
        raise UnsupportedError(f"{node.label} {node.name!r}: {mapping}")
    return mapping


def rounding(node: OnnxNode, device: Device) -> Mapping | str:
    """:func:`candidate`, or a mapping that computes the node's FLOAT64 in FLOAT32."""
    row = candidate(node, device)
    if isinstance(row, str) and (single := doubles.in_singles(node)) is not None and isinstance(
            other := candidate(single, device), Mapping):
        return doubles.rounded(other)
    return row


def candidate(node: OnnxNode, device: Device) -> Mapping | str:
    """The mapping of ``node`` by the tables, or why there is none."""
    reason = "no mapping has this operator"
    rows = _by_operator().get((node.domain, node.op), [])
    for mapping in [row for row in rows if node.since in row.since] or rows:
        refused = mapping.refusal(node, device)
        if refused is None:
            return mapping
        reason = refused
    return reason


def trial(mapping: Mapping, node: OnnxNode, device: Device) -> str | None:
    """Why the node does not compile on the device, which may lack a feature, or None."""
    builder = Builder(device, trial=True)
    inputs: list[Array | None] = []
    certain = True
    for i, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            inputs.append(None)
            continue
        if i in mapping.host and value.constant is None:
            return None  # everything depends on a value that only a run knows
        shape = value.shape or ()
        certain = certain and value.shape is not None and None not in shape
        array = builder.new([1 if n is None else n for n in shape], value.dtype)
        inputs.append(
            array if value.constant is None else replace(array, host=value.constant))
    try:
        mapping.build(builder, node, inputs)
    except UnsupportedError as error:
        return str(error)
    except Exception as error:  # whatever a model makes go wrong
        # Substitutes for unknown sizes need not fit together.
        return said(error) if certain else None
    return None


def said(error: Exception) -> str:
    """What to say of whatever a model made go wrong."""
    if isinstance(error, KeyError):
        return f"not known: {error}"
    return str(error) if isinstance(error, (DmlError, ValueError, LookupError)) else repr(error)


@functools.cache
def _by_operator() -> dict[tuple[str, str], list[Mapping]]:
    result: dict[tuple[str, str], list[Mapping]] = {}
    for mapping in TABLE:
        result.setdefault((mapping.domain, mapping.op), []).append(mapping)
    return result
