"""RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types, Values
from layouts import PACKED, TRANSPOSED, Sizes

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_SIGMOID, _TANH = dml.ActivationSigmoidOperatorDesc(), dml.ActivationTanhOperatorDesc()
_USUAL = {"RNN": (_TANH,), "GRU": (_SIGMOID, _TANH), "LSTM": (_SIGMOID, _TANH, _TANH)}
_OTHERS = (dml.ActivationHardSigmoidOperatorDesc(alpha=0.3, beta=0.4),
           dml.ActivationScaledTanhOperatorDesc(alpha=0.5, beta=0.75),
           dml.ActivationLeakyReluOperatorDesc(alpha=0.25))
_FUNCTIONS = {
    "activation_sigmoid": lambda x, a: 1 / (1 + np.exp(-x)),
    "activation_tanh": lambda x, a: np.tanh(x),
    "activation_hard_sigmoid": lambda x, a: np.clip(a.alpha * x + a.beta, 0, 1),
    "activation_scaled_tanh": lambda x, a: a.alpha * np.tanh(a.beta * x),
    "activation_leaky_relu": lambda x, a: np.where(x < 0, a.alpha * x, x),
}


def _scaled(scale: float) -> Values:
    def values(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
        return rng.normal(0, scale, sizes).astype(data_type.dtype)

    return values


def _lengths(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.integers(0, 7, sizes).astype(data_type.dtype)


def _apply(activation: Any, x: np.ndarray) -> np.ndarray:
    return _FUNCTIONS[activation.operator.function_name](x, activation)


def _direction(kind: str, x: Mapping[str, np.ndarray], d: int, backward: bool,
               activations: Any, given: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Output by step, last state and last cells of one direction."""
    inputs, w, r = x["input_tensor"][0], x["weight_tensor"][0, d], x["recurrence_tensor"][0, d]
    steps, batches, _ = inputs.shape
    units, gates = r.shape[1], _GATES[kind]
    bias = x["bias_tensor"][0, 0, d] if "bias_tensor" in x else np.zeros(2 * gates * units)
    zeros = np.zeros((batches, units))
    h, c = (x[n][0, d] if n in x else zeros for n in ("hidden_init_tensor",
                                                     "cell_mem_init_tensor"))
    lengths = x["sequence_lengths_tensor"].reshape(-1) if "sequence_lengths_tensor" in x \
        else np.full(batches, steps)
    peep = x["peephole_tensor"][0, 0, d].reshape(3, units) if "peephole_tensor" in x \
        else np.zeros((3, units))
    f, g, last = (*activations, None, None)[:3]
    limit = given["clip_threshold"] if given.get("use_clip_threshold") else np.inf
    y = np.zeros((steps, batches, units))
    for t in range(steps)[::-1 if backward else 1]:
        a = np.split(inputs[t] @ w.T + bias[: gates * units], gates, 1)
        b = np.split(h @ r.T + bias[gates * units :], gates, 1)
        cells = c
        if kind == "RNN":
            new = _apply(f, a[0] + b[0])
        elif kind == "GRU":
            z, reset = (_apply(f, a[i] + b[i]) for i in range(2))
            if given["linear_before_reset"]:
                made = _apply(g, a[2] + reset * b[2])
            else:
                made = _apply(g, a[2] + (reset * h) @ r[2 * units :].T + bias[5 * units :])
            new = (1 - z) * made + z * h
        else:
            i, o, forget, made = (u + v for u, v in zip(a, b))
            i = _apply(f, np.clip(i + peep[0] * c, -limit, limit))
            forget = _apply(f, np.clip(forget + peep[2] * c, -limit, limit))
            if given["couple_input_forget"]:
                forget = 1 - i
            cells = forget * c + i * _apply(g, np.clip(made, -limit, limit))
            o = _apply(f, np.clip(o + peep[1] * cells, -limit, limit))
            new = o * _apply(last, cells)
        live = (t < lengths)[:, None]
        h, c, y[t] = np.where(live, new, h), np.where(live, cells, c), np.where(live, new, 0)
    there = (lengths > 0)[:, None]
    return y, np.where(there, h, 0), np.where(there, c, 0)


def _case(kind: str, name: str, sizes: tuple[int, int, int, int], tensors: str, outputs: str,
          direction: int = 0, activations: Any = None, layouts: Any = (PACKED,), **more: Any
          ) -> Case:
    steps, batches, inputs, units = sizes
    d, rows = 2 if direction == 2 else 1, _GATES[kind] * units
    state = (1, d, batches, units)
    shapes: dict[str, Sizes] = {
        "input_tensor": (1, steps, batches, inputs), "weight_tensor": (1, d, rows, inputs),
        "recurrence_tensor": (1, d, rows, units), "bias_tensor": (1, 1, d, 2 * rows),
        "hidden_init_tensor": state, "cell_mem_init_tensor": state,
        "sequence_lengths_tensor": (1, 1, 1, batches), "peephole_tensor": (1, 1, d, 3 * units),
        "output_sequence_tensor": (steps, d, batches, units), "output_single_tensor": state,
        "output_cell_single_tensor": state}
    wanted = ["input_tensor", "weight_tensor", "recurrence_tensor",
              *(f"{t}_tensor" for t in tensors.split()),
              *(f"output_{t}_tensor" for t in outputs.split())]
    given = {"direction": direction, "activation_descs": activations or _USUAL[kind] * d, **more}

    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> Any:
        wide = {n: a.astype(np.float64) for n, a in x.items()}
        each = len(given["activation_descs"]) // d
        made = [_direction(kind, wide, i, i == 1 or direction == 1,
                           given["activation_descs"][each * i :][:each], given) for i in range(d)]
        results = dict(zip(("sequence", "single", "cell_single"), (
            np.stack([m[0] for m in made], 1), *(np.stack([m[i] for m in made])[None]
                                                 for i in (1, 2)))))
        result = tuple(results[n] for n in outputs.split())
        return result if len(result) > 1 else result[0]

    def room(x: Arrays, attributes: Mapping[str, Any]) -> Any:
        """The gates' sums have errors of a few 2^-23. The activations do not enlarge them, and a
        step
    passes less than twice its error on to the next."""
        off = 2.0**-23 * (inputs + units + 16) * 2**min(steps, 4)
        return (off,) * len(outputs.split()) if len(outputs.split()) > 1 else off

    # The norm of R is near 2, the factor by which the error of a step grows.
    scales = {"weight_tensor": 0.5, "recurrence_tensor": min(0.5, units**-0.5)}
    values: dict[str, Any] = {
        n: _scaled(scales.get(n, 1.0)) for n in wanted if not n.startswith("output")}
    if "sequence_lengths_tensor" in wanted:
        values["sequence_lengths_tensor"] = _lengths
    return Case(kind, name, {n: shapes[n] for n in shapes if n in wanted}, reference,
                attributes=given, values=values, layouts=layouts, room=room)


_EVERY = "bias hidden_init sequence_lengths"
CASES = [
    _case("RNN", "plain", (3, 2, 5, 4), "", "sequence"),
    _case("RNN", "everything", (5, 3, 7, 6), _EVERY, "sequence single", 2,
          layouts=(PACKED, TRANSPOSED), activations=_OTHERS[:2]),
    _case("RNN", "past-a-tile", (2, 35, 19, 37), "bias", "single", 1),
    *(_case("GRU", f"plain-{i}", (3, 2, 5, 4), "", "sequence", linear_before_reset=bool(i))
      for i in range(2)),
    *(_case("GRU", f"everything-{i}", (5, 3, 7, 6), _EVERY, "sequence single", 2,
            layouts=(PACKED, TRANSPOSED) if i else (PACKED,), linear_before_reset=bool(i),
            activations=(*_OTHERS[:2], *_OTHERS[1:])) for i in range(2)),
    _case("GRU", "past-a-tile", (2, 35, 19, 37), "bias", "single", 1, linear_before_reset=False),
    # One workgroup computes all steps of a sequence.
    *(_case(kind, "few-sequences", (4, 2, 7, 64), _EVERY + states, "sequence single", 2,
            activations=_OTHERS[:{"RNN": 1, "LSTM": 3}.get(kind, 2)] * 2 if kind != "GRU"
            else (*_OTHERS[:2], *_OTHERS[1:]), **more)
      for kind, states, more in (
          ("RNN", "", {}), ("GRU", "", {"linear_before_reset": True}),
          ("LSTM", " cell_mem_init peephole", {
              "clip_threshold": 0.5, "use_clip_threshold": True, "couple_input_forget": False}))),
    *(_case("LSTM", name, *args, **{"clip_threshold": 0.5, "use_clip_threshold": False,
                                    "couple_input_forget": False, **more})
      for name, args, more in (
          ("plain", ((3, 2, 8, 4), "", "sequence"), {}),
          ("everything", ((5, 3, 7, 6), _EVERY + " cell_mem_init peephole",
                          "sequence single cell_single", 2),
           {"layouts": FEW, "activations": _OTHERS * 2}),
          ("clip", ((3, 2, 5, 4), "bias peephole cell_mem_init", "cell_single", 1),
           {"use_clip_threshold": True}),
          ("couple", ((3, 2, 5, 4), "bias peephole", "single"), {"couple_input_forget": True}),
          ("past-a-tile", ((2, 35, 19, 37), "bias", "single"), {}))),
]


def _wrong(name: str, parts: list[str], kind: str = "LSTM", **changes: Any) -> ErrorCase:
    def desc(*sizes: int) -> dml.TensorDesc:
        return dml.TensorDesc("float32", sizes)

    rows = _GATES[kind] * 4
    fields: dict[str, Any] = dict(
        input_tensor=desc(1, 3, 2, 5), weight_tensor=desc(1, 1, rows, 5),
        recurrence_tensor=desc(1, 1, rows, 4), output_single_tensor=desc(1, 1, 2, 4),
        activation_descs=_USUAL[kind], direction=0)
    if kind == "LSTM":
        fields |= dict(clip_threshold=1.0, use_clip_threshold=0, couple_input_forget=0)
    if kind == "GRU":
        fields |= dict(linear_before_reset=0)
    changes = {n: desc(*v) if n.endswith("tensor") and v is not None else v
               for n, v in changes.items()}
    return ErrorCase(kind, name, fields | changes, parts)


ERRORS = [
    _wrong("weights", ["WeightTensor.Sizes", "[1, 1, 16, 5]", "[1, 1, 12, 5]"],
           weight_tensor=(1, 1, 12, 5)),
    _wrong("directions", ["WeightTensor.Sizes", "[1, 2, 16, 5]"], direction=2,
           output_single_tensor=(1, 2, 2, 4)),
    _wrong("bias", ["BiasTensor.Sizes", "[1, 1, 1, 32]", "[1, 1, 1, 16]"],
           bias_tensor=(1, 1, 1, 16)),
    _wrong("output", ["OutputSingleTensor.Sizes", "[1, 1, 2, 4]", "[1, 1, 2, 5]"],
           output_single_tensor=(1, 1, 2, 5)),
    _wrong("nothing", ["OutputSequenceTensor", "given"], output_single_tensor=None),
    _wrong("activations", ["ActivationDescs", "3 activations", "2"],
           activation_descs=(_SIGMOID, _TANH)),
    _wrong("not-fused", ["ActivationDescs[0]", "fused", "DML_OPERATOR_ELEMENT_WISE_ABS"], "RNN",
           activation_descs=(dml.ElementWiseAbsOperatorDesc(
               input_tensor=dml.TensorDesc("float32", [1]),
               output_tensor=dml.TensorDesc("float32", [1])),)),
    _wrong("count", ["ActivationDescCount", "be 2", "3"], "GRU", activation_desc_count=3),
]
