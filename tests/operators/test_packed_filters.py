"""Convolutions whose constant filters lie in the order of matrix units: how filters are packed,
plans for an H200, and values where there are matrix units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.bench.constants import initialized
from kompute_dml.desc import TensorDesc
from kompute_dml.graph.passes.epilogue import FIELDS
from kompute_dml.lowering.activation import ActivationStep
from kompute_dml.lowering.builder import PlanBuilder
from kompute_dml.lowering.copy import CopyView, copied
from kompute_dml.lowering.kernel import Kernel, explained
from kompute_dml.lowering.plan import PERSISTENT, Plan
from kompute_dml.operators.base import widened
from kompute_dml.operators.convolution import kernels, packed_filter
from kompute_dml.operators.convolution.layer import Layer
from kompute_dml.runtime.shader_library import codes
from plans import checked, shaders_of
from test_convolution import _matrix_units

SHADER = "convolution_packed_coopmat"
VARIANTS = {"convolution_pack_filter", *shaders_of(packed_filter.KERNELS)}


def _only(monkeypatch: pytest.MonkeyPatch, tile: str, splits: int = 1) -> None:
    """Convolutions of floats have no other kernel."""
    kernel = next(k for k in packed_filter.KERNELS if k.tile == tile)
    monkeypatch.setitem(kernels.KERNELS, "float", (kernel,))
    monkeypatch.setattr(packed_filter, "_splits", lambda c: {splits})


"""Variants that these tests run, those of matrix units where there are some."""


def _in_order(w: np.ndarray, phases: list[tuple[list[int], list[int]]],
              pixels_left: bool) -> np.ndarray:
    """A filter {output channels, input channels, y, x} in the order of matrix units. Phases are the
    taps along y and x."""
    out, given = w.shape[:2]
    whole = np.zeros((-(-out // 64) * 64, -(-given // 32) * 32, *w.shape[2:]), w.dtype)
    whole[:out, :given] = w
    if pixels_left:
        # strip, pair of fragments, quad, fragment, half, row | channels: 32, quad, step, element
        parts = whole.reshape(-1, 2, 4, 2, 2, 2, whole.shape[1] // 32, 4, 2, 4, *w.shape[2:])
        order = parts.transpose(0, 6, 10, 11, 8, 1, 3, 2, 5, 7, 4, 9)
    else:
        # strip, row, fragment, half | channels: 32, quad, step, turn, element
        parts = whole.reshape(-1, 8, 4, 2, whole.shape[1] // 32, 4, 2, 2, 2, *w.shape[2:])
        order = parts.transpose(0, 4, 9, 10, 6, 2, 1, 5, 7, 3, 8)
    return np.concatenate([order[:, :, y][:, :, :, x].reshape(-1) for y, x in phases])


def _run(own: dml.Device, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, out: dml.Tensor,
         *, last: bool = True, relu: bool = False, **window: Any) -> np.ndarray:
    """A convolution with a constant filter."""
    image = own.tensor(x)
    if last:
        image = own.tensor(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    tensors = {"input_tensor": image, "filter_tensor": own.tensor(w), "output_tensor": out}
    if bias is not None:
        tensors["bias_tensor"] = own.tensor(bias.reshape(1, -1, 1, 1))
    attributes = {
        "mode": 1, "direction": 0, "strides": (1, 1), "dilations": (1, 1),
        "start_padding": (0, 0), "end_padding": (0, 0), "output_padding": (0, 0),
        "group_count": 1, **window}
    activation = dml.ActivationReluOperatorDesc() if relu else None
    result: np.ndarray = initialized(
        own, dml.ConvolutionOperatorDesc, "filter_tensor", tensors, **attributes,
        fused_activation=activation)().numpy()
    return result


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("tile", ["t96", "t64x256", "t64x256p2"])
def test_filters_are_packed(
    tile: str, transposed: bool, mirrored: bool, own: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The packed filter, instead of the convolution."""
    w = rng.integers(-999, 999, (72, 40, 4, 2)).astype(np.float16)
    if transposed:  # the last tap comes first
        phases = [(y, x) for y in ([3, 1], [2, 0]) for x in ([0], [1])]
    else:
        phases = [([0, 1, 2, 3], [0, 1])]
    if mirrored:
        phases = [([3 - y for y in ys], [1 - x for x in xs]) for ys, xs in phases]
    chosen = next(k for k in packed_filter.KERNELS if k.tile == tile)
    expected = _in_order(w, phases, chosen.pixels_left)
    positions, room = 24, 2048 * chosen.passes
    """``room``: the most elements before the filter, which begins at a multiple of them."""

    class Copying(Kernel[Layer]):
        name = "copying"

        def lower(self, layer: Layer, p: PlanBuilder) -> None:
            d, ordered = TensorDesc("float16", (len(expected) + room,)), (
                packed_filter.filter_in_order(p, layer.c, chosen))
            p.add(copied(p, d.sizes, CopyView(PERSISTENT, d, d.strides, ordered.offset),
                         CopyView("output_tensor", d, d.strides)))

    monkeypatch.setitem(kernels.KERNELS, "float", (Copying(),))
    if transposed:
        x = np.zeros((2, 40, positions, positions), np.float16)
        given, out = np.ascontiguousarray(w.swapaxes(0, 1)), (2, 72, 2 * positions, 2 * positions)
        window = {"strides": (2, 2), "start_padding": (1, 0), "end_padding": (1, 0),
                  "direction": 1}
    else:
        x = np.zeros((2, 40, positions + 3, positions + 1), np.float16)
        given, out, window = w, (2, 72, positions, positions), {}
    y = _run(own, x, given, None, own.empty(out, "float16"), mode=int(not mirrored), **window)
    found = y.reshape(-1)
    assert any((found[n : n + len(expected)] == expected).all() for n in range(0, room + 1, 128))


def _images_for_units(
    own: dml.Device, rng: np.random.Generator, *sizes: tuple[int, ...]
) -> list[np.ndarray]:
    """Whole numbers in FLOAT16, where matrix units can multiply them."""
    traits = own.target.traits
    if not traits.fragments_alike or not traits.multiplies(16, 16, 16, "f16", "f32"):
        pytest.skip("the device has no matrix units for FLOAT16 whose elements' places are known")
    return [rng.integers(-3, 4, s).astype("float16") for s in sizes]


@pytest.mark.parametrize(("tile", "splits", "x", "w", "window"), [
    ("t96", 1, (3, 72, 7, 7), (136, 72, 3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    ("t96", 2, (2, 128, 9, 11), (128, 64, 3, 2), {"strides": (2, 1), "group_count": 2}),
    ("t48x256", 3, (5, 72, 7, 7), (264, 72, 3, 3),
     {"start_padding": (1, 0), "end_padding": (1, 2)}),
    ("t48x256", 1, (1, 40, 6, 21), (64, 40, 3, 3), {"dilations": (2, 3), "mode": 0}),
    ("t64x256", 1, (2, 64, 6, 7), (64, 64, 2, 2), {"strides": (2, 2), "direction": 1}),
    ("t64x256", 2, (2, 64, 6, 7), (64, 40, 4, 4),
     {"strides": (2, 2), "direction": 1, "start_padding": (1, 1), "end_padding": (1, 1)}),
    ("t128x256", 1, (2, 64, 16, 16), (256, 64, 1, 1), {}),
    ("t128x256", 1, (2, 100, 13, 31), (72, 100, 3, 3), {"start_padding": (2, 1)}),
    ("t192x64", 1, (2, 48, 12, 18), (320, 48, 1, 3), {}),
    ("t192x64", 2, (3, 72, 9, 31), (40, 72, 3, 2), {}),
    ("t64x256", 1, (2, 64, 8, 8), (64, 72, 4, 4),
     {"strides": (2, 2), "direction": 1, "start_padding": (1, 1), "end_padding": (1, 1)}),
    ("t48x256", 1, (1, 20, 5, 5), (16, 20, 5, 5),
     {"start_padding": (2, 2), "end_padding": (2, 2)}),
    ("t64x32", 1, (2, 72, 9, 37), (40, 72, 3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    ("t64x32", 3, (1, 96, 14, 14), (16, 96, 3, 3), {"strides": (2, 2), "start_padding": (1, 1)}),
    ("t64x32", 1, (1, 128, 21, 11), (64, 64, 3, 3), {"group_count": 2, "dilations": (2, 1)}),
    ("t128x32", 1, (3, 40, 7, 7), (32, 40, 3, 3), {"mode": 0}),
    ("t128x32", 2, (1, 64, 20, 33), (8, 64, 9, 1), {}),
    ("t128x64", 1, (2, 96, 17, 40), (72, 96, 3, 3), {"start_padding": (1, 1)}),
    ("t128x64", 2, (1, 64, 31, 19), (64, 64, 3, 3), {"strides": (1, 2), "start_padding": (2, 1)}),
])
@pytest.mark.parametrize("last", [True, False])
def test_packed_filters_compute_what_numpy_does(
    tile: str, splits: int, x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any],
    last: bool, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    image, filter_ = _images_for_units(own, rng, x, w)
    expected = _convolved(image, filter_, **window)
    bias = rng.integers(-9, 10, expected.shape[1]).astype("float16")
    n, channels, height, width = expected.shape
    whole = channels if last else 3 * channels  # among others, whose memory nobody writes
    out = own.empty((n, height, width, whole), "float16").transpose(0, 3, 1, 2)[:, :channels]
    _only(monkeypatch, tile, splits)
    with explained() as choices:
        y = _run(own, image, filter_, bias, out, last=last, relu=True,
                 **{"mode": 1, **window})
    name, _, parts = next(c for c in choices if c.taken.startswith(f"{tile}-")).taken.split("-")
    assert (name, int(parts)) == (tile, splits)
    expected = np.maximum(expected + bias[:, None, None], 0)
    assert np.array_equal(y, expected.astype("float16"))


def _convolved(
    x: np.ndarray, w: np.ndarray, *, mode: int = 1, direction: int = 0, group_count: int = 1,
    strides: tuple[int, int] = (1, 1), dilations: tuple[int, int] = (1, 1),
    start_padding: tuple[int, int] = (0, 0), end_padding: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """NumPy's result, tap by tap."""
    x, w = x.astype(float), w.astype(float)
    if mode == 0:
        w = w[:, :, ::-1, ::-1]
    taps, sizes = w.shape[2:], x.shape[2:]
    of = w.shape[1] if direction else w.shape[0] // group_count
    whole = [n + a + b for n, a, b in zip(sizes, start_padding, end_padding)]
    if direction:
        whole = [(n - 1) * s + d * (k - 1) + 1
                 for n, s, d, k in zip(sizes, strides, dilations, taps)]
        y = np.zeros((len(x), of * group_count, *whole))
    else:
        x = np.pad(x, ((0, 0), (0, 0), *zip(start_padding, end_padding)))
        y = np.zeros((len(x), of * group_count, *(
            (n - d * (k - 1) - 1) // s + 1
            for n, s, d, k in zip(whole, strides, dilations, taps))))
    given = x.shape[1] // group_count
    for g in range(group_count):
        own, made = x[:, g * given : (g + 1) * given], slice(g * of, (g + 1) * of)
        for i, j in np.ndindex(*taps):
            count = sizes if direction else y.shape[2:]
            at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s)
                       for t, d, n, s in zip((i, j), dilations, count, strides))
            if direction:
                rows = w[g * given : (g + 1) * given, :, i, j]
                y[(slice(None), made, *at)] += np.einsum("nchw,co->nohw", own, rows)
            else:
                y[:, made] += np.einsum("nchw,oc->nohw", own[(..., *at)], w[made, :, i, j])
    inside = tuple(slice(a, n - b) for n, a, b in zip(whole, start_padding, end_padding))
    return y[(..., *inside)] if direction else y


def _plan_of(x: tuple[int, ...], w: tuple[int, ...], *, owned: bool = True, known: bool = True,
             direction: int = 0, stride: int = 1, padding: int = 1, last: bool = True,
             tail: bool = False) -> Plan:
    """The plan for an H200, channels-last. ``known``: where matrix units' elements lie. ``tail``:
    a tensor is added."""
    target = _matrix_units()
    target = replace(target, traits=replace(target.traits, fragments_alike=known))
    channels = w[1] if direction else w[0]
    sides = [n * stride if direction else n // stride for n in x[2:]]

    def desc(sizes: tuple[int, ...], of_last: bool, flags: dml.TensorFlags) -> dml.TensorDesc:
        _, c, h, width = sizes
        strides = (h * width * c, 1, width * c, c) if of_last else None
        return dml.TensorDesc("float16", sizes, strides, flags=flags)

    plain = dml.TensorFlags.NONE
    y = desc((x[0], channels, *sides), last, plain)
    add = ActivationStep(codes()["add"], (0, 1), ())
    added = {"tail_tensor": y, "tail": (add,)} if tail else {}
    described = widened(dml.ConvolutionOperatorDesc, *FIELDS)(
        input_tensor=desc(x, True, plain),
        filter_tensor=desc(w, False, dml.TensorFlags.OWNED_BY_DML if owned else plain),
        output_tensor=y, mode=1, direction=direction,
        strides=(stride,) * 2, dilations=(1, 1), start_padding=(padding,) * 2,
        end_padding=(padding,) * 2, output_padding=(0, 0), group_count=1, **added)
    return checked(described, described.operator.lower(described, target))


@pytest.mark.parametrize(("x", "w", "window", "kernels"), [
    ((32, 128, 28, 28), (128, 128, 3, 3), {}, ["t96"]),
    ((32, 512, 7, 7), (512, 512, 3, 3), {}, ["t48x256", "sum"]),
    ((8, 256, 64, 64), (256, 128, 4, 4), {"direction": 1, "stride": 2}, ["t64x256p2"]),
    ((8, 256, 64, 64), (256, 128, 2, 2), {"direction": 1, "stride": 2, "padding": 0},
     ["t64x256x2"]),
    ((1, 64, 80, 80), (64, 64, 3, 3), {}, ["t64x32"]),  # a share of taps for each subgroup
    ((1, 192, 128, 128), (64, 192, 3, 3), {}, ["t128x64"]),
    ((32, 64, 56, 56), (64, 64, 3, 3), {}, ["t192x64"]),
    ((32, 32, 112, 112), (32, 32, 3, 3), {}, []),  # kept in registers
    ((32, 128, 28, 28), (128, 128, 3, 3), {"owned": False}, []),
    ((32, 128, 28, 28), (128, 128, 3, 3), {"known": False}, []),
    ((32, 128, 28, 28), (128, 128, 3, 3), {"last": False}, []),
    ((8, 256, 64, 64), (256, 128, 3, 3), {"direction": 1, "stride": 2, "padding": 0}, []),
])
def test_which_filters_are_packed(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any], kernels: list[str]
) -> None:
    plan = _plan_of(x, w, **window)
    names = [d.variant.name for d in plan.execute]
    tiles = [n for n in names if n.startswith(SHADER)]
    assert [n.rpartition(".")[2] for n in tiles] == kernels[:1]
    if kernels:
        assert [d.variant.name for d in plan.initialize] == ["convolution_pack_filter"]
        assert plan.repacked == {"filter_tensor"} and len(names) == len(kernels)
        assert plan.execute[0].groups >= 100


@pytest.mark.parametrize(("batches", "channels", "taps", "tile", "turns"), [
    (8, 128, 4, "t64x256p2", 2), (8, 128, 2, "t64x256x2", 2),  # two column tiles, 32 and 8 passes
    (8, 64, 4, "t64x256", 1), (8, 192, 4, "t64x256", 1),  # one and three
    (1, 128, 4, "t64x256", 1),  # a workgroup for each core, without turns
])
def test_workgroups_make_several_column_tiles(
    batches: int, channels: int, taps: int, tile: str, turns: int
) -> None:
    plan = _plan_of((batches, 256, 64, 64), (256, channels, taps, taps), direction=1, stride=2,
                    padding=taps // 2 - 1)
    (found,) = (d for d in plan.execute if d.variant.name == f"{SHADER}.{tile}")
    spec = found.spec
    assert spec.get("TURNS", 1) == turns
    assert found.groups == spec["ROW_TILES"] * spec["COLUMN_TILES"] // turns


@pytest.mark.parametrize(("x", "w", "window"), [
    ((2, 64, 6, 7), (64, 128, 2, 2), {"strides": (2, 2), "direction": 1}),
    ((2, 64, 6, 7), (64, 120, 4, 4),  # columns that do not fill tiles
     {"strides": (2, 2), "direction": 1, "start_padding": (1, 1), "end_padding": (1, 1)}),
    ((3, 72, 9, 5), (72, 128, 4, 2), {"strides": (2, 2), "direction": 1, "start_padding": (1, 0),
                                      "end_padding": (1, 0)}),
    ((2, 64, 7, 9), (64, 64, 3, 2), {"strides": (3, 2), "direction": 1, "group_count": 2,
                                     "start_padding": (0, 1), "end_padding": (0, 1)}),
    ((3, 32, 5, 7), (32, 136, 2, 1), {"strides": (2, 1), "direction": 1}),  # a last tile of half
])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("tile", ["t64x256x2", "t64x256p2"])
def test_several_turns_compute_what_numpy_does(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, Any], relu: bool, tile: str,
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``relu``: with a bias and an activation."""
    image, filter_ = _images_for_units(own, rng, x, w)
    expected = _convolved(image, filter_, **window)
    bias = rng.integers(-9, 10, expected.shape[1]).astype("float16") if relu else None
    if bias is not None:
        expected = np.maximum(expected + bias[:, None, None], 0)
    n, channels, height, width = expected.shape
    out = own.empty((n, height, width, channels), "float16").transpose(0, 3, 1, 2)
    _only(monkeypatch, tile)
    with explained() as choices:
        y = _run(own, image, filter_, bias, out, relu=relu, **{"mode": 1, **window})
    assert [c.taken.split("-")[0] for c in choices] == [tile]
    assert np.array_equal(y, expected.astype("float16"))
