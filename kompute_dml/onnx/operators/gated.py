"""com.microsoft's gates of hybrid models (Qwen3-Next, Mamba), computed in FLOAT32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, emit_elementwise, given, optional
from ..row import MICROSOFT, TWO, Mapping
from .normalization import layers

_REAL = np.dtype("float32")
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "silu": ("ACTIVATION_SWISH", {"sigmoid_input_scale": 1.0}),
    "swish": ("ACTIVATION_SWISH", {"sigmoid_input_scale": 1.0}),
    "sigmoid": ("ACTIVATION_SIGMOID", {}),
}


def _real(builder: Builder, operator: str, *arrays: Array, **attributes: Any) -> Array:
    values = [converted(builder, x, _REAL) for x in arrays]
    return emit_elementwise(builder, operator, values, _REAL, attributes)


def added(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """GatedAdd: a sum whose second term has a factor for each row."""
    x, y, gate = (given(inputs, i) for i in range(3))
    if y.shape != x.shape or gate.shape != (*x.shape[:-1], 1):
        raise ValidationError(f"expected two terms and a gate for each row, but got "
                              f"{list(x.shape)}, {list(y.shape)} and {list(gate.shape)}")
    product = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [y, gate], x.dtype, {})
    return [emit_elementwise(builder, "ELEMENT_WISE_ADD", [x, product], x.dtype, {})]


def added_refusal(node: OnnxNode) -> str | None:
    """Why GatedAdd is not served, or None."""
    return "gate_weight" if node.input(3) is not None else None


def normalized(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """GatedRMSNorm: each group of elements is normalized, then multiplied by its gate."""
    x, scale, gate = (given(inputs, i) for i in range(3))
    size = scale.size
    if gate.shape != x.shape or not size or not x.shape or x.shape[-1] % size:
        raise ValidationError(f"expected a gate of the sizes of the input, and groups of {size}, "
                              f"but got {list(x.shape)} and {list(gate.shape)}")
    groups = builder.reshape(x, (*x.shape[:-1], x.shape[-1] // size, size))
    norm = replace(node, outputs=node.outputs[:1], attributes={
        "epsilon": node.attributes.get("epsilon", 1e-5)})
    (y,) = layers(False)(builder, norm, [
        converted(builder, groups, _REAL), converted(builder, scale, _REAL)])
    operator, more = _ACTIVATIONS[node.attributes.get("activation", "silu")]
    y = _real(builder, "ELEMENT_WISE_MULTIPLY", builder.reshape(y, x.shape),
              _real(builder, operator, gate, **more))
    return [converted(builder, y, x.dtype)]


def normalized_refusal(node: OnnxNode) -> str | None:
    """Why GatedRMSNorm is not served, or None."""
    kind = node.attributes.get("activation", "silu")
    return None if kind in _ACTIVATIONS else f"activation={kind!r}"


def decays(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """LinearAttentionGate: how much of its state linear attention forgets and learns."""
    a, bias, scale = (given(inputs, i) for i in range(3))
    soft = _real(builder, "ACTIVATION_SOFTPLUS", _real(builder, "ELEMENT_WISE_ADD", a, bias),
                 steepness=1.0)
    decay = converted(builder, _real(builder, "ELEMENT_WISE_MULTIPLY", soft, scale), a.dtype)
    if (b := optional(inputs, 3)) is None:
        return [decay]
    return [decay, converted(builder, _real(builder, "ACTIVATION_SIGMOID", b), b.dtype)][
        : len(node.outputs)]


ROWS: tuple[Mapping, ...] = (
    Mapping("GatedAdd", (1,), "ELEMENT_WISE_ADD", added, MICROSOFT, fields=TWO,
        refuses=added_refusal),
    Mapping("GatedRMSNorm", (1,), "MEAN_VARIANCE_NORMALIZATION2", normalized, MICROSOFT,
        fields=("InputTensor",), attributes=("activation", "epsilon"),
        refuses=normalized_refusal),
    Mapping("LinearAttentionGate", (1,), "ACTIVATION_SOFTPLUS", decays, MICROSOFT,
        fields=("InputTensor",), results=(None, None)),
)
