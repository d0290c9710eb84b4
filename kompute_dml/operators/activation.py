"""Activations: the identity, and a table of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..dtypes import DataType
from ..errors import expect
from ..lowering.builder import PlanBuilder
from ..lowering.copy import SHADERS, copied_input
from ..lowering.elementwise import parameter, parameters
from ..spec import FeatureLevel
from .base import OperatorDesc, operator
from .elementwise import row


@operator("ACTIVATION_IDENTITY", shaders=SHADERS, broadcasts=True)
def ActivationIdentityOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    p.add(copied_input(p, d.input_tensor, d.output_tensor))


def _shrink_parameters(desc: OperatorDesc, data_type: DataType) -> tuple[int, ...]:
    """Integers also take -Threshold, because the negation of the lowest number overflows."""
    words = parameters(desc, data_type)
    return words if data_type.is_float else (*words, *parameter(-desc.threshold, data_type))


def _check_softplus(desc: OperatorDesc, strict: bool) -> None:
    expect(desc.steepness > 0, "DML_OPERATOR_ACTIVATION_SOFTPLUS", "Steepness", "be above 0",
           desc.steepness)


def _newer_softplus(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    if desc.steepness < 1:
        yield FeatureLevel.FL_6_4, "Steepness", "be at least 1", desc.steepness


for _name in ("GELU", "PARAMETERIZED_RELU", "RELU", "SIGMOID", "SOFTSIGN", "TANH"):
    row(f"ACTIVATION_{_name}", _name.lower())

row("ACTIVATION_CELU", "celu", alpha=1.0)
row("ACTIVATION_ELU", "elu", alpha=1.0)
row("ACTIVATION_HARD_SIGMOID", "hard_sigmoid", alpha=0.2, beta=0.5)
row("ACTIVATION_HARD_SWISH", "hard_swish", alpha=1 / 6, beta=0.5)
row("ACTIVATION_LEAKY_RELU", "leaky_relu", alpha=0.01)
row("ACTIVATION_LINEAR", "linear")
row("ACTIVATION_PARAMETRIC_SOFTPLUS", "parametric_softplus")
row("ACTIVATION_SCALED_ELU", "scaled_elu", alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875)
row("ACTIVATION_SCALED_TANH", "scaled_tanh", alpha=1.0, beta=0.5)
row("ACTIVATION_SHRINK", "shrink", constants=_shrink_parameters, bias=0.0, threshold=0.5)
row("ACTIVATION_SOFTPLUS", "softplus", check=_check_softplus, newer=_newer_softplus,
    steepness=1.0)
row("ACTIVATION_SWISH", "swish", sigmoid_input_scale=1.0)
row("ACTIVATION_THRESHOLDED_RELU", "thresholded_relu", alpha=1.0)
