"""Coordinates of resampled axes, against exact fractions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.lowering.coordinates import DOWN, HALVES_UP, UP, Affine
from kompute_dml.operators import resample

_PAIRS = 10_000
_HALF = Fraction(1, 2)


def _nearest(
    n: int, outputs: Iterable[int], scale: Fraction, offsets: tuple[float, float], rounding: int
) -> list[int]:
    """The elements, of ``n``, that are nearest to (o - offset) / scale - offset."""
    first = -Fraction(offsets[1]) / scale - Fraction(offsets[0])
    whole = math.lcm(first.denominator, scale.numerator)
    step, begin = int(whole / scale), int(first * whole)
    if rounding == HALVES_UP:
        found = [(2 * (o * step + begin) + whole) // (2 * whole) for o in outputs]
    else:
        found = [-(-(o * step + begin) // whole) if rounding == UP else (o * step + begin) // whole
                 for o in outputs]
    return [min(max(i, 0), n - 1) for i in found]


def _drawn(count: int) -> Iterator[tuple[int, int, Fraction, float, float]]:
    """Sizes of inputs and outputs, the scale, and offsets."""
    rng = random.Random(7)
    for i in range(count):
        most = 3000 if i % 100 == 0 else 30
        n, made = rng.randint(1, most), rng.randint(1, most)
        scale = Fraction(made, n)
        if i % 3 == 0 and n > 1 and made > 1:  # corner to corner
            scale = Fraction(made - 1, n - 1)
        if i % 7 == 0:
            scale = Fraction(rng.randint(1, 99), rng.choice([1, 2, 5, 10, 20]))
        offsets = rng.choice([(0.5, -0.5), (0.0, 0.0), (0.0, -0.5), (0.5, 0.0), (-0.5, 0.5)])
        yield n, made, scale, *offsets


def _by_words(line: Affine, made: int, n: int) -> np.ndarray | None:
    """The elements as the shader computes them, with 32 bits."""
    words = line.words(made)
    if words is None:
        return None
    step, first, multiplier, shift = words
    o = np.arange(made, dtype=np.uint64) * step + first
    assert o.max() < 1 << 32
    high = o * multiplier >> 32
    whole = high + (o - high >> 1) >> (shift & 31)
    return np.clip(whole.astype(np.int64) - (shift >> 5), 0, n - 1)


def test_nearest_elements_are_those_of_exact_fractions() -> None:
    by_words = 0
    for i, (n, made, scale, in_offset, out_offset) in enumerate(_drawn(_PAIRS)):
        line = Affine.of_scale(n, made, float(scale), in_offset, out_offset)
        rounding = i % 3
        o = range(made) if made <= 40 else random.Random(i).sample(range(made), 40)
        want = _nearest(n, o, scale, (in_offset, out_offset), rounding)
        rounded = line.rounded(rounding)
        floors = rounded.floors(made, n)
        assert floors[[*o]].tolist() == want, (n, made, scale, in_offset, out_offset, rounding)
        shaders = _by_words(rounded, made, n)
        if shaders is not None:
            by_words += 1
            assert shaders.tolist() == floors.tolist(), (n, made, scale, rounding)
    assert by_words > 0.99 * _PAIRS


def test_whole_and_half_coordinates_are_exact_in_float32() -> None:
    counts = 0
    for n, made, scale, in_offset, out_offset in _drawn(_PAIRS // 4):
        line = Affine.of_scale(n, made, float(scale), in_offset, out_offset)
        exact = line.places(made)
        near = (2 * exact == np.floor(2 * exact)) & (exact >= -1) & (exact <= n)
        counts += int(near.sum())
        assert (line.float_places(made, n) == exact)[near].all(), (n, made, scale)
    assert counts > 5_000


@pytest.mark.parametrize("scale", [1.7320508, 1e-9, 1e30, 3.4028234663852886e38, 1e-45])
def test_scales_that_are_no_ratio(scale: float) -> None:
    """INT64 does not hold all of these numbers."""
    exact = Fraction(float(np.float32(scale)))
    line = Affine.of_scale(9, 13, scale, 0.5, -0.5)
    want = [min(max(math.floor((o + _HALF) / exact - _HALF), 0), 8) for o in range(13)]
    assert line.floors(13, 9).tolist() == want
    places = line.float_places(13, 9)
    wide = np.array([float(min(max((o + _HALF) / exact - _HALF, -1), 9)) for o in range(13)])
    np.testing.assert_allclose(places, wide, rtol=1e-6, atol=1e-6)


def test_resample_takes_these_elements() -> None:
    """A sample of the pairs on the device, all roundings."""
    for i, (n, made, scale, in_offset, out_offset) in enumerate(_drawn(_PAIRS)):
        if i % 100:
            continue
        x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
        direction = i // 100 % 2
        out = dml.empty((2, made))
        dml.resample2(x, out=out, interpolation_mode="NEAREST_NEIGHBOR", scales=(1, float(scale)),
                      rounding_direction=direction, input_pixel_offsets=(0, in_offset),
                      output_pixel_offsets=(0, out_offset))
        want = _nearest(n, range(made), scale, (in_offset, out_offset), DOWN if direction else UP)
        np.testing.assert_array_equal(out.numpy(), x[:, want], err_msg=str((n, made, scale)))


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0])
@pytest.mark.parametrize("offsets", [(0.5, -0.5), (0.0, 0.0)])
def test_blocks_of_any_size_are_those_of_each_size(
    scale: float, offsets: tuple[float, float]
) -> None:
    """Where FLOAT32 is exact, as it is for powers of two."""
    for block in (2, 4, 8):
        known = []
        for size in range(math.ceil((block + 1) / scale), 70):
            outputs = math.floor(size * scale)
            line = Affine.of_scale(size, outputs, scale, *offsets)
            blocks = resample._blocks(resample._ResampledAxis(0, line, scale), size, outputs, block)
            ours = resample._blocks_of_any_size(line, size, outputs, block)
            assert ours is None or ours == blocks, (size, block)
            known.append(ours is not None)
        if block == 4 and scale in (0.5, 2.0, 4.0):
            assert all(known)
