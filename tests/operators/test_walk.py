"""The words of walks of strided tensors, and codes that Python and GLSL share."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kompute_dml.lowering.walk import Walk, split_dimensions
from kompute_dml.runtime.shader_library import codes

_INCLUDE = Path(__file__).parents[2] / "shaders" / "include"


def _at(words: tuple[int, ...], index: int) -> list[int]:
    """The arithmetic of walk.glsl, in 32 bits."""
    rank, per = words[0], (len(words) - 1) // words[0]
    where = [0] * (per - 3)
    for d in range(rank):
        size, multiplier, shift, *strides = words[1 + d * per : 1 + (d + 1) * per]
        high = index * multiplier >> 32
        following = 0 if d + 1 == rank else (high + ((index - high) >> 1)) >> shift
        assert multiplier < 1 << 32
        where = [w + (index - following * size) * s for w, s in zip(where, strides)]
        index = following
    return where


@pytest.mark.parametrize("sizes", [(1,), (7,), (3, 1, 5), (2, 3, 4, 5, 2, 3, 1, 6)])
def test_a_walk_visits_every_element_in_order(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(sizes))
    strides = [tuple(int(s) for s in rng.permutation(len(sizes)) * 100 + 1) for _ in range(2)]
    walk = Walk(sizes, *strides)
    coordinates = np.indices(sizes).reshape(len(sizes), -1).T
    expected = [[int(c @ s) for s in np.array(strides)] for c in coordinates]
    assert [_at(walk.words, i) for i in range(walk.count)] == expected


@pytest.mark.parametrize("size", [2, 3, 7, 641, 65537, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def testreciprocals_are_exact_in_32_bits(size: int) -> None:
    words = Walk((2, size), (0, 1)).words if size < 1 << 31 else None
    from kompute_dml.lowering.walk import reciprocal

    multiplier, shift = reciprocal(size) if words is None else words[2:4]
    near = [k * size + d for k in (0, 1, 2, ((1 << 32) - 1) // size) for d in (-1, 0, 1)]
    for n in [*near, (1 << 32) - 1, 1 << 31, 12345678]:
        if 0 <= n < 1 << 32:
            high = n * multiplier >> 32
            assert (high + ((n - high) >> 1)) >> shift == n // size


def test_rows_and_columns_of_a_reduction() -> None:
    rows, columns = split_dimensions((2, 3, 4), (2, 0), (12, 4, 1))
    assert (rows.count, columns.count) == (3, 8)
    assert [_at(columns.words, i)[0] for i in range(8)] == [0, 1, 2, 3, 12, 13, 14, 15]
    assert Walk((2, 3, 4), (12, 4, 1)).contiguous and not columns.contiguous


def test_activations_and_operators_of_chains_have_codes() -> None:
    names = [*codes()]
    table = (_INCLUDE / "activation_table.glsl").read_text("utf-8")
    simple = names[: names.index("clip")]
    assert re.findall(r"^ACTIVATION\((\w+)", table, re.MULTILINE) == simple
