"""Values that DirectML prints, or that public tests demand of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

_ROIS = np.array([(7, 5, 7, 5), (-15, -15, -15, -15), (-10, 21, -10, 21), (13, 8, 13, 8),
                  (-14, 19, -14, 19)], np.float32)


@pytest.mark.parametrize(("in_offset", "function", "first"), [
    (0.0, 2, (2.0, 0.0, 6.5625, 3.3125, 5.9375)), (0.0, 7, (2.0, 0.0, 6.5625, 3.3125, 5.9375)),
    (0.5, 2, (0.0, 0.0, 0.0, 0.3125, 0.0)),
], ids=str)
def test_roi_align1(in_offset: float, function: int, first: tuple[float, ...]) -> None:
    x = np.arange(75, dtype=np.float32).reshape(1, 3, 5, 5)
    y = dml.roi_align1(
        x, _ROIS, np.zeros(5, np.uint32), output_size=(3, 4), reduction_function=function,
        spatial_scale_x=0.0625, spatial_scale_y=0.0625, input_pixel_offset=in_offset,
        minimum_samples_per_output=2, maximum_samples_per_output=2).numpy()
    channels = np.array([0, 25, 50], np.float32)
    expected = np.array(first, np.float32)[:, None] + channels
    if in_offset:  # more than 1 beyond the edge: not the input
        expected[[1, 2, 4]] = 0
    assert (y == expected[:, :, None, None]).all()


def test_upsample_2d() -> None:
    y = dml.upsample_2d(np.array([[[[1, 2], [3, 4]]]], np.float32), scale_size=dml.Size2d(2, 2),
                        interpolation_mode=1).numpy()
    assert y.ravel().tolist() == [1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5,
                                  2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4]


def test_resample3_antialiased() -> None:
    y = dml.resample3(np.arange(6, dtype=np.float32), scales=(1 / 3,), input_pixel_offsets=(0.5,),
                      output_pixel_offsets=(-0.5,), antialiased=1).numpy()
    assert np.allclose(y, [1, 4], atol=1e-6)


@pytest.mark.parametrize(("dtype", "x", "expected"), [
    (np.uint8, [[1, 2, 3, 4], [5, 6, 7, 8]], [[2, 4]]),
    (np.int8, [[1, -2, 3, -4], [-5, 6, -7, 8]], [[0, 0]]),
])
def test_resample2_of_integers(dtype: Any, x: Any, expected: Any) -> None:
    y = dml.resample2(np.array(x, dtype), scales=(0.6, 0.6), input_pixel_offsets=(0.5, 0.5),
                      output_pixel_offsets=(-0.5, -0.5)).numpy()
    assert y.tolist() == expected


def test_max_unpooling() -> None:
    y = dml.max_unpooling(
        np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[1, 3], [10, 12]]]], np.uint32),
        output_sizes=(1, 1, 5, 5)).numpy().ravel()
    assert {int(i): y[i] for i in y.nonzero()[0]} == {1: 1, 3: 2, 10: 3, 12: 4}
