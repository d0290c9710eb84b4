"""Convolutions whose filters matrix units keep in registers: plans for an H200, and values where
there are matrix units."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.operators.convolution import resident_filter
from plans import shaders_of
from test_convolution import _names, _plan, set_traits

IM2COL, RESIDENT = "convolution_im2col_coopmat", "convolution_resident_coopmat"
VARIANTS = {IM2COL, *shaders_of(resident_filter.KERNELS)}
"""Variants that these tests run where there are matrix units."""


def _last(t: dml.Tensor) -> dml.Tensor:
    return t.transpose(0, 3, 1, 2)


@pytest.mark.parametrize(("x", "w", "stride", "kernel"), [
    ((32, 3, 224, 224), (64, 3, 7, 7), 2, IM2COL),
    ((32, 3, 224, 224), (64, 3, 3, 3), 1, IM2COL),
    ((32, 1, 224, 224), (32, 1, 3, 3), 2, IM2COL),
    ((32, 256, 56, 56), (64, 256, 1, 1), 1, f"{RESIDENT}.c1f2"),
    ((32, 64, 56, 56), (64, 64, 3, 3), 1, f"{RESIDENT}.c1f2s8"),
])
def test_which_convolutions_keep_their_filter(
    x: tuple[int, ...], w: tuple[int, ...], stride: int, kernel: str
) -> None:
    plan = _plan(x, w, last=True, stride=stride)
    assert _names(plan)[-1] == kernel
    assert 264 >= plan.execute[-1].groups > 130  # no more than run at a time
    small = (1, x[1], x[2] // 8, x[3] // 8)
    assert kernel not in _names(_plan(small, w, last=True, stride=stride))  # too few


def test_one_image_is_divided_into_patches_of_a_row() -> None:
    plan = _plan((1, 3, 224, 224), (64, 3, 7, 7), last=True, stride=2)
    assert _names(plan)[-1] == IM2COL and plan.execute[-1].groups >= 112


@pytest.mark.parametrize(("x", "w", "stride", "padding", "shader"), [
    ((2, 3, 21, 40), (48, 3, 7, 7), 2, 3, IM2COL),   # 8 columns of channels, and 16 of 64
    ((3, 4, 19, 133), (80, 4, 3, 3), 1, 1, IM2COL),  # two tiles of columns, and of a row
    ((2, 1, 30, 30), (64, 1, 5, 5), 4, 0, IM2COL),
    ((2, 64, 13, 31), (48, 64, 3, 3), 1, 1, RESIDENT),
    ((2, 256, 13, 31), (64, 256, 1, 1), 1, 0, RESIDENT),
    ((2, 128, 13, 31), (64, 128, 1, 1), 2, 0, RESIDENT),
])
@pytest.mark.parametrize("last", [True, False])
def test_kept_filters_compute_what_numpy_does(
    x: tuple[int, ...], w: tuple[int, ...], stride: int, padding: int, shader: str, last: bool,
    own: dml.Device, rng: np.random.Generator,
) -> None:
    if not own.target.traits.multiplies(16, 16, 16, "f16", "f32"):
        pytest.skip("the device has no matrix units for FLOAT16")
    set_traits(own, cores=1)
    image, filter_ = (rng.integers(-3, 4, s).astype("float16") for s in (x, w))
    bias = rng.integers(-9, 10, w[0]).astype("float16")
    padded = np.pad(image.astype(float), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w[2:], (2, 3))
    expected = np.einsum("ncyxij,ocij->nyxo", windows[:, :, ::stride, ::stride], filter_) + bias
    given = own.tensor(image)
    if last:
        given = _last(own.tensor(np.ascontiguousarray(image.transpose(0, 2, 3, 1))))
    out = own.empty(expected.shape, "float16")
    dml.convolution(given, own.tensor(filter_), own.tensor(bias), strides=stride,
                    start_padding=padding, end_padding=padding, out=_last(out),
                    fused_activation=dml.ActivationReluOperatorDesc())
    assert np.array_equal(out.numpy(), np.maximum(expected, 0).astype("float16"))
    names = {n for each in own.compiled.values() for n in each.variants}
    assert any(n.startswith(shader) for n in names & VARIANTS)
