"""The optimizer's step and batch normalization in training, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, Sizes

_U = 2.0**-24


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 2, sizes).astype(data_type.dtype)


def _positive(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.uniform(0.1, 4, sizes).astype(data_type.dtype)


def _wide(x: Arrays) -> dict[str, np.ndarray]:
    return {name: v.astype(np.float64) for name, v in x.items()}


# Adam

_PARTS = ("parameters", "first_moment", "second_moment")


def _adam_parts(x: Arrays, given: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """The results, and the exact step."""
    old, m, v, g, steps = (_wide(x)[n] for n in (
        *(f"input_{part}_tensor" for part in _PARTS), "gradient_tensor", "training_step_tensor"))
    rate, b1, b2, epsilon = (float(np.float32(given[n])) for n in (
        "learning_rate", "beta1", "beta2", "epsilon"))
    step = steps.item()
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    with np.errstate(all="ignore"):
        rate = rate * np.sqrt(1 - b2**step) / (np.float64(1) - b1**step)
    change = rate / (np.sqrt(v) + epsilon)
    return old - change * m, m, v, change


def _adam(x: Arrays, given: Mapping[str, Any], types: Types) -> tuple[np.ndarray, ...]:
    return _adam_parts(x, given)[:3]


def _adam_room(x: Arrays, given: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """A few operations each. The two corrections are accurate to 8 ulp."""
    _, _, v, change = _adam_parts(x, given)
    wide = _wide(x)
    m = abs(wide["input_first_moment_tensor"]) + abs(wide["gradient_tensor"])
    return (_U * (32 * abs(change) * m + 2 * abs(wide["input_parameters_tensor"])),
            4 * _U * m, 4 * _U * v)


def _adam_case(name: str, sizes: Sizes, step: int, layouts: Any = (PACKED,), **more: Any) -> Case:
    fields = dict.fromkeys([*(f"input_{p}_tensor" for p in _PARTS), "gradient_tensor"], sizes)
    ones = (1,) * len(sizes)
    return Case(
        "ADAM_OPTIMIZER", name,
        {**fields, "training_step_tensor": ones,
         **{f"output_{p}_tensor": sizes for p in _PARTS}}, _adam,
        attributes={"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-3},
        values={**dict.fromkeys(fields, _numbers), "input_second_moment_tensor": _positive,
                "training_step_tensor": np.full(ones, step, np.uint32)},
        layouts=layouts, room=_adam_room, **more)


# Batch normalization

_NAMES = ("input_tensor", "input_gradient_tensor", "mean_tensor", "variance_tensor", "scale_tensor")
_EPSILON = 1e-2


def _axes(x: Arrays) -> tuple[int, ...]:
    return tuple(a for a, n in enumerate(x["scale_tensor"].shape) if n == 1)


def _training(x: Arrays, given: Mapping[str, Any], types: Types) -> tuple[np.ndarray, ...]:
    wide = _wide(x)
    given_x = wide["input_tensor"]
    mean, variance = (f(given_x, _axes(x), keepdims=True) for f in (np.mean, np.var))
    y = (given_x - mean) / np.sqrt(variance + _EPSILON) * wide["scale_tensor"]
    y = y + wide["bias_tensor"] + wide.get("fused_add_tensor", 0)
    return np.maximum(y, 0) if "fused_activation" in given else y, mean, variance


def _off(x: Arrays) -> tuple[int, np.ndarray, np.ndarray]:
    """The most roundings of a sum in half units, the size of the input, and its deviation."""
    wide, axes = _wide(x)["input_tensor"], _axes(x)
    count = int(np.prod([wide.shape[a] for a in axes]))
    return (count // 64 + 16, abs(wide).max(axes, keepdims=True),
            np.sqrt(wide.var(axes, keepdims=True) + _EPSILON))


def _training_room(x: Arrays, given: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    n, size, deviation = _off(x)
    scale, added = abs(_wide(x)["scale_tensor"]), abs(_wide(x).get("fused_add_tensor", 0.0))
    y = n * _U * (4 * scale * size / deviation * (1 + size / deviation)
                  + abs(_wide(x)["bias_tensor"]) + added)
    return (np.broadcast_to(y, x["input_tensor"].shape), n * _U * size, 4 * n * _U * size**2)


def _training_case(name: str, sizes: Sizes, scale: Sizes, layouts: Any = (PACKED,),
                   adds: bool = True, **more: Any) -> Case:
    inputs = {"input_tensor": sizes, "scale_tensor": scale, "bias_tensor": scale,
              **({"fused_add_tensor": sizes} if adds else {})}
    fused = {"fused_activation": dml.ActivationReluOperatorDesc()} if adds else {}
    return Case(
        "BATCH_NORMALIZATION_TRAINING", name,
        {**inputs, "output_tensor": sizes, "output_mean_tensor": scale,
         "output_variance_tensor": scale}, _training, attributes={"epsilon": _EPSILON, **fused},
        values=dict.fromkeys(inputs, _numbers), layouts=layouts, room=_training_room, **more)


def _gradient(x: Arrays, training: bool) -> tuple[np.ndarray, ...]:
    given, dy, mean, _, scale = (_wide(x)[n] for n in _NAMES)
    axes, root = _axes(x), 1 / np.sqrt(_wide(x)["variance_tensor"] + _EPSILON)
    how: dict[str, Any] = {"axis": axes, "keepdims": True}
    dx = dy
    if training:
        centered = given - given.mean(**how)
        dx = dy - dy.mean(**how) - centered * root**2 * (dy * centered).mean(**how)
    return (dx * scale * root, (dy * (given - mean) * root).sum(**how), dy.sum(**how))


def _inference_grad(x: Arrays, given: Any, types: Types) -> tuple[np.ndarray, ...]:
    return _gradient(x, False)


def _training_grad(x: Arrays, given: Any, types: Types) -> tuple[np.ndarray, ...]:
    return _gradient(x, True)


def _gradient_room(x: Arrays, given: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    n, size, _ = _off(x)
    wide, axes = _wide(x), _axes(x)
    dy, root = abs(wide["input_gradient_tensor"]), 1 / np.sqrt(wide["variance_tensor"] + _EPSILON)
    most = dy.max(axes, keepdims=True)
    size = size + abs(wide["mean_tensor"])
    total = dy.sum(axes, keepdims=True)
    dx = 4 * n * _U * abs(wide["scale_tensor"]) * root * most * (1 + (size * root) ** 2)
    return (np.broadcast_to(dx, dy.shape), 2 * n * _U * total * size * root, n * _U * total)


def _gradient_case(operator: str, name: str, sizes: Sizes, scale: Sizes, layouts: Any = (PACKED,),
                   **more: Any) -> Case:
    inputs = {n: sizes if n.startswith("input") else scale for n in _NAMES}
    return Case(
        operator, name,
        {**inputs, "output_gradient_tensor": sizes, "output_scale_gradient_tensor": scale,
         "output_bias_gradient_tensor": scale},
        _training_grad if "TRAINING" in operator else _inference_grad,
        attributes={"epsilon": _EPSILON},
        values={**dict.fromkeys(inputs, _numbers), "variance_tensor": _positive},
        layouts=layouts, room=_gradient_room, **more)


def _gradient_cases(operator: str) -> list[Case]:
    return [
        _gradient_case(operator, "channels", (2, 3, 4, 5), (1, 3, 1, 1), FEW),
        _gradient_case(operator, "vector", (7,), (1,)),
        _gradient_case(operator, "each-element", (2, 3), (2, 3)),
        _gradient_case(operator, "past-a-workgroup", (3, 2, 352), (1, 2, 1),
                       levels=("descriptor",)),
        _gradient_case(operator, "divided", (3, 2, 4111), (1, 2, 1), levels=("descriptor",)),
        _gradient_case(operator, "eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2),
                       (2, 1, 1, 2, 1, 3, 1, 1)),
    ]


CASES = [
    *_gradient_cases("BATCH_NORMALIZATION_GRAD"),
    *_gradient_cases("BATCH_NORMALIZATION_TRAINING_GRAD"),
    _training_case("channels", (2, 3, 4, 5), (1, 3, 1, 1), FEW),
    _training_case("vector", (7,), (1,)),
    _training_case("each-element", (2, 3), (2, 3), adds=False),
    _training_case("past-a-workgroup", (3, 2, 352), (1, 2, 1), adds=False, levels=("descriptor",)),
    _training_case("divided", (3, 2, 4111), (1, 2, 1), levels=("descriptor",)),
    _training_case("eight-dimensions", (2, 1, 3, 2, 2, 3, 1, 2), (2, 1, 1, 2, 1, 3, 1, 1)),
    _adam_case("first-step", (2, 3, 4, 5), 1, FEW),
    _adam_case("past-a-workgroup", (1, 1, 47, 47), 100, levels=("descriptor", "function")),
    _adam_case("vector", (7,), 2),
    _adam_case("eight-dimensions", (2, 1, 3, 2, 1, 2, 1, 3), 2),
    _adam_case("late", (1, 1, 1, 3), 4_000_000_000, levels=("descriptor",)),
    _adam_case("no-step", (1, 1, 1, 3), 0, levels=("descriptor",)),
]

_X = dml.TensorDesc("float32", [1, 1, 2, 3])
_STEP = dml.TensorDesc("uint32", [1, 1, 1, 1])
_ADAM = dict(
    input_parameters_tensor=_X, input_first_moment_tensor=_X, input_second_moment_tensor=_X,
    gradient_tensor=_X, training_step_tensor=_STEP, output_parameters_tensor=_X,
    output_first_moment_tensor=_X, output_second_moment_tensor=_X, learning_rate=0.1, beta1=0.9,
    beta2=0.9, epsilon=1e-8)
ERRORS = [
    ErrorCase("ADAM_OPTIMIZER", "steps", {**_ADAM, "training_step_tensor": _STEP.replace(
        sizes=(1, 1, 1, 2), strides=None)}, ["TrainingStepTensor.Sizes", "all 1", "[1, 1, 1, 2]"]),
    *[ErrorCase(operator, "scale", {**dict.fromkeys(fields, _X), **dict.fromkeys(
        scales, _X.replace(sizes=(1, 1, 2, 2), strides=None)), "epsilon": 0.0},
        ["ScaleTensor.Sizes[3]", "1 or 3", "2"])
      for operator, fields, scales in (
          ("BATCH_NORMALIZATION_TRAINING", ("input_tensor", "output_tensor"),
           ("scale_tensor", "bias_tensor", "output_mean_tensor", "output_variance_tensor")),
          *((f"BATCH_NORMALIZATION_{kind}GRAD",
             ("input_tensor", "input_gradient_tensor", "output_gradient_tensor"),
             ("mean_tensor", "variance_tensor", "scale_tensor", "output_scale_gradient_tensor",
              "output_bias_gradient_tensor")) for kind in ("", "TRAINING_")))],
    ErrorCase("ADAM_OPTIMIZER", "beta", {**_ADAM, "beta2": 1.5}, ["Beta2", "[0, 1]", "1.5"]),
]
