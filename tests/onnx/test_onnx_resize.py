"""Resize in every mode, against onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", "1.23", reason="its reference has every mode")

from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import kompute_dml.onnx_backend as backend
from kompute_dml.errors import UnsupportedError

_COORDINATES = ("half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric",
                "pytorch_half_pixel", "tf_crop_and_resize")
_REGION = np.float32([0, 0, 0.25, -0.125, 1, 1, 1.0, 0.75])


def _run(
    x: np.ndarray, scales: list[float], sizes: list[int], region: np.ndarray = _REGION,
    **attributes: Any,
) -> tuple[Any, Any]:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    given = [numpy_helper.from_array(values, name) for name, values in (
        ("roi", region), ("scales", np.float32(scales)), ("sizes", np.array(sizes, np.int64)))]
    names = ["x", "roi", "scales" if scales else "", "sizes" if sizes else ""]
    made = helper.make_model(helper.make_graph(
        [helper.make_node("Resize", names, ["y"], **attributes)], "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, [None] * x.ndim)], given),
        opset_imports=[helper.make_opsetid("", 19)])
    (got,) = backend.run_model(made, [x])
    return got, ReferenceEvaluator(made).run(None, {"x": x})[0]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", _COORDINATES)
def test_resize(mode: str, coordinates: str) -> None:
    x = np.random.default_rng(7).standard_normal((1, 2, 5, 8)).astype(np.float32)
    smooth = (0,) if mode == "nearest" else (0, 1)
    # Powers of 2 in the divisors: which of two elements is the nearest one is exact.
    wanted_sizes: list[tuple[list[float], list[int]]] = [
        ([1, 1, 1.625, 2.375], []), ([1, 1, 0.4375, 1.5], []), ([], [1, 2, 3, 16])]
    if coordinates != "pytorch_half_pixel":  # ONNX's text puts a single element at 0
        wanted_sizes.append(([], [1, 2, 4, 1]))
    if coordinates == "tf_crop_and_resize":  # the reference divides by fractional lengths
        del wanted_sizes[:2]
    for scales, sizes in wanted_sizes:
        for antialias in smooth:
            for excludes in smooth:
                got, wanted = _run(
                    x, scales, sizes, mode=mode, coordinate_transformation_mode=coordinates,
                    antialias=antialias, exclude_outside=excludes, extrapolation_value=2.5)
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=str(
                    (scales, sizes, antialias, excludes)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_five_dimensions_are_resized(mode: str) -> None:
    x = np.random.default_rng(7).standard_normal((2, 3, 2, 3, 2)).astype(np.float32)
    whole = np.repeat(np.float32([0, 1]), 5)
    got, wanted = _run(x, [2, 1.5, 2, 0.75, 3], [], whole, mode=mode)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_sizes_are_those_of_a_product_in_float32() -> None:
    """5 times the float32 next to 2.6 is below 13, and rounds to 13."""
    got, _ = _run(np.zeros((1, 1, 2, 5), np.float32), [1, 1, 1, 2.6], [], mode="linear")
    assert got.shape == (1, 1, 2, 13)


def test_resize_of_integers_is_rounded() -> None:
    x = np.arange(0, 240, 6, dtype=np.uint8).reshape(1, 1, 5, 8)
    got, _ = _run(x, [], [1, 1, 9, 5], mode="cubic")
    wide, _ = _run(x.astype(np.float32), [], [1, 1, 9, 5], mode="cubic")
    np.testing.assert_array_equal(got, np.clip(np.rint(wide), 0, 255).astype(np.uint8))


def test_a_region_has_two_numbers_a_dimension() -> None:
    with pytest.raises(UnsupportedError, match="a region of 8 numbers"):
        _run(np.zeros((1, 2, 5, 8), np.float32), [], [1, 2, 3, 3], region=_REGION[:6],
             coordinate_transformation_mode="tf_crop_and_resize")
