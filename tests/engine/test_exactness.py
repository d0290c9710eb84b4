"""The measurement of a device's own functions, on this device and on stand-ins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import exactness

Function = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _float(words: np.ndarray) -> np.ndarray:
    return words.view(np.float32).astype(np.float64)


def _bits(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(np.float32).view(np.uint32)


EXACT: dict[str, Function] = {
    "fma": lambda a, b, c: _bits(_float(a) * _float(b) + _float(c)),
    "to_half": lambda a, *_: a.view(np.float32).astype(np.float16).view(np.uint16).astype("u4"),
    "from_half": lambda a, *_: _bits(a.astype(np.uint16).view(np.float16)),
    "from_int": lambda a, *_: _bits(a.view(np.int32)),
    "exp2": lambda a, *_: _bits(np.exp2(_float(a))),
    "log2": lambda a, *_: _bits(np.log2(_float(a))),
    "sqrt": lambda a, *_: _bits(np.sqrt(_float(a))),
    "inversesqrt": lambda a, *_: _bits(1 / np.sqrt(_float(a))),
    "quotient": lambda a, b, _: _bits(_float(a) / _float(b)),
}


def _no_denormals(words: np.ndarray) -> np.ndarray:
    halves = words.astype(np.uint16)
    return np.where(halves & 0x7C00, halves, halves & 0x8000).astype(np.uint32)


BROKEN: dict[str, Function] = {
    # Rounds twice, as a multiplication and an addition do.
    "fma": lambda a, b, c: _bits(_float(_bits(_float(a) * _float(b))) + _float(c)),
    "to_half": lambda a, *_: _no_denormals(EXACT["to_half"](a, a, a)),
    "from_half": lambda a, *_: EXACT["from_half"](_no_denormals(a), a, a),
    "from_int": lambda a, *_: _bits(a.view(np.int32) & ~0xFF),
    "exp2": lambda a, *_: EXACT["exp2"](a, a, a) + 9,
    "log2": lambda a, *_: np.nan_to_num(_float(EXACT["log2"](a, a, a))).astype("f4").view("u4"),
    "sqrt": lambda a, *_: EXACT["sqrt"](a, a, a) - 6,
    "inversesqrt": lambda a, *_: EXACT["inversesqrt"](a, a, a) + 6,
    "quotient": lambda a, b, _: _bits(_float(a) * _float(_bits(1 / _float(b)) + 6)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ieee_functions_are_exact() -> None:
    assert exactness.wrong(lambda name, *operands: EXACT[name](*operands)) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("broken", exactness.FUNCTIONS)
def test_each_function_counts(broken: str) -> None:
    functions = {**EXACT, broken: BROKEN[broken]}
    found = exactness.wrong(lambda name, *operands: functions[name](*operands))
    assert set(found) == {broken}


def test_this_device_computes_each_function(device: dml.Device) -> None:
    x = np.float32([4.0, 0.25, 1.0])
    words, none = x.view(np.uint32), np.zeros(3, np.uint32)
    run = device.runtime.own_function
    expected = {"fma": x * x + 1, "exp2": np.exp2(x), "log2": np.log2(x), "sqrt": np.sqrt(x),
                "inversesqrt": 1 / np.sqrt(x), "quotient": np.ones(3)}
    one = np.ones(3, np.float32).view(np.uint32)
    for name, result in expected.items():
        np.testing.assert_allclose(run(name, words, words, one).view("f4"), result, rtol=1e-6)
    assert run("to_half", words, none, none).tolist() == [0x4400, 0x3400, 0x3C00]
    halves = np.uint32([0x4400, 0x3400, 0x3C00])
    assert run("from_half", halves, none, none).view("f4").tolist() == x.tolist()
    assert run("from_int", np.uint32([3, 1 << 31, 5]), none, none).view("f4").tolist() == [
        3.0, -2.0**31, 5.0]
