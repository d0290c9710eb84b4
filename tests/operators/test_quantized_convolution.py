"""Convolutions of bytes on matrix units: plans for an H200, and values, which other devices compute
without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering.plan import Plan
from kompute_dml.operators.convolution import halo, tap_by_tap, tiles
from plans import checked, shaders_of
from test_convolution import TILES_OF_BYTES as _TILES
from test_convolution import EveryWork, _matrix_units, set_traits
from test_packed_filters import _convolved

SHADER = "convolution_coopmat.i8"
TAPS, HALO = "convolution_bytes_coopmat", "convolution_halo_coopmat"
VARIANTS = {"convolution_sum.quantized", *shaders_of(
    (*tiles.BYTES, *tiles.OF_DOTS, *tap_by_tap.KERNELS, *halo.KERNELS))}
"""Variants that these tests run, most where there are matrix units."""


def _layer(n: int, channels: int, side: int, filters: int, taps: int, *, last: bool = True,
           stride: int = 1) -> dml.QuantizedLinearConvolutionOperatorDesc:
    def image(c: int, side: int) -> dml.TensorDesc:
        strides = (side * side * c, 1, side * c, c) if last else None
        return dml.TensorDesc("int8", (n, c, side, side), strides)

    one = dml.TensorDesc("float32", (1, 1, 1, 1))
    return dml.QuantizedLinearConvolutionOperatorDesc(
        input_tensor=image(channels, side), input_scale_tensor=one, input_zero_point_tensor=None,
        filter_tensor=dml.TensorDesc("int8", (filters, channels, taps, taps),
                                     flags=dml.TensorFlags.OWNED_BY_DML),
        filter_scale_tensor=one, filter_zero_point_tensor=None, bias_tensor=None,
        output_scale_tensor=one, output_zero_point_tensor=None,
        output_tensor=image(filters, -(-side // stride)), strides=(stride,) * 2,
        dilations=(1, 1), start_padding=(taps // 2,) * 2, end_padding=(taps // 2,) * 2,
        group_count=1)


_SAME = {"start_padding": (1, 1), "end_padding": (1, 1)}


def _plan_of(desc: Any, **traits: Any) -> Plan:
    """The plan for an H200, with other traits."""
    target = _matrix_units()
    target = replace(target, traits=replace(target.traits, **traits))
    return checked(desc, desc.operator.lower(desc, target))


@pytest.mark.parametrize(("layer", "names"), [
    ((32, 64, 56, 64, 3), [f"{SHADER}.t128x64"]), ((32, 128, 28, 128, 3), [f"{SHADER}.t96"]),
    ((32, 256, 14, 256, 3), [f"{SHADER}.t96d"]), ((32, 1024, 14, 256, 1), [f"{SHADER}.t96d"]),
    ((32, 512, 7, 512, 3), [f"{SHADER}.t96", "convolution_sum.quantized"]),
    ((32, 64, 56, 256, 1), [f"{SHADER}.t256"]), ((32, 512, 28, 128, 1), [f"{SHADER}.t96"]),
    ((32, 256, 56, 64, 1), [f"{SHADER}.t128x64"]), ((1, 64, 56, 64, 3), [f"{SHADER}.t64"]),
])
def test_each_layer_takes_the_tile_that_was_fastest(
    layer: tuple[int, int, int, int, int], names: list[str]
) -> None:
    plan = _plan_of(_layer(*layer))
    assert [d.variant.name for d in plan.execute] == names
    sums = plan.execute[0]
    assert bool(sums.spec.get("REQUANTIZED")) == (len(names) == 1)
    assert sums.variant.shared_bytes <= 48 << 10


def test_quantized_rows_of_channels_are_stored_along_channels() -> None:
    """Also if images are single positions, whose strides say nothing."""
    (found,) = _plan_of(_layer(32, 64, 1, 128, 1, last=False)).execute
    assert found.spec["REQUANTIZED"] and not found.spec["OUTPUT_ALONG_ROWS"]


def _tensor(own: dml.Device, value: np.ndarray, last: bool) -> dml.Tensor:
    if not last:
        return own.tensor(value)
    return own.tensor(np.ascontiguousarray(value.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


def _kernels(own: dml.Device, units: bool) -> dict[str, str]:
    """The shaders of kernels in tiles by their names: on matrix units or, for a device that from
    now on has none, by products of four bytes."""
    if units:
        return {tile: f"{SHADER}.{tile}" for tile in _TILES}
    set_traits(own, cooperative_matrices=())
    return {f"dots-{kernel.axes}": f"{tiles.DOTS}.{kernel.axes}" for kernel in tiles.OF_DOTS}


def _names(own: dml.Device, units: bool = True) -> list[str]:
    """What the operator runs here. On matrix units that are not here: on an H200."""
    (compiled,) = own.compiled.values()
    plan = compiled.plan
    if units and not own.target.traits.multiplies(16, 16, 32, "i8", "i32"):
        plan = _plan_of(compiled.operator.desc)
    return [d.variant.name for d in plan.execute if "tiles" not in d.variant.name
            and "pack" not in d.variant.name]


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize(("x", "w", "window", "types", "full", "last"), [
    ((3, 72, 7, 7), (136, 72, 3, 3), _SAME,
     ("int8", "int8", "int8"), True, True),
    ((2, 64, 13, 17), (64, 64, 3, 3), _SAME,
     ("uint8", "uint8", "uint8"), True, True),
    ((2, 80, 21, 15), (176, 40, 3, 1), {"strides": (2, 1), "group_count": 2, "end_padding": (2, 0)},
     ("uint8", "int8", "uint8"), True, True),
    ((2, 64, 9, 16), (64, 64, 1, 1), {}, ("int8", "uint8", "int8"), False, True),
    ((33, 64, 1, 1), (136, 64, 1, 1), {}, ("int8", "int8", "int8"), True, False),
    ((1, 48, 9, 15), (36, 48, 3, 3), {}, ("int8", "int8", "uint8"), True, False),
])
def test_tiles_compute_what_numpy_does(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any],
    types: Sequence[str], full: bool, last: bool, units: bool, own: dml.Device,
    rng: np.random.Generator,
) -> None:
    """QUANTIZED_LINEAR_CONVOLUTION. ``full``: with bias, zero points, and scales of channels.
    Results lie halfway between numbers, and beyond the range."""
    limits = [np.iinfo(t) for t in types]
    image, filter_ = (rng.integers(t.min, t.max + 1, sizes).astype(t.dtype)
                      for t, sizes in zip(limits, (x, w)))
    zeros: list[Any] = [None] * 3
    bias, channels = None, 1
    if full:
        channels = w[0]
        zeros = [np.array(t.min + 77, t.dtype) for t in limits]
        zeros[1] = rng.integers(limits[1].min, limits[1].max + 1, channels).astype(types[1])
        bias = rng.integers(-99999, 99999, channels).astype(np.int32)
    own_scale = (2.0 ** rng.integers(-3, 1, channels)).astype(np.float32)
    per_step = np.float32(2.0 ** np.round(np.log2(np.sqrt(w[1] * w[2] * w[3]) * 50)))
    x_zero, w_zero, y_zero = (0 if z is None else z.astype(float) for z in zeros)
    sums = _convolved(image - x_zero, filter_ - np.reshape(w_zero, (-1, 1, 1, 1)), **window)
    if bias is not None:
        sums += bias[:, None, None]
    scale = (own_scale / per_step).reshape(-1, 1, 1)
    whole = np.rint(sums.astype(np.float32) * scale) + y_zero
    expected = np.clip(whole, limits[2].min, limits[2].max).astype(types[2])
    plain = last or x[2:] == (1, 1)  # neighbours in the output are channels
    given, weights = _tensor(own, image, last), own.tensor(filter_)
    for tile, shader in _kernels(own, units).items():
        out = _tensor(own, np.full_like(expected, 85), last)
        own.compiled.clear()
        with tuning.trial(EveryWork(f"{tile}-1")):
            dml.quantized_linear_convolution(
                given, np.float32(1), zeros[0], weights, own_scale, zeros[1], per_step, zeros[2],
                bias, **window, out=out)
            assert np.array_equal(out.numpy(), expected), tile
            assert _names(own, units) == [shader] + ["convolution_sum.quantized"] * (not plain)


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize(("splits", "last"), [(1, True), (1, False), (3, True)])
def test_tiles_add_up_integers(
    splits: int, last: bool, units: bool, own: dml.Device, rng: np.random.Generator,
) -> None:
    """INT32 sums of CONVOLUTION_INTEGER, and those of splits of K."""
    image = rng.integers(0, 256, (2, 192, 9, 14)).astype(np.uint8)
    filter_ = rng.integers(-128, 128, (72, 192, 3, 3)).astype(np.int8)
    sums = _convolved(image - 100.0, filter_ - 3.0)
    expected, names = sums.astype(np.int32), []
    if splits > 1:
        expected = np.clip(np.rint(sums / 4096), -128, 127).astype(np.int8)
        names = ["convolution_sum.quantized"]
    x, w = _tensor(own, image, last), own.tensor(filter_)
    for tile, shader in _kernels(own, units).items():
        out = _tensor(own, np.zeros_like(expected), last)
        own.compiled.clear()
        with tuning.trial(EveryWork(f"{tile}-{splits}")):
            if splits == 1:
                dml.convolution_integer(
                    x, w, x_zero_point=np.uint8(100), filter_zero_point=np.int8(3), out=out)
            else:
                dml.quantized_linear_convolution(
                    x, np.float32(1), np.uint8(100), w, np.float32(1), np.int8(3),
                    np.float32(4096), data_type="int8", out=out)
            assert np.array_equal(out.numpy(), expected), tile
            assert _names(own, units) == [shader, *names]


@pytest.mark.parametrize("layer", [(32, 64, 56, 64, 3), (32, 512, 7, 512, 3), (1, 64, 56, 64, 3)])
def test_products_of_four_bytes_are_taken_without_matrix_units(
    layer: tuple[int, int, int, int, int]
) -> None:
    first, *_ = _plan_of(_layer(*layer), cooperative_matrices=()).execute
    assert first.variant.name.startswith(tiles.DOTS)
    assert first.variant.shared_bytes <= 32 << 10


@pytest.mark.parametrize(("layer", "name"), [
    ((32, 64, 56, 64, 3), f"{TAPS}.t128x64"), ((32, 128, 28, 128, 3), f"{TAPS}.t96x128"),
    ((32, 256, 14, 256, 3), f"{SHADER}.t96d"), ((32, 512, 7, 512, 3), HALO),
    ((32, 64, 56, 256, 1), f"{TAPS}.t64x128"), ((32, 512, 28, 128, 1), f"{TAPS}.t96x128"),
    ((32, 1024, 14, 256, 1), f"{TAPS}.t96x64"), ((1, 64, 56, 64, 3), f"{SHADER}.t64"),
])
def test_each_layer_takes_the_kernel_that_was_fastest(
    layer: tuple[int, int, int, int, int], name: str
) -> None:
    """Where it is known where the elements of matrix units lie."""
    found, *_ = _plan_of(_layer(*layer), fragments_alike=True).execute
    assert found.variant.name == name


def test_which_convolutions_go_tap_by_tap() -> None:
    layer, byte = _layer(32, 64, 56, 64, 3), dml.TensorDesc("int8", (1, 1, 1, 1))
    filter_ = layer.filter_tensor

    def takes(desc: Any, **traits: Any) -> bool:
        found, *_ = _plan_of(desc, **{"fragments_alike": True, **traits}).execute
        return found.variant.name.startswith(TAPS)

    def channels_last(line: int) -> dml.TensorDesc:
        """A filter whose lines are so far apart, and which is not copied."""
        return dml.TensorDesc("int8", filter_.sizes, (3 * line, 1, line, 64))

    assert takes(layer) and takes(replace(layer, filter_tensor=channels_last(3 * 64)))
    assert takes(_layer(32, 64, 56, 64, 3, stride=2)) and takes(_layer(32, 64, 56, 64, 5))
    others = [
        replace(layer, input_zero_point_tensor=byte), replace(layer, filter_zero_point_tensor=byte),
        replace(layer, input_tensor=layer.input_tensor.replace(data_type="uint8")),
        replace(layer, filter_tensor=filter_.replace(data_type="uint8")),
        replace(layer, filter_tensor=channels_last(4 * 64)), _layer(32, 64, 56, 64, 3, last=False),
        _layer(32, 64, 56, 60, 3), _layer(32, 64, 56, 64, 7)]
    assert [takes(desc) for desc in others] == [False] * len(others)
    assert not takes(layer, fragments_alike=False) and not takes(layer, max_shared_memory=12 << 10)


def test_which_convolutions_take_halos() -> None:
    layer, byte = _layer(32, 512, 7, 512, 3), dml.TensorDesc("int8", (1, 1, 1, 1))

    def takes(desc: Any, **traits: Any) -> bool:
        found, *_ = _plan_of(desc, **{"fragments_alike": True, **traits}).execute
        return found.variant.name == HALO

    assert takes(layer) and takes(_layer(32, 384, 7, 512, 3))
    others = [
        replace(layer, input_zero_point_tensor=byte), replace(layer, filter_zero_point_tensor=byte),
        replace(layer, input_tensor=layer.input_tensor.replace(data_type="uint8")),
        replace(layer, start_padding=(2, 2), end_padding=(2, 2), dilations=(2, 2)),
        _layer(32, 512, 7, 512, 3, last=False), _layer(32, 512, 7, 512, 3, stride=2),
        _layer(32, 448, 7, 512, 3),  # 3.5 chunks
        _layer(32, 512, 7, 512, 1), _layer(32, 512, 7, 508, 3), _layer(32, 512, 16, 512, 3),
        _layer(64, 512, 7, 512, 3)]  # two tiles for most cores
    assert [takes(desc) for desc in others] == [False] * len(others)
    assert not takes(layer, fragments_alike=False) and not takes(layer, max_shared_memory=40 << 10)


ENDS = [("int8", True, False), ("uint8", True, True), ("int8", False, True)]


@pytest.mark.parametrize(("x", "w", "window"), [
    ((2, 64, 16, 16), (64, 64, 3, 3), _SAME),  # whole tiles of 128 x 64
    ((3, 128, 8, 8), (128, 128, 3, 3), _SAME),  # of 96 x 128
    ((3, 72, 7, 7), (136, 72, 3, 3), _SAME),  # channels that fill no vector
    ((2, 144, 9, 16), (72, 144, 1, 1), {}),
    ((2, 80, 21, 15), (176, 40, 3, 1),
     {"strides": (2, 1), "group_count": 2, "end_padding": (2, 0)}),
    ((1, 96, 11, 13), (72, 96, 3, 3),
     {"dilations": (2, 3), "start_padding": (2, 4), "end_padding": (3, 0)}),
    ((2, 64, 13, 14), (64, 64, 2, 3), {"strides": (3, 2), "start_padding": (1, 1)}),
    ((1, 32, 9, 19), (136, 32, 4, 8), {}),  # the most taps
    ((33, 64, 1, 1), (136, 64, 1, 1), {}),
])
@pytest.mark.parametrize(("kind", "full", "apart"), ENDS)
@pytest.mark.parametrize("tile", [kernel.tile for kernel in tap_by_tap.KERNELS])
def test_taps_compute_what_numpy_does(
    tile: str, x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any], kind: str,
    full: bool, apart: bool, own: dml.Device, rng: np.random.Generator,
) -> None:
    _compute_what_numpy_does(own, rng, f"taps-{tile}", f"{TAPS}.{tile}", x, w, window, kind,
                             full, apart)


@pytest.mark.parametrize(("x", "w", "window"), [
    ((4, 128, 7, 7), (64, 128, 3, 3), _SAME),  # whole tiles
    ((5, 256, 7, 7), (136, 256, 3, 3), _SAME),  # the last tiles have few rows and few columns
    ((1, 384, 5, 9), (72, 384, 3, 3), {"start_padding": (2, 0), "end_padding": (0, 2)}),
    ((2, 128, 14, 6), (64, 128, 3, 3), {"start_padding": (0, 2), "end_padding": (0, 1)}),
    ((3, 128, 3, 4), (64, 128, 2, 5), {"start_padding": (1, 4), "end_padding": (3, 4)}),
    ((2, 256, 9, 13), (48, 128, 3, 2), {"group_count": 2, "end_padding": (1, 0)}),
    ((2, 120, 8, 29), (64, 120, 2, 2), {"start_padding": (0, 1)}),  # filled up to 128 channels
    ((2, 128, 1, 17), (64, 128, 1, 3), {"dilations": (2, 1)}),
    ((2, 128, 17, 1), (64, 128, 3, 1), {"dilations": (1, 2), "start_padding": (1, 0)}),
    ((1, 128, 1, 40), (72, 128, 1, 33), {}),  # the most places
])
@pytest.mark.parametrize(("kind", "full", "apart"), ENDS)
def test_halos_compute_what_numpy_does(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any], kind: str, full: bool,
    apart: bool, own: dml.Device, rng: np.random.Generator,
) -> None:
    _compute_what_numpy_does(own, rng, "halo", HALO, x, w, window, kind, full, apart)


def _compute_what_numpy_does(
    own: dml.Device, rng: np.random.Generator, choice: str, variant: str, x: tuple[int, ...],
    w: tuple[int, ...], window: dict[str, Any], kind: str, full: bool, apart: bool,
) -> None:
    """``full``: with bias, an output's zero point, and scales of channels. ``apart``: something
    lies between the output's pixels."""
    traits = own.target.traits
    if not traits.fragments_alike or not traits.multiplies(16, 16, 32, "i8", "i32"):
        pytest.skip("the device has no matrix units for bytes whose elements' places are known")
    limit, channels = np.iinfo(kind), w[0]
    image, filter_ = (rng.integers(-128, 128, sizes).astype(np.int8) for sizes in (x, w))
    bias = rng.integers(-99999, 99999, channels).astype(np.int32) if full else None
    y_zero = np.array(limit.min + 77, kind) if full else None
    own_scale = (2.0 ** rng.integers(-3, 1, channels if full else 1)).astype(np.float32)
    per_step = np.float32(2.0 ** np.round(np.log2(np.sqrt(w[1] * w[2] * w[3]) * 50)))
    sums = _convolved(image, filter_, **window) + (0 if bias is None else bias[:, None, None])
    whole = np.rint(sums.astype(np.float32) * (own_scale / per_step).reshape(-1, 1, 1))
    expected = np.clip(whole + (y_zero or 0), limit.min, limit.max).astype(kind)
    n, _, height, width = expected.shape
    room = own.tensor(np.full((n, height, width, channels + 8 * apart), 85, kind))
    out = room[..., :channels].transpose(0, 3, 1, 2)
    with tuning.trial(EveryWork(choice)):
        dml.quantized_linear_convolution(
            _tensor(own, image, True), np.float32(1), None, own.tensor(filter_), own_scale, None,
            per_step, y_zero, bias, **window, out=out)
    (compiled,) = own.compiled.values()
    assert compiled.plan.execute[-1].variant.name == variant
    assert np.array_equal(out.numpy(), expected)
    assert (room.numpy()[..., channels:] == 85).all()
