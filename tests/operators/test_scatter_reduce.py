"""SCATTER_REDUCE and SCATTER_ND_REDUCE with many updates, few places, NaN and slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

pytestmark = pytest.mark.values

_UFUNCS = {"SUM": np.add, "MULTIPLY": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


def _levels(updates: int) -> int:
    """How often so many updates are reduced by chunks of 32."""
    return 1 if updates <= 32 else 1 + _levels(2 * -(-updates // 32))


@pytest.mark.parametrize("function", _UFUNCS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.parametrize("places, updates", [(1, 5000), (40, 33), (700, 9000), (70_000, 2049)])
def test_many_updates(
    function: str, dtype: str, places: int, updates: int, rng: np.random.Generator
) -> None:
    """Runs end inside of chunks, at their ends, and reach over many."""
    kind = np.dtype(dtype)

    def numbers(count: int) -> np.ndarray:
        if kind.kind != "f":
            return rng.integers(0, 100, count).astype(kind)
        return (1 + rng.normal(size=count) * (1e-3 if function == "MULTIPLY" else 1)).astype(kind)

    x, new = numbers(places), numbers(updates)
    at = rng.integers(-places - 1, places + 1, updates)
    inside = (at >= -places) & (at < places)
    got = dml.scatter_reduce(x, at, new, axis=0, function=function).numpy()
    wide = np.dtype(np.float64) if kind.kind == "f" else kind
    want, magnitude = x.astype(wide), abs(x).astype(wide)
    _UFUNCS[function].at(want, at[inside], new[inside].astype(wide))
    if kind.kind != "f" or function in ("MIN", "MAX"):
        np.testing.assert_array_equal(got, want)
        return
    _UFUNCS[function].at(magnitude, at[inside], abs(new[inside]).astype(wide))
    bound = (32 * _levels(updates) + 1) * 2.0**-24 * magnitude
    if kind == np.float16:
        bound = bound + abs(want) * 2.0**-11
    assert (abs(got - want) <= bound).all()


@pytest.mark.parametrize("function", _UFUNCS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "int16", "uint8"])
def test_many_lines(function: str, dtype: str, rng: np.random.Generator) -> None:
    """A CPU reduces each line in order. Numbers are whole, and the lines' neighbours share words.
    """
    x = rng.integers(1, 3, (9, 131)).astype(dtype)
    new, at = rng.integers(1, 3, (16, 131)).astype(dtype), rng.integers(-10, 10, (16, 131))
    got = dml.scatter_reduce(x, at, new, axis=0, function=function).numpy()
    inside = (at >= -9) & (at < 9)
    _UFUNCS[function].at(x, (at[inside], np.nonzero(inside)[1]), new[inside])
    np.testing.assert_array_equal(got, x)


def test_equal_inputs_give_equal_bits(rng: np.random.Generator) -> None:
    x, new = rng.normal(size=(30, 5)).astype(np.float32), rng.normal(size=(7000, 5))
    at = rng.integers(0, 30, (7000, 1))
    indices = dml.tensor(at).broadcast_to((7000, 5))
    runs = [dml.scatter_reduce(x, indices, new.astype(np.float32), axis=0).numpy()
            for _ in range(3)]
    assert all((runs[0] == y).all() for y in runs)


@pytest.mark.parametrize("function", _UFUNCS)
def test_a_repeated_index_is_one_of_slices(function: str, rng: np.random.Generator) -> None:
    """Indices that are repeated along a dimension give what the same indices, written out, give."""
    x = rng.integers(1, 9, (20, 3, 4)).astype(np.float32)
    new = rng.integers(-1, 3, (50, 3, 4)).astype(np.float32)
    at = rng.integers(0, 20, 50)
    indices = dml.tensor(at).reshape(50, 1, 1).broadcast_to((50, 3, 4))
    got = dml.scatter_reduce(x, indices, new, axis=0, function=function).numpy()
    written = np.broadcast_to(at[:, None, None], new.shape).copy()
    np.testing.assert_array_equal(
        got, dml.scatter_reduce(x, written, new, axis=0, function=function).numpy())
    want = x.copy()
    _UFUNCS[function].at(want, at, new)
    np.testing.assert_array_equal(got, want)
    tuples = dml.scatter_nd_reduce(
        x, at.reshape(1, 50, 1), new, input_dimension_count=3, indices_dimension_count=2,
        function=function)
    np.testing.assert_array_equal(tuples.numpy(), want)


@pytest.mark.parametrize("function", _UFUNCS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nan_and_infinity(function: str, dtype: Any) -> None:
    x = np.array([1, np.nan, 2, -np.inf, 0], dtype)
    new = np.array([np.nan, 1, np.inf, np.inf, -0.0], dtype)
    got = dml.scatter_reduce(x, np.arange(5), new, axis=0, function=function).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, _UFUNCS[function](x, new))


def test_sums_of_negative_zero() -> None:
    got = dml.scatter_reduce(np.float32([-0.0]), np.zeros(40, int), np.full(40, -0.0, np.float32),
                             axis=0).numpy()
    assert np.signbit(got).all()


def test_a_graph_has_it(rng: np.random.Generator) -> None:
    g = dml.Graph()
    x, at, new = (g.input(s, t) for s, t in (((9, 4), "float32"), ((30, 4), "int64"),
                                             ((30, 4), "float32")))
    run = g.compile(dml.scatter_reduce(x * 2, at, new, axis=0) + 1)
    a, i, b = rng.normal(size=(9, 4)), rng.integers(0, 9, (30, 4)), rng.normal(size=(30, 4))
    want = 2 * a
    np.add.at(want, (i, np.arange(4)), b)
    got = run(a.astype(np.float32), i, b.astype(np.float32))
    np.testing.assert_allclose(np.asarray(got).reshape(9, 4), want + 1, atol=1e-5)
