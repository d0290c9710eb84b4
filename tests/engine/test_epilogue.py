"""Elementwise operators become the end of the kernel before them, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.graph.passes import epilogue
from kompute_dml.lowering.kernel import explained
from kompute_dml.operators.convolution import (
    im2col,
    packed_filter,
    pointwise,
    resident_filter,
    tiles,
)
from kompute_dml.operators.matrix_multiply import float_kernels
from kompute_dml.runtime.traits import DeviceClass
from plans import checked, shaders_of
from switches import long_pipelines
from test_convolution import EveryWork, _matrix_units, set_slow_barriers, set_traits
from test_packed_filters import _convolved

Run = tuple[tuple[str, ...], np.ndarray]
Layer = Callable[..., Any]


def _run(own: dml.Device, build: Layer, *arrays: np.ndarray) -> Run:
    with dml.Graph(own) as g:
        run = g.compile(build(*[g.input(a.shape, a.dtype) for a in arrays]))
    return run.variants, run(*arrays)


def _tail(y: Any, r: Any) -> Any:
    """Three steps with a number, a result that is read twice, and a tensor on the left. If ``r`` is
    channels-last, so is the result."""
    product = dml.multiply(dml.max(y, _like(y, 0.25)), y)
    if r.desc.is_packed:
        return dml.subtract(r, product)
    n, c, h, w = r.sizes
    made = r.device.empty((n, h, w, c), r.dtype)
    dml.subtract(r, product, out=_last(made))
    return made


def _like(y: Any, number: float) -> Any:
    graph = y.device
    return graph.constant(np.full((1,) * len(y.sizes), number, y.dtype)).broadcast_to(y.sizes)


def _last(x: Any) -> Any:
    return x.transpose(0, 3, 1, 2)


def _depthwise_last(x: Any, w: Any) -> Any:
    n, h, width, c = x.sizes
    out = x.device.empty((n, h - 2, width - 2, c), x.dtype)
    return dml.convolution(_last(x), w, group_count=c, out=_last(out))


def _grouped(count: int) -> Layer:
    return lambda x, w: dml.convolution(x, w, group_count=count)


def _transposed(x: Any, w: Any) -> Any:
    return dml.convolution(x, w, strides=2, direction=1)


def _reduced(function: str) -> Layer:
    return lambda x: dml.reduce(x, axes=(1,), function=function)


def _normalized(x: Any) -> Any:
    return dml.mean_variance_normalization1(x, axes=(1,), epsilon=1e-5)


def _batch(x: Any, *parameters: Any) -> Any:
    return dml.batch_normalization(x, *parameters, epsilon=0.5)


IMAGE = (2, 40, 9, 8), (36, 40, 3, 3)
KERNELS: dict[str, tuple[str, Layer, tuple[tuple[int, ...], ...]]] = {
    "gemm.t64": ("gemm-t64", dml.gemm, ((70, 40), (40, 68))),
    "gemm_blocks.t64": ("gemm_blocks-t64", dml.gemm, ((70, 40), (40, 66))),
    "gemm_blocks.t32": ("gemm_blocks-t32", dml.gemm, ((70, 40), (40, 66))),
    "gemm_few_rows.n_contiguous.r8": (
        "gemm_few_rows-n_contiguous-r8-split", dml.gemm, ((7, 1031), (1031, 264))),
    "gemm_short.t512": ("gemm_short-t512", dml.gemm, ((7, 13), (13, 520))),
    "convolution.f32.t64": ("core", dml.convolution, IMAGE),
    "convolution_lines.t64": ("t64-1", dml.convolution, IMAGE),
    "convolution_sum.float": ("t64-2", dml.convolution, IMAGE),
    "convolution_blocks.t8": ("t8-1", dml.convolution, IMAGE),
    "convolution_depthwise.first": ("", _grouped(40), ((2, 40, 9, 8), (40, 1, 3, 3))),
    "convolution_depthwise_rows": ("rows4", _grouped(40), ((2, 40, 9, 10), (40, 1, 3, 3))),
    "convolution_depthwise.last2x4": (
        "last2x4", _depthwise_last, ((2, 9, 11, 40), (40, 1, 3, 3))),
    "convolution_direct": ("", _grouped(20), ((2, 40, 9, 8), (40, 2, 3, 3))),
    "reduction.float": ("", _reduced("AVERAGE"), ((6, 300, 5),)),
    "reduction.exponential": ("", _reduced("LOG_SUM_EXP"), ((6, 300, 5),)),
    "reduction.extreme": ("", _reduced("MAX"), ((6, 300, 5),)),
    "normalize_rows.tree": ("", _normalized, ((6, 300),)),
    "batch_normalization": ("", _batch, ((2, 5, 7), *[(1, 5, 1)] * 4)),
}
"""By the variant, without ``.tail``: the kernel to force, the operator, and the sizes."""
TAILED = {name.partition(".")[0] for name in KERNELS}
"""Shaders whose variants with a tail run here. Their other tails come from the same lines."""


@pytest.mark.parametrize("variant, data_type", [
    pytest.param(v, t, marks=() if v in ("batch_normalization", "reduction.extreme")
                 else long_pipelines)
    for v in KERNELS for t in ("float32", "float16")
    if t == "float32" or v in ("gemm.t64", "convolution_lines.t64", "reduction.float",
                               "convolution_depthwise.last2x4", "convolution_depthwise_rows",
                               "normalize_rows.tree")])
def test_a_tail_gives_the_same_bits(
    variant: str, data_type: str, own: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with FLOAT16: results are rounded between the steps."""
    forced, layer, sizes = KERNELS[variant]
    arrays = [rng.normal(0, 1, s).astype(data_type) for s in sizes]
    set_slow_barriers(own, "blocks" in variant)
    set_traits(own, slow_compiler=variant == "gemm_blocks.t32")
    # Every device then runs the named kernel, alone: no matrix units, subgroups or parts of a sum.
    set_traits(own, device_class=DeviceClass.CPU, cooperative_matrices=())
    with tuning.trial(EveryWork(forced)):
        shape = _run(own, layer, *arrays)[1].shape
        residual = rng.normal(0, 1, shape).astype(data_type)
        last = "last" in variant  # the layout of the output
        given = np.ascontiguousarray(residual.transpose(0, 2, 3, 1)) if last else residual

        def build(*xs: Any) -> Any:
            return _tail(layer(*xs[:-1]), _last(xs[-1]) if last else xs[-1])

        fused = _run(own, build, *arrays, given)
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "epilogue")
        plain = _run(own, build, *arrays, given)
    assert fused[0] == (*plain[0][:-2], f"{variant}.tail")
    assert plain[0][-2:] == (variant, "elementwise_chain")
    np.testing.assert_array_equal(fused[1].view(f"u{fused[1].itemsize}"),
                                  plain[1].view(f"u{plain[1].itemsize}"))


IMAGE_OF = {"x": (2, 8, 6, 5), "w": (4, 8, 3, 3), "p": (1, 8, 1, 1)}
KINDS: dict[str, Layer] = {
    "CONVOLUTION": lambda x, w, p: dml.convolution(x, w),
    "GEMM": lambda x, w, p: dml.gemm(x, x, trans_b=1),
    "REDUCE": lambda x, w, p: dml.reduce(x, axes=(1,), function="SUM"),
    "BATCH_NORMALIZATION": lambda x, w, p: dml.batch_normalization(x, p, p, p, p),
    "LP_NORMALIZATION": lambda x, w, p: dml.lp_normalization(x, axis=1),
    "MEAN_VARIANCE_NORMALIZATION": lambda x, w, p: dml.mean_variance_normalization(x),
    "MEAN_VARIANCE_NORMALIZATION1": lambda x, w, p: dml.mean_variance_normalization1(x, axes=(1,)),
    "MEAN_VARIANCE_NORMALIZATION2": lambda x, w, p: dml.mean_variance_normalization2(x, axes=(1,)),
    "ACTIVATION_SOFTMAX": lambda x, w, p: dml.activation_softmax(x.reshape(96, 5)),
    "ACTIVATION_SOFTMAX1": lambda x, w, p: dml.activation_softmax1(x),
    "ACTIVATION_LOG_SOFTMAX": lambda x, w, p: dml.activation_log_softmax(x.reshape(96, 5)),
    "ACTIVATION_LOG_SOFTMAX1": lambda x, w, p: dml.activation_log_softmax1(x),
}


def test_every_operator_with_a_tail_has_it_in_its_kernel(own: dml.Device) -> None:
    """test_dequantize_convolution.py and test_grouped.py have the other ones."""
    assert {*KINDS, "CONVOLUTION_INTEGER_TO_FLOAT", "GROUPED_GEMM"} == {*epilogue.KINDS}
    for name, build in KINDS.items():
        with dml.Graph(own) as g:
            y = build(*[g.input(s, name=n) for n, s in IMAGE_OF.items()])
            run = g.compile(dml.abs(y))
        assert run.operators == [name] and run.variants[-1].endswith(".tail"), name


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_a_tail_of_contiguous_channels_reads_vectors(
    data_type: str, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, r = (rng.normal(0, 1, s).astype(data_type)
               for s in ((2, 5, 7, 40), (36, 40, 3, 3), (2, 3, 5, 36)))

    def build(x: Any, w: Any, r: Any) -> Any:
        made = x.device.empty(r.sizes, x.dtype)
        return _tail(dml.convolution(_last(x), w, out=_last(made)), _last(r))

    set_slow_barriers(own, False)
    with tuning.trial(EveryWork("t128-1")):
        fused = _run(own, build, x, w, r)
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "epilogue")
        plain = _run(own, build, x, w, r)
    assert fused[0][-1].endswith(".t128.tail")  # on matrix units where the device has them
    np.testing.assert_array_equal(fused[1], plain[1])


def test_large_tiles_have_no_tail_of_single_elements(
    own: dml.Device, rng: np.random.Generator
) -> None:
    """Registers do not hold the sums of a t128 if a tail is computed for each on its own."""
    x, w, r = (rng.normal(0, 1, s).astype(np.float32) for s in (*IMAGE, (2, 36, 7, 6)))
    set_slow_barriers(own, False)
    with tuning.trial(EveryWork("t128-1")) as trial:
        _run(own, lambda x, w, r: dml.convolution(x, w) + r, x, w, r)
    offered = [names for work, names in trial.asked.items() if work.startswith("convolution")]
    assert offered and not any("t128-1" in names for names in offered)
    assert any("t128-2" in names for names in offered)


@long_pipelines
def test_a_tail_of_a_reduction_in_parts(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second dispatch has the tail."""
    own.target = replace(own.target, traits=replace(own.target.traits,
                                                    device_class=DeviceClass.UNKNOWN))
    x, r = (rng.normal(0, 1, s).astype(np.float32) for s in ((2, 40000), (2, 1)))

    def build(x: Any, r: Any) -> Any:
        return dml.sqrt(dml.abs(dml.reduce(x, axes=(1,), function="SUM") + r))

    fused = _run(own, build, x, r)
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "epilogue")
    plain = _run(own, build, x, r)
    assert fused[0] == ("reduction.float.tail",) * 2 and plain[0][:2] == ("reduction.float",) * 2
    np.testing.assert_array_equal(fused[1], plain[1])


def test_a_tail_of_rows_that_are_read_in_vectors(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of a vector has its own element of the tail's tensor."""
    x, r = (rng.normal(0, 1, s).astype(np.float32) for s in ((2, 70, 64), (2, 1, 64)))

    def build(x: Any, r: Any) -> Any:
        return _tail(dml.reduce(x, axes=(1,), function="AVERAGE"), r)

    fused = _run(own, build, x, r)
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "epilogue")
    plain = _run(own, build, x, r)
    assert fused[0] == ("reduction.float.tail",)
    np.testing.assert_array_equal(fused[1], plain[1])


def test_a_transposed_convolution_keeps_the_layout_of_its_tail(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a tail it stores channels-last, and copies that."""
    x, w, r = (rng.normal(0, 1, s).astype(np.float32)
               for s in ((2, 32, 5, 7), (32, 20, 4, 4), (2, 20, 12, 16)))

    def build(x: Any, w: Any, r: Any) -> Any:
        return dml.convolution(x, w, strides=2, direction=1) + r

    with tuning.trial(EveryWork("t64-1")):
        fused = _run(own, build, x, w, r)
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "epilogue")
        plain = _run(own, build, x, w, r)
    assert fused[0][-1] == "convolution_lines.t64.tail"
    assert "activation_identity_tiles.b32" in plain[0]
    np.testing.assert_array_equal(fused[1], plain[1])


X, W = (16, 24), (24, 16)
LEFT: dict[str, tuple[Layer, tuple[tuple[int, ...], ...]]] = {
    "a tensor that is repeated": (lambda x, w, r: dml.gemm(x, w, fused_activation=_RELU) * r,
                                  (X, W, (1, 16))),
    "a tensor of another layout": (
        lambda x, w, r: dml.gemm(x, w, fused_activation=_RELU) * r.transpose(1, 0),
        (X, W, (16, 16))),
    "an output of another layout": (
        lambda x, w: dml.exp(dml.gemm(x, w), out=x.device.empty((16, 16)).transpose(1, 0)), (X, W)),
    "two tensors": (lambda x, w, r, s: dml.gemm(x, w, fused_activation=_RELU) * r + s,
                    (X, W, (16, 16), (16, 16))),
    "a softmax that a product fuses": (
        lambda x, w: dml.exp(dml.gemm(x, w, fused_activation=_SOFTMAX)), (X, W)),
    "an addend and a tensor": (
        lambda x, y, r: dml.mean_variance_normalization1(x + y, axes=(1,), epsilon=1e-5) * r,
        (X, X, X)),
    "more than four steps": (
        lambda x, w: dml.exp(dml.abs(dml.exp(dml.sqrt(dml.abs(dml.gemm(x, w)))))), (X, W)),
    "what else reads the product": (
        lambda x, w: (dml.exp(p := dml.gemm(x, w)), dml.activation_softmax1(p)), (X, W)),
}
_RELU = dml.ActivationReluOperatorDesc()
_SOFTMAX = dml.ActivationSoftmaxOperatorDesc(input_tensor=None, output_tensor=None)


@pytest.mark.parametrize("what", LEFT)
def test_what_no_tail_takes_is_left(what: str, own: dml.Device) -> None:
    build, sizes = LEFT[what]
    with dml.Graph(own) as g:
        run = g.compile(build(*[g.input(s) for s in sizes]))
    assert not any(v.endswith(".tail") for v in run.variants), run.variants
    assert any(v.startswith(("elementwise", "activation")) for v in run.variants)


def test_tails_of_matrix_units(own: dml.Device) -> None:
    """Words and bindings fit the shaders. This needs no device with matrix units."""
    own.target = _matrix_units()
    half = "float16"
    with dml.Graph(own) as g:
        x, r = g.input((32, 28, 28, 64), half), g.input((32, 28, 28, 96), half)
        y = g.empty((32, 28, 28, 96), half)
        p = g.empty((32, 28, 28, 96), half)
        dml.convolution(_last(x), g.input((96, 64, 3, 3), half), start_padding=1, end_padding=1,
                        out=_last(p))
        dml.activation_relu(_last(p) + _last(r), out=_last(y))
        image, thin = g.input((32, 64, 64, 3), half), g.input((32, 28, 28, 64), half)
        first, point = g.empty((32, 32, 32, 64), half), g.empty((32, 28, 28, 64), half)
        kept = []
        for given, filter_, made, options in (
            (image, (64, 3, 7, 7), first, dict(strides=2, start_padding=3, end_padding=2)),
            (thin, (64, 64, 1, 1), point, {}),
        ):
            sums = g.empty(made.sizes, half)
            dml.convolution(_last(given), g.input(filter_, half), out=_last(sums), **options)
            dml.activation_relu(_last(sums) + _last(g.input(made.sizes, half)), out=_last(made))
            kept.append(made)
        a, b = g.input((1024, 256), half), g.input((256, 512), half)
        z = dml.activation_sigmoid(a @ b) * g.input((1024, 512), half)
        run = g.compile([y, z, *kept])
    found = {v.partition(".")[0] for v in run.variants if v.endswith(".tail")}
    assert found == {"convolution_coopmat", "convolution_resident_coopmat",
                     "convolution_im2col_coopmat", "gemm_coopmat"}, run.variants
    for compiled, _ in run._plan._steps:
        checked(compiled.operator.desc, compiled.plan)


# Matrix units


def _layer(x: Any, w: Any) -> Any:
    """A convolution from channels-last to channels-last."""
    n, h, width, _ = x.sizes
    y = x.device.empty((n, h, width, w.sizes[0]), x.dtype)
    ends = w.sizes[-1] // 2
    return dml.convolution(_last(x), w, start_padding=ends, end_padding=ends, out=_last(y))


UNITS: dict[str, tuple[Layer, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "gemm": (dml.gemm, ((200, 136), (136, 264))),
    "gemm of 16 rows": (dml.gemm, ((16, 136), (136, 264))),
    "gemm of 7 rows": (dml.gemm, ((7, 136), (136, 264))),
    "convolution": (_layer, ((2, 9, 12, 40), (136, 40, 3, 3))),
    "convolution of one tap": (_layer, ((2, 9, 12, 64), (64, 64, 1, 1))),
    "convolution of few channels": (_layer, ((2, 9, 12, 3), (64, 3, 7, 7))),
}
"""By a name: an operator whose second tensor is constant, and sizes."""
VARIANTS = {f"{variant}{end}" for end in ("", ".tail") for variant in shaders_of((
    *tiles.HALVES, *(k for k in float_kernels.KERNELS if "coopmat" in k.variant),
    *packed_filter.KERNELS, *pointwise.KERNELS, *resident_filter.KERNELS, *im2col.KERNELS))}
"""Variants that the next test runs where there are matrix units, those of other shapes too."""


@pytest.mark.parametrize("what", UNITS)
def test_every_kernel_of_units_computes_the_same_with_a_tail(
    what: str, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that serve this work, in turn. Whole numbers, so that sums are exact in any order."""
    if not own.target.traits.multiplies(16, 16, 16, "f16", "f32"):
        pytest.skip("the device has no such matrix units")
    layer, sizes = UNITS[what]
    x, w = (rng.integers(-2, 3, s).astype(np.float16) for s in sizes)

    def results(name: str, tails: bool) -> Run:
        left_out = "conv1x1_as_gemm" + ("" if tails else ",epilogue")
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", left_out)
        own.compiled.clear()
        with tuning.trial(EveryWork(name)), dml.Graph(own) as g:
            y = layer(g.input(x.shape, x.dtype), g.constant(w))
            packed_order = y.sizes if len(y.sizes) == 2 else [y.sizes[n] for n in (0, 2, 3, 1)]
            r = g.input(packed_order, x.dtype)
            run = g.compile(_tail(y, r if len(y.sizes) == 2 else _last(r)))
        return run.variants, run(x, np.ones(packed_order, np.float16))

    with explained() as choices:
        results("", False)
    operator = "GEMM" if what.startswith("gemm") else "CONVOLUTION"
    choice = next(c for c in choices if c.operator.endswith(operator))
    product = (x.astype(float) @ w.astype(float) if operator == "GEMM" else
               _convolved(x.transpose(0, 3, 1, 2), w, start_padding=(w.shape[-1] // 2,) * 2,
                          end_padding=(w.shape[-1] // 2,) * 2).transpose(0, 2, 3, 1))
    expected = 1 - (np.maximum(product, 0.25) * product).astype(np.float16)
    for name, _ in choice.able:
        if operator == "GEMM" and "coopmat" not in name:
            continue  # tests of products run these
        plain, fused = (results(name, tails) for tails in (False, True))
        for variants, y in (plain, fused):
            np.testing.assert_array_equal(y, expected.astype(np.float16), str((name, variants)))
        assert not any(v.endswith(".tail") for v in plain[0])
