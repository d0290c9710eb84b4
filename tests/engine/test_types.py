"""The types of operators, of tensors and of expressions, beside NumPy's."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

pytestmark = pytest.mark.values

_TYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
          "float16", "float32")
_NUMBERS = (3, 0.5, True, np.float64(1.5), np.float32(2), np.int64(1))
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq",
        "ne", "and_", "or_", "xor", "lshift", "rshift")}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg, "abs": operator.abs, "invert": operator.invert, "sum": np.sum,
    "mean": np.mean, "exp": np.exp, "sqrt": np.sqrt, "floor": np.floor, "max": np.max,
    "prod": np.prod, "any": np.any, "cumsum": np.cumsum, "argmax": np.argmax, "square": np.square,
}


def _array(kind: str, shift: int = 0) -> np.ndarray:
    return (np.arange(4) + shift).astype(kind)


def _expected(of: Callable[..., Any], *operands: Any) -> np.ndarray | None:
    """NumPy's result, with FLOAT32 for float64; None where NumPy refuses."""
    # The weak numbers of NumPy's are Python's: NEP 50.
    weak = [v.item() if isinstance(v, np.generic) else v for v in operands]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            y = np.asarray(of(*weak))
    except (TypeError, ValueError):
        return None
    return y.astype(np.float32) if y.dtype == np.float64 else y


def _promotes_to_an_integer(*kinds: str) -> bool:
    """NumPy computes a signed type beside UINT64 in float64, which loses digits: it is refused."""
    return not ("uint64" in kinds and any(k[0] == "i" for k in kinds))


def _check(of: Callable[..., Any], device: dml.Device, *operands: Any,
           graph: dml.Graph | None = None) -> tuple[Any, Any]:
    """A tensor has NumPy's type and values, an expression its type, or both refuse. Returns the
    expression and NumPy's values."""
    expected = _expected(of, *operands)
    tensors = [device.tensor(v) if isinstance(v, np.ndarray) else v for v in operands]
    graph = graph or dml.Graph(device)
    inputs = [graph.constant(v) if isinstance(v, np.ndarray) else v for v in operands]
    kinds = [v.dtype.name for v in operands if isinstance(v, np.ndarray)]
    if expected is None or not _promotes_to_an_integer(*kinds):
        for refused in (tensors, inputs):
            with pytest.raises((dml.DmlError, TypeError)):
                of(*refused)
        return None, None
    y, result = of(*tensors), of(*inputs)
    for made in (y, result, y.numpy()):
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(y.numpy(), expected, **_close(expected))
    return result, expected


def _close(expected: np.ndarray) -> dict[str, float]:
    return {"rtol": 2e-3 if expected.dtype == np.float16 else 2e-6, "atol": 1e-6}


@pytest.mark.parametrize("right", _TYPES)
@pytest.mark.parametrize("left", _TYPES)
def test_tables_of_pairs(left: str, right: str, device: dml.Device) -> None:
    """All operators, for each pair of types."""
    for name, of in _OPERATORS.items():
        negative = name in ("pow", "lshift", "rshift")
        _check(of, device, _array(left, 1), _array(right, 0 if negative else 1))


@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "float32"])
def test_compiled_expressions_have_the_values_of_tensors(kind: str, device: dml.Device) -> None:
    """On arrays and on tensors of the device."""
    array, other = _array(kind, 1), _array("int16", 1)
    graph = dml.Graph(device)
    x, y = graph.input(array.shape, kind), graph.input(other.shape, "int16")
    pairs = [(of(x, y), expected) for of in _OPERATORS.values()
             if (expected := _expected(of, array, other)) is not None]
    run = graph.compile([made for made, _ in pairs])
    for values in (run(array, other), run(device.tensor(array), other)):
        for made, (_, expected) in zip(values, pairs):
            assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(np.asarray(made), expected, **_close(expected))


@pytest.mark.parametrize("kind", _TYPES)
def test_numbers_take_the_type_beside_them(kind: str, device: dml.Device) -> None:
    for number in _NUMBERS:
        for of in (operator.add, operator.truediv, operator.gt, operator.floordiv):
            _check(of, device, _array(kind, 1), number)
            _check(of, device, number, _array(kind, 1))


@pytest.mark.parametrize("kind", _TYPES)
def test_types_of_one_operand(kind: str, device: dml.Device) -> None:
    for of in _UNARY.values():
        _check(of, device, _array(kind))
        _check(of, device, _array(kind)[1:2].reshape(()))


@pytest.mark.parametrize("function", ["add", "subtract", "multiply", "divide", "maximum"])
def test_functions_promote_as_operators_do(function: str, device: dml.Device) -> None:
    x, i = device.tensor(_array("float32")), device.tensor(_array("int64", 1))
    for a, b in ((x, i), (i, 1.5), (i, i), (i, device.tensor(_array("int8", 1)))):
        ours, numpys = getattr(dml, function)(a, b), getattr(np, function)
        expected = numpys(*(v.numpy() if isinstance(v, dml.Tensor) else v for v in (a, b)))
        kind = np.dtype("float32") if expected.dtype == np.float64 else expected.dtype
        assert ours.dtype == kind
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
                                  "uint64"])
def test_casts_wrap(kind: str, device: dml.Device) -> None:
    """As NumPy's and PyTorch's, where DirectML's CAST of floats saturates."""
    x = np.int64([0, -1, 127, 128, 255, 256, -129, 70000, -70000, 2**31, 2**32 + 5, -(2**40)])
    for given in (x, x.view(np.uint64), x[:9].astype(np.int32), x[:7].astype(np.int16)):
        y = device.tensor(given).astype(kind)
        np.testing.assert_array_equal(y.numpy(), given.astype(kind))
    floats = np.float32([-1.5, -1, 0, 1.9, 127, 200, 300, -129])
    wide = floats.astype(np.int64)
    np.testing.assert_array_equal(device.tensor(floats).astype(kind).numpy(), wide.astype(kind))
    saturated = dml.cast(device.tensor(np.float32([300, -300])), "int8").numpy()
    assert saturated.tolist() == [127, -128]


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_powers_of_64_bits_wrap(kind: str, device: dml.Device) -> None:
    x = np.array([0, 1, 2, 3, 7, 2**40 + 1], kind)
    y = np.array([0, 5, 63, 41, 100, 3], kind)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((device.tensor(x) ** device.tensor(y)).numpy(), x**y)
        np.testing.assert_array_equal((3 ** device.tensor(y)).numpy(), np.array(3, kind) ** y)
    with pytest.raises(dml.ValidationError, match="at least 0"):
        device.tensor(np.int64([2])) ** device.tensor(np.int64([-1]))


def test_integers_over_0(device: dml.Device) -> None:
    t = device.tensor(np.int64([1, 2, -3]))
    with pytest.warns(RuntimeWarning, match="divide by zero") as caught:
        assert (t // 0).tolist() == (t % 0).tolist() == [0, 0, 0]
    assert caught[0].filename == __file__
    zero = device.tensor(np.int64([0, 2, 0]))
    assert (t // zero).tolist() == [0, 1, 0] and (t % zero).tolist() == [0, 0, 0]
    assert np.fmod(t, zero).tolist() == [0, 0, 0]  # type: ignore[call-overload]


def test_the_issue_of_numbers_without_dimensions(device: dml.Device) -> None:
    """What was silently wrong while a number had sizes [1]."""
    s = np.arange(16, dtype=np.float32).reshape(4, 4)
    t = device.tensor(s)
    np.testing.assert_array_equal((t - np.array([r.mean() for r in t])).numpy(),
                                  s - np.array([r.mean() for r in s]))
    assert np.stack([t[0, 0], t[0, 1]]).shape == (2,)
    assert t[t[:, 0].argmax()].shape == (4,)
    assert t.sum().tolist() == 120.0 and t.sum().shape == ()
    assert dml.tensor([r.mean() for r in t]).shape == dml.stack([r.sum() for r in t]).shape == (4,)
    assert np.array([r.max() for r in t]).shape == (4,)
    assert dml.identity(3).tolist() == np.identity(3).tolist()
    assert dml.identity(t[0]).tolist() == s[0].tolist()
    assert sum(t[0]).shape == max(t[0]).shape == np.dot(t[0], t[1]).shape == ()
    assert np.trace(t).shape == np.linalg.norm(t).shape == (t[0] @ t[1]).shape == ()
    assert np.einsum("ij->", t).shape == np.squeeze(t[:1, :1]).shape == ()
    assert device.tensor(5).shape == dml.full((), 2).shape == dml.zeros(()).shape == ()
    one = device.tensor(np.float32(2))
    assert (one + one).shape == np.exp(one).shape == dml.activation_relu(one).shape == ()
    assert dml.identity(one).shape == one.astype("int32").shape == (one > 1).shape == ()
    assert one.sum().shape == one.max().shape == np.sort(one[None]).T[0].shape == ()
    with pytest.raises(dml.OutOfRangeError if hasattr(dml, "OutOfRangeError") else IndexError):
        one[0]
