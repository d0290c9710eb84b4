"""Operators of ONNX Runtime's DirectML provider that take several of DirectML's, or are no longer
ONNX's: against ONNX Runtime's CPU, or NumPy where that has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import helper

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
import onnx_cpu
from kompute_dml.onnx.operators import fourier
from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node, placement
from provider_tools import NAME, session

MICROSOFT = "com.microsoft"


def _ours(
    op: str, given: list[np.ndarray], constants: list[np.ndarray] = (), opset: int = 8,
    outputs: int = 1, rank: int | None = None, **attributes: Any,
) -> tuple[list[np.ndarray], bytes, dict[str, np.ndarray]]:
    """What the provider makes of one node, its model and feed."""
    feed = {f"x{i}": x for i, x in enumerate(given)}
    more = {f"c{i}": x for i, x in enumerate(constants)}
    domain = MICROSOFT if opset == 1 else ""
    shape = [None] * (given[0].ndim if rank is None else rank)
    made = [f"y{i}" for i in range(outputs)]
    kind = helper.np_dtype_to_tensor_dtype(given[0].dtype)
    built = model(
        [node(op, " ".join([*feed, *more]), " ".join(made), domain, **attributes)],
        [(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feed.items()],
        [(n, kind, shape) for n in made], more, opset=17 if domain else opset)
    run = session(built, False, claim="all")
    assert placement(run, NAME) == [op]
    return run.run(None, feed), built, feed


# What ONNX has dropped


@needs_provider
@pytest.mark.parametrize("op, attributes", [
    ("Affine", {"alpha": 1.5, "beta": -2.0}), ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
    ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}),
    ("ImageScaler", {"scale": 0.5, "bias": [1.0, 2.0, 3.0]}),
    ("ThresholdedRelu", {"alpha": 0.25}), ("MeanVarianceNormalization", {}),
    ("MeanVarianceNormalization", {"across_channels": 1, "normalize_variance": 0}),
    ("Upsample", {"scales": [1.0, 1.0, 2.0, 3.0]}),
])
def test_what_onnx_has_dropped(
    op: str, attributes: dict[str, Any], rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    (got,), built, feed = _ours(op, [x], **attributes)
    (wanted,) = cpu(built, False).run(None, feed)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@needs_provider
@pytest.mark.parametrize("attributes", [
    {"border": [1, 0, 2, 1]}, {"border": [1, 2, 0, 0], "scale": [2, 3]}], ids=str)
def test_crop(attributes: dict[str, Any], rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    built = model([node("Crop", "x", "t", **attributes), node("Neg", "t", "y")],
                  [("x", FLOAT, x.shape)], [("y", FLOAT, [None] * 4)], opset=8)
    ours = session(built, False, claim="all")
    assert placement(ours, NAME) == ["Crop", "Neg"]
    np.testing.assert_array_equal(ours.run(None, {"x": x})[0],
                                  cpu(built, False).run(None, {"x": x})[0])


@needs_provider
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1])
def test_regions_of_no_area(mode: str, ratio: int, rng: np.random.Generator) -> None:
    """Lists of regions are filled up with them. The number of samples follows from their sizes."""
    x = rng.standard_normal((1, 2, 5, 6)).astype(np.float32)
    rois = np.float32([[1, 1, 1, 1], [1, 1, 4, 1], [4, 4, 2, 2], [1, 1, 3, 4]])
    (got,), built, feed = _ours(
        "RoiAlign", [x, rois, np.zeros(4, np.int64)], opset=16, output_height=2, output_width=2,
        sampling_ratio=ratio, coordinate_transformation_mode=mode)
    (wanted,) = cpu(built, False).run(None, feed)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@needs_provider
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_regions_thinner_than_an_element(mode: str, rng: np.random.Generator) -> None:
    """Without the shift of half an element, such regions grow to a whole one."""
    x = rng.standard_normal((2, 3, 9, 8)).astype(np.float32)
    rois = np.float32([[1.3, 3.5, 7.6, 3.9], [2, 2, 2, 2], [1, 2, 13, 14]])
    (got,), built, feed = _ours(
        "RoiAlign", [x, rois, np.array([0, 1, 1])], opset=16, spatial_scale=0.5, output_height=2,
        output_width=3, sampling_ratio=2, coordinate_transformation_mode=mode)
    (wanted,) = cpu(built, False).run(None, feed)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


A = np.arange(-6, 6, dtype=np.float32).reshape(2, 3, 2) / 2
B = np.float32([3, -1, 2])


@pytest.mark.parametrize("op, attributes, b, expected", [
    ("Add", {"broadcast": 1, "axis": 1}, B, A + B[:, None]),
    ("Sub", {"broadcast": 1}, B[:2], A - B[:2]), ("Mul", {}, A, A * A),
    ("Div", {"broadcast": 1, "axis": -2}, B, A / B[:, None]),
    ("Greater", {"broadcast": 1, "axis": 1}, B, np.greater(A, B[:, None])),
    ("Less", {"broadcast": 1, "axis": 0}, B[:2], np.less(A, B[:2, None, None])),
    ("Pow", {"broadcast": 1, "axis": 0}, np.float32([2, 3]),
     A ** np.float32([2, 3])[:, None, None]),
    ("PRelu", {}, B, np.where(A < 0, A * B[:, None], A)),
    ("Sum", {"consumed_inputs": [0, 0]}, A, A + A), ("Max", {}, -A, np.abs(A)),
])
def test_first_versions_of_two_inputs(
    op: str, attributes: dict[str, Any], b: np.ndarray, expected: np.ndarray
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(expected.dtype)
    built = model([node(op, "a b", "y", **attributes)],
                  [("a", FLOAT, A.shape), ("b", FLOAT, b.shape)], [("y", kind, A.shape)], opset=1)
    (got,) = backend.run_model(built, [A, b])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("op, attributes, expected", [
    ("Abs", {"consumed_inputs": [1]}, np.abs(A)), ("Neg", {}, -A), ("Exp", {}, np.exp(A)),
    ("Clip", {"min": -1.0, "max": 1.5}, np.clip(A, -1, 1.5)),
    ("Cast", {"to": "INT32"}, A.astype(np.int32)), ("Cast", {"to": "bool"}, A != 0),
    ("Reshape", {"shape": [3, -1]}, A.reshape(3, 4)), ("Dropout", {"is_test": 1}, A),
])
def test_first_versions_of_one_input(
    op: str, attributes: dict[str, Any], expected: np.ndarray
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(expected.dtype)
    built = model([node(op, "a", "y", **attributes)], [("a", FLOAT, A.shape)],
                  [("y", kind, expected.shape)], opset=1)
    (got,) = backend.run_model(built, [A])
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("op, attributes, why", [
    ("Dropout", {}, "is_test=0"), ("Cast", {"to": "STRING"}, "a cast to this data type"),
])
def test_first_versions_that_are_refused(op: str, attributes: dict[str, Any], why: str) -> None:
    built = model([node(op, "a", "y", **attributes)], [("a", FLOAT, A.shape)],
                  [("y", FLOAT, A.shape)], opset=1)
    with pytest.raises(dml.UnsupportedError, match=why):
        backend.prepare(built)


def test_batch_normalization_of_every_element(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    more = [rng.uniform(0.5, 2, (3, 4, 5)).astype(np.float32) for _ in range(4)]
    wanted = onnx_cpu.result("BatchNormalization", x, *more, opset=7, spatial=0)
    built = model([node("BatchNormalization", "x s b m v", "y", spatial=0)],
                  [("x", FLOAT, x.shape)], [("y", FLOAT, x.shape)], dict(zip("sbmv", more)),
                  opset=7)
    np.testing.assert_allclose(backend.run_model(built, [x])[0], wanted, rtol=1e-5, atol=1e-5)


# com.microsoft


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


@needs_provider
@pytest.mark.parametrize("skips", [None, (2, 6), (2, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("last", [1, 0])
def test_group_norm(
    last: int, skips: tuple[int, ...] | None, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 4, 5, 6)).astype(np.float32)
    scale, bias, more = (rng.standard_normal(6).astype(np.float32) for _ in range(3))
    order, back = ((0, 1, 2, 3),) * 2 if last else ((0, 3, 1, 2), (0, 2, 3, 1))
    given, total = [np.ascontiguousarray(x.transpose(order)), scale, bias], x
    if skips:
        skip = rng.standard_normal(skips).astype(np.float32)
        total = x + (skip if skip.ndim == 4 else skip[:, None, None]) + more
        given += [np.ascontiguousarray(skip.transpose(order[: skip.ndim])) if skip.ndim == 4
                  else skip, more]
    results, *_ = _ours("SkipGroupNorm" if skips else "GroupNorm", given[:1], given[1:], 1,
                        2 if skips else 1, groups=3, channels_last=last, activation=1,
                        epsilon=1e-3)
    t = total.astype(np.float64).reshape(2, 20, 3, 2)
    t = (t - t.mean((1, 3), keepdims=True)) / np.sqrt(t.var((1, 3), keepdims=True) + 1e-3)
    wanted = _silu(t.reshape(x.shape) * scale + bias)
    np.testing.assert_allclose(results[0].transpose(back), wanted, rtol=1e-4, atol=1e-5)
    if skips:
        np.testing.assert_allclose(results[1].transpose(back), total, rtol=1e-5, atol=1e-6)


@needs_provider
def test_convolution_with_channels_last(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 7, 6, 4)).astype(np.float32)
    w, bias = (rng.standard_normal(n).astype(np.float32) for n in ((8, 3, 2, 2), (8,)))
    window = {"group": 2, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    (got,), *_ = _ours("NhwcConv", [x], [w, bias], 1, **window)
    wanted = onnx_cpu.result("Conv", x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2), bias,
                             **window).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@needs_provider
def test_transposed_convolution_with_pads_of_a_run(rng: np.random.Generator) -> None:
    x, w, bias = (rng.standard_normal(n).astype(np.float32)
                  for n in ((1, 3, 4, 5), (3, 2, 3, 3), (2,)))
    given = {"x": x, "pads": np.array([0, 1, 1, 0])}
    built = model(
        [node("ConvTransposeWithDynamicPads", "x w pads b", "y", MICROSOFT, strides=[2, 1],
              output_padding=[1, 0])],
        [("x", FLOAT, x.shape), ("pads", INT64, [4])], [("y", FLOAT, [None] * 4)],
        {"w": w, "b": bias})
    ours = session(built, False, claim="all")
    assert placement(ours, NAME) == ["ConvTransposeWithDynamicPads"]
    wanted = cpu(built, False).run(None, given)[0]
    np.testing.assert_allclose(ours.run(None, given)[0], wanted, rtol=1e-5, atol=1e-5)


@needs_provider
@pytest.mark.parametrize("attributes", [
    {"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.25},
    {"activation": "HardSigmoid", "activation_alpha": 0.1, "activation_beta": 0.25},
    {"activation": "Tanh", "alpha": 0.5, "beta": 2.0, "transB": 1},
], ids=lambda a: a["activation"])
def test_fused_gemm(attributes: dict[str, Any], rng: np.random.Generator) -> None:
    a, b, c = (rng.standard_normal(n).astype(np.float32) for n in ((3, 4), (4, 4), (4,)))
    (got,), built, feed = _ours("FusedGemm", [a], [b, c], 1, **attributes)
    np.testing.assert_allclose(got, cpu(built, False).run(None, feed)[0], rtol=1e-5, atol=1e-5)


@needs_provider
@pytest.mark.parametrize("activation", ["Elu", "Selu", "Softmax", "ScaledTanh", "Softplus"])
def test_fused_product_and_activation(activation: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(n).astype(np.float32) for n in ((2, 3, 4), (5, 4)))
    (got,), *_ = _ours("FusedMatMulActivation", [a], [b], 1, activation=activation,
                       activation_alpha=1.5, activation_beta=0.5, activation_gamma=2.0,
                       activation_axis=1, transB=1, alpha=0.5)
    s = 0.5 * (a.astype(np.float64) @ b.T)
    with np.errstate(over="ignore"):
        wanted = {
            "Elu": np.where(s < 0, 1.5 * np.expm1(s), s), "Softplus": np.log1p(np.exp(s)),
            "Selu": 2.0 * np.where(s < 0, 1.5 * np.expm1(s), s),
            "Softmax": np.exp(s) / np.exp(s).sum(1, keepdims=True),
            "ScaledTanh": 1.5 * np.tanh(0.5 * s)}[activation]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


# Samples and Fourier transforms


@pytest.mark.parametrize("aligned, mode, padding", [
    (0, "nearest", "reflection"), (1, "nearest", "zeros"), (0, "linear", "zeros"),
    (0, "linear", "border"), (1, "linear", "reflection"), (0, "cubic", "border"),
    (0, "cubic", "reflection"), (1, "cubic", "zeros"),
])
def test_grid_sample(aligned: int, mode: str, padding: str, rng: np.random.Generator) -> None:
    """Points far outside too. ONNX Runtime's CPU reads a plane."""
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    grid = rng.uniform(-3, 3, (2, 6, 7, 2)).astype(np.float32)
    given = {"align_corners": aligned, "mode": mode, "padding_mode": padding}
    wanted = onnx_cpu.result("GridSample", x, grid, opset=20, **given)
    built = model([node("GridSample", "x grid", "y", **given)],
                  [("x", FLOAT, ["n", 3, 4, 5]), ("grid", FLOAT, ["n", 6, 7, 2])],
                  [("y", FLOAT, ["n", 3, 6, 7])], opset=20)
    (got,) = backend.run_model(built, [x, grid])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


def test_grid_sample_of_float16(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 4, 5)).astype(np.float16)
    grid = rng.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    wanted = onnx_cpu.result("GridSample", x.astype(np.float32), grid, opset=20)
    (got,) = backend.run_node(node("GridSample", "x grid", "y"), [x, grid])
    np.testing.assert_allclose(got, wanted, atol=2**-10)


# One product; factors that are; a factor that is prime; a prime.
@pytest.mark.parametrize("length", [1, 5, 12, 14, 7])
def test_fourier_transforms(
    length: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fourier, "_SHORT", 5)
    z = rng.standard_normal((2, length, 3, 2)).astype(np.float32)
    x = z[..., 0] + 1j * z[..., 1]

    def made(given: np.ndarray, **attributes: int) -> np.ndarray:
        (y,) = backend.run_node(node("DFT", "x - axis", "y", **attributes), [given, np.array(1)])
        return np.asarray(y[..., 0] + 1j * y[..., 1] if y.shape[-1] == 2 else y[..., 0])

    bound = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(made(z), np.fft.fft(x, axis=1), **bound)
    np.testing.assert_allclose(made(z, inverse=1) * length, np.fft.ifft(x, axis=1) * length,
                               **bound)
    half = np.fft.rfft(x.real, axis=1)
    np.testing.assert_allclose(made(z[..., :1], onesided=1), half, **bound)
    if length % 2 == 0:
        parts = np.stack([half.real, half.imag], -1).astype(np.float32)
        np.testing.assert_allclose(made(parts, inverse=1, onesided=1), x.real, **bound)


def test_a_fourier_transform_of_a_prime(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 523, 1)).astype(np.float32)
    (y,) = backend.run_node(node("DFT", "x", "y"), [x])
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], np.fft.fft(x[..., 0], axis=1),
                               rtol=0, atol=1e-3)


def test_fourier_transforms_take_more_or_less(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros follow, or the end is left out; in short and long transforms."""
    x = rng.standard_normal((2, 6, 1)).astype(np.float32)
    for short in (512, 3):
        monkeypatch.setattr(fourier, "_SHORT", short)
        for length in (4, 9):
            (y,) = backend.run_node(node("DFT", "x n", "y"), [x, np.array(length)])
            wanted = np.fft.fft(x[..., 0], length, 1)
            np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, atol=1e-4)


@pytest.mark.parametrize("parts, windowed", [(1, True), (1, False), (2, True)])
def test_short_time_fourier_transforms(
    parts: int, windowed: bool, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 50, parts)).astype(np.float32)
    window = rng.random(16).astype(np.float32) if windowed else None
    # ONNX Runtime 1.30 reads windows of complex signals wrongly, so NumPy is the reference.
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0.0)
    frames = np.lib.stride_tricks.sliding_window_view(signal, 16, axis=1)[:, ::5]
    spectrum = np.fft.fft(frames * (1.0 if window is None else window))
    spectrum = spectrum[..., :9] if parts == 1 else spectrum
    wanted = np.stack([spectrum.real, spectrum.imag], axis=-1)
    constants = {"step": np.array(5), "n": np.array(16)}
    if window is not None:
        constants["w"] = window
    built = model([node("STFT", f"x step {'w' if windowed else '-'} n", "y",
                        onesided=int(parts == 1))],
                  [("x", FLOAT, ["b", 50, parts])], [("y", FLOAT, [None] * 4)], constants)
    (got,) = backend.run_model(built, [x])
    assert got.dtype == np.float32 and got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


def test_recurrent_networks_by_batch(rng: np.random.Generator) -> None:
    """layout=1, of which ONNX Runtime's CPU has only the other."""
    x = rng.standard_normal((3, 2, 4)).astype(np.float32)
    w, r = (rng.standard_normal((2, 12, n)).astype(np.float32) / 2 for n in (4, 3))
    h = rng.standard_normal((3, 2, 3)).astype(np.float32)
    attributes = {"hidden_size": 3, "direction": "bidirectional"}
    y, last, cells = onnx_cpu.results(
        "LSTM", x.transpose(1, 0, 2), w, r, None, None, h.transpose(1, 0, 2), outputs=3,
        opset=14, **attributes)
    built = model([node("LSTM", "x w r - - h", "y last cells", layout=1, **attributes)],
                  [("x", FLOAT, x.shape), ("h", FLOAT, h.shape)],
                  [("y", FLOAT, [3, 2, 2, 3]), ("last", FLOAT, h.shape), ("cells", FLOAT, h.shape)],
                  {"w": w, "r": r})
    results = backend.run_model(built, [x, h])
    for got, wanted in zip(results, (y.transpose(2, 0, 1, 3), last.transpose(1, 0, 2),
                                     cells.transpose(1, 0, 2))):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
