"""Random numbers."""

from __future__ import annotations

import numpy as np

from .case import Entry, OperatorCase, Scale, case


def philox(state: np.ndarray, count: int) -> np.ndarray:
    """Philox 4x32 with 10 rounds: a counter of four words, the lowest first, and a key of two."""
    low = np.uint64(0xFFFFFFFF)
    counter = sum(int(word) << (32 * i) for i, word in enumerate(state[:4]))
    blocks = [(counter + b) % 2**128 for b in range(-(-count // 4))]
    c = [np.array([b >> (32 * i) & 0xFFFFFFFF for b in blocks], np.uint64) for i in range(4)]
    key = [int(k) for k in state[4:]]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [second >> np.uint64(32) ^ c[1] ^ np.uint64(key[0]), second & low,
             first >> np.uint64(32) ^ c[3] ^ np.uint64(key[1]), first & low]
        key = [(k + more) % 2**32 for k, more in zip(key, (0x9E3779B9, 0xBB67AE85))]
    return np.stack(c, 1).reshape(-1)[:count].astype(np.uint32)


def _random(s: Scale) -> OperatorCase:
    n = max(1, s.elements // 16)
    return case(lambda state: philox(state, n), np.array([7, 0, 5, 3, 11, 13], np.uint32),
                sizes=(n,))


CASES: dict[str, Entry] = {"RANDOM_GENERATOR": _random}
