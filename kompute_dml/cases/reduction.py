"""Operators that reduce or order rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..attributes import ReduceFunction
from .case import Entry, OperatorCase, Scale, case, each, rows


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _largest(x: np.ndarray) -> np.ndarray:
    return (np.arange(x.shape[-1]) == x.argmax(-1)[..., None]).astype(np.float64)


_SOFTMAX: dict[str, Callable[..., Any]] = {
    "SOFTMAX": softmax, "LOG_SOFTMAX": lambda x: np.log(softmax(x)), "HARDMAX": _largest}


def top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, 1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, 1), order


def _scanned(product: bool) -> Callable[[Scale], OperatorCase]:
    low, high = (0.99, 1.01) if product else (0.1, 0.9)
    return lambda s: case(lambda x: (np.cumprod if product else np.cumsum)(x, 1),
                          rows(s, low, high), axis=1, room=1e-4)


CASES: dict[str, Entry] = {
    **{f"ACTIVATION_{name}{newer}": lambda s, f=f: case(f, rows(s, -2, 2))  # type: ignore[misc]
       for name, f in _SOFTMAX.items() for newer in ("", "1")},
    "REDUCE": lambda s: case(lambda x: x.sum(1, keepdims=True), rows(s),
                             function=ReduceFunction.SUM, axes=(-1,)),
    "ARGMAX": lambda s: case(lambda x: x.argmax(1)[:, None], rows(s), axes=(-1,)),
    "ARGMIN": lambda s: case(lambda x: x.argmin(1)[:, None], rows(s), axes=(-1,)),
    "CUMULATIVE_SUMMATION": _scanned(False),
    "CUMULATIVE_PRODUCT": _scanned(True),
    **each("TOP_K TOP_K1", lambda s: case(lambda x: top(x, 5), rows(s), k=5)),
}
