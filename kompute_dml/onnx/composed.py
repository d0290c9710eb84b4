"""ONNX operators that take several of DirectML's operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..attributes import ScaleBias
from ..errors import ValidationError
from ..graph.array import BOOL, Array
from ..graph.builder import Builder
from .graph import DTYPES, OnnxNode
from .lowerings import Inputs, emit_elementwise, given, host
from .products import product_of


def _apply(builder: Builder, operator: str, *arrays: Array, **attributes: Any) -> Array:
    return emit_elementwise(builder, operator, arrays, arrays[0].dtype, attributes)


def truth(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Cast to bool: anything but 0 is true, also NaN."""
    x = given(inputs, 0)
    zero = builder.constant(np.zeros((), x.dtype))
    equal = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_EQUALS", [x, zero], BOOL, {})
    return [_apply(builder, "ELEMENT_WISE_LOGICAL_NOT", equal)]


def of_integers(node: OnnxNode) -> str | None:
    x = node.input(0)
    return None if x is not None and x.dtype is not None and x.dtype.kind in "iu" else (
        "numbers that are no integers")


def integer_relu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    return [_apply(builder, "ELEMENT_WISE_MAX", x, builder.constant(np.zeros((), x.dtype)))]


def of_unsigned(node: OnnxNode) -> str | None:
    x = node.input(0)
    return None if x is not None and x.dtype is not None and x.dtype.kind == "u" else (
        "numbers that may be negative")


def clip(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Clip between bounds that only the device knows. If they cross, the upper one wins."""
    y = given(inputs, 0)
    for operator, bound in zip(("ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN"), inputs[1:]):
        if bound is not None:
            y = _apply(builder, operator, y, builder.reshape(bound, ()))
    return [y]


def clip_refusal(node: OnnxNode) -> str | None:
    """Why DirectML's operator, whose bounds are attributes, is not the one for a node, or None."""
    constant = all(v is None or v.constant is not None for v in node.inputs[1:])
    return None if constant else "a bound that is no constant"


def mean(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The mean of any number of inputs."""
    result = given(inputs, 0)
    for i in range(1, len(inputs)):
        result = _apply(builder, "ELEMENT_WISE_ADD", result, given(inputs, i))
    share = ScaleBias(1 / len(inputs), 0.0)
    return [_apply(builder, "ELEMENT_WISE_IDENTITY", result, scale_bias=share)]


def power(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Pow with an exponent of another type. The result has the base's type."""
    x, exponent = given(inputs, 0), given(inputs, 1)
    exponent = emit_elementwise(builder, "CAST", [exponent], x.dtype, {})
    return [_apply(builder, "ELEMENT_WISE_POW", x, exponent)]


def mish(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    softplus = _apply(builder, "ACTIVATION_SOFTPLUS", x, steepness=1.0)
    return [_apply(builder, "ELEMENT_WISE_MULTIPLY", x,
                   _apply(builder, "ACTIVATION_TANH", softplus))]


def swiglu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    gate = _apply(builder, "ACTIVATION_SWISH", given(inputs, 0),
                  sigmoid_input_scale=float(node.attributes.get("alpha", 1.0)))
    return [_apply(builder, "ELEMENT_WISE_MULTIPLY", gate, given(inputs, 1))]


def affine_grid(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The points of an image, each with a 1 behind it, by matrices."""
    theta, wanted = given(inputs, 0), host(inputs, 1)
    sizes = [] if wanted is None else [int(n) for n in wanted.reshape(-1)[2:]]
    if len(sizes) not in (2, 3) or theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise ValidationError(f"expected matrices of {len(sizes)} x {len(sizes) + 1}, but got "
                              f"{list(theta.shape)}")
    ends = [1.0 if node.attributes.get("align_corners", 0) else 1 - 1 / max(n, 1) for n in sizes]
    planes = np.meshgrid(*(np.linspace(-e, e, n) for e, n in zip(ends, sizes)), indexing="ij")
    points = np.stack([*reversed(planes), np.ones(sizes)], -1).reshape(-1, len(sizes) + 1)
    grid = product_of(builder, builder.constant(points.astype(theta.dtype)),
                      theta.transpose((0, 2, 1)))
    return [builder.reshape(grid, (theta.shape[0], *sizes, len(sizes)))]


def bit_cast(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The same bits under another type."""
    x, dtype = given(inputs, 0), DTYPES[node.attributes["to"]]
    if x.dtype.itemsize != dtype.itemsize:
        raise ValidationError(f"expected a type of {x.dtype.itemsize} bytes, but got {dtype}")
    return [replace(x, dtype=dtype, host=None)]


def _with_bias(builder: Builder, inputs: Inputs) -> Array:
    x, bias = given(inputs, 0), inputs[1] if len(inputs) > 1 else None
    return x if bias is None else _apply(builder, "ELEMENT_WISE_ADD", x, bias)


def bias_gelu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    return [_apply(builder, "ACTIVATION_GELU", _with_bias(builder, inputs))]


def fast_gelu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """x sigmoid(2 u) is x (1 + tanh(u)) / 2; u is sqrt(2 / pi) (x + 0.044715 x^3)."""
    x = _with_bias(builder, inputs)
    twice = 2 * (2 / np.pi) ** 0.5
    square = _apply(builder, "ELEMENT_WISE_MULTIPLY", x, x)
    factor = _apply(builder, "ELEMENT_WISE_IDENTITY", square,
                    scale_bias=ScaleBias(0.044715 * twice, twice))
    share = _apply(builder, "ACTIVATION_SIGMOID",
                   _apply(builder, "ELEMENT_WISE_MULTIPLY", x, factor))
    return [_apply(builder, "ELEMENT_WISE_MULTIPLY", x, share)]
