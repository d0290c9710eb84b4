"""Normalizations as lowerings divide them for a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.operators import normalization
from test_convolution import set_traits, with_figures

VARIANTS = {f"local_response_normalization_channels_{name}" for name in (
    "grad.p1", "grad.p2", "grad.p4", "halves_grad.p2", "halves_grad.p4")}
"""What computes gradients across channels on a GPU."""


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("sizes, turned", [
    ((2, 3, 20, 36), False), ((3, 2, 17, 33), False), ((2, 3, 9, 16), True)], ids=str)
def test_lines_that_workgroups_divide(
    gpu: dml.Device, monkeypatch: pytest.MonkeyPatch, data_type: str, sizes: tuple[int, ...],
    turned: bool, rng: np.random.Generator,
) -> None:
    monkeypatch.setattr(normalization, "_LONG_LINE", 2)
    monkeypatch.setattr(normalization, "_LOCAL_SIZE", 32)
    x = rng.uniform(-1, 1, sizes).astype(data_type)
    given = gpu.tensor(x)
    if turned:
        x, given = x.swapaxes(2, 3), given.transpose((0, 1, 3, 2))
    mean, variance, scale, bias = (
        rng.uniform(0.5, 1.5, (1, sizes[1], 1, 1)).astype(data_type) for _ in range(4))
    y = dml.batch_normalization(given, *map(gpu.tensor, (mean, variance, scale, bias)))
    exact = (x.astype(np.float64) - mean) / np.sqrt(variance.astype(np.float64) + 1e-5)
    exact = exact * scale + bias
    unit = float(np.finfo(data_type).eps)
    np.testing.assert_allclose(y.numpy(), exact, rtol=unit, atol=unit + 2e-6)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(("groups", "places", "channels", "vectors"), [
    (4, 35, 10, (2, 2)), (3, 50, 20, (4, 4)), (2, 33, 40, (4, 8)), (4, 4200, 10, (2, 2)),
    (2, 35, 5, (1, 1))])
@pytest.mark.parametrize("scaled", [False, True])
def test_groups_of_neighbouring_channels(
    gpu: dml.Device, rng: np.random.Generator, data_type: str, groups: int, places: int,
    channels: int, vectors: tuple[int, int], scaled: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read in the largest vectors that a group's channels consist of. With a scale, one
    workgroup takes a long group in several turns, else several do."""
    if scaled:
        with_figures(monkeypatch, normalize_rows={"part_few": 1 << 20})
    gpu.compiled.clear()

    def grouped(x: dml.Tensor) -> dml.Tensor:
        return x.reshape(2, places, groups, channels).transpose(0, 2, 1, 3)

    x = rng.uniform(-1, 3, (2, places, groups * channels)).astype(data_type)
    affine = {name: rng.uniform(0.5, 1.5, (groups, 1, channels)).astype(data_type)
              for name in (("scale", "bias") if scaled else ())}
    y = gpu.tensor(np.full_like(x, 7))
    dml.mean_variance_normalization1(
        grouped(gpu.tensor(x)), axes=(2, 3), normalize_variance=True, epsilon=1e-5, out=grouped(y),
        **{name: gpu.tensor(value).broadcast_to(2, groups, places, channels)
           for name, value in affine.items()})
    (compiled,) = gpu.compiled.values()
    each = vectors[data_type == "float16"]
    assert {(d.spec["EACH"], d.spec["RUNS"]) for d in compiled.plan.execute} == {(each, each > 1)}
    exact = x.astype(float).reshape(2, places, groups, channels).transpose(0, 2, 1, 3)
    exact = (exact - exact.mean((2, 3), keepdims=True)) / np.sqrt(
        exact.var((2, 3), keepdims=True) + 1e-5)
    if scaled:
        exact = exact * affine["scale"] + affine["bias"]
    expected = exact.transpose(0, 2, 1, 3).reshape(x.shape)
    unit = float(np.finfo(data_type).eps)
    np.testing.assert_allclose(y.numpy(), expected, rtol=unit, atol=unit + 4e-6)


@pytest.mark.parametrize("offset", [0.0, 3000.0])
def test_spread_of_parts(gpu: dml.Device, offset: float, rng: np.random.Generator) -> None:
    """Numbers that lie close together, far from 0. The first few lie far from the others."""
    x = (rng.normal(0, 1, (3, 2, 70, 60)) + offset).astype(np.float32)
    x[0, :, 0, :8] += 100
    ones, zeros = (np.full((1, 2, 1, 1), v, np.float32) for v in (1, 0))
    y, mean, variance = dml.batch_normalization_training(*map(gpu.tensor, (x, ones, zeros)))
    exact, axes = x.astype(np.float64), (0, 2, 3)
    np.testing.assert_allclose(mean.numpy(), exact.mean(axes, keepdims=True), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), exact.var(axes, keepdims=True), rtol=2e-5)
    normal = (exact - exact.mean(axes, keepdims=True)) / np.sqrt(
        exact.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.numpy(), normal, rtol=1e-4, atol=1e-3 if offset else 1e-5)


def _response_gradient(x: np.ndarray, dy: np.ndarray, size: int, alpha: float, beta: float,
                       bias: float) -> np.ndarray:
    """By the matrix of elements and the windows that contain them."""
    channels = np.arange(x.shape[1])
    apart = channels[None] - channels[:, None]
    windows = (apart >= -((size - 1) // 2)) & (apart <= size // 2)

    def summed(parts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return np.stack([parts[:, row].sum(1) for row in chosen], 1)

    sums = bias + alpha / size * summed(x * x, windows)
    terms = dy * x * sums ** (-beta - 1)
    return np.asarray(dy * sums**-beta
                      - 2 * alpha / size * beta * x * summed(terms, windows.T))


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("channels, beta, width", [
    (3, 0.75, 5), (50, 0.6, 5), (50, 0.75, 6), (20, 0.75, 8)])
def test_response_along_channels(
    gpu: dml.Device, data_type: str, size: int, channels: int, beta: float, width: int,
    rng: np.random.Generator,
) -> None:
    """Rows of odd width are computed one by one, neighbours of FLOAT16 otherwise together."""
    x, dy = (rng.uniform(-2, 2, (2, channels, 3, width)).astype(data_type) for _ in range(2))
    more: dict[str, Any] = dict(alpha=0.5, beta=beta, bias=1.0)
    for given, gradient in ((x, dy), (x.swapaxes(2, 3), dy.swapaxes(2, 3))):
        turned = given is not x
        tensors = [gpu.tensor(t).transpose((0, 1, 3, 2)) if turned else gpu.tensor(t)
                   for t in (x, dy)]
        dx = dml.local_response_normalization_grad(
            *tensors, cross_channel=True, local_size=size, **more)
        exact = _response_gradient(
            given.astype(np.float64), gradient.astype(np.float64), size, **more)
        unit = float(np.finfo(data_type).eps)
        np.testing.assert_allclose(dx.numpy(), exact, rtol=unit, atol=unit + 1e-5)


@pytest.mark.parametrize("bias, halves", [(1.0, True), (0.01, True), (0.0, False)])
@pytest.mark.parametrize("width, size, beta", [(8, 3, 0.75), (6, 5, 0.75), (8, 4, 0.6)])
def test_response_of_halves_along_channels(
    gpu: dml.Device, monkeypatch: pytest.MonkeyPatch, width: int, size: int, beta: float,
    bias: float, halves: bool, rng: np.random.Generator,
) -> None:
    """Infinite elements and NaN reach the elements that the formula lets them reach."""
    set_traits(gpu, exact_units=True)
    x, dy = (rng.uniform(0.5, 2, (2, 30, 3, width)).astype(np.float16) for _ in range(2))
    x[0, 3, 0, 0], x[1, 29, 1, 1], x[1, 4, 2, 2], x[0, 9, 1, 2] = np.inf, np.nan, 65504, -65504
    more: dict[str, Any] = dict(alpha=0.5, beta=beta, bias=bias)
    made = gpu.tensor(np.zeros(x.shape, np.float16))
    given, gradient = gpu.tensor(x), gpu.tensor(dy)

    def call() -> Any:
        return dml.local_response_normalization_grad(
            given, gradient, out=made, cross_channel=True, local_size=size, **more)

    result = call().numpy()
    names = {n for each in gpu.compiled.values() for n in each.variants}
    assert {n.rpartition(".")[0] for n in names} == {
        "local_response_normalization_channels_" + "halves_" * halves + "grad"}
    with np.errstate(invalid="ignore"):
        exact = _response_gradient(x.astype(np.float64), dy.astype(np.float64), size, **more)
    np.testing.assert_allclose(result, exact, rtol=2e-3, atol=2e-3)
