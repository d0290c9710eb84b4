"""ONNX operators that take several of DirectML's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attributes import ScaleBias
from ..graph.array import BOOL, Array
from ..graph.builder import Builder
from .graph import Node
from .lowerings import Inputs, emit_elementwise, given


def _apply(builder: Builder, operator: str, *arrays: Array, **attributes: Any) -> Array:
    return emit_elementwise(builder, operator, arrays, arrays[0].dtype, attributes)


def truth(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """Cast to bool: whatever is not 0 is true, NaN too."""
    x = given(inputs, 0)
    zero = builder.constant(np.zeros((), x.dtype))
    equal = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_EQUALS", [x, zero], BOOL, {})
    return [_apply(builder, "ELEMENT_WISE_LOGICAL_NOT", equal)]


def mean(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """The mean of any number of inputs."""
    result = given(inputs, 0)
    for i in range(1, len(inputs)):
        result = _apply(builder, "ELEMENT_WISE_ADD", result, given(inputs, i))
    share = ScaleBias(1 / len(inputs), 0.0)
    return [_apply(builder, "ELEMENT_WISE_IDENTITY", result, scale_bias=share)]


def power(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """Pow with an exponent of another type than the base's, which is the result's."""
    x, exponent = given(inputs, 0), given(inputs, 1)
    exponent = emit_elementwise(builder, "CAST", [exponent], x.dtype, {})
    return [_apply(builder, "ELEMENT_WISE_POW", x, exponent)]


def mish(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    softplus = _apply(builder, "ACTIVATION_SOFTPLUS", x, steepness=1.0)
    return [_apply(builder, "ELEMENT_WISE_MULTIPLY", x,
                   _apply(builder, "ACTIVATION_TANH", softplus))]


def _with_bias(builder: Builder, inputs: Inputs) -> Array:
    x, bias = given(inputs, 0), inputs[1] if len(inputs) > 1 else None
    return x if bias is None else _apply(builder, "ELEMENT_WISE_ADD", x, bias)


def bias_gelu(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    return [_apply(builder, "ACTIVATION_GELU", _with_bias(builder, inputs))]


def fast_gelu(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """x sigmoid(2 u) is x (1 + tanh(u)) / 2; u is sqrt(2 / pi) (x + 0.044715 x^3)."""
    x = _with_bias(builder, inputs)
    twice = 2 * (2 / np.pi) ** 0.5
    square = _apply(builder, "ELEMENT_WISE_MULTIPLY", x, x)
    factor = _apply(builder, "ELEMENT_WISE_IDENTITY", square,
                    scale_bias=ScaleBias(0.044715 * twice, twice))
    share = _apply(builder, "ACTIVATION_SIGMOID",
                   _apply(builder, "ELEMENT_WISE_MULTIPLY", x, factor))
    return [_apply(builder, "ELEMENT_WISE_MULTIPLY", x, share)]
