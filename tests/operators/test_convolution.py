"""Convolutions: values that DirectML prints, and lowerings for matrix units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering import measured
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Plan, Target
from kompute_dml.operators.convolution import depthwise, ends, tiles
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.shader_library import sizes
from kompute_dml.runtime.traits import DeviceClass
from plans import checked, shaders_of
from switches import long_pipelines
from test_matrix_multiply_kernels import _library_of_everything


class EveryWork(dict[str, str]):
    """Forces one kernel for all work."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, key: str, default: str | None = None) -> str:  # type: ignore[override]
        return self.name


def with_figures(monkeypatch: pytest.MonkeyPatch, **others: dict[str, float]) -> None:
    """Some figures of shader variants are others."""
    known = measured.figures
    monkeypatch.setattr(measured, "figures", lambda kind, variant: {
        **known(kind, variant), **others.get(variant, {})})


def set_traits(device: dml.Device, **traits: object) -> None:
    """Lowerings take the device for one with these traits."""
    device.target = replace(device.target, traits=replace(device.target.traits, **traits))


def set_slow_barriers(device: dml.Device, slow: bool) -> None:
    """Whether a device offers the kernels without shared memory."""
    set_traits(device, slow_barriers=slow)


def without_units(device: dml.Device) -> None:
    """Where there are matrix units, convolutions of FLOAT16 and of bytes have no other kernels."""
    set_traits(device, cooperative_matrices=())


def test_values_that_directml_prints(device: dml.Device) -> None:
    """DxDispatch's examples: 3 x 3 numbers and a 2 x 2 diagonal, 3 x 3 x 3 ones and halves."""
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    y = dml.convolution(x, np.eye(2, dtype=np.float32).reshape(1, 1, 2, 2))
    assert y.numpy().tolist() == [[[[6, 8], [12, 14]]]]
    cube = dml.convolution(np.ones((1, 1, 3, 3, 3), np.float32),
                           np.full((1, 1, 2, 2, 2), 0.5, np.float32))
    assert cube.numpy().tolist() == np.full((1, 1, 2, 2, 2), 4).tolist()


def test_one_number_serves_all_axes_and_channels_may_come_last(device: dml.Device) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-4, 5, (2, 7, 8, 6)).astype(np.float32)  # N, H, W, C: exact sums
    w = rng.integers(-4, 5, (5, 3, 3, 6)).astype(np.float32)
    last = [dml.default_device().tensor(v).transpose(0, 3, 1, 2) for v in (x, w)]
    first = [np.ascontiguousarray(v.transpose(0, 3, 1, 2)) for v in (x, w)]
    a, b = (dml.convolution(*v, strides=2, start_padding=1, end_padding=(1, 1)).numpy()
            for v in (last, first))
    assert a.shape == (2, 5, 4, 4) and (a == b).all()


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_more_than_2_31_products_of_256_images(
    last: bool, device: dml.Device, rng: np.random.Generator
) -> None:
    """Of small whole numbers, whose sums are exact."""
    x = rng.integers(-2, 3, (256, 11, 11, 300)).astype(np.float32)
    w = rng.integers(-2, 3, (301, 300)).astype(np.float32)
    assert x.size * len(w) > 2**31
    images = device.tensor(x).transpose(0, 3, 1, 2)
    if not last:
        images = device.tensor(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    y = dml.convolution(images, device.tensor(w.reshape(301, 300, 1, 1)))
    assert (y.numpy() == (x @ w.T).transpose(0, 3, 1, 2)).all()


H200_MATRICES = tuple(
    CooperativeMatrix(16, 16, depth, of, of, total, total, "subgroup")
    for depth, of, total in ((16, "f16", "f32"), (32, "i8", "i32")))
TILES_OF_BYTES = [kernel.axes.partition(".")[2] for kernel in tiles.BYTES
                  if {"m": 16, "n": 16, "deep": 32, "lanes": 32}.items() <= sizes(
                      f"{tiles.UNITS}.{kernel.axes}").items()]
"""Those for such matrix units."""


def _matrix_units() -> Target:
    """An H200's matrix units, of which nobody knows where their elements lie."""
    every = _library_of_everything()
    if every.find("convolution_coopmat", "f16", "t64") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    target = target_of(every, replace(
        dml.default_device().adapter, cores=132, subgroup_size=32,
        max_shared_memory=48 << 10, cooperative_matrices=H200_MATRICES))
    return replace(target, traits=replace(
        target.traits, device_class=DeviceClass.UNKNOWN, slow_barriers=False, fragments_alike=False,
        slow_compiler=False))


def _plan(x: tuple[int, ...], w: tuple[int, ...], *, owned: bool = False,
          last: bool = False, stride: int = 1, data_type: str = "float16") -> Plan:
    """The plan for an H200's matrix units."""
    target = _matrix_units()

    def desc(*sizes: int, flags: dml.TensorFlags = dml.TensorFlags.NONE) -> dml.TensorDesc:
        _, c, h, width = sizes
        strides = (h * width * c, 1, width * c, c) if last else None
        return dml.TensorDesc(data_type, sizes, strides, flags=flags)

    flags = dml.TensorFlags.OWNED_BY_DML if owned else dml.TensorFlags.NONE
    described = dml.ConvolutionOperatorDesc(
        input_tensor=desc(*x), filter_tensor=desc(*w, flags=flags),
        output_tensor=desc(x[0], w[0], *(-(-n // stride) for n in x[2:])),
        mode=dml.ConvolutionMode.CROSS_CORRELATION,
        direction=dml.ConvolutionDirection.FORWARD, strides=(stride,) * 2, dilations=(1, 1),
        start_padding=(w[2] // 2,) * 2, end_padding=(w[2] // 2,) * 2, output_padding=(0, 0),
        group_count=x[1] // w[1])
    return checked(described, described.operator.lower(described, target))


def _names(plan: Plan) -> list[str]:
    return [d.variant.name for d in plan.execute]


def test_without_meta_commands_there_are_no_matrix_units(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "target", _matrix_units())
    x = dml.TensorDesc("float16", (256, 256))
    gemm = device.create_operator(dml.GemmOperatorDesc(
        a_tensor=x, b_tensor=x, output_tensor=x, trans_a=0, trans_b=0, alpha=1.0, beta=0.0))
    used = [any("coopmat" in v for v in device.compile_operator(gemm, flags).variants)
            for flags in (dml.ExecutionFlags.NONE, dml.ExecutionFlags.DISABLE_META_COMMANDS)]
    assert used == [True, False]


def test_matrix_units_get_channels_side_by_side() -> None:
    repack, shape = "activation_identity_tiles.b16", ((32, 128, 28, 28), (128, 128, 3, 3))
    big, = _names(_plan(*shape, last=True))
    assert big.startswith("convolution_coopmat.f16.t")
    assert _names(_plan(*shape)) == [repack, repack, big]
    owned = _plan(*shape, owned=True)
    assert _names(owned) == [repack, big] and owned.repacked == {"filter_tensor"}
    assert len(owned.initialize) == 1


def test_matrix_units_share_k_where_there_are_few_tiles() -> None:
    assert _names(_plan((1, 512, 7, 7), (512, 512, 3, 3), last=True)) == [
        "convolution_coopmat.f16.t64", "convolution_sum.float"]


@pytest.mark.parametrize("last", [False, True])
def test_neighbours_of_the_core_kernel_store_side_by_side(
    last: bool, reused: dml.Device, rng: np.random.Generator
) -> None:
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((2, 6, 7, 9), (20, 6, 3, 3)))
    out = reused.empty((2, 5, 7, 20)).transpose(0, 3, 1, 2) if last else reused.empty((2, 20, 5, 7))
    with tuning.trial(EveryWork("core")):
        expected = dml.convolution(reused.tensor(x), reused.tensor(w)).numpy()
        reused.compiled.clear()
        y = dml.convolution(reused.tensor(x), reused.tensor(w), out=out).numpy()
    (compiled,) = reused.compiled.values()
    assert compiled.plan.execute[0].spec["OUTPUT_ALONG_ROWS"] == (not last)
    assert (y == expected).all()


def test_depthwise_convolutions_are_no_products() -> None:
    shape = (32, 144, 56, 56), (144, 1, 3, 3)
    assert _names(_plan(*shape)) == ["convolution_depthwise_rows"]
    assert _names(_plan(*shape, last=True)) == ["convolution_depthwise.last2x4"]


def test_depthwise_convolutions_of_small_images_have_work_for_all_cores() -> None:
    few, = _plan((1, 960, 7, 7), (960, 1, 5, 5), last=True).execute
    assert few.variant.name == "convolution_depthwise.last1x1" and few.groups >= 20


@pytest.mark.parametrize(("data_type", "sizes", "taps", "stride", "rows"), [
    ("float16", (32, 384, 14, 14), 3, 1, 7), ("float32", (32, 144, 56, 56), 3, 1, 7),
    ("float32", (32, 96, 112, 112), 3, 2, 7), ("float32", (1, 144, 56, 56), 3, 1, 4),
    ("float32", (1, 144, 28, 28), 3, 1, None), ("float32", (32, 384, 14, 14), 3, 1, None),
    ("float16", (32, 384, 28, 28), 3, 2, None), ("float16", (32, 120, 28, 28), 5, 1, None),
    ("float16", (32, 960, 7, 7), 3, 1, None),
])
def test_depthwise_rows_are_chosen_where_they_are_faster(
    data_type: str, sizes: tuple[int, ...], taps: int, stride: int, rows: int | None
) -> None:
    one, = _plan(sizes, (sizes[1], 1, taps, taps), stride=stride, data_type=data_type).execute
    assert one.spec.get("ROWS") == rows
    assert one.variant.name == ("convolution_depthwise_rows" if rows
                                else "convolution_depthwise.first")


def _depthwise(device: dml.Device, x: dml.Tensor, w: np.ndarray, bias: np.ndarray | None = None,
               **window: Any) -> np.ndarray:
    """What another kernel computes: each group has an additional empty channel."""
    wide = np.stack([w, np.zeros_like(w)], 1).reshape(2 * len(w), *w.shape[1:])
    more = None if bias is None else device.tensor(np.repeat(bias, 2))
    y = dml.convolution(x, device.tensor(wide), more, group_count=len(w), **window)
    return y.numpy()[:, ::2]


@pytest.mark.parametrize(("kernel", "data_type", "sizes", "taps", "words", "window"), [
    # Borders in the first and the last chunk, chunks between them, and rows that end a block early.
    ("rows7", "float32", (2, 5, 23, 24), (3, 3), 4, dict(start_padding=1, end_padding=(1, 1))),
    ("rows7", "float16", (2, 3, 29, 40), (3, 3), 4, dict(start_padding=1, end_padding=(1, 1))),
    ("rows4", "float16", (1, 3, 13, 28), (5, 5), 2, dict(start_padding=2, end_padding=(2, 2))),
    ("rows4", "float16", (2, 2, 7, 14), (3, 5), 1, dict(start_padding=(0, 3), end_padding=(3, 1))),
    ("rows7", "float32", (3, 7, 11, 13), (3, 3), 1, dict(start_padding=1, end_padding=(1, 1))),
    # Strides
    ("rows7", "float32", (2, 3, 31, 24), (3, 3), 4,
     dict(start_padding=(1, 0), end_padding=(0, 1), strides=2)),
    ("rows4", "float16", (1, 2, 30, 32), (3, 3), 4,
     dict(start_padding=(0, 1), end_padding=(1, 0), strides=2)),
    ("rows7", "float16", (1, 2, 17, 12), (5, 4), 2,
     dict(start_padding=(4, 1), end_padding=(0, 1), strides=(1, 2))),
    ("rows4", "float32", (1, 2, 17, 8), (2, 1), 4, dict(end_padding=(1, 0), strides=(2, 1))),
    # One pixel, a filter past the image, padding past the filter, and a mirrored filter
    ("rows4", "float32", (1, 2, 1, 1), (1, 1), 1, {}),
    ("rows4", "float32", (1, 2, 1, 1), (3, 3), 1, dict(start_padding=1, end_padding=(1, 1))),
    ("rows7", "float16", (2, 3, 2, 8), (5, 5), 4, dict(start_padding=2, end_padding=(3, 2))),
    ("rows7", "float32", (1, 2, 3, 4), (2, 3), 4, dict(start_padding=(5, 7), end_padding=(9, 7))),
    ("rows4", "float16", (1, 3, 9, 16), (3, 2), 4,
     dict(start_padding=(1, 9), end_padding=(1, 8), mode=dml.ConvolutionMode.CONVOLUTION)),
])
def test_depthwise_rows_compute_the_same(
    kernel: str, data_type: str, sizes: tuple[int, ...], taps: tuple[int, int], words: int,
    window: dict[str, Any], reused: dml.Device, rng: np.random.Generator,
) -> None:
    channels = sizes[1]
    x, w = (rng.integers(-4, 5, s).astype(data_type) for s in (sizes, (channels, 1, *taps)))
    bias = rng.integers(-9, 9, channels).astype(data_type)
    activation = dml.ActivationReluOperatorDesc()
    plain = _depthwise(reused, reused.tensor(x), w, **window)
    ended = _depthwise(reused, reused.tensor(x), w, bias, fused_activation=activation, **window)
    reused.compiled.clear()
    given, each = reused.tensor(x), reused.tensor(w)
    with tuning.trial(EveryWork(kernel)):
        first = dml.convolution(given, each, group_count=channels, **window).numpy()
        second = dml.convolution(given, each, reused.tensor(bias), group_count=channels,
                                 fused_activation=activation, **window).numpy()
    assert (first == plain).all() and (second == ended).all()
    for compiled in reused.compiled.values():
        (one,) = compiled.plan.execute
        assert one.variant.name == "convolution_depthwise_rows"
        assert (one.spec["ROWS"], one.spec["WORDS"]) == (int(kernel[4:]), words)


def test_depthwise_rows_of_a_larger_tensor(reused: dml.Device, rng: np.random.Generator) -> None:
    """Strides between rows, channels and batches, a batch that is repeated, and no byte is written
    outside of the output."""
    x = reused.tensor(rng.integers(-4, 5, (1, 3, 9, 24)).astype(np.float16))
    given = x[:, :, :7, :16].broadcast_to((2, 3, 7, 16))
    w = rng.integers(-4, 5, (3, 1, 3, 3)).astype(np.float16)
    window: dict[str, Any] = dict(start_padding=1, end_padding=(1, 1))
    expected = _depthwise(reused, given, w, **window)
    whole = reused.tensor(np.full((2, 5, 9, 32), 7, np.float16))
    reused.compiled.clear()
    with tuning.trial(EveryWork("rows4")):
        dml.convolution(given, reused.tensor(w), group_count=3, out=whole[:, :3, :7, :16], **window)
    assert {n for c in reused.compiled.values() for n in c.variants} == {
        "convolution_depthwise_rows"}
    y = whole.numpy()
    assert (y[:, :3, :7, :16] == expected).all()
    y[:, :3, :7, :16] = 7
    assert (y == 7).all()


@pytest.mark.parametrize(("kernel", "data_type", "dilations"), [
    ("first", "float32", (1, 2)), ("first", "float16", (1, 2)), ("last1x4", "float32", (1, 2)),
    ("last1x8", "float16", (1, 2)), ("last2x4", "float16", (1, 2)),
    ("last4x2", "float32", (1, 1)), ("last1x1", "float16", (1, 1)),  # several rows read early
])
def test_depthwise_kernels_compute_the_same(
    kernel: str, data_type: str, dilations: tuple[int, int], reused: dml.Device,
    rng: np.random.Generator,
) -> None:
    n, c, h, width = 2, 20 if kernel == "last2x4" else 24, 11, 14
    x, w = (rng.integers(-4, 5, sizes).astype(data_type)
            for sizes in ((n, c, h, width), (c, 1, 3, 5)))
    window = dict(strides=(2, 1), dilations=dilations, start_padding=(1, 3), end_padding=(0, 5))
    expected = _depthwise(reused, reused.tensor(x), w, **window)
    given = reused.tensor(x)
    if kernel != "first":
        given = reused.tensor(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    out = reused.empty(expected.shape, data_type)
    if kernel != "first":
        m = expected.shape
        out = reused.empty((m[0], m[2], m[3], m[1]), data_type).transpose(0, 3, 1, 2)
    reused.compiled.clear()
    with tuning.trial(EveryWork(kernel)):
        y = dml.convolution(given, reused.tensor(w), group_count=c, **window, out=out).numpy()
    names = {n for each in reused.compiled.values() for n in each.variants}
    assert (y == expected).all() and names == {f"convolution_depthwise.{kernel}"}


@pytest.mark.parametrize(("kernel", "data_type", "last"), [
    ("t128-1", "float32", 1), ("t128x64-2", "float16", 0), ("t64-2", "float32", 0),
    ("t64-1", "float16", 1), ("t64-2", "float32", 3),
    pytest.param("t16-1", "float32", 0, marks=long_pipelines),
    pytest.param("t8-1", "float16", 1, marks=long_pipelines),
])
def test_lines_of_channels_compute_the_same(
    kernel: str, data_type: str, last: int, reused: dml.Device, rng: np.random.Generator
) -> None:
    """Channels that do not fill a vector, groups, taps outside, strides, dilations, splits of K.
    ``last``: channels lie together, in the output among so many times as many."""
    x, w = (rng.integers(-4, 5, sizes).astype(data_type)
            for sizes in ((2, 44, 13, 11), (140, 22, 3, 2)))
    window = dict(strides=(2, 1), dilations=(1, 3), start_padding=(2, 1), end_padding=(1, 2),
                  group_count=2, fused_activation=dml.ActivationReluOperatorDesc())
    bias = rng.integers(-9, 9, 140).astype(data_type)
    shader = "blocks" if kernel in ("t8-1", "t16-1") else "lines"
    set_slow_barriers(reused, shader == "blocks")
    without_units(reused)
    with tuning.trial(EveryWork("core")):
        expected = dml.convolution(reused.tensor(x), reused.tensor(w), reused.tensor(bias),
                                   **window).numpy()
    given, out = reused.tensor(x), reused.empty(expected.shape, data_type)
    if last:
        given = reused.tensor(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
        n, c, h, width = expected.shape
        out = reused.empty((n, h, width, last * c), data_type).transpose(0, 3, 1, 2)[:, -c:]
    reused.compiled.clear()
    with tuning.trial(EveryWork(kernel)):
        y = dml.convolution(given, reused.tensor(w), reused.tensor(bias), **window, out=out).numpy()
    names = {n for each in reused.compiled.values() for n in each.variants}
    assert (y == expected).all() and f"convolution_{shader}.{kernel[:-2]}" in names


@pytest.mark.parametrize("kernel", [
    "lines.t64", pytest.param("blocks.t8", marks=long_pipelines)])
@pytest.mark.parametrize("data_type, channels", [("float16", 3), ("float32", 1)])
def test_few_channels_share_vectors_with_their_neighbours(
    kernel: str, data_type: str, channels: int, reused: dml.Device, rng: np.random.Generator
) -> None:
    x, w = (rng.integers(-4, 5, sizes).astype(data_type)
            for sizes in ((2, channels, 11, 14), (20, channels, 3, 7)))
    window = dict(strides=(1, 2), dilations=(2, 2), start_padding=(1, 5), end_padding=(2, 8))
    results = []
    set_slow_barriers(reused, kernel == "blocks.t8")
    without_units(reused)
    for name in ("core", kernel.partition(".")[2] + "-1"):
        reused.compiled.clear()
        with tuning.trial(EveryWork(name)):
            results.append(dml.convolution(reused.tensor(x), reused.tensor(w), **window).numpy())
    names = {n for each in reused.compiled.values() for n in each.variants}
    assert (results[0] == results[1]).all() and f"convolution_{kernel}" in names


@pytest.mark.parametrize("kernel", [
    "t64-1", "t64-2", pytest.param("t8-1", marks=long_pipelines)])
def test_transposed_convolutions_store_channels_together(
    kernel: str, reused: dml.Device, rng: np.random.Generator
) -> None:
    x, w = (rng.integers(-4, 5, sizes).astype("float32")
            for sizes in ((2, 32, 5, 7), (32, 20, 4, 4)))
    window = dict(strides=(2, 2), start_padding=(1, 2), end_padding=(1, 0), direction=1)
    set_slow_barriers(reused, kernel == "t8-1")
    results = []
    for name in ("core", kernel):
        reused.compiled.clear()
        with tuning.trial(EveryWork(name)):
            results.append(dml.convolution(reused.tensor(x), reused.tensor(w), **window).numpy())
    names = {n for each in reused.compiled.values() for n in each.variants}
    assert (results[0] == results[1]).all() and "activation_identity_tiles.b32" in names


_WIDE_TILES = {"convolution.f32.t128", "convolution.i32.t128"}
"""Variants that a device does not choose for few tiles. The next test runs them."""
VARIANTS = _WIDE_TILES | shaders_of((*depthwise.OF_FLOATS, *tiles.OF_LINES, *tiles.OF_BLOCKS))
"""The others are those that the tests above run on any device."""


@long_pipelines
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_wide_tiles_compute_the_same(
    kind: str, reused: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = (rng.integers(-9, 9, sizes).astype(kind) for sizes in ((2, 5, 17, 13), (130, 5, 3, 3)))
    call = dml.convolution if kind == "float32" else dml.convolution_integer
    device = dml.Device(reused.adapter)
    for each in (reused, device):
        without_units(each)
    with tuning.trial(EveryWork("core")):
        narrow = call(reused.tensor(x), reused.tensor(w), start_padding=1, end_padding=1).numpy()
        monkeypatch.setattr(ends, "tile_of", lambda p, c: 128)
        y = call(device.tensor(x), device.tensor(w), start_padding=1, end_padding=1)
    names = {n for c in device.compiled.values() for n in c.variants}
    assert (y.numpy() == narrow).all() and names & _WIDE_TILES  # sums of small whole numbers
    device.close()
