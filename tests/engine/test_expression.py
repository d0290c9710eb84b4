"""Graphs that are written as expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(0, 1, shape).astype(np.float32)


def test_functions_take_expressions(device: dml.Device) -> None:
    """Arrays and tensors may be operands, too. Neighbouring operators are fused."""
    w, b = _numbers(8, 4), device.tensor(_numbers(4))
    with dml.Graph(device) as g:
        x = g.input([3, 8])
        y = dml.activation_relu(x @ w + b)
        run = g.compile([y, y[:, 1:].T])
    assert run.operators == ["GEMM", "ELEMENT_WISE_IDENTITY"]
    for seed in (1, 2):
        given = _numbers(3, 8) * seed
        wanted = dml.activation_relu(dml.add(dml.gemm(given, w), b)).numpy()
        results = run(given)
        np.testing.assert_array_equal(results[0], wanted)
        np.testing.assert_array_equal(results[1], wanted[:, 1:].T)


@pytest.mark.parametrize("of", [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.ge])
def test_operators_are_functions(of: Callable[..., Any], device: dml.Device) -> None:
    a, b = _numbers(2, 3), _numbers(3) + 4
    g = dml.Graph(device)
    x, y = g.input(a.shape), g.input(b.shape)
    results = g.compile([of(x, y), of(2.0, y), of(x, 0.5), of(-x, abs(y))])(a, b)
    for result, wanted in zip(results, (of(a, b), of(2, b), of(a, 0.5), of(-a, abs(b)))):
        np.testing.assert_allclose(result, wanted, rtol=2**-22)


def test_several_outputs_and_arrays_alone(device: dml.Device) -> None:
    with dml.Graph(device) as g:
        x = g.input([4, 6], "int32")
        left, right = dml.split(x, sections=[2, 4], axis=1)
        ramp = dml.add(np.arange(4, dtype=np.int32), 1)
        run = g.compile([left, right + ramp])
    given = np.arange(24, dtype=np.int32).reshape(4, 6)
    left, right = run(given)
    np.testing.assert_array_equal(left, given[:, :2])
    np.testing.assert_array_equal(right, given[:, 2:] + np.arange(1, 5))


def test_what_is_wrong_is_named(device: dml.Device) -> None:
    g, other = dml.Graph(device), dml.Graph(device)
    x = g.input([2, 3], name="x")
    y = dml.negate(x)
    with pytest.raises(dml.ValidationError, match=r"written for the first time"):
        dml.add(x, x, out=y)
    with pytest.raises(dml.ValidationError, match="written for the first time"):
        dml.add(x, x, out=device.empty([2, 3]))
    with pytest.raises(dml.UnsupportedError, match="before its graph"):
        x.numpy()
    with pytest.raises(dml.ValidationError, match="lie on 2"):
        dml.add(x, other.input([2, 3]))
    with pytest.raises(dml.ValidationError, match="matmul"):
        x @ x
    with pytest.raises(dml.ValidationError, match="computed by something"):
        g.compile(g.empty([2]))
    with pytest.raises(dml.ValidationError, match="of this graph"):
        other.compile(y)
    run = g.compile(y)
    with pytest.raises(dml.ValidationError, match=r"x\.sizes"):
        run(_numbers(3, 2))
    with pytest.raises(dml.ValidationError, match=r"x\.data_type"):
        run(np.zeros((2, 3)))
    with pytest.raises(dml.ValidationError, match="not compiled yet"):
        dml.negate(x)
    np.testing.assert_array_equal(run(np.ones((2, 3), np.float32)), -1)


def test_a_product_that_a_normalization_adds_stays_alone(
    device: dml.Device, rng: np.random.Generator
) -> None:
    """The other product of the same matrix might be joined with it, but a normalization walks both
    of its summands alike."""
    a, w, r = (rng.standard_normal(sizes).astype(np.float32)
               for sizes in ((1, 1, 6, 16), (2, 1, 1, 16, 32), (1, 1, 6, 32)))
    with dml.Graph(device) as g:
        x, residual = g.input(a.shape), g.input(r.shape)
        bias = g.constant(np.ones((1, 1, 1, 32), np.float32)).broadcast_to(r.shape)
        left, right = (dml.gemm(x, g.constant(v), bias, beta=1.0) for v in w)
        run = g.compile([
            dml.mean_variance_normalization1(
                left + residual, axes=[3], epsilon=1e-5, normalize_variance=1), dml.exp(right)])
    assert run.operators[:2] == ["GEMM", "MEAN_VARIANCE_NORMALIZATION1"]
    got = run(a, r)[0]
    total = (a @ w[0] + 1 + r).astype(np.float64)
    expected = total - total.mean(3, keepdims=True)
    expected /= np.sqrt(total.var(3, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-5)


def test_what_is_right_makes_no_messages(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = dml.Graph(device)
    run = g.compile(g.input([2, 3], name="x") * 2)
    t, out = device.tensor(_numbers(2, 3)), device.empty([2, 3])

    def text(_: object) -> str:
        raise AssertionError("a message is made")

    monkeypatch.setattr(dml.Device, "__repr__", text)
    monkeypatch.setattr(dml.DataType, "__str__", text)
    monkeypatch.setattr(dml.Tensor, "summary", text)
    run(t)
    run(t, out=out)
    run(_numbers(2, 3))
    monkeypatch.undo()
    np.testing.assert_array_equal(out.numpy(), 2 * _numbers(2, 3))


def test_a_product_of_matrices_is_no_view(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = _numbers(5, 3), _numbers(3, 4)
    x, y = device.tensor(a), device.tensor(b)
    with monkeypatch.context() as patch:
        patch.setattr(dml.Tensor, "reshaped", None)
        z = x @ y
    np.testing.assert_allclose(z.numpy(), a @ b, rtol=1e-5, atol=1e-6)
    assert (x @ device.tensor(b[:, 0])).shape == (5,)


def test_tensors_are_bound_where_they_lie(device: dml.Device) -> None:
    """The recordings of places that come again keep no memory of inputs and outputs."""
    g = dml.Graph(device)
    x = g.input([4], name="x")
    run = g.compile(x * 2 + 1)
    t, out = device.tensor(np.zeros(4, np.float32)), device.empty([4])
    for n in range(4):
        t[...] = n
        assert run(t, out=out) is out
        np.testing.assert_array_equal(out.numpy(), 2 * n + 1)
    np.testing.assert_array_equal(run(t[None][0], out=t).numpy(), 7)  # the input's own memory
    strided = device.tensor(np.arange(8, dtype=np.float32))[::2]
    np.testing.assert_array_equal(run(strided).numpy(), [1, 5, 9, 13])
    device.synchronize()
    before = device.memory_used
    for _ in range(4):
        assert run(t).shape == (4,)
    device.synchronize()
    assert device.memory_used == before
    with pytest.raises(dml.ValidationError, match="out"):
        run(t, out=device.empty([3]))
    with pytest.raises(dml.ValidationError, match=r"x\.data_type"):
        run(device.tensor(np.zeros(4, np.int32)))
