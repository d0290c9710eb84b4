"""Errors of the elementwise functions in ulp, against float64: python benchmarks/accuracy.py

FLOAT32 is swept over every exponent and densely over [-20, 20], FLOAT16 over all its 65,536 values.
An ulp is the distance of two neighbours of the result's type at the exact value.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kompute_dml as dml

_erf, _erfc = np.vectorize(math.erf, [float]), np.vectorize(math.erfc, [float])


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


@dataclass(frozen=True)
class Function:
    """A function of one variable, or of two, where the second takes the values ``other``.

    ``exact`` takes each of the ``attributes``, numbers that FLOAT32 holds, by name.
    """

    name: str
    exact: Callable[..., np.ndarray]
    attributes: tuple[dict[str, float], ...] = ({},)
    other: tuple[float, ...] = ()


def _plain(*names: str) -> list[Function]:
    numpy_names = {"recip": "reciprocal"} | {
        a + n: f"arc{n}" for a in ("a",)
        for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")
    }
    return [Function(n, getattr(np, numpy_names.get(n, n))) for n in names]


def _each(**values: tuple[float, ...]) -> tuple[dict[str, float], ...]:
    """Attributes with the first values, with the second ones, and so on, rounded to FLOAT32."""
    return tuple(dict(zip(values, (float(np.float32(v)) for v in row)))
                 for row in zip(*values.values()))


FUNCTIONS = [
    *_plain("recip", "sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
            "cosh", "tanh", "asinh", "acosh", "atanh"),
    Function("erf", _erf),
    Function("add", np.add, other=(0.1, -3e5)),
    Function("subtract", np.subtract, other=(0.1, -3e5)),
    Function("multiply", np.multiply, other=(0.1, -3e5)),
    Function("divide", np.divide, other=(0.1, -3e5, 7.0)),
    Function("pow", np.power, other=(0.5, -2.0, 3.0, 10.25, -0.3)),
    Function("atan_yx", np.arctan2, other=(1.0, -0.1, 1e10, -1e-10)),
    Function("constant_pow", lambda x, exponent: np.power(x, exponent), _each(exponent=(2.5,))),
    Function("modulus_truncate", np.fmod, other=(0.1, -7.5)),
    Function("modulus_floor", np.mod, other=(0.1, -7.5)),
    Function("activation_sigmoid", _sigmoid),
    Function("activation_tanh", np.tanh),
    Function("activation_softplus", lambda x, steepness: _softplus(steepness * x) / steepness,
             _each(steepness=(1, 3.3, 1.77))),
    Function("activation_softsign", lambda x: x / (1 + np.abs(x))),
    Function("activation_gelu", lambda x: x * 0.5 * _erfc(-x / math.sqrt(2))),
    Function("activation_swish", lambda x: x * _sigmoid(x)),
    # Factors of 1, those of the functions' papers, and others that bring results near powers of 2.
    Function("activation_elu", lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x)),
             _each(alpha=(1, 3.3, 3.86, 0.96))),
    Function("activation_celu", lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x / alpha)),
             _each(alpha=(0.7, 3.3, 3.5, 1.4))),
    Function("activation_scaled_elu",
             lambda x, alpha, gamma: gamma * np.where(x >= 0, x, alpha * np.expm1(x)),
             _each(alpha=(1.25, 1.6732632, 3.3, 1.68), gamma=(0.75, 1.050701, 1.9, 3.52))),
    Function("activation_parametric_softplus",
             lambda x, alpha, beta: alpha * _softplus(beta * x),
             _each(alpha=(1.25, 3.3, 1.9), beta=(0.75, 0.9, 0.3))),
    Function("activation_scaled_tanh", lambda x, alpha, beta: alpha * np.tanh(beta * x),
             _each(alpha=(0.75, 3.3, 0.86), beta=(1.25, 0.9, 0.67))),
]


def inputs(data_type: np.dtype[Any], samples: int) -> np.ndarray:
    """Finite values: all of float16, or about ``samples`` of float32."""
    if data_type == np.float16:
        values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    else:
        spread = np.linspace(0, 2**32 - 1, samples // 2).astype(np.uint64).astype(np.uint32)
        values = np.concatenate([spread.view(np.float32),
                                 np.linspace(-20, 20, samples // 2, dtype=np.float32)])
    return values[np.isfinite(values)]


def error(
    function: Function, data_type: Any, samples: int = 1 << 17, device: dml.Device | None = None
) -> tuple[float, float]:
    """The largest error in ulp and the input that has it. NaN and infinities must agree.

    FLOAT32 inputs below 2**-126 and results below 2**-119 are left out: devices may treat them, or
    intermediate results, as 0.
    """
    device = device or dml.default_device()
    data_type = np.dtype(data_type)
    x = inputs(data_type, samples)
    if data_type == np.float32:
        x = x[np.abs(x) >= 2.0**-126]
    largest = float(np.finfo(data_type).max)
    others = [np.full_like(x, y) for y in function.other if abs(y) < largest] or [None]
    worst, at = 0.0, math.nan
    for y, attributes in itertools.product(others, function.attributes):
        given = [x] if y is None else [x, y]
        got = getattr(dml, function.name)(*map(device.tensor, given), **attributes).numpy()
        with np.errstate(all="ignore"):
            exact = function.exact(*(v.astype(np.float64) for v in given), **attributes)
            rounded = exact.astype(data_type)
        info = np.finfo(data_type)
        ok = np.isfinite(rounded) & np.isfinite(got)
        differ = ~ok & ~((got == rounded) | (np.isnan(got) & np.isnan(rounded)))
        # The last number before infinity may be rounded to infinity.
        differ &= ~(np.abs(exact) >= largest)
        if differ.any():
            return math.inf, float(x[differ][0])
        if data_type == np.float32:
            ok &= np.abs(exact) >= 2.0**-119
        exact, got = exact[ok], got[ok].astype(np.float64)
        exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
        errors = np.abs(got - exact) / np.ldexp(1.0, exponent - info.nmant)
        if errors.max() > worst:
            worst, at = float(errors.max()), float(x[ok][errors.argmax()])
    return worst, at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1 << 17)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    print(f"# {dml.default_device().adapter.name}")
    print("| function | FLOAT32 ulp | at | FLOAT16 ulp | at |")
    print("| --- | --- | --- | --- | --- |")
    for function in FUNCTIONS:
        if options.names and function.name not in options.names:
            continue
        cells = []
        for data_type in (np.float32, np.float16):
            worst, at = error(function, data_type, options.samples)
            cells.append(f"{worst:.3f} | {at:.9g}")
        print(f"| {function.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
