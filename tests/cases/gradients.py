"""Gradients of operators, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from cases.elementwise import case
from harness import Case, ErrorCase


def _clip_grad(x: np.ndarray, dy: np.ndarray, min: float, max: float) -> Any:
    return np.where((x <= min) | (x >= max), dy.dtype.type(0), dy)


CASES: list[Case] = [
    *case("ACTIVATION_RELU_GRAD", lambda x, dy: np.where(x > 0, dy, dy.dtype.type(0))),
    *case("ELEMENT_WISE_CLIP_GRAD", _clip_grad, min=0.5, max=3.0),
    *case("ELEMENT_WISE_CLIP_GRAD1", _clip_grad, min=1, max=3),
]

_X, _I = dml.TensorDesc("float32", [2, 3]), dml.TensorDesc("int32", [2, 3])


def _xdy(t: dml.TensorDesc) -> dict[str, Any]:
    return dict(input_tensor=t, input_gradient_tensor=t, output_gradient_tensor=t)


ERRORS = [
    ErrorCase("ACTIVATION_RELU_GRAD", "types", _xdy(_X) | {"input_tensor": _I},
              ["DataType", "FLOAT32", "INT32"]),
    ErrorCase("ELEMENT_WISE_CLIP_GRAD", "type", _xdy(dml.TensorDesc("float64", [2])) | dict(
        min=0.0, max=1.0), ["DataType", "FLOAT64"]),
    ErrorCase("ELEMENT_WISE_CLIP_GRAD1", "limit", _xdy(_I) | dict(
        min_max_data_type=dml.DataType.INT32, min=0, max=2**40), ["Max", "INT32", str(2**40)]),
]
