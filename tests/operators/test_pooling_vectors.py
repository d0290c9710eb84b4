"""Values that DirectML prints, or that public tests demand of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering import builder
from switches import SWIFTSHADER
from test_convolution import EveryWork

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


@pytest.mark.parametrize(("data_type", "last"), [
    ("float16", False), ("float32", False), ("float16", True)])
@pytest.mark.parametrize(("op", "size", "window", "strides", "more"), [
    ("max", (9, 12), (3, 3), (2, 2), {}),
    ("average", (11, 10), (4, 2), (3, 1), {"include_padding": 1}),
], ids=str)
def test_planes_are_pooled_as_anything_else(
    op: str, size: tuple[int, int], window: tuple[int, int], strides: tuple[int, int],
    more: dict[str, int], last: bool, data_type: str, own: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if SWIFTSHADER and data_type == "float16":
        pytest.skip("SwiftShader rounds 9 to 9.016, so its units are not exact")
    real = builder.traits.of
    monkeypatch.setattr(builder.traits, "of", lambda a: replace(real(a), exact_units=True))
    device = dml.Device(own.adapter)
    x = rng.integers(-9, 10, (2, 8, *size)).astype(data_type)
    x[0, 1, 2, 3] = np.nan
    x[1, 2, 3, 4] = -np.inf
    order = (0, 3, 1, 2)

    def tensor(values: np.ndarray) -> dml.Tensor:
        if not last:
            return device.tensor(values)
        return device.tensor(np.ascontiguousarray(values.transpose(0, 2, 3, 1))).transpose(order)

    results = []
    for kernel in ("general", "planes"):
        device._compiled.clear()
        sizes = [(n + 3 - w) // s + 1 for n, w, s in zip(size, window, strides)]
        sizes = [n - (n % 2 if i and not last else 0) for i, n in enumerate(sizes)]
        ends = [(m - 1) * s + w - n - 1 for n, w, s, m in zip(size, window, strides, sizes)]
        out = tensor(np.zeros((2, 8, *sizes), data_type))
        with tuning.trial(EveryWork(kernel)):
            call = dml.max_pooling if op == "max" else dml.average_pooling
            results.append(call(
                tensor(x), window_size=window, strides=strides, start_padding=1,
                end_padding=[max(e, 0) for e in ends], out=out, **more).numpy())
    names = {n for each in device._compiled.values() for n in each.variants}
    assert np.array_equal(*results, equal_nan=True)
    assert names == {f"pooling_planes.{op}.{'last' if last else 'first'}"}
    device.close()


PLANES = {f"pooling_planes.{op}.{layout}" for op in ("max", "average")
          for layout in ("first", "last")} | {"resample_planes.first", "resample_planes.last"}
"""Variants that the tests above and below run. A CPU chooses the general kernels."""


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(("last", "scale"), [(False, 2.0), (False, 4.0), (True, 2.0)])
def test_planes_are_resampled_as_anything_else(
    last: bool, scale: float, data_type: str, own: dml.Device, rng: np.random.Generator
) -> None:
    x = rng.integers(-9, 10, (2, 8, 5, 8)).astype(data_type)
    order = (0, 3, 1, 2)

    def tensor(values: np.ndarray) -> dml.Tensor:
        if not last:
            return own.tensor(values)
        return own.tensor(np.ascontiguousarray(values.transpose(0, 2, 3, 1))).transpose(order)

    size = int(5 * scale), int(8 * scale)
    results = []
    for kernel in ("general", "planes"):
        own._compiled.clear()
        with tuning.trial(EveryWork(kernel)):
            results.append(dml.resample(
                tensor(x), interpolation_mode="LINEAR", scales=(1, 1, scale, scale),
                out=tensor(np.zeros((2, 8, *size), data_type))).numpy())
    names = {n for each in own._compiled.values() for n in each.variants}
    assert (results[0] == results[1]).all()  # weights are multiples of 1/8
    assert names == {f"resample_planes.{'last' if last else 'first'}"}
