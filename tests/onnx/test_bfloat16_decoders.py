"""Decoders whose weights, caches and activations are of BFLOAT16, as exporters write models that
were trained so. The CPU provider has no such kernels: it runs the same weights in FLOAT32."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the models are built with onnx")
ort = pytest.importorskip("onnxruntime", "1.32", reason="older operators have fewer inputs")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import numpy_helper  # noqa: E402

from kompute_dml.onnx.bfloat16 import widened  # noqa: E402
from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node  # noqa: E402
from provider_tools import last_kernel, session  # noqa: E402
from test_decoder_families import _FAMILIES, _WORDS, _Decoder, _regions  # noqa: E402

pytestmark = needs_provider
_BFLOAT16 = onnx.TensorProto.BFLOAT16
_ROUNDING = 2.0**-8
"""Of a number, relative to it."""


def _upper(x: np.ndarray) -> np.ndarray:
    """Numbers of FLOAT32 rounded to BFLOAT16, in two bytes each."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def _rounded(x: np.ndarray) -> np.ndarray:
    return widened(_upper(x))


def _stored(built: bytes, *, inputs: bool = True) -> tuple[bytes, bytes]:
    """A model of FLOAT32 in BFLOAT16, and the same with the same weights in FLOAT32."""
    halves, floats = (onnx.load_model_from_string(built) for _ in range(2))
    for stored, exact in zip(halves.graph.initializer, floats.graph.initializer):
        if stored.data_type == FLOAT:
            x = numpy_helper.to_array(stored)
            stored.CopyFrom(onnx.helper.make_tensor(
                stored.name, _BFLOAT16, x.shape, _upper(x).tobytes(), raw=True))
            exact.CopyFrom(numpy_helper.from_array(_rounded(x), exact.name))
    graph = halves.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == FLOAT:
            info.type.tensor_type.elem_type = _BFLOAT16
    for n in graph.node:
        for a in n.attribute:
            if n.op_type == "Cast" and a.name == "to" and a.i == FLOAT:
                a.i = _BFLOAT16
    return halves.SerializeToString(), floats.SerializeToString()


def _run(which: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, with numbers of FLOAT32 stored as BFLOAT16."""
    values = {name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(_upper(x), _BFLOAT16)
              if x.dtype == np.float32 else ort.OrtValue.ortvalue_from_numpy(x)
              for name, x in feed.items()}
    names = [y.name for y in which.get_outputs()]
    binding = which.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        binding.bind_output(name, "cpu")
    which.run_with_iobinding(binding)
    results = []
    for y in binding.get_outputs():
        assert y.element_type() == _BFLOAT16
        results.append(_numbers(y))
    return results


def _numbers(value: Any) -> np.ndarray:
    sizes = value.shape()
    count = int(np.prod(sizes))
    raw = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    return widened(np.ctypeslib.as_array(raw).copy().reshape(sizes))


@pytest.mark.parametrize("family", [
    "Llama, SmolLM2", "Qwen2", "Qwen3", "Phi3", "Gemma 2", "Gemma 3", "Nemotron", "gpt-oss",
    "LFM2"])
def test_a_family(family: str, rng: np.random.Generator) -> None:
    decoder = _Decoder(7, **_FAMILIES[family])
    stored, exact = _stored(decoder.built())
    before = _regions()
    ours, theirs = session(stored, claim="all", strict=True), cpu(exact, False)
    assert len([x for x in _regions() if not any(x is y for y in before)]) == 1
    states = [{name: np.zeros([0 if n == "past" else n for n in sizes], np.float32)
               for name, sizes in decoder.states} for _ in range(2)]
    end, names = 0, {x.name for x in theirs.get_inputs()}
    for count in (6, 1, 1):
        begin, end = end, end + count
        feed = {"ids": rng.integers(0, _WORDS, (1, count)), "lengths": np.int32([end - 1]),
                "total": np.int32([end]), "ids.places": np.arange(begin, end)[None]}
        feed = {name: x for name, x in feed.items() if name in names}
        y, *after = _run(ours, {**feed, **states[0]})
        wanted, *expected = theirs.run(None, {**feed, **states[1]})
        names_of_states = [*states[0]]
        states = [dict(zip(names_of_states, x)) for x in (after, map(_rounded, expected))]
        np.testing.assert_allclose(y, wanted, rtol=2 * _ROUNDING,
                                   atol=2 * _ROUNDING * abs(wanted).max())
        for got, state in zip(after, expected):
            if got.ndim == 4:  # a cache, whose other rows are nobody's
                got, state = got[:, :, :end], state[:, :, :end]
            np.testing.assert_allclose(got, state, rtol=2 * _ROUNDING,
                                       atol=2 * _ROUNDING * abs(state).max())
        assert np.ptp(wanted) > 0.1


def test_numbers_are_rounded_to_the_nearest(rng: np.random.Generator) -> None:
    """Halves to even, subnormal numbers, infinities and NaN, whose bits a sum would carry away."""
    special = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 1, 0x8000, 0x80018000,
                        0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF],
                       np.uint32).view(np.float32)
    x = np.concatenate([special, rng.standard_normal(1011, np.float32)])
    built = model([node("Cast", "x", "y", to=_BFLOAT16)], [("x", FLOAT, ["n"])],
                  [("y", _BFLOAT16, ["n"])], opset=19)
    ours = session(built, claim="all", strict=True)
    binding = ours.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("y", "cpu")
    ours.run_with_iobinding(binding)
    got = _numbers(binding.get_outputs()[0])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    usual = ~np.isnan(x) & ((abs(x) >= 2.0**-126) | (x == 0))
    np.testing.assert_array_equal(got[usual], _rounded(x)[usual])


def test_weights_take_half_the_memory(rng: np.random.Generator) -> None:
    """A product's; what else reads them widens them."""
    built = model([node("MatMul", "x w", "y")], [("x", FLOAT, ["n", 192])], [("y", FLOAT, None)],
                  {"w": rng.standard_normal((192, 128), np.float32) / 14})
    stored, exact = _stored(built)
    ours = session(stored, claim="all", strict=True)
    region = last_kernel().region
    assert [x.dtype.itemsize for x in region._halves.values()] == [2] and not region._constants
    for rows in (1, 5, 20, 21, 40):
        x = rng.standard_normal((rows, 192), np.float32)
        (y,) = _run(ours, {"x": x})
        (wanted,) = cpu(exact, False).run(None, {"x": _rounded(x)})
        np.testing.assert_allclose(y, wanted, rtol=_ROUNDING, atol=1e-4)


def test_bits_are_no_numbers() -> None:
    built = model([node("BitCast", "x", "y", to=onnx.TensorProto.UINT16), node("Abs", "z", "w")],
                  [("x", _BFLOAT16, [4]), ("z", INT64, [4])],
                  [("y", onnx.TensorProto.UINT16, [4]), ("w", INT64, [4])], opset=26)
    with pytest.raises(Exception, match="BFLOAT16"):
        session(built, claim="all", strict=True)
