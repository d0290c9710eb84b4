"""Activations, also of several of DirectML's operators."""

from __future__ import annotations

import numpy as np

from ...attributes import ScaleBias
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, floats, given
from ..row import MICROSOFT, Mapping, elementwise, only
from .elementwise import apply


def of_integers(node: OnnxNode) -> str | None:
    x = node.input(0)
    return None if x is not None and x.dtype is not None and x.dtype.kind in "iu" else (
        "numbers that are no integers")


def integer_relu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    return [apply(builder, "ELEMENT_WISE_MAX", x, builder.constant(np.zeros((), x.dtype)))]


def mish(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    softplus = apply(builder, "ACTIVATION_SOFTPLUS", x, steepness=1.0)
    return [apply(builder, "ELEMENT_WISE_MULTIPLY", x,
                  apply(builder, "ACTIVATION_TANH", softplus))]


def swiglu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    gate = apply(builder, "ACTIVATION_SWISH", given(inputs, 0),
                 sigmoid_input_scale=float(node.attributes.get("alpha", 1.0)))
    return [apply(builder, "ELEMENT_WISE_MULTIPLY", gate, given(inputs, 1))]


def _with_bias(builder: Builder, inputs: Inputs) -> Array:
    x, bias = given(inputs, 0), inputs[1] if len(inputs) > 1 else None
    return x if bias is None else apply(builder, "ELEMENT_WISE_ADD", x, bias)


def bias_gelu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    return [apply(builder, "ACTIVATION_GELU", _with_bias(builder, inputs))]


def fast_gelu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """x sigmoid(2 u) is x (1 + tanh(u)) / 2; u is sqrt(2 / pi) (x + 0.044715 x^3)."""
    x = _with_bias(builder, inputs)
    twice = 2 * (2 / np.pi) ** 0.5
    square = apply(builder, "ELEMENT_WISE_MULTIPLY", x, x)
    factor = apply(builder, "ELEMENT_WISE_IDENTITY", square,
                   scale_bias=ScaleBias(0.044715 * twice, twice))
    share = apply(builder, "ACTIVATION_SIGMOID",
                  apply(builder, "ELEMENT_WISE_MULTIPLY", x, factor))
    return [apply(builder, "ELEMENT_WISE_MULTIPLY", x, share)]


_ACTIVATION = (1, 6, 13, 14, 16, 22)

ROWS: tuple[Mapping, ...] = (
    Mapping("Relu", _ACTIVATION, "ELEMENT_WISE_MAX", integer_relu, fields=("ATensor",),
        refuses=of_integers),
    elementwise("Relu", _ACTIVATION, "ACTIVATION_RELU"),
    elementwise("Sigmoid", _ACTIVATION, "ACTIVATION_SIGMOID"),
    elementwise("Tanh", _ACTIVATION, "ACTIVATION_TANH"),
    elementwise("Softsign", _ACTIVATION, "ACTIVATION_SOFTSIGN"),
    elementwise("Softplus", _ACTIVATION, "ACTIVATION_SOFTPLUS", floats(steepness=1.0)),
    elementwise("LeakyRelu", _ACTIVATION, "ACTIVATION_LEAKY_RELU", floats(alpha=0.01),
                 reads=("alpha",)),
    elementwise("Elu", _ACTIVATION, "ACTIVATION_ELU", floats(alpha=1.0),
                 reads=("alpha",)),
    elementwise("Celu", (12, 28), "ACTIVATION_CELU", floats(alpha=1.0),
                 reads=("alpha",)),
    elementwise("Selu", _ACTIVATION, "ACTIVATION_SCALED_ELU",
                 floats(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
                 reads=("alpha", "gamma")),
    elementwise("ThresholdedRelu", (1, 10, 22), "ACTIVATION_THRESHOLDED_RELU",
                 floats(alpha=1.0), reads=("alpha",)),
    elementwise("HardSigmoid", _ACTIVATION, "ACTIVATION_HARD_SIGMOID",
                 floats(alpha=0.2, beta=0.5), reads=("alpha", "beta")),
    elementwise("HardSwish", (14, 22), "ACTIVATION_HARD_SWISH",
                 floats(alpha=1 / 6, beta=0.5)),
    elementwise("Shrink", (9,), "ACTIVATION_SHRINK",
                 floats(bias=0.0, threshold__lambd=0.5), reads=("bias", "lambd")),
    elementwise("PRelu", (7, 9, 16), "ACTIVATION_PARAMETERIZED_RELU"),
    Mapping("Gelu", (20,), "ACTIVATION_SIGMOID", fast_gelu, attributes=("approximate",),
        refuses=only("approximate", "tanh", "none")),
    elementwise("Gelu", (20,), "ACTIVATION_GELU", reads=("approximate",),
                 refuses=only("approximate", "none", "none")),
    elementwise("Gelu", (1,), "ACTIVATION_GELU", domain=MICROSOFT),
    elementwise("Swish", (24,), "ACTIVATION_SWISH",
                 floats(sigmoid_input_scale__alpha=1.0), reads=("alpha",)),
    elementwise("QuickGelu", (1,), "ACTIVATION_SWISH",
                 floats(sigmoid_input_scale__alpha=1.702), reads=("alpha",),
                 domain=MICROSOFT),
    Mapping("Mish", (18, 22), "ACTIVATION_SOFTPLUS", mish),
    Mapping("FastGelu", (1,), "ACTIVATION_SIGMOID", fast_gelu, MICROSOFT,
        fields=("InputTensor",)),
    Mapping("BiasGelu", (1,), "ACTIVATION_GELU", bias_gelu, MICROSOFT,
        fields=("InputTensor",)),
    Mapping("SwiGLU", (28,), "ACTIVATION_SWISH", swiglu, fields=("InputTensor",),
        attributes=("alpha",)),
    # What ONNX has dropped, or ONNX Runtime keeps for old models
    elementwise("Affine", (1,), "ACTIVATION_LINEAR", floats(alpha=1.0, beta=0.0),
                 reads=("alpha", "beta")),
    elementwise("ParametricSoftplus", (1,), "ACTIVATION_PARAMETRIC_SOFTPLUS",
                 floats(alpha=1.0, beta=1.0), reads=("alpha", "beta")),
    elementwise("ScaledTanh", (1,), "ACTIVATION_SCALED_TANH",
                 floats(alpha=1.0, beta=1.0), reads=("alpha", "beta")),
)
