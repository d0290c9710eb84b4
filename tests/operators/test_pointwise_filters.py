"""Convolutions of one tap whose constant filters lie in shared memory: plans for an H200, and
values where there are matrix units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.lowering.builder import PlanBuilder
from kompute_dml.operators.convolution import kernels, pointwise
from kompute_dml.operators.convolution.layer import Layer
from plans import shaders_of
from test_convolution import set_traits
from test_packed_filters import _convolved, _plan_of, _run

SHADER = "convolution_pointwise_coopmat"
VARIANTS = shaders_of(pointwise.KERNELS)
"""Variants that these tests run where there are matrix units."""


@pytest.mark.parametrize(("x", "channels", "stride", "tile", "groups"), [
    ((32, 256, 56, 56), 64, 1, "s12", 132),
    ((32, 64, 56, 56), 64, 1, "s12", 132),
    ((32, 64, 56, 56), 256, 1, "s16", 132),
    ((32, 256, 56, 56), 128, 1, "s12", 132),  # two tiles of columns
    ((32, 128, 28, 28), 512, 1, "s16", 132),  # four
    ((32, 256, 56, 56), 512, 2, "s12", 128),  # eight
    ((32, 24, 56, 56), 144, 1, "s16", 132),
    ((1, 64, 56, 56), 256, 1, "", 0),  # few pixels
    ((32, 512, 28, 28), 128, 1, "", 0),  # many channels
])
def test_which_filters_lie_in_shared_memory(
    x: tuple[int, ...], channels: int, stride: int, tile: str, groups: int
) -> None:
    w = (channels, x[1], 1, 1)
    plan = _plan_of(x, w, stride=stride, padding=0)
    found = [d for d in plan.execute if d.variant.name.startswith(SHADER)]
    assert [d.variant.name for d in found] == [f"{SHADER}.{tile}"] * bool(tile)
    if tile:
        assert [d.variant.name for d in plan.initialize] == ["convolution_pack_filter"]
        assert plan.repacked == {"filter_tensor"} and found[0].groups == groups
        others: tuple[dict[str, Any], ...] = (
            {"owned": False}, {"known": False}, {"last": False}, {"padding": 1})
        for other in others:
            given = {"stride": stride, "padding": 0, **other}
            names = [d.variant.name for d in _plan_of(x, w, **given).execute]
            assert not any(n.startswith(SHADER) for n in names)


@pytest.mark.parametrize(("x", "channels", "tile"), [
    ((32, 64, 56, 56), 256, "s16"),
    ((32, 128, 28, 28), 512, "s16"),
    ((32, 256, 14, 14), 1024, "s12"),  # not without a tail
    ((8, 256, 14, 14), 1024, ""),  # few pixels
])
def test_which_filters_lie_in_shared_memory_with_a_tail(
    x: tuple[int, ...], channels: int, tile: str
) -> None:
    def kernels(tail: bool) -> list[str]:
        plan = _plan_of(x, (channels, x[1], 1, 1), padding=0, tail=tail)
        return [d.variant.name for d in plan.execute if d.variant.name.startswith(SHADER)]

    assert kernels(True) == [f"{SHADER}.{tile}.tail"] * bool(tile)
    assert kernels(False) == [f"{SHADER}.{tile}"] * (tile == "s16")


def _forced(own: dml.Device, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lets the device take the kernel wherever it can. Strips of a workgroup and tiles of columns
    are added to the list."""
    traits = own.target.traits
    if not traits.fragments_alike or not traits.multiplies(16, 16, 16, "f16", "f32"):
        pytest.skip("the device has no matrix units for FLOAT16 whose elements' places are known")
    set_traits(own, cores=4, max_shared_memory=48 << 10)
    seen: list[tuple[int, int]] = []
    lower = pointwise.Pointwise.lower

    def spy(self: pointwise.Pointwise, layer: Layer, p: PlanBuilder) -> None:
        split = self.split(layer, p.device)
        assert split is not None
        seen.append((split.strips, split.column_tiles))
        lower(self, layer, p)

    monkeypatch.setitem(kernels.KERNELS, "float", pointwise.KERNELS)
    monkeypatch.setattr(pointwise.Pointwise, "lower", spy)
    return seen


VALUES = [
    ((2, 64, 27, 61), 64, {}, (1, 1)),
    ((1, 256, 13, 31), 64, {}, (1, 1)),
    ((2, 64, 27, 61), 256, {}, (4, 1)),
    ((2, 128, 17, 19), 512, {}, (2, 4)),
    ((1, 256, 9, 31), 136, {}, (1, 3)),  # the last column tile has few columns
    ((2, 160, 9, 9), 264, {}, (2, 3)),  # it has fewer strips
    ((2, 104, 13, 31), 72, {}, (2, 1)),  # channels and columns that fill no chunk and no strip
    ((2, 20, 13, 31), 8, {}, (1, 1)),  # vectors that are made first
    ((3, 40, 15, 22), 24, {"strides": (2, 1)}, (1, 1)),
    ((3, 64, 15, 23), 192, {"strides": (1, 3)}, (3, 1)),
    ((1, 16, 1, 5), 16, {"strides": (2, 2)}, (1, 1)),
]


@pytest.mark.parametrize(("x", "channels", "window", "split"), VALUES)
@pytest.mark.parametrize("apart", [False, True])
def test_points_compute_what_numpy_does(
    x: tuple[int, ...], channels: int, window: dict[str, Any], split: tuple[int, int],
    apart: bool, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``split``: strips of a workgroup and tiles of columns. ``apart``: something lies between the
    output's pixels, and there is neither bias nor activation."""
    seen = _forced(own, monkeypatch)
    image, filter_ = (rng.integers(-3, 4, s).astype("float16")
                      for s in (x, (channels, x[1], 1, 1)))
    expected = _convolved(image, filter_, **window)
    bias = None if apart else rng.integers(-9, 10, channels).astype("float16")
    n, _, height, width = expected.shape
    whole = own.tensor(np.full((n, height, width, channels + 8 * apart), 7, np.float16))
    out = whole[..., :channels].transpose(0, 3, 1, 2)
    y = _run(own, image, filter_, bias, out, relu=not apart, **window)
    assert seen == [split]
    if bias is not None:
        expected = np.maximum(expected + bias[:, None, None], 0)
    assert np.array_equal(y, expected.astype("float16"))
    assert (whole.numpy()[..., channels:] == 7).all()


@pytest.mark.parametrize(("x", "channels", "window", "split"), VALUES)
def test_points_finish_with_a_tail(
    x: tuple[int, ...], channels: int, window: dict[str, Any], split: tuple[int, int],
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = _forced(own, monkeypatch)
    strides = window.get("strides", (1, 1))
    image, filter_ = (rng.integers(-3, 4, s).astype("float16")
                      for s in (x, (channels, x[1], 1, 1)))
    bias = rng.integers(-9, 10, channels).astype("float16")
    sums = _convolved(image, filter_, **window)
    other = rng.integers(-99, 100, sums.shape).astype("float16")

    def last(v: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(v.transpose(0, 2, 3, 1))

    with dml.Graph(own) as g:
        a, b = (g.input(last(v).shape, "float16") for v in (image, other))
        made, added, out = (g.empty(last(other).shape, "float16") for _ in range(3))
        y = dml.convolution(a.transpose(0, 3, 1, 2), g.constant(filter_), g.constant(bias),
                            strides=strides, out=made.transpose(0, 3, 1, 2))
        dml.max(dml.add(y, b.transpose(0, 3, 1, 2), out=added.transpose(0, 3, 1, 2)),
                g.constant(np.zeros((1,) * 4, np.float16)).broadcast_to(y.sizes),
                out=out.transpose(0, 3, 1, 2))
        run = g.compile(out)
    result = run(last(image), last(other))
    assert seen == [split]
    assert any(n.startswith(SHADER) and n.endswith(".tail") for n in run.variants)
    expected = np.maximum((sums + bias[:, None, None]).astype("float16") + other, 0)
    assert np.array_equal(result, last(expected.astype("float16")))
