"""Fused activations, as ``include/activation_by_code.glsl`` takes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..dtypes import DataType
from ..layout import Ints
from .elementwise import parameters

NAMES = (
    "none", "relu", "leaky_relu", "thresholded_relu", "linear", "hard_sigmoid", "shrink", "elu",
    "celu", "scaled_elu", "sigmoid", "tanh", "scaled_tanh", "softplus", "parametric_softplus",
    "softsign", "gelu", "clip", "hard_swish", "swish",
)
"""The index is the code, FUSED_ACTIVATION of the shaders."""


class Fused(NamedTuple):
    """What a dispatch needs: a specialization constant and words for the params buffer."""

    code: int
    words: Ints


def activation(desc: Any) -> Fused:
    """The code and words of an activation's description."""
    name = desc.operator.function_name.removeprefix("activation_")
    if name == "identity":
        return Fused(0, ())
    return Fused(NAMES.index(name), parameters(desc, DataType.FLOAT32))


def fused_activation(desc: Any) -> Fused:
    """The code and words of the activation that an operator fuses; code 0 for none."""
    fused = getattr(desc, "fused_activation", None)
    return Fused(0, ()) if fused is None else activation(fused)
