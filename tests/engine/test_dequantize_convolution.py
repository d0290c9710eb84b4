"""Integer convolutions scale their sums on their own, with the same results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.operators.convolution import depthwise, tiles
from plans import checked, without_pipelines
from switches import long_pipelines
from test_convolution import TILES_OF_BYTES as _TILES
from test_convolution import EveryWork, _matrix_units, set_traits

SWITCH = "KOMPUTE_DML_DISABLE_PASSES"
UNFUSED = "dequantize_convolution,bias_fusion,activation_fusion,epilogue,elementwise_fusion"
SUM = "convolution_sum.scaled"
_BLOCKS = [k.name for k in depthwise.OF_BYTES]
VARIANTS = {SUM, "convolution_quantized_pointwise",
            *(f"{depthwise.BYTES}.floats.{block}.tail" for block in _BLOCKS),
            *(f"{tiles.UNITS}.i8.{tile}.tail" for tile in _TILES)}
"""Variants that these tests run, where they can run."""


def _last(x: Any) -> Any:
    return x.transpose(0, 3, 1, 2)


def _like(y: Any, x: Any) -> Any:
    """New memory in the layout of ``x``: channels last if these are."""
    n, c, h, w = y
    return x.device.empty(y) if x.desc.is_packed else _last(x.device.empty((n, h, w, c)))


class _Layer:
    """A quantized convolution as ONNX Runtime's tools write it."""

    def __init__(self, rng: np.random.Generator, sizes: tuple[int, ...], filters: int, taps: int,
                 groups: int = 1, by_channel: bool = True, last: bool = True) -> None:
        n, c, h, w = sizes
        self.groups, self.last = groups, last
        self.pad = taps // 2
        self.y = (n, filters, h, w)
        self.w = rng.integers(-128, 128, (filters, c // groups, taps, taps)).astype(np.int8)
        self.x = rng.integers(0, 256, (n, h, w, c) if last else sizes).astype(np.uint8)
        self.residual = rng.normal(0, 9, (n, h, w, filters) if last else self.y).astype(np.float32)
        self.of_w = rng.uniform(0.001, 0.01, (1, filters if by_channel else 1, 1, 1)).astype(
            np.float32)
        self.of_x = np.array([[[[0.0173]]]], np.float32)
        self.bias = rng.normal(0, 2, (1, filters, 1, 1)).astype(np.float32)
        self.zero = np.array([[[[117]]]], np.uint8)

    def build(self, end: str) -> Any:
        """``end``: the letters of a product of scales (p), a bias (b), GELU (g) and a residual
        (r)."""

        def made(x: Any, of_x: Any, zero: Any, residual: Any) -> Any:
            x, residual = (_last(t) if self.last else t for t in (x, residual))
            sums = x.device.empty(self.y, "int32") if not self.last else _last(
                x.device.empty((self.y[0], *self.y[2:], self.y[1]), "int32"))
            dml.convolution_integer(
                x, self.w, x_zero_point=zero, group_count=self.groups,
                start_padding=(self.pad,) * 2,
                end_padding=(self.pad,) * 2, out=sums)
            y, scale = _like(self.y, x), self.of_w
            dml.cast(sums, data_type="float32", out=y)
            if "p" in end:
                scale = dml.multiply(of_x.broadcast_to(scale.shape), scale)
            else:
                scale = x.device.constant(scale)
            steps = [lambda y, out: dml.multiply(y, scale.broadcast_to(self.y), out=out)]
            if "b" in end:
                bias = x.device.constant(self.bias)
                steps.append(lambda y, out: dml.add(y, bias.broadcast_to(self.y), out=out))
            if "g" in end:
                steps.append(lambda y, out: dml.activation_gelu(y, out=out))
            if "r" in end:
                steps.append(lambda y, out: dml.add(residual, y, out=out))
            for step in steps:
                out = _like(self.y, x)
                step(y, out)
                y = out
            return y.transpose(0, 2, 3, 1) if self.last else y

        return made

    def run(self, device: dml.Device, end: str, ranged: bool = False) -> tuple[Any, Any]:
        """``ranged``: the results are quantized by their range."""
        arrays = self.x, self.of_x, self.zero, self.residual
        with dml.Graph(device) as g:
            y = self.build(end)(*[g.input(a.shape, a.dtype) for a in arrays])
            run = g.compile([y, *dml.dynamic_quantize_linear(y)] if ranged else y)
        return run, run(*arrays)

    def compare(
        self, device: dml.Device, end: str, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[str, ...]:
        """The variants of the fused operator, whose bits are those of many."""
        fused, got = self.run(device, end)
        monkeypatch.setenv(SWITCH, UNFUSED)
        plain, expected = self.run(device, end)
        monkeypatch.delenv(SWITCH)
        assert fused.operators == ["CONVOLUTION_INTEGER_TO_FLOAT"]
        assert plain.operators[-len(end) - 1 :][0] in ("CAST", "ELEMENT_WISE_MULTIPLY")
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
        variants: tuple[str, ...] = fused.variants
        return variants


ENDS = ["", "p", "pb", "pbg", "pbr", pytest.param("pbgr", marks=long_pipelines)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("last", "by_channel"), [(True, True), (False, False)])
def test_without_matrix_units(
    end: str, last: bool, by_channel: bool, reused: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second dispatch scales the sums."""
    set_traits(reused, cooperative_matrices=())
    layer = _Layer(rng, (2, 20, 6, 7), 36, 3, by_channel=by_channel, last=last)
    names = layer.compare(reused, end, monkeypatch)
    assert names == ("convolution.i32.t64", SUM + ".tail" * ("r" in end))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("block", _BLOCKS)
def test_depthwise(
    end: str, block: str, reused: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = _Layer(rng, (2, 36, 6, 7), 36, 3, groups=36)
    with tuning.trial(EveryWork(block)):
        names = layer.compare(reused, end, monkeypatch)
    assert names == (f"{depthwise.BYTES}.floats.{block}" + ".tail" * ("r" in end),)


def _compare_ranges(
    layer: _Layer, device: dml.Device, end: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    """The variants of a convolution that finds the range of its results, which is that of all."""
    fused, got = layer.run(device, end, True)
    monkeypatch.setenv(SWITCH, "quantization_range")
    plain, expected = layer.run(device, end, True)
    monkeypatch.delenv(SWITCH)
    assert fused.operators == ["CONVOLUTION_INTEGER_TO_FLOAT", "ELEMENT_WISE_QUANTIZE_LINEAR"]
    assert plain.operators == ["CONVOLUTION_INTEGER_TO_FLOAT", "DYNAMIC_QUANTIZE_LINEAR"]
    for a, b in zip(got, expected):
        np.testing.assert_array_equal(a, b)
    again = fused(layer.x, layer.of_x, layer.zero, layer.residual)  # what was counted is 0 again
    for a, b in zip(got, again):
        np.testing.assert_array_equal(a, b)
    variants: tuple[str, ...] = fused.variants
    return variants


SPECIAL = [(), (np.nan, 3.0, np.nan), (-np.inf, 2.0), (np.nan, np.inf, -np.inf),
           (-50000.0, -60000.0), (50000.0,)]
"""Biases of channels."""


@pytest.mark.parametrize("bias", SPECIAL)
@pytest.mark.parametrize(("kind", "end"), [
    ("depthwise", "pb"), ("depthwise", "pbr"), ("sums", "pb")])
def test_ranges(
    kind: str, end: str, bias: tuple[float, ...], reused: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_traits(reused, cooperative_matrices=())
    groups = 36 if kind == "depthwise" else 1
    layer = _Layer(rng, (2, 36, 26, 17), 36, 3, groups)
    layer.bias[:, 5 : 5 + len(bias)] = np.reshape(bias, (1, -1, 1, 1))
    if len(bias) < 3 and bias:  # all numbers have one sign
        layer.bias[:] = bias[-1]
    names = _compare_ranges(layer, reused, end, monkeypatch)
    assert ("quantize_range" in names) == (kind == "sums")


@pytest.mark.parametrize(("filters", "last", "end"), [
    (72, True, "pb"), (72, True, "pbr"), (36, False, "pb"), (41, True, "pbg")])
@pytest.mark.parametrize(("tile", "bias"), [
    *((tile, SPECIAL[1]) for tile in _TILES), *(("t64", bias) for bias in SPECIAL)])
def test_ranges_on_matrix_units(
    filters: int, last: bool, end: str, tile: str, bias: tuple[float, ...], reused: dml.Device,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not reused.target.traits.multiplies(16, 16, 32, "i8", "i32"):
        pytest.skip("the device has no matrix units for bytes")
    layer = _Layer(rng, (2, 48, 26, 17), filters, 3, last=last)
    layer.bias[:, 5 : 5 + len(bias)] = np.reshape(bias, (1, -1, 1, 1))
    with tuning.trial(EveryWork(f"{tile}-1")):
        names = _compare_ranges(layer, reused, end, monkeypatch)
    assert "quantize_range" not in names


@pytest.mark.parametrize("end", ["", "pbg", "pbr"])
@pytest.mark.parametrize(("sizes", "filters", "taps", "last"), [
    ((2, 48, 6, 9), 72, 3, True), ((1, 32, 5, 16), 136, 1, True), ((2, 48, 6, 9), 36, 3, False)])
@pytest.mark.parametrize("tile", _TILES)
def test_on_matrix_units(
    end: str, tile: str, sizes: tuple[int, ...], filters: int, taps: int, last: bool,
    reused: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not reused.target.traits.multiplies(16, 16, 32, "i8", "i32"):
        pytest.skip("the device has no matrix units for bytes")
    layer = _Layer(rng, sizes, filters, taps, last=last)
    with tuning.trial(EveryWork(f"{tile}-1")):
        names = layer.compare(reused, end, monkeypatch)
    assert names[-1] == f"{tiles.UNITS}.i8.{tile}" + ".tail" * ("r" in end)


def test_splits_of_k_are_scaled_where_they_are_added_up(
    reused: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reused.target.traits.multiplies(16, 16, 32, "i8", "i32"):
        pytest.skip("the device has no matrix units for bytes")
    layer = _Layer(rng, (1, 192, 6, 9), 72, 3)
    with tuning.trial(EveryWork("t64-3")):
        names = layer.compare(reused, "pbr", monkeypatch)
    assert names[-2:] == (f"{tiles.UNITS}.i8.t64", f"{SUM}.tail")


def test_the_pass_is_left_out_by_its_name(
    reused: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "dequantize_convolution")
    run, _ = _Layer(rng, (1, 8, 3, 4), 8, 3).run(reused, "pb")
    assert run.operators[0] == "CONVOLUTION_INTEGER"


def test_what_is_read_elsewhere_or_scaled_by_position_stays(
    reused: dml.Device, rng: np.random.Generator
) -> None:
    x, w = (rng.integers(-9, 9, s).astype(np.int8) for s in ((1, 8, 5, 6), (8, 8, 1, 1)))
    scale = rng.random((1, 1, 1, 6)).astype(np.float32)

    def operators(build: Any) -> list[str]:
        with dml.Graph(reused) as g:
            return list(g.compile(build(dml.convolution_integer(
                g.input(x.shape, x.dtype), w))).operators)

    def scaled(sums: Any) -> Any:
        y = dml.cast(sums, data_type="float32")
        return dml.multiply(y, sums.device.constant(scale).broadcast_to(y.sizes))

    assert operators(scaled)[0] == "CONVOLUTION_INTEGER"
    assert operators(lambda sums: (sums, scaled(sums)))[0] == "CONVOLUTION_INTEGER"


@pytest.mark.parametrize("bias", [(), (np.nan, np.inf)])
@pytest.mark.parametrize(("images", "channels", "filters", "by_channel"), [
    (8, 96, 24, True), (8, 24, 100, False), (1, 384, 96, True), (19, 120, 33, True)])
def test_images_of_one_position_are_quantized_by_their_convolution(
    images: int, channels: int, filters: int, by_channel: bool, bias: tuple[float, ...],
    reused: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.normal(0, 3, (images, channels, 1, 1)).astype(np.float32)
    x.flat[3 : 3 + len(bias)] = bias
    w = rng.integers(-128, 128, (filters, channels, 1, 1)).astype(np.int8)
    of_w = rng.uniform(0.001, 0.003, (1, filters if by_channel else 1, 1, 1)).astype(np.float32)
    added = rng.random((1, filters, 1, 1)).astype(np.float32)

    def run() -> Any:
        with dml.Graph(reused) as g:
            q, scale, zero = dml.dynamic_quantize_linear(g.input(x.shape))
            y = dml.cast(dml.convolution_integer(q, w, x_zero_point=zero), data_type="float32")
            both = dml.multiply(scale.broadcast_to(of_w.shape), of_w)
            y = dml.multiply(y, both.broadcast_to(y.sizes))
            y = dml.add(y, g.constant(added).broadcast_to(y.sizes))
            made = g.compile(dml.activation_hard_sigmoid(y, alpha=0.2, beta=0.5))
        return made, made(x)

    fused, got = run()
    monkeypatch.setenv(SWITCH, "dynamic_quantize_convolution")
    plain, expected = run()
    assert fused.variants == ("convolution_quantized_pointwise",)
    assert plain.operators == ["DYNAMIC_QUANTIZE_LINEAR", "CONVOLUTION_INTEGER_TO_FLOAT"]
    np.testing.assert_array_equal(got, expected)
    assert np.unique(got).size > 2 or bias


def test_images_that_something_else_reads_are_quantized_before(reused: dml.Device) -> None:
    x, w = np.ones((2, 8, 1, 1), np.float32), np.ones((8, 8, 1, 1), np.int8)
    with dml.Graph(reused) as g:
        q, scale, zero = dml.dynamic_quantize_linear(g.input(x.shape))
        y = dml.cast(dml.convolution_integer(q, w, x_zero_point=zero), data_type="float32")
        run = g.compile([dml.multiply(y, scale.broadcast_to(y.sizes)), q])
    assert run.operators[0] == "DYNAMIC_QUANTIZE_LINEAR"


def _planned(device: dml.Device, layer: _Layer, end: str, ranged: bool) -> list[str]:
    """The variants that an H200 would run, whose operands fit them."""
    with dml.Graph(device) as g:
        arrays = layer.x, layer.of_x, layer.zero, layer.residual
        y = layer.build(end)(*[g.input(a.shape, a.dtype) for a in arrays])
        run = g.compile([y, *dml.dynamic_quantize_linear(y)] if ranged else y)
    for compiled, _ in run._plan._steps:
        checked(compiled.operator.desc, compiled.plan)
    return list(run.variants)


UNITS = f"{tiles.UNITS}.i8"


@pytest.mark.parametrize(("end", "ranged"), [
    ("", False), ("pbg", False), ("pbr", False), ("pb", True), ("pbr", True)])
@pytest.mark.parametrize(("kernel", "layer", "names"), [
    *((f"{tile}-1", ((2, 48, 6, 9), 72, 3), [f"{UNITS}.{tile}"]) for tile in _TILES),
    ("t64-1", ((2, 48, 6, 9), 36, 3, 1, False, False), [
        "activation_identity_tiles.b8", f"{UNITS}.t64"]),
    ("t64-1", ((2, 36, 6, 9), 41, 3), ["convolution_pack.b8", f"{UNITS}.t64"]),
    ("t64-3", ((1, 192, 6, 9), 72, 3), [f"{UNITS}.t64", SUM]),
    ("last1x1", ((2, 36, 6, 7), 36, 3, 36), [f"{depthwise.BYTES}.floats.last1x1"]),
])
def test_plans_for_matrix_units(
    end: str, ranged: bool, kernel: str, layer: tuple[Any, ...], names: list[str],
    reused: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words and bindings fit the shaders, with and without the passes. This needs no matrix
    units."""
    reused.target = _matrix_units()
    without_pipelines(monkeypatch)
    made = _Layer(rng, *layer)
    last = f"{names[-1]}.tail" if "r" in end else names[-1]
    found = ["quantize_linear.quantize"] if ranged else []
    if names[-1] == SUM and ranged:
        found = ["quantize_range", *found]
    with tuning.trial(EveryWork(kernel)):
        assert _planned(reused, made, end, ranged) == [*names[:-1], last, *found]
        monkeypatch.setenv(SWITCH, UNFUSED)
        plain = _planned(reused, made, end, ranged)
    unscaled = names[:-1] if names[-1] == SUM else [n.replace("floats", "sums") for n in names]
    assert plain[: len(unscaled)] == unscaled


@pytest.mark.parametrize(("most", "end", "kernel"), [
    (13, "pbr", f"{depthwise.BYTES}.floats.last1x1.tail"), (12, "pbr", f"{SUM}.tail"),
    (12, "pb", f"{depthwise.BYTES}.floats.last1x1"), (11, "pb", SUM)])
def test_devices_that_bind_few_buffers(
    most: int, end: str, kernel: str, own: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit counts the tail's tensor."""
    monkeypatch.setattr(own.runtime.library, "max_bindings", most)
    monkeypatch.setattr(own.runtime.library, "_found", {})  # what was found with more bindings
    own.target = replace(own.target, traits=replace(own.target.traits, max_bindings=most))
    with tuning.trial(EveryWork("last1x1")):
        names = _Layer(rng, (2, 36, 6, 7), 36, 3, groups=36).compare(own, end, monkeypatch)
    assert names[-1] == kernel
