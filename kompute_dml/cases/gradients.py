"""Gradients, and the steps of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .case import Entry, OperatorCase, Scale, case, each, images, per_channel, rows, whole
from .images import (
    RESPONSE,
    TWICE,
    between,
    blocks,
    neighbours,
    normal,
    numbered,
    placed,
    regions,
    repeated,
)

_BACK: dict[str, Any] = dict(
    window_size=(2, 2), strides=(2, 2), start_padding=(0, 0), end_padding=(0, 0))
_ADAM: dict[str, Any] = dict(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8)


def _doubled_back(x: np.ndarray) -> np.ndarray:
    return np.asarray(between(x.shape[2] // 2).T @ x @ between(x.shape[3] // 2))


def _response_gradient(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of local response normalization with the attributes ``RESPONSE``."""
    s = 1 + 0.5 / 3 * neighbours(x * x)
    return dy * s**-0.75 - 2 * 0.5 * 0.75 / 3 * x * neighbours(dy * x * s**-1.75)


def batch_gradient(
    training: bool, x: np.ndarray, dy: np.ndarray, mean: np.ndarray, variance: np.ndarray,
    scale: np.ndarray
) -> Any:
    axes, r = (0, 2, 3), 1 / np.sqrt(variance + 1e-5)
    sums = (dy * (x - mean) * r).sum(axes, keepdims=True), dy.sum(axes, keepdims=True)
    if not training:
        return dy * scale * r, *sums
    xc, dyc = (a - a.mean(axes, keepdims=True) for a in (x, dy))
    slope = (dy * xc).mean(axes, keepdims=True) / (variance + 1e-5)
    return scale * r * (dyc - xc * slope), *sums


def _adam(x: np.ndarray, m: np.ndarray, v: np.ndarray, g: np.ndarray, step: object) -> Any:
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g * g
    rate = np.sqrt(1 - 0.999**3) / (1 - 0.9**3)
    return x - 0.01 * rate * m / (np.sqrt(v) + 1e-8), m, v


def _back(s: Scale, reference: Callable[..., Any], **arguments: Any) -> OperatorCase:
    """A gradient of images that are twice as large as the incoming gradient."""
    return case(reference, images(s, smaller=2), out=images(s).sizes, **_BACK, **arguments)


def _resampled_back(s: Scale, **arguments: Any) -> OperatorCase:
    offsets: dict[str, Any] = dict(input_pixel_offsets=(-0.5,) * 4, output_pixel_offsets=(0.5,) * 4)
    return case(_doubled_back, images(s), out=images(s, smaller=2).sizes, **TWICE, **offsets,
                 **arguments)


def _batch_back(s: Scale, training: bool) -> OperatorCase:
    arrays = [whole(images(s)) for _ in range(2)]
    return case(partial(batch_gradient, training), *arrays,
                 *(per_channel(s) for _ in range(3)), room=1e-4)


def _aligned_back(s: Scale) -> OperatorCase:
    return case(lambda dy, roi, batch: repeated(dy) / 4, images(s, smaller=2), regions(s, 4),
                numbered(s), output_sizes=images(s).sizes)


CASES: dict[str, Entry] = {
    "ACTIVATION_RELU_GRAD": lambda s: case(
        lambda x, dy: np.where(x > 0, dy, 0), rows(s, -1, 1), rows(s, -1, 1)),
    **each("ELEMENT_WISE_CLIP_GRAD ELEMENT_WISE_CLIP_GRAD1", lambda s: case(
        lambda x, dy: np.where((x > 0.25) & (x < 0.5), dy, 0), rows(s), rows(s, -1, 1),
        min=0.25, max=0.5)),
    "AVERAGE_POOLING_GRAD": lambda s: _back(s, lambda dy: repeated(dy) / 4, include_padding=0),
    "MAX_POOLING_GRAD": lambda s: case(
        lambda x, dy: placed(dy, blocks(x).argmax(-1)), images(s), images(s, smaller=2),
        dilations=(1, 1), **_BACK),
    "RESAMPLE_GRAD": _resampled_back, "RESAMPLE_GRAD1": _resampled_back,
    "ROI_ALIGN_GRAD": _aligned_back,
    "SLICE_GRAD": lambda s: case(
        lambda dy: np.stack([dy, 0 * dy], 2).reshape(len(dy), -1), rows(s),
        out=(s.side, 2 * s.side), input_window_offsets=(0, 0),
        input_window_sizes=(s.side, 2 * s.side), input_window_strides=(1, 2)),
    "LOCAL_RESPONSE_NORMALIZATION_GRAD": lambda s: case(
        _response_gradient, images(s), images(s, -1, 1), cross_channel=True, **RESPONSE),
    "BATCH_NORMALIZATION_GRAD": lambda s: _batch_back(s, False),
    "BATCH_NORMALIZATION_TRAINING_GRAD": lambda s: _batch_back(s, True),
    "BATCH_NORMALIZATION_TRAINING": lambda s: case(
        lambda x, scale, bias: (
            normal(x, (0, 2, 3), scale, bias), x.mean((0, 2, 3), keepdims=True),
            x.var((0, 2, 3), keepdims=True)),
        whole(images(s)), per_channel(s), per_channel(s), room=1e-4),
    "ADAM_OPTIMIZER": lambda s: case(
        _adam, *(images(s) for _ in range(4)), np.full((1, 1, 1, 1), 3, np.uint32), **_ADAM),
}
