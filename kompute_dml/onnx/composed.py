"""ONNX operators that take several of DirectML's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attributes import ScaleBias
from ..graph.array import BOOL, Array
from ..graph.builder import Builder
from ..layout import product
from .graph import Node
from .lowerings import Inputs, emit_elementwise, given
from .products import matmul


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


# Einsum


def _terms(node: Node) -> tuple[str, str, str]:
    """The indices of both operands and of the result."""
    operands, arrow, result = node.attributes["equation"].replace(" ", "").partition("->")
    a, _, b = operands.partition(",")
    if not arrow:  # those that occur once, by the alphabet
        result = "".join(sorted(i for i in a + b if (a + b).count(i) == 1))
    return a, b, result


def einsum_refusal(node: Node) -> str | None:
    if len(node.inputs) != 2:
        return "an Einsum of other than two operands"
    a, b, result = _terms(node)
    if "." in a + b:
        return "an Einsum with an ellipsis"
    if any(len(set(term)) != len(term) for term in (a, b, result)):
        return "an Einsum with an index that an operand repeats"
    if any(i not in result for i in set(a) ^ set(b)):
        return "an Einsum that sums over an index of one operand"
    return None


def einsum(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """A matrix product of transposed operands: shared indices are batches or summed over."""
    left, right, result = _terms(node)
    a, b = given(inputs, 0), given(inputs, 1)
    sizes = dict(zip(left + right, a.shape + b.shape))
    batches = [i for i in left if i in right and i in result]
    summed = [i for i in left if i in right and i not in result]
    rows = [i for i in left if i not in right]
    columns = [i for i in right if i not in left]

    def matrices(x: Array, term: str, first: list[str], second: list[str]) -> Array:
        x = x.transpose([term.index(i) for i in (*batches, *first, *second)])
        return builder.reshape(x, [product([sizes[i] for i in group])
                                   for group in (batches, first, second)])

    operands = [matrices(a, left, rows, summed), matrices(b, right, summed, columns)]
    (y,) = matmul(builder, Node("MatMul", "", 13, node.inputs, node.outputs), operands)
    order = [*batches, *rows, *columns]
    return [builder.reshape(y, [sizes[i] for i in order]).transpose(
        [order.index(i) for i in result])]
