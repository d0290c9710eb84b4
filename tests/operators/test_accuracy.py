"""The statements of kompute_dml/spec/accuracy.md hold, and cover every float operator."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases import CASES
from kompute_dml.runtime import traits

pytestmark = pytest.mark.values


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"
    spec = importlib.util.spec_from_file_location("accuracy_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_TEXT = (resources.files("kompute_dml") / "spec" / "accuracy.md").read_text("utf-8")


def _stated() -> dict[str, tuple[float, float]]:
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|", _TEXT, re.MULTILINE)
    return {name: (float(single), float(half)) for name, single, half in rows}


_MODULE, _BOUNDS = _benchmark(), _stated()

_A, _B = np.float32(0.3), np.float32(0.7)
_ZERO, _ONE = np.float32(0), np.float32(1)
_STEPWISE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "linear": (lambda x: _A * x + _B, {"alpha": _A, "beta": _B}),
    "hard_sigmoid": (lambda x: np.clip(_A * x + _B, _ZERO, _ONE), {"alpha": _A, "beta": _B}),
    "hard_swish": (lambda x: x * np.clip(_A * x + _B, _ZERO, _ONE), {"alpha": _A, "beta": _B}),
    "leaky_relu": (lambda x: np.where(x >= 0, x, _A * x), {"alpha": _A}),
    "parameterized_relu": (lambda x, y: np.where(x >= 0, x, y * x), {}),
    "shrink": (lambda x: np.where(x > _B, x - _A, np.where(x < -_B, x + _A, _ZERO)),
               {"bias": _A, "threshold": _B}),
    "mean": (lambda x, y: x * np.float32(0.5) + y * np.float32(0.5), {}),
    "difference_square": (lambda x, y: (x - y) * (x - y), {}),
    "value_scale_2d": (lambda x: _A * x + _B, {"scale": _A, "bias": [_B]}),
}


def _short(operator: str) -> str:
    """The name in the document: the function's, without the prefix of activations."""
    return operator.lower().removeprefix("element_wise_").removeprefix("activation_")


def test_every_function_is_stated() -> None:
    assert {f.name for f in _MODULE.FUNCTIONS} == set(_BOUNDS)


@pytest.mark.parametrize("function", _MODULE.FUNCTIONS, ids=lambda f: f.name)
@pytest.mark.parametrize("data_type", [np.float32, np.float16], ids=["f32", "f16"])
def test_error_in_ulp(function: object, data_type: type[np.floating]) -> None:
    worst, at = _MODULE.error(function, data_type, samples=1 << 15)
    bound = _BOUNDS[function.name][data_type is np.float16]  # type: ignore[attr-defined]
    assert worst <= bound, f"{worst} ulp at {at}"


@pytest.mark.parametrize("name, first, last", [
    ("acosh", 1.0, 1.05), ("atan", 1.01, 1.03), ("asinh", 0.32, 0.33)])
def test_every_number_where_errors_are_largest(
    monkeypatch: pytest.MonkeyPatch, name: str, first: float, last: float
) -> None:
    begin, end = np.array([first, last], np.float32).view(np.uint32)
    every = np.arange(begin + 1, end + 1, dtype=np.uint32).view(np.float32)
    monkeypatch.setattr(_MODULE, "inputs", lambda *_: every)
    function = next(f for f in _MODULE.FUNCTIONS if f.name == name)
    worst, at = _MODULE.error(function, np.float32)
    assert worst <= _BOUNDS[name][0], f"{worst} ulp at {at}"


@pytest.fixture
def known_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[dml.Device]:
    """A device that claims exact units, for the short functions of float16."""
    driver = dml.default_device().adapter.driver
    if driver != "llvmpipe":
        pytest.skip("what lavapipe's exp2 and log2 do at 0, infinity and NaN is as good as known")
    real = traits.of
    monkeypatch.setattr(traits, "of", lambda adapter: replace(real(adapter), exact_units=True))
    device = dml.Device()
    yield device
    device.close()


_ANGLES = ("sin", "cos", "tan")
_FUSED = (*_ANGLES, "modulus_truncate", "modulus_floor")
"""Operators that need a true fma, which lavapipe does not have."""


@pytest.mark.parametrize("function", [f for f in _MODULE.FUNCTIONS if f.name not in _FUSED],
                         ids=lambda f: f.name)
def test_short_functions_of_known_devices(known_device: dml.Device, function: Any) -> None:
    worst, at = _MODULE.error(function, np.float16, device=known_device)
    assert worst <= _BOUNDS[function.name][1], f"{worst} ulp at {at}"


@pytest.mark.parametrize("name", _ANGLES)
def test_short_angles_of_known_devices(known_device: dml.Device, name: str) -> None:
    x = np.linspace(-7.8, 7.8, 4001, dtype=np.float16)
    got = getattr(dml, name)(known_device.tensor(x)).numpy()
    np.testing.assert_allclose(got, getattr(np, name)(x.astype(np.float64)), rtol=2e-3, atol=2e-4)


def test_powers_of_whole_numbers_are_whole() -> None:
    """If FLOAT32 holds them. Otherwise integer types would lose 1 by truncation."""
    x, y = np.array([(x, y) for y in range(1, 25) for x in range(1, 1 + int(2 ** (24 / y)))
                     if x < 5000]).T
    got = dml.pow(x.astype(np.float32), y.astype(np.float32)).numpy()
    np.testing.assert_array_equal(got, x.astype(np.int64) ** y)
    for exponent in range(1, 25):
        given = x[y == exponent]
        got = dml.constant_pow(given.astype(np.float32), exponent=exponent).numpy()
        np.testing.assert_array_equal(got, given.astype(np.int64) ** exponent)


def test_every_function_that_rounds_is_named() -> None:
    """The cases require all others to be exact."""
    inexact = {_short(c.operator) for c in CASES if c.compare == "function"}
    named = {_short(name) for name in _BOUNDS} | set(_STEPWISE)
    assert inexact - named - {"add1"} == set(), "add1 has the error of what it fuses"


def test_the_stepwise_ones_are_named() -> None:
    sentence = re.search(r"\n\n(linear, .*?) are their formulas", _TEXT, re.DOTALL)
    assert sentence
    assert re.split(r",?\s+(?:and\s+)?", sentence[1]) == list(_STEPWISE)


@pytest.mark.parametrize("name", _STEPWISE)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_step_by_step(name: str, dtype: type[np.floating], rng: np.random.Generator) -> None:
    reference, attributes = _STEPWISE[name]
    function = getattr(dml, f"activation_{name}", None) or getattr(dml, name)
    count = len(inspect.signature(reference).parameters)
    columns = [(rng.normal(size=1 << 16) * 10.0 ** rng.integers(-6, 4)).astype(dtype)
               for _ in range(count)]
    if name == "value_scale_2d":
        columns = [c.reshape(16, 1, 64, 64) for c in columns]
    with np.errstate(over="ignore"):
        expected = reference(*(c.astype(np.float32) for c in columns)).astype(dtype)
    got = function(*columns, **attributes).numpy()
    np.testing.assert_array_equal(got, expected)
