"""Attention and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kompute_dml as dml

from .case import Entry, Given, OperatorCase, Scale, case
from .reduction import softmax


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Two heads."""
    q, k, v = (np.stack(np.split(x, 2, 2), 1) for x in (q, k, v))
    y = softmax(0.125 * q @ k.swapaxes(2, 3)) @ v
    return np.concatenate([y[:, 0], y[:, 1]], 2)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def recurrent(gates: int, linear_before_reset: bool = False) -> Callable[..., np.ndarray]:
    """RNN, GRU or LSTM, by the number of gates."""
    def step(
        a: list[np.ndarray], b: list[np.ndarray], h: np.ndarray, c: np.ndarray, hidden: np.ndarray
    ) -> tuple[Any, Any]:
        if gates == 1:
            return np.tanh(a[0] + b[0]), c
        if gates == 3:
            z, r = _sigmoid(a[0] + b[0]), _sigmoid(a[1] + b[1])
            new = r * b[2] if linear_before_reset else (r * h) @ hidden.T
            return (1 - z) * np.tanh(a[2] + new) + z * h, c
        i, o, f = (_sigmoid(x + y) for x, y in zip(a[:3], b[:3]))
        c = f * c + i * np.tanh(a[3] + b[3])
        return o * np.tanh(c), c

    def reference(x: np.ndarray, weight: np.ndarray, recurrence: np.ndarray) -> np.ndarray:
        w, r, results = weight[0, 0], recurrence[0, 0], []
        h = c = np.zeros((x.shape[2], r.shape[1]))
        for part in x[0]:
            a, b = (np.split(y, gates, 1) for y in (part @ w.T, h @ r.T))
            h, c = step(a, b, h, c, r[-r.shape[1] :])
            results.append(h)
        return np.stack(results)[:, None]

    return reference


def _recurrent_work(s: Scale, *activations: str) -> OperatorCase:
    """Four steps."""
    gates, n = {1: 1, 2: 3, 3: 4}[len(activations)], min(s.side, 512)
    return case(
        recurrent(gates), Given((1, 4, n, n), -1, 1, shared=True),
        *(Given((1, 1, gates * n, n), -0.1, 0.1, shared=True) for _ in range(2)),
        activation_descs=[getattr(dml, f"Activation{a}OperatorDesc")() for a in activations],
        output_sequence=True, operations=2 * 4 * n * 2 * n * gates * n, room=1e-4)


def _heads(s: Scale, **counts: Any) -> OperatorCase:
    length = min(s.side, 512)
    heads = Given((max(1, s.elements // (length * 128)), length, 128), -1, 1)
    return case(_attention, heads, heads, heads, scale=0.125, room=1e-4,
                 operations=4 * heads.sizes[0] * length**2 * 128, **counts)


CASES: dict[str, Entry] = {
    "MULTIHEAD_ATTENTION": lambda s: _heads(s, head_count=2),
    "MULTIHEAD_ATTENTION1": lambda s: _heads(s, query_head_count=2, key_value_head_count=2),
    "RNN": lambda s: _recurrent_work(s, "Tanh"),
    "GRU": lambda s: _recurrent_work(s, "Sigmoid", "Tanh"),
    "LSTM": lambda s: _recurrent_work(s, "Sigmoid", "Tanh", "Tanh"),
}
