"""Index arithmetic, compared with NumPy and with counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kompute_dml import layout

_dimensions = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=5
)


def _addresses(sizes: list[int], strides: list[int]) -> list[int]:
    """The address of every element, in row-major order."""
    coordinates = np.indices(sizes).reshape(len(sizes), -1)
    return (np.array(strides) @ coordinates).tolist()


@given(_dimensions)
def test_coalesce_visits_the_same_addresses(dimensions: list[tuple[int, int, int]]) -> None:
    sizes, one, other = (list(column) for column in zip(*dimensions))
    short, (a, b) = layout.coalesce(sizes, one, other)
    assert _addresses(list(short), list(a)) == _addresses(sizes, one)
    assert _addresses(list(short), list(b)) == _addresses(sizes, other)
    assert len(short) <= len(sizes)
    assert 1 not in short or len(short) == 1


def test_coalesce_merges_what_it_can() -> None:
    assert layout.coalesce([2, 3, 4], [12, 4, 1]) == ((24,), [(1,)])
    assert layout.coalesce([2, 3, 4], [12, 4, 1], [12, 4, 1]) == ((24,), [(1,), (1,)])
    assert layout.coalesce([2, 3, 4], [12, 4, 1], [1, 2, 6])[0] == (2, 3, 4)
    assert layout.coalesce([2, 1, 4], [9, 77, 1]) == ((2, 4), [(9, 1)])
    assert layout.coalesce([1, 1], [5, 7]) == ((1,), [(1,)])
    assert layout.coalesce([3, 4], [0, 0]) == ((12,), [(0,)])


@given(_dimensions)
def test_extent_is_the_last_address(dimensions: list[tuple[int, int, int]]) -> None:
    sizes, strides, _ = (list(column) for column in zip(*dimensions))
    assert layout.extent(sizes, strides) == max(_addresses(sizes, strides)) + 1


@pytest.mark.parametrize(("strides", "axis", "start", "expected"), [
    ((8, 1), -1, 4, True), ((6, 1), -1, 0, False), ((8, 1), -1, 2, False), ((8, 2), -1, 0, False),
    ((1, 8), 0, 0, True), ((1,), -1, 0, True), ((4, 1, 2), 1, 0, False),
])  # fmt: skip
def test_where_lines_begin(strides: tuple, axis: int, start: int, expected: bool) -> None:
    assert layout.begin_with_vectors(4, strides, axis, start) == expected


def test_overlap_of_layouts_too_large_to_count() -> None:
    # Nested: no need to count.
    assert not layout.overlaps_itself([1000, 1000], [1000, 1])
    assert not layout.overlaps_itself([1000, 1000], [1, 1000])
    assert layout.overlaps_itself([1000, 1000], [999, 1])
    # Small and interleaved without collisions: 0 2 4 and 1 3 5.
    assert not layout.overlaps_itself([3, 2], [2, 3])
    assert layout.overlaps_itself([4, 2], [2, 4])
    assert layout.overlaps_itself([2], [0])
    assert not layout.overlaps_itself([1], [0])


@given(st.permutations([2, 3, 4]), st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]), min_size=1,
                                            max_size=4), st.permutations(range(3)))
def test_reshape_agrees_with_numpy(sizes: list[int], new: list[int], axes: list[int]) -> None:
    if np.prod(new) != 24:
        return
    array = np.arange(24).reshape(sizes).transpose(axes)
    strides = [s // array.itemsize for s in array.strides]
    result = layout.reshape_strides(array.shape, strides, new)
    if result is None:
        shared = array.reshape(new)
        assert not np.shares_memory(shared, array)
    else:
        assert _addresses(new, list(result)) == array.reshape(-1).tolist()


@pytest.mark.parametrize("shapes, expected", [
    ([(3, 1), (4,)], (3, 4)), ([(1,), (5, 1, 2)], (5, 1, 2)), ([(2, 3)], (2, 3)),
    ([(2, 1), (1, 3), (1,)], (2, 3)),
])
def test_broadcast(shapes: list[tuple[int, ...]], expected: tuple[int, ...]) -> None:
    assert layout.broadcast_sizes(*shapes) == expected == np.broadcast_shapes(*shapes)


def test_broadcast_of_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\[2\], \[3\]"):
        layout.broadcast_sizes((2,), (3,))


def test_small_helpers() -> None:
    assert layout.packed_strides([2, 3, 5]) == (15, 5, 1)
    assert layout.product([]) == 1
    assert layout.pad_left((2, 3), 4, 1) == (1, 1, 2, 3)
    assert layout.is_packed([2, 1, 3], [3, 99, 1])
    assert not layout.is_packed([2, 3], [4, 1])
