"""Elementwise operators and activations: one line each."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..operators.base import definitions
from .case import Entry, Given, OperatorCase, Scale, case, rows

_F32, _U8, _U32 = "float32", "uint8", "uint32"


class Reference(NamedTuple):
    """How NumPy computes an operator. Attributes are those of the function."""

    compute: Callable[..., Any]
    """(inputs, and attributes by name) -> the output. Absent attributes are the function's own."""
    data_type: str = _F32
    attributes: dict[str, Any] = {}
    low: float = 0.1
    high: float = 0.9
    """Inputs are drawn from ``low`` to ``high``."""
    on_device: bool = False
    """Whether ``compute`` runs on the device, which is its first argument."""

    def with_attributes(self) -> Callable[..., Any]:
        """``compute`` with the case's attributes."""
        return partial(self.compute, **self.attributes)


def _sigmoid(x: np.ndarray) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: np.ndarray) -> Any:
    return np.log1p(np.exp(x))


def _erf(x: np.ndarray) -> Any:
    # The Taylor series, with enough terms for the range of inputs.
    total = np.zeros_like(x)
    for n in range(20):
        total += (-1) ** n * x ** (2 * n + 1) / (math.factorial(n) * (2 * n + 1))
    return 2 / math.sqrt(math.pi) * total


def _bit_count(x: np.ndarray) -> Any:
    return np.unpackbits(x.view(np.uint8)).reshape(-1, 32).sum(1)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _bits(compute: Callable[..., object]) -> Reference:
    return Reference(compute, _U32, low=0, high=2**31)


REFERENCES: dict[str, Reference] = {
    "ACTIVATION_CELU": Reference(
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)), low=-2, high=2),
    "ACTIVATION_ELU": Reference(
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)), low=-2, high=2),
    "ACTIVATION_GELU": Reference(lambda x: x * 0.5 * (1 + _erf(x / 2**0.5)), low=-2, high=2),
    "ACTIVATION_HARD_SIGMOID": Reference(
        lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1), low=-4, high=4),
    "ACTIVATION_HARD_SWISH": Reference(
        lambda x, alpha=1 / 6, beta=0.5: x * np.clip(alpha * x + beta, 0, 1), low=-4, high=4),
    "ACTIVATION_LEAKY_RELU": Reference(
        lambda x, alpha=0.01: np.where(x < 0, alpha * x, x), low=-1, high=1),
    "ACTIVATION_LINEAR": Reference(
        lambda x, alpha, beta: alpha * x + beta, attributes={"alpha": 2.0, "beta": 1.0}),
    "ACTIVATION_PARAMETERIZED_RELU": Reference(
        lambda x, s: np.where(x < 0, s * x, x), low=-1, high=1),
    "ACTIVATION_PARAMETRIC_SOFTPLUS": Reference(
        lambda x, alpha, beta: alpha * _softplus(beta * x),
        attributes={"alpha": 2.0, "beta": 3.0}),
    "ACTIVATION_RELU": Reference(lambda x: np.maximum(x, 0), low=-1, high=1),
    "ACTIVATION_SCALED_ELU": Reference(
        lambda x, alpha=_SELU[0], gamma=_SELU[1]: (
            gamma * np.where(x > 0, x, alpha * np.expm1(x))), low=-2, high=2),
    "ACTIVATION_SCALED_TANH": Reference(
        lambda x, alpha=1.0, beta=0.5: alpha * np.tanh(beta * x), low=-2, high=2),
    "ACTIVATION_SHRINK": Reference(lambda x: np.where(np.abs(x) > 0.5, x, 0), low=-1, high=1),
    "ACTIVATION_SIGMOID": Reference(_sigmoid, low=-4, high=4),
    "ACTIVATION_SOFTPLUS": Reference(_softplus, low=-4, high=4),
    "ACTIVATION_SOFTSIGN": Reference(lambda x: x / (1 + np.abs(x)), low=-4, high=4),
    "ACTIVATION_SWISH": Reference(lambda x: x * _sigmoid(x), low=-4, high=4),
    "ACTIVATION_TANH": Reference(np.tanh, low=-4, high=4),
    "ACTIVATION_THRESHOLDED_RELU": Reference(
        lambda x, alpha=1.0: np.where(x > alpha, x, 0), low=0, high=2),
    "CAST": Reference(lambda x, data_type: x.astype(data_type),
                      attributes={"data_type": "int32"}, low=-1000, high=1000),
    "ELEMENT_WISE_ABS": Reference(np.abs, low=-1, high=1),
    "ELEMENT_WISE_ACOS": Reference(np.arccos),
    "ELEMENT_WISE_ACOSH": Reference(np.arccosh, low=1.5, high=9),
    "ELEMENT_WISE_ADD": Reference(np.add),
    "ELEMENT_WISE_ADD1": Reference(np.add),
    "ELEMENT_WISE_ASIN": Reference(np.arcsin),
    "ELEMENT_WISE_ASINH": Reference(np.arcsinh),
    "ELEMENT_WISE_ATAN": Reference(np.arctan),
    "ELEMENT_WISE_ATANH": Reference(np.arctanh),
    "ELEMENT_WISE_ATAN_YX": Reference(np.arctan2),
    "ELEMENT_WISE_BIT_AND": _bits(np.bitwise_and),
    "ELEMENT_WISE_BIT_COUNT": _bits(getattr(np, "bitwise_count", _bit_count)),
    "ELEMENT_WISE_BIT_NOT": _bits(np.invert),
    "ELEMENT_WISE_BIT_OR": _bits(np.bitwise_or),
    "ELEMENT_WISE_BIT_SHIFT_LEFT": Reference(np.left_shift, _U32, low=0, high=31),
    "ELEMENT_WISE_BIT_SHIFT_RIGHT": Reference(np.right_shift, _U32, low=0, high=31),
    "ELEMENT_WISE_BIT_XOR": _bits(np.bitwise_xor),
    "ELEMENT_WISE_CEIL": Reference(np.ceil, low=-9, high=9),
    "ELEMENT_WISE_CLIP": Reference(
        lambda x, min, max: np.clip(x, min, max), attributes={"min": 0.25, "max": 0.5}),
    "ELEMENT_WISE_CLIP1": Reference(
        lambda x, min, max: np.clip(x, min, max), attributes={"min": 0.25, "max": 0.5}),
    "ELEMENT_WISE_CONSTANT_POW": Reference(
        lambda x, exponent: x**exponent, attributes={"exponent": 2.5}),
    "ELEMENT_WISE_COS": Reference(np.cos, low=-1, high=1),
    "ELEMENT_WISE_COSH": Reference(np.cosh),
    "ELEMENT_WISE_DIFFERENCE_SQUARE": Reference(lambda x, y: (x - y) ** 2),
    "ELEMENT_WISE_DIVIDE": Reference(np.divide),
    "ELEMENT_WISE_ERF": Reference(_erf),
    "ELEMENT_WISE_EXP": Reference(np.exp),
    "ELEMENT_WISE_FLOOR": Reference(np.floor, low=-9, high=9),
    "ELEMENT_WISE_IDENTITY": Reference(np.copy),
    "ELEMENT_WISE_IS_INFINITY": Reference(np.isinf),
    "ELEMENT_WISE_IS_NAN": Reference(np.isnan),
    "ELEMENT_WISE_LOG": Reference(np.log),
    "ELEMENT_WISE_LOGICAL_AND": Reference(np.logical_and, _U8, low=0, high=2),
    "ELEMENT_WISE_LOGICAL_EQUALS": Reference(np.equal),
    "ELEMENT_WISE_LOGICAL_GREATER_THAN": Reference(np.greater),
    "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL": Reference(np.greater_equal),
    "ELEMENT_WISE_LOGICAL_LESS_THAN": Reference(np.less),
    "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL": Reference(np.less_equal),
    "ELEMENT_WISE_LOGICAL_NOT": Reference(np.logical_not, _U8, low=0, high=2),
    "ELEMENT_WISE_LOGICAL_OR": Reference(np.logical_or, _U8, low=0, high=2),
    "ELEMENT_WISE_LOGICAL_XOR": Reference(np.logical_xor, _U8, low=0, high=2),
    "ELEMENT_WISE_MAX": Reference(np.maximum),
    "ELEMENT_WISE_MEAN": Reference(lambda x, y: (x + y) / 2),
    "ELEMENT_WISE_MIN": Reference(np.minimum),
    "ELEMENT_WISE_MODULUS_FLOOR": Reference(np.mod, _U32, low=1, high=1000),
    "ELEMENT_WISE_MODULUS_TRUNCATE": Reference(np.fmod, _U32, low=1, high=1000),
    "ELEMENT_WISE_MULTIPLY": Reference(np.multiply),
    "ELEMENT_WISE_NEGATE": Reference(np.negative),
    "ELEMENT_WISE_POW": Reference(np.power),
    "ELEMENT_WISE_RECIP": Reference(np.reciprocal),
    "ELEMENT_WISE_ROUND": Reference(np.rint, low=-9, high=9),
    "ELEMENT_WISE_SIGN": Reference(np.sign, low=-1, high=1),
    "ELEMENT_WISE_SIN": Reference(np.sin),
    "ELEMENT_WISE_SINH": Reference(np.sinh),
    "ELEMENT_WISE_SQRT": Reference(np.sqrt),
    "ELEMENT_WISE_SUBTRACT": Reference(np.subtract),
    "ELEMENT_WISE_TAN": Reference(np.tan),
    "ELEMENT_WISE_TANH": Reference(np.tanh),
    "ELEMENT_WISE_THRESHOLD": Reference(
        lambda x, min: np.maximum(x, min), attributes={"min": 0.5}),
}
"""References by DirectML's name without DML_OPERATOR_."""


def _case(s: Scale, name: str) -> OperatorCase:
    r = REFERENCES[name]

    def compute(*x: np.ndarray) -> Any:
        return r.with_attributes()(
            *(v.astype(r.data_type) if v.dtype.kind == "i" else v for v in x))

    array = Given((s.side, s.side), r.low, r.high, np.dtype(r.data_type))
    count = len(definitions()["DML_OPERATOR_" + name].spec.inputs)
    return case(compute, *[array] * count, **r.attributes)


CASES: dict[str, Entry] = {
    **{name: partial(_case, name=name) for name in REFERENCES},
    "ELEMENT_WISE_IF": lambda s: case(
        lambda condition, x, y: np.where(condition, x, y), rows(s, 0, 2, np.uint8),
        rows(s, -1, 1), rows(s, -1, 1)),
}
