"""Whole models in the forms that ONNX Runtime's quantization tools make: one region each, and the
CPU provider's answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx.row import MICROSOFT  # noqa: E402
from kompute_dml.onnxruntime import provider  # noqa: E402
from onnx_graphs import (  # noqa: E402
    FLOAT,
    INT64,
    cpu,
    encoder,
    exact_cpu,
    installed,
    model,
    needs_provider,
    node,
)
from provider_tools import session  # noqa: E402
from real_models import Magika, TextRecognizer, package_file, quantized, sample_files  # noqa: E402

pytestmark = [needs_provider, pytest.mark.slow, exact_cpu]
BOUND = 2**-8
"""Of probabilities. A value on the edge of two integers may be quantized to either, because of
sums in another order before it: the CPU provider's own answers differ by up to 2**-8 between its
optimization levels."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # quantization recommends steps that change nothing here
    yield
    logging.disable(logging.NOTSET)


def _formed(form: str, path: Path, to: Path, feed: dict[str, Any], **options: Any) -> str:
    """The model at ``path`` in another form, with seven bits for exact sums on any processor."""
    if form == "dynamic":
        return quantized(path, to, **options)
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        feeds = iter([feed])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    quantization.quantize_static(
        str(path), str(to), Reader(), quant_format=quantization.QuantFormat[form],
        per_channel=False, reduce_range=True, **options)
    return str(to)


def _in_one_region(
    model: Any, feed: dict[str, np.ndarray], **options: str
) -> tuple[np.ndarray, np.ndarray]:
    """What this provider and the CPU's answer."""
    with provider.decisions() as decisions:
        ours = session(model, strict=True, **options)
    assert {d.where for d in decisions} == {"region 0"}
    return ours.run(None, feed)[0], cpu(model).run(None, feed)[0]


@pytest.mark.parametrize("form", ["dynamic", "QDQ", "QOperator"])
def test_magika(form: str, tmp_path: Path) -> None:
    magika = installed(Magika)
    contents = list(sample_files().values())[-2:]
    feed = {"bytes": np.stack([magika.features(content) for content in contents])}
    path = _formed(form, magika.path, tmp_path / "formed.onnx", feed)
    got, expected = _in_one_region(path, feed)
    np.testing.assert_allclose(got, expected, rtol=0, atol=BOUND)
    assert (got.argmax(-1) == expected.argmax(-1)).all()


def test_text_recognizer(tmp_path: Path) -> None:
    """With its products quantized: convolutions of bytes leave it no letter that can be read."""
    reader = installed(TextRecognizer)
    (name,) = [i.name for i in cpu(str(reader.path)).get_inputs()]
    feed = {name: reader.image("Vulkan")}
    path = _formed("QDQ", reader.path, tmp_path / "formed.onnx", feed,
                   op_types_to_quantize=["MatMul"])
    got, expected = _in_one_region(path, feed)
    np.testing.assert_allclose(got, expected, rtol=0, atol=4 * BOUND)
    assert reader.text(got[0]) == reader.text(expected[0]) == "Vulkan"


@pytest.mark.parametrize("keeps_types", [False, True])
def test_float16(keeps_types: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    """A classifier of small images. The CPU rounds at other places than this."""
    float16 = pytest.importorskip(
        "onnxruntime.transformers.float16", reason="ONNX Runtime's converter is not installed")
    path = installed(lambda: package_file("rapidocr", "models/*cls*.onnx"))
    made = float16.convert_float_to_float16(onnx.load(str(path)), keep_io_types=keeps_types)
    built = made.SerializeToString()
    feed = {"x": rng.uniform(-1, 1, (2, 3, 48, 64)).astype(np.float32 if keeps_types
                                                            else np.float16)}
    got, expected = _in_one_region(built, feed)
    unrounded = cpu(str(path)).run(None, {"x": feed["x"].astype(np.float32)})[0]
    assert np.abs(got - expected).max() <= BOUND
    assert np.abs(got - unrounded).max() <= BOUND + np.abs(expected - unrounded).max()


def _of_four_bits(built: bytes, block: int, zeros: bool) -> bytes:
    """The model with MatMulNBits in place of its products with constants."""
    made = onnx.load_model_from_string(built)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    added = {}
    for each in made.graph.node:
        if each.op_type != "MatMul" or each.input[1] not in held:
            continue
        name = each.input[1]
        k, n = held[name].shape
        blocks = held[name].T.reshape(n, k // block, block)
        low = blocks.min(-1) if zeros else -np.abs(blocks).max(-1)
        scale = (blocks.max(-1) - low) / 15 if zeros else -low / 7.5
        zero = np.round(-low / scale) if zeros else np.full(low.shape, 8)
        q = np.clip(np.round(blocks / scale[..., None]) + zero[..., None], 0, 15).astype(np.uint8)
        added[f"{name}.q"] = q[..., ::2] | q[..., 1::2] << 4
        added[f"{name}.s"] = scale.astype(np.float32).reshape(-1)
        each.input[1:] = [f"{name}.q", f"{name}.s"]
        if zeros:
            z = zero.astype(np.uint8)
            added[f"{name}.z"] = (z[..., ::2] | z[..., 1::2] << 4).reshape(-1)
            each.input.append(f"{name}.z")
        each.op_type, each.domain = "MatMulNBits", "com.microsoft"
        each.attribute.extend(onnx.helper.make_attribute(*item) for item in (
            ("K", k), ("N", n), ("bits", 4), ("block_size", block)))
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(v, name) for name, v in added.items())
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("block, zeros", [(32, False), (16, True)])
def test_encoder_with_weights_of_four_bits(
    block: int, zeros: bool, rng: np.random.Generator
) -> None:
    whole = encoder(rng, quantized=False)
    built = _of_four_bits(whole, block, zeros)
    for sizes in ((1, 9, 64), (3, 5, 64)):
        feed = {"x": rng.standard_normal(sizes).astype(np.float32)}
        got, expected = _in_one_region(built, feed)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
        unpacked = cpu(whole).run(None, feed)[0]  # sixteen steps of a weight are rough
        assert 1e-2 < np.abs(got - unpacked).max() < 1


@pytest.mark.parametrize("k", [96, 75])
@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_dequantized_weights_of_four_bits(kind: str, k: int, rng: np.random.Generator) -> None:
    """DequantizeLinear of 4-bit constants in blocks belongs to the product's region. The last block
    may be shorter."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy has no types of 4 bits")
    low, n, block = -8 if kind == "int4" else 0, 13, 32
    held = {name: rng.integers(low, low + 16, sizes).astype(getattr(ml_dtypes, kind))
            for name, sizes in (("w", (k, n)), ("z", (-(-k // block), n)))}
    held["s"] = rng.uniform(0.01, 0.1, (-(-k // block), n)).astype(np.float32)
    built = model(
        [node("DequantizeLinear", "w s z", "r", axis=0, block_size=block),
         node("MatMul", "x r", "y")],
        [("x", FLOAT, (3, k))], [("y", FLOAT, (3, n))], held, opset=21)
    feed = {"x": rng.normal(0, 1, (3, k)).astype(np.float32)}
    got, _ = _in_one_region(built, feed)  # the CPU's answer has A rounded to 8 bits
    wanted = cpu(built, optimize=False).run(None, feed)[0]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_four_bits_that_no_product_reads(kind: str, rng: np.random.Generator) -> None:
    """Rows of an embedding, and the weights of a convolution."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy has no types of 4 bits")
    low = -8 if kind == "int4" else 0
    held = {name: rng.integers(low, low + 16, sizes).astype(getattr(ml_dtypes, kind))
            for name, sizes in (("w", (8, 24)), ("z", (8,)), ("e", (20, 32)))}
    held |= {"s": rng.uniform(0.01, 0.1, 8).astype(np.float32), "sizes": np.int64([8, 4, 6]),
             "t": rng.uniform(0.01, 0.1, (20, 2)).astype(np.float32)}
    built = model(
        [node("DequantizeLinear", "w s z", "r", axis=0), node("Reshape", "r sizes", "filters"),
         node("DequantizeLinear", "e t", "table", axis=1, block_size=16),
         node("Gather", "table ids", "rows"), node("Conv", "rows filters", "y")],
        [("ids", INT64, (2, 4))], [("y", FLOAT, None)], held, opset=21)
    got, expected = _in_one_region(built, {"ids": rng.integers(0, 20, (2, 4))}, claim="all")
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("domain", ["", MICROSOFT])
@pytest.mark.parametrize("kind", ["int16", "uint16"])
def test_activations_of_sixteen_bits(kind: str, domain: str, rng: np.random.Generator) -> None:
    """As models for neural processors have them: between any two nodes, and beyond their range."""
    limits = np.iinfo(kind)
    held = {"w": rng.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8), "wz": np.zeros(4, np.int8),
            "ws": rng.uniform(0.005, 0.02, 4).astype(np.float32),
            "z": np.array(limits.min + 30000, kind), "s": np.float32(1e-4), "t": np.float32(1e-4)}
    built = model(
        [node("QuantizeLinear", "x s z", "a", domain),
         node("DequantizeLinear", "a s z", "b", domain),
         node("DequantizeLinear", "w ws wz", "filters", axis=0), node("Conv", "b filters", "c"),
         node("QuantizeLinear", "c t z", "q", domain),
         node("DequantizeLinear", "q t z", "d", domain),
         node("Relu", "d", "y")],
        [("x", FLOAT, (2, 3, 6, 6))], [("q", onnx.TensorProto.DataType.Value(kind.upper()), None),
                                       ("y", FLOAT, None)], held, opset=21 if not domain else 17)
    feed = {"x": 3 * rng.standard_normal((2, 3, 6, 6), np.float32)}
    ours = session(built, claim="all", strict=True).run(None, feed)
    theirs = cpu(built, optimize=False).run(None, feed)
    assert {limits.min, limits.max} & {*theirs[0].reshape(-1).tolist()}
    # A sum that lies between two numbers may be rounded to either.
    assert np.abs(ours[0].astype(np.int64) - theirs[0]).max() <= 1
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=1.1e-4)
