"""Quantization."""

from __future__ import annotations

import numpy as np

from .case import Entry, case, one, rows, whole

_BYTE = np.uint8
_STEP, _ZERO = one(1 / 64), one(128, _BYTE)


def _dynamically(x: np.ndarray) -> tuple[np.ndarray, ...]:
    low, high = (np.float32(f(x)) for f in (np.min, np.max))
    step = (max(high, np.float32(0)) - min(low, np.float32(0))) / np.float32(255)
    zero = np.clip(np.rint(-low / step), 0, 255)
    quantized = np.clip(np.rint(x.astype(np.float32) / step) + zero, 0, 255)
    return quantized, step.reshape((1,) * x.ndim), zero.reshape((1,) * x.ndim)


CASES: dict[str, Entry] = {
    "ELEMENT_WISE_QUANTIZE_LINEAR": lambda s: case(
        lambda x, scale, zero: np.clip(np.rint(x / scale) + zero, 0, 255), rows(s, -1, 1), _STEP,
        _ZERO),
    "ELEMENT_WISE_DEQUANTIZE_LINEAR": lambda s: case(
        lambda x, scale, zero: (x - zero) * scale, rows(s, 0, 256, _BYTE), _STEP, _ZERO),
    "ELEMENT_WISE_QUANTIZED_LINEAR_ADD": lambda s: case(
        lambda x, scale, zero, y: np.clip(x + y - zero, 0, 255), rows(s, 0, 256, _BYTE), _STEP,
        _ZERO, rows(s, 0, 256, _BYTE),
        call=lambda f, /, x, scale, zero, y, **more: f(
            x, scale, zero, y, scale, zero, scale, zero, **more)),
    "DYNAMIC_QUANTIZE_LINEAR": lambda s: case(
        _dynamically, whole(rows(s, -1, 1)), data_type="uint8"),
    "QUANTIZE": lambda s: case(
        lambda x, scale, zero: np.clip(np.rint(x / scale) + zero, 0, 255), rows(s, -4, 4),
        _STEP[None], _ZERO[None], data_type="uint8",
        call=lambda f, /, x, *q, **more: f(x, q, **more)),
    "DEQUANTIZE": lambda s: case(
        lambda x, scale, zero: (x - zero) * scale, rows(s, 0, 256, _BYTE), _STEP[None],
        _ZERO[None], call=lambda f, /, x, *q, **more: f(x, q, **more)),
}
