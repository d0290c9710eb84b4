"""The kernels for planes of floats compute what the general kernels do, which a CPU chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.desc import TensorDesc
from kompute_dml.dtypes import DataType
from kompute_dml.lowering import builder
from kompute_dml.operators import pooling, pooling_gradient, resample, resample_gradient
from kompute_dml.runtime.traits import DeviceClass
from switches import SWIFTSHADER
from test_convolution import set_traits

VARIANTS = {
    *(f"{shader}.{op}.{layout}" for shader in ("pooling_planes", "pooling_grad_planes")
      for op in ("max", "average") for layout in ("first", "last")),
    "pooling_planes.winner.first", "pooling_planes.winner.last",
    "pooling_planes_halves.average", "pooling_planes_halves.max",
    "pooling_grad_planes_halves.first", "pooling_grad_planes_halves.last",
    "pooling_grad_pairs.first", "pooling_grad_pairs.last",
    *(f"{shader}.{layout}" for shader in ("resample_planes", "resample_grad_planes")
      for layout in ("first", "last")),
    *(f"pooling_means.{layout}.{reduced}" for layout in ("first", "last")
      for reduced in ("tree", "subgroups")),
}
"""Variants that these tests run."""
_TYPES = pytest.mark.parametrize("data_type", ["float32", "float16"])
_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["first", "last"])


class _Pool(NamedTuple):
    op: str
    size: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: int

    @property
    def made(self) -> list[int]:
        """The sizes of the output, rows of it of whole words of bytes."""
        made = [(n + 2 * self.padding - w) // s + 1
                for n, w, s in zip(self.size, self.window, self.strides)]
        made[1] -= made[1] % 4
        return made

    @property
    def arguments(self) -> dict[str, Any]:
        ends = [max((m - 1) * s + w - n - self.padding, 0)
                for n, w, s, m in zip(self.size, self.window, self.strides, self.made)]
        return dict(window_size=self.window, strides=self.strides,
                    start_padding=(self.padding,) * 2, end_padding=tuple(ends))


_POOLS = pytest.mark.parametrize("pool", [
    _Pool(op, *window) for op in ("max", "average") for window in (
        ((9, 16), (3, 3), (2, 2), 1), ((8, 16), (2, 2), (2, 2), 0), ((7, 8), (3, 2), (1, 1), 1),
        ((11, 16), (4, 2), (3, 4), 1))
], ids=lambda pool: f"{pool.op}-{pool.size}")


@contextmanager
def _forced(which: str) -> Iterator[None]:
    """Only kernels for planes, or only the general ones."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pooling, pooling_gradient, resample, resample_gradient):
            patch.setattr(module, "KERNELS", tuple(
                k for k in module.KERNELS if (k.name == "general") == (which == "general")))
        yield


@pytest.fixture
def exact(own: dml.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[dml.Device]:
    """A device whose units count as exact: kernels for planes compare floats."""
    real = builder.traits.of
    monkeypatch.setattr(builder.traits, "of", lambda a: replace(real(a), exact_units=True))
    device = dml.Device(own.adapter)
    yield device
    device.close()


def _tensor(device: dml.Device, values: np.ndarray, last: bool) -> dml.Tensor:
    if not last:
        return device.tensor(values)
    return device.tensor(np.ascontiguousarray(values.transpose(0, 2, 3, 1))).transpose((0, 3, 1, 2))


def _both(device: dml.Device, call: Callable[[], dml.Tensor], *kernels: str) -> list[np.ndarray]:
    """The results of the general kernels and of ``kernels``."""
    results = []
    for which in ("general", "planes"):
        device.compiled.clear()
        with _forced(which):
            results.append(call().numpy())
    names = {n for each in device.compiled.values() for n in each.variants}
    assert names == set(kernels) <= VARIANTS
    return results


def _special(x: np.ndarray) -> np.ndarray:
    """With numbers that comparisons may lose, in some channels."""
    x[0, 1, 2, 3], x[1, 1, 3, 3], x[1, 2] = np.nan, np.inf, -np.inf
    x[1, 2, 3, 4], x[1, 3] = 1, -0.0
    x[1, 3, ::2] = 0
    return x


def _skip_halves(data_type: str) -> None:
    if SWIFTSHADER and data_type == "float16":
        pytest.skip("SwiftShader rounds 9 to 9.016, so its units are not exact")


@_TYPES
@_LAYOUTS
@_POOLS
def test_pooling(
    pool: _Pool, last: bool, data_type: str, exact: dml.Device, rng: np.random.Generator
) -> None:
    _skip_halves(data_type)
    x, arguments = rng.integers(-9, 10, (2, 8, *pool.size)).astype(data_type), pool.arguments
    if pool.op == "max":
        x = _special(x)
    elif pool.padding:
        arguments["include_padding"] = 1
    given = _tensor(exact, x, last)
    out = _tensor(exact, np.zeros((2, 8, *pool.made), data_type), last)
    call = dml.max_pooling if pool.op == "max" else dml.average_pooling
    kernel = f"pooling_planes.{pool.op}.{'last' if last else 'first'}"
    if data_type == "float16" and not last:
        kernel = f"pooling_planes_halves.{pool.op}"
    results = _both(exact, lambda: call(given, out=out, **arguments), kernel)
    assert np.array_equal(*results, equal_nan=True)


@_TYPES
@_LAYOUTS
@pytest.mark.parametrize("size", [(24, 24), (64, 136)], ids=["whole", "in parts"])
@pytest.mark.parametrize("reduced", ["tree", "subgroups"])
def test_means_of_planes(
    reduced: str, size: tuple[int, int], last: bool, data_type: str, own: dml.Device,
    rng: np.random.Generator,
) -> None:
    """What GPUs compute, of 24 channels: not all lanes of a workgroup have one."""
    x = _tensor(own, rng.integers(-9, 10, (2, 24, *size)).astype(data_type), last)
    general = dml.average_pooling(x, window_size=size).numpy()
    kernel = f"pooling_means.{'last' if last else 'first'}.{reduced}"
    assert kernel in VARIANTS
    subgroup = own.target.traits.subgroup_size if reduced == "subgroups" else 1 << 10
    if own.target.library.find(*kernel.split(".")) is None or subgroup < 8:
        pytest.skip("needs shuffles in subgroups of 8")
    set_traits(own, device_class=DeviceClass.UNKNOWN, cores=64, subgroup_size=subgroup)
    own.compiled.clear()
    for _ in range(2):
        own.runtime.zeros._next = 0  # the second finds the count of parts as the first left it
        made = own.tensor(np.full((2, 24, 1, 1), 99, data_type))
        dml.average_pooling(x, window_size=size, out=made)
        assert np.array_equal(made.numpy(), general)
    (name, _), = own.time(lambda: dml.average_pooling(x, window_size=size, out=made))
    assert name == kernel


@pytest.mark.parametrize("padding, dilations", [((3, 0), (1, 1)), ((0, 2), (1, 1)),
                                                ((16, 0), (3, 1))], ids=str)
def test_a_window_of_the_planes_size_may_lie_beside_it(
    padding: tuple[int, int], dilations: tuple[int, int], own: dml.Device,
    rng: np.random.Generator,
) -> None:
    """It is not the mean of the plane."""
    x = own.tensor(rng.integers(-9, 10, (2, 8, 9, 11)).astype(np.float32))

    def pooled() -> np.ndarray:
        own.compiled.clear()
        return dml.average_pooling1(x, window_size=(9, 11), strides=(99, 99), dilations=dilations,
                                    start_padding=padding).numpy()

    general = pooled()
    set_traits(own, device_class=DeviceClass.UNKNOWN)
    assert np.array_equal(pooled(), general)
    assert abs(general - x.numpy().mean((2, 3), keepdims=True)).max() > 0.01


@_LAYOUTS
@pytest.mark.parametrize("strides, padding", [((2, 2), 1), ((1, 1), 1), ((2, 1), 1), ((3, 3), 2)],
                         ids=str)
def test_one_pass_down_strips(
    strides: tuple[int, int], padding: int, last: bool, exact: dml.Device,
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator,
) -> None:
    """Several strips of rows and blocks of columns, of few different numbers: many are equal."""
    _skip_halves("float16")
    monkeypatch.setattr(pooling_gradient, "_is_faster", lambda *_: True)
    pool = _Pool("max", (67, 24), (3, 3), strides, padding)
    if 8 % strides[1] and not last:
        pytest.skip("vectors do not consist of whole strides")
    x = rng.integers(-1, 2, (2, 8, *pool.size)).astype(np.float16)
    x[0, 1] *= np.float16(-6e-8)  # denormals and both zeros
    x[0, 2].view(np.uint16)[...] = rng.choice(
        np.array([0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7BFF, 0xFBFF], np.uint16), pool.size)
    dy = rng.integers(-9, 10, (2, 8, *pool.made)).astype(np.float16)
    given, image = _tensor(exact, dy, last), _tensor(exact, x, last)
    out = _tensor(exact, np.zeros(x.shape, np.float16), last)
    with _forced("planes"):
        made = dml.max_pooling_grad(image, given, dilations=(1, 1), out=out, **pool.arguments)
    names = {n for each in exact.compiled.values() for n in each.variants}
    kernel = "pairs" if strides == (2, 2) else "planes_halves"
    assert names == {f"pooling_grad_{kernel}.{'last' if last else 'first'}"}
    assert np.array_equal(made.numpy(), _max_gradient(x, dy, pool.strides, (pool.padding,) * 2))


@_LAYOUTS
def test_every_nan_is_the_largest(
    last: bool, exact: dml.Device, rng: np.random.Generator
) -> None:
    """Also one with a sign, by the general kernels."""
    _skip_halves("float16")
    pool = _Pool("max", (13, 16), (3, 3), (2, 2), 1)
    x = rng.choice(np.array([0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7BFF, 0x3C00], np.uint16),
                   (2, 8, *pool.size)).view(np.float16)
    dy = rng.integers(-9, 10, (2, 8, *pool.made)).astype(np.float16)
    given, image = _tensor(exact, dy, last), _tensor(exact, x, last)
    with _forced("general"):
        made = dml.max_pooling_grad(image, given, dilations=(1, 1), **pool.arguments)
    assert np.array_equal(made.numpy(), _max_gradient(x, dy, pool.strides, (pool.padding,) * 2))


def _max_gradient(
    x: np.ndarray, dy: np.ndarray, strides: tuple[int, int], starts: tuple[int, int]
) -> np.ndarray:
    """The first of the largest elements gets the gradient. NaN is the largest. Windows have 3 x 3
    elements, and gradients are added in the order of windows, in float32."""
    order = np.where(np.isnan(x), np.inf, np.clip(x.astype(np.float64), -1e9, 1e9))
    (h, w), (n, m), (a, b) = x.shape[2:], dy.shape[2:], strides
    inside = (..., slice(starts[0], starts[0] + h), slice(starts[1], starts[1] + w))
    # What lies beside the plane, after the windows of the last element, is dropped.
    big = [max((k - 1) * s + 3, size + start)
           for k, s, size, start in zip((n, m), strides, (h, w), starts)]
    padded = np.full((*x.shape[:2], *big), -np.inf)
    padded[inside] = order
    sums = np.zeros(padded.shape, np.float32)
    places = [(..., slice(i, i + (n - 1) * a + 1, a), slice(j, j + (m - 1) * b + 1, b))
              for i in range(3) for j in range(3)]
    winners = np.argmax([padded[p] for p in places], 0)
    for tap in range(8, -1, -1):  # an element is a lower one of later windows
        sums[places[tap]] += np.where(winners == tap, dy, 0)
    with np.errstate(over="ignore"):
        return sums[inside].astype(np.float16)


def _with_gaps(
    device: dml.Device, x: np.ndarray, last: bool, gaps: tuple[int, int, int]
) -> tuple[dml.Tensor, dml.Tensor]:
    """A tensor of more channels, rows and columns, and its part that is ``x``."""
    base = np.full((x.shape[0], *(n + gap for n, gap in zip(x.shape[1:], gaps))), 7, x.dtype)
    here = (slice(None), *(slice(n) for n in x.shape[1:]))
    base[here] = x
    whole = _tensor(device, base, last)
    return whole, whole[here]


@_LAYOUTS
@pytest.mark.parametrize("gaps", [False, True], ids=["packed", "gaps"])
@pytest.mark.parametrize(("size", "starts", "made", "rows"), [
    ((67, 24), (1, 1), (34, 12), 28), ((67, 24), (0, 0), (33, 12), 8),
    ((30, 16), (2, 2), (16, 10), 28), ((37, 24), (2, 1), (19, 14), 2),
    ((36, 40), (0, 2), (18, 20), 8), ((1, 8), (1, 1), (1, 4), 28), ((4, 8), (3, 4), (3, 6), 8)],
    ids=str)
def test_gradients_of_pairs_of_windows(
    size: tuple[int, int], starts: tuple[int, int], made: tuple[int, int], rows: int, gaps: bool,
    last: bool, exact: dml.Device, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator,
) -> None:
    """Sums of four are rounded in the order of windows, NaN and infinities win, -0 is 0."""
    _skip_halves("float16")
    monkeypatch.setattr(pooling_gradient, "_PAIRS_ROWS", (rows, rows))
    size = size[0], size[1] - last  # Rows of channels-last tensors need not be vectors.
    channels = 8 if last else 7
    x = rng.normal(0, 1, (2, channels, *size)).astype(np.float16)
    x[0, 1] = rng.choice([1, 0, -0.0, 6e-8, -6e-8], size)
    x[0, 2] = rng.choice([65504, -65504, 6e-8, 1, -np.inf], size)
    x[0, 3].view(np.uint16)[...] = rng.choice(
        np.array([0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7BFF, 0xFBFF], np.uint16), size)
    x[1, 1] = -np.inf
    x[1, 2][rng.random(size) < 0.02] = np.nan
    x[1, 3][rng.random(size) < 0.02] = np.inf
    x[1, 4] = np.nan
    dy = rng.normal(0, 1000, (2, channels, *made)).astype(np.float16)
    dy[rng.random(dy.shape) < 0.2] *= np.float16(1e-3)
    dy[rng.random(dy.shape) < 0.1] = -0.0
    dy[0, 0, 0, 0], dy[1, 5, :2, :2] = np.inf, 65504
    more = (8 if last else 1) * gaps, 1 * gaps, 8 * gaps
    given = _with_gaps(exact, dy, last, (more[0], 2 * gaps, 2 * gaps))[1]
    image = _with_gaps(exact, x, last, more)[1]
    whole, out = _with_gaps(exact, np.full_like(x, 7), last, more)
    ends = [max((m - 1) * 2 + 3 - n - start, 0) for m, n, start in zip(made, size, starts)]
    with _forced("planes"):
        result = dml.max_pooling_grad(
            image, given, window_size=(3, 3), strides=(2, 2), start_padding=starts,
            end_padding=ends, dilations=(1, 1), out=out).numpy()
    names = {n for each in exact.compiled.values() for n in each.variants}
    assert names == {f"pooling_grad_pairs.{'last' if last else 'first'}"}
    assert np.array_equal(result, _max_gradient(x, dy, (2, 2), starts), equal_nan=True)
    assert not np.signbit(result[result == 0]).any()
    assert (whole.numpy() == 7).sum() == whole.size - x.size + (result == 7).sum()


@pytest.mark.parametrize(("sizes", "most", "expected"), [
    ((32, 64, 112, 112), 1024, (28, 8, 448)), ((32, 64, 112, 112), 256, (28, 8, 256)),
    ((64, 256, 112, 112), 1024, (28, 8, 448)), ((32, 64, 56, 56), 1024, (8, 8, 384)),
    ((1, 64, 112, 112), 1024, (8, 8, 64)), ((32, 64, 1, 8), 128, (2, 8, 64))], ids=str)
def test_blocks_of_pairs(
    sizes: tuple[int, ...], most: int, expected: tuple[int, int, int]
) -> None:
    device = SimpleNamespace(
        cores=132, max_invocations=most, device_class=DeviceClass.NVIDIA_HOPPER)
    plan = cast(builder.PlanBuilder, SimpleNamespace(device=device))
    dx = TensorDesc(DataType.FLOAT16, sizes)
    assert pooling_gradient._blocks_of_pairs(plan, dx, "first", sizes[1]) == expected


@_TYPES
@_LAYOUTS
@_POOLS
def test_pooling_grad(
    pool: _Pool, last: bool, data_type: str, exact: dml.Device, rng: np.random.Generator
) -> None:
    _skip_halves(data_type)
    x = _special(rng.integers(-9, 10, (2, 8, *pool.size)).astype(data_type))
    # Multiples of all numbers of elements, so that sums are exact.
    dy = rng.integers(-9, 10, (2, 8, *pool.made)).astype(data_type) * np.array(72, data_type)
    given, image = _tensor(exact, dy, last), _tensor(exact, x, last)
    out = _tensor(exact, np.zeros(x.shape, data_type), last)

    def call() -> dml.Tensor:
        if pool.op == "max":
            return dml.max_pooling_grad(image, given, dilations=(1, 1), out=out, **pool.arguments)
        return dml.average_pooling_grad(
            given, include_padding=pool.padding, out=out, **pool.arguments)

    layout = "last" if last else "first"
    kernels = [f"pooling_grad_planes.{pool.op}.{layout}"]
    if pool.op == "max":
        kernels.append(f"pooling_planes.winner.{layout}")
        if (data_type == "float16" and max(pool.window) <= 3
                and (not last or max(pool.strides) == 1 or pool.window == (3, 3))):
            kernel = "pairs" if pool.window == (3, 3) else "planes_halves"
            kernels = [f"pooling_grad_{kernel}.{layout}"]
    results = _both(exact, call, *kernels)
    # A division may be 2.5 units off on a GPU. The sums themselves are exact.
    bound = 2.0**-21 * np.abs(results[1].astype(np.float32)).max()
    np.testing.assert_allclose(*results, rtol=0, atol=bound)


@_TYPES
@pytest.mark.parametrize(("last", "scale"), [(False, 2.0), (False, 4.0), (True, 2.0)])
def test_resample(
    last: bool, scale: float, data_type: str, own: dml.Device, rng: np.random.Generator
) -> None:
    x = _tensor(own, rng.integers(-9, 10, (2, 8, 5, 8)).astype(data_type), last)
    size = int(5 * scale), int(8 * scale)
    out = _tensor(own, np.zeros((2, 8, *size), data_type), last)
    results = _both(own, lambda: dml.resample(
        x, interpolation_mode="LINEAR", scales=(1, 1, scale, scale), out=out),
        f"resample_planes.{'last' if last else 'first'}")
    assert (results[0] == results[1]).all()  # weights are multiples of 1/8


@_TYPES
@pytest.mark.parametrize(("last", "scales"), [
    (False, (2.0, 2.0)), (False, (2.0, 4.0)), (True, (4.0, 2.0)), (True, (2.0, 2.0))], ids=str)
def test_resample_grad(
    last: bool, scales: tuple[float, float], data_type: str, own: dml.Device,
    rng: np.random.Generator,
) -> None:
    size = [int(n * s) for n, s in zip((5, 8), scales)]
    dy = _tensor(own, rng.integers(-9, 10, (2, 8, *size)).astype(data_type), last)
    out = _tensor(own, np.zeros((2, 8, 5, 8), data_type), last)
    results = _both(own, lambda: dml.resample_grad(
        dy, interpolation_mode=1, scales=(1, 1, *scales), input_pixel_offsets=(-0.5,) * 4,
        output_pixel_offsets=(0.5,) * 4, out=out),
        f"resample_grad_planes.{'last' if last else 'first'}")
    assert (results[0] == results[1]).all()  # weights are multiples of 1/64


@_TYPES
@_LAYOUTS
def test_regions(
    last: bool, data_type: str, own: dml.Device, rng: np.random.Generator
) -> None:
    """Channels that an invocation computes together are what each is alone."""
    x = rng.integers(-9, 10, (2, 16, 11, 13)).astype(data_type)
    lows = rng.uniform(-2, 6, (5, 2))
    rois = own.tensor(np.hstack([lows, lows + rng.uniform(1, 9, (5, 2))]).astype(data_type))
    batches = own.tensor(np.array([0, 1, 1, 0, 1], np.uint32))

    def aligned(x: np.ndarray) -> np.ndarray:
        out = _tensor(own, np.zeros((5, x.shape[1], 3, 4), data_type), last)
        return dml.roi_align(
            _tensor(own, x, last), rois, batches, reduction_function=2, interpolation_mode=1,
            spatial_scale_x=1.0, spatial_scale_y=0.75, out_of_bounds_input_value=0.5,
            minimum_samples_per_output=2, maximum_samples_per_output=3, out=out).numpy()

    together = aligned(x)
    for channel in range(x.shape[1]):
        assert (aligned(x[:, channel : channel + 1]) == together[:, channel : channel + 1]).all()
