"""Operators of FLOAT64 that compute nothing, such as IsInf: they read its bits as INT64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..doubles import before_widening
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, emit_elementwise, given
from ..row import FOLDED, Mapping
from .elementwise import COMPARISONS, UNARY, either_infinity, infinity_mode

_DOUBLE = np.dtype(np.float64)
_BITS = np.dtype(np.int64)
_SIGN, _MAGNITUDE, _INFINITY = -(1 << 63), (1 << 63) - 1, 0x7FF << 52


def of_doubles(node: OnnxNode) -> str | None:
    """Refuse a node of other numbers."""
    known = [v.dtype for v in node.inputs if v is not None]
    return None if known and set(known) == {_DOUBLE} else "numbers that are no FLOAT64"


def is_nan(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = before_widening(builder, given(inputs, 0))
    return [_truth(builder, "IS_NAN", x) if x.dtype != _DOUBLE else _is_nan(builder, x)]


def is_infinity(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = before_widening(builder, given(inputs, 0))
    if x.dtype != _DOUBLE:
        return [emit_elementwise(
            builder, "ELEMENT_WISE_IS_INFINITY", [x], BOOL, infinity_mode(node, inputs))]
    positive, negative = (node.attributes.get(f"detect_{s}", 1) for s in ("positive", "negative"))
    bits = _bits(x)
    if positive and negative:
        bits = _apply(builder, "BIT_AND", bits, _constant(builder, _MAGNITUDE))
    wanted = _INFINITY if positive else _INFINITY + _SIGN
    return [_truth(builder, "LOGICAL_EQUALS", bits, _constant(builder, wanted))]


def negate(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    bits = _apply(builder, "BIT_XOR", _bits(x), _constant(builder, _SIGN))
    return [replace(bits, dtype=x.dtype)]


def magnitude(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    bits = _apply(builder, "BIT_AND", _bits(x), _constant(builder, _MAGNITUDE))
    return [replace(bits, dtype=x.dtype)]


def compared(comparison: str) -> Build:
    """Comparisons with NaN are false."""
    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        a, b = given(inputs, 0), given(inputs, 1)
        holds = _truth(builder, comparison, _ordered(builder, a), _ordered(builder, b))
        unknown = _truth(builder, "LOGICAL_OR", _is_nan(builder, a), _is_nan(builder, b))
        return [_truth(builder, "LOGICAL_AND", holds, _truth(builder, "LOGICAL_NOT", unknown))]

    return build


def extreme(comparison: str) -> Build:
    """The largest or smallest of any number of inputs; NaN if one is."""
    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        result = given(inputs, 0)
        for i in range(1, len(inputs)):
            other = given(inputs, i)
            known = _truth(builder, "LOGICAL_NOT", _is_nan(builder, other))
            goes_before = _truth(
                builder, comparison, _ordered(builder, result), _ordered(builder, other))
            taken = _truth(builder, "LOGICAL_OR", _is_nan(builder, result),
                           _truth(builder, "LOGICAL_AND", known, goes_before))
            result = emit_elementwise(
                builder, "ELEMENT_WISE_IF", [taken, result, other], result.dtype, {})
        return [result]

    return build


def _bits(x: Array) -> Array:
    return replace(x, dtype=_BITS, host=None)


def _constant(builder: Builder, value: int) -> Array:
    return builder.constant(np.array(value, _BITS))


def _apply(builder: Builder, operator: str, *arrays: Array) -> Array:
    return emit_elementwise(builder, "ELEMENT_WISE_" + operator, arrays, arrays[-1].dtype, {})


def _truth(builder: Builder, operator: str, *arrays: Array) -> Array:
    return emit_elementwise(builder, "ELEMENT_WISE_" + operator, arrays, BOOL, {})


def _is_nan(builder: Builder, x: Array) -> Array:
    bits = _apply(builder, "BIT_AND", _bits(x), _constant(builder, _MAGNITUDE))
    return _truth(builder, "LOGICAL_GREATER_THAN", bits, _constant(builder, _INFINITY))


def _ordered(builder: Builder, x: Array) -> Array:
    """Integers in the order of the numbers. Both zeros are 0."""
    bits = _bits(x)
    below = _truth(builder, "LOGICAL_LESS_THAN", bits, _constant(builder, 0))
    mirrored = _apply(builder, "SUBTRACT", _constant(builder, _SIGN), bits)
    return _apply(builder, "IF", below, mirrored, bits)


def _of_doubles(op: str, since: tuple[int, ...], operator: str, build: Build,
                attributes: tuple[str, ...] = ()) -> Mapping:
    """``operator`` is the last that reads bits. A general row for the types that it computes comes
    later."""
    return Mapping(op, since, "ELEMENT_WISE_" + operator, build, fields=(None,),
                   attributes=attributes, results=(None,), refuses=of_doubles)


def _infinity_of_doubles(node: OnnxNode) -> str | None:
    return of_doubles(node) or either_infinity(node)


ROWS: tuple[Mapping, ...] = (
    _of_doubles("Abs", UNARY, "BIT_AND", magnitude),
    _of_doubles("Neg", UNARY, "BIT_XOR", negate),
    _of_doubles("IsNaN", (9, 13, 20), "LOGICAL_GREATER_THAN", is_nan),
    Mapping("IsInf", (10, 20), "ELEMENT_WISE_LOGICAL_EQUALS", is_infinity, fields=(None,),
        attributes=("detect_negative", "detect_positive"), results=(None,),
        refuses=_infinity_of_doubles),
    _of_doubles("Max", FOLDED, "IF", extreme("LOGICAL_GREATER_THAN_OR_EQUAL")),
    _of_doubles("Min", FOLDED, "IF", extreme("LOGICAL_LESS_THAN_OR_EQUAL")),
    *(_of_doubles(op, since, f"LOGICAL_{name}", compared(f"LOGICAL_{name}"))
      for op, since, name in COMPARISONS),
)
