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
    """The results and the step before its division's rounding errors."""
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
    """Few operations each; the two corrections are good to 8 ulp."""
    _, _, v, change = _adam_parts(x, given)
    wide = _wide(x)
    m = abs(wide["input_first_moment_tensor"]) + abs(wide["gradient_tensor"])
    return (_U * (32 * abs(change) * m + 2 * abs(wide["input_parameters_tensor"])),
            4 * _U * m, 4 * _U * v)


def _adam_case(name: str, sizes: Sizes, step: int, layouts: Any = (PACKED,), **more: Any) -> Case:
    fields = dict.fromkeys([*(f"input_{p}_tensor" for p in _PARTS), "gradient_tensor"], sizes)
    return Case(
        "ADAM_OPTIMIZER", name,
        {**fields, "training_step_tensor": (1, 1, 1, 1),
         **{f"output_{p}_tensor": sizes for p in _PARTS}}, _adam,
        attributes={"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-3},
        values={**dict.fromkeys(fields, _numbers), "input_second_moment_tensor": _positive,
                "training_step_tensor": np.full((1, 1, 1, 1), step, np.uint32)},
        layouts=layouts, room=_adam_room, **more)


CASES = [
    _adam_case("first-step", (2, 3, 4, 5), 1, FEW),
    _adam_case("past-a-workgroup", (1, 1, 47, 47), 100, levels=("descriptor", "function")),
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
    ErrorCase("ADAM_OPTIMIZER", "beta", {**_ADAM, "beta2": 1.5}, ["Beta2", "[0, 1]", "1.5"]),
]
