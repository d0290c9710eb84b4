"""Operators on images: pooling, convolution, other sizes, normalization."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..attributes import InterpolationMode, Size2d
from .case import (
    Entry,
    Given,
    OperatorCase,
    Scale,
    case,
    coarse,
    each,
    images,
    one,
    per_channel,
    rows,
)

_BYTE = np.uint8
_POOL: dict[str, Any] = dict(window_size=3, strides=2)
_PATCH: dict[str, Any] = dict(
    window_sizes=(2, 2), strides=(2, 2), dilations=(1, 1), start_padding=(0, 0),
    end_padding=(0, 0))
RESPONSE: dict[str, Any] = dict(local_size=3, alpha=0.5, beta=0.75, bias=1.0)
TWICE: dict[str, Any] = dict(scales=(1, 1, 2, 2), interpolation_mode=InterpolationMode.LINEAR)
_CENTRES: dict[str, Any] = dict(input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4)


def _windows(x: np.ndarray, step: int = 1) -> np.ndarray:
    """Windows of 3x3: {n, c, h, w, 9}."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::step, ::step]
    return windows.reshape(*windows.shape[:4], 9)


def blocks(x: np.ndarray) -> np.ndarray:
    """Blocks of 2x2: {n, c, h/2, w/2, 4}."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).swapaxes(3, 4).reshape(n, c, h // 2, w // 2, 4)


def joined(blocks: np.ndarray) -> np.ndarray:
    n, c, h, w, _ = blocks.shape
    return blocks.reshape(n, c, h, w, 2, 2).swapaxes(3, 4).reshape(n, c, 2 * h, 2 * w)


def _columns(x: np.ndarray) -> np.ndarray:
    n, c = x.shape[:2]
    return np.moveaxis(blocks(x), 4, 2).reshape(n, 4 * c, -1)


def _image(columns: np.ndarray) -> np.ndarray:
    n, c, count = columns.shape
    side = math.isqrt(count)
    return joined(np.moveaxis(columns.reshape(n, c // 4, 4, side, side), 2, 4))


def placed(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Blocks of zeros, each with a value at one place."""
    return joined(np.where(np.arange(4) == where[..., None], values[..., None], 0))


def repeated(x: np.ndarray) -> np.ndarray:
    return x.repeat(2, 2).repeat(2, 3)


def between(n: int) -> np.ndarray:
    """The {2n, n} matrix of linear interpolation to twice as many points, at half-pixel offsets."""
    at = np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1)
    return np.maximum(1 - np.abs(at[:, None] - np.arange(n)), 0)


def doubled(x: np.ndarray) -> np.ndarray:
    return np.asarray(between(x.shape[2]) @ x @ between(x.shape[3]).T)


def _convolved(x: np.ndarray, filter: np.ndarray) -> np.ndarray:
    product = np.tensordot(_windows(x), filter.reshape(*filter.shape[:2], 9), ((1, 4), (1, 2)))
    return np.moveaxis(product, 3, 1)


def normal(
    x: np.ndarray, axes: int | tuple[int, ...], scale: np.ndarray | float = 1,
    bias: np.ndarray | float = 0
) -> np.ndarray:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + 1e-5) * scale + bias)


def neighbours(x: np.ndarray) -> np.ndarray:
    """Sums of three channels."""
    p = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return np.asarray(p[:, :-2] + p[:, 1:-1] + p[:, 2:])


def _filter(s: Scale, dtype: npt.DTypeLike = np.float32, high: float = 0.9) -> Given:
    """A 3x3 filter that keeps the number of channels."""
    channels = images(s).sizes[1]
    return Given((channels, channels, 3, 3), 0.1, high, dtype, shared=True)


def _convolution_operations(s: Scale) -> int:
    n, c, h, w = images(s).sizes
    return 2 * n * c * c * 9 * (h - 2) * (w - 2)


def regions(s: Scale, columns: int) -> np.ndarray:
    """A region for each whole image: {x1, y1, x2, y2}, or with the image's number in front."""
    n, _, h, w = images(s).sizes
    if columns == 4:
        return np.array([[0, 0, w, h]] * n, np.float32)
    return np.array([[[[i, 0, 0, w - 1, h - 1] for i in range(n)]]], np.float32)


def numbered(s: Scale) -> np.ndarray:
    return np.arange(images(s).sizes[0], dtype=np.uint32)


def _aligned(s: Scale) -> OperatorCase:
    return case(lambda x, roi, batch: blocks(x).mean(-1), images(s), regions(s, 4),
                 numbered(s), output_size=images(s, smaller=2).sizes[2:])


def _unpooled(s: Scale) -> OperatorCase:
    x = images(s, smaller=2)
    n, c, h, w = x.sizes
    places = np.arange(4 * n * c * h * w, dtype=np.uint32).reshape(n, c, 2 * h, 2 * w)
    return case(lambda x, places: placed(x, np.zeros(x.shape)), x,
                 np.ascontiguousarray(places[:, :, ::2, ::2]), output_sizes=places.shape)


def _folded(s: Scale) -> OperatorCase:
    n, c, h, w = images(s).sizes
    return case(_image, Given((n, 4 * c, h * w // 4)), sizes=(h, w), **_PATCH)


def _normalized(s: Scale, *axes: int, **arguments: Any) -> OperatorCase:
    return case(lambda x, scale, bias: normal(x, axes, scale, bias), images(s),
                 per_channel(s), per_channel(s), room=1e-4, **arguments)


CASES: dict[str, Entry] = {
    # Pooling
    **each("AVERAGE_POOLING AVERAGE_POOLING1", lambda s: case(
        lambda x: _windows(x, 2).mean(-1), images(s), **_POOL)),
    **each("LP_POOLING LP_POOLING1", lambda s: case(
        lambda x: np.sqrt((_windows(x, 2) ** 2).sum(-1)), images(s), **_POOL)),
    **each("MAX_POOLING MAX_POOLING1 MAX_POOLING2", lambda s: case(
        lambda x: _windows(x, 2).max(-1), images(s), **_POOL)),
    "QUANTIZED_LINEAR_AVERAGE_POOLING": lambda s: case(
        lambda x, *_: np.rint(_windows(x, 2).mean(-1)), images(s, 0, 255, _BYTE), one(1), one(1),
        **_POOL),
    "MAX_UNPOOLING": _unpooled,
    "ROI_POOLING": lambda s: case(
        lambda x, roi: blocks(x).max(-1), images(s), regions(s, 5),
        pooled_size=Size2d(*reversed(images(s, smaller=2).sizes[2:]))),
    "ROI_ALIGN": _aligned, "ROI_ALIGN1": _aligned,
    # Other sizes
    "UPSAMPLE_2D": lambda s: case(repeated, images(s, smaller=2), scale_size=Size2d(2, 2)),
    "RESAMPLE": lambda s: case(doubled, images(s, smaller=2), **TWICE),
    **each("RESAMPLE1 RESAMPLE2 RESAMPLE3", lambda s: case(
        doubled, images(s, smaller=2), **TWICE, **_CENTRES)),
    "UNFOLD": lambda s: case(_columns, images(s), **_PATCH),
    "FOLD": _folded,
    # Normalization
    "BATCH_NORMALIZATION": lambda s: case(
        lambda x, mean, variance, scale, bias: (x - mean) / np.sqrt(variance + 1e-5) * scale + bias,
        images(s), *(per_channel(s) for _ in range(4))),
    "MEAN_VARIANCE_NORMALIZATION": lambda s: _normalized(s, 2, 3),
    "MEAN_VARIANCE_NORMALIZATION1": lambda s: _normalized(s, 1, 2, 3, axes=(1, 2, 3)),
    "MEAN_VARIANCE_NORMALIZATION2": lambda s: _normalized(s, 1, 2, 3, axes=(1, 2, 3)),
    "LP_NORMALIZATION": lambda s: case(
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)), rows(s)),
    "LOCAL_RESPONSE_NORMALIZATION": lambda s: case(
        lambda x: x / (1 + 0.5 / 3 * neighbours(x * x)) ** 0.75, images(s), **RESPONSE),
    "CONVOLUTION": lambda s: case(
        _convolved, images(s), _filter(s), operations=_convolution_operations(s)),
    "CONVOLUTION_INTEGER": lambda s: case(
        _convolved, images(s, 0, 256, _BYTE), _filter(s, _BYTE, 256),
        operations=_convolution_operations(s)),
    "QUANTIZED_LINEAR_CONVOLUTION": lambda s: case(
        lambda x, _, __, filter, ___, ____, y: np.rint(_convolved(x, filter) / y),
        images(s, 0, 4, _BYTE), one(1), one(0, _BYTE), _filter(s, _BYTE, 4), one(1),
        one(0, _BYTE), coarse(9 * _filter(s).sizes[1]), operations=_convolution_operations(s)),
}
