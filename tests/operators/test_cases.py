"""The package's ordinary case of each operator, on tensors of several layouts and on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.cases import CASES, TINY
from kompute_dml.cases.case import Given, as_tuple
from kompute_dml.operators.base import definitions
from layouts import PACKED, SHIFTED, TRANSPOSED, Layout

pytestmark = pytest.mark.values


def test_every_operator_has_a_case() -> None:
    assert CASES.keys() == definitions().keys()


def _tensor(x: np.ndarray, layout: Layout, device: dml.Device) -> dml.Tensor:
    base = np.zeros(layout.base_sizes(x.shape), x.dtype)
    layout.view(base, x.shape)[...] = x
    return layout.view(device.tensor(base), x.shape)


@pytest.mark.parametrize("layout", ["arrays", PACKED, SHIFTED, TRANSPOSED], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, layout: Any, device: dml.Device, rng: np.random.Generator) -> None:
    case = CASES[name](TINY)
    function = getattr(dml, definitions()[name].function_name)
    arrays = [x.array(rng) if isinstance(x, Given) else x for x in case.inputs]
    inputs = arrays if layout == "arrays" else [
        _tensor(x, layout if layout.fits(x.shape) else PACKED, device) for x in arrays]
    out = None if case.out is None else device.empty(case.out)
    outputs = case.call(function, *inputs, **case.arguments, out=out)
    assert case.wrong([y.numpy() for y in as_tuple(outputs)], *arrays) == ""


def test_a_tensor_joined_with_itself(device: dml.Device, rng: np.random.Generator) -> None:
    x = rng.normal(size=(13, 13)).astype(np.float32)
    t = device.tensor(x)
    assert (dml.join([t, t], axis=1).numpy() == np.concatenate([x, x], 1)).all()


@pytest.mark.parametrize("value", [1 + 3e-5, 1 - 3e-5, np.nan, np.inf])
def test_a_float_that_is_off_is_wrong(value: float) -> None:
    case = CASES["DML_OPERATOR_ACTIVATION_IDENTITY"](TINY)
    x = np.ones((2, 3), np.float32)
    off = x.copy()
    off[1, 2] = value
    assert case.wrong(x, x) == "" and "off at [1, 2]: expected 1.0" in case.wrong(off, x)


def test_outputs_of_another_shape_or_count_are_wrong() -> None:
    case = CASES["DML_OPERATOR_ARGMAX"](TINY)
    x = np.float32([[1, 3, 2], [4, 1, 1]])
    assert case.wrong(np.uint32([[1], [0]]), x) == ""
    assert "off at [1, 0]: expected 0, but got 1" in case.wrong(np.uint32([[1], [1]]), x)
    assert case.wrong(np.uint32([1, 0]), x) == "expected sizes [2, 1], but got [2]"
    with pytest.raises(ValueError, match="zip"):
        case.wrong((np.uint32([[1], [0]]),) * 2, x)
