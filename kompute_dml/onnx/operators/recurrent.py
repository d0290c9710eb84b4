"""Recurrent networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...graph.array import Array
from ...graph.builder import Builder
from ...operators import base
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, Seen, given, optional, packed
from ..row import Mapping

_DIRECTIONS = {"forward": 0, "reverse": 1, "bidirectional": 2}
_USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("RELU", {}), "tanh": ("TANH", {}), "sigmoid": ("SIGMOID", {}),
    "softsign": ("SOFTSIGN", {}), "softplus": ("SOFTPLUS", {}),
    "leakyrelu": ("LEAKY_RELU", {"alpha": 0.01}),
    "thresholdedrelu": ("THRESHOLDED_RELU", {"alpha": 1.0}),
    "elu": ("ELU", {"alpha": 1.0}), "hardsigmoid": ("HARD_SIGMOID", {"alpha": 0.2, "beta": 0.5}),
    "scaledtanh": ("SCALED_TANH", {"alpha": 1.0, "beta": 1.0}),
    "affine": ("LINEAR", {"alpha": 1.0, "beta": 0.0}),
}
"""DirectML's activation, and its attributes that ONNX lists."""


def _activations(node: OnnxNode, kind: str, directions: int) -> tuple[Any, ...]:
    usual = _USUAL[kind]
    # ONNX's default of RNN has names for two directions, whether there are two or not.
    names = node.attributes.get("activations", usual * directions)[:len(usual) * directions]
    lists = {k: iter(node.attributes.get(f"activation_{k}", ())) for k in ("alpha", "beta")}
    result = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise UnsupportedError(f"the activation {name}")
        operator, defaults = _ACTIVATIONS[name.lower()]
        values = {k: float(next(lists[k], v)) for k, v in defaults.items()}
        if operator == "SOFTPLUS":
            values["steepness"] = 1.0
        definition = base.definitions()["DML_OPERATOR_ACTIVATION_" + operator]
        result.append(definition.desc_class(**values))
    return tuple(result)


def recurrent(kind: str) -> Build:
    """RNN, GRU and LSTM. ONNX's tensors lack DirectML's leading dimension."""

    def of_steps(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x, w, r = (builder.pack(given(inputs, i)) for i in range(3))
        b, lengths, h, c, peepholes = (
            None if (t := optional(inputs, i)) is None else builder.pack(t) for i in range(3, 8))
        steps, batches, _ = x.shape
        directions, _, units = r.shape
        state = (directions, batches, units)
        y, last, cells = (builder.new(s, x.dtype) for s in (
            (steps, *state), state, state))
        if y.storage is None:
            return [y, last, cells]
        if lengths is not None:
            lengths = replace(lengths, dtype=np.dtype("uint32"))
        tensors: dict[str, Seen | None] = {
            "input_tensor": packed(x, 1), "weight_tensor": packed(w, 1),
            "recurrence_tensor": packed(r, 1),
            "bias_tensor": packed(b, 2),
            "hidden_init_tensor": packed(h, 1),
            "sequence_lengths_tensor": packed(lengths, 3),
            "output_sequence_tensor": packed(y), "output_single_tensor": packed(last, 1),
        }
        attributes: dict[str, Any] = {
            "activation_descs": _activations(node, kind, directions),
            "direction": _DIRECTIONS[node.attributes.get("direction", "forward")],
        }
        if kind == "LSTM":
            clip = node.attributes.get("clip")
            tensors |= {"cell_mem_init_tensor": packed(c, 1),
                        "peephole_tensor": packed(peepholes, 2),
                        "output_cell_single_tensor": packed(cells, 1)}
            attributes |= {"clip_threshold": float(clip or 0.0), "use_clip_threshold": bool(clip),
                           "couple_input_forget": node.attributes.get("input_forget", 0)}
        elif kind == "GRU":
            attributes["linear_before_reset"] = node.attributes.get("linear_before_reset", 0)
        builder.emit(kind, tensors, **attributes)
        return [y, last, cells] if kind == "LSTM" else [y, last]

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        if not node.attributes.get("layout", 0):
            return of_steps(builder, node, inputs)
        # The batch comes first in the input and in the states.
        y, *states = of_steps(builder, node, [
            x.transpose((1, 0, 2)) if x is not None and i in (0, 5, 6) else x
            for i, x in enumerate(inputs)])
        return [y.transpose((2, 0, 1, 3)), *(s.transpose((1, 0, 2)) for s in states)]

    return build


def recurrent_refusal(node: OnnxNode) -> str | None:
    """Why a recurrent network is not supported, or None."""
    if node.op != "LSTM" and node.attributes.get("clip"):
        return "clip"
    return None


def _recurrent(
    kind: str, states: tuple[str, ...] = (), attributes: tuple[str, ...] = ()
) -> Mapping:
    return Mapping(
        kind, (1, 3, 7, 14, 22), kind, recurrent(kind),
        fields=("InputTensor", "WeightTensor", "RecurrenceTensor", "BiasTensor", None,
                "HiddenInitTensor", *states),
        attributes=("hidden_size", "direction", "activations", "activation_alpha",
                    "activation_beta", "clip", "layout", "output_sequence", *attributes),
        refuses=recurrent_refusal, multiplies=True)


ROWS: tuple[Mapping, ...] = (
    _recurrent("RNN"),
    _recurrent("GRU", attributes=("linear_before_reset",)),
    _recurrent("LSTM", ("CellMemInitTensor", "PeepholeTensor"), ("input_forget",)),
)
