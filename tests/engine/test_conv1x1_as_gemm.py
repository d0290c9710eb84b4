"""Convolutions whose filter is one element wide become products of matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime.traits import DeviceClass

SWITCH = "KOMPUTE_DML_DISABLE_PASSES"


@pytest.fixture
def gpu(own: dml.Device) -> dml.Device:
    """A device of which graphs believe that it is no CPU."""
    own.target = replace(own.target, traits=replace(own.target.traits,
                                                    device_class=DeviceClass.UNKNOWN))
    return own


def _last(x: Any) -> Any:
    return x.transpose(0, 3, 1, 2)


def _run(device: dml.Device, build: Any, *arrays: np.ndarray) -> tuple[list[str], np.ndarray]:
    with dml.Graph(device) as g:
        run = g.compile(build(*[g.input(a.shape, a.dtype) for a in arrays]))
    return run.operators, run(*arrays)


def _block(x: Any, w: Any, bias: Any, residual: Any) -> Any:
    """A convolution, the sum with another image, and an activation: all channels-last."""
    n, h, width, _ = x.sizes
    y = x.device.empty((n, h, width, w.sizes[0]), x.dtype)
    dml.convolution(_last(x), w, bias, out=_last(y))
    total = x.device.empty(y.sizes, x.dtype)
    dml.add(_last(y), _last(residual), out=_last(total))
    return dml.activation_relu(total)


@pytest.mark.parametrize(("data_type", "sizes"), [
    ("float32", (2, 5, 7)), ("float32", (1, 1, 1)), ("float32", (4, 1, 1)),
    ("float16", (1, 2, 3)), ("float16", (4, 1, 1))])
def test_products_of_positions(
    data_type: str, sizes: tuple[int, ...], gpu: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def small(*shape: int) -> np.ndarray:  # sums are exact in any order
        return rng.integers(-4, 5, shape).astype(data_type)

    arrays = (small(*sizes, 24), small(16, 24, 1, 1), small(1, 16, 1, 1), small(*sizes, 16))
    operators, result = _run(gpu, _block, *arrays)
    assert operators == ["GEMM"]
    monkeypatch.setenv(SWITCH, "conv1x1_as_gemm")
    without, other = _run(gpu, _block, *arrays)
    assert without == ["CONVOLUTION"]
    np.testing.assert_array_equal(result, other)
    x, w, bias, residual = (a.astype(np.float64) for a in arrays)
    wanted = np.maximum(x @ w[:, :, 0, 0].T + bias[0, :, 0, 0] + residual, 0)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("build", [
    lambda x, w: dml.convolution(x, w),
    lambda x, w: dml.convolution(_last(x), w, strides=2),
    lambda x, w: dml.convolution(_last(x), w, start_padding=1),
    lambda x, w: dml.convolution(_last(x), w, direction=1),
], ids=["channels first", "strides", "padding", "backward"])
def test_convolutions_that_stay(build: Any, gpu: dml.Device) -> None:
    operators, _ = _run(gpu, build, np.ones((2, 4, 4, 4), np.float32),
                        np.ones((4, 4, 1, 1), np.float32))
    assert operators == ["CONVOLUTION"]


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_many_positions_stay_a_convolution(data_type: str, gpu: dml.Device) -> None:
    gpu.target = replace(gpu.target, traits=replace(gpu.target.traits, cores=1))
    shapes = (1, 65, 64, 4), (4, 4, 1, 1), (1, 4, 1, 1), (1, 65, 64, 4)
    operators, _ = _run(gpu, _block, *[np.ones(s, data_type) for s in shapes])
    assert operators == ["CONVOLUTION"]
