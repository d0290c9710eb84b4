"""Products of one matrix become one product, whose columns others read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

SWITCH = "KOMPUTE_DML_DISABLE_PASSES"
_WIDTH, _HEADS = 16, 2


def _both(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any], x: np.ndarray
) -> tuple[list[str], list[str], np.ndarray]:
    """The operators with and without the pass, whose results are the same bits."""
    found = []
    for name in ("", "horizontal_fusion"):
        monkeypatch.setenv(SWITCH, name)
        with dml.Graph(device) as g:
            run = g.compile(build(g.input(x.shape, x.dtype)))
        found.append((run.operators, run(x)))
    (operators, result), (plain, other) = found
    np.testing.assert_array_equal(result, other)
    return operators, plain, result


def _small(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-2, 3, shape).astype(np.float32)  # sums are exact in any order


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """NumPy's attention of [positions, features] by heads."""
    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), _HEADS, -1).transpose(1, 0, 2)

    scores = split(q) @ split(k).transpose(0, 2, 1) / 32
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    y = powers / powers.sum(-1, keepdims=True) @ split(v)
    return y.transpose(1, 0, 2).reshape(len(q), -1)


@pytest.mark.parametrize("rows", [40, 520])
@pytest.mark.parametrize("absent", [(), (1,), (0, 1), (0, 1, 2)], ids=str)
def test_queries_keys_and_values(
    rows: int, absent: tuple[int, ...], device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``absent``: those of queries, keys and values that have no bias."""
    x = _small(rng, rows, _WIDTH)
    weights, biases = _small(rng, 3, _WIDTH, _WIDTH), _small(rng, 3, _WIDTH)

    def build(x: Any) -> Any:
        q, k, v = (x @ w if i in absent else x @ w + b
                   for i, (w, b) in enumerate(zip(weights, biases)))
        return dml.multihead_attention(
            q.reshape(1, rows, _WIDTH), k.reshape(1, rows, _WIDTH), v.reshape(1, rows, _WIDTH),
            head_count=_HEADS, scale=1 / 32)

    operators, plain, result = _both(device, monkeypatch, build, x)
    assert operators == ["GEMM", "MULTIHEAD_ATTENTION"]
    assert plain == [*["GEMM"] * 3, "MULTIHEAD_ATTENTION"]
    wanted = _attended(*(x.astype(np.float64) @ w + (0 if i in absent else b)
                         for i, (w, b) in enumerate(zip(weights, biases))))
    np.testing.assert_allclose(result[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "joins"), [(40, True), (520, False)])
def test_many_rows_are_joined_for_readers_by_rows_alone(
    rows: int, joins: bool, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An elementwise reader is the tail of a large product."""
    weights = _small(rng, 2, _WIDTH, _WIDTH)
    operators, plain, _ = _both(device, monkeypatch, lambda x: dml.multiply(
        x @ weights[0], x @ weights[1]), _small(rng, rows, _WIDTH))
    assert (operators != plain) == joins and plain == ["GEMM"] * 2


def test_readers_of_parts(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotary embeddings read halves of each head."""
    x, weights = _small(rng, 6, _WIDTH), _small(rng, 2, _WIDTH, _WIDTH)

    def build(x: Any) -> Any:
        a, b = x @ weights[0], x @ weights[1]
        heads = a.reshape(6, 2, 8)
        return dml.multiply(heads[1:, :, :4], heads[1:, :, 4:]), dml.activation_relu(b[2:, ::2])

    found = []
    for name in ("", "horizontal_fusion"):
        monkeypatch.setenv(SWITCH, name)
        with dml.Graph(device) as g:
            run = g.compile(list(build(g.input(x.shape))))
        found.append((run.operators.count("GEMM"), run(x)))
    assert [count for count, _ in found] == [1, 2]
    for ours, theirs in zip(found[0][1], found[1][1]):
        np.testing.assert_array_equal(ours, theirs)
    left = (x @ weights[0]).reshape(6, 2, 8)[1:]
    np.testing.assert_array_equal(found[0][1][0], left[..., :4] * left[..., 4:])


@pytest.mark.parametrize("by_column", [False, True])
def test_integer_products(
    by_column: bool, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share A's scale and zero point. B's scales are one or many, one has no bias."""
    rows, widths = 24, (16, 8, 24)
    x = rng.normal(0, 1, (rows, _WIDTH)).astype(np.float32)
    bs = [rng.integers(-128, 128, (_WIDTH, n)).astype(np.int8) for n in widths]
    scales = [rng.random((1, n if by_column else 1)).astype(np.float32) for n in widths]
    zeros = [rng.integers(-9, 9, s.shape).astype(np.int8) for s in scales]
    biases = [rng.normal(0, 1, n).astype(np.float32) for n in widths]

    def build(x: Any) -> Any:
        a, scale, zero = dml.dynamic_quantize_linear(x)
        products = []
        for i, (b, s, z, bias) in enumerate(zip(bs, scales, zeros, biases)):
            products.append(dml.matrix_multiply_integer_to_float(
                a, scale.reshape(1, 1), b, s, a_zero_point=zero.reshape(1, 1), b_zero_point=z,
                bias=None if i == 1 else dml.tensor(bias).broadcast_to((rows, widths[i]))))
        return [dml.activation_softmax1(p) for p in products]

    found = []
    for name in ("", "horizontal_fusion"):
        monkeypatch.setenv(SWITCH, name)
        with dml.Graph(device) as g:
            run = g.compile(build(g.input(x.shape)))
        found.append((run.operators.count("MATRIX_MULTIPLY_INTEGER_TO_FLOAT"), run(x)))
    assert [count for count, _ in found] == [1, 3]
    for ours, theirs in zip(found[0][1], found[1][1]):
        np.testing.assert_array_equal(ours, theirs)


def test_products_of_products(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the second layer read columns of the first's joint result."""
    weights = _small(rng, 4, _WIDTH, _WIDTH)

    def build(x: Any) -> Any:
        a, b = x @ weights[0], x @ weights[1]
        return dml.multiply(a @ weights[2], a @ weights[3]) * b

    operators, plain, _ = _both(device, monkeypatch, build, _small(rng, 6, _WIDTH))
    assert operators.count("GEMM") == 2 and plain.count("GEMM") == 4
