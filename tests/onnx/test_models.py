"""Whole models on the execution provider: their results equal the CPU provider's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx_graphs import cpu, encoder, exact_cpu, installed, needs_provider, placement
from provider_tools import NAME, session
from real_models import Magika, TextRecognizer, quantized, sample_files

pytestmark = needs_provider
PRODUCTS = "MatMulInteger"


def test_encoder_is_bit_equal_with_its_products_on_the_device(rng: np.random.Generator) -> None:
    model = encoder(rng)
    ours, theirs = session(model, False, claim=PRODUCTS), cpu(model, False)
    assert placement(ours, NAME).count(PRODUCTS) == 12
    assert PRODUCTS not in placement(ours, "CPUExecutionProvider")
    for shape in ((1, 7), (3, 16)):
        x = rng.standard_normal((*shape, 64)).astype(np.float32)
        assert (ours.run(None, {"x": x})[0] == theirs.run(None, {"x": x})[0]).all()


@pytest.mark.parametrize("claim", ["auto", "all"])
def test_encoder(claim: str, rng: np.random.Generator) -> None:
    model = encoder(rng)
    ours, theirs = session(model, claim=claim, strict=True), cpu(model)
    x = rng.standard_normal((2, 9, 64)).astype(np.float32)
    got, expected = ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0]
    # A value halfway between two integers may be quantized to either.
    assert np.abs(got - expected).max() < 0.05 and np.abs(got - expected).mean() < 2e-3


@pytest.mark.slow
def test_magika(tmp_path: Path) -> None:
    """With its products on the device. (test_demo.py also runs the other nodes there.)"""
    magika = installed(Magika)
    path = quantized(magika.path, tmp_path / "magika.onnx")
    ours, theirs = session(path, claim=PRODUCTS), cpu(path)
    assert placement(ours, NAME).count(PRODUCTS) == 2
    chosen = list(sample_files().items())[-40:]
    assert len(chosen) >= 30
    for begin in range(0, len(chosen), 10):
        part = chosen[begin : begin + 10]
        feed = {"bytes": np.stack([magika.features(content) for _, content in part])}
        got, expected = ours.run(None, feed)[0], theirs.run(None, feed)[0]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
        assert (got.argmax(-1) == expected.argmax(-1)).all()
        print({name: magika.labels[i] for (name, _), i in zip(part, got.argmax(-1))})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float", pytest.param("int8", marks=exact_cpu)])
def test_text_recognizer(kind: str, tmp_path: Path) -> None:
    reader = installed(TextRecognizer)
    image = reader.image("Vulkan 2026 hello")
    if kind == "float":
        path, claim = str(reader.path), "all"
    else:
        path = quantized(reader.path, tmp_path / "int8.onnx", op_types_to_quantize=["MatMul"])
        claim = "auto"
    ours, theirs = session(path, False, claim=claim), cpu(path, False)
    wanted = "Identity" if kind == "float" else PRODUCTS
    assert wanted in placement(ours, NAME)
    (name,) = [i.name for i in theirs.get_inputs()]
    got, expected = ours.run(None, {name: image})[0], theirs.run(None, {name: image})[0]
    assert np.abs(got - expected).max() <= 1e-3 * np.abs(expected).max()
    assert reader.text(got[0]) == reader.text(expected[0]) == "Vulkan 2026 hello"
