"""The comparisons of results: what they accept and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from tolerance import LOST, ULP, compare

KINDS = sorted(ULP)
F32 = np.finfo(np.float32)


def off(kind: str, actual: float, expected: float, dtype: str, lost: float = 0.0) -> str:
    """The problem that a comparison finds if the second of three elements differs."""
    plain = np.array([1, 1, 0], dtype)
    given, wanted = plain.copy(), plain.copy()
    given[1], wanted[1] = actual, expected
    return compare(given, wanted, kind, lost)


def after(x: float, steps: int, dtype: str) -> float:
    """The float that is ``steps`` neighbours above a positive one."""
    bits = np.array([x], dtype).view(f"u{np.dtype(dtype).itemsize}") + np.uint8(steps)
    return bits.view(dtype)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?"])
def test_equal_is_right_and_of_another_type_or_shape_is_wrong(kind: str, dtype: str) -> None:
    x = np.array([[0, 1, 1]], dtype)
    assert compare(x, x.copy(), kind) == ""
    assert "instead of" in compare(x, x[0], kind)
    assert "instead of" in compare(x, x.astype("f4" if dtype != "f4" else "f8"), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_integers_are_equal_or_wrong(kind: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    for actual, expected in ((3, 2), (info.min, info.min + 1), (info.max, info.max - 1),
                             (info.min, 0 if info.min else 1), (info.min, info.max)):
        for x, y in ((actual, expected), (expected, actual)):
            assert off(kind, x, y, dtype, LOST) == (
                f"bits differ in 1 of 3 elements, first at [1]: "
                f"{np.array(x, dtype)[()]!r} instead of {np.array(y, dtype)[()]!r}"
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_nan_and_infinities_have_their_places(kind: str, dtype: str) -> None:
    inf, nan, largest = np.inf, np.nan, float(np.finfo(dtype).max)
    words = {"bits": ("bits differ",) * 2}.get(kind, ("NaN differs", "infinity differs"))
    for other in (1.0, inf, -inf, 0.0):
        assert off(kind, nan, other, dtype, LOST).startswith(words[0])
        assert off(kind, other, nan, dtype, LOST).startswith(words[0])
    for x, y in ((inf, -inf), (inf, largest), (-inf, -largest)):
        assert off(kind, x, y, dtype, LOST).startswith(words[1])
        assert off(kind, y, x, dtype, LOST).startswith(words[1])
    for same in (inf, -inf, nan, largest):
        assert off(kind, same, same, dtype) == ""


def test_only_bits_tell_one_nan_from_another() -> None:
    x, y = (np.uint32([word]).view(np.float32) for word in (0x7FC00000, 0xFFC00001))
    assert {kind: compare(x, y, kind) == "" for kind in KINDS} == {
        "bits": False, "stepwise": True, "function": True}


@pytest.mark.parametrize(("kind", "dtype", "room"), [
    ("bits", "f2", 0), ("bits", "f4", 0), ("bits", "f8", 0),
    ("stepwise", "f2", 0), ("stepwise", "f4", 0), ("stepwise", "f8", 0),
    ("function", "f2", 1), ("function", "f4", 6), ("function", "f8", 6),
])
def test_floats_may_be_off_by_so_many_neighbours(kind: str, dtype: str, room: int) -> None:
    for x in (0.0, 1.5, float(np.finfo(dtype).smallest_normal)):
        for sign in (1, -1):
            near, far = (sign * after(x, n, dtype) for n in (room, room + 1))
            assert off(kind, near, sign * x, dtype) == off(kind, sign * x, near, dtype) == ""
            assert off(kind, far, sign * x, dtype) and off(kind, sign * x, far, dtype)
    # There is one step between the zeros.
    assert bool(off(kind, -0.0, 0.0, dtype)) == (room == 0)
    least = after(0.0, 1, dtype)
    assert bool(off(kind, -least, least, dtype)) == (room < 3)


def test_denormals_are_lost_for_float32_alone() -> None:
    for x, y in ((0.0, LOST), (-LOST, 0.0), (2 * LOST, LOST)):
        assert off("function", x, y, "f4") and not off("function", x, y, "f4", LOST)
        assert off("function", x, y, "f8", LOST)
    assert off("function", 0.0, after(LOST, 1, "f4"), "f4", LOST)
    assert off("function", 2.0**-20, 0.0, "f2", 1.0)
