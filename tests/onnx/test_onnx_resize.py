"""Resize in every mode, against onnx's reference."""

from __future__ import annotations

import math
from fractions import Fraction
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


_HALF = Fraction(1, 2)
_ROUNDINGS = {
    "round_prefer_floor": lambda x: math.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: math.floor(x + _HALF), "floor": math.floor, "ceil": math.ceil,
}
_PAIRS = ((20, 6, 4), (26, 64, 5), (4, 8, 4), (7, 14, 3), (10, 30, 4), (8, 3, 4), (3, 1, 4),
          (5, 5, 4), (6, 4, 4), (9, 100, 4))


def _coordinate(mode: str, i: int, n: int, made: int) -> Fraction:
    """By ONNX's text."""
    middle = (i + _HALF) * Fraction(n, made)
    if mode == "align_corners":
        return Fraction(i * (n - 1), made - 1) if made > 1 else Fraction()
    if mode == "pytorch_half_pixel" and made == 1:
        return Fraction()
    return {"asymmetric": middle - _HALF * Fraction(n, made),
            "tf_half_pixel_for_nn": middle}.get(mode, middle - _HALF)


@pytest.mark.parametrize("mode", [
    "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn",
    "half_pixel_symmetric"])
def test_nearest_elements_are_those_of_exact_fractions(mode: str) -> None:
    nodes, inputs, outputs, given, arrays, wanted = [], [], [], [], [], []
    for how, rounded in _ROUNDINGS.items():
        for n, made, rank in _PAIRS:
            name = f"{how}_{n}_{made}"
            x = np.arange(2 * n, dtype=np.float32).reshape(2, *[1] * (rank - 2), n)
            sizes = np.array([*x.shape[:-1], made])
            given.append(numpy_helper.from_array(sizes, name + "_sizes"))
            nodes.append(helper.make_node(
                "Resize", [name, "nothing", "nothing", name + "_sizes"], [name + "_y"],
                mode="nearest", nearest_mode=how, coordinate_transformation_mode=mode))
            inputs.append(helper.make_tensor_value_info(name, 1, x.shape))
            outputs.append(helper.make_tensor_value_info(name + "_y", 1, sizes.tolist()))
            arrays.append(x)
            at = [rounded(_coordinate(mode, i, n, made)) for i in range(made)]
            wanted.append(x[..., np.clip(at, 0, n - 1)])
    given.append(numpy_helper.from_array(np.zeros(0, np.float32), "nothing"))
    opset = 11 if mode == "tf_half_pixel_for_nn" else 19
    got = backend.run_model(helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, given),
        opset_imports=[helper.make_opsetid("", opset)]), arrays)
    for x, y, node in zip(got, wanted, nodes):
        np.testing.assert_array_equal(x, y, err_msg=node.output[0])


def test_nearest_elements_of_crops_and_many_dimensions_are_moved_as_they_are() -> None:
    """No product touches them: NaN stays where it is, and INT64 is exact."""
    x = np.random.default_rng(7).standard_normal((1, 2, 5, 8)).astype(np.float32)
    crop: dict[str, Any] = dict(mode="nearest", extrapolation_value=2.5,
                                coordinate_transformation_mode="tf_crop_and_resize")
    _, wanted = _run(x, [], [1, 2, 3, 4], **crop)
    hole = wanted[0, 0, 1, 2]
    got, _ = _run(np.where(x == hole, np.nan, x), [], [1, 2, 3, 4], **crop)
    np.testing.assert_array_equal(got, np.where(wanted == hole, np.nan, wanted))
    deep = np.arange(2**6, dtype=np.float32).reshape(2, 2, 2, 2, 2, 2)
    deep[0, 0, 0, 0, 0, 0] = np.nan
    got, _ = _run(deep, [], [4, 4, 4, 4, 4, 2], np.repeat(np.float32([0, 1]), 6), mode="nearest")
    np.testing.assert_array_equal(got, deep.repeat(2, 0).repeat(2, 1).repeat(2, 2).repeat(2, 3)
                                  .repeat(2, 4))
