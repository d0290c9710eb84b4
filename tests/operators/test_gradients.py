"""Gradients are what their name says: adjoints of linear operators, and slopes of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

_ROOM = 1e-5
"""Of a sum of absolute products: some roundings of FLOAT32 for each. A gradient that is wrong in
one element of a hundred is beyond it."""
_POOL = dict(strides=(2, 2), window_size=(3, 3), start_padding=(1, 1), end_padding=(0, 1))
_SCALES = dict(scales=(1.0, 1.0, 1.5, 2.0), interpolation_mode=dml.InterpolationMode.LINEAR)
_NEAREST = dict(scales=(1.0, 1.0, 1.5, 0.75), rounding_direction=dml.AxisDirection.INCREASING,
                interpolation_mode=dml.InterpolationMode.NEAREST_NEIGHBOR)
_PART = dict(input_window_offsets=(0, 0, 1, 1), input_window_sizes=(2, 3, 5, 6),
             input_window_strides=(1, 1, -2, 3))
_REGIONS = np.array([[0.3, 0.2, 5.1, 3.7], [1.2, 1.1, 4.4, 4.9], [2.2, 0.4, 7.3, 5.2]], np.float32)
_OF = np.array([1, 0, 1], np.uint32)


def _inner(a: np.ndarray, b: np.ndarray) -> float:
    return float((a.astype(np.float64) * b.astype(np.float64)).sum())


@pytest.mark.parametrize(("forward", "backward"), [
    (lambda x: dml.average_pooling(x, **_POOL, include_padding=1),
     lambda dy, sizes: dml.average_pooling_grad(
         dy, **_POOL, include_padding=1, output_sizes=sizes)),
    (lambda x: dml.resample1(x, **_SCALES, input_pixel_offsets=(0.5,) * 4,
                             output_pixel_offsets=(-0.5,) * 4),
     lambda dy, sizes: dml.resample_grad(
         dy, **_SCALES, input_pixel_offsets=(-0.5,) * 4, output_pixel_offsets=(0.5,) * 4,
         output_sizes=sizes)),
    (lambda x: dml.resample2(x, **_NEAREST, input_pixel_offsets=(0.5,) * 4,
                             output_pixel_offsets=(-0.5,) * 4),
     lambda dy, sizes: dml.resample_grad1(
         dy, **_NEAREST, input_pixel_offsets=(-0.5,) * 4, output_pixel_offsets=(0.5,) * 4,
         output_sizes=sizes)),
    (lambda x: dml.slice1(x, **_PART),
     lambda dy, sizes: dml.slice_grad(dy, **_PART, output_sizes=sizes)),
    (lambda x: dml.roi_align1(x, _REGIONS, _OF, output_size=(2, 3)),
     lambda dy, sizes: dml.roi_align_grad(dy, _REGIONS, _OF, output_sizes=sizes)),
], ids=["AVERAGE_POOLING_GRAD", "RESAMPLE_GRAD", "RESAMPLE_GRAD1", "SLICE_GRAD", "ROI_ALIGN_GRAD"])
def test_the_gradient_of_a_linear_operator_is_its_adjoint(
    forward: Callable[..., Any], backward: Callable[..., Any], rng: np.random.Generator
) -> None:
    sizes = (2, 3, 6, 8)
    x = rng.standard_normal(sizes).astype(np.float32)
    y = forward(dml.tensor(x)).numpy()
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx = backward(dml.tensor(dy), sizes).numpy()
    most = _inner(abs(x), backward(dml.tensor(abs(dy)), sizes).numpy())
    assert abs(_inner(y, dy) - _inner(x, dx)) <= _ROOM * most
    assert backward(dml.tensor(dy), sizes).numpy().tobytes() == dx.tobytes()


@pytest.mark.parametrize("one", [3, np.int64(2)], ids=["int", "int64"])
def test_one_number_stands_for_all_dimensions(one: Any, rng: np.random.Generator) -> None:
    n = int(one)
    x = rng.standard_normal((1, 2, 2 * n, 2 * n)).astype(np.float32)
    largest = dml.max_pooling(x, window_size=one, strides=one).numpy()
    assert (largest == x.reshape(1, 2, 2, n, 2, n).max((3, 5))).all()
    _, indices = dml.max_pooling1(x, window_size=one, data_type=None, output_indices=True)
    assert indices.shape == (1, 2, n + 1, n + 1) and indices.dtype == np.uint32
    scales = (1.0, 1.0, float(n), float(n))
    dx = dml.resample_grad(x, scales=scales, input_pixel_offsets=-0.5, output_sizes=(1, 2, 2, 2))
    by_each = dml.resample_grad(
        x, scales=scales, input_pixel_offsets=(-0.5,) * 4, output_pixel_offsets=(0.5,) * 4,
        output_sizes=(1, 2, 2, 2))
    assert dx.numpy().tobytes() == by_each.numpy().tobytes()


def test_outputs_have_the_sizes_that_are_chosen() -> None:
    dy = np.ones((1, 1, 2, 2), np.float32)
    part = dict(input_window_offsets=(0, 0, 1, 0), input_window_sizes=(1, 1, 2, 2),
                input_window_strides=(1, 1, 1, 1))
    out = dml.empty((1, 1, 3, 2))
    assert dml.slice_grad(dy, **part, out=out) is out
    assert out.numpy().ravel().tolist() == [0, 0, 1, 1, 1, 1]
    with pytest.raises(dml.ValidationError, match="output_sizes to be given"):
        dml.slice_grad(dy, **part)


def _largest(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2))


def _across(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return x * (1.0 + 0.5 / 3 * sums) ** -0.75


def _normalized(x: np.ndarray) -> np.ndarray:
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return _SCALE * (x - mean) / np.sqrt(variance + 1e-3)


_SCALE = np.array([0.5, -1.5, 2.0]).reshape(1, 3, 1, 1)
_NO_PADDING = dict(strides=(2, 2), window_size=(3, 3), start_padding=(0, 0), end_padding=(0, 0))


def _normalized_gradient(x: np.ndarray, dy: np.ndarray) -> Any:
    mean, variance = (f((0, 2, 3), keepdims=True).astype(np.float32) for f in (x.mean, x.var))
    return dml.batch_normalization_training_grad(
        x, dy, mean, variance, _SCALE.astype(np.float32), epsilon=1e-3)[0]


_MEAN, _VARIANCE = (np.array(n).reshape(1, 3, 1, 1) for n in ([0.25, -0.5, 1.0], [0.5, 2.0, 1.5]))


def _given_moments(x: np.ndarray) -> np.ndarray:
    return _SCALE * (x - _MEAN) / np.sqrt(_VARIANCE + 1e-3)


def _given_moments_gradient(x: np.ndarray, dy: np.ndarray) -> Any:
    given = (t.astype(np.float32) for t in (_MEAN, _VARIANCE, _SCALE))
    return dml.batch_normalization_grad(x, dy, *given, epsilon=1e-3)[0]


@pytest.mark.parametrize(("function", "gradient"), [
    (_given_moments, _given_moments_gradient),
    (lambda x: np.maximum(x, 0), dml.activation_relu_grad),
    (lambda x: np.clip(x, -0.5, 0.7),
     lambda x, dy: dml.clip_grad1(x, dy, min=-0.5, max=0.7)),
    (_largest, lambda x, dy: dml.max_pooling_grad(x, dy, **_NO_PADDING, dilations=(1, 1))),
    (_across, lambda x, dy: dml.local_response_normalization_grad(
        x, dy, local_size=3, alpha=0.5, beta=0.75, bias=1.0)),
    (_normalized, _normalized_gradient),
], ids=["BATCH_NORMALIZATION_GRAD", "ACTIVATION_RELU_GRAD", "ELEMENT_WISE_CLIP_GRAD1",
        "MAX_POOLING_GRAD", "LOCAL_RESPONSE_NORMALIZATION_GRAD",
        "BATCH_NORMALIZATION_TRAINING_GRAD"])
def test_a_gradient_is_the_slope(
    function: Callable[[np.ndarray], np.ndarray], gradient: Callable[..., Any],
    rng: np.random.Generator,
) -> None:
    """By differences of the function in float64, in some direction."""
    x, v = (rng.standard_normal((2, 3, 7, 9)).astype(np.float32) for _ in range(2))
    step = 1e-7
    x64, v64 = x.astype(np.float64), v.astype(np.float64)
    slopes = (function(x64 + step * v64) - function(x64 - step * v64)) / (2 * step)
    dy = rng.standard_normal(slopes.shape).astype(np.float32)
    dx = gradient(x, dy).numpy()
    assert abs(_inner(slopes, dy) - _inner(dx, v)) <= _ROOM * _inner(abs(dx), abs(v))
    assert gradient(x, dy).numpy().tobytes() == dx.tobytes()


@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_scale_and_bias_are_slopes(training: bool, rng: np.random.Generator) -> None:
    """The output is linear in both, so that a step of 1 shows the slope."""
    x, dy = (rng.standard_normal((2, 3, 7, 9)).astype(np.float32) for _ in range(2))
    axes = (0, 2, 3)
    x64 = x.astype(np.float64)
    mean, variance = (x64.mean(axes, keepdims=True), x64.var(axes, keepdims=True)) \
        if training else (_MEAN, _VARIANCE)
    of = dml.batch_normalization_training_grad if training else dml.batch_normalization_grad
    _, d_scale, d_bias = (t.numpy() for t in of(
        x, dy, *(t.astype(np.float32) for t in (mean, variance, _SCALE)), epsilon=1e-3))
    for channel in range(3):
        step = np.zeros((1, 3, 1, 1))
        step[0, channel] = 1
        by_scale = step * (x64 - mean) / np.sqrt(variance + 1e-3)
        for found, slope in ((d_scale, by_scale), (d_bias, step + 0 * x64)):
            assert abs(found[0, channel, 0, 0] - _inner(slope, dy)) <= _ROOM * _inner(
                abs(slope), abs(dy))


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("low, high", [
    (-0.0, 1), (-np.inf, 0), (-np.inf, np.inf), (np.nan, 2.0**-24), (-(2.0**-24), np.nan),
    (np.nan, np.nan), (1, -1), (0.5, 0.5), (2, 1000)])
def test_limits_of_clipping(device: dml.Device, data_type: str, low: float, high: float) -> None:
    """What equals a limit does not pass. NaN passes, and a limit that is NaN holds nothing back."""
    least = np.finfo(data_type).smallest_subnormal
    x = np.array([-np.inf, -2, -1, -0.5, -least, -0.0, 0, least, 0.5, 1, 2, np.inf, np.nan,
                  -np.nan], data_type)
    dy = np.arange(1, 1 + x.size).astype(data_type)
    dx = dml.clip_grad(device.tensor(x), device.tensor(dy), min=low, max=high)
    passes = np.isnan(x) | ~((x <= np.float32(low)) | (x >= np.float32(high)))
    assert (dx.numpy() == np.where(passes, dy, 0)).all()
